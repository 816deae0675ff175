//! What every benchmark uses of Cofferdam: the process backend, through the library.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cofferdam_contract::{Backend, Completed, ExecRequest, Spec};
use cofferdam_engine::{Pool, PoolConfig};
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

/// A pool with this many ready.
pub async fn pool(backend: &Arc<ProcessBackend>, warm: usize) -> Result<Pool> {
    let config = PoolConfig { min_warm: warm, max_warm: warm, max: 4 * warm, ..PoolConfig::default() };
    let pool = Pool::new(Arc::clone(backend) as Arc<dyn Backend>, Spec::default(), config)?;
    refilled(&pool, warm).await?;
    Ok(pool)
}

/// Waits until a pool has this many ready, and nothing is being closed.
pub async fn refilled(pool: &Pool, warm: usize) -> Result<()> {
    for _ in 0..5000 {
        let metrics = pool.metrics();
        if metrics.warm == warm && metrics.closing == 0 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    bail!("the pool is not filled after 10 s: {:?}", pool.metrics())
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
