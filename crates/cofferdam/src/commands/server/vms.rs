//! Files of VM snapshots on a server: archives with the VM's memory, which the server trusts and so takes from no client.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam::registry::vms::VmSnapshots;
use cofferdam::registry::{BackendInfo, Setup, VM_BACKEND};
use cofferdam::{Limits, Result, Snapshot, TenantId};
use cofferdam_server::SnapshotArchive;

/// The archives of a VM backend.
#[derive(Debug)]
struct VmArchive(VmSnapshots);

/// Returns the archives of a backend that creates VMs.
pub fn archive(info: &BackendInfo, setup: &Setup) -> Result<Option<Arc<dyn SnapshotArchive>>> {
    if info.name != VM_BACKEND {
        return Ok(None);
    }
    let snapshots = VmSnapshots::new(&setup.vms, Arc::new(|_| ()))?;
    Ok(Some(Arc::new(VmArchive(snapshots))))
}

#[async_trait]
impl SnapshotArchive for VmArchive {
    async fn save(&self, snapshot: &Snapshot, _limits: &Limits, out: Box<dyn Write + Send>) -> Result<()> {
        VmSnapshots::write(snapshot, out).await
    }

    async fn load(&self, file: File, _tenant: &TenantId, max: &Limits) -> Result<Snapshot> {
        // The snapshot has its tenant, which is compared when it is restored.
        self.0.read(file, max.clone()).await
    }

    fn accepts_uploads(&self) -> bool {
        false
    }
}
