//! What stands between faces and backends.
//!
//! A [`Pool`] keeps sandboxes that were made before their request, bounds how many are alive, and serves tenants in
//! turn. [`PooledBackend`] is the same behind the contract, so that whatever takes a backend can take a pool. A
//! [`Session`] is one sandbox with many execs, and [`Interpreters`] keeps some that wait warm. [`Zygotes`]
//! keeps warm ones to fork, one for each tenant and spec. All of it works over any
//! [`Backend`](cofferdam_contract::Backend); nothing here names one, and nothing here weakens or strengthens a wall.
#![forbid(unsafe_code)]

mod config;
mod error;
mod interpreters;
mod metrics;
mod pool;
mod pooled;
mod session;
mod zygotes;

pub use cofferdam_interpreter::{InterpreterConfig, Runtime, Temporary, ZygoteConfig};
pub use config::PoolConfig;
pub use interpreters::{
    InterpreterMetrics, InterpreterTimes, Interpreters, InterpretersConfig, KeptInterpreter, Taken,
};
pub use metrics::{ClaimCounts, ClaimKind, Histogram, PoolMetrics};
pub use pool::{Lease, Pool};
pub use pooled::PooledBackend;
pub use session::{RunningExec, Session, SessionConfig};
pub use zygotes::{Forked, ZygoteMetrics, Zygotes, ZygotesConfig};
