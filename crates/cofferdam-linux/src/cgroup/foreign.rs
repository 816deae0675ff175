//! The control groups of a container, which an engine created: read from outside, and emptied regardless of its process
//! 1.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::parents::{self, Mounted};
use super::{SOCKETS_V1, Stats, Version, read, socket_share, write_text};
use crate::process;

/// The maximum of processes that are listed in one round.
const MAX_LISTED: usize = 1 << 16;
/// The number of rounds in which processes are killed, and the time between them: a killed process needs a processor to
/// end.
const KILL_ROUNDS: usize = 500;
const KILL_INTERVAL: Duration = Duration::from_millis(10);
/// The minimum length of a name that identifies a single container.
const MIN_NAME: usize = 32;
/// The maximum depth below a mount to search groups, and the maximum of directories to read: a rootless Podman of a
/// user's systemd creates them at the fifth level.
const MAX_DEPTH: usize = 6;
const MAX_SEARCHED: usize = 20_000;
/// The kernel rounds limits on memory down by less than this.
const LIMIT_ROUNDING: u64 = 65_536;
const MAX_SHARES: &str = "262144";
const MAX_WEIGHT: &str = "10000";

/// The control groups of one container.
#[derive(Debug)]
pub struct Foreign {
    /// The process that the engine named, of whatever pid namespace the engine has.
    pid: i32,
    name: String,
    version: Version,
    stats: Stats,
    dirs: Vec<OwnedFd>,
}

impl Foreign {
    /// Finds the groups of the container with that name and this process. The id may be of another pid namespace: if
    /// the process is in no group of that name, groups of that name are searched for below the mounts. Returns
    /// `NotFound` if there are none.
    pub fn of(pid: i32, name: &str) -> io::Result<Self> {
        if name.len() < MIN_NAME || name.contains(['/', '.']) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let theirs = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let mounts = parents::mounts(&fs::read_to_string("/proc/self/cgroup")?)?;
        let ways = [(Version::V1, false), (Version::V2, true)];
        let of_process = ways.iter().map(|(version, unified)| (*version, groups(&mounts, &theirs, name, *unified)));
        let by_name = ways.iter().map(|(version, unified)| (*version, named(&mounts, name, *unified)));
        let found = of_process.chain(by_name).find(|(_, found)| !found.is_empty());
        let (version, found) = found.ok_or(io::ErrorKind::NotFound)?;
        let open = |path: &Path| openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let (mut dirs, mut copies, mut layout) = (Vec::new(), Vec::new(), Vec::new());
        for (controllers, path) in found {
            let dir = open(&path)?;
            copies.push(dir.try_clone()?);
            dirs.push(dir);
            layout.push(controllers);
        }
        Ok(Self { pid, name: name.to_owned(), version, stats: Stats::new(version, copies, &layout), dirs })
    }

    /// Returns the use and the limits of the groups.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Limits TCP and UDP buffers besides this limit on memory, if the groups are of version 1, which counts them
    /// separately. Returns the limit that was read back, or `None` if the groups have another memory limit or the
    /// caller lacks permission.
    pub fn bound_sockets(&self, memory: u64) -> Option<u64> {
        let number = |dir: &OwnedFd, name: &str| read(dir.as_fd(), name).ok()?.trim().parse::<u64>().ok();
        let has_limit = |limit: u64| limit <= memory && memory - limit < LIMIT_ROUNDING;
        let limited = |dir: &&OwnedFd| number(dir, "memory.limit_in_bytes").is_some_and(has_limit);
        let dir = self.dirs.iter().filter(|_| self.version == Version::V1).find(limited)?;
        write_text(dir.as_fd(), SOCKETS_V1, &socket_share(memory).to_string()).ok()?;
        number(dir, SOCKETS_V1)
    }

    /// Opens the directory of one of the processes in the proc file system: of the one that the engine named, if it is in
    /// the groups or below, else of one that the groups list. Returns `None` if the caller sees none.
    pub fn open_process(&self) -> Option<OwnedFd> {
        let listed = || self.stats.processes(MAX_LISTED);
        let named = std::iter::once_with(|| vec![self.pid]);
        named.chain(std::iter::once_with(listed)).flatten().find_map(|pid| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let process = openat(CWD, format!("/proc/{pid}"), flags, Mode::empty()).ok()?;
            // The process id may have been reused.
            let groups = read(process.as_fd(), "cgroup").ok()?;
            groups.contains(&self.name).then_some(process)
        })
    }

    /// Gives the processes the maximum share of processors, so that killed ones can end. Does nothing if the caller
    /// lacks permission.
    pub fn raise(&self) {
        for dir in &self.dirs {
            match self.version {
                Version::V1 => {
                    let _ = write_text(dir.as_fd(), "cpu.shares", MAX_SHARES);
                    let _ = write_text(dir.as_fd(), "cpu.cfs_quota_us", "-1");
                }
                Version::V2 => {
                    let _ = write_text(dir.as_fd(), "cpu.weight", MAX_WEIGHT);
                    let _ = write_text(dir.as_fd(), "cpu.max", "max");
                }
            }
        }
    }

    /// Kills all processes in the groups, including the container's process 1, until none is left. Returns false if
    /// some are left or the caller lacks permission. Blocks its thread.
    ///
    /// Processes that fork meanwhile may not be listed. They end with process 1, because the kernel then kills all
    /// processes in its pid namespace and creates no others. So nothing is frozen before: a caller that was killed in
    /// between would leave a frozen container.
    pub fn kill(&self) -> bool {
        self.raise();
        for _ in 0..KILL_ROUNDS {
            let all_at_once = self.version == Version::V2
                && self.dirs.iter().all(|dir| write_text(dir.as_fd(), "cgroup.kill", "1").is_ok());
            let left = self.stats.processes(MAX_LISTED);
            if left.is_empty() {
                return true;
            }
            if !all_at_once && !left.iter().any(|pid| self.kill_member(*pid)) {
                return false;
            }
            std::thread::sleep(KILL_INTERVAL);
        }
        false
    }

    /// Kills a process in the groups. Returns false if that is not permitted.
    fn kill_member(&self, pid: i32) -> bool {
        // The process id may have been reused: check the process of the descriptor once more.
        let Ok(descriptor) = process::pidfd(pid) else { return true };
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        !groups.contains(&self.name) || process::kill_by_pidfd(descriptor.as_fd()).is_ok()
    }
}

/// Returns the directories of a container's groups, and the controllers of each: the used ones of version 1, or the one
/// of version 2.
fn groups(mounts: &[Mounted], theirs: &str, name: &str, unified: bool) -> Vec<(Vec<String>, PathBuf)> {
    let mut found: Vec<(Vec<String>, PathBuf)> = Vec::new();
    for line in theirs.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let Some(path) = up_to(path, name) else { continue };
        let controllers: Vec<String> =
            controllers.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let mount = mounts.iter().find(|mount| match unified {
            true => mount.unified && controllers.is_empty(),
            false => !mount.unified && controllers.iter().any(|name| mount.options.contains(name)),
        });
        if let Some(mount) = mount {
            found.push((controllers, mount.point.join(path)));
        }
    }
    found
}

/// Finds the directories by the name alone, wherever the engine is configured to create its groups.
fn named(mounts: &[Mounted], name: &str, unified: bool) -> Vec<(Vec<String>, PathBuf)> {
    let of_kind = mounts.iter().filter(|mount| mount.unified == unified);
    let found = of_kind.filter_map(|mount| {
        let controllers = if unified { Vec::new() } else { mount.options.clone() };
        Some((controllers, search(&mount.point, name)?))
    });
    found.collect()
}

/// Searches a group whose directory name contains this name, nearest to the mount first. Directories of other users do
/// not count: a user may have delegated groups and can name them freely.
fn search(mount: &Path, name: &str) -> Option<PathBuf> {
    let mut level = vec![mount.to_owned()];
    let mut budget = MAX_SEARCHED;
    for _ in 0..MAX_DEPTH {
        let mut below = Vec::new();
        for directory in level {
            budget = budget.checked_sub(1)?;
            let Ok(entries) = fs::read_dir(directory) else { continue };
            for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                if entry.file_name().to_str().is_some_and(|found| found.contains(name)) && is_trusted(&entry) {
                    return Some(entry.path());
                }
                below.push(entry.path());
            }
        }
        level = below;
    }
    None
}

/// Returns true if root or this user owns an entry.
fn is_trusted(entry: &fs::DirEntry) -> bool {
    entry.metadata().is_ok_and(|meta| [0, rustix::process::geteuid().as_raw()].contains(&meta.uid()))
}

/// Returns a path without its leading slash, up to the component that contains this name.
fn up_to(path: &str, name: &str) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for part in Path::new(path).components().skip_while(|part| *part == Component::RootDir) {
        let Component::Normal(part) = part else { return None };
        found.push(part);
        if part.to_str().is_some_and(|part| part.contains(name)) {
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn groups_of_a_container_are_found_by_its_id_and_no_others() {
        let mount = |point: &str, unified, options: &[&str]| Mounted {
            root: "/".into(),
            point: point.into(),
            unified,
            options: options.iter().map(|name| (*name).to_owned()).collect(),
        };
        let mounts = [
            mount("/c/memory", false, &["rw", "memory"]),
            mount("/c/cpu", false, &["rw", "cpu", "cpuacct"]),
            mount("/c/unified", true, &[]),
        ];
        let paths = |text: &str, unified| -> Vec<String> {
            let found = groups(&mounts, text, ID, unified).into_iter();
            found.map(|(_, path)| path.to_str().unwrap().to_owned()).collect()
        };
        let first = format!("4:memory:/docker/{ID}\n3:cpu,cpuacct:/docker/{ID}\n2:freezer:/docker/{ID}\n0::/init\n");
        assert_eq!(paths(&first, false), [format!("/c/memory/docker/{ID}"), format!("/c/cpu/docker/{ID}")]);
        assert!(paths(&first, true).is_empty());
        let second = format!("0::/machine.slice/libpod-{ID}.scope/container/deep\n");
        assert_eq!(paths(&second, true), [format!("/c/unified/machine.slice/libpod-{ID}.scope")]);
        assert!(paths(&second, false).is_empty());
        for other in ["0::/\n", "4:memory:/user.slice\n", &format!("4:memory:/../{ID}\n"), "rubbish", ""] {
            assert!(paths(other, true).is_empty() && paths(other, false).is_empty(), "{other}");
        }
    }

    #[test]
    fn group_is_found_by_name_at_any_depth() {
        let mount = tempfile::tempdir().unwrap();
        assert_eq!(search(mount.path(), ID), None);
        for path in ["a/b/c/d".to_owned(), format!("user.slice/1.slice/2.service/x/libpod-{ID}.scope/deeper")] {
            fs::create_dir_all(mount.path().join(path)).unwrap();
        }
        let deep = mount.path().join(format!("user.slice/1.slice/2.service/x/libpod-{ID}.scope"));
        assert_eq!(search(mount.path(), ID), Some(deep));
        let near = mount.path().join(format!("own-parent/{ID}"));
        fs::create_dir_all(&near).unwrap();
        assert_eq!(search(mount.path(), ID), Some(near));
    }

    #[test]
    fn process_outside_of_the_named_groups_is_not_found() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(Foreign::of(own, ID).unwrap_err().kind(), io::ErrorKind::NotFound);
        for name in ["", "short", &format!("{ID}/x"), &format!("..{ID}")] {
            assert_eq!(Foreign::of(own, name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }
}
