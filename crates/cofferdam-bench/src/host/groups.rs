//! Control groups: those of this process's launchers, and those that a peer left behind.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are found.
const ROOT: &str = "/sys/fs/cgroup";
/// How deep they are searched.
const DEPTH: usize = 6;
/// What the name of a launcher's own group begins with.
const PREFIX: &str = "cofferdam-";

/// What a control group says about memory, in KiB. `None` where it does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupMemory {
    /// Everything charged to it: pages, files in memory, and what the kernel holds for it.
    pub all: Option<u64>,
    /// Of this, what the kernel holds.
    pub kernel: Option<u64>,
}

/// The groups that launchers with these numbers keep, one for each controller and sandbox; their own are included.
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

/// Removes empty groups whose names begin like this: what a peer left behind that failed.
pub fn remove_left(prefix: &str) {
    let mut left = Vec::new();
    search(Path::new(ROOT), DEPTH, &mut |group| {
        if group.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
            left.push(group.to_owned());
        }
    });
    for group in left {
        // One in use cannot be removed, and should not be.
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

/// The launcher in a group's name, `cofferdam-<pid namespace>-<pid>-<start time>`.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').nth(1)?.parse().ok()
}

/// What is charged to the launchers' groups: version 1 has files of its own for kernel memory, version 2 a line.
pub fn memory(groups: &[PathBuf]) -> GroupMemory {
    // Each launcher's own group counts what is below it.
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
    fn a_name_says_whose_a_group_is() {
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
    fn what_nobody_says_stays_unsaid() {
        assert_eq!(add(None, None), None);
        assert_eq!(add(Some(1), None), Some(1));
        assert_eq!(add(Some(1), Some(2)), Some(3));
    }
}
