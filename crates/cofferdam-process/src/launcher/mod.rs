//! The launcher: one small, single-threaded process for each kind of root file system. It holds the template of that
//! root, forks sandboxes from itself, and removes what is left of each.
//!
//! ```text
//! started --Configure--> template built --Hello--> serving --owner gone--> everything killed, removed, ended
//! ```
//!
//! It dies with its owner, because the owner's end of its socket closes; and every init dies with it, because each
//! asked the kernel for that.

mod create;
mod evidence;
mod init;
mod networks;
mod template;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_linux::cgroup::{Bounds, Group, Owner, Version};
use cofferdam_linux::spawn::{self, Fork, SharedPid};
use cofferdam_linux::{landlock, message, namespace, process, seccomp};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::protocol::{self, Configure, Create, Failure, Hello, HostFacts};
use networks::Networks;
use template::Template;

/// How long the launcher waits for its owner's socket to drain.
const PATIENCE: Duration = Duration::from_secs(10);
/// A launcher that nobody asked for anything for this long has time for chores.
const IDLE: Duration = Duration::from_millis(3);
/// Makes the kernel choose sandboxes first when the machine runs out of memory: inherited by all of them. The launcher
/// itself is smaller than any guest worth choosing.
const OOM_SCORE: &str = "800";
/// The first of the user ids that sandboxes run as when the launcher is root: a range that no distribution hands out.
const FIRST_UID: u32 = 0x7000_0000;
/// Process numbers are below this on every kernel.
const PID_SPACE: u32 = 1 << 22;

/// A step that failed.
type Step<T> = Result<T, Failure>;

/// Names the step of an error.
trait Named<T> {
    fn step(self, step: &str) -> Step<T>;
}

impl<T, E: Into<io::Error>> Named<T> for Result<T, E> {
    fn step(self, step: &str) -> Step<T> {
        self.map_err(|error| {
            let errno = error.into().raw_os_error().unwrap_or(libc::EIO);
            Failure { step: step.to_owned(), errno }
        })
    }
}

/// Who the sandboxes run as.
#[derive(Debug, Clone, Copy)]
enum Identity {
    /// The launcher is root: each sandbox gets a user id of its own, the first one plus its process number.
    Unique { first: u32, count: u32 },
    /// The launcher is an ordinary user in a user namespace of its own: sandboxes run as that user.
    Caller,
}

struct Launcher {
    socket: OwnedFd,
    children: OwnedFd,
    template: Template,
    owner: Option<Owner>,
    identity: Identity,
    landlock_abi: u32,
    host_namespaces: [u64; 7],
    filter: Filters,
    networks: Networks,
    pid: SharedPid,
    live: Vec<Live>,
    /// Whether to fork ahead at all.
    prepares: bool,
    ahead: Option<Ahead>,
    /// What was asked for last: the child that is forked ahead gets these bounds, which then need not be written again.
    last_bounds: Option<Bounds>,
}

/// A child that was forked before its request came. It has namespaces, a network, a control group and a `/proc`; every
/// part of a request is still to be applied to it, by the same code that a child forked on request runs.
struct Ahead {
    pid: i32,
    socket: OwnedFd,
    group: Option<Box<Group>>,
}

/// Compiled once. `counted` is for sandboxes whose resources a control group counts, `watched` for the others.
struct Filters {
    counted: seccomp::Program,
    watched: seccomp::Program,
    mark_guard: Arc<seccomp::Program>,
}

impl Filters {
    fn compile() -> Self {
        let arch = seccomp::Arch::native();
        let counted = seccomp::Options { allow_mark: true, ..seccomp::Options::default() };
        let watched = seccomp::Options {
            deny_memfd: true,
            deny_shared_memory: true,
            deny_affinity: true,
            deny_large_buffers: true,
            allow_mark: true,
        };
        Self {
            counted: seccomp::compile(arch, &counted),
            watched: seccomp::compile(arch, &watched),
            mark_guard: Arc::new(seccomp::mark_guard(arch)),
        }
    }
}

/// A sandbox that is not yet wholly gone.
struct Live {
    pid: i32,
    group: Option<Box<Group>>,
    reaped: bool,
    /// Closing it tells the owner that nothing is left.
    gone: Option<OwnedFd>,
}

/// The launcher's life, from its entry to its exit code.
pub fn main() -> i32 {
    std::panic::set_hook(Box::new(|_| {}));
    let Some(socket) = set_up_descriptors() else { return 64 };
    let configure = match wait_for_message::<Configure>(&socket) {
        Ok(Some((configure, _))) => configure,
        Ok(None) | Err(_) => return 65,
    };
    match Launcher::new(socket, &configure) {
        Ok(mut launcher) => launcher.serve(),
        Err((socket, failure)) => {
            let _ = protocol::send(socket.as_fd(), &Hello::Failed(failure), &[], PATIENCE);
            1
        }
    }
}

/// Descriptor 0 is the socket; it moves up, and 0, 1 and 2 become the null device.
fn set_up_descriptors() -> Option<OwnedFd> {
    process::close_all_but(&mut [0, 1, 2]);
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).ok()?;
    rustix::net::sockopt::socket_type(&socket).ok()?;
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).ok()?;
    for target in 0..3 {
        process::duplicate_to(null.as_fd(), target).ok()?;
    }
    Some(socket)
}

fn wait_for_message<T: serde::de::DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    if !message::wait_readable(socket, Some(PATIENCE))? {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    protocol::receive(socket.as_fd())
}

impl Launcher {
    fn new(socket: OwnedFd, configure: &Configure) -> Result<Self, (OwnedFd, Failure)> {
        match Self::prepare(configure) {
            Ok(parts) => {
                let (template, owner, identity, children, pid, facts) = parts;
                // An owner that went away meanwhile is no reason to leave anything behind.
                let greeted = Networks::start(template.host_proc(), configure.prepare_ahead)
                    .step("start the maker of network namespaces")
                    .and_then(|networks| {
                        let hello = Hello::Ready(facts.clone());
                        protocol::send(socket.as_fd(), &hello, &[], PATIENCE).step("say hello")?;
                        Ok(networks)
                    });
                let networks = match greeted {
                    Ok(networks) => networks,
                    Err(failure) => {
                        if let Some(owner) = owner {
                            owner.close();
                        }
                        return Err((socket, failure));
                    }
                };
                Ok(Self {
                    socket,
                    children,
                    template,
                    owner,
                    identity,
                    landlock_abi: facts.landlock_abi,
                    host_namespaces: facts.namespaces,
                    filter: Filters::compile(),
                    networks,
                    pid,
                    live: Vec::new(),
                    prepares: configure.prepare_ahead,
                    ahead: None,
                    last_bounds: None,
                })
            }
            Err(failure) => Err((socket, failure)),
        }
    }

    fn prepare(configure: &Configure) -> Step<(Template, Option<Owner>, Identity, OwnedFd, SharedPid, HostFacts)> {
        process::set_name(c"cofferdam");
        // What is made for sandboxes has the mode that is asked for.
        rustix::process::umask(rustix::fs::Mode::empty());
        std::fs::write("/proc/self/oom_score_adj", OOM_SCORE).step("raise the out-of-memory score")?;
        process::set_dumpable(process::DumpableState::No).step("hide the launcher's memory")?;
        // Kernels without keyrings have nothing to hide.
        let _ = process::new_session_keyring();
        let children = process::child_signal().step("watch for children")?;
        let namespaces = evidence::namespaces("/proc/self/ns").step("read own namespaces (is /proc mounted?)")?;
        let identity = enter_namespaces()?;
        let privileged = matches!(identity, Identity::Unique { .. });
        // While the host's mounts are still to be seen, and as the user that will make the groups.
        let owner = if configure.use_cgroups { Owner::new(privileged) } else { Err("switched off".to_owned()) };
        let (owner, cgroup_reason) = match owner {
            Ok(owner) => (Some(owner), String::new()),
            Err(reason) => (None, reason),
        };
        let prepared = Template::build(configure, privileged)
            .and_then(|template| Ok((template, SharedPid::new().step("share a page")?)));
        let (template, pid) = match prepared {
            Ok(parts) => parts,
            Err(failure) => {
                if let Some(owner) = owner {
                    owner.close();
                }
                return Err(failure);
            }
        };
        let facts = HostFacts {
            cgroup_version: owner.as_ref().map_or(0, |owner| match owner.version() {
                Version::V1 => 1,
                Version::V2 => 2,
            }),
            cgroup_layout: owner.as_ref().map(Owner::layout).unwrap_or_default(),
            cgroup_reason,
            cgroup_counts: owner.as_ref().map_or((false, false), |owner| (owner.counts_swap(), owner.counts_cpu())),
            cgroup_cpu: owner.as_ref().is_some_and(Owner::has_cpu),
            landlock_abi: landlock::abi(),
            privileged,
            namespaces,
        };
        Ok((template, owner, identity, children, pid, facts))
    }

    fn serve(&mut self) -> i32 {
        loop {
            let leaving = self.live.iter().any(|live| live.reaped);
            let leave = leaving.then_some(Duration::from_millis(1));
            let chores = self.chores_after();
            let timeout = leave.into_iter().chain(chores).min();
            let Ok((requests, ended)) = self.wait(timeout) else { break };
            if !requests && !ended && chores.is_some() {
                self.do_chores();
            }
            if ended || leaving {
                self.collect();
            }
            if requests {
                match protocol::receive::<Create>(self.socket.as_fd()) {
                    Ok(Some((create, fds))) => self.create(&create, fds),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(None) | Err(_) => break,
                }
            }
        }
        self.end()
    }

    /// When to do what can wait, if there is anything.
    fn chores_after(&self) -> Option<Duration> {
        let untidy = self.owner.as_ref().is_some_and(Owner::is_untidy);
        (self.networks.is_short() || untidy || self.lacks_ahead()).then_some(IDLE)
    }

    fn do_chores(&mut self) {
        self.networks.restock();
        if let Some(owner) = &mut self.owner {
            owner.tidy();
        }
        if self.lacks_ahead() && self.fork_ahead().is_err() {
            // The next request says what is wrong.
            self.last_bounds = None;
        }
    }

    fn lacks_ahead(&self) -> bool {
        self.prepares && self.ahead.is_none() && self.last_bounds.is_some()
    }

    fn fork_ahead(&mut self) -> Step<()> {
        let network = self.networks.take(self.template.host_proc()).step("make a network namespace")?;
        let group = self.group(self.last_bounds.unwrap_or_default())?;
        let forked = message::pair().step("make a socket").and_then(|ends| Ok((ends, self.fork(group.as_deref())?)));
        match forked {
            Ok(((_, theirs), Fork::Child)) => {
                self.live_as_child(&network, group.as_deref(), |ground| create::run_ahead(ground, theirs))
            }
            Ok(((socket, _), Fork::Parent(pid))) => {
                self.ahead = Some(Ahead { pid, socket, group });
                Ok(())
            }
            Err(failure) => {
                self.take_back(group);
                Err(failure)
            }
        }
    }

    /// Takes back a group that nothing was put into.
    fn take_back(&mut self, group: Option<Box<Group>>) {
        if let (Some(owner), Some(group)) = (&mut self.owner, group) {
            // It is empty, so that it can neither be busy nor be wanted.
            let _ = owner.release(group);
        }
    }

    /// Gives a request to the child that was forked ahead, if there is one that fits.
    fn hand_over(
        &mut self,
        create: &Create,
        control: &OwnedFd,
        workspace: Option<&OwnedFd>,
        bounds: Bounds,
    ) -> Option<i32> {
        let mut ahead = self.ahead.take()?;
        let bound = match (&self.owner, &mut ahead.group) {
            (Some(owner), Some(group)) => bounds.cpu_millis.is_none() && owner.rebind(group, bounds).is_ok(),
            (None, None) => true,
            _ => false,
        };
        let fds: Vec<_> = [control.as_fd()].into_iter().chain(workspace.map(AsFd::as_fd)).collect();
        let handed = bound && protocol::send(ahead.socket.as_fd(), create, &fds, PATIENCE).is_ok();
        if !handed {
            let _ = process::kill(ahead.pid, libc::SIGKILL);
        }
        self.live.push(Live { pid: ahead.pid, group: ahead.group, reaped: false, gone: None });
        handed.then_some(ahead.pid)
    }

    fn wait(&self, timeout: Option<Duration>) -> io::Result<(bool, bool)> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&self.children, PollFlags::IN)];
        let timeout =
            timeout.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) });
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, timeout.as_ref()))?;
        Ok((!fds[0].revents().is_empty(), !fds[1].revents().is_empty()))
    }

    fn create(&mut self, create: &Create, fds: Vec<OwnedFd>) {
        let Ok([control, gone]) = <[OwnedFd; 2]>::try_from(fds) else { return };
        if let Err(failure) = self.try_create(create, &control, gone) {
            let _ = protocol::send(control.as_fd(), &protocol::Event::Failed(failure), &[], PATIENCE);
        }
    }

    fn try_create(&mut self, create: &Create, control: &OwnedFd, gone: OwnedFd) -> Step<()> {
        let workspace = self.template.open_workspace(&create.workspace)?;
        let bounds = Bounds {
            memory: create.memory,
            // The init is a task, too.
            tasks: create.tasks.map(|tasks| tasks + 1),
            cpu_millis: create.cpu_millis.filter(|_| self.owner.as_ref().is_some_and(Owner::has_cpu)),
        };
        if bounds.cpu_millis.is_none() {
            self.last_bounds = Some(bounds);
        }
        if let Some(pid) = self.hand_over(create, control, workspace.as_ref(), bounds) {
            if let Some(live) = self.live.iter_mut().find(|live| live.pid == pid) {
                live.gone = Some(gone);
            }
            return Ok(());
        }
        let network = self.networks.take(self.template.host_proc()).step("make a network namespace")?;
        let group = self.group(bounds)?;
        match self.fork(group.as_deref()) {
            Ok(Fork::Child) => self.live_as_child(&network, group.as_deref(), |ground| {
                create::run(ground, create, control.as_fd(), workspace)
            }),
            Ok(Fork::Parent(pid)) => {
                self.live.push(Live { pid, group, reaped: false, gone: Some(gone) });
                Ok(())
            }
            Err(failure) => {
                self.take_back(group);
                Err(failure)
            }
        }
    }

    fn group(&mut self, bounds: Bounds) -> Step<Option<Box<Group>>> {
        let owner = self.owner.as_mut();
        owner.map(|owner| owner.make(bounds).map(Box::new)).transpose().step("make a control group")
    }

    fn fork(&self, group: Option<&Group>) -> Step<Fork> {
        let kinds = namespace::kind::MOUNT | namespace::kind::PID | namespace::kind::IPC | namespace::kind::UTS;
        let target = group.and_then(Group::clone_target);
        spawn::fork(kinds, target, Some(&self.pid)).step("fork into new namespaces")
    }

    /// The rest of a child's life.
    fn live_as_child(
        &self,
        network: &OwnedFd,
        group: Option<&Group>,
        life: impl FnOnce(&create::Ground<'_>) -> i32,
    ) -> ! {
        let groups: Vec<_> = group.map(|group| group.dirs().collect()).unwrap_or_default();
        let ground = create::Ground {
            network: network.as_fd(),
            join_files: group.map_or(&[], Group::join_files),
            groups: &groups,
            group_base: group.map(Group::base).unwrap_or_default(),
            identity: self.identity,
            outside_pid: self.pid.get(),
            template: &self.template,
            landlock_abi: self.landlock_abi,
            host_namespaces: self.host_namespaces,
            filters: &self.filter,
        };
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| life(&ground)));
        process::exit_now(code.unwrap_or(70))
    }

    /// Reaps inits that have ended and removes what is left of them.
    fn collect(&mut self) {
        let mut buffer = [0u8; 512];
        while rustix::io::read(&self.children, &mut buffer).is_ok() {}
        while let Ok(Some(reaped)) = process::reap() {
            if let Some(live) = self.live.iter_mut().find(|live| live.pid == reaped.pid) {
                live.reaped = true;
            }
            if let Some(ahead) = self.ahead.take_if(|ahead| ahead.pid == reaped.pid) {
                self.live.push(Live { pid: ahead.pid, group: ahead.group, reaped: true, gone: None });
            }
        }
        let owner = &mut self.owner;
        self.live.retain_mut(|live| {
            if !live.reaped {
                return true;
            }
            if owner.as_ref().is_some_and(Owner::keeps_groups) {
                // The group stays with the launcher; everything else died with the init.
                live.gone = None;
            }
            match (owner.as_mut(), live.group.take()) {
                (Some(owner), Some(group)) => match owner.release(group) {
                    Ok(()) => false,
                    Err(group) => {
                        live.group = Some(group);
                        true
                    }
                },
                _ => false,
            }
        });
    }

    fn end(&mut self) -> i32 {
        if let Some(ahead) = self.ahead.take() {
            self.live.push(Live { pid: ahead.pid, group: ahead.group, reaped: false, gone: None });
        }
        for live in self.live.iter().filter(|live| !live.reaped) {
            let _ = process::kill(live.pid, libc::SIGKILL);
        }
        self.networks.stop();
        // Everything is killed or ends by itself; what remains is the kernel's work.
        for _ in 0..10_000 {
            self.collect();
            if self.live.is_empty() && !process::has_children() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(owner) = self.owner.take() {
            owner.close();
        }
        0
    }
}

/// Makes the launcher the master of the namespaces that it forks sandboxes into.
fn enter_namespaces() -> Step<Identity> {
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
                // Root without the right to mount: become somebody else first, so that no sandbox runs as root.
                let own = first + std::process::id() % count;
                process::become_user(own, own).step("stop being root")?;
                process::set_dumpable(process::DumpableState::Yes).step("open own maps")?;
                return enter_user_namespace(own, own);
            }
            Err(error) => return Err(error).step("make a mount namespace"),
        }
    }
    if uid == 0 && is_root_outside() {
        // There is nobody else to be here, and no sandbox may run as root.
        return Err(Failure {
            step: "find a user id that is not root's in this user namespace".into(),
            errno: libc::EPERM,
        });
    }
    process::set_dumpable(process::DumpableState::Yes).step("open own maps")?;
    enter_user_namespace(uid, gid)
}

/// Whether root of this user namespace is root of the one around it. What cannot be read counts as yes.
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
    namespace::unshare(kind::USER).step("make a user namespace")?;
    namespace::map_ids(proc.as_fd(), "self", (0, 0), (uid, gid)).step("map the caller's user id")?;
    process::set_dumpable(process::DumpableState::No).step("hide the launcher's memory")?;
    namespace::unshare(kind::MOUNT).step("make a mount namespace")?;
    Ok(Identity::Caller)
}

/// User ids that can be handed out here: ours where the map has them, else the upper half of the largest extent.
fn uid_range() -> Option<(u32, u32)> {
    let text = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    let extents: Vec<(u64, u64)> = text
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
