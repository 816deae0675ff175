//! From a new child to an init behind walls: the steps that a new sandbox takes, in the order that makes each possible
//! and none reversible.
//!
//! ```text
//! control group -> network and mounts of its cell -> /proc -> workspace -> limits -> user -> user namespace
//!   -> capabilities -> no_new_privs -> Landlock -> seccomp -> measure -> execute the init, which says Ready
//! ```
//!
//! The user namespace comes last of the namespaces, so that the sandbox owns none of the others.
//!
//! All of this may run in the launcher's own memory, while the launcher waits. So nothing here outlives the return from
//! [`NewSandbox::prepare`], what is the launcher's is only read, and nothing reads what others can write.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use cofferdam_linux::cgroup::Base;
use cofferdam_linux::landlock::{Ruleset, access};
use cofferdam_linux::mount::{self, Depth, attr};
use cofferdam_linux::process::{self, DumpableState, Resource};
use cofferdam_linux::spawn::{self, Fork, SharedPid};
use cofferdam_linux::{caps, cgroup, namespace, seccomp};
use rustix::fs::{Mode, OFlags, openat};

use super::cells::{self, Cell};
use super::init::InitProgram;
use super::init::handover::{Handover, MAX_BYTES, MAX_FDS, Measured};
use super::template::Template;
use super::{Filters, Identity, Named, PATIENCE, PID_SPACE, Step, evidence, network};
use crate::protocol::{self, Create, Event, Evidence, Expected, Failure, HostFacts, WorkspacePlan};

/// User and group inside every sandbox.
pub const INSIDE_ID: u32 = 1000;
/// Open descriptors of one program.
const MAX_OPEN_FILES: u64 = 4096;
/// The same where the init itself watches memory: each may hold some in the kernel that no process is charged for. Also
/// where sandboxes run as the caller: the kernel compares what all processes of that user have sent with this limit of the
/// sender, and the caller's own programs have a limit of 1024 by default.
const MAX_SHARED_OPEN_FILES: u64 = 512;
const LOCKED_MEMORY: u64 = 8 << 20;
/// A quarter of what a user has by default, for sandboxes of the same user share that.
const MESSAGE_QUEUE_BYTES: u64 = 200 << 10;
const PENDING_SIGNALS: u64 = 1024;
/// How much larger than all stored bytes a file may look. Programs that fill the disk meet ENOSPC before this limit.
const FILE_SIZE_SLACK: u64 = 1 << 20;
const OPEN_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What a new sandbox is made from, and what is asked of it.
pub struct Setup<'a> {
    pub cell: &'a Cell,
    pub join_files: &'a [OwnedFd],
    pub groups: &'a [BorrowedFd<'a>],
    /// The one of them in which tasks are counted.
    pub counting_dir: Option<BorrowedFd<'a>>,
    pub group_base: Base,
    pub identity: Identity,
    pub facts: &'a HostFacts,
    /// Holds the child's number outside.
    pub outside_pid: &'a SharedPid,
    pub template: &'a Template,
    pub filters: &'a Filters,
    pub create: &'a Create,
    pub control: BorrowedFd<'a>,
    /// A detached mount of the host directory that becomes the workspace.
    pub workspace: Option<&'a OwnedFd>,
    /// What becomes process 1.
    pub init: &'a InitProgram,
    pub watch_bounds: WatchBounds,
}

/// How many of the host's counts of watches a sandbox may have. The kernel keeps them for a user: where sandboxes run as
/// the caller, they share them.
#[derive(Debug, Clone, Copy)]
pub struct WatchBounds {
    instances: u64,
    watches: u64,
    /// Bytes that the unread events of one instance may hold.
    queue: u64,
}

/// What an event with a long name takes in the kernel.
const WATCH_EVENT_BYTES: u64 = 512;
/// Instances that a sandbox may have however little memory it has: a watcher, and one in a program that it starts.
const MIN_WATCH_INSTANCES: u64 = 2;

impl WatchBounds {
    /// Reads what the host gives a user, and takes an eighth of it.
    pub fn read() -> Self {
        let setting = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).unwrap_or_default();
            text.trim().parse::<u64>().ok()
        };
        let share = |name, least, most| (setting(name).unwrap_or(0) / 8).clamp(least, most);
        Self {
            instances: share("max_user_instances", 4, 64),
            watches: share("max_user_watches", 1024, 65_536),
            queue: setting("max_queued_events").map_or(u64::MAX, |events| events.saturating_mul(WATCH_EVENT_BYTES)),
        }
    }

    /// Returns how many instances a sandbox may have whose memory is limited to so many bytes and whose events are charged
    /// to no control group: as many as fill an eighth of the limit with events that nothing reads.
    fn instances_within(&self, memory: u64) -> u64 {
        let fitting = (memory / 8).checked_div(self.queue).unwrap_or(u64::MAX);
        self.instances.min(fitting.max(MIN_WATCH_INSTANCES))
    }
}

/// What the host gets to work with the sandbox's files, and what must not be closed before the walls are measured.
struct Rooms {
    workspace: OwnedFd,
    code: OwnedFd,
    quotas: QuotaFds,
    /// True where the kernel bounds the queues of listening sockets.
    backlog_bounded: bool,
    /// Tasks in the control group.
    members: u64,
    /// The user that the sandbox is outside.
    outside_uid: u32,
}

/// What the init keeps its quotas with.
struct QuotaFds {
    listener: OwnedFd,
    locks: OwnedFd,
}

/// A new child: builds the walls around itself, then becomes process 1.
pub struct NewSandbox<'a>(pub Setup<'a>);

impl spawn::Child for NewSandbox<'_> {
    fn prepare(&mut self) -> Result<RawFd, i32> {
        let setup = &self.0;
        match build(setup).and_then(|rooms| hand_over(setup, rooms)) {
            Ok(()) => Ok(setup.init.raw()),
            Err(failure) => Err(self.fail(failure)),
        }
    }

    fn refused(&mut self, error: io::Error) -> i32 {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        self.fail(Failure { step: "execute the init".to_owned(), errno })
    }
}

impl NewSandbox<'_> {
    /// Tells the host, and gives the exit code.
    fn fail(&self, failure: Failure) -> i32 {
        let _ = protocol::send(self.0.control, &Event::Failed(failure), &[], PATIENCE);
        1
    }
}

fn build(setup: &Setup<'_>) -> Step<Rooms> {
    let ids = outside_ids(setup)?;
    let members = lay_ground(setup)?;
    let proc = mount_proc(setup)?;
    let backlog_bounded = network::bound(proc.as_fd()).step("bound the sandbox's network")?;
    let (workspace, code) = settle_in(setup, ids, &proc)?;
    set_limits(setup.create, setup.groups.is_empty())?;
    // The mount of /proc that guests see covers it.
    let locks =
        openat(&proc, "locks", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step("open the list of locks")?;
    let (outside_uid, listener) = drop_privileges(setup, ids, &proc)?;
    Ok(Rooms { workspace, code, quotas: QuotaFds { listener, locks }, backlog_bounded, members, outside_uid })
}

/// Leaves the launcher's surroundings. Gives the number of tasks in the control group.
fn lay_ground(setup: &Setup<'_>) -> Step<u64> {
    let cell = setup.cell;
    // First of all: a core file is written by killing whatever shares the memory.
    // A limit of exactly 1 byte also stops cores that go to a pipe; the seccomp list keeps it so.
    process::set_limit(Resource::CORE, 1).step("forbid core files")?;
    let mut keep: Vec<i32> = vec![0, 1, 2, setup.control.as_raw_fd(), setup.init.raw()];
    keep.extend([&cell.network, &cell.ipc, &cell.own].map(AsRawFd::as_raw_fd));
    keep.extend(cell.mounts.iter().chain(&cell.rules).chain(setup.workspace).map(AsRawFd::as_raw_fd));
    keep.extend(setup.join_files.iter().map(AsRawFd::as_raw_fd));
    keep.extend(setup.groups.iter().map(AsRawFd::as_raw_fd));
    process::close_all_but(&mut keep);
    process::set_name(c"cofferdam-init");
    // Its own files in /proc are needed until the last wall is up; no guest exists before that.
    process::set_dumpable(DumpableState::Yes).step("open own proc files")?;
    for file in setup.join_files {
        rustix::io::write(file, b"0").step("join the control group")?;
    }
    let members = setup.counting_dir.map_or(0, cgroup::members);
    namespace::unshare(namespace::kind::CGROUP).step("make a cgroup namespace")?;
    namespace::join(cell.network.as_fd(), namespace::kind::NET).step("join the network namespace")?;
    namespace::join(cell.ipc.as_fd(), namespace::kind::IPC).step("join the IPC namespace")?;
    if let Some(mounts) = &cell.mounts {
        namespace::join(mounts.as_fd(), namespace::kind::MOUNT).step("join the mount namespace")?;
    }
    namespace::set_hostname("sandbox").step("set the host name")?;
    Ok(members)
}

/// The kernel's user and group of this sandbox.
fn outside_ids(setup: &Setup<'_>) -> Step<(u32, u32)> {
    match setup.identity {
        Identity::Unique { first, count } => {
            let pid = setup.outside_pid.get() as u32;
            let id = first + pid % count;
            // Process numbers that differ may give the same id only where there are fewer ids than numbers.
            let mut others = (pid % count..PID_SPACE).step_by(count as usize).filter(|other| *other != pid);
            if others.any(|other| runs_as(setup.template.host_proc(), other, id)) {
                let step = "find a user id that no other sandbox has (try again, or map more ids)".to_owned();
                return Err(Failure { step, errno: libc::EAGAIN });
            }
            Ok((id, id))
        }
        // In the launcher's user namespace, 0 is the caller.
        Identity::Caller => Ok((0, 0)),
    }
}

/// Returns whether a process exists and has this user id. One that cannot be read counts as having it.
fn runs_as(host_proc: BorrowedFd<'_>, pid: u32, id: u32) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(status) = openat(host_proc, format!("{pid}/status"), flags, Mode::empty()) else { return false };
    let mut text = [0; 1024];
    let length = rustix::io::read(&status, &mut text).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..length]);
    let ids = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_none_or(|ids| ids.split_whitespace().any(|other| other.parse() == Ok(id)))
}

/// Mounts `/proc`, masked and read-only, and gives a writable way to it for the steps that follow: a mount that the
/// read-only one covers.
fn mount_proc(setup: &Setup<'_>) -> Step<OwnedFd> {
    let flags = attr::NOSUID | attr::NODEV | attr::NOEXEC;
    let writable = mount::new_filesystem(c"proc", &[], flags).step("mount proc")?;
    mount::attach(writable.as_fd(), mount::cwd(), c"/proc").step("attach /proc")?;
    let shown = mount::clone_tree(mount::cwd(), c"/proc", Depth::Single).step("copy the mount of /proc")?;
    mount::add_attributes(shown.as_fd(), Depth::Single, attr::RDONLY).step("make /proc read-only")?;
    mount::attach(shown.as_fd(), mount::cwd(), c"/proc").step("cover /proc")?;
    for (paths, cover) in [(setup.template.masked_files(), c"/dev/null"), (setup.template.masked_dirs(), c"/sys")] {
        for path in paths {
            let cover = mount::clone_tree(mount::cwd(), cover, Depth::Single).step("copy a cover")?;
            match mount::attach(cover.as_fd(), mount::cwd(), path) {
                // Some files of /proc exist for root's eyes only.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                other => other.step("cover a file of /proc")?,
            }
        }
    }
    Ok(writable)
}

/// Fits the cell's writable directories to the request and puts the workspace in its place. Gives the workspace and the
/// directory for scripts.
fn settle_in(setup: &Setup<'_>, ids: (u32, u32), proc: &OwnedFd) -> Step<(OwnedFd, OwnedFd)> {
    let (create, own) = (setup.create, &setup.cell.own);
    setup.cell.resize(create.disk).step("bound the sandbox's tmpfs")?;
    let code = openat(own, "code", OPEN_DIR, Mode::empty()).step("open the code directory")?;
    let read_only = if create.read_only { attr::RDONLY } else { 0 };
    if let (WorkspacePlan::HostDir { uid, gid, .. }, Some(tree)) = (&create.workspace, setup.workspace) {
        let attributes = attr::NOSUID | attr::NODEV | read_only;
        mount::add_attributes(tree.as_fd(), Depth::Recursive, attributes).step("restrict the workspace")?;
        if matches!(setup.identity, Identity::Unique { .. }) {
            show_owner_as(tree.as_fd(), (*uid, *gid), ids, proc)?;
        }
        mount::attach(tree.as_fd(), mount::cwd(), c"/workspace").step("attach the workspace")?;
        return Ok((tree.as_fd().try_clone_to_owned().step("keep the workspace")?, code));
    }
    let (uid, gid) = (rustix::fs::Uid::from_raw(ids.0), rustix::fs::Gid::from_raw(ids.1));
    rustix::fs::chownat(own, "workspace", Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .step("give the workspace to the sandbox's user")?;
    if read_only != 0 {
        mount::add_attributes_at(c"/workspace", read_only).step("make the workspace read-only")?;
    }
    Ok((openat(own, "workspace", OPEN_DIR, Mode::empty()).step("open the workspace")?, code))
}

/// Makes a host directory's owner appear as the sandbox's user, and what that user makes belong to the owner.
fn show_owner_as(tree: BorrowedFd<'_>, owner: (u32, u32), ids: (u32, u32), proc: &OwnedFd) -> Step<()> {
    let (ready, ready_writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step("make a pipe")?;
    let helper = match spawn::fork(namespace::kind::USER, None, None).step("make a user namespace for the workspace")? {
        Fork::Child => {
            drop(ready_writer);
            let _ = rustix::io::read(&ready, &mut [0u8; 1]);
            process::exit_now(0)
        }
        Fork::Parent(pid) => pid,
    };
    let dir = helper.to_string();
    let mapped = namespace::map_ids(proc.as_fd(), &dir, owner, ids)
        .step("map the workspace's owner")
        .and_then(|()| {
            openat(proc, format!("{dir}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .step("open the workspace's user namespace")
        })
        .and_then(|user| {
            mount::map_owners(tree, user.as_fd())
                .step("map owners on the workspace's file system (it must support idmapped mounts)")
        });
    drop(ready_writer);
    let _ = rustix::process::waitpid(rustix::process::Pid::from_raw(helper), rustix::process::WaitOptions::empty());
    mapped
}

fn set_limits(create: &Create, watched: bool) -> Step<()> {
    for (resource, value) in [
        (Resource::LOCKED_MEMORY, LOCKED_MEMORY),
        (Resource::MESSAGE_QUEUES, MESSAGE_QUEUE_BYTES),
        (Resource::PENDING_SIGNALS, PENDING_SIGNALS),
    ] {
        process::cap_limit(resource, value).step("set a limit")?;
    }
    if let Some(bytes) = create.disk {
        process::cap_limit(Resource::FILE_SIZE, file_size(create, bytes)).step("limit the size of a file")?;
    }
    if let Some(micros) = create.cpu_micros {
        process::cap_limit(Resource::CPU, micros.div_ceil(1_000_000) + 1).step("limit CPU time")?;
    }
    if !watched {
        return Ok(());
    }
    if let Some(bytes) = create.memory {
        process::cap_limit(Resource::DATA, bytes).step("limit memory")?;
    }
    let processors = create.cpu_millis.filter(|millis| millis % 1000 == 0).map(|millis| millis / 1000);
    if let Some(count) = processors {
        process::pin_to(count as usize).step("limit processors")?;
    }
    Ok(())
}

/// Returns the largest size that a file may have, holes included.
fn file_size(create: &Create, disk: u64) -> u64 {
    match create.workspace {
        WorkspacePlan::HostDir { .. } if !create.read_only => disk,
        // A tmpfs bounds what is stored: programs are to meet its ENOSPC and not a signal. Memory files count as memory.
        _ => disk.max(create.memory.unwrap_or(0)).saturating_add(FILE_SIZE_SLACK),
    }
}

/// Returns how many descriptors a program may have open.
fn open_files(setup: &Setup<'_>) -> u64 {
    let shared = setup.groups.is_empty() || matches!(setup.identity, Identity::Caller);
    let most = if shared { MAX_SHARED_OPEN_FILES } else { MAX_OPEN_FILES };
    // Well below the init's, which has to send some while programs send theirs.
    most.min(process::most_of(Resource::OPEN_FILES).unwrap_or(0) / 2)
}

/// Bounds what the kernel counts for a user across sandboxes, inside the sandbox's own user namespace. The kernel reads the
/// limit of each namespace on the way up.
fn bound_user_counts(setup: &Setup<'_>, proc: &OwnedFd) -> Step<()> {
    let bounds = setup.watch_bounds;
    let instances = match setup.create.memory.filter(|_| setup.groups.is_empty()) {
        Some(memory) => bounds.instances_within(memory),
        None => bounds.instances,
    };
    for (name, most) in [
        ("inotify_instances", instances),
        ("inotify_watches", bounds.watches),
        // What the filter of system calls refuses besides.
        ("fanotify_groups", 0),
        ("user_namespaces", 0),
    ] {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = match openat(proc, format!("sys/user/max_{name}"), flags, Mode::empty()) {
            // A kernel without this kind of thing.
            Err(rustix::io::Errno::NOENT) => continue,
            other => other.step("open a bound of the user namespace")?,
        };
        rustix::io::write(&file, format!("{most}\n").as_bytes()).step("bound what the user namespace may have")?;
    }
    Ok(())
}

/// Gives up every right. Returns the user that the sandbox is outside its user namespace, and the listener of its filter:
/// from here on, no call may be made that the filter asks about.
fn drop_privileges(setup: &Setup<'_>, ids: (u32, u32), proc: &OwnedFd) -> Step<(u32, OwnedFd)> {
    if let Identity::Unique { .. } = setup.identity {
        process::become_user(ids.0, ids.1).step("become the sandbox's user")?;
    }
    process::set_dumpable(DumpableState::Yes).step("open own maps")?;
    let outside_uid = rustix::process::getuid().as_raw();
    namespace::unshare(namespace::kind::USER).step("make the sandbox's user namespace")?;
    namespace::map_ids(proc.as_fd(), "self", (INSIDE_ID, INSIDE_ID), ids).step("map the sandbox's user")?;
    process::become_user_inside(INSIDE_ID).step("take the sandbox's user")?;
    if let Some(tasks) = setup.create.tasks.filter(|_| setup.groups.is_empty()) {
        // The init counts as well. The kernel counts by user and user namespace, and each sandbox has its own; set any
        // earlier, the limit would also hold for what the user runs outside of this namespace.
        process::cap_limit(Resource::TASKS, tasks + 1).step("limit processes")?;
    }
    bound_user_counts(setup, proc)?;
    process::set_dumpable(DumpableState::No).step("hide the init's memory")?;
    process::die_with_parent().step("die with the launcher")?;
    caps::drop_all().step("drop capabilities")?;
    process::set_no_new_privileges().step("set no_new_privs")?;
    if let Some(rules) = &setup.cell.rules {
        restrict_paths(setup, rules).step("enforce Landlock")?;
    }
    // The other, longer part of the filter is the launcher's, and came with the clone.
    // Where another program has a listener on this process already, as some container managers do, this fails with EBUSY.
    let counting = setup.create.processes.map(|_| setup.filters.late_counting_processes());
    let listener = seccomp::install_with_listener(counting.as_ref().unwrap_or(&setup.filters.late))
        .step("install the seccomp filter with a listener")?;
    rustix::process::chdir("/").step("enter the root")?;
    Ok((outside_uid, listener))
}

fn restrict_paths(setup: &Setup<'_>, rules: &OwnedFd) -> std::io::Result<()> {
    let rules = Ruleset::from_fd(rules.try_clone()?, setup.facts.landlock_abi);
    cells::allow(&rules, c"/proc", access::READ)?;
    let read_only = access::READ | access::EXECUTE;
    cells::allow(&rules, c"/workspace", if setup.create.read_only { read_only } else { access::ALL })?;
    setup.init.allow_in(&rules)?;
    rules.enforce()
}

/// Measures the sandbox, and leaves to the init what it needs: numbers and evidence in a pipe, the descriptors open.
fn hand_over(setup: &Setup<'_>, rooms: Rooms) -> Step<()> {
    let create = setup.create;
    let watching = setup.groups.is_empty() && (create.memory.is_some() || create.cpu_micros.is_some());
    let own_root = setup.template.has_own_root();
    let mut evidence = evidence::collect(watching, create.probe, own_root, create.read_only);
    let base = setup.group_base;
    evidence.group_base = (base.memory_kills, base.forks_refused, base.memory);
    evidence.members = rooms.members;
    evidence.outside_uid = rooms.outside_uid;
    let own = process::pidfd(std::process::id() as i32).step("open the init's descriptor")?;
    let QuotaFds { listener, locks } = rooms.quotas;
    let numbers = Handover {
        listener: listener.into_raw_fd(),
        locks: locks.into_raw_fd(),
        backlog_unbounded: !rooms.backlog_bounded,
        ..numbers(setup, watching, &evidence)
    };
    let (handover, mut keep) = keep_open(setup, numbers, [own, rooms.workspace, rooms.code])?;
    pass_on(&handover, &evidence).step("hand over to the init")?;
    process::close_all_but(&mut keep);
    Ok(())
}

fn numbers(setup: &Setup<'_>, watching: bool, evidence: &Evidence) -> Handover {
    let create = setup.create;
    Handover {
        mark: setup.filters.mark_key.arguments(),
        control: setup.control.as_raw_fd(),
        watch_memory: create.memory.filter(|_| watching),
        watch_cpu: create.cpu_micros.filter(|_| watching),
        max_processes: create.processes,
        open_files: open_files(setup),
        // Without a disk limit nothing else bounds them.
        counts_files: create.disk.is_none(),
        as_expected: match &create.expected {
            Some(Expected::Same(other)) => evidence.is_as(other),
            Some(Expected::Whole) => evidence.is_whole(create, setup.facts),
            None => false,
        },
        measured: Measured {
            capabilities: evidence.capabilities,
            no_new_privileges: evidence.no_new_privileges,
            seccomp: evidence.seccomp,
        },
        ..Handover::default()
    }
}

/// Lets the init inherit what it is to send with the evidence, and its socket. Gives also everything that must not be
/// closed.
fn keep_open(setup: &Setup<'_>, mut handover: Handover, own: [OwnedFd; 3]) -> Step<(Handover, [RawFd; MAX_FDS + 7])> {
    let groups = setup.groups.iter().map(AsRawFd::as_raw_fd);
    let sent = own.map(IntoRawFd::into_raw_fd).into_iter().chain(groups);
    for (slot, fd) in handover.fds.iter_mut().zip(sent) {
        *slot = fd;
        handover.fd_count += 1;
    }
    let mut keep = [0; MAX_FDS + 7];
    let inherited = [handover.control, handover.listener, handover.locks];
    let fixed = inherited.into_iter().chain([0, 1, 2, setup.init.raw()]);
    let kept = handover.fds[..handover.fd_count].iter().copied().chain(fixed);
    for (slot, fd) in keep.iter_mut().zip(kept) {
        *slot = fd;
    }
    for fd in handover.fds[..handover.fd_count].iter().chain(&inherited) {
        process::keep_on_exec(*fd).step("keep a descriptor for the init")?;
    }
    Ok((handover, keep))
}

/// Puts the hand-over into a pipe that nobody else has, for the key of the marks is a secret. The init reads it as its
/// standard input.
fn pass_on(handover: &Handover, evidence: &Evidence) -> io::Result<()> {
    let body = postcard::to_extend(evidence, handover.encode().to_vec()).map_err(io::Error::other)?;
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    let (reader, writer) = rustix::pipe::pipe_with(flags)?;
    if body.len() > MAX_BYTES || rustix::io::write(&writer, &body)? != body.len() {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    process::duplicate_to(reader.as_fd(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_id_is_taken_only_while_a_process_has_it() {
        let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let own = (std::process::id(), rustix::process::getuid().as_raw());
        assert!(runs_as(proc.as_fd(), own.0, own.1));
        assert!(!runs_as(proc.as_fd(), own.0, own.1 + 1));
        assert!(!runs_as(proc.as_fd(), PID_SPACE + 1, own.1));
    }

    #[test]
    fn shares_of_watches_lie_well_below_the_hosts() {
        let WatchBounds { instances, watches, queue } = WatchBounds::read();
        assert!((4..=64).contains(&instances) && (1024..=65_536).contains(&watches), "{instances} {watches}");
        assert!(queue >= WATCH_EVENT_BYTES, "{queue}");
    }

    #[test]
    fn events_that_nothing_reads_fill_an_eighth_of_the_memory_limit() {
        let bounds = WatchBounds { instances: 16, watches: 1024, queue: 8 << 20 };
        let within = |mebibytes: u64| bounds.instances_within(mebibytes << 20);
        assert_eq!([64, 512, 768, 4096].map(within), [2, 8, 12, 16]);
        let unknown = WatchBounds { queue: u64::MAX, ..bounds };
        assert_eq!(unknown.instances_within(4 << 30), MIN_WATCH_INSTANCES);
        let few = WatchBounds { instances: 1, ..bounds };
        assert_eq!(few.instances_within(64 << 20), 1);
    }
}
