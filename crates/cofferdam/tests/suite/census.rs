//! What Cofferdam has made on this host and has not taken away again: processes, mounts, control groups, directories.
//!
//! Take a [`census`] before, work, and ask [`left_behind`] after. Other tests of the same binary run at the same time,
//! so a single comparison would blame their live sandboxes; what is left behind is what stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How deep control groups are searched; ours lie at most this far below a controller's root.
const CGROUP_DEPTH: usize = 12;

/// Everything of ours that exists now, one line each, so that a difference reads as a list.
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

/// What exists now, did not exist in `before`, and is still there after `patience`.
///
/// Returns as soon as nothing is left. Teardown off the critical path and sandboxes of other tests come and go within
/// the patience; only what is seen every time counts.
pub fn left_behind(before: &BTreeSet<String>, patience: Duration) -> BTreeSet<String> {
    let deadline = Instant::now() + patience;
    let mut left: BTreeSet<String> = &census() - before;
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(200));
        left = &left & &census();
    }
    left
}

/// One process as `/proc` shows it.
struct Process {
    parent: u32,
    started: String,
    name: String,
    nested: bool,
}

/// Descendants of this process, and every process in a process-id namespace below ours.
fn processes() -> Vec<String> {
    let table: BTreeMap<u32, Process> = numbered_entries().filter_map(|pid| Some((pid, read_process(pid)?))).collect();
    let own = std::process::id();
    let descends = |mut pid: u32| {
        // A chain is shorter than the table; the bound guards against a table read while it changed.
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

/// The process ids that `/proc` lists.
pub fn numbered_entries() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read_process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may hold anything, brackets too.
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

/// Entries below `parent` whose name says that they are ours. Links are not followed.
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
