//! One live sandbox, as its owner holds it.
//!
//! ```text
//! making --Ready, posture holds--> open --close | drop | init gone--> closed --launcher done--> nothing left
//! ```

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cofferdam_contract::{
    ByteSize, Command, Completed, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, Limits, Posture,
    Result, Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec, Workspace, collect,
};
use cofferdam_linux::cgroup::{Stats, Version};
use cofferdam_linux::process;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch as flag};

use crate::client::{self, Kind, Launcher};
use crate::posture::{GroupBounds, Measured, posture};
use crate::protocol::{self, Adapt, Create, Event, Evidence, HostFacts, NotStarted, Order, Walls, WorkspacePlan};
use crate::sys::watch::watch;
use crate::{error, exec, files};

/// Time an init has to come up, on a machine under heavy load.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time the kernel and the launcher have to remove a sandbox.
const GONE_LIMIT: Duration = Duration::from_secs(60);
/// The number of a sandbox's first exec.
const FIRST_EXEC: u64 = 1;
/// How long to wait before a full socket is tried again. It holds many orders, and an init takes them at once.
const FULL: Duration = Duration::from_millis(2);
/// Time an init has to take an order.
const ORDER_LIMIT: Duration = Duration::from_secs(10);

/// A process sandbox. Dropping it ends everything in it.
pub struct ProcessSandbox {
    id: SandboxId,
    spec: Spec,
    posture: Posture,
    core: Arc<Core>,
}

/// What a sandbox is made from, besides what its launcher needs.
pub struct Made {
    /// What was asked for.
    pub spec: Spec,
    /// PATH inside.
    pub path: String,
}

/// How an exec's program ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// The raw wait status.
    pub status: i32,
    /// The largest resident size of a process, in bytes.
    pub peak_bytes: u64,
    /// CPU microseconds of what was reaped.
    pub cpu_micros: u64,
}

/// An exec that could not be started.
pub type StartFailure = (NotStarted, i32);
/// An exec that runs, with its terminal's controlling end if it has one.
pub type StartOutcome = std::result::Result<Option<OwnedFd>, StartFailure>;

/// A new exec, and what will tell of its start and its end.
pub struct Enrolled {
    pub exec: u64,
    pub on_start: oneshot::Receiver<StartOutcome>,
    pub on_end: oneshot::Receiver<Ended>,
}

/// What waits for an init's word on one exec.
struct Slot {
    started: Option<oneshot::Sender<StartOutcome>>,
    ended: Option<oneshot::Sender<Ended>>,
}

/// What sandbox, execs and the task that listens to the init share.
pub struct Core {
    control: AsyncFd<OwnedFd>,
    /// Whether nothing is left of it, as the task that listens to the init finds out.
    gone: flag::Receiver<bool>,
    init: OwnedFd,
    workspace: OwnedFd,
    code: OwnedFd,
    /// User and group that files made for the guest must belong to; `None` leaves them as they come.
    pub owner: Option<(u32, u32)>,
    pub stats: Option<Stats>,
    /// What the control group had counted before this sandbox: kills for memory, forks refused, bytes in use.
    pub group_base: (u64, u64, u64),
    /// Those of the spec that it was accepted for; nothing starts before.
    limits: OnceLock<Limits>,
    pub path: String,
    slots: Mutex<HashMap<u64, Slot>>,
    next_exec: AtomicU64,
    closed: AtomicBool,
    /// Whether its owner ended it, rather than that it ended by itself.
    closed_by_owner: AtomicBool,
    over_memory: AtomicBool,
    over_cpu: AtomicBool,
    // Last: the launcher may only be waited for once nothing above needs it.
    launcher: Arc<Launcher>,
}

impl ProcessSandbox {
    /// Has a sandbox made and measures it. Whatever falls short of the spec ends it again.
    pub async fn make(launcher: Arc<Launcher>, mut create: Create, made: Made) -> Result<Self> {
        create.probe = launcher.known_walls(kind(&create)).is_none();
        let control = launcher.create(&create)?;
        Ok(Self::receive(launcher, create, made, control).await?.0)
    }

    /// Makes a sandbox, runs one command in it, closes it. The command is ordered together with the sandbox where an
    /// accepted sandbox with the same request is known: it starts at once if the new one measures the same, and not
    /// at all else.
    pub async fn run(
        launcher: Arc<Launcher>,
        mut create: Create,
        made: Made,
        request: ExecRequest,
    ) -> Result<(Completed, Posture)> {
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        let expected = launcher.expected(&create).filter(|_| !matches!(request.command(), Command::Script(_)));
        let Some(expected) = expected else {
            let sandbox = Self::make(launcher, create, made).await?;
            let result = sandbox.exec(request).await;
            sandbox.close().await?;
            return Ok((result?, sandbox.posture.clone()));
        };
        let begun = Instant::now();
        create.expected = Some(Box::new(Evidence::clone(&expected)));
        let mut prepared = exec::prepare(&made.path, None, FIRST_EXEC, &request)?;
        prepared.start.if_expected = true;
        prepared.start.last = true;
        let control = launcher.create(&create)?;
        let fds: Vec<_> = prepared.theirs.iter().map(AsFd::as_fd).collect();
        protocol::send(control.as_fd(), &Order::Start(prepared.start), &fds, ORDER_LIMIT)
            .map_err(|error| error::os("start", "cannot order the command", error))?;
        drop(fds);
        drop(prepared.theirs);
        let (sandbox, enrolled) = Self::receive(launcher, create, made, control).await?;
        let core = &sandbox.core;
        let enrolled = enrolled.unwrap_or_else(|| core.enroll());
        debug_assert_eq!(enrolled.exec, FIRST_EXEC);
        let guard = exec::Unstarted { core, exec: Some(FIRST_EXEC) };
        let running = exec::Running { ours: prepared.ours, program: prepared.program, directory: prepared.directory };
        let result = match exec::attach(core, &request, begun, enrolled, running, guard).await {
            Ok(handle) => collect(handle).await,
            // Not as expected, and yet accepted: then it is started the slow way.
            Err(error) if error.kind() == ErrorKind::Internal => sandbox.exec(request).await,
            Err(error) => Err(error),
        };
        sandbox.close().await?;
        Ok((result?, sandbox.posture.clone()))
    }

    /// Waits for a sandbox that was asked for, and accepts or ends it.
    ///
    /// Gives the first exec, too, if it was ordered along with it and is known to be started or not.
    async fn receive(
        launcher: Arc<Launcher>,
        create: Create,
        made: Made,
        control: OwnedFd,
    ) -> Result<(Self, Option<Enrolled>)> {
        let (raw, enrolled) = Raw::receive(launcher, create, &made.spec, made.path, control).await?;
        Ok((raw.accept(made.spec).await?, enrolled))
    }
}

/// A sandbox that was measured, but whose measurements are not yet held against a spec. Dropping it ends it.
#[derive(Debug)]
pub struct Raw {
    core: Arc<Core>,
    accepted: bool,
    create: Create,
    evidence: Evidence,
    walls: Arc<Walls>,
}

impl Raw {
    /// Has a sandbox made that no spec is held against yet.
    pub async fn make(launcher: Arc<Launcher>, mut create: Create, made: Made) -> Result<Self> {
        create.probe = launcher.known_walls(kind(&create)).is_none();
        let control = launcher.create(&create)?;
        Ok(Self::receive(launcher, create, &made.spec, made.path, control).await?.0)
    }

    async fn receive(
        launcher: Arc<Launcher>,
        create: Create,
        spec: &Spec,
        path: String,
        control: OwnedFd,
    ) -> Result<(Self, Option<Enrolled>)> {
        let control = watch(control, Interest::READABLE)
            .map_err(|error| error::os("create", "cannot wait for the sandbox", error))?;
        let event = tokio::time::timeout(READY_LIMIT, client::receive::<Event>(&control)).await;
        let (evidence, first, mut fds) = match event {
            Ok(Ok(Some((Event::Ready { evidence, first }, fds)))) if fds.len() >= 3 => (evidence, first, fds),
            Ok(Ok(Some((Event::Failed(failure), _)))) => return Err(error::create(&failure)),
            Ok(Ok(_)) | Ok(Err(_)) => {
                return Err(Error::new(ErrorKind::Unavailable, "create", "the sandbox ended before it was ready")
                    .with_remedy("is the memory limit large enough? `cofferdam doctor` says what this host lacks"));
            }
            Err(_) => {
                return Err(Error::new(ErrorKind::Unavailable, "create", "the sandbox was not ready within 60 s"));
            }
        };
        let groups = fds.split_off(3);
        let [init, workspace, code] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| Error::closed("create"))?;
        let facts = launcher.facts();
        let stats = version(facts).map(|version| Stats::new(version, groups, &facts.cgroup_layout));
        let mut evidence = *evidence;
        let known = launcher.known_walls(kind(&create));
        let walls = match (known, evidence.walls.take()) {
            (Some(walls), _) => walls,
            (None, walls) => Arc::new(walls.unwrap_or_default()),
        };
        let (workspace, owner) = room(spec, workspace, facts.privileged.then_some(evidence.outside_uid))?;
        let (gone_sender, gone) = flag::channel(false);
        let core = Arc::new(Core {
            control,
            gone,
            init,
            workspace,
            code,
            owner,
            stats,
            group_base: evidence.group_base,
            limits: OnceLock::new(),
            path,
            slots: Mutex::new(HashMap::new()),
            next_exec: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            closed_by_owner: AtomicBool::new(false),
            over_memory: AtomicBool::new(false),
            over_cpu: AtomicBool::new(false),
            launcher,
        });
        let enrolled = first.map(|outcome| core.enroll_started(outcome));
        tokio::spawn(listen(Arc::clone(&core), gone_sender));
        Ok((Self { core, accepted: false, create, evidence, walls }, enrolled))
    }

    /// Whether it is still there.
    pub fn is_alive(&self) -> bool {
        !self.core.is_closed()
    }

    /// Has it bounded as `spec` asks, where that is not how it was made. Nothing may run in it yet.
    pub async fn adapt(&mut self, spec: &Spec) -> Result<()> {
        let limits = spec.limits();
        let create = &mut self.create;
        let asked = Adapt {
            serial: create.serial,
            disk: limits.disk.map(ByteSize::as_bytes),
            memory: limits.memory.map(ByteSize::as_bytes),
            tasks: limits.processes.map(u64::from),
        };
        if (asked.disk, asked.memory, asked.tasks) == (create.disk, create.memory, create.tasks) {
            return Ok(());
        }
        (create.disk, create.memory, create.tasks) = (asked.disk, asked.memory, asked.tasks);
        self.core.launcher.adapt(asked).await?;
        // The same file system as inside, seen through its directory.
        let disk = rustix::fs::fstatvfs(&self.core.code)
            .map_err(|error| error::os("claim", "cannot measure the sandbox's tmpfs", error.into()))?;
        (self.evidence.disk_bytes, self.evidence.disk_files) = (disk.f_blocks * disk.f_frsize, disk.f_files);
        Ok(())
    }

    /// What the measurements amount to for a spec.
    pub fn posture(&self, spec: &Spec) -> Posture {
        let Self { core, evidence, walls, .. } = self;
        let facts = core.launcher.facts();
        let bounds = version(facts)
            .zip(core.stats.as_ref())
            .map(|(version, stats)| GroupBounds::read(stats, version.as_str(), spec.limits()));
        posture(&Measured { spec, facts, evidence, walls, group: bounds.as_ref() })
    }

    /// Holds it against a spec: the sandbox, or an error and nothing left.
    pub async fn accept(mut self, spec: Spec) -> Result<ProcessSandbox> {
        let posture = self.posture(&spec);
        if let Err(error) = posture.require(spec.allow_weaker()) {
            self.close().await?;
            return Err(error);
        }
        self.accepted = true;
        let (core, create) = (Arc::clone(&self.core), &self.create);
        core.launcher.remember_walls(kind(create), &self.walls);
        core.launcher.accept(create, &self.evidence);
        // Set once: what was accepted cannot be accepted again.
        let _ = core.limits.set(spec.limits().clone());
        let id = SandboxId::new(format!("process-{}-{}", core.launcher.pid(), create.serial));
        Ok(ProcessSandbox { id, posture, core, spec })
    }

    /// Ends it; nothing is left when this returns.
    pub async fn close(&self) -> Result<()> {
        self.core.close().await
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if !self.accepted {
            self.core.end();
        }
    }
}

fn version(facts: &HostFacts) -> Option<Version> {
    match facts.cgroup_version {
        1 => Some(Version::V1),
        2 => Some(Version::V2),
        _ => None,
    }
}

fn kind(create: &Create) -> Kind {
    (matches!(create.workspace, WorkspacePlan::HostDir { .. }), create.read_only)
}

/// The directory that the file API works in, and who owns what it makes.
fn room(spec: &Spec, own: OwnedFd, outside_uid: Option<u32>) -> Result<(OwnedFd, Option<(u32, u32)>)> {
    match spec.workspace() {
        Workspace::Private { .. } => Ok((own, outside_uid.map(|uid| (uid, uid)))),
        Workspace::HostDir { path, .. } => {
            use std::os::unix::fs::MetadataExt;
            let io = |error| error::os("create", "cannot open the workspace directory", error);
            let dir = std::fs::File::open(path).map_err(io)?;
            let meta = dir.metadata().map_err(io)?;
            Ok((OwnedFd::from(dir), outside_uid.map(|_| (meta.uid(), meta.gid()))))
        }
    }
}

/// Passes on what the init says, until nothing is left of the sandbox. An init is not trusted: it can complete each exec
/// once, and nothing else.
async fn listen(core: Arc<Core>, gone: flag::Sender<bool>) {
    loop {
        match client::receive::<Event>(&core.control).await {
            Ok(Some((event, fds))) => {
                if !core.hear(event, fds) {
                    core.shut();
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => core.shut(),
            // The launcher holds the other end until everything is removed, also where the init left it unread.
            Ok(None) | Err(_) => break,
        }
    }
    core.shut();
    core.slots().clear();
    gone.send_replace(true);
}

impl Core {
    fn slots(&self) -> MutexGuard<'_, HashMap<u64, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new exec, and what will tell of its start and its end.
    pub fn enroll(&self) -> Enrolled {
        let exec = self.next_exec.fetch_add(1, Ordering::Relaxed) + 1;
        let (started, on_start) = oneshot::channel();
        let (ended, on_end) = oneshot::channel();
        self.slots().insert(exec, Slot { started: Some(started), ended: Some(ended) });
        Enrolled { exec, on_start, on_end }
    }

    /// The number for an exec that its sandbox started, or could not start, by the time it was ready.
    fn enroll_started(&self, outcome: std::result::Result<(), StartFailure>) -> Enrolled {
        let enrolled = self.enroll();
        let mut slots = self.slots();
        let started = slots.get_mut(&enrolled.exec).and_then(|slot| slot.started.take());
        if outcome.is_err() {
            slots.remove(&enrolled.exec);
        }
        if let Some(sender) = started {
            let _ = sender.send(outcome.map(|()| None));
        }
        drop(slots);
        enrolled
    }

    /// Takes in what the init said; `false` when no init of ours says such a thing now.
    fn hear(&self, event: Event, mut fds: Vec<OwnedFd>) -> bool {
        match event {
            Event::Started { exec } => {
                if let Some(sender) = self.slots().get_mut(&exec).and_then(|slot| slot.started.take()) {
                    let _ = sender.send(Ok(fds.pop()));
                }
            }
            Event::NotStarted { exec, reason, errno } => {
                if let Some(sender) = self.slots().remove(&exec).and_then(|slot| slot.started) {
                    let _ = sender.send(Err((reason, errno)));
                }
            }
            Event::Ended { exec, status, peak_bytes, cpu_micros } => {
                if let Some(sender) = self.slots().remove(&exec).and_then(|slot| slot.ended) {
                    let _ = sender.send(Ended { status, peak_bytes, cpu_micros });
                }
            }
            Event::LimitPassed { memory: true } => self.over_memory.store(true, Ordering::Release),
            Event::LimitPassed { memory: false } => self.over_cpu.store(true, Ordering::Release),
            Event::Ready { .. } | Event::Failed(_) => return false,
        }
        true
    }

    /// Sends an order. Small ones practically never wait.
    pub async fn order(&self, order: &Order, fds: &[std::os::fd::BorrowedFd<'_>]) -> std::io::Result<()> {
        let body = protocol::encode(order)?;
        let sending = async {
            loop {
                match protocol::send_encoded(self.control.get_ref().as_fd(), &body, fds) {
                    // Room is not watched for: that would wake this process for each order that the init takes.
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => tokio::time::sleep(FULL).await,
                    other => return other,
                }
            }
        };
        tokio::time::timeout(ORDER_LIMIT, sending)
            .await
            .unwrap_or(Err(std::io::Error::from(std::io::ErrorKind::TimedOut)))
    }

    /// Orders an exec's end without waiting; `false` if that could not be sent.
    pub fn kill_now(&self, exec: u64) -> bool {
        let order = protocol::encode(&Order::Signal { exec, kill: true });
        order.is_ok_and(|body| protocol::send_encoded(self.control.get_ref().as_fd(), &body, &[]).is_ok())
    }

    /// Whether the init's own watch found a limit passed: memory, CPU time.
    pub fn passed(&self) -> (bool, bool) {
        (self.over_memory.load(Ordering::Acquire), self.over_cpu.load(Ordering::Acquire))
    }

    /// The most memory that the sandbox used at once, in bytes, where a control group counts it.
    pub fn peak_memory(&self) -> Option<u64> {
        Some(self.stats.as_ref()?.peak_memory()?.saturating_sub(self.group_base.2))
    }

    /// Whether the sandbox is closed or closing.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether its owner closed or dropped it.
    pub fn is_closed_by_owner(&self) -> bool {
        self.closed_by_owner.load(Ordering::Acquire)
    }

    /// Kills the init, and with it everything in the sandbox.
    pub fn kill_all(&self) {
        let _ = process::kill_by_pidfd(self.init.as_fd());
    }

    /// Starts the end, without waiting for it.
    pub fn shut(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.kill_all();
            // What comes from there is still listened to: that it is closed tells that nothing is left.
            let _ = rustix::net::shutdown(self.control.get_ref(), rustix::net::Shutdown::Write);
        }
    }

    /// The owner's wish to end it.
    pub fn end(&self) {
        if !self.is_closed() {
            self.closed_by_owner.store(true, Ordering::Release);
        }
        self.shut();
    }

    async fn close(&self) -> Result<()> {
        self.end();
        let mut gone = self.gone.clone();
        match tokio::time::timeout(GONE_LIMIT, gone.wait_for(|gone| *gone)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Error::new(
                ErrorKind::Unavailable,
                "close",
                "the runtime in which the sandbox was made has ended; the sandbox is being removed without it",
            )),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "close", "the sandbox was not removed within 60 s")),
        }
    }

    /// The limits of the spec that it was accepted for.
    pub fn limits(&self) -> &Limits {
        self.limits.get_or_init(Limits::default)
    }

    /// Directory in which each exec's script gets a directory of its own.
    pub fn code(&self) -> &OwnedFd {
        &self.code
    }
}

impl Drop for ProcessSandbox {
    fn drop(&mut self) {
        self.core.end();
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ProcessSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessSandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ProcessSandbox {
    fn open(&self, operation: &'static str) -> Result<()> {
        if self.core.is_closed() { Err(Error::closed(operation)) } else { Ok(()) }
    }

    fn room(&self, operation: &'static str) -> Result<files::Room> {
        self.open(operation)?;
        let dir = self.core.workspace.try_clone();
        let dir = dir.map_err(|error| error::os(operation, "cannot open the workspace", error))?;
        Ok(files::Room { dir, owner: self.core.owner })
    }
}

#[async_trait]
impl Sandbox for ProcessSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        self.open("start")?;
        exec::start(&self.core, request).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        files::read(self.room("read_file")?, path).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        files::write(self.room("write_file")?, path, contents).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        files::list(self.room("list_dir")?, path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        files::remove(self.room("remove")?, path).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        Err(Error::unsupported("snapshot", "the process backend cannot freeze running programs")
            .with_remedy("use level vm for snapshots"))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        Err(Error::unsupported("fork", "the process backend cannot copy running programs")
            .with_remedy("use level vm for forks"))
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.open("usage")?;
        let stats = self.core.stats.as_ref();
        let disk = rustix::fs::fstatvfs(&self.core.code).ok();
        Ok(SandboxUsage {
            cpu_seconds: stats.and_then(Stats::cpu_micros).map(|micros| micros as f64 / 1e6),
            memory_bytes: stats.and_then(Stats::memory).map(|bytes| bytes.saturating_sub(self.core.group_base.2)),
            peak_memory_bytes: self.core.peak_memory(),
            // The init is not the guest's.
            processes: stats.and_then(Stats::tasks).map(|tasks| (tasks as u32).saturating_sub(1)),
            disk_bytes: disk.map(|stat| (stat.f_blocks - stat.f_bfree) * stat.f_frsize),
        })
    }

    async fn close(&self) -> Result<()> {
        self.core.close().await
    }
}
