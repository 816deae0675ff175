//! Census of objects that Cofferdam created on this host and did not remove: processes, mounts, control groups,
//! directories.
//!
//! A test takes a [`census`] before its work, and calls [`left_behind`] afterwards. Other tests of the same binary run
//! at the same time, so a single comparison would report their live sandboxes. Only objects that persist count as left
//! behind.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum depth of searched control groups below a controller's root. Cofferdam's own are not deeper.
const CGROUP_DEPTH: usize = 12;

/// Lists all current objects of Cofferdam, one per line, so that a difference is readable.
pub fn census() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    found.extend(processes());
    found.extend(mounts());
    named_directories(Path::new("/sys/fs/cgroup"), CGROUP_DEPTH, "cgroup", &mut found);
    for parent in ["/run", "/tmp", "/var/tmp", "/dev/shm", "/var/lib", "/var/run"].map(PathBuf::from) {
        named_directories(&parent, 1, "path", &mut found);
    }
    if let Some(directory) = std::env::var_os("XDG_RUNTIME_DIR") {
        named_directories(Path::new(&directory), 1, "path", &mut found);
    }
    named_directories(&std::env::temp_dir(), 1, "path", &mut found);
    found
}

/// Lists objects that are not in `before` and still exist after `timeout`.
///
/// Returns as soon as nothing is left. Background teardown and sandboxes of other tests come and go within the timeout,
/// so only objects that every poll finds count.
pub fn left_behind(before: &BTreeSet<String>, timeout: Duration) -> BTreeSet<String> {
    let deadline = Instant::now() + timeout;
    let mut left: BTreeSet<String> = &census() - before;
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(200));
        left = &left & &census();
    }
    left
}

/// A process as shown in `/proc`.
struct Process {
    parent: u32,
    started: String,
    name: String,
    nested: bool,
}

/// Returns the descendants of this process, and all processes in PID namespaces below this one.
fn processes() -> Vec<String> {
    let table: BTreeMap<u32, Process> = numbered_entries().filter_map(|pid| Some((pid, read_process(pid)?))).collect();
    let own = std::process::id();
    let descends = |mut pid: u32| {
        // A chain is shorter than the table. The bound protects against a table that changed during the read.
        for _ in 0..table.len() {
            match table.get(&pid) {
                Some(process) if process.parent == own => return true,
                Some(process) => pid = process.parent,
                None => return false,
            }
        }
        false
    };
    table
        .iter()
        .filter(|(pid, process)| process.nested || descends(**pid))
        .map(|(pid, process)| format!("process {pid} {} started {}", process.name, process.started))
        .collect()
}

/// Returns the process ids in `/proc`.
pub fn numbered_entries() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read_process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and can contain any character, including brackets.
    let (head, tail) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let nested = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .is_some_and(|ids| ids.split_whitespace().count() > 1);
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        started: (*fields.get(19)?).to_owned(),
        name: head.split_once('(').map(|(_, name)| name.to_owned()).unwrap_or_default(),
        nested,
    })
}

fn mounts() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            Some(format!("mount {} on {}", fields.first()?, fields.get(4)?))
        })
        .collect()
}

/// Returns entries below `parent` whose names are Cofferdam's. Does not follow symlinks.
fn named_directories(parent: &Path, depth: usize, what: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().contains("cofferdam") {
            found.insert(format!("{what} {}", entry.path().display()));
        }
        if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            named_directories(&entry.path(), depth - 1, what, found);
        }
    }
}
