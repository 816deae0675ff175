//! Makes sandboxes of WebAssembly.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use bytes::Bytes;
use cofferdam_contract::{Backend, Capabilities, Capability, Error, Level, Result, Sandbox, Snapshot, Spec, Warm};
use cofferdam_wasm_supply::Language;
use tokio::sync::Semaphore;

use crate::direct::Terms;
use crate::engine::Engines;
use crate::sandbox::WasmSandbox;
use crate::screen::not_executable;
use crate::session;
use crate::state::{Common, Shared};
use crate::{Loaded, Preparing, Session, SessionKind, SessionSnapshot, WasmConfig};

/// The backend's name.
pub(crate) const NAME: &str = "wasm";

/// The backend of level 1. Making it costs nothing: the engine comes with the first module. Needs a tokio runtime with
/// time enabled.
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
    /// A backend with these bounds.
    pub fn new(config: WasmConfig) -> Self {
        let places = Arc::new(Semaphore::new(config.guests.clamp(1, Semaphore::MAX_PERMITS)));
        let common = Common { engines: Engines::new(config.clone()), config, places, made: AtomicU64::new(0) };
        Self { common: Arc::new(common) }
    }

    /// Opens a session: a guest that is called again and again, in a sandbox of its own.
    ///
    /// # Errors
    ///
    /// As `create` and `start`.
    pub async fn open_session(&self, kind: SessionKind, spec: Spec) -> Result<Session> {
        session::open(&self.common, kind, spec).await
    }

    /// Opens a session that goes on where a snapshot was made, in a sandbox of this spec.
    ///
    /// # Errors
    ///
    /// As `create`; `Unsupported` if the snapshot is of another version of the interpreter.
    pub async fn restore_session(&self, snapshot: &SessionSnapshot, spec: Spec) -> Result<Session> {
        session::restore(&self.common, snapshot, spec).await
    }

    /// Makes an interpreter ready that the supply has: compiled for this machine, started, and frozen, all of it kept in
    /// the cache. Without this the first run does it.
    ///
    /// # Errors
    ///
    /// `Unavailable` if it was not obtained.
    pub async fn prepare(&self, language: Language, progress: impl FnMut(Preparing) + Send + 'static) -> Result<()> {
        self.common.engines.make_interpreter(language, false, progress).await.map(drop)
    }

    /// Loads a module for runs without a sandbox around them, under the limits of `spec`.
    ///
    /// # Errors
    ///
    /// As `create` and `start`.
    pub async fn load(&self, module: Bytes, spec: Spec) -> Result<Loaded> {
        let terms = Terms::new(spec)?;
        let (tenant, allowed) = (terms.spec().tenant().clone(), terms.spec().limits().wall_time);
        let (program, machine) = self.common.engines.program(module, &tenant, terms.is_metered(), allowed).await?;
        if !program.is_command() {
            return Err(not_executable("the module is no command: it exports no function _start without arguments"));
        }
        Ok(Loaded::of_module(machine, program, terms, self.stack()))
    }

    /// Loads an interpreter for runs without a sandbox around them, under the limits of `spec`.
    ///
    /// # Errors
    ///
    /// As `create` and `start`.
    pub async fn load_language(&self, language: Language, spec: Spec) -> Result<Loaded> {
        let terms = Terms::new(spec)?;
        let allowed = terms.spec().limits().wall_time;
        let warm = self.common.engines.interpreter(language, terms.is_metered(), allowed).await?;
        Ok(Loaded::of_language(&warm, terms, self.stack()))
    }

    fn stack(&self) -> usize {
        usize::try_from(self.common.config.stack.as_bytes()).unwrap_or(usize::MAX)
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
        Ok(Arc::new(WasmSandbox(Shared::filled(&self.common, spec).await?)))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let foreign = || Error::invalid("restore", "the snapshot is of another backend");
        let files = Some(&snapshot).filter(|snapshot| snapshot.backend() == NAME).and_then(Snapshot::payload);
        let shared = Shared::copied(&self.common, spec, files.ok_or_else(foreign)?)?;
        Ok(Arc::new(WasmSandbox(Arc::new(shared))))
    }

    async fn warm(&self, _: Spec) -> Result<Box<dyn Warm>> {
        Err(Error::unsupported("warm", "the wasm backend makes no sandbox ahead of its request"))
    }
}
