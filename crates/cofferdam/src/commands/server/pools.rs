//! The pools of a server, as its operator sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam::engine::{ClaimCounts, InterpreterMetrics, PoolMetrics, PreparedBackend};
use cofferdam::{Backend, Level};
use cofferdam_server::{HostPool, HostPools};

/// The pools of the default backend.
#[derive(Debug)]
pub struct PreparedPools {
    /// The name of the backend.
    pub name: String,
    /// The backend.
    pub backend: Arc<PreparedBackend>,
}

impl HostPools for PreparedPools {
    fn pools(&self) -> Vec<HostPool> {
        let level = self.backend.level();
        let interpreters = self.backend.interpreters().into_iter();
        let interpreters = interpreters.map(|kind| of_interpreters(&self.name, level, kind));
        [of_sandboxes(&self.name, level, self.backend.pool().metrics())].into_iter().chain(interpreters).collect()
    }
}

fn count(number: usize) -> u64 {
    number.try_into().unwrap_or(u64::MAX)
}

fn of_sandboxes(backend: &str, level: Level, pool: PoolMetrics) -> HostPool {
    let ClaimCounts { warm, cold_unfit, cold_empty, cold_replaced, copy } = pool.claims;
    let claims = [
        ("warm", warm),
        ("cold-unfit", cold_unfit),
        ("cold-empty", cold_empty),
        ("cold-replaced", cold_replaced),
        ("copy", copy),
    ];
    HostPool {
        backend: backend.to_owned(),
        level,
        pool: "sandboxes".to_owned(),
        idle: count(pool.warm),
        target: count(pool.target),
        refilling: count(pool.refilling),
        claimed: count(pool.claimed),
        waiting: count(pool.waiting),
        claims: claims.into_iter().map(|(kind, number)| (kind.to_owned(), number)).collect(),
        failures: pool.failures,
        refills: pool.refills,
        refill_failures: pool.refill_failures,
        refill_error: pool.refill_error,
    }
}

fn of_interpreters(backend: &str, level: Level, kind: InterpreterMetrics) -> HostPool {
    HostPool {
        backend: backend.to_owned(),
        level,
        pool: kind.name,
        idle: count(kind.waiting),
        target: count(kind.target),
        refilling: count(kind.making),
        // Their sandboxes are claimed from the pool of sandboxes.
        claimed: 0,
        waiting: 0,
        claims: BTreeMap::from([("warm".to_owned(), kind.taken), ("cold-empty".to_owned(), kind.missed)]),
        failures: 0,
        refills: kind.created,
        refill_failures: kind.failures,
        refill_error: kind.last_error,
    }
}
