//! The backend: has machines made, and images for them.

use std::fs::File;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, Capabilities, Capability, Error, ExecHandle, Level, Result, Sandbox, Snapshot, Spec, Warm,
};

use crate::config::VmConfig;
use crate::error::VmError;
use crate::image::Image;
use crate::make::{Host, MakeProgress};
use crate::sandbox::VmSandbox;
use crate::snapshot::{SnapshotManifest, VmSnapshot};
use crate::vmm::MachineState;
use crate::warm::VmWarm;

/// The backend's name.
pub const NAME: &str = "vm";

/// Makes sandboxes that are virtual machines.
#[derive(Debug, Clone)]
pub struct VmBackend {
    pub(crate) host: Arc<Host>,
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

    /// A snapshot of parts that travelled: memory and devices, as [`VmSnapshot::state`] gives them, and the workspace's disk,
    /// if the manifest has one. Whether the parts are undamaged is for whoever brought them to know; what is wrong with them
    /// harms no machine but those that are made from them.
    ///
    /// # Behavior
    /// - Fails with `InvalidInput` for files that are not as large as the manifest says, with `ResourceExhausted` where
    ///   snapshots may not take as much memory.
    /// - Whether it can go on here is looked at when it is restored, and by [`Self::check_snapshot`].
    pub fn snapshot_of_parts(
        &self,
        manifest: SnapshotManifest,
        state: MachineState,
        disk: Option<File>,
    ) -> Result<VmSnapshot> {
        let failed = |error: VmError| error.into_error("restore");
        let lease = self.host.lease(&state).map_err(failed)?;
        VmSnapshot::new(manifest, state, disk, None, lease).map_err(failed)
    }

    /// Refuses a snapshot that cannot go on here: another monitor, version, machine, processor or accelerator; another image
    /// than that of a spec with this root.
    pub async fn check_snapshot(&self, manifest: &SnapshotManifest, spec: &Spec) -> Result<()> {
        self.host.check(manifest, spec).await.map(drop).map_err(|error| error.into_error("restore"))
    }

    /// Restores a snapshot, and returns the execs that were running in it as well: dropping a handle kills its exec.
    ///
    /// # Behavior
    /// - As [`restore`](Backend::restore). Output since the restore is there as far as it is kept, which is its newest MiB.
    /// - Standard input of these execs is at its end.
    pub async fn restore_attached(
        &self,
        snapshot: &Snapshot,
        spec: Spec,
    ) -> Result<(Arc<dyn Sandbox>, Vec<ExecHandle>)> {
        let sandbox = self.restored(snapshot, spec).await?;
        let execs = sandbox.attach();
        Ok((Arc::new(sandbox), execs))
    }

    async fn restored(&self, snapshot: &Snapshot, spec: Spec) -> Result<VmSandbox> {
        let snapshot = VmSnapshot::of(snapshot)
            .ok_or_else(|| Error::invalid("restore", "this is no snapshot of the vm backend"))?;
        let allowed = snapshot.manifest().check_tenant(spec.tenant()).and_then(|()| snapshot.lease_all());
        allowed.map_err(|error| error.into_error("restore"))?;
        VmSandbox::restore(&self.host, spec, snapshot).await
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
            Capability::Snapshot,
            Capability::Fork,
            Capability::Image,
            Capability::Pause,
            Capability::Warm,
            Capability::UnixPrograms,
        ])
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(VmSandbox::make(&self.host, spec).await?))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(self.restored(&snapshot, spec).await?))
    }

    async fn warm(&self, spec: Spec) -> Result<Box<dyn Warm>> {
        Ok(Box::new(VmWarm::make(&self.host, spec).await?))
    }
}
