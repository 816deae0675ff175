//! Process trees, and the resources of processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;

use super::{field, read};

/// Memory of one or several processes, in KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident set size, with shared pages counted in full.
    pub resident: u64,
    /// Proportional set size, with shared pages divided among their users.
    pub proportional: u64,
    /// Unique set size, without shared pages.
    pub own: u64,
}

/// The kinds of namespaces that are counted.
const NAMESPACES: &[&str] = &["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

/// Returns the direct children of this process: its launchers, as long as it runs no other program.
pub fn launchers() -> Vec<u32> {
    let own = std::process::id();
    parents().into_iter().filter(|(_, parent)| *parent == own).map(|(pid, _)| pid).collect()
}

/// Returns all descendants of this process.
pub fn descendants() -> Vec<u32> {
    descendants_of(std::process::id())
}

/// Returns all descendants of a process.
pub fn descendants_of(pid: u32) -> Vec<u32> {
    below(&parents(), pid)
}

fn below(parents: &BTreeMap<u32, u32>, root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// Returns the parent of each process.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parent(&read(&format!("/proc/{pid}/stat")))?))).collect()
}

/// Returns the parent from a line of `/proc/PID/stat`, whose second field may contain anything.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the memory of these processes together, from the kernel's own sums over their mappings. Returns `None` if
/// this user may not inspect one of them. A process that has ended has none.
pub fn memory(pids: &[u32]) -> Option<Memory> {
    let mut sum = Memory::default();
    for pid in pids {
        let part = match fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
            Ok(text) => rollup(&text),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
            Err(_) => Memory::default(),
        };
        sum.resident += part.resident;
        sum.proportional += part.proportional;
        sum.own += part.own;
    }
    Some(sum)
}

fn rollup(text: &str) -> Memory {
    let value = |name| field(text, name).unwrap_or_default();
    Memory { resident: value("Rss"), proportional: value("Pss"), own: value("Private_Clean") + value("Private_Dirty") }
}

/// Returns the size of a process's page tables, in KiB.
pub fn page_tables(pid: u32) -> u64 {
    field(&read(&format!("/proc/{pid}/status")), "VmPTE").unwrap_or_default()
}

/// Returns the number of open descriptors of these processes together. Returns `None` if this user may not inspect one
/// of them.
pub fn descriptors(pids: &[u32]) -> Option<usize> {
    let mut sum = 0;
    for pid in pids {
        match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(entries) => sum += entries.count(),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
            Err(_) => {}
        }
    }
    Some(sum)
}

/// Returns the number of distinct namespaces of these processes.
pub fn namespaces(pids: &[u32]) -> usize {
    let links = pids.iter().flat_map(|pid| NAMESPACES.iter().map(move |kind| format!("/proc/{pid}/ns/{kind}")));
    links.filter_map(|link| fs::read_link(link).ok()).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descent_is_followed_to_the_end_and_no_further() {
        let parents = BTreeMap::from([(2, 1), (10, 2), (11, 10), (12, 11), (20, 1), (21, 20)]);
        assert_eq!(below(&parents, 10), [11, 12]);
        assert_eq!(below(&parents, 12), Vec::<u32>::new());
    }

    #[test]
    fn a_name_with_brackets_does_not_hide_the_parent() {
        assert_eq!(parent("7 (a) S 1) R 42 7 7 0"), Some(42));
        assert_eq!(parent(""), None);
    }

    #[test]
    fn child_is_found_with_its_memory_and_descriptors() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let found = descendants();
        let held = memory(&[child.id()]).unwrap();
        let tables = page_tables(child.id());
        let (open, spaces) = (descriptors(&[child.id()]), namespaces(&[child.id()]));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()));
        assert!(held.own > 0 && held.proportional >= held.own && held.resident >= held.proportional, "{held:?}");
        assert!(tables > 0 && open >= Some(3));
        assert_eq!(spaces, NAMESPACES.len());
        // The child has ended.
        assert_eq!((memory(&[child.id()]), descriptors(&[child.id()])), (Some(Memory::default()), Some(0)));
    }
}
