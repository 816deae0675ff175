//! The state of the server: prepared sandboxes, activity, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cofferdam_contract::{Backend, Capability, ExecHandle, ExecRequest, Result, Sandbox, Spec};
use cofferdam_engine::PreparedBackend;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::ResidentConfig;
use crate::error;
use crate::message::{PROTOCOL, ServerHello, Status};

/// A run that has begun.
#[derive(Debug)]
pub struct Begun {
    pub sandbox: Arc<dyn Sandbox>,
    pub handle: ExecHandle,
}

#[derive(Debug)]
pub struct Service {
    hello: ServerHello,
    backend: Arc<PreparedBackend>,
    started: Instant,
    activity: Mutex<Activity>,
    runs: AtomicU64,
    /// True if new clients are refused a run.
    refusing_new: AtomicBool,
    refusing: AtomicBool,
    stop: Notify,
}

#[derive(Debug)]
struct Activity {
    running: usize,
    /// The time at which the last run ended or the server began.
    since: Instant,
}

impl Service {
    pub fn new(backend: Arc<PreparedBackend>, config: &ResidentConfig) -> Self {
        let hello = ServerHello {
            protocol: PROTOCOL,
            build: config.build.clone(),
            surroundings: config.surroundings.clone(),
            backend: backend.name().to_owned(),
            level: backend.level(),
            connects: backend.capabilities().contains(&Capability::Connect),
            room: true,
        };
        let started = Instant::now();
        Self {
            hello,
            backend,
            started,
            activity: Mutex::new(Activity { running: 0, since: started }),
            runs: AtomicU64::new(0),
            refusing_new: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            stop: Notify::new(),
        }
    }

    pub fn hello(&self, room: bool) -> ServerHello {
        ServerHello { room: room && !self.refusing_new.load(Ordering::Acquire), ..self.hello.clone() }
    }

    /// Begins a run: in a prepared interpreter if one is compatible, else in a sandbox of the pool.
    pub async fn begin(&self, spec: Spec, request: ExecRequest) -> Result<Begun> {
        if self.refusing.load(Ordering::Acquire) {
            return Err(error::stopping());
        }
        self.runs.fetch_add(1, Ordering::Relaxed);
        let (sandbox, handle) = self.backend.start_one(spec, request).await?;
        Ok(Begun { sandbox, handle })
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        // A count and a time, consistent after every statement.
        self.activity.lock()
    }

    /// Counts a run for as long as the returned value lives.
    pub fn running(self: &Arc<Self>) -> Running {
        self.activity().running += 1;
        Running(Arc::clone(self))
    }

    /// Returns the time since which nothing runs, or `None` if a run is active.
    pub fn idle_since(&self) -> Option<Instant> {
        let activity = self.activity();
        (activity.running == 0).then_some(activity.since)
    }

    pub fn status(&self) -> Status {
        Status {
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs_f64(),
            build: self.hello.build.clone(),
            backend: self.hello.backend.clone(),
            level: self.hello.level,
            running: self.activity().running,
            runs: self.runs.load(Ordering::Relaxed),
            warm_runs: self.backend.in_interpreters(),
            pool: self.backend.pool().metrics(),
            interpreters: self.backend.interpreters(),
        }
    }

    /// Tells the server to stop.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// Returns when a client has requested a stop.
    pub async fn stop_requested(&self) {
        self.stop.notified().await;
    }

    /// Refuses runs to new clients.
    pub fn refuse_new_clients(&self) {
        self.refusing_new.store(true, Ordering::Release);
    }

    /// Refuses runs to all clients.
    pub fn refuse(&self) {
        self.refusing.store(true, Ordering::Release);
    }
}

/// A guard that counts a run.
#[derive(Debug)]
pub struct Running(Arc<Service>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut activity = self.0.activity();
        activity.running -= 1;
        activity.since = Instant::now();
    }
}
