//! A sandbox between its creation and its acceptance: measured, but not yet verified against a spec.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use cofferdam_contract::{ByteSize, Error, ErrorKind, Posture, Result, SandboxId, Spec};
use cofferdam_linux::cgroup::{Stats, Version};
use cofferdam_linux::named::Directory;
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::sync::{Notify, Semaphore, watch as flag};

use crate::client::{Kind, Launcher};
use crate::connect::MAX_CONNECTIONS;
use crate::core::{Core, Enrolled, Layer, receive_events};
use crate::file_memory;
use crate::image::Surroundings;
use crate::network::Access;
use crate::posture::{GroupBounds, Measured, posture};
use crate::protocol::{Adapt, Create, Event, Evidence, HostFacts, Probes, WorkspacePlan};
use crate::sandbox::ProcessSandbox;
use crate::sys::watch::watch;
use crate::{error, files, network};

/// The size of a tmpfs is a multiple of this number of bytes on every kernel.
const PAGE: u64 = 64 << 10;
/// Time for an init to become ready, on a host under heavy load.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The owner's inputs to a new sandbox, besides the request to its launcher.
pub struct SandboxInputs {
    /// The spec.
    pub spec: Spec,
    /// The surroundings of each exec.
    pub surroundings: Surroundings,
    /// The host directory that is its workspace.
    pub directory: Option<Directory>,
    /// The access of its network policy.
    pub access: Option<Access>,
}

/// A sandbox that was measured, but not yet verified against a spec. Dropping it ends it.
#[derive(Debug)]
pub struct PendingSandbox {
    core: Arc<Core>,
    accepted: bool,
    create: Create,
    evidence: Evidence,
    probes: Arc<Probes>,
    /// The time of the init's Ready event. An exec that was requested with the sandbox had just started then.
    ready: Instant,
}

impl PendingSandbox {
    /// Creates a sandbox that is not verified against a spec yet.
    pub async fn create(launcher: Arc<Launcher>, mut create: Create, inputs: SandboxInputs) -> Result<Self> {
        create.probe = launcher.known_probes(kind(&create)).is_none();
        let control = launcher.create(&create)?;
        let SandboxInputs { spec: _, surroundings, directory, access } = inputs;
        Ok(Self::receive(launcher, create, (directory, surroundings, access), control).await?.0)
    }

    pub async fn receive(
        launcher: Arc<Launcher>,
        create: Create,
        (directory, mut surroundings, access): (Option<Directory>, Surroundings, Option<Access>),
        control: OwnedFd,
    ) -> Result<(Self, Option<Enrolled>)> {
        let requested = SystemTime::now();
        let is_layered = create.workspace.is_copy_on_write();
        // The init's descriptor, the workspace and the directory for scripts; the layer; control groups.
        let fixed = 3 + usize::from(is_layered);
        let control = watch(control, Interest::READABLE)
            .map_err(|error| error::os("create", "cannot watch the sandbox's socket", error))?;
        let facts = launcher.ready().await?.clone();
        let mut sockets = Vec::new();
        let event = tokio::time::timeout(READY_TIMEOUT, network::receive_sockets(&control, &mut sockets)).await;
        let (evidence, first, mut fds) = match event {
            Ok(Ok(Some((Event::Ready { evidence, first }, fds)))) if fds.len() >= fixed => (evidence, first, fds),
            Ok(Ok(Some((Event::Failed(failure), _)))) => return Err(error::create(&failure)),
            Ok(Ok(_)) | Ok(Err(_)) => {
                if let Some(error) = error::no_descriptors(control.get_ref()) {
                    return Err(error);
                }
                return Err(Error::new(ErrorKind::Unavailable, "create", "the sandbox ended before it was ready")
                    .with_remedy(
                        "check that the memory limit is large enough; `cofferdam doctor` reports what this host lacks",
                    ));
            }
            Err(_) => {
                return Err(Error::new(ErrorKind::Unavailable, "create", "the sandbox was not ready within 60 s"));
            }
        };
        let ready = Instant::now();
        let groups = fds.split_off(fixed);
        let upper = if is_layered { fds.pop() } else { None };
        let [init, workspace, code] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| Error::closed("create"))?;
        surroundings.variables.extend(access.as_ref().map(network::variables).unwrap_or_default());
        for (name, contents) in access.as_ref().map(network::files).unwrap_or_default() {
            files::put_file(&code, name, &contents)
                .map_err(|error| error::os("create", "cannot store the certificates in the sandbox", error))?;
        }
        let gateway = match (access, &create.network) {
            (Some(access), Some(plan)) => Some(network::start(sockets, plan, access)?),
            _ => None,
        };
        let stats = version(&facts).map(|version| Stats::new(version, groups, &facts.cgroup_layout));
        let mut evidence = *evidence;
        let known = launcher.known_probes(kind(&create));
        let probes = match (known, evidence.probes.take()) {
            (Some(probes), _) => probes,
            (None, probes) => Arc::new(probes.unwrap_or_default()),
        };
        let (layer, directory) = match (directory, upper) {
            (Some(base), Some(upper)) => (Some(Layer { base, upper }), None),
            (directory, _) => (None, directory),
        };
        let (workspace, owner) = workspace_root(directory, workspace, facts.privileged.then_some(evidence.outside_uid));
        let (gone_sender, gone) = flag::channel(false);
        let core = Arc::new(Core {
            control,
            gone,
            init,
            workspace,
            code,
            layer,
            requested,
            owner,
            stats,
            group_base: evidence.group_base,
            limits: OnceLock::new(),
            surroundings,
            slots: Mutex::new(HashMap::new()),
            next_exec: AtomicU64::new(0),
            starts: Notify::new(),
            gateway,
            policy_ports: create.network.as_ref().map(|plan| plan.ports.clone()).unwrap_or_default(),
            serial: create.serial,
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            watches: Arc::new(Semaphore::new(cofferdam_contract::MAX_WATCHES)),
            closed: AtomicBool::new(false),
            closed_by_owner: AtomicBool::new(false),
            over_memory: AtomicBool::new(false),
            over_cpu: AtomicBool::new(false),
            processes_refused: AtomicU64::new(0),
            facts,
            launcher,
        });
        // Register it before events are received: its start, failure or end may be reported at once.
        let enrolled = match first {
            Some(outcome) => Some(core.enroll_started(outcome)),
            None => create.expected.is_some().then(|| core.enroll()),
        };
        tokio::spawn(receive_events(Arc::clone(&core), gone_sender));
        Ok((Self { core, accepted: false, create, evidence, probes, ready }, enrolled))
    }

    /// Returns the time of the init's Ready event.
    pub fn ready(&self) -> Instant {
        self.ready
    }

    /// Returns true if the sandbox has not ended.
    pub fn is_alive(&self) -> bool {
        !self.core.is_closed()
    }

    /// Changes the sandbox's limits to those of `spec` if they differ. No program may run in it yet.
    pub async fn adapt(&mut self, spec: &Spec) -> Result<()> {
        let limits = spec.limits();
        let create = &mut self.create;
        let requested = Adapt {
            serial: create.serial,
            disk: limits.disk.map(ByteSize::as_bytes),
            memory: limits.memory.map(ByteSize::as_bytes),
            tasks: limits.pids.map(u64::from),
        };
        if (requested.disk, requested.memory, requested.tasks) == (create.disk, create.memory, create.tasks) {
            return Ok(());
        }
        (create.disk, create.memory, create.tasks) = (requested.disk, requested.memory, requested.tasks);
        self.core.launcher.adapt(requested).await?;
        // This is the sandbox's file system, through one of its directories.
        let disk = rustix::fs::fstatvfs(&self.core.code)
            .map_err(|error| error::os("claim", "cannot measure the sandbox's tmpfs", error.into()))?;
        (self.evidence.disk_bytes, self.evidence.disk_files) = (disk.f_blocks * disk.f_frsize, disk.f_files);
        if self.evidence.disk_bytes < limits.disk.map_or(0, |requested| requested.as_bytes() / PAGE * PAGE) {
            return Err(Error::new(
                ErrorKind::Internal,
                "claim",
                "the sandbox's tmpfs is smaller than the requested limit",
            ));
        }
        Ok(())
    }

    /// Returns the posture of the measurements for a spec.
    pub fn posture(&self, spec: &Spec) -> Posture {
        let Self { core, evidence, probes, .. } = self;
        let facts = &core.facts;
        let bounds = version(facts)
            .zip(core.stats.as_ref())
            .map(|(version, stats)| GroupBounds::read(stats, evidence.group_bounds, version.as_str(), spec.limits()));
        posture(&Measured { spec, facts, evidence, probes, group: bounds.as_ref() })
    }

    /// Verifies the posture against a spec. Returns the sandbox, or removes it and returns an error.
    pub async fn accept(self, spec: Spec) -> Result<ProcessSandbox> {
        let posture = self.posture(&spec);
        self.accept_with(spec, posture).await
    }

    /// Verifies a posture that [`Self::posture`] returned for this spec.
    pub async fn accept_with(mut self, spec: Spec, posture: Posture) -> Result<ProcessSandbox> {
        if let Err(error) = posture.require(spec.allow_weaker()) {
            // Measurements fail if no descriptors are left.
            let error = error::no_descriptors(self.core.control.get_ref()).unwrap_or(error);
            return Err(error.with_failed_close(self.close().await));
        }
        self.accepted = true;
        let (core, create) = (Arc::clone(&self.core), &self.create);
        core.launcher.store_probes(kind(create), &self.probes);
        core.launcher.accept(create, &self.evidence);
        // This is set once: an accepted sandbox cannot be accepted again.
        let _ = core.limits.set(spec.limits().clone());
        tokio::spawn(file_memory::follow(Arc::clone(&core)));
        let id = SandboxId::new(format!("process-{}-{}", core.launcher.pid(), create.serial));
        Ok(ProcessSandbox::new(id, spec, posture, core))
    }

    /// Ends the sandbox. Nothing remains when this returns.
    pub async fn close(&self) -> Result<()> {
        self.core.close().await
    }
}

impl Drop for PendingSandbox {
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

pub fn kind(create: &Create) -> Kind {
    let workspace = &create.workspace;
    (matches!(workspace, WorkspacePlan::HostDir { .. }), workspace.is_copy_on_write(), create.read_only)
}

/// Returns the directory of the file API, and the owner of files that it creates. A host directory is the one that was
/// opened when the sandbox was requested: its path may lead elsewhere by now.
fn workspace_root(
    directory: Option<Directory>,
    own: OwnedFd,
    outside_uid: Option<u32>,
) -> (OwnedFd, Option<(u32, u32)>) {
    match directory {
        None => (own, outside_uid.map(|uid| (uid, uid))),
        Some(directory) => {
            let owner = outside_uid.map(|_| directory.owner());
            (directory.into(), owner)
        }
    }
}
