//! The process backend, as all benchmarks use it through the library.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cofferdam_contract::{Backend, Completed, ExecRequest, Spec};
use cofferdam_engine::{Pool, PoolConfig};
use cofferdam_process::{Images, ProcessBackend, ProcessConfig};

/// Returns the backend with its default configuration, after one sandbox, so that its launcher runs. The default spec
/// allows nothing weaker, so a create that falls short of a protection fails here.
pub async fn backend() -> Result<Arc<ProcessBackend>> {
    started(ProcessConfig::default()).await
}

/// Returns the backend with an image store.
pub async fn backend_with(images: Images) -> Result<Arc<ProcessBackend>> {
    started(ProcessConfig { images, ..ProcessConfig::default() }).await
}

/// Returns a backend that prepares nothing in idle time.
pub async fn unprepared_backend() -> Result<Arc<ProcessBackend>> {
    started(ProcessConfig { prepare_ahead: false, ..ProcessConfig::default() }).await
}

async fn started(config: ProcessConfig) -> Result<Arc<ProcessBackend>> {
    let backend = Arc::new(ProcessBackend::new(config)?);
    let sandbox = backend.create(Spec::default()).await.context("cannot create a sandbox: see `cofferdam doctor`")?;
    sandbox.close().await?;
    Ok(backend)
}

/// Returns a pool with this many prepared sandboxes.
pub async fn pool(backend: &Arc<ProcessBackend>, warm: usize) -> Result<Pool> {
    let config = PoolConfig { min_warm: warm, max_warm: warm, max: 4 * warm, ..PoolConfig::default() };
    let pool = Pool::new(Arc::clone(backend) as Arc<dyn Backend>, Spec::default(), config)?;
    refilled(&pool, warm).await?;
    Ok(pool)
}

/// Waits until a pool has this many prepared sandboxes, and none is being closed.
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

/// Returns a request for this command.
pub fn request(argv: &[&str]) -> Result<ExecRequest> {
    Ok(ExecRequest::argv(argv.iter().copied()).build()?)
}

/// Checks that the command succeeded with this output.
pub fn check(completed: &Completed, output: &str) -> Result<()> {
    ensure!(completed.exit.success(), "the command failed in a sandbox: {:?}", completed.exit);
    ensure!(completed.stdout == output, "the command printed unexpected output: {:?}", completed.stdout);
    Ok(())
}
