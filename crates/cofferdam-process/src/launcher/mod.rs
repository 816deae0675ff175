//! The launcher: a small, single-threaded process for each kind of root file system. It holds the template of that
//! root, creates sandboxes, and removes what remains of each.
//!
//! ```text
//! started --Configure--> template built --Hello--> serving --owner gone--> all sandboxes killed and removed, exit
//! ```
//!
//! It ends with its owner, because the owner's end of its socket closes. Each init ends with the launcher, because each
//! has asked the kernel for a parent-death signal.

mod certificates;
mod create;
mod evidence;
mod init;
mod masked;
mod mounts;
mod namespace_pool;
mod network;
mod start;
mod template;
mod workspace;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use cofferdam_linux::cgroup::{Bounds, Group, Owner};
use cofferdam_linux::named::UntrustedLink;
use cofferdam_linux::spawn::{self, Fork, SharedPid, Stack};
use cofferdam_linux::{message, namespace, process, seccomp};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::protocol::{self, Adapt, Create, Failure, Hello, HostFacts, LauncherRequest, SandboxSockets};
use init::InitProgram;
use namespace_pool::{NamespacePool, PreparedNamespaces, TemplateView};
pub use start::{Origin, main};
use template::{HostMounts, Template};

/// Time to wait for space in a full socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a request after which the launcher does maintenance.
const IDLE_INTERVAL: Duration = Duration::from_millis(3);
/// The out-of-memory score, which all sandboxes inherit: the kernel kills them first when the host runs out of memory.
/// The launcher itself is smaller than any guest worth killing.
const OOM_SCORE: &str = "800";
/// The first user id for sandboxes if the launcher is root, in a range that no distribution assigns.
const FIRST_UID: u32 = 0x7000_0000;
/// Process ids are below this on every kernel.
const PID_SPACE: u32 = 1 << 22;
/// The disk limit of the first prepared namespaces: the default of a spec.
const DEFAULT_DISK: u64 = 1 << 30;

/// A step that failed.
type Step<T> = Result<T, Failure>;

/// Adds the name of the failed step to an error.
trait Named<T> {
    fn step(self, step: &str) -> Step<T>;
}

impl<T, E: Into<io::Error>> Named<T> for Result<T, E> {
    fn step(self, step: &str) -> Step<T> {
        self.map_err(|error| {
            let error = error.into();
            let other = if UntrustedLink::of(&error).is_some() { libc::ELOOP } else { libc::EIO };
            let errno = error.raw_os_error().unwrap_or(other);
            Failure { step: step.to_owned(), errno }
        })
    }
}

/// The users that sandboxes run as.
#[derive(Debug, Clone, Copy)]
enum Identity {
    /// The launcher is root: each sandbox gets its own user id, `first` plus its process id modulo `count`.
    Unique { first: u32, count: u32 },
    /// The launcher is an ordinary user in its own user namespace. Sandboxes run as that user.
    Caller,
}

impl Identity {
    /// Returns true if the launcher has the privileges of root.
    fn is_privileged(self) -> bool {
        matches!(self, Self::Unique { .. })
    }
}

struct Launcher {
    socket: OwnedFd,
    /// True once [`Hello`] was sent.
    hello_sent: bool,
    children: OwnedFd,
    template: Template,
    owner: Option<Owner>,
    identity: Identity,
    facts: HostFacts,
    filters: Filters,
    pool: NamespacePool,
    child_resources: ChildResources,
    live: Vec<Live>,
    /// The disk limit of the last request. Namespaces are prepared with it, so that they need no change later.
    last_disk: u64,
    /// True if the launcher creates a single sandbox.
    single: bool,
}

/// Filters, compiled once. The launcher itself is under the early part, so every fork has it from the start.
struct Filters {
    late: seccomp::Program,
    tag_key: seccomp::TagKey,
    options: seccomp::Options,
}

impl Filters {
    /// Compiles the late part for a sandbox with a limit on processes.
    fn late_with_process_limit(&self) -> seccomp::Program {
        let options = seccomp::Options { count_processes: true, ..self.options };
        seccomp::compile_stages(seccomp::Arch::native(), &options).1
    }
}

/// Compiled filters that are not installed yet.
struct CompiledFilters {
    /// True if control groups account for what sandboxes use. Otherwise the filter refuses more calls.
    has_accounting: bool,
    early: seccomp::Program,
    filters: Filters,
}

impl CompiledFilters {
    fn new(has_accounting: bool) -> io::Result<Self> {
        let arch = seccomp::Arch::native();
        let tag_key = seccomp::TagKey::new(process::random()?);
        let options = seccomp::Options {
            deny_memfd: !has_accounting,
            deny_shared_memory: !has_accounting,
            deny_kernel_memory: !has_accounting,
            deny_affinity: !has_accounting,
            deny_large_buffers: !has_accounting,
            watch_reads: false,
            quotas: true,
            count_processes: false,
            tag_key: Some(tag_key),
        };
        let (early, late) = seccomp::compile_stages(arch, &options);
        Ok(Self { has_accounting, early, filters: Filters { late, tag_key, options } })
    }

    /// Installs the early part on the launcher.
    fn install(self) -> io::Result<Filters> {
        seccomp::install(&self.early)?;
        Ok(self.filters)
    }
}

/// Resources that all children share.
struct ChildResources {
    init: InitProgram,
    watch_bounds: create::WatchBounds,
    stack: Stack,
    /// The process id of the last child.
    pid: SharedPid,
}

impl ChildResources {
    fn new() -> io::Result<Self> {
        let watch_bounds = create::WatchBounds::read();
        Ok(Self { init: InitProgram::new()?, watch_bounds, stack: Stack::new()?, pid: SharedPid::new()? })
    }
}

/// A sandbox that is not completely removed yet.
struct Live {
    serial: u64,
    pid: i32,
    group: Option<Box<Group>>,
    reaped: bool,
    /// The init's end of its socket. Once it is closed, the owner knows that nothing remains.
    gone: Option<OwnedFd>,
    /// Taken once the init has ended.
    prepared_parts: Option<PreparedParts>,
}

/// The parts of a sandbox's namespaces that the launcher keeps.
#[derive(Debug)]
enum PreparedParts {
    /// All of it, so that its removal delays neither the end of the init nor the report of it.
    All(PreparedNamespaces),
    /// The network, in which sockets for the owner are created.
    Network(OwnedFd),
}

impl PreparedParts {
    fn network(&self) -> BorrowedFd<'_> {
        match self {
            Self::All(prepared) => prepared.network.as_fd(),
            Self::Network(network) => network.as_fd(),
        }
    }
}

impl Launcher {
    fn serve(&mut self) -> i32 {
        // Answer a request that came before the hello first.
        let has_request = self.single && message::wait_readable(&self.socket, Some(Duration::ZERO)).unwrap_or(false);
        if !has_request && self.send_hello().is_err() {
            return self.end();
        }
        loop {
            let leaving = self.live.iter().any(|live| live.reaped);
            let leave = leaving.then_some(Duration::from_millis(1));
            let maintenance = self.maintenance_interval();
            let timeout = leave.into_iter().chain(maintenance).min();
            let Ok((requests, ended)) = self.wait(timeout) else { break };
            if !requests && !ended && maintenance.is_some() {
                self.maintain();
            }
            if ended || leaving {
                self.reap_ended();
            }
            if requests {
                match protocol::receive::<LauncherRequest>(self.socket.as_fd()) {
                    Ok(Some((LauncherRequest::Create(create), fds))) => self.create(&create, fds),
                    Ok(Some((LauncherRequest::Adapt(adapt), fds))) => self.adapt(&adapt, fds),
                    Ok(Some((LauncherRequest::Sockets(request), fds))) => self.send_sockets(&request, fds),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(None) | Err(_) => break,
                }
                if self.send_hello().is_err() {
                    break;
                }
            }
        }
        self.end()
    }

    /// Sends [`Hello`] if it was not sent yet.
    fn send_hello(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.hello_sent, true) {
            return Ok(());
        }
        protocol::send(self.socket.as_fd(), &Hello::Ready(self.facts.clone()), &[], SEND_TIMEOUT)
    }

    /// Returns the idle time after which maintenance is due, if there is any.
    fn maintenance_interval(&self) -> Option<Duration> {
        let untidy = self.owner.as_ref().is_some_and(Owner::is_untidy);
        (self.pool.is_short() || untidy).then_some(IDLE_INTERVAL)
    }

    fn maintain(&mut self) {
        self.pool.refill(self.last_disk);
        if let Some(owner) = &mut self.owner {
            owner.tidy();
        }
    }

    /// Releases a group that no process has joined.
    fn release_unused(&mut self, group: Option<Box<Group>>) {
        if let (Some(owner), Some(group)) = (&mut self.owner, group) {
            // It is empty, so it cannot be busy.
            let _ = owner.release(group);
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> io::Result<(bool, bool)> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.children, PollFlags::IN)];
        let timeout =
            timeout.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) });
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, timeout.as_ref()))?;
        Ok((!fds[0].revents().is_empty(), !fds[1].revents().is_empty()))
    }

    fn create(&mut self, create: &Create, fds: Vec<OwnedFd>) {
        let Ok([control]) = <[OwnedFd; 1]>::try_from(fds) else { return };
        if let Err((control, failure)) = self.try_create(create, control) {
            let _ = protocol::send(control.as_fd(), &protocol::Event::Failed(failure), &[], SEND_TIMEOUT);
        }
    }

    fn try_create(&mut self, create: &Create, control: OwnedFd) -> Result<(), (OwnedFd, Failure)> {
        let (host_mounts, mut prepared, group) = match self.obtain_parts(create) {
            Ok(parts) => parts,
            Err(failure) => return Err((control, failure)),
        };
        match self.create_child(create, &prepared, group.as_deref(), &control, &host_mounts) {
            Ok(pid) => {
                (prepared.rules, prepared.users) = (None, None);
                // The child has set this limit.
                prepared.disk = create.disk;
                // Mounts of the host must end with the init: their owner may want to unmount them.
                let prepared_parts = match host_mounts.is_empty() && !self.single {
                    true => PreparedParts::All(prepared),
                    false => PreparedParts::Network(self.release_early(prepared)),
                };
                let serial = create.serial;
                self.live.push(Live {
                    serial,
                    pid,
                    group,
                    reaped: false,
                    gone: Some(control),
                    prepared_parts: Some(prepared_parts),
                });
                Ok(())
            }
            Err(failure) => {
                self.release_unused(group);
                self.pool.dispose(prepared);
                Err((control, failure))
            }
        }
    }

    /// Releases what must not outlive the init, and returns the network. A launcher of a single sandbox would delay its
    /// end: the kernel removes a network namespace in a kernel thread, which blocks other work. The owner keeps the
    /// namespace until it exits itself, in a message that it never reads.
    fn release_early(&mut self, prepared: PreparedNamespaces) -> OwnedFd {
        if self.single {
            // The hello must be the first message.
            let _ = self.send_hello();
            let _ = message::send(self.socket.as_fd(), b"n", &[prepared.network.as_fd()]);
            self.template.leave();
            // While the program runs, the launcher is idle.
            if let Some(owner) = &self.owner {
                owner.sweep(self.template.host_proc());
            }
        }
        prepared.network
    }

    /// Sends new sockets of a sandbox's network to the owner. A child creates them: the launcher itself could not leave
    /// the network again.
    fn send_sockets(&self, request: &SandboxSockets, fds: Vec<OwnedFd>) {
        let Ok([answer]) = <[OwnedFd; 1]>::try_from(fds) else { return };
        let found = self.live.iter().find(|live| live.serial == request.serial && !live.reaped);
        let prepared_parts = found.and_then(|live| live.prepared_parts.as_ref());
        let network = prepared_parts.map(PreparedParts::network).ok_or(io::Error::from_raw_os_error(libc::ENOENT));
        let forked = network.and_then(|network| Ok((spawn::fork(0, None, None)?, network)));
        let response = match forked.step("create a process in the sandbox's network") {
            Ok((Fork::Parent(_), _)) => return,
            Ok((Fork::Child, network)) => {
                let sockets = network::client_sockets(network).step("create sockets in the sandbox's network");
                let sockets = sockets.as_ref().map_err(Failure::clone);
                let fds: Vec<_> = sockets.iter().copied().flatten().map(AsFd::as_fd).collect();
                let _ = protocol::send(answer.as_fd(), &sockets.map(drop), &fds, SEND_TIMEOUT);
                process::exit_now(0)
            }
            Err(failure) => Err::<(), _>(failure),
        };
        let _ = protocol::send(answer.as_fd(), &response, &[], SEND_TIMEOUT);
    }

    fn adapt(&mut self, adapt: &Adapt, fds: Vec<OwnedFd>) {
        let response = self.try_adapt(adapt);
        if let Ok([socket]) = <[OwnedFd; 1]>::try_from(fds) {
            let _ = protocol::send(socket.as_fd(), &response, &[], SEND_TIMEOUT);
        }
    }

    fn try_adapt(&mut self, adapt: &Adapt) -> Step<()> {
        let missing = |what: &str| Failure { step: format!("find {what} of the sandbox"), errno: libc::ENOENT };
        let found = self.live.iter_mut().find(|live| live.serial == adapt.serial && !live.reaped);
        let live = found.ok_or_else(|| missing("the processes"))?;
        let Some(PreparedParts::All(prepared)) = &mut live.prepared_parts else { return Err(missing("the tmpfs")) };
        prepared.resize(adapt.disk).step("set the size of the sandbox's tmpfs")?;
        prepared.disk = adapt.disk;
        match (&self.owner, &mut live.group) {
            (Some(owner), Some(group)) => {
                let tasks = adapt.tasks.map(|tasks| tasks + 1);
                owner
                    .rebind(group, Bounds { memory: adapt.memory, tasks, cpu_millis: None })
                    .step("set the control group's limits")
            }
            _ => Ok(()),
        }
    }

    /// Obtains the mounts of the host, the namespaces and the control group of a new sandbox.
    fn obtain_parts(&mut self, create: &Create) -> Step<(HostMounts, PreparedNamespaces, Option<Box<Group>>)> {
        let host_mounts = self.template.open_host_mounts(create, self.identity)?;
        self.last_disk = create.disk.unwrap_or(DEFAULT_DISK);
        // From the first one on, later sandboxes are likely to have a host directory as well.
        self.pool.with_users |= self.identity.is_privileged() && host_mounts.workspace.is_some();
        let view = TemplateView { template: &self.template, landlock_abi: self.facts.landlock_abi };
        let prepared = self.pool.take(view, self.last_disk).step("create namespaces")?;
        let bounds = Bounds {
            memory: create.memory,
            // The init is a task as well.
            tasks: create.tasks.map(|tasks| tasks + 1),
            cpu_millis: create.cpu_millis.filter(|_| self.owner.as_ref().is_some_and(Owner::has_cpu)),
        };
        let owner = self.owner.as_mut();
        let group = owner.map(|owner| owner.make(bounds).map(Box::new)).transpose().step("create a control group")?;
        Ok((host_mounts, prepared, group))
    }

    /// Creates the child that isolates itself and becomes the init. Returns its process id once it is the init or has
    /// failed.
    fn create_child(
        &mut self,
        create: &Create,
        prepared: &PreparedNamespaces,
        group: Option<&Group>,
        control: &OwnedFd,
        host_mounts: &HostMounts,
    ) -> Step<i32> {
        let keeps_groups = self.owner.as_ref().is_some_and(Owner::keeps_groups);
        let ChildResources { init, watch_bounds, stack, pid } = &mut self.child_resources;
        let groups: Vec<_> = group.map(|group| group.dirs().collect()).unwrap_or_default();
        let mut child = create::NewSandbox(create::Setup {
            prepared,
            join_files: group.map_or(&[], Group::join_files),
            groups: &groups,
            counting_dir: self.owner.as_ref().zip(group).and_then(|(owner, group)| owner.counting_dir(group)),
            group_base: group.map(Group::base).unwrap_or_default(),
            group_bounds: group.filter(|_| !keeps_groups).map(Group::bounds).unwrap_or_default(),
            identity: self.identity,
            facts: &self.facts,
            outside_pid: pid,
            template: &self.template,
            filters: &self.filters,
            create,
            control: control.as_fd(),
            host_mounts,
            init,
            watch_bounds: *watch_bounds,
        });
        let kinds = namespace::kind::PID | namespace::kind::UTS;
        if let Some(target) = group.and_then(Group::clone_target) {
            // With version 2, a process starts in its group, or is moved there at the cost of milliseconds. A process
            // that starts there gets a copy of this memory: all that it uses is charged to the group, and the kernel
            // may kill it for that at any time.
            return match spawn::fork(kinds, Some(target), Some(pid)).step("fork into new namespaces")? {
                Fork::Child => spawn::live(&mut child, init::NAME),
                Fork::Parent(pid) => Ok(pid),
            };
        }
        let created = spawn::borrow(stack, kinds, pid, &mut child, init::NAME);
        // The child made the shared memory dumpable for a while, to open its own files in /proc.
        let hidden = process::set_dumpable(process::DumpableState::No);
        let (pid, consistent) = created.step("create a process in new namespaces")?;
        if !consistent || hidden.is_err() {
            // The child was killed, perhaps while it changed shared memory. All sandboxes end.
            process::exit_now(72);
        }
        Ok(pid)
    }

    /// Reaps ended inits and removes what remains of them.
    fn reap_ended(&mut self) {
        let mut buffer = [0u8; 512];
        while rustix::io::read(&self.children, &mut buffer).is_ok() {}
        while let Ok(Some(reaped)) = process::reap() {
            if let Some(live) = self.live.iter_mut().find(|live| live.pid == reaped.pid) {
                live.reaped = true;
            }
        }
        let (owner, pool) = (&mut self.owner, &self.pool);
        self.live.retain_mut(|live| {
            if !live.reaped {
                return true;
            }
            let prepared_parts = live.prepared_parts.take();
            if owner.as_ref().is_some_and(Owner::keeps_groups) {
                // The launcher keeps the group. Everything else ended with the init.
                live.gone = None;
            }
            let left = match (owner.as_mut(), live.group.take()) {
                (Some(owner), Some(group)) => match owner.release(group) {
                    Ok(()) => false,
                    Err(group) => {
                        live.group = Some(group);
                        true
                    }
                },
                _ => false,
            };
            if !left {
                live.gone = None;
            }
            match prepared_parts {
                Some(PreparedParts::All(prepared)) => pool.dispose(prepared),
                Some(PreparedParts::Network(network)) => pool.dispose_network(network),
                None => {}
            }
            left
        });
    }

    fn end(&mut self) -> i32 {
        for live in self.live.iter().filter(|live| !live.reaped) {
            let _ = process::kill(live.pid, libc::SIGKILL);
        }
        self.pool.stop();
        // All processes are killed or end by themselves; the rest is the kernel's work.
        for _ in 0..10_000 {
            self.reap_ended();
            if self.live.is_empty() && !process::has_children() {
                break;
            }
            let _ = message::wait_readable(&self.children, Some(Duration::from_millis(1)));
        }
        if let Some(owner) = self.owner.take() {
            owner.close();
        }
        0
    }
}

/// Enters the launcher's own namespaces, in which it has the rights to create those of sandboxes.
fn enter_own_namespaces() -> Step<Identity> {
    use namespace::kind;
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let range = uid_range();
    if uid == 0
        && let Some((first, count)) = range
    {
        match namespace::unshare(kind::MOUNT) {
            Ok(()) => return Ok(Identity::Unique { first, count }),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                // Root without the right to mount: become another user first, so that no sandbox runs as root.
                let own = first + std::process::id() % count;
                process::become_user(own, own).step("stop being root")?;
                process::set_dumpable(process::DumpableState::Yes).step("open own maps")?;
                return enter_user_namespace(own, own);
            }
            Err(error) => return Err(error).step("create a mount namespace"),
        }
    }
    if uid == 0 && is_root_outside() {
        // There is no other user id here, and no sandbox may run as root.
        return Err(Failure {
            step: "find a user id that is not root's in this user namespace".into(),
            errno: libc::EPERM,
        });
    }
    process::set_dumpable(process::DumpableState::Yes).step("open own maps")?;
    enter_user_namespace(uid, gid)
}

/// Returns true if root of this user namespace is root of the parent namespace, or if this cannot be determined.
fn is_root_outside() -> bool {
    let text = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let outside = text.lines().find_map(|line| {
        let mut numbers = line.split_whitespace();
        (numbers.next() == Some("0")).then(|| numbers.next().map(str::to_owned))?
    });
    outside.is_none_or(|id| id == "0")
}

fn enter_user_namespace(uid: u32, gid: u32) -> Step<Identity> {
    use namespace::kind;
    let proc =
        rustix::fs::open("/proc", rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())
            .step("open /proc")?;
    namespace::unshare(kind::USER).step("create a user namespace")?;
    namespace::map_ids(proc.as_fd(), "self", (0, 0), (uid, gid)).step("map the caller's user id")?;
    process::set_dumpable(process::DumpableState::No).step("hide the launcher's memory")?;
    namespace::unshare(kind::MOUNT).step("create a mount namespace")?;
    Ok(Identity::Caller)
}

fn uid_range() -> Option<(u32, u32)> {
    uid_range_in(&std::fs::read_to_string("/proc/self/uid_map").ok()?)
}

/// Returns a range of user ids for sandboxes, first and count: the usual range if the map has it, else the upper half of
/// the largest extent.
fn uid_range_in(map: &str) -> Option<(u32, u32)> {
    let extents: Vec<(u64, u64)> = map
        .lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>());
            let first = numbers.next()?.ok()?;
            Some((first, numbers.nth(1)?.ok()?))
        })
        .collect();
    let (ours, end) = (u64::from(FIRST_UID), u64::from(FIRST_UID + PID_SPACE));
    if extents.iter().any(|(first, count)| *first <= ours && end <= first + count) {
        return Some((FIRST_UID, PID_SPACE));
    }
    let (first, count) = extents.into_iter().max_by_key(|(_, count)| *count)?;
    let half = count / 2;
    (half >= 1000).then(|| ((first + count - half) as u32, half as u32))
}
