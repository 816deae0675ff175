//! The backend: has machines made, and images for them.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{Backend, Capabilities, Capability, Error, Level, Result, Sandbox, Snapshot, Spec, Warm};

use crate::config::VmConfig;
use crate::image::Image;
use crate::make::{Host, MakeProgress};
use crate::sandbox::VmSandbox;

/// The backend's name.
pub const NAME: &str = "vm";

/// Makes sandboxes that are virtual machines.
#[derive(Debug, Clone)]
pub struct VmBackend {
    host: Arc<Host>,
}

impl VmBackend {
    /// Sets the backend up; nothing is started before the first use.
    pub fn new(config: VmConfig) -> Result<Self> {
        Self::with_progress(config, Arc::new(|_| ()))
    }

    /// The same, with somebody to tell of the steps of making an image.
    pub fn with_progress(config: VmConfig, progress: MakeProgress) -> Result<Self> {
        Ok(Self { host: Host::new(config, progress)? })
    }

    /// Makes the default image, or makes it anew where packages are newer. Sandboxes of this backend go on with what they
    /// found first.
    pub async fn make_image(&self) -> Result<Image> {
        self.host.make_image().await.map_err(|error| error.into_error("make image"))
    }

    /// Which version of its monitor is there.
    pub async fn monitor(&self) -> Result<String> {
        let vmm = self.host.vmm();
        let version = vmm.version().await.map_err(|error| error.into_error("probe"))?;
        Ok(format!("{} {version}", vmm.name()))
    }
}

#[async_trait]
impl Backend for VmBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn level(&self) -> Level {
        Level::Vm
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::from([
            Capability::MultipleExecs,
            Capability::StreamingStdin,
            Capability::Terminal,
            Capability::Files,
            Capability::RootDirectory,
            Capability::Image,
            Capability::Pause,
            Capability::UnixPrograms,
        ])
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(VmSandbox::make(&self.host, spec).await?))
    }

    async fn restore(&self, _: Snapshot, _: Spec) -> Result<Arc<dyn Sandbox>> {
        Err(Error::unsupported("restore", "the vm backend takes no snapshots, and restores none"))
    }

    async fn warm(&self, _: Spec) -> Result<Box<dyn Warm>> {
        Err(Error::unsupported("warm", "the vm backend makes no machine ahead of its request"))
    }
}
