//! Version 2: in which groups an owner's may be made, and what may be changed for that.
//!
//! Version 2 passes controllers on only from groups that hold no processes. So a group may have to be changed before it can hold an
//! owner's. How much depends on who arranges it:
//!
//! ```text
//! delegated (user.delegate, trusted.delegate), or no systemd in sight:  controllers, and processes of the own family
//! systemd's:                                                            nothing
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::{MAX_DEPTH, Mounted, Parents, own_groups};
use crate::cgroup::Version;
use crate::process::Life;

/// The group into which the processes of a group move that has to hold groups as well.
const LEAF: &str = "cofferdam-callers";
/// Times that the processes of a group are moved.
const MOVES: usize = 8;
/// The most processes above one another that are looked at.
const MAX_GENERATIONS: usize = 1024;
/// What bounds a group; each holds `max`, or nothing, where there is no bound.
const BOUNDS: [&str; 7] =
    ["memory.max", "memory.high", "memory.swap.max", "pids.max", "cpu.max", "cpuset.cpus", "io.max"];
/// What systemd sets on a group to say that it leaves everything below it to others.
const DELEGATED: [&str; 2] = ["user.delegate", "trusted.delegate"];
/// The group that each systemd, of the host, of a container or of a user, makes for itself at the top of what it manages.
const MANAGER: &str = "init.scope";

/// Whose processes may move into a group below their own, where version 2 asks for that: this process, what it started, and
/// every process above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Of this process.
    Own,
    /// Of the process that started this one, which is a launcher.
    Parent,
}

/// What has to be changed in a group before it can hold an owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    Nothing,
    /// The controllers that it passes on.
    Controllers,
    /// Its processes move into a leaf, and then the controllers.
    Processes,
}

/// Groups in which this process's sandboxes can be made without leaving a bound that this process is under: its own group, and
/// those above it up to the first that has bounds. The nearest comes first. Processes move only where nothing else is left, but
/// before a group is used that systemd manages.
pub(in crate::cgroup) fn v2_parents(mounts: &[Mounted], own: &str) -> Vec<Parents> {
    let Some(mount) = mounts.iter().find(|mount| mount.unified) else { return Vec::new() };
    let Some(own) = own_groups(own).get("").and_then(|group| mount.seen(group)) else { return Vec::new() };
    let (mut found, mut last) = (Vec::new(), None);
    for group in own.ancestors().take_while(|group| group.starts_with(&mount.point)).take(MAX_DEPTH) {
        let is_managed = is_managed(group, &mount.point);
        if is_managed {
            found.extend(last.take());
        }
        // Of a leaf the group above is meant.
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

/// A group as a place for an owner's, if its file `list` names the controllers that are needed.
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

/// Whether a systemd arranges the groups below this one: it may take controllers away as it sees fit, and expects to find what it
/// made. What it delegates it leaves to others, but what is delegated to a systemd is that systemd's.
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

/// Whether a group has bounds of its own. What cannot be read may be one.
pub(super) fn is_bounded(group: &Path) -> bool {
    BOUNDS.iter().any(|name| match fs::read_to_string(group.join(name)) {
        Ok(text) => text.split_whitespace().next().is_some_and(|first| first != "max"),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    })
}

/// Lets the groups below `dir` use these controllers.
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

/// Moves the processes of a group into a leaf below it, so that controllers can be used for groups beside the leaf. Bounds on the
/// group hold as before, for all of them. Moves nothing where a process of another family is there.
pub(super) fn make_room(parent: &Path, controllers: &[String], family: Family) -> io::Result<()> {
    let head = match family {
        Family::Own => std::process::id().into(),
        Family::Parent => life(std::process::id().into())?.parent,
    };
    let leaf = parent.join(LEAF);
    let mut result = Ok(());
    // Processes may be started while others are moved.
    for _ in 0..MOVES {
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

/// The processes of a group, all of which are of the family of the process `head`.
fn members(group: &Path, head: u64) -> io::Result<Vec<u64>> {
    let ancestors = line_of(head)?;
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
            // It has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(pids)
}

fn is_of_family(pid: u64, head: u64, ancestors: &BTreeSet<u64>) -> io::Result<bool> {
    Ok(pid != 0 && (ancestors.contains(&pid) || line_of(pid)?.contains(&head)))
}

/// A process and those above it.
fn line_of(pid: u64) -> io::Result<BTreeSet<u64>> {
    let mut line = BTreeSet::from([pid]);
    let mut next = life(pid)?.parent;
    while next > 0 && line.len() < MAX_GENERATIONS && line.insert(next) {
        // One that ended meanwhile has left its children to another.
        next = life(next).map_or(0, |life| life.parent);
    }
    Ok(line)
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
