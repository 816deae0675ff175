//! Control groups: those of this process's launchers, and leftovers of a peer.

use std::fs;
use std::path::{Path, PathBuf};

/// The mount point of control groups.
const ROOT: &str = "/sys/fs/cgroup";
/// The maximum depth of the search.
const DEPTH: usize = 6;
/// The prefix of a launcher's own group.
const PREFIX: &str = "cofferdam-";

/// Memory statistics of a control group, in KiB. `None` if the group does not report them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupMemory {
    /// All charged memory: pages, files in memory, and kernel memory.
    pub all: Option<u64>,
    /// The kernel memory.
    pub kernel: Option<u64>,
}

/// Returns the groups of launchers with these process ids, one for each controller and sandbox, including the
/// launchers' own.
pub fn of_launchers(launchers: &[u32]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    search(Path::new(ROOT), DEPTH, &mut |group| {
        let mut names = group.components().map(|part| part.as_os_str().to_string_lossy());
        if names.find_map(|name| owner(&name)).is_some_and(|pid| launchers.contains(&pid)) {
            found.push(group.to_owned());
        }
    });
    found
}

/// Removes empty groups whose names have this prefix: leftovers of a peer that failed.
pub fn remove_left(prefix: &str) {
    let mut left = Vec::new();
    search(Path::new(ROOT), DEPTH, &mut |group| {
        if group.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
            left.push(group.to_owned());
        }
    });
    for group in left {
        // A group in use cannot be removed, and must not be.
        let _ = fs::remove_dir(group);
    }
}

fn search(parent: &Path, depth: usize, found: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found(&entry.path());
            if depth > 1 {
                search(&entry.path(), depth - 1, found);
            }
        }
    }
}

/// Returns the launcher's process id from a group's name, `cofferdam-<pid namespace>-<pid>-<start time>`.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').nth(1)?.parse().ok()
}

/// Returns the memory charged to the launchers' groups. Version 1 has separate files for kernel memory, version 2 a
/// line.
pub fn memory(groups: &[PathBuf]) -> GroupMemory {
    // Each launcher's own group includes its subgroups.
    let tops =
        groups.iter().filter(|group| group.file_name().is_some_and(|name| owner(&name.to_string_lossy()).is_some()));
    tops.map(|group| one(group)).fold(GroupMemory::default(), |sum, part| GroupMemory {
        all: add(sum.all, part.all),
        kernel: add(sum.kernel, part.kernel),
    })
}

fn one(group: &Path) -> GroupMemory {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let stat = || kernel_line(&fs::read_to_string(group.join("memory.stat")).ok()?);
    let all = number("memory.usage_in_bytes").or_else(|| number("memory.current"));
    let kernel = number("memory.kmem.usage_in_bytes").or_else(stat);
    GroupMemory { all: all.map(|bytes| bytes / 1024), kernel: kernel.map(|bytes| bytes / 1024) }
}

fn kernel_line(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("kernel ")?.parse().ok())
}

fn add(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or_default() + b.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_identifies_the_owner_of_a_group() {
        assert_eq!(owner("cofferdam-4026531836-77-1200"), Some(77));
        assert_eq!(owner("cofferdam-other"), None);
        assert_eq!(owner("system.slice"), None);
    }

    #[test]
    fn kernel_memory_of_version_2_is_a_line() {
        assert_eq!(kernel_line("anon 4096\nkernel_stack 16384\nkernel 40960\n"), Some(40960));
        assert_eq!(kernel_line("anon 4096\n"), None);
    }

    #[test]
    fn a_sum_without_values_has_no_value() {
        assert_eq!(add(None, None), None);
        assert_eq!(add(Some(1), None), Some(1));
        assert_eq!(add(Some(1), Some(2)), Some(3));
    }
}
