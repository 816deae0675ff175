//! Forks of one warm Python in real process sandboxes.

mod files;
mod fresh;
mod hostile;
mod leftovers;
mod life;
mod refused;
mod secret;

use cofferdam_contract::{Completed, ExecHandle, ExecRequest, Result, collect};
use cofferdam_interpreter::{InterpreterConfig, Zygote, ZygoteConfig};
use cofferdam_process::ProcessBackend;

use crate::support::{code_with_args, python, read_line, sandbox};

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

/// Runs a piece of Python that must succeed, and gives what it printed.
async fn told(zygote: &Zygote, text: &str, args: &[&str]) -> String {
    let request = code_with_args(&InterpreterConfig::python(), "main.py", text, args).build().expect("valid");
    let completed = run(zygote, request).await.expect("it runs");
    assert!(completed.exit.success(), "{}", crate::support::printed(&completed));
    crate::support::stdout(&completed)
}

/// Starts a piece of Python and waits for the first line that it prints.
async fn started(zygote: &Zygote, text: &str) -> (ExecHandle, String) {
    started_with(zygote, python(text)).await
}

async fn started_with(zygote: &Zygote, request: ExecRequest) -> (ExecHandle, String) {
    let handle = zygote.start(request).await.expect("it starts");
    let line = read_line(&mut handle.output()).await;
    (handle, line.trim().to_owned())
}
