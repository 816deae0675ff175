//! The backend: checks a spec, finds the engine, the image and the agent's volume, and has sandboxes made.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, Capabilities, Capability, Error, Level, Result, Sandbox, Snapshot, Spec, Warm, Workspace,
};

use crate::config::DockerConfig;
use crate::host::Host;
use crate::image::{self, Image, Imported, PullProgress};
use crate::reference::Reference;
use crate::sandbox::ContainerSandbox;
use crate::snapshot::ContainerSnapshot;
use crate::warm::ContainerWarm;

/// The backend's name.
pub const NAME: &str = "docker";

/// Makes sandboxes that are containers of an engine.
#[derive(Debug, Clone)]
pub struct DockerBackend {
    host: Arc<Host>,
}

impl DockerBackend {
    /// Sets the backend up; nobody is contacted before the first use.
    pub fn new(config: &DockerConfig) -> Result<Self> {
        Self::with_progress(config, PullProgress::silent())
    }

    /// The same, with somebody to tell of an image that is pulled for a sandbox.
    pub fn with_progress(config: &DockerConfig, progress: PullProgress) -> Result<Self> {
        Ok(Self { host: Host::new(config.check()?, progress)? })
    }

    /// The images that the engine has.
    pub async fn images(&self) -> Result<Vec<Image>> {
        image::list(&self.host.engine().await?.engine).await
    }

    /// Has the engine pull an image, whatever is done about missing ones otherwise; one that the policy does not name is
    /// refused.
    pub async fn pull_image(&self, name: &str, progress: &PullProgress) -> Result<()> {
        let reference = Reference::parse(name)?;
        image::allow(&self.host.config, &reference)?;
        image::pull(&self.host.engine().await?.engine, &reference, progress).await
    }

    /// Makes an image from a directory with a root file system, or from a tar of one. Links are taken as links; sockets,
    /// fifos and devices are left out.
    pub async fn import_image(&self, source: &Path, name: &str) -> Result<Imported> {
        let reference = Reference::parse(name)?;
        image::import(&self.host.engine().await?.engine, source, &reference).await
    }

    /// How many containers the engine did not remove so far although it was told to.
    pub fn leftovers(&self) -> usize {
        self.host.leftover_count()
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn level(&self) -> Level {
        Level::Container
    }

    /// A directory of the host is declared for ordinary users only: root can lend those of others, but none of its own,
    /// because no sandbox is ever root.
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
        ]);
        if !rustix::process::geteuid().is_root() {
            all.insert(Capability::HostWorkspace);
        }
        all
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(ContainerSandbox::make(&self.host, spec).await?))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let snapshot = ContainerSnapshot::of(&snapshot)
            .ok_or_else(|| Error::invalid("restore", "this is no snapshot of the docker backend"))?;
        Ok(Arc::new(ContainerSandbox::restore(&self.host, spec, snapshot).await?))
    }

    async fn warm(&self, spec: Spec) -> Result<Box<dyn Warm>> {
        if matches!(spec.workspace(), Workspace::HostDir { .. }) {
            return Err(Error::invalid("warm", "a sandbox is not made ahead around a directory of the host")
                .with_remedy("make the template with a private workspace: requests with others are made on request"));
        }
        Ok(Box::new(ContainerWarm::make(&self.host, spec).await?))
    }
}
