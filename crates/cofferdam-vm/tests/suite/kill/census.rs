//! A census of a supervisor's and of the host's resources: processes, control groups, mounts, sockets, devices, files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support::NO_HANG;

/// Maximum depth of the search for control groups.
const DEPTH: usize = 12;
/// Standard directories for temporary files.
const TEMPORARY: [&str; 5] = ["/tmp", "/run", "/var/tmp", "/dev/shm", "/dev/mqueue"];

fn numbers() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns name, state, parent and session of a process.
fn about(pid: u32) -> Option<(String, String, u32, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some((name.to_owned(), fields[0].to_owned(), fields[1].parse().ok()?, fields[3].parse().ok()?))
}

/// Returns processes of a session that have not ended. Zombies belong to their new parent.
pub(super) fn session(leader: u32) -> BTreeSet<String> {
    let of = |pid: u32| {
        let (name, state, _, session) = about(pid)?;
        (session == leader && !has_ended(pid, &state)).then(|| format!("{name}) {state}"))
    };
    numbers().filter_map(of).collect()
}

/// Returns true if all threads have ended: other threads may outlive the first one.
fn has_ended(pid: u32, state: &str) -> bool {
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().count();
    ["Z", "X"].contains(&state) && threads() <= 1
}

/// Returns the running VMMs that a process started.
pub(super) fn vmms_of(parent: u32) -> BTreeSet<u32> {
    let is_one = |pid: &u32| {
        about(*pid).is_some_and(|(name, state, found, _)| {
            found == parent && name.contains("qemu-system") && !["Z", "X"].contains(&&*state) && is_a_vm(*pid)
        })
    };
    numbers().filter(is_one).collect()
}

/// Returns true if a VMM has a VM: not if it only prints its version, or has not executed yet.
fn is_a_vm(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0).any(|word| word == b"-machine" || word == b"-M")
}

/// Returns the control groups whose name contains a process ID.
pub(super) fn groups_of(pid: u32) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    groups_below(Path::new("/sys/fs/cgroup"), DEPTH, pid, &mut found);
    found
}

fn groups_below(parent: &Path, depth: usize, pid: u32, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("cofferdam-").and_then(|rest| rest.split('-').nth(1)?.parse::<u32>().ok());
        if owner == Some(pid) {
            found.insert(entry.path());
        }
        if depth > 1 {
            groups_below(&entry.path(), depth - 1, pid, found);
        }
    }
}

/// Returns all files below a directory, by relative path.
pub(super) fn files(temp: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    files_below(temp, temp, &mut found);
    found
}

fn files_below(temp: &Path, directory: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        found.insert(entry.path().strip_prefix(temp).unwrap_or(&entry.path()).to_owned());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files_below(temp, &entry.path(), found);
        }
    }
}

/// Returns host resources that may be Cofferdam's: mounts, namespaces held by mounts, named sockets, network devices of
/// VMs, and files with its name in standard directories.
pub(super) fn host() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let ours = |line: &&str| line.contains("cofferdam") || line.contains("nsfs") || line.contains("/.tmp");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(mounts.lines().filter(ours).map(|line| format!("mount {line}")));
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let named = sockets.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7));
    found.extend(named.filter(ours).map(|name| format!("socket {name}")));
    for entry in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join("tun_flags").exists() || name.starts_with("macvtap") {
            found.insert(format!("network device {name}"));
        }
    }
    for temp in TEMPORARY {
        for entry in fs::read_dir(temp).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // Concurrent tests and benchmarks have these prefixes.
            let is_of_tests = ["cofferdam-test-", "cofferdam-bench-"].iter().any(|begin| name.starts_with(begin));
            if name.contains("cofferdam") && !is_of_tests {
                found.insert(entry.path().display().to_string());
            }
        }
    }
    found
}

/// Returns the additional host resources in every census of a period: those of other programs come and go.
pub(super) fn host_left(before: &BTreeSet<String>) -> BTreeSet<String> {
    let begun = Instant::now();
    let mut left: BTreeSet<String> = &host() - before;
    while !left.is_empty() && begun.elapsed() < NO_HANG {
        std::thread::sleep(std::time::Duration::from_millis(100));
        left = &left & &host();
    }
    left
}
