//! The VM backend: creates VMs and their images.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, Capabilities, Capability, Error, ExecHandle, Level, PreparedSandbox, Result, Sandbox, Snapshot, Spec,
};
use cofferdam_guest::network;

use crate::NAME;
use crate::config::VmConfig;
use crate::prepared::PreparedVm;
use crate::sandbox::VmSandbox;
use crate::snapshot::VmSnapshot;
use crate::state::{BackendState, BuildProgress};

/// A backend whose sandboxes are virtual machines.
#[derive(Debug, Clone)]
pub struct VmBackend {
    pub(crate) state: Arc<BackendState>,
}

impl VmBackend {
    /// Creates the backend. Starts nothing before the first use.
    pub fn new(config: VmConfig) -> Result<Self> {
        Self::with_progress(config, Arc::new(|_| ()))
    }

    /// Creates the backend, and reports the steps of building an image to `progress`.
    pub fn with_progress(config: VmConfig, progress: BuildProgress) -> Result<Self> {
        Ok(Self { state: BackendState::new(config, progress)? })
    }

    /// Restores a snapshot, and also returns the execs that were running in it. Dropping a handle kills its exec.
    ///
    /// # Behavior
    /// - As [`restore`](Backend::restore). Output since the restore is available as far as it is retained, which is its
    ///   newest MiB.
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
            .ok_or_else(|| Error::invalid("restore", "the snapshot is not one of the vm backend"))?;
        let allowed = snapshot.manifest().check_tenant(spec.tenant()).and_then(|()| snapshot.lease_all());
        allowed.map_err(|error| error.into_error("restore"))?;
        VmSandbox::restore(&self.state, spec, snapshot).await
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
        let mut all = Capabilities::from([
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
            Capability::Connect,
            Capability::Watch,
            Capability::DiskMounts,
        ]);
        all.extend(network::IS_SUPPORTED.then_some(Capability::NetworkAllowlist));
        all
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(VmSandbox::create(&self.state, spec).await?))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Ok(Arc::new(self.restored(&snapshot, spec).await?))
    }

    async fn prepare(&self, spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        Ok(Box::new(PreparedVm::create(&self.state, spec).await?))
    }
}
