//! Where groups can be made: which hierarchies there are, which part of them is ours, what killed owners left there.

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

/// Controllers of version 1 that are of use.
const WANTED: [&str; 4] = ["memory", "pids", "cpuacct", "cpu"];

/// Times that removing a group is tried whose processes are ending, two milliseconds apart: the threads of a monitor may take a
/// while on a busy machine.
const SWEEPS: usize = 250;

/// A place where the owner's group may be made: one directory a hierarchy.
pub(super) struct Parents {
    version: Version,
    dirs: Vec<(Vec<String>, PathBuf)>,
}

impl Parents {
    pub(super) fn open(self, name: &str, share: Share) -> Result<Owner, String> {
        let mut owner = Owner {
            version: self.version,
            hierarchies: Vec::new(),
            spare: Vec::new(),
            used: Vec::new(),
            made: 0,
            share,
        };
        for (controllers, parent) in self.dirs {
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
    if version == Version::V2 {
        enable(parent, &controllers)?;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let hierarchy = Hierarchy {
        parent: rustix::fs::open(parent, flags, Mode::empty())?,
        name: name.to_owned(),
        dir: OnceCell::new(),
        controllers,
    };
    // A single sandbox may have no bound on processors; then there is nothing to make where only that can be had.
    if share == Share::Many || hierarchy.controllers != ["cpu"] {
        hierarchy.dir()?;
    }
    if version == Version::V2 && share == Share::Many {
        enable(&parent.join(name), &hierarchy.controllers)?;
    }
    if share == Share::Many {
        let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        sweep(hierarchy.parent.as_fd(), name, proc.as_fd());
    }
    Ok(hierarchy)
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

/// `cofferdam-<pid namespace>-<pid>-<start time>` of this process.
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

/// Process-id namespace, process and start time, as an owner's name tells them.
fn named_owner(name: &str) -> Option<[u64; 3]> {
    let numbers: Result<Vec<u64>, _> = name.strip_prefix(PREFIX)?.split('-').map(str::parse).collect();
    numbers.ok()?.try_into().ok()
}

/// When a process started; `None` if there is none of this number, or only what is left of one that ended: a killed owner
/// stays in the table of processes until its parent asks about it, which may be never. `proc` is the proc file system.
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

/// Removes what owners left that were killed. Only those of this pid namespace can be judged, so only those are.
/// `own` is the name of a living owner: where even that cannot be seen in `proc`, nothing is known of the others.
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

/// The names of the directories in one; none of what cannot be read.
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

/// Removes a group of a living owner's, with all that is in it.
pub(super) fn sweep_named(parent: BorrowedFd<'_>, name: &str) {
    if let Ok(name) = CString::new(name) {
        sweep_group(parent, &name);
    }
}

/// Its processes died with their owner; should one be left, it is in a group that only we make.
fn sweep_group(parent: BorrowedFd<'_>, name: &CStr) {
    for _ in 0..SWEEPS {
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

/// A control group file system that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    pub(super) point: PathBuf,
    pub(super) unified: bool,
    pub(super) options: Vec<String>,
}

/// What is mounted. The kernel takes long to write down every mount, so the usual places are looked at first.
pub(super) fn mounts(own: &str) -> io::Result<Vec<Mounted>> {
    match usual_mounts(own, kind_at) {
        Some(mounts) => Ok(mounts),
        None => Ok(mounted(&fs::read_to_string("/proc/self/mountinfo")?)),
    }
}

/// Version 2 at its place; or each hierarchy of version 1 that we want where its name says. `None` if anything is
/// elsewhere. `kind` tells what is mounted at a path: version 2 or not, if any control groups.
fn usual_mounts(own: &str, kind: impl Fn(&Path) -> Option<bool>) -> Option<Vec<Mounted>> {
    let top = Path::new("/sys/fs/cgroup");
    if kind(top) == Some(true) {
        return Some(vec![Mounted { point: top.to_owned(), unified: true, options: Vec::new() }]);
    }
    let mut found = Vec::new();
    for controllers in own.lines().filter_map(|line| line.split(':').nth(1)) {
        let options: Vec<String> = controllers.split(',').map(str::to_owned).collect();
        if options.iter().any(|option| WANTED.contains(&option.as_str())) {
            let point = top.join(controllers);
            if kind(&point) != Some(false) {
                return None;
            }
            found.push(Mounted { point, unified: false, options });
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

/// The directory of a process's group in version 1's memory hierarchy, if there is one.
pub(super) fn v1_memory_group(pid: i32) -> io::Result<Option<PathBuf>> {
    let of_process = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let mounts = mounts(&own)?;
    let mount = mounts.iter().find(|mount| !mount.unified && mount.options.iter().any(|option| option == "memory"));
    let group = own_groups(&of_process).remove("memory");
    Ok(mount.zip(group).map(|(mount, group)| mount.point.join(group.trim_start_matches('/'))))
}

pub(super) fn v2_parents(mounts: &[Mounted], own: &str, root: bool) -> Vec<Parents> {
    let Some(mount) = mounts.iter().find(|mount| mount.unified) else { return Vec::new() };
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

pub(super) fn v1_parents(mounts: &[Mounted], own: &str, root: bool) -> Vec<Parents> {
    let groups = own_groups(own);
    let mut dirs = Vec::new();
    for mount in mounts.iter().filter(|mount| !mount.unified) {
        let controllers: Vec<String> =
            mount.options.iter().filter(|option| WANTED.contains(&option.as_str())).cloned().collect();
        let Some(first) = controllers.first() else { continue };
        if dirs.iter().any(|(known, _): &(Vec<String>, PathBuf)| known.contains(first)) {
            continue;
        }
        let place = if root {
            mount.point.clone()
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
    use super::super::stats::field;
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
        let dirs = |root| v1_parents(&mounted(V1_HOST), own, root).remove(0).dirs;
        assert_eq!(dirs(true).len(), 3);
        assert_eq!(dirs(true)[0].0, ["cpu", "cpuacct"]);
        assert_eq!(dirs(false)[0].1, Path::new("/sys/fs/cgroup/cpu,cpuacct/user"));
        assert_eq!(dirs(false)[1].1, Path::new("/sys/fs/cgroup/memory/user/x"));
        assert_eq!(dirs(false)[2].1, Path::new("/sys/fs/cgroup/pids"));
    }

    #[test]
    fn usual_places_give_what_the_list_of_mounts_gives_or_nothing() {
        let own = "4:freezer:/\n3:cpu,cpuacct:/user\n2:memory:/user/x\n1:pids:/\n0::/\n";
        let usual = usual_mounts(own, |path| (path != Path::new("/sys/fs/cgroup")).then_some(false)).unwrap();
        let key = |mount: &Mounted| mount.point.clone();
        let (mut usual, mut listed) = (usual, mounted(V1_HOST));
        listed.retain(|mount| !mount.point.ends_with("freezer"));
        listed.iter_mut().for_each(|mount| mount.options.retain(|option| WANTED.contains(&option.as_str())));
        usual.sort_by_key(key);
        listed.sort_by_key(key);
        assert_eq!(usual, listed);
        assert_eq!(usual_mounts(own, |path| (!path.ends_with("memory")).then_some(false)), None);
        assert_eq!(usual_mounts("0::/x\n", |_| None), None);
        assert!(usual_mounts("0::/x\n", |_| Some(true)).unwrap()[0].unified);
    }

    #[test]
    fn fields_of_flat_files_are_found() {
        assert_eq!(field("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"), Some(3));
        assert_eq!(field("usage_usec 12\n", "oom_kill"), None);
    }

    #[test]
    fn a_name_says_which_process() {
        let name = owner_name().unwrap();
        assert_eq!(named_owner(&name).unwrap()[1], u64::from(std::process::id()));
        for other in ["cofferdam", "cofferdam-bench-1-2", "cofferdam-1-2", "cofferdam-1-2-3-4", "1-2-3"] {
            assert_eq!(named_owner(other), None, "{other}");
        }
        assert!(start_time(u32::MAX).is_err());
    }

    #[test]
    fn what_ended_and_was_not_asked_about_has_left() {
        let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = u64::from(child.id());
        let start = start_time(child.id()).unwrap();
        assert_eq!(started(proc.as_fd(), pid).unwrap(), Some(start));
        child.kill().unwrap();
        let begun = std::time::Instant::now();
        while started(proc.as_fd(), pid).unwrap().is_some() {
            assert!(begun.elapsed().as_secs() < 60, "it counts as alive until it is asked about");
            std::thread::yield_now();
        }
        assert_eq!(start_time(child.id()).unwrap(), start, "its number is still its own");
        child.wait().unwrap();
        assert_eq!(started(proc.as_fd(), pid).unwrap(), None);
    }
}
