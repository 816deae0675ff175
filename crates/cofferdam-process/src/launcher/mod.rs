//! The launcher: one small, single-threaded process for each kind of root file system. It holds the template of that
//! root, makes sandboxes, and removes what is left of each.
//!
//! ```text
//! started --Configure--> template built --Hello--> serving --owner gone--> everything killed, removed, ended
//! ```
//!
//! It dies with its owner, because the owner's end of its socket closes; and every init dies with it, because each
//! asked the kernel for that.

mod cells;
mod create;
mod evidence;
mod init;
mod network;
mod start;
mod template;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use cofferdam_linux::cgroup::{Bounds, Group, Owner};
use cofferdam_linux::named::UntrustedLink;
use cofferdam_linux::spawn::{self, Fork, SharedPid, Stack};
use cofferdam_linux::{message, namespace, process, seccomp};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::protocol::{self, Adapt, Ask, Create, Failure, Hello, HostFacts};
use cells::{Cell, Cells, Mould};
use init::InitProgram;
pub use start::{Origin, main};
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
/// The disk limit that the first cells are made for: the default.
const USUAL_DISK: u64 = 1 << 30;

/// A step that failed.
type Step<T> = Result<T, Failure>;

/// Names the step of an error.
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

/// Who the sandboxes run as.
#[derive(Debug, Clone, Copy)]
enum Identity {
    /// The launcher is root: each sandbox gets a user id of its own, the first one plus its process number.
    Unique { first: u32, count: u32 },
    /// The launcher is an ordinary user in a user namespace of its own: sandboxes run as that user.
    Caller,
}

impl Identity {
    /// Whether the launcher has the privileges of root.
    fn is_privileged(self) -> bool {
        matches!(self, Self::Unique { .. })
    }
}

struct Launcher {
    socket: OwnedFd,
    /// Whether it has told its owner what it found.
    greeted: bool,
    children: OwnedFd,
    template: Template,
    owner: Option<Owner>,
    identity: Identity,
    facts: HostFacts,
    filters: Filters,
    cells: Cells,
    nursery: Nursery,
    live: Vec<Live>,
    /// The disk limit that was asked for last: cells are made with it, so that they need not be changed.
    last_disk: u64,
    /// Whether there will be one sandbox only.
    single: bool,
}

/// Compiled once. The launcher itself is under the early part, so that every fork has it from the start.
struct Filters {
    late: seccomp::Program,
    mark_key: seccomp::MarkKey,
    options: seccomp::Options,
}

impl Filters {
    /// Compiles the late part for a sandbox whose processes are counted.
    fn late_counting_processes(&self) -> seccomp::Program {
        let options = seccomp::Options { count_processes: true, ..self.options };
        seccomp::compile_stages(seccomp::Arch::native(), &options).1
    }
}

/// Filters that are not on anything yet.
struct Drafts {
    /// Whether control groups count what sandboxes use; if not, more is refused.
    counted: bool,
    early: seccomp::Program,
    filters: Filters,
}

impl Drafts {
    fn new(counted: bool) -> io::Result<Self> {
        let arch = seccomp::Arch::native();
        let mark_key = seccomp::MarkKey::new(process::random()?);
        let options = seccomp::Options {
            deny_memfd: !counted,
            deny_shared_memory: !counted,
            deny_kernel_memory: !counted,
            deny_affinity: !counted,
            deny_large_buffers: !counted,
            watch_reads: false,
            quotas: true,
            count_processes: false,
            mark_key: Some(mark_key),
        };
        let (early, late) = seccomp::compile_stages(arch, &options);
        Ok(Self { counted, early, filters: Filters { late, mark_key, options } })
    }

    /// Puts the early part on the launcher.
    fn raise(self) -> io::Result<Filters> {
        seccomp::install(&self.early)?;
        Ok(self.filters)
    }
}

/// What children begin with.
struct Nursery {
    init: InitProgram,
    watch_bounds: create::WatchBounds,
    stack: Stack,
    /// The number of the child that was made last.
    pid: SharedPid,
}

impl Nursery {
    fn new() -> io::Result<Self> {
        let watch_bounds = create::WatchBounds::read();
        Ok(Self { init: InitProgram::new()?, watch_bounds, stack: Stack::new()?, pid: SharedPid::new()? })
    }
}

/// A sandbox that is not yet wholly gone.
struct Live {
    serial: u64,
    pid: i32,
    group: Option<Box<Group>>,
    reaped: bool,
    /// The init's end of its socket. Closing it tells the owner that nothing is left.
    gone: Option<OwnedFd>,
    /// Kept so that taking it down holds up neither the init's end nor the word of it.
    cell: Option<Cell>,
}

impl Launcher {
    fn serve(&mut self) -> i32 {
        // A request that came before the greeting is not held up by it.
        let asked_already = self.single && message::wait_readable(&self.socket, Some(Duration::ZERO)).unwrap_or(false);
        if !asked_already && self.greet().is_err() {
            return self.end();
        }
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
                match protocol::receive::<Ask>(self.socket.as_fd()) {
                    Ok(Some((Ask::Create(create), fds))) => self.create(&create, fds),
                    Ok(Some((Ask::Adapt(adapt), fds))) => self.adapt(&adapt, fds),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(None) | Err(_) => break,
                }
                if self.greet().is_err() {
                    break;
                }
            }
        }
        self.end()
    }

    /// Says hello, once.
    fn greet(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.greeted, true) {
            return Ok(());
        }
        protocol::send(self.socket.as_fd(), &Hello::Ready(self.facts.clone()), &[], PATIENCE)
    }

    /// When to do what can wait, if there is anything.
    fn chores_after(&self) -> Option<Duration> {
        let untidy = self.owner.as_ref().is_some_and(Owner::is_untidy);
        (self.cells.is_short() || untidy).then_some(IDLE)
    }

    fn do_chores(&mut self) {
        self.cells.restock(self.last_disk);
        if let Some(owner) = &mut self.owner {
            owner.tidy();
        }
    }

    /// Takes back a group that nothing was put into.
    fn take_back(&mut self, group: Option<Box<Group>>) {
        if let (Some(owner), Some(group)) = (&mut self.owner, group) {
            // It is empty, so that it can neither be busy nor be wanted.
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
            let _ = protocol::send(control.as_fd(), &protocol::Event::Failed(failure), &[], PATIENCE);
        }
    }

    fn try_create(&mut self, create: &Create, control: OwnedFd) -> Result<(), (OwnedFd, Failure)> {
        let (workspace, mut cell, group) = match self.gather(create) {
            Ok(parts) => parts,
            Err(failure) => return Err((control, failure)),
        };
        match self.make_child(create, &cell, group.as_deref(), &control, workspace.as_ref()) {
            Ok(pid) => {
                cell.rules = None;
                // The child has bounded it so.
                cell.disk = create.disk;
                // What holds a host's directory must end with the init: its owner may want to unmount it.
                let cell = match workspace.is_none() && !self.single {
                    true => Some(cell),
                    false => self.settle(cell),
                };
                let serial = create.serial;
                self.live.push(Live { serial, pid, group, reaped: false, gone: Some(control), cell });
                Ok(())
            }
            Err(failure) => {
                self.take_back(group);
                self.cells.dispose(cell);
                Err((control, failure))
            }
        }
    }

    /// Parts with what is not to outlive the init. A launcher of a single sandbox needs no more now, and what it still
    /// held would hold up the end: the kernel takes a network namespace apart in a thread of its own, which is in the
    /// way of whatever is still to be done. So the owner keeps that, in a message that nobody reads, until it ends.
    fn settle(&mut self, cell: Cell) -> Option<Cell> {
        if self.single {
            // Nothing may come before the greeting.
            let _ = self.greet();
            let _ = message::send(self.socket.as_fd(), b"n", &[cell.network.as_fd()]);
            self.template.leave();
            // While the program runs, nobody waits for this process.
            if let Some(owner) = &self.owner {
                owner.sweep(self.template.host_proc());
            }
        }
        None
    }

    fn adapt(&mut self, adapt: &Adapt, fds: Vec<OwnedFd>) {
        let answer = self.try_adapt(adapt);
        if let Ok([socket]) = <[OwnedFd; 1]>::try_from(fds) {
            let _ = protocol::send(socket.as_fd(), &answer, &[], PATIENCE);
        }
    }

    fn try_adapt(&mut self, adapt: &Adapt) -> Step<()> {
        let missing = |what: &str| Failure { step: format!("find {what} of the sandbox"), errno: libc::ENOENT };
        let found = self.live.iter_mut().find(|live| live.serial == adapt.serial && !live.reaped);
        let live = found.ok_or_else(|| missing("the processes"))?;
        let cell = live.cell.as_mut().ok_or_else(|| missing("the tmpfs"))?;
        cell.resize(adapt.disk).step("bound the sandbox's tmpfs")?;
        cell.disk = adapt.disk;
        match (&self.owner, &mut live.group) {
            (Some(owner), Some(group)) => {
                let tasks = adapt.tasks.map(|tasks| tasks + 1);
                owner.rebind(group, Bounds { memory: adapt.memory, tasks, cpu_millis: None }).step("set the bounds")
            }
            _ => Ok(()),
        }
    }

    /// Everything that a sandbox is made from.
    fn gather(&mut self, create: &Create) -> Step<(Option<OwnedFd>, Cell, Option<Box<Group>>)> {
        let workspace = self.template.open_workspace(&create.workspace, self.identity)?;
        self.last_disk = create.disk.unwrap_or(USUAL_DISK);
        let mould = Mould { template: &self.template, landlock_abi: self.facts.landlock_abi };
        let cell = self.cells.take(mould, self.last_disk).step("make a cell")?;
        let bounds = Bounds {
            memory: create.memory,
            // The init is a task, too.
            tasks: create.tasks.map(|tasks| tasks + 1),
            cpu_millis: create.cpu_millis.filter(|_| self.owner.as_ref().is_some_and(Owner::has_cpu)),
        };
        let owner = self.owner.as_mut();
        let group = owner.map(|owner| owner.make(bounds).map(Box::new)).transpose().step("make a control group")?;
        Ok((workspace, cell, group))
    }

    /// Makes the child that builds the sandbox and becomes its init. Gives its number once it is the init, or has failed.
    fn make_child(
        &mut self,
        create: &Create,
        cell: &Cell,
        group: Option<&Group>,
        control: &OwnedFd,
        workspace: Option<&OwnedFd>,
    ) -> Step<i32> {
        let Nursery { init, watch_bounds, stack, pid } = &mut self.nursery;
        let groups: Vec<_> = group.map(|group| group.dirs().collect()).unwrap_or_default();
        let mut child = create::NewSandbox(create::Setup {
            cell,
            join_files: group.map_or(&[], Group::join_files),
            groups: &groups,
            counting_dir: self.owner.as_ref().zip(group).and_then(|(owner, group)| owner.counting_dir(group)),
            group_base: group.map(Group::base).unwrap_or_default(),
            identity: self.identity,
            facts: &self.facts,
            outside_pid: pid,
            template: &self.template,
            filters: &self.filters,
            create,
            control: control.as_fd(),
            workspace,
            init,
            watch_bounds: *watch_bounds,
        });
        let kinds = namespace::kind::PID | namespace::kind::UTS;
        if let Some(target) = group.and_then(Group::clone_target) {
            // Version 2 lets a process be born in its group, or be moved at the cost of milliseconds. What is born there
            // gets a copy of this memory: everything that it uses is charged to the group, and the kernel may kill it
            // for that at any time, in the middle of anything.
            return match spawn::fork(kinds, Some(target), Some(pid)).step("fork into new namespaces")? {
                Fork::Child => spawn::live(&mut child, init::NAME),
                Fork::Parent(pid) => Ok(pid),
            };
        }
        let made = spawn::borrow(stack, kinds, pid, &mut child, init::NAME);
        // The child made it dumpable for a while, to open its own files in /proc.
        let hidden = process::set_dumpable(process::DumpableState::No);
        let (pid, orderly) = made.step("make a process in new namespaces")?;
        if !orderly || hidden.is_err() {
            // Somebody killed the child, and it may have been changing anything of this memory. All sandboxes end.
            process::exit_now(72);
        }
        Ok(pid)
    }

    /// Reaps inits that have ended and removes what is left of them.
    fn collect(&mut self) {
        let mut buffer = [0u8; 512];
        while rustix::io::read(&self.children, &mut buffer).is_ok() {}
        while let Ok(Some(reaped)) = process::reap() {
            if let Some(live) = self.live.iter_mut().find(|live| live.pid == reaped.pid) {
                live.reaped = true;
            }
        }
        let (owner, cells) = (&mut self.owner, &self.cells);
        self.live.retain_mut(|live| {
            if !live.reaped {
                return true;
            }
            let cell = live.cell.take();
            if owner.as_ref().is_some_and(Owner::keeps_groups) {
                // The group stays with the launcher; everything else died with the init.
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
            if let Some(cell) = cell {
                cells.dispose(cell);
            }
            left
        });
    }

    fn end(&mut self) -> i32 {
        for live in self.live.iter().filter(|live| !live.reaped) {
            let _ = process::kill(live.pid, libc::SIGKILL);
        }
        self.cells.stop();
        // Everything is killed or ends by itself; what remains is the kernel's work.
        for _ in 0..10_000 {
            self.collect();
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
