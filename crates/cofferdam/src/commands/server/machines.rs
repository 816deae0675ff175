//! Files of VM snapshots on a server: archives with the VM's memory, which the server trusts and so takes from no client.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam::registry::machines::MachineSnapshots;
use cofferdam::registry::{BackendInfo, MACHINE_BACKEND, Setup};
use cofferdam::{Limits, Result, Snapshot, TenantId};
use cofferdam_server::SnapshotArchive;

/// The archives of a VM backend.
#[derive(Debug)]
struct MachineArchive(MachineSnapshots);

/// Returns the archives of a backend that creates VMs.
pub fn archive(info: &BackendInfo, setup: &Setup) -> Result<Option<Arc<dyn SnapshotArchive>>> {
    if info.name != MACHINE_BACKEND {
        return Ok(None);
    }
    let snapshots = MachineSnapshots::new(&setup.machines, Arc::new(|_| ()))?;
    Ok(Some(Arc::new(MachineArchive(snapshots))))
}

#[async_trait]
impl SnapshotArchive for MachineArchive {
    async fn save(&self, snapshot: &Snapshot, _limits: &Limits, out: Box<dyn Write + Send>) -> Result<()> {
        MachineSnapshots::write(snapshot, out).await
    }

    async fn load(&self, file: File, _tenant: &TenantId, most: &Limits) -> Result<Snapshot> {
        // The snapshot has its tenant, which is compared when it is restored.
        self.0.read(file, most.clone()).await
    }

    fn accepts_uploads(&self) -> bool {
        false
    }
}
