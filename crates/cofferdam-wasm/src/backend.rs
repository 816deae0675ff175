//! The backend that creates WebAssembly sandboxes.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use bytes::Bytes;
use cofferdam_contract::{
    Backend, Capabilities, Capability, Error, Level, PreparedSandbox, Result, Sandbox, Snapshot, Spec,
};
use cofferdam_wasm_runtimes::Language;
use tokio::sync::Semaphore;

use crate::NAME;
use crate::config::WasmConfig;
use crate::languages::Preparing;
use crate::loader::Loader;
use crate::run::{self, Loaded, Session, SessionKind, SessionSnapshot};
use crate::sandbox::WasmSandbox;
use crate::state::{Common, Shared};

/// The backend of the wasm isolation level. Creating it is cheap: the engine is created with the first module. It needs
/// a tokio runtime with time enabled.
#[derive(Debug)]
pub struct WasmBackend {
    common: Arc<Common>,
}

impl Default for WasmBackend {
    fn default() -> Self {
        Self::new(WasmConfig::default())
    }
}

impl WasmBackend {
    /// Creates a backend with this configuration.
    pub fn new(config: WasmConfig) -> Self {
        let slots = Arc::new(Semaphore::new(config.guests.clamp(1, Semaphore::MAX_PERMITS)));
        let common = Common { loader: Loader::new(config.clone()), config, slots, created: AtomicU64::new(0) };
        Self { common: Arc::new(common) }
    }

    /// Opens a session: a guest that is called repeatedly, in its own sandbox.
    ///
    /// # Errors
    ///
    /// As `create` and `start`.
    pub async fn open_session(&self, kind: SessionKind, spec: Spec) -> Result<Session> {
        run::open_session(&self.common, kind, spec, WasmSandbox::create).await
    }

    /// Opens a session that resumes from a snapshot, in a sandbox of this spec.
    ///
    /// # Errors
    ///
    /// As `create`; `Unsupported` if the snapshot was taken by another version of the interpreter; `Denied` if it
    /// belongs to another tenant.
    pub async fn restore_session(&self, snapshot: &SessionSnapshot, spec: Spec) -> Result<Session> {
        run::restore_session(&self.common, snapshot, spec, WasmSandbox::create).await
    }

    /// Prepares an installed interpreter: compiles it for this host, starts it, freezes it, and stores the result in
    /// the cache. Without this call the first run does so.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the interpreter is not installed.
    pub async fn prepare(&self, language: Language, progress: impl FnMut(Preparing) + Send + 'static) -> Result<()> {
        self.common.loader.prepare_interpreter(language, false, progress).await.map(drop)
    }

    /// Loads a module for direct runs, without a sandbox, under the limits of `spec`.
    ///
    /// # Errors
    ///
    /// As `create` and `start`.
    pub async fn load(&self, module: Bytes, spec: Spec) -> Result<Loaded> {
        Loaded::of_module(&self.common, module, spec).await
    }

    /// Loads an interpreter for direct runs, without a sandbox, under the limits of `spec`.
    ///
    /// # Errors
    ///
    /// As `create` and `start`.
    pub async fn load_language(&self, language: Language, spec: Spec) -> Result<Loaded> {
        Loaded::of_language(&self.common, language, spec).await
    }
}

#[async_trait]
impl Backend for WasmBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn level(&self) -> Level {
        Level::Wasm
    }

    fn capabilities(&self) -> Capabilities {
        [
            Capability::MultipleExecs,
            Capability::StreamingStdin,
            Capability::Files,
            Capability::Snapshot,
            Capability::Fork,
            Capability::NetworkAllowlist,
        ]
        .into_iter()
        .collect()
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(WasmSandbox::create(Shared::with_workspace(&self.common, spec).await?))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let foreign = || Error::invalid("restore", "the snapshot was taken by another backend");
        let files = Some(&snapshot).filter(|snapshot| snapshot.backend() == NAME).and_then(Snapshot::payload);
        let files = files.ok_or_else(foreign)?;
        spec.check_tenant(snapshot.tenant())?;
        let shared = Shared::copied(&self.common, spec, files)?;
        Ok(WasmSandbox::create(Arc::new(shared)))
    }

    async fn prepare(&self, _: Spec) -> Result<Box<dyn PreparedSandbox>> {
        Err(Error::unsupported("warm", "the wasm backend does not prepare sandboxes"))
    }
}
