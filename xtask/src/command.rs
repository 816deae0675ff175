//! Runs commands to their end.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Interval at which a running command is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The kernel counts time for user space in hundredths of a second.
const MILLISECONDS_PER_TICK: u64 = 10;
/// Interval at which a still running command is reported.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// Prints the title, runs the command, and fails if it fails.
pub fn step(title: &str, command: &mut Command) -> Result<()> {
    println!("== {title}");
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start {title}"))?;
    if !status.success() {
        bail!("{title} failed: {status}");
    }
    println!("   {title}: ok, {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Returns true if a program of this name is in the search path.
pub fn exists(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// Returns true if this process is root.
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    Path::new("/proc/self").metadata().is_ok_and(|meta| meta.uid() == 0)
}

/// The end of a child.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// The status, or `None` if it was killed at the deadline.
    pub status: Option<ExitStatus>,
    /// The CPU time of the child and the descendants that were waited for, up to the last poll.
    pub cpu: Duration,
}

/// Waits for a child. At the deadline, kills the child and its descendants.
pub fn wait_until(child: &mut Child, name: &str, limit: Duration) -> Result<Ended> {
    let start = Instant::now();
    let mut reminder = REMINDER_INTERVAL;
    let mut cpu = Duration::ZERO;
    loop {
        cpu = cpu_time(child.id()).unwrap_or(cpu);
        if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {name}"))? {
            return Ok(Ended { status: Some(status), cpu });
        }
        if start.elapsed() >= limit {
            kill_tree(child);
            child.wait().with_context(|| format!("cannot wait for {name}"))?;
            return Ok(Ended { status: None, cpu });
        }
        if start.elapsed() >= reminder {
            println!("   {name} still runs after {} s", reminder.as_secs());
            reminder += REMINDER_INTERVAL;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the CPU time of a process and its reaped descendants.
fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may have spaces. After it: the state, ten other fields, and four times.
    let times = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    let ticks: u64 = times.map_while(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(ticks * MILLISECONDS_PER_TICK))
}

fn kill_tree(child: &mut Child) {
    let table = parents();
    let mut tree = vec![child.id()];
    let mut next = 0;
    while let Some(parent) = tree.get(next).copied() {
        tree.extend(table.iter().filter(|(_, of)| **of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    // The child is not reaped yet, so its process id is still its own. Its descendants are killed before it can detach
    // from them.
    let others: Vec<String> = tree[1..].iter().map(u32::to_string).collect();
    if !others.is_empty() {
        let line = format!("kill -KILL {}", others.join(" "));
        let _ = Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).status();
    }
    let _ = child.kill();
}

/// Returns the parent of each process.
fn parents() -> BTreeMap<u32, u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_kills_the_whole_tree() {
        let mut child = Command::new("sh").args(["-c", "sleep 600 & wait"]).spawn().unwrap();
        let start = Instant::now();
        assert!(wait_until(&mut child, "sleep", Duration::from_millis(300)).unwrap().status.is_none());
        assert!(start.elapsed() < Duration::from_secs(300));
        assert!(!parents().values().any(|parent| *parent == child.id()));
    }

    #[test]
    fn an_end_in_time_gives_the_status_and_the_time_of_descendants() {
        let work = "(i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done); sleep 0.2; exit 3";
        let mut child = Command::new("sh").args(["-c", work]).spawn().unwrap();
        let ended = wait_until(&mut child, "sh", Duration::from_secs(60)).unwrap();
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
        assert!(ended.cpu >= Duration::from_millis(50), "{ended:?}");
    }
}
