//! Metrics: counts creates, execs and failures, and measures their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use cofferdam_contract::{Error, ExecRequest, Exit, Result, Sandbox, Spec};

use super::Concern;
use crate::metrics::Metrics;

/// The metrics of all sandboxes of a backend.
#[derive(Debug)]
pub struct MetricsConcern {
    /// The backend's name.
    pub backend: String,
    /// The metrics of the server.
    pub metrics: Arc<Metrics>,
}

/// The metrics of one sandbox.
#[derive(Debug)]
pub struct Held {
    backend: String,
    metrics: Arc<Metrics>,
    begun: Instant,
    is_live: AtomicBool,
    /// True if its use of the network was counted.
    is_counted: AtomicBool,
}

impl Held {
    fn end(&self) {
        if self.is_live.swap(false, Ordering::SeqCst) {
            self.metrics.live(&self.backend, -1);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the name of an exec's outcome, of which there are few.
pub(super) fn outcome_name(outcome: &Result<Exit>) -> &'static str {
    match outcome {
        Err(error) => error.kind().as_str(),
        Ok(exit) if exit.timed_out => "timeout",
        Ok(exit) if exit.killed_by.is_some() => "limit",
        Ok(exit) if exit.cancelled => "cancelled",
        Ok(exit) if exit.success() => "ok",
        Ok(_) => "failed",
    }
}

#[async_trait]
impl Concern for MetricsConcern {
    type Held = Held;
    type Exec = Instant;

    async fn enter(&self, _: &Spec) -> Result<Held> {
        let (backend, metrics) = (self.backend.clone(), Arc::clone(&self.metrics));
        let [is_live, is_counted] = [AtomicBool::new(false), AtomicBool::new(false)];
        Ok(Held { backend, metrics, begun: Instant::now(), is_live, is_counted })
    }

    async fn created(&self, held: &Held, created: Result<&Arc<dyn Sandbox>, &Error>) -> Result<()> {
        let outcome = created.as_ref().map_or_else(|error| error.kind().as_str(), |_| "ok");
        let time = created.is_ok().then(|| held.begun.elapsed());
        self.metrics.created(&self.backend, outcome, time);
        if time.is_some() && !held.is_live.swap(true, Ordering::SeqCst) {
            self.metrics.live(&self.backend, 1);
        }
        Ok(())
    }

    async fn starting(&self, _: &Held, _: &Spec, _: &ExecRequest) -> Result<Instant> {
        Ok(Instant::now())
    }

    async fn ended(&self, _: &Held, exec: Instant, outcome: &Result<Exit>) {
        let bytes = outcome.as_ref().map_or(0, |exit| exit.usage.output_bytes);
        self.metrics.executed(&self.backend, outcome_name(outcome), exec.elapsed(), bytes);
    }

    async fn closing(&self, held: &Held, sandbox: &dyn Sandbox) {
        let usage = sandbox.network_usage();
        if let Some(usage) = usage.filter(|_| !held.is_counted.swap(true, Ordering::SeqCst)) {
            self.metrics.network(&self.backend, &usage);
        }
    }

    async fn closed(&self, held: &Held) {
        held.end();
    }
}
