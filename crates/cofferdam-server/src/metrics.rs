//! Metrics in the text format of Prometheus. Labels have few values each: backends, kinds of errors, endpoints.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use cofferdam_contract::NetworkUsage;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::pools::{HostPools, PoolCollector};

/// The type of the document.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The bounds of times, in seconds.
const TIMES: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    backend: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBackend {
    backend: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: String,
    endpoint: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Traffic {
    backend: String,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SpanOutcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Denial {
    reason: &'static str,
}

/// Creates histograms of times.
#[derive(Debug, Clone, Copy)]
struct Times;

impl MetricConstructor<Histogram> for Times {
    fn new_metric(&self) -> Histogram {
        Histogram::new(TIMES)
    }
}

/// The metrics of a server.
pub struct Metrics {
    registry: Mutex<Registry>,
    creates: Family<Outcome, Counter>,
    create_time: Family<OfBackend, Histogram, Times>,
    live: Family<OfBackend, Gauge<i64, AtomicI64>>,
    execs: Family<Outcome, Counter>,
    exec_time: Family<OfBackend, Histogram, Times>,
    output: Family<OfBackend, Counter>,
    network: Family<Traffic, Counter>,
    connections: Family<OfBackend, Counter>,
    refused: Family<OfBackend, Counter>,
    requests: Family<Request, Counter>,
    request_time: Histogram,
    denials: Family<Denial, Counter>,
    spans: Family<SpanOutcome, Counter>,
    waiting: Gauge<i64, AtomicI64>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("cofferdam");
        let metrics = Self {
            registry: Mutex::default(),
            creates: Family::default(),
            create_time: Family::new_with_constructor(Times),
            live: Family::default(),
            execs: Family::default(),
            exec_time: Family::new_with_constructor(Times),
            output: Family::default(),
            network: Family::default(),
            connections: Family::default(),
            refused: Family::default(),
            requests: Family::default(),
            request_time: Histogram::new(TIMES),
            denials: Family::default(),
            spans: Family::default(),
            waiting: Gauge::default(),
        };
        registry.register("creates", "Sandboxes that were asked for, by outcome", metrics.creates.clone());
        let seconds = Unit::Seconds;
        registry.register_with_unit("create", "Time of a create", seconds.clone(), metrics.create_time.clone());
        registry.register("sandboxes", "Sandboxes that live", metrics.live.clone());
        registry.register("execs", "Execs that have ended, by outcome", metrics.execs.clone());
        registry.register_with_unit("exec", "Time of an exec", seconds.clone(), metrics.exec_time.clone());
        registry.register_with_unit("output", "Output of execs", Unit::Bytes, metrics.output.clone());
        let closed = "of sandboxes that are closed";
        let connections = metrics.connections.clone();
        registry.register_with_unit("network", format!("Traffic {closed}"), Unit::Bytes, metrics.network.clone());
        registry.register("network_connections", format!("Connections {closed}"), connections);
        let what = format!("Look-ups, connections and requests {closed} that their policies refused");
        registry.register("network_refused", what, metrics.refused.clone());
        registry.register("requests", "Requests that were answered", metrics.requests.clone());
        registry.register_with_unit("request", "Time until an answer begins", seconds, metrics.request_time.clone());
        registry.register("denials", "Requests that were refused, by reason", metrics.denials.clone());
        registry.register("spans", "Spans that were recorded, by the outcome of their export", metrics.spans.clone());
        registry.register("waiting", "Requests that wait for room", metrics.waiting.clone());
        *metrics.registry.lock() = registry;
        metrics
    }
}

impl Metrics {
    /// Adds the metrics of the host's pools.
    pub(crate) fn add_pools(&self, pools: Arc<dyn HostPools>) {
        self.registry.lock().register_collector(Box::new(PoolCollector(pools)));
    }

    /// Counts a create. The time is missing if there was no sandbox.
    pub fn created(&self, backend: &str, outcome: &'static str, time: Option<Duration>) {
        self.creates.get_or_create(&Outcome { backend: backend.to_owned(), outcome }).inc();
        if let Some(time) = time {
            let of = OfBackend { backend: backend.to_owned() };
            self.create_time.get_or_create(&of).observe(time.as_secs_f64());
        }
    }

    /// Adds to the number of live sandboxes.
    pub fn live(&self, backend: &str, more: i64) {
        self.live.get_or_create(&OfBackend { backend: backend.to_owned() }).inc_by(more);
    }

    /// Counts an exec.
    pub fn executed(&self, backend: &str, outcome: &'static str, time: Duration, bytes: u64) {
        let of = OfBackend { backend: backend.to_owned() };
        self.execs.get_or_create(&Outcome { backend: backend.to_owned(), outcome }).inc();
        self.exec_time.get_or_create(&of).observe(time.as_secs_f64());
        self.output.get_or_create(&of).inc_by(bytes);
    }

    /// Counts the use of the network by a sandbox that is closed.
    pub fn network(&self, backend: &str, usage: &NetworkUsage) {
        for (direction, bytes) in [("sent", usage.sent_bytes), ("received", usage.received_bytes)] {
            self.network.get_or_create(&Traffic { backend: backend.to_owned(), direction }).inc_by(bytes);
        }
        let of = OfBackend { backend: backend.to_owned() };
        self.connections.get_or_create(&of).inc_by(usage.connections);
        self.refused.get_or_create(&of).inc_by(usage.refused);
    }

    /// Counts an answer. `endpoint` is that of the document, not what the client named.
    pub fn answered(&self, method: &str, endpoint: &str, status: u16, time: Duration) {
        let request = Request { method: method.to_owned(), endpoint: endpoint.to_owned(), status };
        self.requests.get_or_create(&request).inc();
        self.request_time.observe(time.as_secs_f64());
    }

    /// Counts a refusal.
    pub fn denied(&self, reason: &'static str) {
        self.denials.get_or_create(&Denial { reason }).inc();
    }

    /// Counts spans that were exported, failed or dropped.
    pub fn spans(&self, outcome: &'static str, count: u64) {
        self.spans.get_or_create(&SpanOutcome { outcome }).inc_by(count);
    }

    /// Returns the document, with the number of requests that wait now.
    pub fn text(&self, waiting: usize) -> String {
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry.lock());
        text
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::Level;

    use super::*;
    use crate::pools::HostPool;

    /// A host with one pool.
    #[derive(Debug)]
    struct OnePool;

    impl HostPools for OnePool {
        fn pools(&self) -> Vec<HostPool> {
            vec![HostPool {
                backend: "process".to_owned(),
                level: Level::Process,
                pool: "sandboxes".to_owned(),
                idle: 0,
                target: 0,
                refilling: 0,
                claimed: 0,
                waiting: 0,
                claims: [("warm".to_owned(), 1)].into(),
                failures: 0,
                refills: 0,
                refill_failures: 0,
                refill_error: None,
            }]
        }
    }

    /// Promise (Server): The dashboard and the alerts name metrics and outcomes that the server has.
    #[test]
    fn the_dashboard_and_the_alerts_name_metrics_that_exist() {
        let metrics = Metrics::default();
        metrics.add_pools(Arc::new(OnePool));
        metrics.created("process", "ok", Some(Duration::ZERO));
        metrics.live("process", 1);
        metrics.executed("process", "exit", Duration::ZERO, 1);
        metrics.answered("GET", "/v1/health", 200, Duration::ZERO);
        metrics.denied("rate");
        metrics.spans("exported", 1);
        metrics.network("process", &NetworkUsage::default());
        let text = metrics.text(0);
        let known: Vec<&str> = text.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
        let dashboard = include_str!("../../../packaging/grafana-dashboard.json");
        serde_json::from_str::<serde_json::Value>(dashboard).expect("JSON");
        let mut count = 0;
        for document in [dashboard, include_str!("../../../packaging/prometheus-alerts.yml")] {
            let words = document.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("cofferdam_")) {
                assert!(known.contains(&name), "{name} is no metric: {known:?}");
                count += 1;
            }
        }
        assert!(count > 15, "{count}");
        let levels = ["idle", "target", "claimed", "waiting", "claims_total", "refills_total", "refill_failures_total"];
        for name in levels.map(|name| format!("cofferdam_pool_{name}{{")) {
            assert!(dashboard.contains(&name), "no panel has {name}");
        }
    }
}
