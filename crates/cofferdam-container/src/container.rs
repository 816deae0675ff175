//! One container of the engine, from its creation until it is gone.
//!
//! ```text
//! created --attach, start--> running --remove--> gone
//!    '-- dropped, refused, not started: removed in the background --^
//! ```

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bollard::models::ContainerStateStatusEnum as Status;
use bollard::models::{ContainerCreateBody, ContainerInspectResponse, ContainerUpdateBody};
use bollard::query_parameters::{AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, EventsOptionsBuilder};
use cofferdam_contract::{Error, ErrorKind, Limits, Result, Retry};
use cofferdam_linux::cgroup::Foreign;
use tokio::io::AsyncWrite;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::attached::{Reader, Stderr};
use crate::create_request;
use crate::engine::{self, Engine, within};
use crate::error::{self, Failed};
use crate::outside;
use crate::removal::{remove, wait_until_gone};
use crate::state::BackendState;
use crate::stream::next;

/// Time limit for the automatic removal after the exit of the container's first process, before an explicit removal.
const AUTO_REMOVAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval between polls for the cause of a container's end, and the time limit.
const CAUSE_INTERVAL: Duration = Duration::from_millis(20);
const CAUSE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time for the engine to report an OOM kill after the end of a container, which takes seconds on a busy host.
const OOM_EVENT_SECONDS: u64 = 3;
/// The status of a process that was killed with SIGKILL.
const KILLED: i64 = 137;

/// The cause of a container's end, as far as the engine reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The kernel killed processes because the memory limit was reached.
    Memory,
    /// Process 1 exited with this status.
    Ended(i64),
    /// The container was removed, and the cause is unknown.
    Removed,
    /// The engine does not answer.
    Away,
}

/// The streams of an attached container.
pub(crate) struct Attached {
    pub reader: Reader,
    pub writer: Pin<Box<dyn AsyncWrite + Send>>,
    /// The beginning of standard error.
    pub stderr: Stderr,
}

/// A container. Dropping it removes it.
pub(crate) struct Container {
    pub state: Arc<BackendState>,
    pub engine: Engine,
    pub id: String,
    gone: AtomicBool,
    /// True if its processes are frozen.
    paused: AtomicBool,
    /// Its control groups, once they are found.
    groups: OnceLock<Arc<Foreign>>,
    /// True if the kernel has killed a process in it for its memory.
    oom_killed: AtomicBool,
    /// True once this process has killed all its processes.
    killed: AtomicBool,
    /// The lock for removal.
    removing: Mutex<()>,
    runtime: Handle,
}

impl Container {
    /// Creates a container. No process runs in it yet.
    pub(crate) async fn create(
        state: &Arc<BackendState>,
        engine: &Engine,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<Self> {
        let runtime = body.host_config.as_ref().and_then(|config| config.runtime.clone());
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = engine.change(engine.docker.create_container(Some(options), body)).await;
        let created = created.map_err(|failed| refusal(engine, runtime.as_deref(), failed))?;
        Ok(Self {
            state: Arc::clone(state),
            engine: engine.clone(),
            id: created.id,
            gone: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            groups: OnceLock::new(),
            oom_killed: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            removing: Mutex::default(),
            runtime: Handle::current(),
        })
    }

    /// Connects to the standard streams of its future first process.
    pub(crate) async fn attach(&self) -> Result<Attached> {
        let options =
            AttachContainerOptionsBuilder::default().stream(true).stdin(true).stdout(true).stderr(true).build();
        let attached = self.engine.ask(self.engine.docker.attach_container(&self.id, Some(options))).await;
        let attached = attached.map_err(|failed| self.error("create", "attach to the container", failed))?;
        let (reader, stderr) = Reader::new(attached.output);
        Ok(Attached { reader, writer: attached.input, stderr })
    }

    /// Starts its first process.
    pub(crate) async fn start(&self, runtime: Option<&str>) -> Result<()> {
        let started = self.engine.change(self.engine.docker.start_container(&self.id, None)).await;
        started.map_err(|failed| {
            if failed.is_away() {
                self.error("create", "start the container", failed)
            } else {
                refusal(&self.engine, runtime, failed)
            }
        })
    }

    /// Returns its control groups, if the engine is on this host and they are visible.
    pub(crate) async fn groups(&self) -> Option<Arc<Foreign>> {
        if self.groups.get().is_none()
            && let Some(found) = outside::groups(&self.engine, &self.id).await
        {
            let _ = self.groups.set(found);
        }
        self.groups.get().cloned()
    }

    /// Freezes every process in the container.
    pub(crate) async fn pause(&self) -> Result<()> {
        // Set before the call, since the container may be paused even if the call fails.
        self.paused.store(true, Ordering::Release);
        match self.engine.change(self.engine.docker.pause_container(&self.id)).await {
            Ok(()) => Ok(()),
            // Already paused, which Docker reports by 409 and Podman by 500.
            Err(failed) if self.is_paused().await == Some(true) => drop_ok(failed),
            Err(failed) => Err(self.error("pause", "pause the container", failed)),
        }
    }

    /// Resumes its processes.
    pub(crate) async fn resume(&self) -> Result<()> {
        match self.engine.change(self.engine.docker.unpause_container(&self.id)).await {
            Ok(()) => {
                self.paused.store(false, Ordering::Release);
                Ok(())
            }
            Err(failed) if self.is_paused().await == Some(false) => drop_ok(failed),
            Err(failed) => Err(self.error("resume", "resume the container", failed)),
        }
    }

    async fn is_paused(&self) -> Option<bool> {
        self.inspect().await.ok()?.state?.paused
    }

    pub(crate) async fn inspect(&self) -> Result<ContainerInspectResponse, Failed> {
        self.engine.ask(self.engine.docker.inspect_container(&self.id, None)).await
    }

    /// Changes its limits of memory, processes and CPU. Reads those of memory and processes back.
    pub(crate) async fn bound(&self, limits: &Limits) -> Result<()> {
        let memory = limits.memory.map(|memory| i64::try_from(memory.as_bytes()).unwrap_or(i64::MAX));
        // One more for the agent. Called only with control groups inside, so a kernel of its own needs no tasks.
        let pids = limits.pids.map(|pids| i64::from(pids) + 1);
        let change = ContainerUpdateBody {
            memory,
            memory_swap: memory,
            pids_limit: pids,
            cpu_period: limits.cpus.map(|_| create_request::CPU_PERIOD),
            cpu_quota: limits.cpus.map(create_request::quota),
            ..ContainerUpdateBody::default()
        };
        let changed = self.engine.change(self.engine.docker.update_container(&self.id, change)).await;
        changed.map_err(|failed| self.error("claim", "change the container's limits", failed))?;
        let read = self.inspect().await.map_err(|failed| self.error("claim", "read the container's limits", failed))?;
        let config = read.host_config.unwrap_or_default();
        if config.memory == memory.or(Some(0)) && config.pids_limit == pids.or(config.pids_limit) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "claim", "the engine did not change the container's limits")
            .with_retry(Retry::MayHelp))
    }

    /// Limits the memory of TCP and UDP buffers on cgroup v1, which counts them separately. Engines have no setting for
    /// that, so this process writes to the container's control group. Returns the limit read back, or `None` if that is
    /// impossible because the engine is on another host or its control groups belong to another user.
    pub(crate) async fn bound_sockets(&self, limits: &Limits) -> Option<u64> {
        self.groups().await?.bound_sockets(limits.memory?.as_bytes())
    }

    /// Records whether the kernel has killed a process of the container for its memory. The engine removes the control
    /// group soon after the container's end, and misses some of these kills.
    pub(crate) fn record_oom_kill(&self) {
        if self.groups.get().is_some_and(|groups| groups.stats().memory_kills() > 0) {
            self.oom_killed.store(true, Ordering::Release);
        }
    }

    /// Finds the cause of the container's end, after its connection has closed. Takes a bounded time.
    pub(crate) async fn cause(&self) -> Cause {
        let began = Instant::now();
        self.record_oom_kill();
        let oom_killed = self.oom_killed.load(Ordering::Acquire) && !self.killed.load(Ordering::Acquire);
        let mut away = false;
        while began.elapsed() < CAUSE_TIMEOUT {
            match within(CAUSE_TIMEOUT, self.engine.docker.inspect_container(&self.id, None)).await {
                Ok(found) => {
                    let observed = found.state.unwrap_or_default();
                    if observed.oom_killed == Some(true) {
                        return Cause::Memory;
                    }
                    if observed.running != Some(true) {
                        // The engine records the cause a moment after the end.
                        if let Some(cause) = self.recorded_cause(oom_killed).await {
                            return cause;
                        }
                        // A container that is still stopping has no exit status yet.
                        let over = matches!(observed.status, Some(Status::EXITED | Status::DEAD));
                        if let Some(code) = observed.exit_code.filter(|_| over) {
                            return Cause::Ended(code);
                        }
                    }
                    away = false;
                }
                Err(failed) if failed.is_missing() => {
                    return self.recorded_cause(oom_killed).await.unwrap_or(Cause::Removed);
                }
                Err(failed) => away = failed.is_away(),
            }
            sleep(CAUSE_INTERVAL).await;
        }
        if away { Cause::Away } else { Cause::Removed }
    }

    /// Reads the recorded cause from the engine's events. The engine keeps them for a while even for removed
    /// containers. `oom_killed` is true if the kernel has killed a process in the container for its memory.
    async fn recorded_cause(&self, oom_killed: bool) -> Option<Cause> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?.as_secs();
        let filters = std::collections::HashMap::from([("container".to_owned(), vec![self.id.clone()])]);
        let (since, until) = (now.saturating_sub(60).to_string(), (now + OOM_EVENT_SECONDS).to_string());
        let options = EventsOptionsBuilder::default().since(&since).until(&until).filters(&filters).build();
        let mut events = Box::pin(self.engine.docker.events(Some(options)));
        let (mut cause, mut requested) = (None, false);
        let reading = async {
            while let Some(Ok(event)) = next(&mut events).await {
                let attribute = |name: &str| event.actor.as_ref()?.attributes.as_ref()?.get(name).map(String::as_str);
                match event.action.as_deref() {
                    Some("oom") => {
                        cause = Some(Cause::Memory);
                        break;
                    }
                    // A client of the engine sent SIGKILL.
                    Some("kill") => requested |= matches!(attribute("signal"), Some("9" | "KILL" | "SIGKILL")),
                    Some("die" | "died") => {
                        let code = attribute("exitCode").and_then(|code| code.parse().ok());
                        cause = code.map(Cause::Ended).or(cause);
                        if oom_killed && !requested && cause == Some(Cause::Ended(KILLED)) {
                            cause = Some(Cause::Memory);
                        }
                        // A separate component of the engine reports an OOM kill, possibly after the end.
                        if requested || cause.is_some_and(|cause| cause != Cause::Ended(KILLED)) {
                            break;
                        }
                    }
                    Some("destroy" | "remove") if requested || cause.is_none() => break,
                    _ => {}
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(OOM_EVENT_SECONDS + 1), reading).await;
        cause
    }

    /// Removes the container and waits until it is gone. On failure, remembers it. Idempotent.
    pub(crate) async fn remove(&self) -> Result<()> {
        let _turn = self.removing.lock().await;
        if self.gone.load(Ordering::Acquire) {
            return Ok(());
        }
        self.remove_now().await
    }

    async fn remove_now(&self) -> Result<()> {
        // A frozen process exits only after a resume, which the engine does during the removal.
        if !self.paused.load(Ordering::Acquire) {
            self.killed.store(true, Ordering::Release);
            outside::kill_all(&self.engine, &self.id, self.groups().await).await;
        }
        self.noted(remove(&self.engine, &self.id).await)
    }

    /// Waits for the automatic removal after the end of its first process, and else removes the container.
    pub(crate) async fn remove_ended(&self) -> Result<()> {
        let _turn = self.removing.lock().await;
        if self.gone.load(Ordering::Acquire) {
            return Ok(());
        }
        match wait_until_gone(&self.engine, &self.id, AUTO_REMOVAL_TIMEOUT).await {
            Ok(true) => self.noted(Ok(())),
            _ => self.remove_now().await,
        }
    }

    fn noted(&self, outcome: Result<()>) -> Result<()> {
        match &outcome {
            Ok(()) => {
                self.gone.store(true, Ordering::Release);
                self.state.forget_leftover(&self.id);
            }
            Err(_) => self.state.remember_leftover(&self.id),
        }
        outcome
    }

    fn error(&self, operation: &'static str, doing: &str, failed: Failed) -> Error {
        if failed.is_away() {
            self.state.mark_stale();
        }
        if failed.is_missing() {
            return Error::new(ErrorKind::Closed, operation, "the container was removed by another program")
                .with_context("container", self.id.chars().take(12).collect::<String>());
        }
        self.engine.error(operation, doing, failed)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if *self.gone.get_mut() {
            return;
        }
        let (state, engine, id) = (Arc::clone(&self.state), self.engine.clone(), std::mem::take(&mut self.id));
        let (groups, paused) = (self.groups.take(), *self.paused.get_mut());
        self.state.remember_leftover(&id);
        // After the end of the tokio runtime, the closed connection ends a running container, and the next sweep
        // removes one that was not started.
        self.runtime.spawn(async move {
            if !paused {
                outside::kill_all(&engine, &id, groups).await;
            }
            if remove(&engine, &id).await.is_ok() {
                state.forget_leftover(&id);
            }
        });
    }
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Container").field("id", &self.id).finish_non_exhaustive()
    }
}

fn drop_ok(failed: Failed) -> Result<()> {
    drop(failed);
    Ok(())
}

/// Creates the error for a failed creation or start of a container.
fn refusal(engine: &Engine, runtime: Option<&str>, failed: Failed) -> Error {
    let message = failed.message();
    let lower = message.to_ascii_lowercase();
    if let Some(name) = runtime
        && (lower.contains("unknown runtime")
            || lower.contains("unknown or invalid runtime")
            || lower.contains("oci runtime \"")
            || lower.contains("invalid runtime name"))
    {
        return engine::unknown_runtime(name, &engine.facts);
    }
    if lower.contains("no such image") || lower.contains("image not known") {
        return error::no_image("create", "(by its id)", false).with_retry(Retry::MayHelp);
    }
    if lower.contains("bind source path does not exist") || lower.contains("statfs") && lower.contains("no such file") {
        return Error::new(ErrorKind::NotFound, "create", "the engine cannot find a directory of a mount on its host")
            .with_context("answer", message)
            .with_remedy(
                "the directory is gone, or the engine runs on another machine or in another mount namespace: use a \
                          private workspace there",
            );
    }
    let doing = "create the container";
    engine.error("create", doing, failed)
}
