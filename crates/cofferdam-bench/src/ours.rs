//! What every benchmark uses of Cofferdam: the process backend, through the library.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cofferdam_contract::{Backend, Completed, ExecRequest, Spec};
use cofferdam_process::{ProcessBackend, ProcessConfig};

/// The backend as everybody has it, after one sandbox, so that its launcher runs. A default spec names no exception:
/// where a create falls short of a protection, it fails here.
pub async fn backend() -> Result<Arc<ProcessBackend>> {
    started(ProcessConfig::default()).await
}

/// One that makes nothing ready in idle time.
pub async fn unprepared_backend() -> Result<Arc<ProcessBackend>> {
    started(ProcessConfig { prepare_ahead: false, ..ProcessConfig::default() }).await
}

async fn started(config: ProcessConfig) -> Result<Arc<ProcessBackend>> {
    let backend = Arc::new(ProcessBackend::new(config)?);
    let sandbox = backend.create(Spec::default()).await.context("cannot make a sandbox: see `cofferdam doctor`")?;
    sandbox.close().await?;
    Ok(backend)
}

/// A request for this command.
pub fn request(argv: &[&str]) -> Result<ExecRequest> {
    Ok(ExecRequest::argv(argv.iter().copied()).build()?)
}

/// Fails unless the command succeeded with this output.
pub fn check(completed: &Completed, output: &str) -> Result<()> {
    ensure!(completed.exit.success(), "the command failed in a sandbox: {:?}", completed.exit);
    ensure!(completed.stdout == output, "the command printed something else: {:?}", completed.stdout);
    Ok(())
}
