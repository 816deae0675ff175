//! Control groups, version 2 where controllers are delegated to us, else version 1.
//!
//! All groups lie under one group named [`BASE`], in it one group for each owner (a process that makes sandboxes), in
//! that one group a sandbox. An owner's name says which process it is, so that a later owner can tell what a killed
//! one left and sweep exactly that. Groups that others made are never touched.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};

/// The name of the group that holds all of ours.
pub const BASE: &str = "cofferdam";
/// Empty groups kept for use again.
const MOST_SPARE: usize = 16;
/// A group to which more than this is still charged is not used again.
const MOST_LEFT: u64 = 16 << 20;
const CPU_PERIOD_MICROS: u64 = 100_000;

/// Which version of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy a controller.
    V1,
    /// The unified hierarchy.
    V2,
}

impl Version {
    /// As used in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "cgroup v1",
            Self::V2 => "cgroup v2",
        }
    }
}

/// Values for one group; `None` sets no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Bytes.
    pub memory: Option<u64>,
    /// Tasks.
    pub tasks: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u64>,
}

/// Where groups can be made, for one owner.
#[derive(Debug)]
pub struct Owner {
    version: Version,
    hierarchies: Vec<Hierarchy>,
    /// Groups that stand empty and may be used again (version 1, where making one means many steps).
    spare: Vec<Group>,
    /// Groups that were given back and not yet looked at.
    used: Vec<Group>,
    made: u64,
}

#[derive(Debug)]
struct Hierarchy {
    controllers: Vec<String>,
    /// The group that holds the base. Descriptors work on after the owner has left the host's mounts.
    parent: OwnedFd,
    /// `cofferdam/<owner>` under the parent.
    name: String,
    dir: OwnedFd,
}

/// One sandbox's group: a directory in each hierarchy.
#[derive(Debug)]
pub struct Group {
    name: String,
    version: Version,
    dirs: Vec<(usize, OwnedFd)>,
    base: Base,
    /// What was written last: nobody else writes there.
    bounds: Option<Bounds>,
}

/// What a group that is used again had counted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Base {
    /// Kills for memory.
    pub memory_kills: u64,
    /// Forks refused.
    pub forks_refused: u64,
    /// Bytes in use: cached files that the last user read first.
    pub memory: u64,
}

impl Owner {
    /// Makes this process's own group, or says for each way why it does not work.
    pub fn new() -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let name = owner_name().map_err(|error| error.to_string())?;
        let root = rustix::process::geteuid().is_root();
        let mut reasons = Vec::new();
        for candidate in v2_parents(&mounts, &own, root).into_iter().chain(v1_parents(&mounts, &own, root)) {
            match candidate.open(&name) {
                Ok(owner) => return Ok(owner),
                Err(reason) => reasons.push(reason),
            }
        }
        if reasons.is_empty() {
            reasons.push("no cgroup file system with memory and pids controllers is mounted".to_owned());
        }
        Err(reasons.join("; "))
    }

    /// Which version the groups have.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether groups that were released are used again rather than removed.
    pub fn keeps_groups(&self) -> bool {
        self.version == Version::V1
    }

    /// The controllers of each hierarchy, in the order of a group's directories.
    pub fn layout(&self) -> Vec<Vec<String>> {
        self.hierarchies.iter().map(|hierarchy| hierarchy.controllers.clone()).collect()
    }

    /// Whether processor shares can be bounded.
    pub fn has_cpu(&self) -> bool {
        self.hierarchies.iter().any(|hierarchy| hierarchy.has("cpu"))
    }

    /// A group with these bounds, all written and accepted, in which nothing is and of which nobody else knows.
    pub fn make(&mut self, bounds: Bounds) -> io::Result<Group> {
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
        self.made += 1;
        let mut group = Group {
            name: format!("s{}", self.made),
            version: self.version,
            dirs: Vec::with_capacity(4),
            base: Base::default(),
            bounds: None,
        };
        let made = self.fill(&mut group, bounds).and_then(|()| self.bound(&group, bounds));
        match made {
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

    fn fill(&self, group: &mut Group, bounds: Bounds) -> io::Result<()> {
        for (index, hierarchy) in self.hierarchies.iter().enumerate() {
            if hierarchy.controllers != ["cpu"] || bounds.cpu_millis.is_some() {
                group.dirs.push((index, hierarchy.make(&group.name)?));
            }
        }
        Ok(())
    }

    fn bound(&self, group: &Group, bounds: Bounds) -> io::Result<()> {
        group.dirs.iter().try_for_each(|(index, dir)| self.hierarchies[*index].bound(self.version, dir.as_fd(), bounds))
    }

    /// Takes a group back whose processes have ended: keeps it to be used again, or removes it. Gives it back, to be
    /// tried again later, while tasks are still leaving it.
    pub fn release(&mut self, group: Box<Group>) -> Result<(), Box<Group>> {
        if self.keeps_groups() && self.used.len() + self.spare.len() < MOST_SPARE {
            self.used.push(*group);
            return Ok(());
        }
        self.remove(&group).map_err(|_| group)
    }

    /// Whether [`Self::tidy`] has something to do.
    pub fn is_untidy(&self) -> bool {
        !self.used.is_empty()
    }

    /// Makes groups that were given back as good as new, or removes them. For when nothing else is to be done.
    pub fn tidy(&mut self) {
        for mut group in std::mem::take(&mut self.used) {
            let has_cpu_bound = group.dirs.iter().any(|(index, _)| self.hierarchies[*index].controllers == ["cpu"]);
            let layout = self.layout();
            match if has_cpu_bound { Ok(false) } else { group.reset(&layout) } {
                Ok(true) => self.spare.push(group),
                Ok(false) if self.remove(&group).is_ok() => {}
                Ok(false) | Err(_) => self.used.push(group),
            }
        }
    }

    /// Removes an empty group. Fails with `ResourceBusy` while tasks are still leaving it.
    fn remove(&self, group: &Group) -> io::Result<()> {
        let mut result = Ok(());
        for (index, _) in &group.dirs {
            let removed = rustix::fs::unlinkat(
                &self.hierarchies[*index].dir,
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

    /// Removes the owner's group, and the base when no other owner is left in it.
    pub fn close(mut self) {
        for group in std::mem::take(&mut self.spare).into_iter().chain(std::mem::take(&mut self.used)) {
            let _ = self.remove(&group);
        }
        for hierarchy in &self.hierarchies {
            for name in [hierarchy.name.as_str(), BASE] {
                let _ = rustix::fs::unlinkat(&hierarchy.parent, name, rustix::fs::AtFlags::REMOVEDIR);
            }
        }
    }
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|known| known == controller)
    }

    fn make(&self, name: &str) -> io::Result<OwnedFd> {
        rustix::fs::mkdirat(&self.dir, name, Mode::from_raw_mode(0o755))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.dir, name, flags, Mode::empty())?)
    }

    fn bound(&self, version: Version, dir: BorrowedFd<'_>, bounds: Bounds) -> io::Result<()> {
        let controller = |name| self.has(name).then_some(());
        if controller("memory").is_some() {
            match version {
                Version::V1 => bound_memory_v1(dir, bounds.memory)?,
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
                    write(dir, "cpu.cfs_quota_us", quota)?;
                }
                Version::V2 => write_text(dir, "cpu.max", &format!("{quota} {CPU_PERIOD_MICROS}"))?,
            }
        }
        Ok(())
    }
}

/// Writes memory, and memory with swap where the kernel counts it. The first may never be above the second, so that
/// their order depends on what stood there.
fn bound_memory_v1(dir: BorrowedFd<'_>, bytes: Option<u64>) -> io::Result<()> {
    let text = bytes.map_or_else(|| "-1".to_owned(), |bytes| bytes.to_string());
    if write_text(dir, "memory.limit_in_bytes", &text).is_ok() {
        return write_if_present(dir, "memory.memsw.limit_in_bytes", &text);
    }
    write_if_present(dir, "memory.memsw.limit_in_bytes", &text)?;
    write_text(dir, "memory.limit_in_bytes", &text)
}

fn or_max(value: Option<u64>) -> String {
    value.map_or_else(|| "max".to_owned(), |value| value.to_string())
}

impl Group {
    /// What it had counted before.
    pub fn base(&self) -> Base {
        self.base
    }

    /// Makes an empty version 1 group as good as new; `false` when too much is left of it. An error while it is not
    /// empty.
    fn reset(&mut self, layout: &[Vec<String>]) -> io::Result<bool> {
        let place = |name: &str| {
            let found = self.dirs.iter().find(|(index, _)| has_file(&layout[*index], name));
            found.map(|(_, dir)| dir.as_fd()).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        };
        let number = |name: &str| -> io::Result<u64> {
            read(place(name)?, name)?.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
        };
        let event = |file: &str, name: &str| field(&read(place(file).ok()?, file).ok()?, name);
        if number("pids.current")? > 0 {
            return Err(io::Error::from(io::ErrorKind::ResourceBusy));
        }
        for counter in ["memory.max_usage_in_bytes", "cpuacct.usage"] {
            write_if_present(place(counter)?, counter, "0")?;
        }
        let base = Base {
            memory_kills: event("memory.oom_control", "oom_kill").unwrap_or(0),
            forks_refused: event("pids.events", "max").unwrap_or(0),
            memory: number("memory.usage_in_bytes")?,
        };
        self.base = base;
        Ok(base.memory <= MOST_LEFT)
    }

    /// The directories, to be read by [`Stats`].
    pub fn dirs(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.dirs.iter().map(|(_, dir)| dir.as_fd())
    }

    /// For version 2: the descriptor that makes `clone3` start a child inside the group.
    pub fn clone_target(&self) -> Option<BorrowedFd<'_>> {
        match self.version {
            Version::V1 => None,
            Version::V2 => self.dirs().next(),
        }
    }

    /// For version 1: descriptors to which a single-threaded process writes `0` to move itself. Moving another
    /// process, or a process with threads, costs milliseconds.
    pub fn join_files(&self) -> io::Result<Vec<OwnedFd>> {
        match self.version {
            Version::V1 => self
                .dirs()
                .map(|dir| Ok(openat(dir, "tasks", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?))
                .collect(),
            Version::V2 => Ok(Vec::new()),
        }
    }
}

/// What a group has used, read through its directories.
#[derive(Debug)]
pub struct Stats {
    version: Version,
    /// A directory of each hierarchy, and the controllers there.
    dirs: Vec<(OwnedFd, Vec<String>)>,
}

impl Stats {
    /// Reads through these directories, as [`Group::dirs`] gave them, in hierarchies as [`Owner::layout`] gave them.
    pub fn new(version: Version, dirs: Vec<OwnedFd>, layout: &[Vec<String>]) -> Self {
        Self { version, dirs: dirs.into_iter().zip(layout.iter().cloned()).collect() }
    }

    fn read(&self, v1: &str, v2: &str) -> Option<String> {
        let name = match self.version {
            Version::V1 => v1,
            Version::V2 => v2,
        };
        let (dir, _) = match self.version {
            Version::V1 => self.dirs.iter().find(|(_, controllers)| has_file(controllers, name))?,
            Version::V2 => self.dirs.first()?,
        };
        read(dir.as_fd(), name).ok()
    }

    fn number(&self, v1: &str, v2: &str) -> Option<u64> {
        self.read(v1, v2)?.trim().parse().ok()
    }

    /// CPU microseconds used.
    pub fn cpu_micros(&self) -> Option<u64> {
        match self.version {
            Version::V1 => Some(self.number("cpuacct.usage", "")? / 1000),
            Version::V2 => field(&self.read("", "cpu.stat")?, "usage_usec"),
        }
    }

    /// Bytes in use.
    pub fn memory(&self) -> Option<u64> {
        self.number("memory.usage_in_bytes", "memory.current")
    }

    /// The most bytes used at once.
    pub fn peak_memory(&self) -> Option<u64> {
        self.number("memory.max_usage_in_bytes", "memory.peak")
    }

    /// The bound on memory, in bytes.
    pub fn memory_bound(&self) -> Option<u64> {
        self.number("memory.limit_in_bytes", "memory.max")
    }

    /// The bound on memory and swap together (version 1) or on swap (version 2), where the kernel counts swap.
    pub fn swap_bound(&self) -> Option<u64> {
        self.number("memory.memsw.limit_in_bytes", "memory.swap.max")
    }

    /// How often the kernel killed a process for memory.
    pub fn memory_kills(&self) -> u64 {
        let text = self.read("memory.oom_control", "memory.events");
        text.and_then(|text| field(&text, "oom_kill")).unwrap_or(0)
    }

    /// Tasks alive.
    pub fn tasks(&self) -> Option<u64> {
        self.number("pids.current", "pids.current")
    }

    /// The bound on tasks.
    pub fn tasks_bound(&self) -> Option<u64> {
        self.number("pids.max", "pids.max")
    }

    /// How often a fork was refused.
    pub fn forks_refused(&self) -> u64 {
        let text = self.read("pids.events", "pids.events");
        text.and_then(|text| field(&text, "max")).unwrap_or(0)
    }

    /// The bound on processor share, in thousandths.
    pub fn cpu_millis(&self) -> Option<u64> {
        match self.version {
            Version::V1 => {
                let quota = self.number("cpu.cfs_quota_us", "")?;
                Some(quota * 1000 / self.number("cpu.cfs_period_us", "")?.max(1))
            }
            Version::V2 => {
                let text = self.read("", "cpu.max")?;
                let mut parts = text.split_whitespace().map(str::parse::<u64>);
                let quota = parts.next()?.ok()?;
                Some(quota * 1000 / parts.next()?.ok()?.max(1))
            }
        }
    }
}

/// Whether a file of version 1, named after its controller, belongs to a hierarchy of these.
fn has_file(controllers: &[String], name: &str) -> bool {
    name.split('.').next().is_some_and(|prefix| controllers.iter().any(|controller| controller == prefix))
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then(|| value.trim().parse().ok())?
    })
}

fn read(dir: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    let file = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    fs::File::from(file).take(64 * 1024).read_to_string(&mut text)?;
    Ok(text)
}

fn write(dir: BorrowedFd<'_>, name: &str, value: u64) -> io::Result<()> {
    write_text(dir, name, &value.to_string())
}

fn write_text(dir: BorrowedFd<'_>, name: &str, value: &str) -> io::Result<()> {
    let file = openat(dir, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    fs::File::from(file).write_all(value.as_bytes())
}

fn write_if_present(dir: BorrowedFd<'_>, name: &str, value: &str) -> io::Result<()> {
    match write_text(dir, name, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A place where the owner's group may be made: one directory a hierarchy.
struct Parents {
    version: Version,
    dirs: Vec<(Vec<String>, PathBuf)>,
}

impl Parents {
    fn open(self, name: &str) -> Result<Owner, String> {
        let mut owner =
            Owner { version: self.version, hierarchies: Vec::new(), spare: Vec::new(), used: Vec::new(), made: 0 };
        for (controllers, parent) in self.dirs {
            match open_hierarchy(self.version, controllers, &parent, name) {
                Ok(hierarchy) => owner.hierarchies.push(hierarchy),
                Err(error) => {
                    let reason = format!("{} at {}: {error}", self.version.as_str(), parent.display());
                    owner.close();
                    return Err(reason);
                }
            }
        }
        let missing = ["memory", "pids"].into_iter().find(|name| !owner.hierarchies.iter().any(|h| h.has(name)));
        match missing {
            None => Ok(owner),
            Some(controller) => {
                let reason = format!("{}: no {controller} controller", self.version.as_str());
                owner.close();
                Err(reason)
            }
        }
    }
}

fn open_hierarchy(version: Version, controllers: Vec<String>, parent: &Path, name: &str) -> io::Result<Hierarchy> {
    let base = parent.join(BASE);
    let path = base.join(name);
    if version == Version::V2 {
        enable(parent, &controllers)?;
    }
    // Another owner may remove an empty base between the two steps.
    for _ in 0..100 {
        make_dir(&base)?;
        if version == Version::V2 {
            match enable(&base, &controllers) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            }
        }
        match make_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        }
        if version == Version::V2 {
            enable(&path, &controllers)?;
        }
        sweep(&base);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&path, flags, Mode::empty())?;
        let parent = rustix::fs::open(parent, flags, Mode::empty())?;
        return Ok(Hierarchy { controllers, parent, name: format!("{BASE}/{name}"), dir });
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}

fn make_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Lets the groups below `dir` use these controllers (version 2).
fn enable(dir: &Path, controllers: &[String]) -> io::Result<()> {
    let path = dir.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&path)?;
    let missing: Vec<String> = controllers
        .iter()
        .filter(|controller| !enabled.split_whitespace().any(|known| known == controller.as_str()))
        .map(|controller| format!("+{controller}"))
        .collect();
    if missing.is_empty() { Ok(()) } else { fs::write(path, missing.join(" ")) }
}

/// `<pid namespace>-<pid>-<start time>` of this process.
fn owner_name() -> io::Result<String> {
    let pid = std::process::id();
    Ok(format!("{}-{pid}-{}", pid_namespace()?, start_time(pid)?))
}

fn pid_namespace() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    after_name.split_whitespace().nth(19).ok_or_else(bad)?.parse().map_err(|_| bad())
}

/// Removes what owners left that were killed. Only those of this pid namespace can be judged, so only those are.
fn sweep(base: &Path) {
    let (Ok(namespace), Ok(entries)) = (pid_namespace(), fs::read_dir(base)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let numbers: Vec<u64> = name.to_string_lossy().split('-').map_while(|part| part.parse().ok()).collect();
        let [owner_namespace, pid, started] = numbers[..] else { continue };
        let alive = u32::try_from(pid).is_ok_and(|pid| start_time(pid).is_ok_and(|time| time == started));
        if owner_namespace == namespace && !alive {
            sweep_owner(&entry.path());
        }
    }
}

fn sweep_owner(path: &Path) {
    let Ok(entries) = fs::read_dir(path) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let group = entry.path();
        // Its processes died with their owner; should one be left, it is in a group that only we make.
        for _ in 0..50 {
            if fs::remove_dir(&group).is_ok() {
                break;
            }
            let pids = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 1) {
                let _ = crate::process::kill(pid, libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let _ = fs::remove_dir(path);
}

struct Mounted {
    point: PathBuf,
    unified: bool,
    options: Vec<String>,
}

fn mounted(mountinfo: &str) -> Vec<Mounted> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = PathBuf::from(left.split(' ').nth(4)?);
        let mut right = right.split(' ');
        let unified = match right.next()? {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        let options = right.nth(1)?.split(',').map(str::to_owned).collect();
        Some(Mounted { point, unified, options })
    };
    mountinfo.lines().filter_map(parse).collect()
}

/// This process's own group in each hierarchy: controllers (empty for version 2) to path.
fn own_groups(own: &str) -> BTreeMap<String, String> {
    let parse = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
    };
    let mut groups = BTreeMap::new();
    for (controllers, path) in own.lines().filter_map(parse) {
        for controller in controllers.split(',') {
            groups.insert(controller.to_owned(), path.clone());
        }
    }
    groups
}

fn v2_parents(mountinfo: &str, own: &str, root: bool) -> Vec<Parents> {
    let Some(mount) = mounted(mountinfo).into_iter().find(|mount| mount.unified) else { return Vec::new() };
    let own = own_groups(own).remove("").unwrap_or_default();
    let own_path = mount.point.join(own.trim_start_matches('/'));
    let mut places = Vec::new();
    if root {
        places.push(mount.point.clone());
    }
    // From the highest group that is ours downwards: the caller itself sits in a leaf, where nothing can be enabled.
    let mut ancestors: Vec<&Path> = own_path.ancestors().take_while(|path| path.starts_with(&mount.point)).collect();
    ancestors.reverse();
    places.extend(ancestors.into_iter().filter(|path| writable(path)).map(Path::to_owned));
    places
        .into_iter()
        .filter_map(|place| {
            let text = fs::read_to_string(place.join("cgroup.controllers")).ok()?;
            let offered: Vec<String> = ["memory", "pids", "cpu"]
                .into_iter()
                .filter(|name| text.split_whitespace().any(|known| known == *name))
                .map(str::to_owned)
                .collect();
            Some(Parents { version: Version::V2, dirs: vec![(offered, place)] })
        })
        .filter(|parents| ["memory", "pids"].iter().all(|name| parents.dirs[0].0.iter().any(|known| known == name)))
        .collect()
}

fn writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
        && rustix::fs::access(path.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok()
}

fn v1_parents(mountinfo: &str, own: &str, root: bool) -> Vec<Parents> {
    const WANTED: [&str; 4] = ["memory", "pids", "cpuacct", "cpu"];
    let groups = own_groups(own);
    let mut dirs = Vec::new();
    for mount in mounted(mountinfo).into_iter().filter(|mount| !mount.unified) {
        let controllers: Vec<String> =
            mount.options.iter().filter(|option| WANTED.contains(&option.as_str())).cloned().collect();
        let Some(first) = controllers.first() else { continue };
        if dirs.iter().any(|(known, _): &(Vec<String>, PathBuf)| known.contains(first)) {
            continue;
        }
        let place = if root {
            mount.point
        } else {
            mount.point.join(groups.get(first).map_or("", |path| path.trim_start_matches('/')))
        };
        dirs.push((controllers, place));
    }
    // Groups without a bound on processors leave this one out; what a group has must be the front of the layout.
    dirs.sort_by_key(|(controllers, _)| *controllers == ["cpu"]);
    if dirs.is_empty() { Vec::new() } else { vec![Parents { version: Version::V1, dirs }] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1_HOST: &str = "\
30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
";

    #[test]
    fn v1_controllers_mounted_together_are_one_hierarchy() {
        let own = "3:cpu,cpuacct:/user\n2:memory:/user/x\n1:pids:/\n0::/\n";
        let dirs = |root| v1_parents(V1_HOST, own, root).remove(0).dirs;
        assert_eq!(dirs(true).len(), 3);
        assert_eq!(dirs(true)[0].0, ["cpu", "cpuacct"]);
        assert_eq!(dirs(false)[0].1, Path::new("/sys/fs/cgroup/cpu,cpuacct/user"));
        assert_eq!(dirs(false)[1].1, Path::new("/sys/fs/cgroup/memory/user/x"));
        assert_eq!(dirs(false)[2].1, Path::new("/sys/fs/cgroup/pids"));
    }

    #[test]
    fn fields_of_flat_files_are_found() {
        assert_eq!(field("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"), Some(3));
        assert_eq!(field("usage_usec 12\n", "oom_kill"), None);
    }

    #[test]
    fn a_name_says_which_process() {
        let name = owner_name().unwrap();
        let parts: Vec<u64> = name.split('-').map(|part| part.parse().unwrap()).collect();
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[1], u64::from(std::process::id()));
        assert!(start_time(u32::MAX).is_err());
    }
}
