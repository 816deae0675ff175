//! Pools of sandboxes and of warm interpreters, over any [`Backend`](cofferdam_contract::Backend).
//!
//! A [`Pool`] keeps sandboxes that were created before their request, bounds how many are alive, and serves tenants in
//! turn. [`PooledBackend`] is the same behind the contract, so that every user of a backend can use a pool.
//! [`Interpreters`] keeps warm interpreters. Nothing here names a backend, and nothing here weakens or strengthens an
//! isolation boundary.
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
