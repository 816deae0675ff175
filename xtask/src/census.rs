//! Cofferdam's objects on this host outside its own directories: processes, control groups, mounts, and root's state.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Depth to which control groups are searched. They are created below the group of the process that starts Cofferdam.
const CGROUP_DEPTH: usize = 12;
/// The directory of root's state, which no test uses.
const STATE: &str = "/var/lib/cofferdam";
/// Time for the teardown of processes and control groups.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns all current objects of Cofferdam, one line each. Processes of programs under `built` count.
pub fn census(built: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    found.extend(processes(built));
    groups(Path::new("/sys/fs/cgroup"), CGROUP_DEPTH, built, &mut found);
    let state = fs::read_dir(STATE).into_iter().flatten().flatten();
    found.extend(state.map(|entry| format!("state {}", entry.path().display())));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some(format!("mount {} on {}", fields.next()?, fields.nth(3)?))
    }));
    found
}

/// Returns the objects that exist now, did not exist in `before`, and persist.
pub fn left_behind(before: &BTreeSet<String>, built: &Path) -> BTreeSet<String> {
    let deadline = Instant::now() + TEARDOWN_TIMEOUT;
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

/// Returns true if a process runs a program under `built`. Launchers and inits hide the programs that they run from
/// ordinary users. Such a process counts too.
fn runs_from(pid: u32, built: &Path) -> bool {
    match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(program) => program.starts_with(built),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied && own(pid),
    }
}

/// Returns true if the process belongs to this user.
fn own(pid: u32) -> bool {
    let uids = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("Uid:").map(str::to_owned))
    };
    uids(&pid.to_string()).is_some_and(|other| Some(other) == uids("self"))
}

/// Finds groups named `cofferdam-NAMESPACE-PID-START`, with their subgroups, anywhere, except those of live
/// processes that do not belong to this run.
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

/// Returns the owner process, from a group's name.
fn owner(name: &str) -> Option<u32> {
    let numbers: Vec<&str> = name.strip_prefix("cofferdam-")?.split('-').collect();
    match numbers[..] {
        [namespace, pid, start] if [namespace, start].iter().all(|number| number.parse::<u64>().is_ok()) => {
            pid.parse().ok()
        }
        _ => None,
    }
}
