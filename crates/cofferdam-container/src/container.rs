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
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, EventsOptionsBuilder, RemoveContainerOptionsBuilder,
};
use cofferdam_contract::{Error, ErrorKind, Limits, Result, Retry};
use cofferdam_linux::cgroup::Foreign;
use tokio::io::AsyncWrite;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::attached::{Reader, Words};
use crate::create;
use crate::engine::{self, Engine, within};
use crate::error::{self, Failed};
use crate::host::Host;
use crate::outside;
use crate::stream::next;

/// Time an engine has to make a container vanish that it said to remove, or that is being removed by itself.
const GONE_LIMIT: Duration = Duration::from_secs(60);
/// Time it has to do so by itself, because the container's first process ended, before it is told.
const ALONE_LIMIT: Duration = Duration::from_millis(500);
/// How long to wait between looks at a container that vanishes.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_millis(20);
/// Time to find out why a container ended.
const CAUSE_LIMIT: Duration = Duration::from_millis(1500);
/// The status of a process that was killed with SIGKILL.
const KILLED: i64 = 137;

/// Why a container ended, as far as the engine tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The kernel killed in it because its memory was used up.
    Memory,
    /// Process 1 ended with this status.
    Ended(i64),
    /// It was removed, and nobody knows more.
    Removed,
    /// The engine does not answer.
    Away,
}

/// The streams of an attached container.
pub(crate) struct Attached {
    pub reader: Reader,
    pub writer: Pin<Box<dyn AsyncWrite + Send>>,
    /// What comes on standard error.
    pub words: Words,
}

/// One container. Dropping it removes it.
pub(crate) struct Container {
    pub host: Arc<Host>,
    pub engine: Engine,
    pub id: String,
    gone: AtomicBool,
    /// Whether its processes are stopped where they stand.
    paused: AtomicBool,
    /// Its control groups, once they were found.
    groups: OnceLock<Arc<Foreign>>,
    /// One removal at a time.
    removing: Mutex<()>,
    runtime: Handle,
}

impl Container {
    /// Has the engine create one. Nothing runs in it yet.
    pub(crate) async fn create(
        host: &Arc<Host>,
        engine: &Engine,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<Self> {
        let runtime = body.host_config.as_ref().and_then(|config| config.runtime.clone());
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let made = engine.change(engine.docker.create_container(Some(options), body)).await;
        let made = made.map_err(|failed| refusal(engine, runtime.as_deref(), failed))?;
        Ok(Self {
            host: Arc::clone(host),
            engine: engine.clone(),
            id: made.id,
            gone: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            groups: OnceLock::new(),
            removing: Mutex::default(),
            runtime: Handle::current(),
        })
    }

    /// Connects to the standard streams that its first process will have.
    pub(crate) async fn attach(&self) -> Result<Attached> {
        let options =
            AttachContainerOptionsBuilder::default().stream(true).stdin(true).stdout(true).stderr(true).build();
        let attached = self.engine.ask(self.engine.docker.attach_container(&self.id, Some(options))).await;
        let attached = attached.map_err(|failed| self.error("create", "attach to the container", failed))?;
        let (reader, words) = Reader::new(attached.output);
        Ok(Attached { reader, writer: attached.input, words })
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

    /// Its control groups, where they are this host's and can be seen.
    pub(crate) async fn groups(&self) -> Option<Arc<Foreign>> {
        if self.groups.get().is_none()
            && let Some(found) = outside::groups(&self.engine, &self.id).await
        {
            let _ = self.groups.set(found);
        }
        self.groups.get().cloned()
    }

    /// Stops every process in it where it stands.
    pub(crate) async fn pause(&self) -> Result<()> {
        // Set even where it fails: it may have been stopped all the same.
        self.paused.store(true, Ordering::Release);
        match self.engine.change(self.engine.docker.pause_container(&self.id)).await {
            Ok(()) => Ok(()),
            // Paused already, which Docker says by 409 and Podman by 500.
            Err(failed) if self.is_paused().await == Some(true) => drop_ok(failed),
            Err(failed) => Err(self.error("pause", "pause the container", failed)),
        }
    }

    /// Lets its processes go on.
    pub(crate) async fn resume(&self) -> Result<()> {
        match self.engine.change(self.engine.docker.unpause_container(&self.id)).await {
            Ok(()) => {
                self.paused.store(false, Ordering::Release);
                Ok(())
            }
            Err(failed) if self.is_paused().await == Some(false) => drop_ok(failed),
            Err(failed) => Err(self.error("resume", "let the container go on", failed)),
        }
    }

    async fn is_paused(&self) -> Option<bool> {
        self.inspect().await.ok()?.state?.paused
    }

    pub(crate) async fn inspect(&self) -> Result<ContainerInspectResponse, Failed> {
        self.engine.ask(self.engine.docker.inspect_container(&self.id, None)).await
    }

    /// Changes its bounds on memory and processes, and reads them back.
    pub(crate) async fn bound(&self, limits: &Limits) -> Result<()> {
        let memory = limits.memory.map(|memory| i64::try_from(memory.as_bytes()).unwrap_or(i64::MAX));
        // Only where control groups are seen inside: no kernel of its own has tasks there.
        let pids = limits.pids.map(|pids| i64::from(pids) + 1);
        let change = ContainerUpdateBody {
            memory,
            memory_swap: memory,
            pids_limit: pids,
            cpu_period: limits.cpus.map(|_| create::CPU_PERIOD),
            cpu_quota: limits.cpus.map(create::quota),
            ..ContainerUpdateBody::default()
        };
        let changed = self.engine.change(self.engine.docker.update_container(&self.id, change)).await;
        changed.map_err(|failed| self.error("claim", "change the container's limits", failed))?;
        let read =
            self.inspect().await.map_err(|failed| self.error("claim", "read the container's limits back", failed))?;
        let config = read.host_config.unwrap_or_default();
        if config.memory == memory.or(Some(0)) && config.pids_limit == pids.or(config.pids_limit) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "claim", "the engine did not change the container's limits")
            .with_retry(Retry::MayHelp))
    }

    /// Bounds what TCP and UDP buffers hold, where the engine's control groups are of version 1 and count them apart: engines
    /// have no setting for that, so that this process writes into the container's group. Returns the bound as it reads back;
    /// `None` where that cannot be done: the engine is elsewhere, or its groups are another user's.
    pub(crate) async fn bound_sockets(&self, limits: &Limits) -> Option<u64> {
        self.groups().await?.bound_sockets(limits.memory?.as_bytes())
    }

    /// Why it ended. Asked when its connection has closed; bounded.
    pub(crate) async fn cause(&self) -> Cause {
        let began = Instant::now();
        let mut away = false;
        while began.elapsed() < CAUSE_LIMIT {
            match within(CAUSE_LIMIT, self.engine.docker.inspect_container(&self.id, None)).await {
                Ok(found) => {
                    let state = found.state.unwrap_or_default();
                    if state.oom_killed == Some(true) {
                        return Cause::Memory;
                    }
                    if state.running != Some(true) {
                        // What killed it is noted a moment later than that it ended.
                        if let Some(cause) = self.told().await {
                            return cause;
                        }
                        // One that is being stopped has no status of its own yet.
                        let over = matches!(state.status, Some(Status::EXITED | Status::DEAD));
                        if let Some(code) = state.exit_code.filter(|_| over) {
                            return Cause::Ended(code);
                        }
                    }
                    away = false;
                }
                Err(failed) if failed.is_missing() => return self.told().await.unwrap_or(Cause::Removed),
                Err(failed) => away = failed.is_away(),
            }
            sleep(LOOK).await;
        }
        if away { Cause::Away } else { Cause::Removed }
    }

    /// What the engine noted of its end: that is kept for a while, also of what was removed.
    async fn told(&self) -> Option<Cause> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?.as_secs();
        let filters = std::collections::HashMap::from([("container".to_owned(), vec![self.id.clone()])]);
        let (since, until) = (now.saturating_sub(60).to_string(), (now + 1).to_string());
        let options = EventsOptionsBuilder::default().since(&since).until(&until).filters(&filters).build();
        let mut events = Box::pin(self.engine.docker.events(Some(options)));
        let mut cause = None;
        let reading = async {
            while let Some(Ok(event)) = next(&mut events).await {
                match event.action.as_deref() {
                    Some("oom") => {
                        cause = Some(Cause::Memory);
                        break;
                    }
                    Some("die" | "died") => {
                        let attributes = event.actor.and_then(|actor| actor.attributes).unwrap_or_default();
                        let code = attributes.get("exitCode").and_then(|code| code.parse().ok());
                        cause = code.map(Cause::Ended).or(cause);
                    }
                    // That memory was the reason is told by somebody else than who tells of the end, perhaps later.
                    Some("destroy" | "remove") if cause != Some(Cause::Ended(KILLED)) => break,
                    _ => {}
                }
            }
        };
        let _ = tokio::time::timeout(CAUSE_LIMIT, reading).await;
        cause
    }

    /// Removes it; returns when it is gone, or else remembers it. Idempotent.
    pub(crate) async fn remove(&self) -> Result<()> {
        let _turn = self.removing.lock().await;
        if self.gone.load(Ordering::Acquire) {
            return Ok(());
        }
        self.remove_now().await
    }

    async fn remove_now(&self) -> Result<()> {
        // What is stopped would not end before the engine lets it resume, which it does when it removes it.
        if !self.paused.load(Ordering::Acquire) {
            outside::overpower(&self.engine, &self.id, self.groups().await).await;
        }
        self.noted(remove(&self.engine, &self.id).await)
    }

    /// The same where its first process has ended, upon which the engine removes it.
    pub(crate) async fn remove_ended(&self) -> Result<()> {
        let _turn = self.removing.lock().await;
        if self.gone.load(Ordering::Acquire) {
            return Ok(());
        }
        match see_gone(&self.engine, &self.id, ALONE_LIMIT).await {
            Ok(true) => self.noted(Ok(())),
            _ => self.remove_now().await,
        }
    }

    fn noted(&self, outcome: Result<()>) -> Result<()> {
        match &outcome {
            Ok(()) => {
                self.gone.store(true, Ordering::Release);
                self.host.forget_leftover(&self.id);
            }
            Err(_) => self.host.remember_leftover(&self.id),
        }
        outcome
    }

    fn error(&self, operation: &'static str, doing: &str, failed: Failed) -> Error {
        if failed.is_away() {
            self.host.doubt();
        }
        if failed.is_missing() {
            return Error::new(ErrorKind::Closed, operation, "the container was removed by somebody else")
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
        let (host, engine, id) = (Arc::clone(&self.host), self.engine.clone(), std::mem::take(&mut self.id));
        let (groups, paused) = (self.groups.take(), *self.paused.get_mut());
        self.host.remember_leftover(&id);
        // Where the runtime has ended, the closed connection ends what runs, and the next sweep finds what does not.
        self.runtime.spawn(async move {
            if !paused {
                outside::overpower(&engine, &id, groups).await;
            }
            if remove(&engine, &id).await.is_ok() {
                host.forget_leftover(&id);
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

/// Removes a container and waits until the engine knows it no more.
pub(crate) async fn remove(engine: &Engine, id: &str) -> Result<()> {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    match engine.change(engine.docker.remove_container(id, Some(options))).await {
        // Being removed already: by itself, because it ended.
        Ok(()) => {}
        Err(failed) if failed.is_missing() => return Ok(()),
        Err(failed) if failed.status() == Some(409) || failed.status() == Some(500) => {}
        Err(failed) => return Err(engine.error("close", "remove the container", failed)),
    }
    if see_gone(engine, id, GONE_LIMIT).await? {
        return Ok(());
    }
    let what = format!("the engine did not remove the container within {} s", GONE_LIMIT.as_secs());
    Err(Error::new(ErrorKind::Unavailable, "close", what)
        .with_context("container", id.to_owned())
        .with_remedy(format!("remove it by hand: `docker rm -f {id}`")))
}

/// Waits until the engine knows a container no more; false if it still does after this time.
async fn see_gone(engine: &Engine, id: &str, limit: Duration) -> Result<bool> {
    let until = Instant::now() + limit;
    let mut pause = FIRST_LOOK;
    loop {
        match engine.ask(engine.docker.inspect_container(id, None)).await {
            Err(failed) if failed.is_missing() => return Ok(true),
            Err(failed) if failed.is_away() => {
                return Err(engine.error("close", "see that the container is gone", failed));
            }
            _ if Instant::now() >= until => return Ok(false),
            _ => sleep(pause).await,
        }
        pause = LOOK.min(pause * 2);
    }
}

/// The engine does not make or start a container.
fn refusal(engine: &Engine, runtime: Option<&str>, failed: Failed) -> Error {
    let words = failed.message();
    let lower = words.to_ascii_lowercase();
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
        return Error::new(
            ErrorKind::NotFound,
            "create",
            "the engine does not find the workspace directory on its host",
        )
        .with_remedy(
            "the directory is gone, or the engine runs on another machine or in another mount namespace: use a \
                          private workspace there",
        );
    }
    let doing = "make the container";
    engine.error("create", doing, failed)
}
