//! The workspace at the other end of a copy.

use async_trait::async_trait;
use cofferdam_contract::{CopyOut, CopyReport, FileReader, Result, Sandbox, SandboxPath};
use tokio::io::AsyncWrite;

/// A workspace at the other end of a copy: that of a sandbox, or of one that a client of a server reaches.
#[async_trait]
pub trait CopyEnd: Send + Sync {
    /// Copies an archive into the workspace, as [`Sandbox::copy_in`] does.
    async fn receive(&self, to: &SandboxPath, tar: FileReader) -> Result<CopyReport>;

    /// Writes files of the workspace as an archive, as [`Sandbox::copy_out`] does.
    async fn deliver(&self, wanted: &CopyOut, into: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<CopyReport>;
}

#[async_trait]
impl CopyEnd for dyn Sandbox + '_ {
    async fn receive(&self, to: &SandboxPath, tar: FileReader) -> Result<CopyReport> {
        self.copy_in(to, tar).await
    }

    async fn deliver(&self, wanted: &CopyOut, into: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<CopyReport> {
        self.copy_out(wanted, into).await
    }
}
