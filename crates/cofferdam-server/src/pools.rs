//! The pools of prepared sandboxes of the host. The program owns them: the server shows their state to the operator.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cofferdam_contract::Level;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The state of a pool, and its counters since the start of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostPool {
    /// The backend of its sandboxes.
    pub backend: String,
    /// Their isolation level.
    pub level: Level,
    /// The pool: `sandboxes`, or the name of prepared interpreters such as `python`.
    pub pool: String,
    /// Idle prepared sandboxes.
    pub idle: u64,
    /// Idle prepared sandboxes that refills aim at.
    pub target: u64,
    /// Sandboxes that are prepared now.
    pub refilling: u64,
    /// Sandboxes in use.
    pub claimed: u64,
    /// Requests that wait for a sandbox of the pool.
    pub waiting: u64,
    /// Requests that were served, by kind: `warm` got a prepared sandbox; for `cold-empty` none was idle, for
    /// `cold-unfit` none was compatible, for `cold-replaced` the prepared one had failed; `copy` restored or forked.
    pub claims: BTreeMap<String, u64>,
    /// Requests whose sandbox could not be created.
    pub failures: u64,
    /// Sandboxes that were prepared.
    pub refills: u64,
    /// Sandboxes that could not be prepared.
    pub refill_failures: u64,
    /// The failure of the last refill, unless it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_error: Option<String>,
}

/// The pools of the host. There are few: one for each backend with a pool, and one for each kind of interpreters.
pub trait HostPools: Send + Sync + fmt::Debug + 'static {
    /// Returns the state of all pools.
    fn pools(&self) -> Vec<HostPool>;
}

/// A number of a pool: its name, its description and its value.
type Number = (&'static str, &'static str, fn(&HostPool) -> u64);

/// The levels of a pool.
const LEVELS: [Number; 5] = [
    ("pool_idle", "Idle prepared sandboxes", |pool| pool.idle),
    ("pool_target", "Idle prepared sandboxes that refills aim at", |pool| pool.target),
    ("pool_refilling", "Sandboxes that are prepared now", |pool| pool.refilling),
    ("pool_claimed", "Sandboxes of pools in use", |pool| pool.claimed),
    ("pool_waiting", "Requests that wait for a sandbox of a pool", |pool| pool.waiting),
];
/// The counters of a pool that have no further labels.
const COUNTERS: [Number; 3] = [
    ("pool_failures", "Requests whose sandbox a pool could not create", |pool| pool.failures),
    ("pool_refills", "Sandboxes that were prepared", |pool| pool.refills),
    ("pool_refill_failures", "Sandboxes that could not be prepared", |pool| pool.refill_failures),
];

/// The metrics of pools, which are read when they are asked for.
#[derive(Debug)]
pub(crate) struct PoolCollector(pub(crate) Arc<dyn HostPools>);

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let pools = self.0.pools();
        for (name, help, value) in LEVELS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for pool in &pools {
                let value = i64::try_from(value(pool)).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(family.encode_family(&labels(pool))?)?;
            }
        }
        for (name, help, value) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for pool in &pools {
                ConstCounter::new(value(pool)).encode(family.encode_family(&labels(pool))?)?;
            }
        }
        let help = "Requests that pools served, by the kind of claim";
        let mut family = encoder.encode_descriptor("pool_claims", help, None, MetricType::Counter)?;
        for pool in &pools {
            for (kind, count) in &pool.claims {
                let labels = (labels(pool), [("kind", kind.as_str())]);
                ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn labels(pool: &HostPool) -> [(&'static str, &str); 3] {
    [("backend", &pool.backend), ("level", pool.level.as_str()), ("pool", &pool.pool)]
}
