//! One sandbox with many execs, for somebody who comes back.
//!
//! ```text
//! open --(close | drop | nobody used it for the idle time-out)--> closed: every exec ended, sandbox gone
//! ```
//!
//! Each exec keeps a handle, output and end of its own. The session bounds how many run at once, knows which do, and
//! closes what is forgotten. It isolates nothing: execs of one session share one sandbox, its files and its limits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cofferdam_contract::{
    Completed, Error, ErrorKind, ExecHandle, ExecId, ExecRequest, Exit, ExitWatch, Result, Sandbox, collect,
    serde_duration,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::{Lease, error};

/// How a session is set up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// Execs that may run at the same time. Default 8.
    pub max_execs: usize,
    /// How long a session lives in which nothing runs and nobody calls. Default 10 min.
    #[serde(with = "serde_duration")]
    pub idle_timeout: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self { max_execs: 8, idle_timeout: Duration::from_secs(600) }
    }
}

impl SessionConfig {
    /// Refuses what would let nothing run.
    pub fn validate(&self) -> Result<()> {
        if self.max_execs == 0 || self.idle_timeout.is_zero() {
            return Err(Error::invalid("configure", "a session's max_execs and idle_timeout must not be 0"));
        }
        Ok(())
    }
}

/// An exec that runs in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningExec {
    /// Its id within the sandbox.
    pub id: ExecId,
    /// How long it has run.
    #[serde(with = "serde_duration")]
    pub running_for: Duration,
}

/// A sandbox that somebody uses again and again. Dropping it ends its execs and closes the sandbox.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: SessionConfig,
    sandbox: Arc<dyn Sandbox>,
    runtime: Handle,
    state: Mutex<State>,
    /// Tells the watch that the session is closed.
    closed: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    lease: Option<Lease>,
    /// Execs that are being started.
    starting: usize,
    running: BTreeMap<ExecId, Running>,
    last_use: Instant,
    closed: bool,
    idled_out: bool,
}

#[derive(Debug)]
struct Running {
    since: Instant,
    handle: Weak<ExecHandle>,
    end: ExitWatch,
}

impl State {
    /// Forgets what has ended, whose end is a use of the session; gives how many run or are being started.
    fn busy(&mut self) -> usize {
        let before = self.running.len();
        self.running.retain(|_, running| !running.end.is_over());
        if self.running.len() < before {
            self.last_use = Instant::now();
        }
        self.starting + self.running.len()
    }
}

impl Session {
    /// A session in a sandbox of a pool. Must be called in a tokio runtime with time enabled.
    pub fn leased(lease: Lease, config: SessionConfig) -> Result<Self> {
        Self::open(Arc::clone(lease.sandbox()), Some(lease), config)
    }

    /// A session in a sandbox made for it. Must be called in a tokio runtime with time enabled.
    pub fn created(sandbox: Arc<dyn Sandbox>, config: SessionConfig) -> Result<Self> {
        Self::open(sandbox, None, config)
    }

    fn open(sandbox: Arc<dyn Sandbox>, lease: Option<Lease>, config: SessionConfig) -> Result<Self> {
        config.validate()?;
        let runtime = Handle::try_current().map_err(|missing| {
            Error::invalid("configure", "a session needs a tokio runtime to work in").with_source(missing)
        })?;
        let state = State {
            lease,
            starting: 0,
            running: BTreeMap::new(),
            last_use: Instant::now(),
            closed: false,
            idled_out: false,
        };
        let closed = watch::Sender::new(false);
        let shared = Arc::new(Shared { config, sandbox, runtime, state: Mutex::new(state), closed });
        shared.runtime.spawn(watch_idle(Arc::clone(&shared)));
        Ok(Self { shared })
    }

    /// The sandbox, for its files, its posture and its usage. To ask for it is to use the session; what is started on it
    /// directly is not counted, and ends with the session all the same.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        self.shared.lock().last_use = Instant::now();
        &self.shared.sandbox
    }

    /// Starts a command.
    ///
    /// # Behavior
    /// - Fails with `ResourceExhausted` while as many run as may, and with `Closed` once the session is closed.
    /// - The exec runs until it ends, is cancelled, or the last reference to its handle is dropped.
    pub async fn start(&self, request: ExecRequest) -> Result<Arc<ExecHandle>> {
        let starting = self.shared.enter()?;
        let handle = Arc::new(self.shared.sandbox.start(request).await?);
        starting.started(&handle);
        Ok(handle)
    }

    /// Runs a command to its end and collects its output, without loss up to the request's `max_output`.
    pub async fn exec(&self, request: ExecRequest) -> Result<Completed> {
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        collect(self.start(request).await?).await
    }

    /// What was started here and runs now, oldest first.
    pub fn execs(&self) -> Vec<RunningExec> {
        let now = Instant::now();
        let mut state = self.shared.lock();
        state.busy();
        let running = state.running.iter();
        running.map(|(id, running)| RunningExec { id: *id, running_for: now - running.since }).collect()
    }

    /// Cancels one exec and waits for its end: SIGTERM, a grace period, SIGKILL. The others go on.
    ///
    /// # Errors
    /// `NotFound` if no exec of this id runs.
    pub async fn cancel(&self, id: ExecId) -> Result<Exit> {
        let handle = {
            let mut state = self.shared.lock();
            state.busy();
            state.running.get(&id).and_then(|running| running.handle.upgrade())
        };
        let missing = || {
            Error::new(ErrorKind::NotFound, "cancel", "no exec of this id runs in the session")
                .with_context("exec", id.to_string())
        };
        handle.ok_or_else(missing)?.cancel().await
    }

    /// Whether it is closed, by `close` or because nobody used it.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Ends every exec and closes the sandbox. Idempotent; nothing is left when it returns.
    pub async fn close(&self) -> Result<()> {
        self.shared.close().await
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.shared.runtime.spawn(async move { shared.close().await });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for one more exec.
    fn enter(self: &Arc<Self>) -> Result<Starting> {
        let mut state = self.lock();
        state.last_use = Instant::now();
        if state.idled_out {
            return Err(error::idled_out(self.config.idle_timeout));
        }
        if state.closed {
            return Err(Error::closed("start"));
        }
        if state.busy() >= self.config.max_execs {
            return Err(error::too_many_execs(self.config.max_execs));
        }
        state.starting += 1;
        Ok(Starting(Arc::clone(self)))
    }

    async fn close(&self) -> Result<()> {
        let lease = {
            let mut state = self.lock();
            state.closed = true;
            state.lease.take()
        };
        self.closed.send_replace(true);
        match lease {
            Some(lease) => lease.close().await,
            None => self.sandbox.close().await,
        }
    }

    /// When it will have been idle for too long; `None` while something runs.
    fn idle_until(&self) -> Option<Instant> {
        let mut state = self.lock();
        (state.busy() == 0).then(|| state.last_use + self.config.idle_timeout)
    }

    /// Closes it to newcomers, if it has been idle for too long.
    fn give_up(&self) -> bool {
        let mut state = self.lock();
        let idle = state.busy() == 0 && Instant::now() >= state.last_use + self.config.idle_timeout;
        state.closed |= idle;
        state.idled_out |= idle;
        idle
    }
}

/// Closes the session when nobody has used it for long.
async fn watch_idle(shared: Arc<Shared>) {
    let mut closed = shared.closed.subscribe();
    loop {
        // While something runs, looking again after the whole time is early enough: its end counts as a use.
        let until = shared.idle_until().unwrap_or_else(|| Instant::now() + shared.config.idle_timeout);
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = sleep_until(until) => {}
        }
        if shared.give_up() {
            // Nobody is there to be told of a failure; what the sandbox held goes with its last reference.
            let _ = shared.close().await;
            return;
        }
    }
}

/// An exec that is being started, among those that may run.
#[derive(Debug)]
struct Starting(Arc<Shared>);

impl Starting {
    /// Lists the exec until it ends.
    fn started(self, handle: &Arc<ExecHandle>) {
        let end = handle.exit_watch();
        let running = Running { since: Instant::now(), handle: Arc::downgrade(handle), end: end.clone() };
        self.0.lock().running.insert(handle.id(), running);
        let shared = Arc::clone(&self.0);
        self.0.runtime.spawn(async move {
            // How it ended is for those who hold the handle.
            let _ = end.exit().await;
            shared.lock().busy();
        });
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.starting -= 1;
        state.last_use = Instant::now();
    }
}
