//! The backend: it validates specs, finds the engine, the image and the agent's volume, and creates sandboxes.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, Capabilities, Capability, Error, Level, PreparedSandbox, Result, Sandbox, Snapshot, Spec, Workspace,
};
use cofferdam_guest::network;

use crate::NAME;
use crate::config::ContainerConfig;
use crate::disks;
use crate::image::{self, Image, Imported};
use crate::load::ImageSource;
use crate::overlay;
use crate::prepared::PreparedContainer;
use crate::progress::PullProgress;
use crate::reference::Reference;
use crate::sandbox::ContainerSandbox;
use crate::snapshot::ContainerSnapshot;
use crate::state::BackendState;

/// A backend whose sandboxes are containers of an engine.
#[derive(Debug, Clone)]
pub struct ContainerBackend {
    state: Arc<BackendState>,
}

impl ContainerBackend {
    /// Creates the backend. It contacts the engine on first use.
    pub fn new(config: &ContainerConfig) -> Result<Self> {
        Self::with_progress(config, PullProgress::silent())
    }

    /// Creates the backend with a callback for images that are pulled for sandboxes.
    pub fn with_progress(config: &ContainerConfig, progress: PullProgress) -> Result<Self> {
        Ok(Self { state: BackendState::new(config.check()?, progress, None)? })
    }

    /// Creates the backend with a callback and with another store of images. An image that the engine does not have is
    /// loaded from the store when a sandbox needs it.
    pub fn with_source(config: &ContainerConfig, progress: PullProgress, source: Arc<dyn ImageSource>) -> Result<Self> {
        Ok(Self { state: BackendState::new(config.check()?, progress, Some(source))? })
    }

    /// Lists the images of the engine.
    pub async fn images(&self) -> Result<Vec<Image>> {
        image::list(&self.state.engine().await?.engine).await
    }

    /// Pulls an image, regardless of the pull policy. Fails if the policy does not allow the image.
    pub async fn pull_image(&self, name: &str, progress: &PullProgress) -> Result<()> {
        let reference = Reference::parse(name)?;
        image::allow(&self.state.config, &reference)?;
        image::pull(&self.state.engine().await?.engine, &reference, progress).await
    }

    /// Imports an image from a directory with a root file system, or from a tar of one. Preserves links, and skips
    /// sockets, fifos and devices.
    pub async fn import_image(&self, source: &Path, name: &str) -> Result<Imported> {
        let reference = Reference::parse(name)?;
        image::import(&self.state.engine().await?.engine, source, &reference).await
    }

    /// Returns the number of containers that the engine has not removed so far despite a request.
    pub fn leftovers(&self) -> usize {
        self.state.leftover_count()
    }
}

#[async_trait]
impl Backend for ContainerBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn level(&self) -> Level {
        Level::Container
    }

    /// Returns the capabilities. Copy-on-write directories are declared for root. Whether the engine and the kernel
    /// have them is known when a sandbox is created, which fails with `Unsupported` without them. Mounting a host
    /// directory is declared for ordinary users only: root can mount directories of other users, but not its own,
    /// because sandboxes never run as root.
    fn capabilities(&self) -> Capabilities {
        let mut all = Capabilities::from([
            Capability::MultipleExecs,
            Capability::StreamingStdin,
            Capability::Terminal,
            Capability::Files,
            Capability::Image,
            Capability::Snapshot,
            Capability::Fork,
            Capability::Pause,
            Capability::Warm,
            Capability::UnixPrograms,
            Capability::Connect,
            Capability::Mounts,
            Capability::Watch,
        ]);
        all.extend(disks::are_available().then_some(Capability::DiskMounts));
        if overlay::is_permitted() {
            all.extend([Capability::CopyOnWrite, Capability::CopyOnWriteMounts]);
        }
        all.extend(network::IS_SUPPORTED.then_some(Capability::NetworkAllowlist));
        if !rustix::process::geteuid().is_root() {
            all.insert(Capability::HostWorkspace);
        }
        all
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(ContainerSandbox::create(&self.state, spec).await?))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let files = ContainerSnapshot::of(&snapshot)
            .ok_or_else(|| Error::invalid("restore", "the snapshot is not from the docker backend"))?;
        spec.check_tenant(snapshot.tenant())?;
        Ok(Arc::new(ContainerSandbox::restore(&self.state, spec, files).await?))
    }

    async fn prepare(&self, spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        if !matches!(spec.workspace(), Workspace::Private { .. }) || !spec.mounts().is_empty() {
            return Err(Error::invalid("warm", "a sandbox with a host directory or other mounts cannot be prepared")
                .with_remedy("use a template with a private workspace and no mounts; others are created on request"));
        }
        Ok(Box::new(PreparedContainer::create(&self.state, spec).await?))
    }
}
