//! Cofferdam runs code that nobody vouches for behind a wall: the library.
//!
//! This crate is the facade. It re-exports the contract (what to make, what to run, how it ended, what was really
//! enforced) and knows in one place, [`registry`], which backends this build has. Everything else lives in the crates
//! below it; the command line of the same name is one of its users.
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
//! Who wants sandboxes again and again takes them from a pool, which keeps some ready:
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

pub mod registry;

pub use cofferdam_code as code;
pub use cofferdam_contract::*;
pub use cofferdam_daemon as daemon;
pub use cofferdam_engine as engine;

/// Makes a sandbox of the default backend, runs one command in it, closes it.
///
/// Output is collected, without loss up to the request's `max_output`. The posture says what was enforced.
pub async fn run(spec: Spec, request: ExecRequest) -> Result<(Completed, Posture)> {
    let backend = registry::backend_for_one(registry::DEFAULT_BACKEND)?;
    backend.run(spec, request).await
}
