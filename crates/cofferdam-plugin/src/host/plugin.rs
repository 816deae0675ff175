//! One loaded plugin: the task that starts, watches and restarts its process.
//!
//! ```text
//! call --wanted--> supervisor task --launch--> Instance
//!   ^                 |  Supervision decides
//!   +--watch: Status--+
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::instance::{Ended, Instance, Running, quoted};
use super::log::{Log, Severity};
use super::permission::shown;
use super::watch::{MAX_FILES, Watch};
use crate::supervision::{Action, Event, Policy, State, Supervision};
use crate::wire::{CallError, ErrorKind};

/// The number of commands that wait for the supervisor.
const MAX_COMMANDS: usize = 64;

/// The time between two ticks of a plugin that has neither an idle time nor heartbeats.
const TICK: Duration = Duration::from_secs(60);
/// The interval at which the files of a plugin are polled.
const WATCH_INTERVAL: Duration = Duration::from_millis(300);

/// The times of a plugin.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// The maximum time until the plugin is ready.
    pub start: Duration,
    /// The time without a call after which the plugin ends.
    pub idle: Option<Duration>,
    /// The time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// The time between two heartbeats, and the time for the answer. `None`: a debugger may stop the plugin.
    pub heartbeat: Option<Duration>,
}

/// Starts processes of a plugin.
#[async_trait]
pub trait Launcher: Send + Sync + 'static {
    /// Starts a process and waits until it is ready.
    async fn launch(&self) -> Result<Arc<Instance>, CallError>;

    /// Ends the process of a launch that was given up, and waits until nothing is left of it.
    async fn abandon(&self);
}

/// The state that callers see.
#[derive(Clone)]
pub struct Status {
    /// The state.
    pub state: State,
    /// The process, in the state `ready`.
    pub instance: Option<Arc<Instance>>,
    /// The reason of the last crash.
    pub reason: String,
    /// The number of starts.
    pub starts: u64,
    /// The output before the last crash.
    pub last_output: String,
    /// True if the last start failed. Calls then fail at once.
    pub failed_start: bool,
}

enum Command {
    Wanted,
    Changed(PathBuf),
    Drain(Duration, oneshot::Sender<()>),
}

/// A handle on the supervisor of a plugin.
pub struct Supervisor {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<Status>,
    epoch: Instant,
    log: Log,
    task: JoinHandle<()>,
}

impl Supervisor {
    /// Starts the supervisor. The plugin starts with its first call.
    pub fn start(launcher: Arc<dyn Launcher>, policy: Policy, times: Times, log: Log) -> Self {
        let (commands, receiver) = mpsc::channel(MAX_COMMANDS);
        let status = Status {
            state: State::Stopped,
            instance: None,
            reason: String::new(),
            starts: 0,
            last_output: String::new(),
            failed_start: false,
        };
        let (publisher, watched) = watch::channel(status);
        let epoch = Instant::now();
        let task = Task {
            launcher,
            times,
            log: log.clone(),
            epoch,
            supervision: Supervision::new(policy),
            publisher,
            instance: None,
            launching: None,
            reason: String::new(),
            starts: 0,
            last_output: String::new(),
            failed_start: false,
            is_outdated: false,
            heartbeat: None,
        };
        Self { commands, status: watched, epoch, log, task: tokio::spawn(task.run(receiver)) }
    }

    /// Returns the state.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits until the plugin is ready, and starts it if necessary. Counts a call as running.
    ///
    /// # Errors
    /// - `Unavailable` if the circuit is open, or if the host drains.
    /// - `Timeout` at the deadline.
    pub async fn ready(&self, deadline: Instant) -> Result<Running, CallError> {
        let mut status = self.status.clone();
        loop {
            let now = status.borrow_and_update().clone();
            match now.state {
                State::Ready => {
                    // The supervisor may not know yet that the process has ended.
                    if let Some(running) = now.instance.and_then(|instance| instance.begin_call()) {
                        return Ok(running);
                    }
                }
                State::Open(until) if self.epoch.elapsed() < until => {
                    return Err(unavailable("circuit-open", &now.reason)
                        .with("retryAfter", (until - self.epoch.elapsed()).as_secs_f64()));
                }
                State::Backoff(_) if now.failed_start => {
                    return Err(unavailable("failed-start", &now.reason).with("lastOutput", quoted(&now.last_output)));
                }
                State::Stopped | State::Open(_) => {
                    let _ = self.commands.send(Command::Wanted).await;
                }
                State::Starting | State::Probing | State::Backoff(_) | State::Draining => {}
            }
            match tokio::time::timeout_at(deadline, status.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(unavailable("draining", "the host shuts down")),
                Err(_) => {
                    let what = format!("the plugin was not ready in time; it is {}", now.state.as_str());
                    let error = CallError::new(ErrorKind::Timeout, what);
                    return Err(if now.reason.is_empty() { error } else { error.with("lastCrash", now.reason) });
                }
            }
        }
    }

    /// Restarts the plugin when a file of its package changes, until the supervisor is dropped.
    pub fn reload_on_change(&self, package: &Path) {
        let (mut watch, commands) = (Watch::new(package), self.commands.clone());
        if watch.is_truncated() {
            let message = format!("only {MAX_FILES} files of the plugin are watched");
            self.log.write(Severity::Warn, "plugin.reload-limited", None, json!({"message": message}));
        }
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = commands.closed() => return,
                    () = tokio::time::sleep(WATCH_INTERVAL) => {}
                }
                let looked = tokio::task::spawn_blocking(move || {
                    let changed = watch.changed();
                    (watch, changed)
                });
                let Ok((next, changed)) = looked.await else { return };
                watch = next;
                if let Some(path) = changed {
                    let _ = commands.send(Command::Changed(path)).await;
                }
            }
        });
    }

    /// Starts the plugin, if it does not run.
    pub async fn want(&self) {
        let _ = self.commands.send(Command::Wanted).await;
    }

    /// Lets running calls end within `within`, and shuts the plugin down.
    pub async fn drain(&self, within: Duration) {
        let (done, ended) = oneshot::channel();
        if self.commands.send(Command::Drain(within, done)).await.is_ok() {
            let _ = ended.await;
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Dropping the task's state kills the process.
        self.task.abort();
    }
}

fn unavailable(reason: &str, last: &str) -> CallError {
    let why = if last.is_empty() { String::new() } else { format!(": {last}") };
    CallError::new(ErrorKind::Unavailable, format!("the plugin is unavailable ({reason}){why}")).with("reason", reason)
}

type Launching = JoinHandle<Result<Arc<Instance>, CallError>>;

struct Task {
    launcher: Arc<dyn Launcher>,
    times: Times,
    log: Log,
    epoch: Instant,
    supervision: Supervision,
    publisher: watch::Sender<Status>,
    instance: Option<Arc<Instance>>,
    launching: Option<Launching>,
    reason: String,
    starts: u64,
    last_output: String,
    failed_start: bool,
    /// True if a file changed while the plugin started.
    is_outdated: bool,
    heartbeat: Option<JoinHandle<bool>>,
}

/// The reason why the supervisor woke.
enum Woken {
    Command(Option<Command>),
    Launched(Result<Arc<Instance>, CallError>),
    Ended(Ended),
    Heartbeat(bool),
    Tick,
}

impl Task {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            let woken = self.next(&mut commands).await;
            match woken {
                Woken::Command(None) => return,
                Woken::Command(Some(Command::Wanted)) => self.apply(Event::Wanted),
                Woken::Command(Some(Command::Changed(path))) => self.changed(&path),
                Woken::Command(Some(Command::Drain(within, done))) => {
                    self.drain(within).await;
                    let _ = done.send(());
                    return;
                }
                Woken::Launched(Ok(instance)) => {
                    self.instance = Some(instance);
                    self.failed_start = false;
                    self.apply(Event::Ready);
                    self.reload_if_outdated();
                }
                Woken::Launched(Err(error)) => {
                    self.failed_start = true;
                    self.crashed(&error.message, error.data.get("lastOutput"));
                    self.reload_if_outdated();
                }
                Woken::Ended(ended) => self.ended(&ended),
                Woken::Heartbeat(true) => self.heartbeat = None,
                Woken::Heartbeat(false) => {
                    self.heartbeat = None;
                    if let Some(instance) = &self.instance {
                        instance.terminate("it did not answer a heartbeat".to_owned(), self.times.grace);
                    }
                }
                Woken::Tick => self.tick().await,
            }
        }
    }

    async fn next(&mut self, commands: &mut mpsc::Receiver<Command>) -> Woken {
        let wake = self.wake();
        let instance = self.instance.clone();
        tokio::select! {
            command = commands.recv() => Woken::Command(command),
            launched = joined(&mut self.launching) => {
                self.launching = None;
                let failed = || CallError::new(ErrorKind::Internal, "the host failed to start the plugin");
                Woken::Launched(launched.unwrap_or_else(|| Err(failed())))
            }
            ended = async { match &instance { Some(instance) => instance.ended().await, None => std::future::pending().await } } => {
                Woken::Ended(ended)
            }
            answered = joined(&mut self.heartbeat) => Woken::Heartbeat(answered.unwrap_or(false)),
            () = tokio::time::sleep_until(wake) => Woken::Tick,
        }
    }

    /// Returns the time of the next tick.
    fn wake(&self) -> Instant {
        match self.supervision.state() {
            State::Backoff(at) => self.epoch + at,
            _ => Instant::now() + [self.times.idle, self.times.heartbeat].into_iter().flatten().min().unwrap_or(TICK),
        }
    }

    fn apply(&mut self, event: Event) {
        let before = self.supervision.state();
        let random = random_unit();
        let action = self.supervision.transition(event, self.epoch.elapsed(), random);
        let state = self.supervision.state();
        if action == Action::Launch {
            self.starts += 1;
            let launcher = Arc::clone(&self.launcher);
            let limit = self.times.start;
            self.launching = Some(tokio::spawn(async move { in_time(&*launcher, limit).await }));
        }
        if before != state {
            let mut fields = json!({"from": before.as_str(), "to": state.as_str(), "starts": self.starts});
            if let State::Backoff(at) | State::Open(at) = state {
                fields["retryAfterSeconds"] = json!(at.saturating_sub(self.epoch.elapsed()).as_secs_f64());
            }
            self.log.write(Severity::Info, "plugin.state", None, fields);
        }
        self.publish();
    }

    fn publish(&self) {
        let instance = self.instance.clone().filter(|_| self.supervision.state() == State::Ready);
        let (state, reason, starts) = (self.supervision.state(), self.reason.clone(), self.starts);
        let (last_output, failed_start) = (self.last_output.clone(), self.failed_start);
        self.publisher.send_replace(Status { state, instance, reason, starts, last_output, failed_start });
    }

    /// Ends the process with the old files, after its calls. The next call starts a new one.
    fn changed(&mut self, path: &Path) {
        if matches!(self.supervision.state(), State::Stopped | State::Draining) {
            return;
        }
        let path = shown(&path.display().to_string());
        self.log.write(Severity::Info, "plugin.reloaded", None, json!({"path": path}));
        self.is_outdated = true;
        if self.launching.is_none() {
            self.reload_if_outdated();
        }
    }

    fn reload_if_outdated(&mut self) {
        if !std::mem::take(&mut self.is_outdated) {
            return;
        }
        self.failed_start = false;
        self.apply(Event::Changed);
        if let (State::Draining, Some(instance)) = (self.supervision.state(), self.instance.clone()) {
            let grace = self.times.grace;
            tokio::spawn(async move { instance.shut_down_after_calls("its files changed", grace).await });
        }
    }

    fn ended(&mut self, ended: &Ended) {
        self.instance = None;
        self.heartbeat = None;
        if ended.planned {
            self.apply(Event::Ended);
        } else {
            self.crashed(&ended.reason, Some(&json!(ended.tail)));
        }
    }

    fn crashed(&mut self, reason: &str, tail: Option<&Value>) {
        reason.clone_into(&mut self.reason);
        self.last_output = tail.and_then(Value::as_str).unwrap_or_default().to_owned();
        let fields = json!({"reason": reason, "lastOutput": tail, "recentCrashes": self.supervision.recent_crashes()});
        self.log.write(Severity::Error, "plugin.crashed", None, fields);
        self.apply(Event::Ended);
    }

    async fn tick(&mut self) {
        self.apply(Event::Tick);
        let Some(instance) = self.instance.clone() else { return };
        if self.times.idle.is_some_and(|idle| instance.idle() >= idle) && instance.end_without_calls("it was idle") {
            self.apply(Event::Drain);
            instance.shut_down("it was idle", self.times.grace, self.times.grace).await;
        } else if let (Some(limit), None, 0) = (self.times.heartbeat, &self.heartbeat, instance.calls()) {
            // A call that runs has its own timeout.
            self.heartbeat = Some(tokio::spawn(async move {
                matches!(tokio::time::timeout(limit, instance.ask("ping", &Value::Null, "heartbeat")).await, Ok(Ok(_)))
            }));
        }
    }

    async fn drain(&mut self, within: Duration) {
        let deadline = Instant::now() + within;
        if let Some(launching) = self.launching.take() {
            launching.abort();
            let _ = launching.await;
            self.launcher.abandon().await;
        }
        self.apply(Event::Drain);
        if let Some(instance) = self.instance.take() {
            while instance.calls() > 0 && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            instance.shut_down("the host shuts down", self.times.grace, self.times.grace).await;
        }
        self.apply(Event::Ended);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(launching) = self.launching.take() {
            launching.abort();
        }
        if let Some(instance) = self.instance.take() {
            instance.kill("the host dropped it".to_owned());
        }
    }
}

async fn in_time(launcher: &dyn Launcher, limit: Duration) -> Result<Arc<Instance>, CallError> {
    let late =
        || CallError::new(ErrorKind::Timeout, format!("the plugin was not ready within {} s", limit.as_secs_f64()));
    match tokio::time::timeout(limit, launcher.launch()).await {
        Ok(launched) => launched,
        Err(_) => {
            launcher.abandon().await;
            Err(late())
        }
    }
}

/// Waits for a task, if there is one.
async fn joined<T>(task: &mut Option<JoinHandle<T>>) -> Option<T> {
    match task {
        Some(task) => task.await.ok(),
        None => std::future::pending().await,
    }
}

/// Returns a random number from 0 to 1.
fn random_unit() -> f64 {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}
