//! The steps from a new child to an isolated init. Each step is irreversible, and their order makes each possible.
//!
//! ```text
//! control group -> prepared network and mounts -> /proc -> workspace -> limits -> user -> user namespace
//!   -> capabilities -> no_new_privs -> Landlock -> seccomp -> measure -> execute the init, which sends Ready
//! ```
//!
//! The user namespace is created after the other namespaces, so that the sandbox owns none of them.
//!
//! All of this may run in the launcher's own memory, while the launcher waits. So nothing here outlives the return from
//! [`NewSandbox::prepare`], the launcher's data is only read, and nothing reads data that other processes can write.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use cofferdam_linux::cgroup::Base;
use cofferdam_linux::landlock::{Ruleset, access};
use cofferdam_linux::mount::{self, Depth, attr};
use cofferdam_linux::process::{self, DumpableState, Resource};
use cofferdam_linux::spawn::{self, SharedPid};
use cofferdam_linux::{caps, cgroup, message, namespace, seccomp};
use rustix::fs::{Mode, OFlags, openat};

use super::init::InitProgram;
use super::init::handover::{Handoff, MAX_BYTES, MAX_FDS, Measured};
use super::mounts::attach_mounts;
use super::namespace_pool::{self, PreparedNamespaces};
use super::template::{HostMounts, Template};
use super::workspace::mount_workspace;
use super::{Filters, Identity, Named, PID_SPACE, SEND_TIMEOUT, Step, certificates, evidence, mounts, network};
use crate::protocol::{
    self, Create, Event, Evidence, Expected, Failure, HostFacts, MountFrom, MountPlan, NetworkPlan, WorkspacePlan,
    address_space,
};

/// The maximum of open descriptors of one program.
const MAX_OPEN_FILES: u64 = 4096;
/// The same if the init itself watches memory: each descriptor may hold kernel memory that is charged to no process. It
/// also applies if sandboxes run as the caller: the kernel compares the descriptors in flight of all processes of that
/// user with this limit of the sender, and the caller's own programs have a limit of 1024 by default.
const MAX_SHARED_OPEN_FILES: u64 = 512;
const LOCKED_MEMORY: u64 = 8 << 20;
/// A quarter of a user's default, because sandboxes of the same user share it.
const MESSAGE_QUEUE_BYTES: u64 = 200 << 10;
const PENDING_SIGNALS: u64 = 1024;
/// The largest difference between a file's size and all stored bytes. Programs that fill the disk get ENOSPC before
/// this limit.
const FILE_SIZE_SLACK: u64 = 1 << 20;
pub const OPEN_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The request for a new sandbox and the resources for it.
pub struct Setup<'a> {
    pub prepared: &'a PreparedNamespaces,
    pub join_files: &'a [OwnedFd],
    pub groups: &'a [BorrowedFd<'a>],
    /// The one of `groups` in which tasks are counted.
    pub counting_dir: Option<BorrowedFd<'a>>,
    pub group_base: Base,
    pub group_bounds: [Option<u64>; 3],
    pub identity: Identity,
    pub facts: &'a HostFacts,
    /// Contains the child's process id outside.
    pub outside_pid: &'a SharedPid,
    pub template: &'a Template,
    pub filters: &'a Filters,
    pub create: &'a Create,
    pub control: BorrowedFd<'a>,
    pub host_mounts: &'a HostMounts,
    /// The program that becomes process 1.
    pub init: &'a InitProgram,
    pub watch_bounds: WatchBounds,
}

/// The share of the host's inotify limits that a sandbox gets. The kernel counts for each user: if sandboxes run as the
/// caller, they share the limits.
#[derive(Debug, Clone, Copy)]
pub struct WatchBounds {
    instances: u64,
    watches: u64,
    /// The maximum size in bytes of the unread events of one instance.
    queue: u64,
}

/// The kernel memory of an event with a long name.
const WATCH_EVENT_BYTES: u64 = 512;
/// The minimum of instances with any memory limit: one for a watcher, and one for a program that it starts.
const MIN_WATCH_INSTANCES: u64 = 2;

impl WatchBounds {
    /// Reads the host's limits for a user, and takes an eighth of them.
    pub fn read() -> Self {
        let setting = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).unwrap_or_default();
            text.trim().parse::<u64>().ok()
        };
        let share = |name, min, max| (setting(name).unwrap_or(0) / 8).clamp(min, max);
        Self {
            instances: share("max_user_instances", 4, 64),
            watches: share("max_user_watches", 1024, 65_536),
            queue: setting("max_queued_events").map_or(u64::MAX, |events| events.saturating_mul(WATCH_EVENT_BYTES)),
        }
    }

    /// Returns the maximum of instances for a sandbox with this memory limit, if events are charged to no control
    /// group: so many that their unread events fill an eighth of the limit.
    fn instances_within(&self, memory: u64) -> u64 {
        let fitting = (memory / 8).checked_div(self.queue).unwrap_or(u64::MAX);
        self.instances.min(fitting.max(MIN_WATCH_INSTANCES))
    }
}

/// Descriptors for the host and the init, which must stay open until the sandbox is measured, with facts that only this
/// phase can find.
struct Handles {
    workspace: OwnedFd,
    code: OwnedFd,
    /// The layer of a copy-on-write workspace.
    upper: Option<OwnedFd>,
    quotas: QuotaFds,
    /// True if the kernel limits the queues of listening sockets.
    backlog_bounded: bool,
    /// The number of tasks in the control group.
    members: u64,
    /// The user id of the sandbox outside its user namespace.
    outside_uid: u32,
}

/// Descriptors that the init needs to enforce quotas.
struct QuotaFds {
    listener: OwnedFd,
    locks: OwnedFd,
}

/// A new child, which isolates itself and then becomes process 1.
pub struct NewSandbox<'a>(pub Setup<'a>);

impl spawn::Child for NewSandbox<'_> {
    fn prepare(&mut self) -> Result<RawFd, i32> {
        let setup = &self.0;
        match build(setup).and_then(|handles| handoff(setup, handles)) {
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
    /// Sends the failure to the host and returns the exit code.
    fn fail(&self, failure: Failure) -> i32 {
        let _ = protocol::send(self.0.control, &Event::Failed(failure), &[], SEND_TIMEOUT);
        1
    }
}

fn build(setup: &Setup<'_>) -> Step<Handles> {
    let ids = outside_ids(setup)?;
    let members = enter_namespaces(setup)?;
    let proc = mount_proc(setup)?;
    // The owner accepts at once. So these sockets may have longer queues than the sandbox's own.
    if let Some(plan) = &setup.create.network {
        send_sockets(setup, plan)?;
    }
    let backlog_bounded = network::bound(proc.as_fd()).step("bound the sandbox's network")?;
    let (workspace, upper) = mount_workspace(setup, ids, &proc)?;
    let code = openat(&setup.prepared.own, "code", OPEN_DIR, Mode::empty()).step("open the code directory")?;
    if setup.create.network.as_ref().is_some_and(|plan| plan.certificates) {
        certificates::cover(&code)?;
    }
    let mounted = attach_mounts(setup, ids, &proc)?;
    set_limits(setup.create, setup.groups.is_empty())?;
    // Open it now: the mount of /proc that guests see covers it.
    let locks =
        openat(&proc, "locks", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).step("open the list of locks")?;
    let (outside_uid, listener) = drop_privileges(setup, ids, &proc, &mounted)?;
    Ok(Handles { workspace, code, upper, quotas: QuotaFds { listener, locks }, backlog_bounded, members, outside_uid })
}

/// Creates the sockets of the sandbox's network, and sends them to the host.
fn send_sockets(setup: &Setup<'_>, plan: &NetworkPlan) -> Step<()> {
    let sockets = network::open_sockets(plan).step("create the sockets of the sandbox's network")?;
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    for part in sockets.chunks(message::MAX_FDS) {
        protocol::send(setup.control, &Event::Sockets, part, SEND_TIMEOUT).step("send the sockets of the network")?;
    }
    Ok(())
}

/// Closes inherited descriptors, then enters the control group and the prepared namespaces. Returns the number of tasks
/// in the control group.
fn enter_namespaces(setup: &Setup<'_>) -> Step<u64> {
    let prepared = setup.prepared;
    // This comes first: to write a core file, the kernel kills all processes that share the memory. A limit of exactly
    // 1 byte also prevents cores that go to a pipe. The seccomp filter prevents changes of it.
    process::set_limit(Resource::CORE, 1).step("forbid core files")?;
    let mut keep: Vec<i32> = vec![0, 1, 2, setup.control.as_raw_fd(), setup.init.raw()];
    keep.extend(prepared.fds().chain(setup.host_mounts.iter()).map(AsRawFd::as_raw_fd));
    keep.extend(setup.join_files.iter().map(AsRawFd::as_raw_fd));
    keep.extend(setup.groups.iter().map(AsRawFd::as_raw_fd));
    process::close_all_but(&mut keep);
    process::set_name(c"cofferdam-init");
    // Later steps need the child's own files in /proc. No guest exists before isolation is complete.
    process::set_dumpable(DumpableState::Yes).step("open own proc files")?;
    for file in setup.join_files {
        rustix::io::write(file, b"0").step("join the control group")?;
    }
    let members = setup.counting_dir.map_or(0, cgroup::members);
    namespace::unshare(namespace::kind::CGROUP).step("create a cgroup namespace")?;
    namespace::join(prepared.network.as_fd(), namespace::kind::NET).step("join the network namespace")?;
    namespace::join(prepared.ipc.as_fd(), namespace::kind::IPC).step("join the IPC namespace")?;
    if let Some(mounts) = &prepared.mounts {
        namespace::join(mounts.as_fd(), namespace::kind::MOUNT).step("join the mount namespace")?;
    }
    namespace::set_hostname("sandbox").step("set the host name")?;
    Ok(members)
}

/// Returns the user and group of this sandbox outside its user namespace.
fn outside_ids(setup: &Setup<'_>) -> Step<(u32, u32)> {
    match setup.identity {
        Identity::Unique { first, count } => {
            let pid = setup.outside_pid.get() as u32;
            let proc = setup.template.host_proc();
            let Some(id) = unique_id((first, count), pid, |other, id| runs_as(proc, other, id)) else {
                let step = "find a user id that no other sandbox has (try again, or map more ids)".to_owned();
                return Err(Failure { step, errno: libc::EAGAIN });
            };
            Ok((id, id))
        }
        // In the launcher's user namespace, 0 is the caller.
        Identity::Caller => Ok((0, 0)),
    }
}

/// Returns the user id for a process id, from a range with this start and length. Returns `None` if another process that
/// the range gives the same id runs as it.
fn unique_id((first, count): (u32, u32), pid: u32, mut runs_as: impl FnMut(u32, u32) -> bool) -> Option<u32> {
    let id = first + pid % count;
    // Different process ids can give the same user id only if there are fewer user ids than process ids.
    let mut others = (pid % count..PID_SPACE).step_by(count as usize).filter(|other| *other != pid);
    (!others.any(|other| runs_as(other, id))).then_some(id)
}

/// Returns true if a process exists and has this user id, or if its status cannot be read.
fn runs_as(host_proc: BorrowedFd<'_>, pid: u32, id: u32) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(status) = openat(host_proc, format!("{pid}/status"), flags, Mode::empty()) else { return false };
    let mut text = [0; 1024];
    let length = rustix::io::read(&status, &mut text).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..length]);
    let ids = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_none_or(|ids| ids.split_whitespace().any(|other| other.parse() == Ok(id)))
}

/// Mounts `/proc`, masked and read-only. Returns a writable mount of it for the next steps, which the read-only one
/// covers.
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
                // Only root can see some files of /proc.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                other => other.step("cover a file of /proc")?,
            }
        }
    }
    Ok(writable)
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
        process::cap_limit(Resource::FILE_SIZE, file_size(create, bytes)).step("limit the size of files")?;
    }
    if let Some(micros) = create.cpu_micros {
        process::cap_limit(Resource::CPU, micros.div_ceil(1_000_000) + 1).step("limit CPU time")?;
    }
    if !watched {
        return Ok(());
    }
    if let Some(bytes) = create.memory {
        process::cap_limit(Resource::DATA, bytes).step("limit memory")?;
        process::cap_limit(Resource::ADDRESS_SPACE, address_space(bytes)).step("limit address space")?;
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
        WorkspacePlan::HostDir { copy_on_write: false, .. } if !create.read_only => disk,
        _ if create.mounts.iter().any(MountPlan::writes_to_host) => disk,
        // The tmpfs limits what is stored: programs must get its ENOSPC rather than a signal. Files in memory count as
        // memory.
        _ => disk.max(create.memory.unwrap_or(0)).max(largest_mount(create)).saturating_add(FILE_SIZE_SLACK),
    }
}

/// Returns the size of the largest mount that has one.
fn largest_mount(create: &Create) -> u64 {
    let sizes = create.mounts.iter().map(|mount| match mount.source {
        MountFrom::Tmpfs(size) | MountFrom::Disk { size, .. } => size,
        MountFrom::Host { .. } => 0,
    });
    sizes.max().unwrap_or(0)
}

/// Returns the maximum of open descriptors of a program.
fn open_files(setup: &Setup<'_>) -> u64 {
    let shared = setup.groups.is_empty() || matches!(setup.identity, Identity::Caller);
    let max = if shared { MAX_SHARED_OPEN_FILES } else { MAX_OPEN_FILES };
    // This is well below the init's limit: the init has to send descriptors while programs send theirs.
    max.min(process::hard_limit(Resource::OPEN_FILES).unwrap_or(0) / 2)
}

/// Limits objects that the kernel counts for a user across sandboxes, inside the sandbox's own user namespace. The
/// kernel checks the limit of each namespace on the way up.
fn bound_user_counts(setup: &Setup<'_>, proc: &OwnedFd) -> Step<()> {
    let bounds = setup.watch_bounds;
    let instances = match setup.create.memory.filter(|_| setup.groups.is_empty()) {
        Some(memory) => bounds.instances_within(memory),
        None => bounds.instances,
    };
    for (name, max) in [
        ("inotify_instances", instances),
        ("inotify_watches", bounds.watches),
        // The system-call filter refuses these as well.
        ("fanotify_groups", 0),
        ("user_namespaces", 0),
    ] {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = match openat(proc, format!("sys/user/max_{name}"), flags, Mode::empty()) {
            // The kernel has no such objects.
            Err(rustix::io::Errno::NOENT) => continue,
            other => other.step("open a limit of the user namespace")?,
        };
        rustix::io::write(&file, format!("{max}\n").as_bytes()).step("set a limit of the user namespace")?;
    }
    Ok(())
}

/// Gives up all privileges. Returns the sandbox's user id outside its user namespace, and the listener of its filter.
/// After this, no call is allowed that the filter reports to the listener.
fn drop_privileges(setup: &Setup<'_>, ids: (u32, u32), proc: &OwnedFd, mounted: &[OwnedFd]) -> Step<(u32, OwnedFd)> {
    if let Identity::Unique { .. } = setup.identity {
        process::become_user(ids.0, ids.1).step("become the sandbox's user")?;
    }
    process::set_dumpable(DumpableState::Yes).step("open own maps")?;
    let outside_uid = rustix::process::getuid().as_raw();
    namespace::unshare(namespace::kind::USER).step("create the sandbox's user namespace")?;
    namespace::map_ids(proc.as_fd(), "self", setup.create.inside, ids).step("map the sandbox's user")?;
    process::become_user_inside(setup.create.inside).step("take the sandbox's user")?;
    if let Some(tasks) = setup.create.tasks.filter(|_| setup.groups.is_empty()) {
        // The init counts as well. The kernel counts for each user and user namespace, and each sandbox has its own
        // namespace. If it were set earlier, the limit would also apply to processes of the user outside of this
        // namespace.
        process::cap_limit(Resource::TASKS, tasks + 1).step("limit processes")?;
    }
    bound_user_counts(setup, proc)?;
    process::set_dumpable(DumpableState::No).step("hide the init's memory")?;
    process::die_with_parent().step("die with the launcher")?;
    caps::drop_all().step("drop capabilities")?;
    process::set_no_new_privileges().step("set no_new_privs")?;
    if let Some(rules) = &setup.prepared.rules {
        restrict_paths(setup, rules, mounted).step("enforce Landlock")?;
    }
    // The first stage of the filter is inherited from the launcher. This fails with EBUSY if another program already
    // has a listener on this process, as some container managers do.
    let counting = setup.create.processes.map(|_| setup.filters.late_with_process_limit());
    let listener = seccomp::install_with_listener(counting.as_ref().unwrap_or(&setup.filters.late))
        .step("install the seccomp filter with a listener")?;
    rustix::process::chdir("/").step("enter the root")?;
    Ok((outside_uid, listener))
}

fn restrict_paths(setup: &Setup<'_>, rules: &OwnedFd, mounted: &[OwnedFd]) -> std::io::Result<()> {
    let rules = Ruleset::from_fd(rules.try_clone()?, setup.facts.landlock_abi);
    namespace_pool::allow(&rules, c"/proc", access::READ)?;
    let read_only = access::READ | access::EXECUTE;
    namespace_pool::allow(&rules, c"/workspace", if setup.create.read_only { read_only } else { access::ALL })?;
    mounts::allow(&rules, &setup.create.mounts, mounted)?;
    setup.init.allow_in(&rules)?;
    rules.enforce()
}

/// Measures the sandbox and leaves to the init what it needs: numbers and evidence in a pipe, and open descriptors.
fn handoff(setup: &Setup<'_>, handles: Handles) -> Step<()> {
    let create = setup.create;
    let watching = setup.groups.is_empty() && (create.memory.is_some() || create.cpu_micros.is_some());
    let own_root = setup.template.has_own_root();
    let mut evidence = evidence::collect(watching, own_root, create);
    let base = setup.group_base;
    evidence.group_base = (base.memory_kills, base.forks_refused, base.memory);
    evidence.group_bounds = setup.group_bounds;
    evidence.members = handles.members;
    evidence.outside_uid = handles.outside_uid;
    let own = process::pidfd(std::process::id() as i32).step("open the init's descriptor")?;
    let QuotaFds { listener, locks } = handles.quotas;
    let numbers = Handoff {
        listener: listener.into_raw_fd(),
        locks: locks.into_raw_fd(),
        backlog_unbounded: !handles.backlog_bounded,
        ..numbers(setup, watching, &evidence)
    };
    let own = [own, handles.workspace, handles.code].into_iter().chain(handles.upper);
    let (handoff, mut keep) = keep_open(setup, numbers, own)?;
    write_handoff(&handoff, &evidence).step("pass the handoff to the init")?;
    process::close_all_but(&mut keep);
    Ok(())
}

fn numbers(setup: &Setup<'_>, watching: bool, evidence: &Evidence) -> Handoff {
    let create = setup.create;
    Handoff {
        tag: setup.filters.tag_key.arguments(),
        control: setup.control.as_raw_fd(),
        watch_memory: create.memory.filter(|_| watching),
        watch_cpu: create.cpu_micros.filter(|_| watching),
        max_processes: create.processes,
        open_files: open_files(setup),
        // Without a disk limit, nothing else limits them.
        counts_files: create.disk.is_none(),
        matches_expected: match &create.expected {
            Some(Expected::Same(other)) => evidence.matches(other),
            Some(Expected::Complete) => evidence.is_complete(create, setup.facts),
            None => false,
        },
        measured: Measured {
            capabilities: evidence.capabilities,
            no_new_privileges: evidence.no_new_privileges,
            seccomp: evidence.seccomp,
        },
        ..Handoff::default()
    }
}

/// Lets the init inherit its socket and the descriptors that it sends with the evidence. Returns also all descriptors
/// to keep open.
fn keep_open(
    setup: &Setup<'_>,
    mut handoff: Handoff,
    own: impl Iterator<Item = OwnedFd>,
) -> Step<(Handoff, [RawFd; MAX_FDS + 7])> {
    let groups = setup.groups.iter().map(AsRawFd::as_raw_fd);
    let sent = own.map(IntoRawFd::into_raw_fd).chain(groups);
    for (slot, fd) in handoff.fds.iter_mut().zip(sent) {
        *slot = fd;
        handoff.fd_count += 1;
    }
    let mut keep = [0; MAX_FDS + 7];
    let inherited = [handoff.control, handoff.listener, handoff.locks];
    let fixed = inherited.into_iter().chain([0, 1, 2, setup.init.raw()]);
    let retained = handoff.fds[..handoff.fd_count].iter().copied().chain(fixed);
    for (slot, fd) in keep.iter_mut().zip(retained) {
        *slot = fd;
    }
    for fd in handoff.fds[..handoff.fd_count].iter().chain(&inherited) {
        process::keep_on_exec(*fd).step("keep a descriptor open for the init")?;
    }
    Ok((handoff, keep))
}

/// Writes the handoff to a pipe that no other process has, because the key of the exec tags is secret. The init reads
/// it as its standard input.
fn write_handoff(handoff: &Handoff, evidence: &Evidence) -> io::Result<()> {
    let body = postcard::to_extend(evidence, handoff.encode().to_vec()).map_err(io::Error::other)?;
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    let (reader, writer) = rustix::pipe::pipe_with(flags)?;
    if body.len() > MAX_BYTES || rustix::io::write(&writer, &body)? != body.len() {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    process::duplicate_to(reader.as_fd(), 0)
}

#[cfg(test)]
mod tests {
    use super::super::{FIRST_UID, uid_range_in};
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
    fn user_ids_of_a_small_map_do_not_collide() {
        let range = uid_range_in("0 100000 65536\n").unwrap();
        assert_eq!(range, (32_768, 32_768));
        let sandboxes = |running: &[u32], pid| {
            unique_id(range, pid, |other, id| {
                assert_eq!(id, 32_768 + other % 32_768, "only ids of the same user are compared");
                running.contains(&other)
            })
        };
        assert_eq!(sandboxes(&[], 5), Some(32_773));
        assert_eq!(sandboxes(&[5], 5), Some(32_773), "a process does not exclude itself");
        // These process ids differ by a multiple of the number of ids.
        for other in [5 + 32_768, 5 + 100 * 32_768, PID_SPACE - 32_768 + 5] {
            assert_eq!(sandboxes(&[other], 5), None, "{other}");
            assert_eq!(sandboxes(&[5], other), None, "{other}");
        }
        assert_eq!(sandboxes(&[6, 4 + 32_768, 6 + 32_768], 5), Some(32_773));
        // Every process id has its own user id in the usual range.
        let usual = uid_range_in("0 0 4294967295\n").unwrap();
        assert_eq!(usual, (FIRST_UID, PID_SPACE));
        assert_eq!(unique_id(usual, PID_SPACE - 1, |_, _| true), Some(FIRST_UID + PID_SPACE - 1));
        assert_eq!(uid_range_in("0 0 1999\n"), None, "too few ids for sandboxes");
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
