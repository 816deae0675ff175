//! From a fork to an init behind walls: the steps that a new sandbox takes, in the order that makes each possible and
//! none reversible.
//!
//! ```text
//! control group -> network -> /proc -> (here a child that was forked ahead waits for its request)
//!   -> own mounts -> limits -> user -> user namespace -> capabilities -> no_new_privs -> Landlock -> seccomp
//!   -> measure -> Ready -> init loop
//! ```
//!
//! The user namespace comes last of the namespaces, so that the sandbox owns none of the others.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use cofferdam_linux::cgroup::Base;
use cofferdam_linux::landlock::{Ruleset, access};
use cofferdam_linux::mount::{self, Depth, attr};
use cofferdam_linux::process::{self, DumpableState, Resource};
use cofferdam_linux::spawn::{self, Fork};
use cofferdam_linux::{caps, cgroup, message, namespace, seccomp};
use rustix::fs::{Mode, OFlags, openat};

use super::template::Template;
use super::{Filters, Identity, Named, PATIENCE, Step, evidence, init};
use crate::protocol::{self, Create, Event, WorkspacePlan};

/// User and group inside every sandbox.
pub const INSIDE_ID: u32 = 1000;
/// Open descriptors of one process.
const OPEN_FILES: u64 = 4096;
/// The same where the init itself watches memory: each may hold some in the kernel that no process is charged for.
const WATCHED_OPEN_FILES: u64 = 512;
const LOCKED_MEMORY: u64 = 8 << 20;
const MESSAGE_QUEUE_BYTES: u64 = 1 << 20;
const PENDING_SIGNALS: u64 = 4096;
/// Files that fit into a sandbox without a disk limit are bounded by this.
const MOST_FILES: u64 = 1 << 20;
const FEWEST_FILES: u64 = 1024;
const OPEN_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What a new process starts with, whatever sandbox it becomes.
pub struct Ground<'a> {
    pub network: BorrowedFd<'a>,
    pub join_files: &'a [OwnedFd],
    pub groups: &'a [BorrowedFd<'a>],
    pub group_base: Base,
    pub identity: Identity,
    pub outside_pid: i32,
    pub template: &'a Template,
    pub landlock_abi: u32,
    pub host_namespaces: [u64; 7],
    pub filters: &'a Filters,
}

/// What is asked of one sandbox.
struct Setup<'a> {
    ground: &'a Ground<'a>,
    create: &'a Create,
    control: BorrowedFd<'a>,
    workspace: Option<OwnedFd>,
}

/// Descriptors that the host gets to work with the sandbox's files.
struct Rooms {
    workspace: OwnedFd,
    code: OwnedFd,
}

/// The life of a child that was forked for a request: builds the walls around itself, then serves as process 1. Gives
/// the exit code.
pub fn run(ground: &Ground<'_>, create: &Create, control: BorrowedFd<'_>, workspace: Option<OwnedFd>) -> i32 {
    let mut keep = vec![control.as_raw_fd()];
    keep.extend(workspace.iter().map(AsRawFd::as_raw_fd));
    let laid = lay_ground(ground, keep);
    serve(laid, Setup { ground, create, control, workspace })
}

/// The life of a child that was forked ahead of any request: does what is the same for all of them, then waits for the
/// one that it is for. Gives the exit code.
pub fn run_ahead(ground: &Ground<'_>, launcher: OwnedFd) -> i32 {
    let laid = lay_ground(ground, vec![launcher.as_raw_fd()]).and_then(|laid| {
        // The change of user forgets it, and then it is asked for again.
        process::die_with_parent().step("die with the launcher")?;
        Ok(laid)
    });
    if !message::wait_readable(&launcher, None).is_ok_and(|ready| ready) {
        return 0;
    }
    let Ok(Some((create, fds))) = protocol::receive::<Create>(launcher.as_fd()) else { return 0 };
    drop(launcher);
    let mut fds = fds.into_iter();
    let Some(control) = fds.next() else { return 0 };
    serve(laid, Setup { ground, create: &create, control: control.as_fd(), workspace: fds.next() })
}

fn serve(laid: Step<Laid>, setup: Setup<'_>) -> i32 {
    let control = setup.control;
    match laid.and_then(|laid| Ok((build(&setup, &laid.proc)?, laid.members))) {
        Ok((rooms, members)) => {
            let watch = init::Watch::new(setup.create, setup.ground.groups.is_empty());
            match announce(&setup, rooms, members, watch.is_some()) {
                Ok(as_expected) => {
                    init::serve(control, watch, Arc::clone(&setup.ground.filters.mark_guard), as_expected)
                }
                Err(_) => 74,
            }
        }
        Err(failure) => {
            let _ = protocol::send(control, &Event::Failed(failure), &[], PATIENCE);
            1
        }
    }
}

/// What the steps that depend on no request leave.
struct Laid {
    /// A writable way to the new `/proc`.
    proc: OwnedFd,
    /// Tasks in the control group.
    members: u64,
}

/// The steps that depend on no request.
fn lay_ground(ground: &Ground<'_>, mut keep: Vec<i32>) -> Step<Laid> {
    keep.extend([0, 1, 2, ground.network.as_raw_fd()]);
    keep.extend(ground.join_files.iter().map(AsRawFd::as_raw_fd));
    keep.extend(ground.groups.iter().map(AsRawFd::as_raw_fd));
    process::close_all_but(&mut keep);
    process::set_name(c"cofferdam-init");
    // Its own files in /proc are needed until the last wall is up; no guest exists before that.
    process::set_dumpable(DumpableState::Yes).step("open own proc files")?;
    for file in ground.join_files {
        rustix::io::write(file, b"0").step("join the control group")?;
    }
    let members = cgroup::members(ground.groups);
    namespace::unshare(namespace::kind::CGROUP).step("make a cgroup namespace")?;
    namespace::join(ground.network, namespace::kind::NET).step("join the network namespace")?;
    namespace::set_hostname("sandbox").step("set the host name")?;
    let proc = mount_proc(ground)?;
    let terminals = [(c"ptmxmode", c"0666"), (c"mode", c"0620"), (c"max", c"64")];
    let terminals = mount::new_filesystem(c"devpts", &terminals, attr::NOSUID | attr::NOEXEC).step("mount devpts")?;
    mount::attach(terminals.as_fd(), mount::cwd(), c"/dev/pts").step("attach /dev/pts")?;
    Ok(Laid { proc, members })
}

/// The steps that make it the sandbox that was asked for.
fn build(setup: &Setup<'_>, proc: &OwnedFd) -> Step<Rooms> {
    let ids = outside_ids(setup.ground);
    let rooms = mount_writable(setup, ids, proc)?;
    set_limits(setup.create, setup.ground.groups.is_empty())?;
    drop_privileges(setup, ids, proc)?;
    Ok(rooms)
}

/// The kernel's user and group of this sandbox.
fn outside_ids(ground: &Ground<'_>) -> (u32, u32) {
    match ground.identity {
        Identity::Unique { first, count } => {
            let id = first + ground.outside_pid as u32 % count;
            (id, id)
        }
        // In the launcher's user namespace, 0 is the caller.
        Identity::Caller => (0, 0),
    }
}

/// Mounts `/proc`, covered and read-only, and gives another, writable way to it for the steps that follow.
fn mount_proc(ground: &Ground<'_>) -> Step<OwnedFd> {
    let flags = attr::NOSUID | attr::NODEV | attr::NOEXEC;
    let tree = mount::new_filesystem(c"proc", &[], flags).step("mount proc")?;
    mount::attach(tree.as_fd(), mount::cwd(), c"/proc").step("attach /proc")?;
    let writable = mount::clone_tree(mount::cwd(), c"/proc", Depth::Single).step("copy the mount of /proc")?;
    for (paths, cover) in [(ground.template.masked_files(), c"/dev/null"), (ground.template.masked_dirs(), c"/sys")] {
        for path in paths {
            let cover = mount::clone_tree(mount::cwd(), cover, Depth::Single).step("copy a cover")?;
            match mount::attach(cover.as_fd(), mount::cwd(), path) {
                // Some files of /proc exist for root's eyes only.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                other => other.step("cover a file of /proc")?,
            }
        }
    }
    mount::add_attributes_at(c"/proc", attr::RDONLY).step("make /proc read-only")?;
    Ok(writable)
}

/// Mounts the sandbox's own tmpfs, of which `/tmp`, `/dev/shm`, `/code` and a private workspace are parts, so that one
/// size bounds them all; and the workspace.
fn mount_writable(setup: &Setup<'_>, ids: (u32, u32), proc: &OwnedFd) -> Step<Rooms> {
    let create = setup.create;
    let files = create.disk.map_or(MOST_FILES, |bytes| (bytes / 8192).clamp(FEWEST_FILES, MOST_FILES));
    let size = format!("{}\0", create.disk.unwrap_or(0));
    let files = format!("{files}\0");
    let text = |text: &str| CStr::from_bytes_until_nul(text.as_bytes()).map(ToOwned::to_owned).unwrap_or_default();
    let (size, files) = (text(&size), text(&files));
    let options = [(c"size", size.as_c_str()), (c"nr_inodes", files.as_c_str()), (c"mode", c"0755")];
    let own = mount::new_filesystem(c"tmpfs", &options, attr::NOSUID | attr::NODEV).step("make a tmpfs")?;
    // It is covered by the workspace at the end; until then its parts can be copied from here.
    mount::attach(own.as_fd(), mount::cwd(), c"/workspace").step("attach the sandbox's tmpfs")?;
    for (name, mode, owned) in
        [("tmp", 0o1777, false), ("shm", 0o1777, false), ("code", 0o755, false), ("workspace", 0o755, true)]
    {
        rustix::fs::mkdirat(&own, name, Mode::from_raw_mode(mode)).step("make a directory")?;
        let (uid, gid) = (rustix::fs::Uid::from_raw(ids.0), rustix::fs::Gid::from_raw(ids.1));
        if owned {
            rustix::fs::chownat(&own, name, Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                .step("give a directory to the sandbox's user")?;
        }
    }
    let place = |part: &CStr, target: &CStr, attributes: u64| -> Step<()> {
        let tree = mount::clone_tree(own.as_fd(), part, Depth::Single).step("copy a part of the tmpfs")?;
        if attributes != 0 {
            mount::add_attributes(tree.as_fd(), Depth::Single, attributes).step("restrict a part of the tmpfs")?;
        }
        mount::attach(tree.as_fd(), mount::cwd(), target).step("attach a part of the tmpfs")
    };
    place(c"tmp", c"/tmp", 0)?;
    place(c"shm", c"/dev/shm", attr::NOEXEC)?;
    place(c"code", c"/code", attr::RDONLY)?;
    let code = openat(&own, "code", OPEN_DIR, Mode::empty()).step("open the code directory")?;
    let read_only = if create.read_only { attr::RDONLY } else { 0 };
    let workspace = match (&create.workspace, &setup.workspace) {
        (WorkspacePlan::HostDir { uid, gid, .. }, Some(tree)) => {
            let attributes = attr::NOSUID | attr::NODEV | read_only;
            mount::add_attributes(tree.as_fd(), Depth::Recursive, attributes).step("restrict the workspace")?;
            if matches!(setup.ground.identity, Identity::Unique { .. }) {
                show_owner_as(tree.as_fd(), (*uid, *gid), ids, proc)?;
            }
            mount::attach(tree.as_fd(), mount::cwd(), c"/workspace").step("attach the workspace")?;
            tree.as_fd().try_clone_to_owned().step("keep the workspace")?
        }
        _ => {
            let room = openat(&own, "workspace", OPEN_DIR, Mode::empty()).step("open the workspace")?;
            place(c"workspace", c"/workspace", read_only)?;
            room
        }
    };
    Ok(Rooms { workspace, code })
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
    // A limit of exactly 1 byte also stops cores that go to a pipe; the seccomp list keeps it so.
    process::set_limit(Resource::CORE, 1).step("forbid core files")?;
    for (resource, value) in [
        (Resource::OPEN_FILES, if watched { WATCHED_OPEN_FILES } else { OPEN_FILES }),
        (Resource::LOCKED_MEMORY, LOCKED_MEMORY),
        (Resource::MESSAGE_QUEUES, MESSAGE_QUEUE_BYTES),
        (Resource::PENDING_SIGNALS, PENDING_SIGNALS),
    ] {
        process::cap_limit(resource, value).step("set a limit")?;
    }
    // Where a tmpfs sets the bound, programs are to meet its ENOSPC and not a signal.
    let host_directory = matches!(create.workspace, WorkspacePlan::HostDir { .. });
    if let Some(bytes) = create.disk.filter(|_| host_directory && !create.read_only) {
        process::cap_limit(Resource::FILE_SIZE, bytes).step("limit the size of a file")?;
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

fn drop_privileges(setup: &Setup<'_>, ids: (u32, u32), proc: &OwnedFd) -> Step<()> {
    if let Identity::Unique { .. } = setup.ground.identity {
        process::become_user(ids.0, ids.1).step("become the sandbox's user")?;
    }
    process::set_dumpable(DumpableState::Yes).step("open own maps")?;
    namespace::unshare(namespace::kind::USER).step("make the sandbox's user namespace")?;
    namespace::map_ids(proc.as_fd(), "self", (INSIDE_ID, INSIDE_ID), ids).step("map the sandbox's user")?;
    process::become_user_inside(INSIDE_ID).step("take the sandbox's user")?;
    if let Some(tasks) = setup.create.tasks.filter(|_| setup.ground.groups.is_empty()) {
        // The init counts as well. The kernel counts by user and user namespace, and each sandbox has its own; set any
        // earlier, the limit would also hold for what the user runs outside of this namespace.
        process::cap_limit(Resource::TASKS, tasks + 1).step("limit processes")?;
    }
    process::set_dumpable(DumpableState::No).step("hide the init's memory")?;
    process::die_with_parent().step("die with the launcher")?;
    caps::drop_all().step("drop capabilities")?;
    process::set_no_new_privileges().step("set no_new_privs")?;
    if setup.ground.landlock_abi > 0 {
        restrict_paths(setup).step("enforce Landlock")?;
    }
    let filter =
        if setup.ground.groups.is_empty() { &setup.ground.filters.watched } else { &setup.ground.filters.counted };
    seccomp::install(filter).step("install the seccomp filter")?;
    rustix::process::chdir("/").step("enter the root")
}

fn restrict_paths(setup: &Setup<'_>) -> std::io::Result<()> {
    let rules = Ruleset::new(setup.ground.landlock_abi)?;
    let allow = |path: &CStr, rights: u64| -> std::io::Result<()> {
        let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        rules.allow(place.as_fd(), rights)
    };
    allow(c"/", access::READ_DIR)?;
    for (path, is_directory) in setup.ground.template.programs() {
        // The kernel takes no right to list for a file.
        allow(path, access::EXECUTE | if *is_directory { access::READ } else { access::READ_FILE })?;
    }
    allow(c"/code", access::READ | access::EXECUTE)?;
    allow(c"/proc", access::READ)?;
    // Terminals are files of /dev/pts, and a rule on /dev reaches what is mounted below it.
    allow(c"/dev", access::READ | access::WRITE_FILE | access::TRUNCATE | access::IOCTL_DEV)?;
    allow(c"/dev/shm", access::ALL)?;
    allow(c"/tmp", access::ALL)?;
    let read_only = access::READ | access::EXECUTE;
    allow(c"/workspace", if setup.create.read_only { read_only } else { access::ALL })?;
    rules.enforce()
}

/// Tells the host what was measured, and gives whether it is what was expected.
fn announce(setup: &Setup<'_>, rooms: Rooms, members: u64, watching: bool) -> Step<bool> {
    let create = setup.create;
    let own_root = setup.ground.template.has_own_root();
    let mut evidence = evidence::collect(watching, create.probe, own_root, create.read_only);
    evidence.members = members;
    let base = setup.ground.group_base;
    evidence.group_base = (base.memory_kills, base.forks_refused, base.memory);
    let expected = setup.create.expected.as_ref();
    let as_expected = expected.is_some_and(|expected| evidence.is_as(expected, setup.ground.host_namespaces));
    let own = process::pidfd(std::process::id() as i32).step("open the init's descriptor")?;
    let mut fds = vec![own.as_fd(), rooms.workspace.as_fd(), rooms.code.as_fd()];
    fds.extend_from_slice(setup.ground.groups);
    protocol::send(setup.control, &Event::Ready(Box::new(evidence)), &fds, PATIENCE).step("report")?;
    drop((own, rooms));
    process::close_all_but(&mut [0, 1, 2, setup.control.as_raw_fd()]);
    Ok(as_expected)
}
