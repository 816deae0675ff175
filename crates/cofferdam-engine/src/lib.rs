//! Pools of sandboxes and of prepared interpreters, over any [`Backend`](cofferdam_contract::Backend).
//!
//! ```text
//! claim --> queue, tenants in turn --> a prepared sandbox fits: claimed     --> lease --> destroyed, slot free
//!                                  \-> none fits: created on request        /
//! refiller --> prepares sandboxes for the template, replaces old and dead ones, destroys the surplus
//! ```
//!
//! A [`Pool`] prepares sandboxes before their request, bounds the number of live ones, and serves tenants in turn.
//! [`PooledBackend`] is a pool behind the contract. [`Interpreters`] keeps prepared interpreters. The crate names no backend,
//! and neither weakens nor strengthens isolation. `docs/adr/0007-pool.md` has the design reasons.
//!
//! # Where to look
//!
//! - Decisions of the pool: `pool/ledger.rs` and `pool/queue.rs`, which are pure. Every decision is one step under one lock,
//!   which is never held over an await.
//! - Their execution: `pool/shared.rs`, with one task for each create and close, so that a cancelled caller leaves nothing
//!   half done. The background task: `pool/keeper.rs`.
//! - Which requests fit a prepared interpreter, and when the next is started: `interpreters/fits.rs` and
//!   `interpreters/shelf.rs`, which are pure.
#![forbid(unsafe_code)]

mod config;
mod error;
mod interpreters;
mod metrics;
mod pool;
mod pooled;

pub use cofferdam_interpreter::{InterpreterConfig, Runtime};
pub use config::PoolConfig;
pub use interpreters::{
    InterpreterMetrics, InterpreterTimes, Interpreters, InterpretersConfig, KeptInterpreter, Taken,
};
pub use metrics::{ClaimCounts, ClaimKind, Histogram, PoolMetrics};
pub use pool::{Lease, Pool};
pub use pooled::PooledBackend;
