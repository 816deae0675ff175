//! Creation of sandboxes: a container whose agent has greeted and measured the isolation.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use cofferdam_changes::Marks;
use cofferdam_changes::sandbox::OverlayLayer;
use cofferdam_contract::{
    Error, ErrorKind, Limits, Posture, Result, RootFs, SandboxId, Spec, WORKSPACE_PATH, Workspace,
};
use cofferdam_guest::network::{Network, Opening};
use cofferdam_guest::{AGENT, Evidence, Guest, Reason, Settings, Termination, usual_rules};
use cofferdam_linux::named::Directory;

use crate::container::{Attached, Cause, Container};
use crate::create_request::{self, CreateRequest, ImageFacts};
use crate::engine::Engine;
use crate::freeze::Freezer;
use crate::image;
use crate::mounts::{self, PlannedMount};
use crate::outside;
use crate::overlay::{self, Layers, Overlay};
use crate::plan::Plan;
use crate::posture::{EngineLimits, Measured, NAMESPACES, posture};
use crate::reference::Reference;
use crate::sizes::{self, DirectorySizes};
use crate::state::{BackendState, ConnectedEngine};
use crate::user::{self, MountedDirectory};
use crate::volume::{AGENT_DIRECTORY, AGENT_FILE, AgentVolume};

/// Time limit for an agent to start and to install its part of the isolation, on a machine under heavy load.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the agent's exit before its container is killed.
const AGENT_EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// The highest number of containers created because the agent was damaged. Another process may be filling the volume.
const MAX_ATTEMPTS: u32 = 6;
/// The longest wait after the first attempt. Each further wait may be longer by it.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(200);

/// A pending sandbox: measured, but not yet verified against a spec. Dropping it ends it.
pub(crate) struct PendingSandbox {
    pub id: SandboxId,
    pub container: Arc<Container>,
    pub guest: Guest,
    pub evidence: Evidence,
    /// `None` if the policy allows no network.
    pub network: Option<Network>,
    /// The layers of a copy-on-write workspace.
    pub layer: Option<Arc<OverlayLayer>>,
    engine_limits: EngineLimits,
    quotas: bool,
    user: (u32, u32),
    own_namespaces: Vec<(&'static str, u64)>,
}

/// The source of a fork. Its programs are frozen only while its layer is copied.
pub(crate) struct Origin {
    pub layer: Arc<OverlayLayer>,
    pub source: Freezer,
}

impl PendingSandbox {
    /// Creates a pending sandbox in a separate task, so that a dropped future leaves nothing half created.
    /// A fork has an `origin`.
    pub(crate) async fn create(state: &Arc<BackendState>, spec: &Spec, origin: Option<Origin>) -> Result<Self> {
        // Refused before anything is created.
        Plan::of(spec)?;
        let (state, spec) = (Arc::clone(state), spec.clone());
        let creation = tokio::spawn(async move { create(&state, &spec, origin).await });
        creation
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "create", "the creation was interrupted")))
    }

    /// Returns the posture of the measurements under a spec.
    pub(crate) fn posture(&self, spec: &Spec) -> Posture {
        posture(&Measured {
            spec,
            facts: &self.container.engine.facts,
            evidence: &self.evidence,
            own_namespaces: &self.own_namespaces,
            user: self.user,
            engine_limits: self.engine_limits,
            quotas: self.quotas,
        })
    }

    /// Verifies the posture against a spec. If it falls short, closes the sandbox and fails.
    pub(crate) async fn verify_posture(&self, spec: &Spec) -> Result<Posture> {
        let posture = self.posture(spec);
        if let Err(error) = posture.require(spec.allow_weaker()) {
            return Err(error.with_failed_close(self.close().await));
        }
        Ok(posture)
    }

    /// Changes the limits to `limits`. No program may run in it yet.
    pub(crate) async fn adapt(&mut self, limits: &Limits) -> Result<()> {
        self.container.bound(limits).await?;
        self.engine_limits = engine_limits(&self.container).await?;
        if self.evidence.bounds.version == 1 {
            self.engine_limits.sockets = self.container.bound_sockets(limits).await;
        }
        self.evidence.bounds = self.guest.bounds().await?;
        Ok(())
    }

    /// Ends the sandbox. Its container is gone when this returns.
    pub(crate) async fn close(&self) -> Result<()> {
        if let Some(network) = &self.network {
            network.close().await;
        }
        // Avoids a kill, for which the engine starts a program, if the agent exits on request. A paused or hijacked
        // agent does not.
        let mut termination = pin!(self.guest.close());
        if !self.guest.is_paused() && tokio::time::timeout(AGENT_EXIT_TIMEOUT, &mut termination).await.is_ok() {
            return self.container.remove_ended().await;
        }
        let ((), removed) = tokio::join!(termination, self.container.remove());
        removed
    }
}

impl fmt::Debug for PendingSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSandbox")
            .field("id", &self.id)
            .field("container", &self.container)
            .finish_non_exhaustive()
    }
}

async fn create(state: &Arc<BackendState>, spec: &Spec, origin: Option<Origin>) -> Result<PendingSandbox> {
    // Before the turn of a creation, because forks of one sandbox wait for each other here.
    let source = match &origin {
        Some(origin) => Some(origin.source.running("fork").await?),
        None => None,
    };
    // Kept open until the sandbox is created.
    let (mounted, _directory) = MountedDirectory::open(spec)?.unzip();
    let (base, requested) = match &origin {
        // What the host changed since the source began is a conflict for its forks, too.
        Some(origin) => (Some(base_of(&origin.layer)?), origin.layer.requested),
        None => (user::open_base(spec)?, SystemTime::now()),
    };
    let connected = state.engine().await?;
    let engine = &connected.engine;
    state.retry_leftovers(engine);
    let has_layers = mounts::has_layers(spec);
    if has_layers {
        overlay::check(&engine.facts, state.config.runtime.as_deref())?;
        if connected.lacks_mounts.load(Ordering::Acquire) {
            return Err(overlay::not_seen());
        }
    }
    let caller = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let workspace = mounted.as_ref().map(|mounted| (mounted, spec.workspace().access()));
    let user = user::choose(&engine.facts, workspace, mounts::has_host_files(spec), caller)?;
    let _turn = state.creation_slots.acquire().await.map_err(|_| Error::closed("create"))?;
    let image = image_of(state, engine, spec).await?;
    // Last, because disks and overlays are mounted on the host until the container is created.
    let begins_with = origin.as_ref().map(|origin| Arc::clone(&origin.layer));
    let opening = open_mounts(state, engine, spec, user, (base, begins_with));
    let (mounts, overlay, base) = match source {
        Some(source) => source.frozen(opening).await?,
        None => opening.await?,
    };
    let mounted = overlay.as_ref().map(|overlay| MountedDirectory::layered(overlay, user)).or(mounted);
    let layer = match (base, &overlay) {
        (Some(base), Some(overlay)) => Some(layer(base, overlay, requested)?),
        _ => None,
    };
    let volume = AgentVolume::of(AGENT);
    let creation = Creation { state, connected: &connected, spec, image, user, mounted, mounts, layer, volume };
    creation.run().await.map_err(|error| match error.kind() {
        ErrorKind::NotFound if has_layers && overlay::is_not_seen(&error) => {
            connected.lacks_mounts.store(true, Ordering::Release);
            overlay::not_seen().with_source(error)
        }
        kind => {
            if kind == ErrorKind::Unavailable {
                state.mark_stale();
            }
            error
        }
    })
}

/// Opens the directory below a layer again.
fn base_of(layer: &OverlayLayer) -> Result<Directory> {
    layer.base.try_clone().map_err(|error| {
        Error::new(ErrorKind::Io, "fork", "cannot open the directory of the workspace again").with_source(error)
    })
}

/// Returns what the changes of a copy-on-write workspace are read from.
fn layer(base: Directory, overlay: &Overlay, requested: SystemTime) -> Result<Arc<OverlayLayer>> {
    let upper = overlay.upper.try_clone().map_err(|error| {
        Error::new(ErrorKind::Io, "create", "cannot open the layer of the workspace again").with_source(error)
    })?;
    Ok(Arc::new(OverlayLayer { base, upper, marks: Marks::Trusted, requested }))
}

/// The mounts of a sandbox, the overlay of its workspace, and the directory below that.
type Opened = (Vec<PlannedMount>, Option<Overlay>, Option<Directory>);

/// Opens the mounts of a spec. A disk's file system may have a journal to write first.
async fn open_mounts(
    state: &Arc<BackendState>,
    engine: &Engine,
    spec: &Spec,
    user: (u32, u32),
    (base, origin): (Option<Directory>, Option<Arc<OverlayLayer>>),
) -> Result<Opened> {
    let (state, facts, spec) = (Arc::clone(state), engine.facts.clone(), spec.clone());
    let opening = tokio::task::spawn_blocking(move || {
        let size = DirectorySizes::of(spec.limits().disk, spec.workspace()).layers;
        let layers = mounts::has_layers(&spec).then(|| Layers::new(size, user, &state.owner)).transpose()?;
        let over = |(layers, base): (&Layers, &Directory)| layers.over(base, WORKSPACE_PATH, origin.as_deref());
        let workspace = layers.as_ref().zip(base.as_ref()).map(over).transpose()?;
        Ok((mounts::open(&spec, &facts, user, &state.owner, layers.as_ref())?, workspace, base))
    });
    opening.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "create", "the mounts were not opened")))
}

async fn image_of(state: &BackendState, engine: &Engine, spec: &Spec) -> Result<ImageFacts> {
    let named;
    let reference = match spec.root() {
        RootFs::Image { reference } => {
            named = Reference::parse(reference)?;
            &named
        }
        RootFs::Default | RootFs::Directory { .. } => &state.config.image,
    };
    image::resolve(engine, &state.config, reference, &state.progress, state.source.as_ref()).await
}

/// The input for creating one sandbox.
struct Creation<'a> {
    state: &'a Arc<BackendState>,
    connected: &'a ConnectedEngine,
    spec: &'a Spec,
    image: ImageFacts,
    user: (u32, u32),
    mounted: Option<MountedDirectory>,
    mounts: Vec<PlannedMount>,
    layer: Option<Arc<OverlayLayer>>,
    volume: AgentVolume,
}

/// The failure of an attempt. The variant shows whether a damaged agent in the volume may be the cause.
enum Failure {
    Agent(Error),
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl Creation<'_> {
    /// Creates the sandbox, with further attempts if the agent in the volume was damaged.
    async fn run(&self) -> Result<PendingSandbox> {
        let mut attempt = 1;
        loop {
            if !self.connected.has_agent.load(Ordering::Acquire)
                && (attempt > 1 || !self.volume.exists(&self.connected.engine).await?)
            {
                self.fill().await?;
            }
            match self.attempt().await {
                Ok(pending) => return Ok(pending),
                Err(Failure::Agent(_)) if attempt < MAX_ATTEMPTS => {
                    self.connected.has_agent.store(false, Ordering::Release);
                    // Other processes may be filling the volume: each upload deletes the file for a moment.
                    tokio::time::sleep((ATTEMPT_INTERVAL * attempt).mul_f32(fastrand::f32())).await;
                    attempt += 1;
                }
                Err(Failure::Agent(error) | Failure::Other(error)) => return Err(error),
            }
        }
    }

    /// Fills the agent's volume. Only one task does so at a time.
    async fn fill(&self) -> Result<()> {
        let _filling = self.connected.filling.lock().await;
        if self.connected.has_agent.load(Ordering::Acquire) {
            return Ok(());
        }
        self.volume.ensure(&self.connected.engine, &self.image.id, &self.state.owner).await?;
        self.connected.has_agent.store(true, Ordering::Release);
        Ok(())
    }

    async fn attempt(&self) -> Result<PendingSandbox, Failure> {
        let (engine, runtime) = (&self.connected.engine, self.state.config.runtime.as_deref());
        let id = self.state.new_id();
        let body = create_request::body(&CreateRequest {
            spec: self.spec,
            id: &id,
            owner: &self.state.owner,
            facts: &engine.facts,
            runtime,
            image: &self.image,
            agent_volume: self.volume.name(),
            user: self.user,
            host_dir: self.mounted.as_ref().map(|mounted| mounted.path.as_path()),
            mounts: &self.mounts,
        })?;
        let container = Arc::new(Container::create(self.state, engine, id.as_str(), body).await?);
        let created = self.bring_up(id, &container).await;
        if created.is_err() {
            // Returns the error after the container is gone.
            container.remove().await?;
        }
        created
    }

    async fn bring_up(&self, id: SandboxId, container: &Arc<Container>) -> Result<PendingSandbox, Failure> {
        let engine = &self.connected.engine;
        let known = self.connected.has_agent.load(Ordering::Acquire);
        let Attached { reader, writer, stderr } = match container.attach().await {
            Ok(attached) => attached,
            // Podman prepares the container with its runtime here, Docker at the start.
            Err(error) => return Err(self.not_started(container, error, known).await),
        };
        let ready_by = Instant::now() + self.state.config.deadlines.change + READY_TIMEOUT;
        let opening = Opening::of(self.spec.network(), Plan::of(self.spec)?.network).await?;
        let mut settings = self.settings(container);
        if let Some(opening) = &opening {
            opening.configure(&mut settings);
        }
        let mut connecting = pin!(Guest::connect(reader, writer, settings, ready_by));
        // The agent answers some time before the engine reports that it runs.
        let (started, early) = {
            let mut starting = pin!(container.start(self.state.config.runtime.as_deref()));
            tokio::select! {
                biased;
                started = &mut starting => (started, None),
                connected = &mut connecting => (starting.await, Some(connected)),
            }
        };
        if let Err(error) = started {
            return Err(self.not_started(container, error, known).await);
        }
        let connected = match early {
            Some(connected) => connected,
            None => connecting.await,
        };
        let (guest, evidence) = match connected {
            Ok(connected) => connected,
            Err(error) => return Err(self.no_guest(container, error, &stderr.text()).await),
        };
        self.connected.has_agent.store(true, Ordering::Release);
        self.check_mounted(&evidence)?;
        let mut engine_limits =
            if evidence.bounds.version > 0 { EngineLimits::default() } else { engine_limits(container).await? };
        // Before any guest runs, since existing sockets would not be counted.
        if evidence.bounds.version == 1 {
            engine_limits.sockets = container.bound_sockets(self.spec.limits()).await;
        }
        let (groups, alike) = (container.groups().await, evidence.bounds.version > 0);
        // A runtime with its own kernel does not use the container's network.
        let joinable = groups.clone().filter(|_| !engine.facts.has_own_kernel(self.state.config.runtime.as_deref()));
        if let Some(meter) = outside::meter(engine, &container.id, groups, alike).await {
            guest.set_meter(meter);
        }
        bind(&guest, container);
        let network = match opening {
            Some(opening) => {
                let connection_attempts = match joinable {
                    Some(groups) => outside::open_connection_attempts(groups).await,
                    None => None,
                };
                Some(Network::start(&guest, opening.with_connection_attempts(connection_attempts)).await?)
            }
            None => None,
        };
        let own_namespaces = if engine.facts.local { read_own_namespaces() } else { Vec::new() };
        let (container, quotas) = (Arc::clone(container), self.has_quotas());
        let (user, layer) = (self.user, self.layer.clone());
        Ok(PendingSandbox {
            id,
            container,
            guest,
            evidence,
            network,
            layer,
            engine_limits,
            quotas,
            user,
            own_namespaces,
        })
    }

    /// Classifies a failed start of the container. The cause may be a missing or damaged agent.
    async fn not_started(&self, container: &Container, error: Error, known: bool) -> Failure {
        // Another process may have filled the volume after this container was created, or at the moment of its start.
        let names_agent = error.to_string().contains(AGENT_DIRECTORY);
        let early = (!known || names_agent) && error.kind() == ErrorKind::Unavailable;
        match self.volume.is_in(&self.connected.engine, &container.id).await {
            Ok(whole) if early || !whole => Failure::Agent(error),
            // The file that it reads may be deleted by the next upload.
            Err(_) if early && names_agent => Failure::Agent(error),
            Ok(_) | Err(_) => Failure::Other(error),
        }
    }

    /// Classifies the failure of an agent that did not start.
    async fn no_guest(&self, container: &Container, error: Error, stderr: &str) -> Failure {
        let greeted = error.context().any(|(key, value)| key == "stage" && value != "greeting");
        let cause = container.cause().await;
        let error = match cause {
            Cause::Memory => Error::new(ErrorKind::ResourceExhausted, "create", "the memory limit is too low to start")
                .with_remedy("raise --memory"),
            Cause::Away => Error::new(ErrorKind::Unavailable, "create", "the container engine went away")
                .with_remedy("try again when `docker version` answers"),
            Cause::Ended(_) | Cause::Removed if stderr.is_empty() => error,
            Cause::Ended(_) | Cause::Removed => error.with_context("stderr", stderr.to_owned()),
        };
        if greeted || matches!(cause, Cause::Memory | Cause::Away) {
            Failure::Other(error)
        } else {
            Failure::Agent(error)
        }
    }

    /// Checks that the mounted directory is the opened one. The engine resolves its path, which a guest may have
    /// replaced meanwhile. Only the agent has run yet.
    fn check_mounted(&self, evidence: &Evidence) -> Result<()> {
        // A runtime with its own kernel has its own device and inode numbers.
        let own_kernel = !evidence.kernel.is_empty() && evidence.kernel != self.connected.engine.facts.kernel;
        for (mount, found) in self.mounts.iter().zip(&evidence.identities) {
            mount.check(found.as_ref(), own_kernel)?;
        }
        if own_kernel && self.mounts.iter().any(PlannedMount::is_writable_disk) {
            let why = "cannot mount a writable disk: the runtime has its own kernel and creates files as root";
            return Err(Error::unsupported("create", why)
                .with_remedy("mount the volume read-only (:ro), or use another runtime, or level process or vm"));
        }
        let Some(mounted) = &self.mounted else { return Ok(()) };
        let same = match own_kernel {
            true => mounted.is_in_place(),
            false => mounted.matches(evidence.workspace_device, evidence.workspace_inode),
        };
        if same {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, "create", "the workspace directory is not the one that was named any more")
            .with_context("path", mounted.path.display().to_string())
            .with_remedy("check that it is not being moved, and that the engine and this process share a file system"))
    }

    /// Returns true if the agent enforces quotas. A runtime with its own kernel needs none, since the memory limit of
    /// the container bounds that kernel as well.
    fn has_quotas(&self) -> bool {
        !self.connected.engine.facts.has_own_kernel(self.state.config.runtime.as_deref())
    }

    fn settings(&self, container: &Arc<Container>) -> Settings {
        let access = self.spec.workspace().access();
        let mounted = matches!(self.spec.workspace(), Workspace::HostDir { .. });
        // The layers of a sandbox share one tmpfs, which is counted once.
        let layered = self.mounts.iter().find(|mount| self.layer.is_none() && mount.is_layered());
        let own = (!mounted).then_some(WORKSPACE_PATH).into_iter().chain(layered.map(|mount| mount.target.as_str()));
        let stores = ["/tmp", "/dev/shm"].into_iter().chain(own);
        let defaults = Settings::default();
        Settings {
            stores: stores.map(str::to_owned).collect(),
            path: self.image.path.clone().unwrap_or_else(|| defaults.path.clone()),
            rules: usual_rules(access).into_iter().chain(self.mounts.iter().filter_map(PlannedMount::rule)).collect(),
            identified: self.mounts.iter().map(|mount| mount.target.clone()).collect(),
            quotas: self.has_quotas(),
            limits: self.spec.limits().clone(),
            reason: Some(reason(container)),
            // The wait for the first answer includes the start of the container.
            answer_timeout: self.state.config.deadlines.change + READY_TIMEOUT,
            program: Some(format!("{AGENT_DIRECTORY}/{AGENT_FILE}")),
            ..defaults
        }
    }
}

/// Ends a container with its connection, because its agent may be unable or unwilling to exit.
fn bind(guest: &Guest, container: &Arc<Container>) {
    let (closed, container) = (guest.until_closed(), Arc::downgrade(container));
    tokio::spawn(async move {
        closed.await;
        if let Some(container) = container.upgrade() {
            // On failure the container is remembered, and closing the sandbox returns the error.
            let _ = container.remove_ended().await;
        }
    });
}

/// Returns a function that finds the reason for the end of a connection.
fn reason(container: &Arc<Container>) -> Reason {
    // A weak reference, since the connection must not keep its own container alive.
    let container = Arc::downgrade(container);
    Box::new(move || {
        Box::pin(async move {
            let container = container.upgrade()?;
            let cause = container.cause().await;
            termination_of(cause)
        })
    })
}

/// Converts a cause to a clause after "the sandbox ended by itself".
fn termination_of(cause: Cause) -> Option<Termination> {
    let because = |why: &str, remedy: &str| {
        Some(Termination {
            why: why.to_owned(),
            remedy: Some(remedy.to_owned()),
            out_of_memory: cause == Cause::Memory,
        })
    };
    match cause {
        Cause::Memory => because("it exceeded the memory limit, and the kernel killed it", "raise --memory"),
        Cause::Removed => because("its container was removed by another program", "create another sandbox"),
        // The agent exits with 0 only on request, which this process did not send, or after losing its connection.
        Cause::Ended(0) => because("its container was stopped by another program", "create another sandbox"),
        Cause::Ended(137) => because("its container was killed by another program", "create another sandbox"),
        Cause::Ended(status) => because(
            &format!("the first process of its container exited with status {status}"),
            "create another sandbox",
        ),
        Cause::Away => {
            because("the container engine went away", "create another sandbox when `docker version` answers")
        }
    }
}

/// Reads the limits back from the engine.
async fn engine_limits(container: &Container) -> Result<EngineLimits> {
    let found = container.inspect().await;
    let found = found.map_err(|failed| container.engine.error("create", "read the container's limits", failed))?;
    let config = found.host_config.unwrap_or_default();
    let positive = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
    Ok(EngineLimits {
        memory: positive(config.memory),
        tasks: positive(config.pids_limit),
        cpu_quota: config.cpu_quota,
        sockets: None,
    })
}

fn read_own_namespaces() -> Vec<(&'static str, u64)> {
    let inode = |name: &str| std::fs::metadata(format!("/proc/self/ns/{name}")).ok().map(|meta| meta.ino());
    NAMESPACES.into_iter().filter_map(|(name, _)| Some((name, inode(name)?))).collect()
}

/// Returns the maximum length of a workspace's archive under its disk limit.
pub(crate) fn max_archive_bytes(limits: &Limits, workspace: &Workspace) -> u64 {
    /// The maximum length of one entry's header and long names.
    const ENTRY: u64 = 16 << 10;
    const UNLIMITED: u64 = 64 << 30;
    let size = DirectorySizes::of(limits.disk, workspace).workspace;
    size.map_or(UNLIMITED, |bytes| bytes + sizes::max_files(bytes) * ENTRY + (1 << 20))
}

/// Returns true if the sandbox shows files of the host.
pub(crate) fn has_host_files(spec: &Spec) -> bool {
    !matches!(spec.workspace(), Workspace::Private { .. }) || !spec.mounts().is_empty()
}
