//! Counters of the host, in the text format of OpenMetrics, which Prometheus reads.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::wire::ErrorKind;

/// The upper bounds of the histogram of durations, in seconds.
const BOUNDS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    plugin: String,
    method: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    plugin: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    plugin: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    plugin: String,
    state: &'static str,
}

/// The state of a plugin at the time of a reading.
pub struct PluginState {
    /// The plugin.
    pub plugin: String,
    /// The state's name.
    pub state: &'static str,
    /// The number of starts, restarts included.
    pub starts: u64,
    /// The number of running calls.
    pub running: usize,
}

/// The counters. Their labels come from manifests, and never from a plugin's messages.
#[derive(Debug)]
pub struct Metrics {
    calls: Family<CallLabels, Counter>,
    durations: Family<PluginLabels, Histogram, fn() -> Histogram>,
    requests: Family<RequestLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let durations = Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram);
        Self { calls: Family::default(), durations, requests: Family::default() }
    }
}

/// Returns the name of an outcome.
fn outcome(error: Option<ErrorKind>) -> &'static str {
    match error {
        None => "ok",
        Some(ErrorKind::PermissionDenied) => "denied",
        Some(ErrorKind::Timeout) => "timeout",
        Some(ErrorKind::Cancelled) => "cancelled",
        Some(ErrorKind::Unavailable) => "unavailable",
        Some(ErrorKind::Limit) => "limit",
        Some(_) => "error",
    }
}

impl Metrics {
    /// Counts a call of a plugin.
    pub fn call(&self, plugin: &str, method: &str, error: Option<ErrorKind>, duration: Duration) {
        let (plugin, method, outcome) = (plugin.to_owned(), method.to_owned(), outcome(error));
        self.durations.get_or_create(&PluginLabels { plugin: plugin.clone() }).observe(duration.as_secs_f64());
        self.calls.get_or_create(&CallLabels { plugin, method, outcome }).inc();
    }

    /// Counts a request of a plugin.
    pub fn request(&self, plugin: &str, error: Option<ErrorKind>) {
        self.requests.get_or_create(&RequestLabels { plugin: plugin.to_owned(), outcome: outcome(error) }).inc();
    }

    /// Returns the counters, with the states of plugins.
    pub fn render(&self, plugins: &[PluginState]) -> String {
        let mut registry = Registry::with_prefix("cofferdam_plugin");
        registry.register("calls", "Calls of plugins by outcome", self.calls.clone());
        registry.register_with_unit("call", "Durations of calls", Unit::Seconds, self.durations.clone());
        registry.register("requests", "Requests of plugins by outcome", self.requests.clone());
        let (starts, states, running) = (
            Family::<PluginLabels, Counter>::default(),
            Family::<StateLabels, Gauge>::default(),
            Family::<PluginLabels, Gauge>::default(),
        );
        for state in plugins {
            let labels = PluginLabels { plugin: state.plugin.clone() };
            starts.get_or_create(&labels).inc_by(state.starts);
            running.get_or_create(&labels).set(i64::try_from(state.running).unwrap_or(i64::MAX));
            states.get_or_create(&StateLabels { plugin: state.plugin.clone(), state: state.state }).set(1);
        }
        registry.register("starts", "Starts of plugins, restarts included", starts);
        registry.register("state", "The state of each plugin", states);
        registry.register("running_calls", "Calls that run", running);
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}
