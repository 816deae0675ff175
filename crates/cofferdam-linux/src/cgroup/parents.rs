//! The choice of groups in which an owner's group is created: the mounted hierarchies, this process's groups in them,
//! and the removal of groups of killed owners.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rustix::fs::{Dir, FileType, FsWord, Mode, OFlags, openat};
use rustix::io::Errno;

use super::{Hierarchy, Owner, PREFIX, Share, Version};
use crate::process::Life;

mod unified;

use unified::Change;
pub use unified::Family;
pub(super) use unified::v2_parents;

/// The controllers of version 1 that are used.
const WANTED: [&str; 4] = ["memory", "pids", "cpuacct", "cpu"];

/// The number of attempts to remove a group whose processes are ending, two milliseconds apart: the threads of a VMM
/// may take a while on a busy host.
const SWEEP_ATTEMPTS: usize = 250;

/// The maximum depth of groups that are inspected.
const MAX_DEPTH: usize = 64;

/// A candidate for the parent of the owner's group: one directory for each hierarchy.
pub(super) struct Parents {
    version: Version,
    dirs: Vec<(Vec<String>, PathBuf)>,
    change: Change,
}

impl Parents {
    pub(super) fn open(self, name: &str, share: Share, family: Family) -> Result<Owner, String> {
        // A controller that an owner's group enables for its children cannot be disabled above it: the kernel refuses
        // that to systemd as well.
        let is_pinned = self.version == Version::V2 && self.change == Change::Nothing;
        let share = if is_pinned { Share::Many } else { share };
        let mut owner = Owner {
            version: self.version,
            hierarchies: Vec::new(),
            spare: Vec::new(),
            used: Vec::new(),
            created: 0,
            share,
        };
        for (controllers, parent) in self.dirs {
            let prepared = match self.change {
                Change::Nothing => Ok(()),
                Change::Controllers => unified::enable(&parent, &controllers),
                Change::Processes => unified::move_processes(&parent, &controllers, family),
            };
            if let Err(error) = prepared {
                return Err(format!("{} at {}: {error}", self.version.as_str(), parent.display()));
            }
            match open_hierarchy(self.version, controllers, &parent, name, share) {
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

fn open_hierarchy(
    version: Version,
    controllers: Vec<String>,
    parent: &Path,
    name: &str,
    share: Share,
) -> io::Result<Hierarchy> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let hierarchy = Hierarchy {
        parent: rustix::fs::open(parent, flags, Mode::empty())?,
        name: name.to_owned(),
        dir: OnceCell::new(),
        controllers,
    };
    // A single sandbox may have no limit on processors. Then no group is created in a hierarchy with only that
    // controller.
    if share == Share::Many || hierarchy.controllers != ["cpu"] {
        hierarchy.dir()?;
    }
    if version == Version::V2 && share == Share::Many {
        unified::enable(&parent.join(name), &hierarchy.controllers)?;
    }
    if share == Share::Many {
        let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        sweep(hierarchy.parent.as_fd(), name, proc.as_fd());
    }
    Ok(hierarchy)
}

/// Returns `cofferdam-<pid namespace>-<pid>-<start time>` of this process.
pub(super) fn owner_name() -> io::Result<String> {
    let pid = std::process::id();
    Ok(format!("{PREFIX}{}-{pid}-{}", pid_namespace()?, start_time(pid)?))
}

fn pid_namespace() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

fn start_time(pid: u32) -> io::Result<u64> {
    life(&fs::read_to_string(format!("/proc/{pid}/stat"))?).map(|life| life.start)
}

fn life(stat: &str) -> io::Result<Life> {
    Life::parse(stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Returns pid namespace, process id and start time from an owner's name.
fn named_owner(name: &str) -> Option<[u64; 3]> {
    let numbers: Result<Vec<u64>, _> = name.strip_prefix(PREFIX)?.split('-').map(str::parse).collect();
    numbers.ok()?.try_into().ok()
}

/// Returns the start time of a process. Returns `None` if it does not exist or has ended: a killed owner stays in the
/// process table until its parent reaps it, which may be never. `proc` is the proc file system.
fn started(proc: BorrowedFd<'_>, pid: u64) -> io::Result<Option<u64>> {
    let file = match openat(proc, format!("{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other?,
    };
    match super::read_again(file.as_fd()) {
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        other => life(&other?).map(|life| (!life.over).then_some(life.start)),
    }
}

/// Removes the groups of killed owners. Only owners of this pid namespace can be identified, so only their groups are
/// removed. `own` is the name of a living owner: if even that is not visible in `proc`, nothing is known about the
/// others.
pub(super) fn sweep(parent: BorrowedFd<'_>, own: &str, proc: BorrowedFd<'_>) {
    let Some([namespace, own_pid, own_start]) = named_owner(own) else { return };
    if !matches!(started(proc, own_pid), Ok(Some(start)) if start == own_start) {
        return;
    }
    for name in directories(parent) {
        let Some([owner_namespace, pid, start]) = name.to_str().ok().and_then(named_owner) else { continue };
        let alive = started(proc, pid).map_or(true, |found| found == Some(start));
        if owner_namespace == namespace && !alive {
            sweep_owner(parent, &name);
        }
    }
}

/// Returns the names of the directories in a directory, or none if it cannot be read.
fn directories(dir: BorrowedFd<'_>) -> Vec<CString> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(entries) = openat(dir, ".", flags, Mode::empty()).and_then(Dir::new) else { return Vec::new() };
    let directories = entries.flatten().filter(|entry| entry.file_type() == FileType::Directory);
    directories.map(|entry| entry.file_name().to_owned()).filter(|name| !name.as_bytes().starts_with(b".")).collect()
}

fn sweep_owner(parent: BorrowedFd<'_>, name: &CStr) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(owner) = openat(parent, name, flags, Mode::empty()) else { return };
    for group in directories(owner.as_fd()) {
        sweep_group(owner.as_fd(), &group);
    }
    sweep_group(parent, name);
}

/// Removes a group of a living owner, with all processes in it.
pub(super) fn sweep_named(parent: BorrowedFd<'_>, name: &str) {
    if let Ok(name) = CString::new(name) {
        sweep_group(parent, &name);
    }
}

/// Removes a group. Its processes were killed with their owner. Any that remains is in a group that only owners create,
/// and is killed.
fn sweep_group(parent: BorrowedFd<'_>, name: &CStr) {
    for _ in 0..SWEEP_ATTEMPTS {
        match rustix::fs::unlinkat(parent, name, rustix::fs::AtFlags::REMOVEDIR) {
            Err(Errno::BUSY) => {}
            _ => return,
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = [name.to_bytes(), b"/cgroup.procs"].concat();
        let procs = openat(parent, path.as_slice(), flags, Mode::empty()).map_err(io::Error::from);
        let pids = procs.and_then(|file| super::read_again(file.as_fd())).unwrap_or_default();
        for pid in pids.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 1) {
            let _ = crate::process::kill(pid, libc::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A mounted control group file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    pub(super) point: PathBuf,
    /// The group at the mount point.
    pub(super) root: PathBuf,
    pub(super) unified: bool,
    pub(super) options: Vec<String>,
}

/// Returns the mounted control group file systems. The kernel takes long to list all mounts, so the usual paths are
/// tried first.
pub(super) fn mounts(own: &str) -> io::Result<Vec<Mounted>> {
    match usual_mounts(own, kind_at) {
        Some(mounts) => Ok(mounts),
        None => Ok(mounted(&fs::read_to_string("/proc/self/mountinfo")?)),
    }
}

/// Returns version 2 at its usual path, or each needed hierarchy of version 1 at the path of its name. Returns `None`
/// if any is elsewhere. `kind` returns the file system at a path: version 2 or not, if it is a control group file
/// system.
fn usual_mounts(own: &str, kind: impl Fn(&Path) -> Option<bool>) -> Option<Vec<Mounted>> {
    let top = Path::new("/sys/fs/cgroup");
    if kind(top) == Some(true) {
        let mount = Mounted { point: top.to_owned(), root: "/".into(), unified: true, options: Vec::new() };
        let group = mount.path_of(own_groups(own).get("")?)?;
        return (kind(&group) == Some(true)).then(|| vec![mount]);
    }
    let mut found = Vec::new();
    for (controllers, group) in own.lines().filter_map(controllers_and_group) {
        let options: Vec<String> = controllers.split(',').map(str::to_owned).collect();
        if options.iter().any(|option| WANTED.contains(&option.as_str())) {
            let point = top.join(controllers);
            let mount = Mounted { point, root: "/".into(), unified: false, options };
            if kind(&mount.point) != Some(false) || kind(&mount.path_of(group)?) != Some(false) {
                return None;
            }
            found.push(mount);
        }
    }
    let has = |name: &str| found.iter().any(|mount| mount.options.iter().any(|option| option == name));
    (has("memory") && has("pids")).then_some(found)
}

fn kind_at(path: &Path) -> Option<bool> {
    const VERSION_1: FsWord = 0x0027_e0eb;
    const VERSION_2: FsWord = 0x6367_7270;
    match rustix::fs::statfs(path).ok()?.f_type {
        VERSION_1 => Some(false),
        VERSION_2 => Some(true),
        _ => None,
    }
}

fn mounted(mountinfo: &str) -> Vec<Mounted> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (PathBuf::from(left.next()?), PathBuf::from(left.next()?));
        let mut right = right.split(' ');
        let unified = match right.next()? {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        let options = right.nth(1)?.split(',').map(str::to_owned).collect();
        Some(Mounted { point, root, unified, options })
    };
    mountinfo.lines().filter_map(parse).collect()
}

/// Returns this process's own group in each hierarchy: controllers (empty for version 2) to path.
fn own_groups(own: &str) -> BTreeMap<String, String> {
    let mut groups = BTreeMap::new();
    for (controllers, path) in own.lines().filter_map(controllers_and_group) {
        for controller in controllers.split(',') {
            groups.insert(controller.to_owned(), path.to_owned());
        }
    }
    groups
}

/// Parses a line of `/proc/PID/cgroup`.
fn controllers_and_group(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    Some((parts.next()?, parts.next()?))
}

impl Mounted {
    /// Returns the path of a group, or `None` if it is outside of the mounted part.
    fn path_of(&self, group: &str) -> Option<PathBuf> {
        let below = Path::new(group).strip_prefix(&self.root).ok()?;
        let plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        plain.then(|| if below.as_os_str().is_empty() { self.point.clone() } else { self.point.join(below) })
    }
}

/// Returns true if a process in the groups `own` has no limit that one in the groups `other` does not have. Both are
/// the text of `/proc/PID/cgroup`. An unknown setting counts as a limit.
pub(super) fn is_bounded_no_more(own: &str, other: &str) -> bool {
    if own == other {
        return true;
    }
    let Ok(mounts) = mounts(own) else { return false };
    let others: BTreeMap<&str, &str> = other.lines().filter_map(controllers_and_group).collect();
    own.lines().filter_map(controllers_and_group).all(|(controllers, group)| {
        match others.get(controllers) {
            Some(theirs) if *theirs == group => true,
            // Hierarchies without controllers set no limits.
            _ if controllers.starts_with("name=") => true,
            Some(theirs) if controllers.is_empty() => {
                let Some(mount) = mounts.iter().find(|mount| mount.unified) else { return false };
                let above = Path::new(group).ancestors().take(MAX_DEPTH);
                let mut apart = above.take_while(|above| !Path::new(theirs).starts_with(above));
                apart.all(|group| {
                    group
                        .to_str()
                        .and_then(|group| mount.path_of(group))
                        .is_some_and(|group| !unified::is_bounded(&group))
                })
            }
            _ => false,
        }
    })
}

/// Returns the groups of version 1 of this process, so that its own limits apply to its sandboxes.
pub(super) fn v1_parents(mounts: &[Mounted], own: &str) -> Vec<Parents> {
    let groups = own_groups(own);
    let mut dirs = Vec::new();
    for mount in mounts.iter().filter(|mount| !mount.unified) {
        let controllers: Vec<String> =
            mount.options.iter().filter(|option| WANTED.contains(&option.as_str())).cloned().collect();
        let Some(first) = controllers.first() else { continue };
        if dirs.iter().any(|(known, _): &(Vec<String>, PathBuf)| known.contains(first)) {
            continue;
        }
        let Some(path) = groups.get(first).and_then(|group| mount.path_of(group)) else { continue };
        dirs.push((controllers, path));
    }
    // Groups without a limit on processors omit this hierarchy. The directories of a group must be a prefix of the
    // layout.
    dirs.sort_by_key(|(controllers, _)| *controllers == ["cpu"]);
    if dirs.is_empty() { Vec::new() } else { vec![Parents { version: Version::V1, dirs, change: Change::Nothing }] }
}

#[cfg(test)]
mod tests;
