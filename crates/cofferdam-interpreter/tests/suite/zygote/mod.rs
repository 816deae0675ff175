//! Forks of one warm Python in real process sandboxes.

mod smoke;

use cofferdam_contract::{Completed, ExecRequest, Result, collect};
use cofferdam_interpreter::{Zygote, ZygoteConfig};
use cofferdam_process::ProcessBackend;

use crate::support::sandbox;

/// A zygote in a sandbox of its own.
pub async fn zygote(backend: &ProcessBackend, config: &ZygoteConfig) -> Zygote {
    try_zygote(backend, config).await.expect("it becomes warm")
}

/// Tries to warm a zygote in a sandbox of its own.
pub async fn try_zygote(backend: &ProcessBackend, config: &ZygoteConfig) -> Result<Zygote> {
    Zygote::warm(sandbox(backend, config.extra_processes()).await, config.clone()).await
}

/// Runs a request to its end and collects its output.
pub async fn run(zygote: &Zygote, request: ExecRequest) -> Result<Completed> {
    let request = request.to_builder().output_buffer(request.max_output()).build()?;
    collect(zygote.start(request).await?).await
}
