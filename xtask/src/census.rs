//! What of ours exists on this machine outside our directories: processes, control groups, mounts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How deep control groups are searched: they are made below the group of whatever starts them.
const CGROUP_DEPTH: usize = 12;
/// Time that the kernel and launchers have to finish their teardown.
const PATIENCE: Duration = Duration::from_secs(30);

/// Everything of ours that exists now, one line each. Programs under `built` are ours.
pub fn census(built: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    found.extend(processes(built));
    groups(Path::new("/sys/fs/cgroup"), CGROUP_DEPTH, built, &mut found);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some(format!("mount {} on {}", fields.next()?, fields.nth(3)?))
    }));
    found
}

/// What exists now, did not exist in `before`, and stays.
pub fn left_behind(before: &BTreeSet<String>, built: &Path) -> BTreeSet<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut left: BTreeSet<String> = &census(built) - before;
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(200));
        left = &left & &census(built);
    }
    left
}

fn processes(built: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| runs_from(*pid, built)).filter_map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        name.starts_with("cofferdam").then(|| format!("process {pid} {}", name.trim()))
    })
}

/// Launchers and inits hide from ordinary users what they run; then nobody can say that they are not ours.
fn runs_from(pid: u32, built: &Path) -> bool {
    match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(program) => program.starts_with(built),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied && own(pid),
    }
}

/// Whether this user's processes include it.
fn own(pid: u32) -> bool {
    let uids = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("Uid:").map(str::to_owned))
    };
    uids(&pid.to_string()).is_some_and(|other| Some(other) == uids("self"))
}

/// Groups named `cofferdam-NAMESPACE-PID-START`, with those in them, wherever they are, except those of owners that live and are
/// somebody else's.
fn groups(parent: &Path, depth: usize, built: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if let Some(owner) = owner(&entry.file_name().to_string_lossy()) {
            let foreign = Path::new(&format!("/proc/{owner}")).exists() && !runs_from(owner, built);
            if !foreign {
                found.insert(format!("control group {}", entry.path().display()));
            }
        } else if depth > 1 {
            groups(&entry.path(), depth - 1, built, found);
        }
    }
}

/// The process that a group's name says it belongs to.
fn owner(name: &str) -> Option<u32> {
    let numbers: Vec<&str> = name.strip_prefix("cofferdam-")?.split('-').collect();
    match numbers[..] {
        [namespace, pid, start] if [namespace, start].iter().all(|number| number.parse::<u64>().is_ok()) => {
            pid.parse().ok()
        }
        _ => None,
    }
}
