//! Control groups: version 2 if controllers are delegated to this process, else version 1.
//!
//! Each owner (a process that creates sandboxes) has one group, with one child group for each sandbox. An owner of a
//! single sandbox puts it into its own group. An owner's name identifies its process, so that a later owner can find
//! and remove the groups of a killed one. Groups of other programs are never touched.

use std::cell::OnceCell;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};

mod foreign;
mod parents;
mod stats;
mod text;

pub use foreign::Foreign;
pub use parents::Family;
use parents::{mounts, owner_name, v1_parents, v2_parents};
pub use stats::Stats;
use stats::{field, has_file};
use text::{write, write_if_present, write_text};

/// The prefix of the names of owners' groups.
const PREFIX: &str = "cofferdam-";
/// The number of attempts to remove an owner's group, a millisecond apart: its last tasks may still be leaving.
const REMOVE_ATTEMPTS: usize = 1000;
/// The maximum of empty groups that are kept for reuse.
const MAX_SPARE: usize = 64;
/// The time after the end of a group's processes in which the last user may still read its counters.
const READ_GRACE_PERIOD: Duration = Duration::from_millis(50);
/// The maximum of bytes that may still be charged to a group that is reused.
const MAX_REMAINING: u64 = 16 << 20;
/// The file of version 1 that limits TCP and UDP buffers, in bytes.
pub const SOCKETS_V1: &str = "memory.kmem.tcp.limit_in_bytes";
const MIN_SOCKETS: u64 = 1 << 20;
const MAX_SOCKETS: u64 = 16 << 20;
/// The maximum of ancestor groups that are inspected.
const MAX_ANCESTORS: usize = 64;
const CPU_PERIOD_MICROS: u64 = 100_000;

/// The version of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

impl Version {
    /// Returns the name for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "cgroup v1",
            Self::V2 => "cgroup v2",
        }
    }
}

/// Limits of one group. `None` sets no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// The number of tasks.
    pub tasks: Option<u64>,
    /// The share of processors in thousandths of one.
    pub cpu_millis: Option<u64>,
}

/// The groups of one owner.
#[derive(Debug)]
pub struct Owner {
    version: Version,
    hierarchies: Vec<Hierarchy>,
    /// Empty groups for reuse (with version 1, where creating a group takes many steps).
    spare: Vec<Group>,
    /// Released groups that were not inspected yet, with the time of their release.
    used: Vec<(Instant, Group)>,
    created: u64,
    share: Share,
}

/// The number of groups that an owner creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Many, several of them at the same time.
    Many,
    /// A single one, which is the owner's own group.
    Single,
}

#[derive(Debug)]
struct Hierarchy {
    controllers: Vec<String>,
    /// The parent of the owner's group. Descriptors stay valid after the owner has left the host's mounts.
    parent: OwnedFd,
    /// The owner's name.
    name: String,
    /// The owner's group, created on first use.
    dir: OnceCell<OwnedFd>,
}

/// The group of a sandbox: a directory in each hierarchy.
#[derive(Debug)]
pub struct Group {
    name: String,
    version: Version,
    dirs: Vec<(usize, OwnedFd)>,
    base: Base,
    join_files: Vec<OwnedFd>,
    /// The limits that were written last. No other program writes them.
    bounds: Option<Bounds>,
}

/// The counters of a reused group before its current use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Base {
    /// Kills for memory.
    pub memory_kills: u64,
    /// Forks refused.
    pub forks_refused: u64,
    /// Used bytes: cached files that the last user read first.
    pub memory: u64,
}

impl Owner {
    /// Creates this process's own group, or returns the reason why each way fails. The group is created below the
    /// groups of this process, so that their limits apply to its sandboxes as well. Processes that are not of `family`
    /// are not moved.
    pub fn new(share: Share, family: Family) -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mounts = mounts(&own).map_err(|error| error.to_string())?;
        let name = owner_name().map_err(|error| error.to_string())?;
        let mut reasons = Vec::new();
        for candidate in v2_parents(&mounts, &own).into_iter().chain(v1_parents(&mounts, &own)) {
            match candidate.open(&name, share, family) {
                Ok(owner) => return Ok(owner),
                Err(reason) => reasons.push(reason),
            }
        }
        if reasons.is_empty() {
            reasons.push(match mounts.iter().any(|mount| mount.unified) {
                true => "cgroup v2: no group with memory and pids controllers is delegated to this user".to_owned(),
                false => "no cgroup file system with memory and pids controllers is mounted".to_owned(),
            });
        }
        Err(reasons.join("; "))
    }

    /// Returns the version of the groups.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns true if released groups are reused rather than removed.
    pub fn keeps_groups(&self) -> bool {
        self.version == Version::V1
    }

    /// Returns the controllers of each hierarchy, in the order of a group's directories.
    pub fn layout(&self) -> Vec<Vec<String>> {
        self.hierarchies.iter().map(|hierarchy| hierarchy.controllers.clone()).collect()
    }

    /// Returns true if the kernel counts swap, so that a limit on memory includes it.
    pub fn counts_swap(&self) -> bool {
        let file = match self.version {
            Version::V1 => "memory.memsw.limit_in_bytes",
            Version::V2 => "memory.swap.max",
        };
        self.hierarchies.iter().any(|hierarchy| hierarchy.dir.get().is_some_and(|dir| read(dir.as_fd(), file).is_ok()))
    }

    /// Returns true if CPU time is counted.
    pub fn counts_cpu(&self) -> bool {
        self.version == Version::V2 || self.hierarchies.iter().any(|hierarchy| hierarchy.has("cpuacct"))
    }

    /// Returns true if processor shares can be limited.
    pub fn has_cpu(&self) -> bool {
        self.hierarchies.iter().any(|hierarchy| hierarchy.has("cpu"))
    }

    /// Returns a group with these limits, all written and accepted. It is empty and has no other user.
    pub fn make(&mut self, bounds: Bounds) -> io::Result<Group> {
        if self.share == Share::Single && self.created > 0 {
            return Err(io::Error::from(io::ErrorKind::QuotaExceeded));
        }
        if bounds.cpu_millis.is_none() {
            if self.spare.is_empty() {
                self.tidy();
            }
            while let Some(mut group) = self.spare.pop() {
                if group.bounds == Some(bounds) {
                    return Ok(group);
                }
                match self.bound(&group, bounds) {
                    Ok(()) => {
                        group.bounds = Some(bounds);
                        return Ok(group);
                    }
                    Err(_) => self.remove(&group)?,
                }
            }
        }
        self.created += 1;
        let mut group = Group {
            name: format!("s{}", self.created),
            version: self.version,
            dirs: Vec::with_capacity(4),
            base: Base::default(),
            join_files: Vec::new(),
            bounds: None,
        };
        let created = self.fill(&mut group, bounds).and_then(|()| self.bound(&group, bounds));
        match created {
            Ok(()) => {
                group.bounds = Some(bounds);
                Ok(group)
            }
            Err(error) => {
                self.remove(&group)?;
                Err(error)
            }
        }
    }

    /// Changes the limits of a group. The new ones must not limit processors.
    pub fn rebind(&self, group: &mut Group, bounds: Bounds) -> io::Result<()> {
        if group.bounds != Some(bounds) {
            group.bounds = None;
            self.bound(group, bounds)?;
            group.bounds = Some(bounds);
        }
        Ok(())
    }

    fn fill(&self, group: &mut Group, bounds: Bounds) -> io::Result<()> {
        for (index, hierarchy) in self.hierarchies.iter().enumerate() {
            if hierarchy.controllers != ["cpu"] || bounds.cpu_millis.is_some() {
                let dir = match self.share {
                    Share::Many => hierarchy.make(&group.name)?,
                    Share::Single => hierarchy.dir()?.try_clone_to_owned()?,
                };
                if self.version == Version::V1 {
                    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                    group.join_files.push(openat(&dir, "tasks", flags, Mode::empty())?);
                }
                group.dirs.push((index, dir));
            }
        }
        Ok(())
    }

    fn bound(&self, group: &Group, bounds: Bounds) -> io::Result<()> {
        group.dirs.iter().try_for_each(|(index, dir)| self.hierarchies[*index].bound(self.version, dir.as_fd(), bounds))
    }

    /// Releases a group whose processes have ended: keeps it for reuse, or removes it. Returns the group for a later
    /// attempt while tasks are still leaving it.
    pub fn release(&mut self, group: Box<Group>) -> Result<(), Box<Group>> {
        if self.keeps_groups() && self.used.len() + self.spare.len() < MAX_SPARE {
            self.used.push((Instant::now(), *group));
            return Ok(());
        }
        self.remove(&group).map_err(|_| group)
    }

    /// Returns true if [`Self::tidy`] has work to do.
    pub fn is_untidy(&self) -> bool {
        !self.used.is_empty()
    }

    /// Resets released groups for reuse, or removes them, except those that were released just now. Call it in idle
    /// time.
    pub fn tidy(&mut self) {
        for (since, mut group) in std::mem::take(&mut self.used) {
            if since.elapsed() < READ_GRACE_PERIOD {
                self.used.push((since, group));
                continue;
            }
            let has_cpu_bound = group.dirs.iter().any(|(index, _)| self.hierarchies[*index].controllers == ["cpu"]);
            let layout = self.layout();
            match if has_cpu_bound { Ok(false) } else { group.reset(&layout) } {
                Ok(true) => {
                    // The owner may have changed the memory limit for the last user.
                    let bounds = group.bounds.take();
                    if bounds.is_some_and(|bounds| self.bound(&group, bounds).is_ok()) {
                        group.bounds = bounds;
                    }
                    self.spare.push(group);
                }
                Ok(false) if self.remove(&group).is_ok() => {}
                Ok(false) | Err(_) => self.used.push((Instant::now(), group)),
            }
        }
    }

    /// Returns the directory of a group in which its tasks are counted.
    pub fn counting_dir<'a>(&self, group: &'a Group) -> Option<BorrowedFd<'a>> {
        let found = group.dirs.iter().find(|(index, _)| self.hierarchies[*index].has("pids"));
        found.map(|(_, dir)| dir.as_fd())
    }

    /// Removes an empty group. Fails with `ResourceBusy` while tasks are still leaving it.
    fn remove(&self, group: &Group) -> io::Result<()> {
        if self.share == Share::Single {
            // It is removed with the owner.
            return Ok(());
        }
        let mut result = Ok(());
        for (index, _) in &group.dirs {
            let removed = rustix::fs::unlinkat(
                self.hierarchies[*index].dir()?,
                group.name.as_str(),
                rustix::fs::AtFlags::REMOVEDIR,
            );
            match removed {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => result = Err(error.into()),
            }
        }
        result
    }

    /// Removes a group, and kills all processes in it.
    pub fn discard(&mut self, group: &Group) -> io::Result<()> {
        if self.share == Share::Many {
            for (index, _) in &group.dirs {
                parents::sweep_named(self.hierarchies[*index].dir()?, &group.name);
            }
        }
        self.remove(group)
    }

    /// Removes the groups of killed owners. `proc` is the proc file system of this process. [`Self::new`] does this for
    /// an owner of many groups. An owner of a single sandbox calls it at a better time.
    pub fn sweep(&self, proc: BorrowedFd<'_>) {
        for hierarchy in &self.hierarchies {
            parents::sweep(hierarchy.parent.as_fd(), &hierarchy.name, proc);
        }
    }

    /// Removes the owner's group.
    pub fn close(mut self) {
        for group in std::mem::take(&mut self.spare)
            .into_iter()
            .chain(std::mem::take(&mut self.used).into_iter().map(|(_, group)| group))
        {
            let _ = self.remove(&group);
        }
        for hierarchy in &self.hierarchies {
            hierarchy.remove();
        }
    }
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|known| known == controller)
    }

    fn make(&self, name: &str) -> io::Result<OwnedFd> {
        let owner = self.dir()?;
        rustix::fs::mkdirat(owner, name, Mode::from_raw_mode(0o755))?;
        open_dir(owner, name)
    }

    /// Returns the owner's group, and creates it if necessary.
    fn dir(&self) -> io::Result<BorrowedFd<'_>> {
        if self.dir.get().is_none() {
            match rustix::fs::mkdirat(&self.parent, self.name.as_str(), Mode::from_raw_mode(0o755)) {
                Err(rustix::io::Errno::EXIST) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
            let _ = self.dir.set(open_dir(self.parent.as_fd(), &self.name)?);
        }
        self.dir.get().map(AsFd::as_fd).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    /// Removes the owner's group, once its last tasks have left it.
    fn remove(&self) {
        for _ in 0..REMOVE_ATTEMPTS {
            match rustix::fs::unlinkat(&self.parent, self.name.as_str(), rustix::fs::AtFlags::REMOVEDIR) {
                Err(rustix::io::Errno::BUSY) => std::thread::sleep(Duration::from_millis(1)),
                _ => return,
            }
        }
    }

    fn bound(&self, version: Version, dir: BorrowedFd<'_>, bounds: Bounds) -> io::Result<()> {
        let controller = |name| self.has(name).then_some(());
        if controller("memory").is_some() {
            match version {
                Version::V1 => {
                    bound_memory_v1(dir, bounds.memory)?;
                    bound_sockets_v1(dir, bounds.memory)?;
                }
                Version::V2 => {
                    write_text(dir, "memory.max", &or_max(bounds.memory))?;
                    if bounds.memory.is_some() {
                        write_if_present(dir, "memory.swap.max", "0")?;
                    }
                }
            }
        }
        if controller("pids").is_some() {
            write_text(dir, "pids.max", &or_max(bounds.tasks))?;
        }
        if let (Some(()), Some(millis)) = (controller("cpu"), bounds.cpu_millis) {
            let quota = (CPU_PERIOD_MICROS * millis / 1000).max(1000);
            match version {
                Version::V1 => {
                    write(dir, "cpu.cfs_period_us", CPU_PERIOD_MICROS)?;
                    match write(dir, "cpu.cfs_quota_us", quota) {
                        // This is more than an ancestor group has, which limits this one in any case.
                        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                            let above = quota_above(dir).ok_or(error)?;
                            write(dir, "cpu.cfs_quota_us", quota.min(above))?;
                        }
                        written => written?,
                    }
                }
                Version::V2 => write_text(dir, "cpu.max", &format!("{quota} {CPU_PERIOD_MICROS}"))?,
            }
        }
        Ok(())
    }
}

/// Writes the limit on memory, and that on memory with swap if the kernel counts it. The first may never exceed the
/// second, so their order depends on the current values. If the kernel does not count swap, the group uses none.
fn bound_memory_v1(dir: BorrowedFd<'_>, bytes: Option<u64>) -> io::Result<()> {
    let text = bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
    if bytes.is_some() && read(dir, "memory.memsw.limit_in_bytes").is_err() {
        write_text(dir, "memory.swappiness", "0")?;
    }
    if write_text(dir, "memory.limit_in_bytes", &text).is_ok() {
        return write_if_present(dir, "memory.memsw.limit_in_bytes", &text);
    }
    write_if_present(dir, "memory.memsw.limit_in_bytes", &text)?;
    write_text(dir, "memory.limit_in_bytes", &text)
}

/// Limits TCP and UDP buffers, which version 1 counts separately, and only if they are limited.
fn bound_sockets_v1(dir: BorrowedFd<'_>, memory: Option<u64>) -> io::Result<()> {
    let text = memory.map_or_else(|| "-1".to_owned(), |memory| socket_share(memory).to_string());
    write_text(dir, SOCKETS_V1, &text)
}

/// Returns the limit in bytes on TCP and UDP buffers besides this limit on memory, if version 1 counts them separately.
#[must_use]
pub fn socket_share(memory: u64) -> u64 {
    (memory / 8).clamp(MIN_SOCKETS, MAX_SOCKETS)
}

/// Returns the lowest quota of the ancestors of a group of version 1, converted to [`CPU_PERIOD_MICROS`], or `None` if
/// none of them has one.
fn quota_above(dir: BorrowedFd<'_>) -> Option<u64> {
    let number = |name: &str| read(dir, name).ok()?.trim().parse::<i64>().ok();
    let mut lowest = None;
    let mut above = String::new();
    for _ in 0..MAX_ANCESTORS {
        above.push_str("../");
        let Some(quota) = number(&format!("{above}cpu.cfs_quota_us")) else { break };
        let period = number(&format!("{above}cpu.cfs_period_us")).and_then(|period| u64::try_from(period).ok());
        // -1 means no quota.
        if let (Ok(quota), Some(period)) = (u64::try_from(quota), period) {
            let quota = quota.saturating_mul(CPU_PERIOD_MICROS) / period.max(1);
            lowest = Some(lowest.map_or(quota, |lowest: u64| lowest.min(quota)));
        }
    }
    lowest
}

fn or_max(value: Option<u64>) -> String {
    value.map_or_else(|| "max".to_owned(), |value| value.to_string())
}

impl Group {
    /// Returns the counters from before the current use.
    pub fn base(&self) -> Base {
        self.base
    }

    /// Returns the limits on memory in bytes, on tasks, and on the share of processors in thousandths, as the kernel has
    /// them. `None` for those that are not there, as in every group of version 1.
    pub fn bounds(&self) -> [Option<u64>; 3] {
        let text = |name: &str| read(self.dirs.first()?.1.as_fd(), name).ok();
        let number = |name: &str| text(name)?.trim().parse().ok();
        let share = || stats::share_of_cpu_max(&text("cpu.max")?);
        [number("memory.max"), number("pids.max"), share()]
    }

    /// Resets an empty version 1 group. Returns false if too much is still charged to it, and an error while it is not
    /// empty.
    fn reset(&mut self, layout: &[Vec<String>]) -> io::Result<bool> {
        let directory = |name: &str| {
            let found = self.dirs.iter().find(|(index, _)| has_file(&layout[*index], name));
            found.map(|(_, dir)| dir.as_fd()).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        };
        let number = |name: &str| -> io::Result<u64> {
            read(directory(name)?, name)?.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
        };
        let event = |file: &str, name: &str| field(&read(directory(file).ok()?, file).ok()?, name);
        if number("pids.current")? > 0 {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        for counter in ["memory.max_usage_in_bytes", "cpuacct.usage"] {
            write_if_present(directory(counter)?, counter, "0")?;
        }
        let base = Base {
            memory_kills: event("memory.oom_control", "oom_kill").unwrap_or(0),
            forks_refused: event("pids.events", "max").unwrap_or(0),
            memory: number("memory.usage_in_bytes")?,
        };
        self.base = base;
        Ok(base.memory <= MAX_REMAINING)
    }

    /// Returns the directories for [`Stats`].
    pub fn dirs(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.dirs.iter().map(|(_, dir)| dir.as_fd())
    }

    /// Returns the descriptor with which `clone3` starts a child inside the group (version 2).
    pub fn clone_target(&self) -> Option<BorrowedFd<'_>> {
        match self.version {
            Version::V1 => None,
            Version::V2 => self.dirs().next(),
        }
    }

    /// Returns files to which a process with a single thread writes `0` to join the group, with either version.
    pub fn entrances(&self) -> io::Result<Vec<OwnedFd>> {
        match self.version {
            Version::V1 => self.join_files.iter().map(OwnedFd::try_clone).collect(),
            Version::V2 => {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                self.dirs().map(|dir| Ok(openat(dir, "cgroup.procs", flags, Mode::empty())?)).collect()
            }
        }
    }

    /// Returns descriptors to which a single-threaded process writes `0` to join the group (version 1). Moving another
    /// process, or a process with threads, costs milliseconds.
    pub fn join_files(&self) -> &[OwnedFd] {
        &self.join_files
    }
}

/// Returns true if a process in the groups `own` has no limit that one in the groups `other` does not have. Both are
/// the text of `/proc/PID/cgroup`.
pub fn is_bounded_no_more(own: &str, other: &str) -> bool {
    parents::is_bounded_no_more(own, other)
}

/// Returns the number of tasks in the group of this directory if the kernel counts them, or 0 if it is unknown.
pub fn members(dir: BorrowedFd<'_>) -> u64 {
    read(dir, "pids.current").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn open_dir(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

fn read(dir: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    read_again(open(dir, name)?.as_fd())
}

fn open(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Reads a file of a group from its start, which returns its current contents.
fn read_again(file: BorrowedFd<'_>) -> io::Result<String> {
    // These files return as much as fits at once, and most are short: one call is enough.
    let mut buffer = [0; 4096];
    let length = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut buffer, 0))?;
    if length == buffer.len() {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
