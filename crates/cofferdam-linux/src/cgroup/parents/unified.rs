//! Version 2: the groups in which an owner's group may be created, and the necessary changes.
//!
//! Version 2 enables controllers for child groups only in groups without processes. So a group may have to be changed
//! before it can contain an owner's group. The allowed changes depend on its manager:
//!
//! ```text
//! delegated (user.delegate, trusted.delegate), or no systemd visible:  controllers, and processes of the own family
//! managed by systemd:                                                  nothing
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::{MAX_DEPTH, Mounted, Parents, own_groups};
use crate::cgroup::Version;
use crate::process::Life;

/// The leaf group to which the processes of a group move that must contain groups as well.
const LEAF: &str = "cofferdam-callers";
/// The number of attempts to move the processes of a group.
const MOVE_ATTEMPTS: usize = 8;
/// The maximum of ancestor processes that are inspected.
const MAX_ANCESTORS: usize = 1024;
/// The files with a group's limits. Each contains `max` or nothing if there is no limit.
const LIMITS: [&str; 7] =
    ["memory.max", "memory.high", "memory.swap.max", "pids.max", "cpu.max", "cpuset.cpus", "io.max"];
/// The attributes that systemd sets on a group to delegate everything below it.
const DELEGATED: [&str; 2] = ["user.delegate", "trusted.delegate"];
/// The group that each systemd, of the host, of a container or of a user, creates for itself at the top of its
/// hierarchy.
const MANAGER: &str = "init.scope";

/// The processes that may move into a child group, if version 2 requires that: a process, its descendants and its
/// ancestors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// The family of this process.
    Own,
    /// The family of the parent process, if this process is a launcher.
    Parent,
}

/// The change that a group needs before it can contain an owner's group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    Nothing,
    /// Enable controllers for child groups.
    Controllers,
    /// Move its processes to a leaf, then enable controllers.
    Processes,
}

/// Returns groups in which this process's sandboxes can be created without escaping a limit of this process: its own
/// group, and its ancestors up to the first one with limits. The nearest comes first. Moving processes is the last
/// resort, but comes before a group that systemd manages.
pub(in crate::cgroup) fn v2_parents(mounts: &[Mounted], own: &str) -> Vec<Parents> {
    let Some(mount) = mounts.iter().find(|mount| mount.unified) else { return Vec::new() };
    let Some(own) = own_groups(own).get("").and_then(|group| mount.path_of(group)) else { return Vec::new() };
    let (mut found, mut last) = (Vec::new(), None);
    for group in own.ancestors().take_while(|group| group.starts_with(&mount.point)).take(MAX_DEPTH) {
        let is_managed = is_managed(group, &mount.point);
        if is_managed {
            found.extend(last.take());
        }
        // For a leaf, its parent is used.
        if is_writable(group) && !(group == own && own.ends_with(LEAF)) {
            found.extend(match is_managed {
                true => parents(group, "cgroup.subtree_control", Change::Nothing),
                false => parents(group, "cgroup.controllers", Change::Controllers),
            });
            if group == own && !is_managed {
                last = parents(group, "cgroup.controllers", Change::Processes);
            }
        }
        if is_bounded(group) {
            break;
        }
    }
    found.extend(last);
    found
}

/// Returns a group as a candidate, if its file `list` contains the needed controllers.
fn parents(group: &Path, list: &str, change: Change) -> Option<Parents> {
    let text = fs::read_to_string(group.join(list)).ok()?;
    let offered: Vec<String> = ["memory", "pids", "cpu"]
        .into_iter()
        .filter(|name| text.split_whitespace().any(|known| known == *name))
        .map(str::to_owned)
        .collect();
    let enough = ["memory", "pids"].iter().all(|name| offered.iter().any(|known| known == name));
    enough.then(|| Parents { version: Version::V2, dirs: vec![(offered, group.to_owned())], change })
}

/// Returns true if a systemd manages the groups below this one. It may disable controllers at any time, and expects its
/// groups to stay unchanged. It leaves delegated groups to others, but groups that are delegated to another systemd
/// belong to that one.
fn is_managed(group: &Path, top: &Path) -> bool {
    for above in group.ancestors().take_while(|above| above.starts_with(top)).take(MAX_DEPTH) {
        if above.join(MANAGER).is_dir() {
            return true;
        }
        if is_delegated(above) {
            return false;
        }
    }
    false
}

fn is_delegated(group: &Path) -> bool {
    DELEGATED.iter().any(|name| {
        let mut value = [0; 8];
        rustix::fs::getxattr(group, *name, &mut value[..]).is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
        && rustix::fs::access(path.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok()
}

/// Returns true if a group has limits of its own. An unreadable file may contain one.
pub(super) fn is_bounded(group: &Path) -> bool {
    LIMITS.iter().any(|name| match fs::read_to_string(group.join(name)) {
        Ok(text) => text.split_whitespace().next().is_some_and(|first| first != "max"),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    })
}

/// Enables these controllers for the groups below `dir`.
pub(super) fn enable(dir: &Path, controllers: &[String]) -> io::Result<()> {
    let path = dir.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&path)?;
    let missing: Vec<String> = controllers
        .iter()
        .filter(|controller| !enabled.split_whitespace().any(|known| known == controller.as_str()))
        .map(|controller| format!("+{controller}"))
        .collect();
    if missing.is_empty() { Ok(()) } else { fs::write(path, missing.join(" ")) }
}

/// Moves the processes of a group to a leaf below it, so that controllers can be enabled for groups beside the leaf.
/// The group's limits still apply to all of them. Moves nothing if a process of another family is in the group.
pub(super) fn move_processes(parent: &Path, controllers: &[String], family: Family) -> io::Result<()> {
    let head = match family {
        Family::Own => std::process::id().into(),
        Family::Parent => life(std::process::id().into())?.parent,
    };
    let leaf = parent.join(LEAF);
    let mut result = Ok(());
    // Processes may be started while others are moved.
    for _ in 0..MOVE_ATTEMPTS {
        let pids = members(parent, head)?;
        match fs::create_dir(&leaf) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        for pid in pids {
            match fs::write(leaf.join("cgroup.procs"), pid.to_string()) {
                Err(error) if error.raw_os_error() != Some(Errno::SRCH.raw_os_error()) => result = Err(error),
                _ => {}
            }
        }
        match enable(parent, controllers) {
            Ok(()) => return Ok(()),
            Err(error) => result = result.and(Err(error)),
        }
    }
    // A leaf that is in use stays.
    let _ = fs::remove_dir(&leaf);
    result
}

/// Returns the processes of a group. Fails if one is not of the family of the process `head`.
fn members(group: &Path, head: u64) -> io::Result<Vec<u64>> {
    let ancestors = with_ancestors(head)?;
    let mut pids = Vec::new();
    for line in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
        let pid = line.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        match is_of_family(pid, head, &ancestors) {
            Ok(true) => pids.push(pid),
            Ok(false) => {
                let other = if pid == 0 { "a process out of sight".to_owned() } else { format!("process {pid}") };
                return Err(io::Error::other(format!(
                    "{other} is in this group, which neither started Cofferdam nor was started by it, and is not moved"
                )));
            }
            // The process has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(pids)
}

fn is_of_family(pid: u64, head: u64, ancestors: &BTreeSet<u64>) -> io::Result<bool> {
    Ok(pid != 0 && (ancestors.contains(&pid) || with_ancestors(pid)?.contains(&head)))
}

/// Returns a process and its ancestors.
fn with_ancestors(pid: u64) -> io::Result<BTreeSet<u64>> {
    let mut processes = BTreeSet::from([pid]);
    let mut next = life(pid)?.parent;
    while next > 0 && processes.len() < MAX_ANCESTORS && processes.insert(next) {
        // The children of an ended process have another parent now.
        next = life(next).map_or(0, |life| life.parent);
    }
    Ok(processes)
}

fn life(pid: u64) -> io::Result<Life> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => Life::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Err(io::ErrorKind::NotFound.into()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
