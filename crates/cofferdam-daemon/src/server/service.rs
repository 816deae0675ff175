//! The state of the daemon: the pool, the interpreters, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_contract::{Backend, Capability, ExecHandle, ExecRequest, Result, Sandbox, Spec};
use cofferdam_engine::{Interpreters, PoolConfig, PooledBackend};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::DaemonConfig;
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
    pool: Arc<PooledBackend>,
    interpreters: Interpreters,
    started: Instant,
    activity: Mutex<Activity>,
    runs: AtomicU64,
    warm_runs: AtomicU64,
    /// True if new clients are refused a run.
    refusing_new: AtomicBool,
    refusing: AtomicBool,
    stop: Notify,
}

#[derive(Debug)]
struct Activity {
    running: usize,
    /// The time at which the last run ended or the daemon began.
    since: Instant,
}

impl Service {
    pub fn start(backend: Arc<dyn Backend>, pool: PoolConfig, config: DaemonConfig) -> Result<Self> {
        let DaemonConfig { build, surroundings, template, interpreters, .. } = config;
        let hello = ServerHello {
            protocol: PROTOCOL,
            build,
            surroundings,
            backend: backend.name().to_owned(),
            level: backend.level(),
            connects: backend.capabilities().contains(&Capability::Connect),
            room: true,
        };
        let pool = Arc::new(PooledBackend::new(backend, template.clone(), pool)?);
        let interpreters = Interpreters::new(Arc::clone(&pool) as Arc<dyn Backend>, template, interpreters)?;
        let started = Instant::now();
        Ok(Self {
            hello,
            pool,
            interpreters,
            started,
            activity: Mutex::new(Activity { running: 0, since: started }),
            runs: AtomicU64::new(0),
            warm_runs: AtomicU64::new(0),
            refusing_new: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            stop: Notify::new(),
        })
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
        if let Some(taken) = self.interpreters.take(&spec, &request) {
            // If this fails, none of the code has run, and a cold start reports the error in the request.
            if let Ok((handle, sandbox)) = taken.start().await {
                self.warm_runs.fetch_add(1, Ordering::Relaxed);
                return Ok(Begun { sandbox, handle });
            }
        }
        let sandbox = self.pool.create(spec).await?;
        match sandbox.start(request).await {
            Ok(handle) => Ok(Begun { sandbox, handle }),
            Err(error) => Err(error.with_failed_close(sandbox.close().await)),
        }
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
            warm_runs: self.warm_runs.load(Ordering::Relaxed),
            pool: self.pool.pool().metrics(),
            interpreters: self.interpreters.metrics(),
        }
    }

    /// Tells the daemon to stop.
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

    /// Shuts down: prepared sandboxes at once, runs after `drain`.
    pub async fn shutdown(&self, drain: Duration) -> Result<()> {
        let interpreters = self.interpreters.shutdown().await;
        self.pool.pool().shutdown(drain).await.and(interpreters)
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
