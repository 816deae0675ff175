//! Snapshots of a backend as files.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, CopyOut, Error, ErrorKind, Limits, Protection, Result, Sandbox, SandboxPath, Snapshot, Spec, TenantId,
    after_close,
};
use tokio_util::io::SyncIoBridge;

/// Bytes between the sandbox and the file.
const PIPE: usize = 256 << 10;

/// Writes snapshots of a backend to files, and reads them.
#[async_trait]
pub trait SnapshotArchive: Send + Sync + fmt::Debug {
    /// Writes a snapshot.
    async fn save(&self, snapshot: &Snapshot, limits: &Limits, out: Box<dyn Write + Send>) -> Result<()>;

    /// Reads a snapshot of a tenant, for a sandbox with at most the limits `max`. All of the file is verified.
    ///
    /// # Errors
    /// - `InvalidInput` for a file that is no snapshot of the backend.
    async fn load(&self, file: File, tenant: &TenantId, max: &Limits) -> Result<Snapshot>;

    /// Returns true if a file may come from a client. False if it has states of programs or devices that the backend
    /// trusts.
    fn accepts_uploads(&self) -> bool;

    /// Returns true if a snapshot has the root file system, so that a sandbox from it cannot have another image.
    fn has_root(&self) -> bool {
        true
    }
}

/// Archives of a backend whose snapshots are the files of the workspace and nothing else: tars.
#[derive(Debug)]
pub struct WorkspaceArchive {
    backend: Arc<dyn Backend>,
}

impl WorkspaceArchive {
    /// Creates the archives of a backend.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }
}

/// Returns the spec of a sandbox in which no program runs, so that its protections may be weaker than usual.
fn spec(tenant: &TenantId, limits: &Limits) -> Result<Spec> {
    let builder = Spec::builder().tenant(tenant.clone()).limits(limits.clone());
    Protection::ALL.iter().fold(builder, |builder, protection| builder.allow_weaker(*protection)).build()
}

#[async_trait]
impl SnapshotArchive for WorkspaceArchive {
    async fn save(&self, snapshot: &Snapshot, limits: &Limits, out: Box<dyn Write + Send>) -> Result<()> {
        let tenant = snapshot.tenant().cloned().unwrap_or_default();
        let sandbox = self.backend.restore(snapshot.clone(), spec(&tenant, limits)?).await?;
        let written = write_tar(&*sandbox, out).await;
        after_close(written, sandbox.close().await)
    }

    async fn load(&self, file: File, tenant: &TenantId, max: &Limits) -> Result<Snapshot> {
        let sandbox = self.backend.create(spec(tenant, max)?).await?;
        let tar = Box::new(tokio::fs::File::from_std(file));
        let snapshot = async {
            sandbox.copy_in(&SandboxPath::default(), tar).await?;
            sandbox.snapshot().await
        };
        let snapshot = snapshot.await;
        after_close(snapshot, sandbox.close().await)
    }

    fn accepts_uploads(&self) -> bool {
        true
    }

    fn has_root(&self) -> bool {
        false
    }
}

async fn write_tar(sandbox: &dyn Sandbox, mut out: Box<dyn Write + Send>) -> Result<()> {
    let failed = |error: String| Error::new(ErrorKind::Io, "snapshot", "cannot write the snapshot").with_source(error);
    let (reader, mut writer) = tokio::io::duplex(PIPE);
    let pump = tokio::task::spawn_blocking(move || {
        std::io::copy(&mut SyncIoBridge::new(reader), &mut out)?;
        out.flush()
    });
    let copied = sandbox.copy_out(&CopyOut::all(SandboxPath::default()), &mut writer).await;
    drop(writer);
    pump.await.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
    let report = copied?;
    if report.skipped_count > 0 {
        let first = report.skipped.first().map(|skipped| skipped.path.clone()).unwrap_or_default();
        return Err(Error::unsupported("snapshot", "the workspace has files that a snapshot cannot hold")
            .with_context("path", first)
            .with_remedy("remove devices, pipes, sockets, and files whose names begin with '.wh.'"));
    }
    Ok(())
}
