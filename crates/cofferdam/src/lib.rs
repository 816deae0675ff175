//! The library of Cofferdam, which runs untrusted code in sandboxes.
//!
//! This crate is the facade. It re-exports the contract: specs, exec requests, exits and postures. One module,
//! [`registry`], creates the backends of this build by name. Everything else is in the crates below. The command line
//! of the same name uses this library. Its options for one backend name that backend too.
//!
//! # Where to look
//!
//! - Backends by name: `registry.rs`; the table of backends: `registry/table.rs`. Settings of all backends:
//!   `registry/setup.rs`.
//! - Meaning of a command line: `args.rs`, then `settings.rs` and `plan.rs`. Commands: `commands/mod.rs`.
//! - Use of a server by a run: `resident.rs`.
//! - Published ports: `publish.rs`.
//!
//! # Examples
//!
//! ```no_run
//! use cofferdam::{ExecRequest, Spec};
//!
//! # async fn example() -> cofferdam::Result<()> {
//! let spec = Spec::builder().build()?;
//! let request = ExecRequest::argv(["echo", "hello"]).build()?;
//! let (completed, posture) = cofferdam::run(spec, request).await?;
//! assert_eq!(completed.stdout, "hello\n");
//! println!("{} protections measured", posture.items().len());
//! # Ok(())
//! # }
//! ```
//!
//! A sandbox that lives longer than one command comes from a backend:
//!
//! ```no_run
//! use cofferdam::{ExecRequest, Sandbox, SandboxPath, Spec, registry};
//!
//! # async fn example() -> cofferdam::Result<()> {
//! let sandbox = registry::backend(registry::DEFAULT_BACKEND)?.create(Spec::default()).await?;
//! sandbox.write_bytes(&SandboxPath::new("data.txt")?, "1\n2\n").await?;
//! let completed = sandbox.exec(ExecRequest::shell("wc -l < data.txt").build()?).await?;
//! assert!(completed.exit.success());
//! sandbox.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A pool prepares sandboxes for programs that need many:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use cofferdam::engine::PoolConfig;
//! use cofferdam::{ExecRequest, Spec, registry};
//!
//! # async fn example() -> cofferdam::Result<()> {
//! let pooled = registry::pooled(registry::DEFAULT_BACKEND, Spec::default(), PoolConfig::default())?;
//! let request = ExecRequest::argv(["echo", "hello"]).build()?;
//! let (completed, _posture) = pooled.pool().run(Spec::default(), request).await?;
//! assert_eq!(completed.stdout, "hello\n");
//! pooled.pool().shutdown(Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "plugins")]
pub mod plugins;
pub mod publish;
pub mod registry;
pub mod volumes;

pub use cofferdam_code as code;
pub use cofferdam_contract::*;
pub use cofferdam_engine as engine;
pub use cofferdam_resident as resident;

/// Creates a sandbox of the default backend, runs one command in it and closes it.
///
/// Collects the output, without loss up to the request's `max_output`. The posture lists the enforced protections.
pub async fn run(spec: Spec, request: ExecRequest) -> Result<(Completed, Posture)> {
    let backend = registry::backend_for_one(registry::DEFAULT_BACKEND)?;
    backend.run(spec, request).await
}
