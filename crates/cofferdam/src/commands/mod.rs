//! The commands, one per file.

mod audit;
mod backends;
mod changes;
mod completions;
#[cfg(feature = "conformance")]
mod conformance;
mod copies;
mod doctor;
#[cfg(feature = "images")]
mod image;
#[cfg(feature = "mcp")]
mod keeping;
#[cfg(feature = "mcp")]
mod mcp;
mod net;
mod observed;
#[cfg(feature = "plugins")]
mod plugins;
mod published;
mod repl;
mod review;
mod run;
mod schema;
mod serve;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "wasm")]
mod setup;
#[cfg(any(feature = "server", feature = "vm"))]
mod snapshot;
#[cfg(feature = "vm")]
mod vm;
mod volume;
#[cfg(feature = "vm")]
mod work;

#[cfg(feature = "server")]
pub use server::sandbox_names;

use std::time::Duration;

use cofferdam::registry::ForkedLauncher;
use cofferdam::{Error, ErrorKind, Result};

use crate::args::{Cli, Command};

/// Runs the command, with the forked launcher if it needs one. Returns the exit status.
pub fn dispatch(cli: Cli, launcher: Option<ForkedLauncher>) -> u8 {
    match cli.command {
        Command::Run(args) => run::main(&args, cli.config, launcher),
        Command::Repl(args) => repl::main(*args, cli.config),
        Command::Changes(args) => changes::main(&args),
        Command::Volume(args) => volume::main(&args),
        Command::Audit(args) => audit::main(&args, cli.config),
        Command::Serve(args) => serve::main(*args, cli.config),
        #[cfg(feature = "mcp")]
        Command::Mcp(args) => mcp::main(*args, cli.config),
        Command::Doctor(args) => doctor::main(&args, cli.config),
        #[cfg(feature = "wasm")]
        Command::Setup(args) => setup::main(&args),
        #[cfg(feature = "images")]
        Command::Image(args) => image::main(&args, cli.config),
        #[cfg(feature = "vm")]
        Command::Vm(args) => vm::main(&args, cli.config),
        #[cfg(any(feature = "server", feature = "vm"))]
        Command::Snapshot(args) => snapshot::main(args, cli.config),
        #[cfg(feature = "conformance")]
        Command::Conformance(args) => conformance::main(&args),
        Command::Net(args) => net::main(&args),
        #[cfg(feature = "plugins")]
        Command::Plugins(args) => plugins::main(&args, cli.config),
        #[cfg(feature = "server")]
        Command::Server(command) => server::dispatch(command),
        Command::Backends(args) => backends::main(&args),
        Command::Schema(args) => schema::main(&args),
        Command::Completions(args) => completions::main(&args),
        #[cfg(not(feature = "mcp"))]
        Command::Mcp(_) => unavailable("mcp", "mcp"),
        #[cfg(not(feature = "wasm"))]
        Command::Setup(_) => unavailable("setup", "wasm"),
        #[cfg(not(feature = "images"))]
        Command::Image(_) => unavailable("image", "images"),
        #[cfg(not(feature = "vm"))]
        Command::Vm(_) => unavailable("vm", "vm"),
        #[cfg(not(any(feature = "server", feature = "vm")))]
        Command::Snapshot(_) => unavailable("snapshot", "vm"),
        #[cfg(not(feature = "conformance"))]
        Command::Conformance(_) => unavailable("conformance", "conformance"),
        #[cfg(not(feature = "plugins"))]
        Command::Plugins(_) => unavailable("plugins", "plugins"),
        #[cfg(not(feature = "server"))]
        Command::Create(_) => unavailable("create", "server"),
    }
}

/// Reports a command whose feature is not in this build, and how to get it.
#[cfg(not(all(
    feature = "conformance",
    feature = "images",
    feature = "mcp",
    feature = "plugins",
    feature = "server",
    feature = "vm",
    feature = "wasm"
)))]
fn unavailable(command: &str, feature: &str) -> u8 {
    let error = Error::unsupported("start", format!("this build has no command '{command}'"));
    crate::report::error(&error.with_remedy(cofferdam::registry::build_with(feature)), crate::report::Form::Text)
}

/// Runs a future to completion on this thread.
fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    // Other threads may still clean up. They must not block the exit forever.
    run_on(tokio::runtime::Builder::new_current_thread(), Duration::from_secs(2), future)
}

/// Runs a server's future to completion on several threads. The future has cleaned up when it completes: threads that
/// remain wait for input that will never arrive.
#[cfg(any(feature = "mcp", feature = "plugins", feature = "server"))]
fn serve_on_many<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    run_on(tokio::runtime::Builder::new_multi_thread(), Duration::from_millis(100), future)
}

fn run_on<T>(
    mut builder: tokio::runtime::Builder,
    shutdown_timeout: Duration,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Io, "start", "cannot set up the event loop").with_source(error))?;
    let result = runtime.block_on(future);
    runtime.shutdown_timeout(shutdown_timeout);
    result
}
