//! Pools of sandboxes and of prepared interpreters, over any [`Backend`](cofferdam_contract::Backend).
//!
//! ```text
//! claim --> queue, round-robin by tenant --> compatible sandbox idle: claimed --> lease --> destroyed, slot free
//!                                        \-> none: created on request         /
//! refiller --> prepares sandboxes for the template, replaces old and dead ones, destroys the surplus
//! ```
//!
//! A [`Pool`] prepares sandboxes before their requests arrive, bounds the number of live ones, and serves tenants
//! round-robin. [`PooledBackend`] is a pool that implements the contract's backend trait. [`Interpreters`] is a pool of
//! prepared interpreters, and [`PreparedBackend`] is both as one backend. The crate depends on no particular backend, and neither weakens nor strengthens isolation.
//! `docs/adr/0007-pool.md` has the design reasons.
//!
//! # Where to look
//!
//! - Decisions of the pool: `pool/slots.rs` and `pool/queue.rs`, which are pure. Every decision is one step under one
//!   lock, which is never held across an await.
//! - Execution of the decisions: `pool/shared.rs`, with one task for each create and close, so that a cancelled caller
//!   leaves no partial sandbox. Background refill task: `pool/refiller.rs`.
//! - Compatibility of a request with a prepared interpreter, and the time of the next refill: `interpreters/compatibility.rs`
//!   and `interpreters/slots.rs`, which are pure.
#![forbid(unsafe_code)]

mod config;
mod error;
mod interpreters;
mod metrics;
mod pool;
mod pooled;
mod prepared;

pub use cofferdam_interpreter::{InterpreterConfig, Runtime};
pub use config::PoolConfig;
pub use interpreters::{
    ClaimedInterpreter, InterpreterMetrics, InterpreterTimes, Interpreters, InterpretersConfig, PreparedInterpreter,
};
pub use metrics::{ClaimCounts, ClaimKind, Histogram, PoolMetrics};
pub use pool::{Lease, Pool};
pub use pooled::PooledBackend;
pub use prepared::PreparedBackend;
