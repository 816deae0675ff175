//! CPU time of processes by exec tag. Each process inherits its tag and cannot change it: it is a limit on real-time
//! scheduling, which the init sets and the seccomp filter protects.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The size of a buffer for `/proc/PID/stat` or `/proc/PID/limits`, which are shorter.
const TEXT: usize = 4096;
/// The text before the tag in `/proc/PID/limits`. A system call for it would need a capability that root in a container
/// may lack.
const TAG_LABEL: &str = "Max realtime timeout";
/// The unit of times in `/proc/PID/stat`, which is the same on every machine.
const TICK_MICROS: u64 = 10_000;

/// Returns the CPU time of these processes and of children that they have waited for, in microseconds, by exec tag.
///
/// # Behavior
///
/// - No use is counted twice, even if processes end, are reaped, or get reused ids meanwhile. Some use may be missed.
/// - A process that cannot be read completely is not counted.
pub fn cpu_micros(pids: &[i32]) -> BTreeMap<u64, u64> {
    let mut used = BTreeMap::new();
    if !sees_own_processes() {
        return used;
    }
    let samples: Vec<Sample> = pids.iter().filter_map(|pid| Sample::read_process(*pid)).collect();
    // A child that was read and then waited for could also be in the time of its parent. A process that still exists
    // had not been waited for, and the id by which its tag was found was its own all the time.
    for sample in samples.iter().filter(|sample| sample.read().is_ok()) {
        let sum: &mut u64 = used.entry(sample.tag).or_default();
        *sum = sum.saturating_add(sample.micros);
    }
    used
}

/// Returns true if the CPU time and tag of any of these processes can be read.
pub fn can_tell(pids: &[i32]) -> bool {
    let read = |pid: &i32, name| contents(&File::open(format!("/proc/{pid}/{name}"))?);
    let has_tag = |text: Vec<u8>| String::from_utf8_lossy(&text).contains(TAG_LABEL);
    let tells = |pid: &i32| {
        read(pid, "limits").is_ok_and(has_tag) && read(pid, "stat").is_ok_and(|stat| micros_of(&stat).is_some())
    };
    sees_own_processes() && pids.iter().any(tells)
}

/// Returns true if `/proc` shows the process ids of the caller's namespace.
fn sees_own_processes() -> bool {
    let own = std::fs::read_link("/proc/self").ok();
    own.is_some_and(|own| own.to_str() == Some(std::process::id().to_string().as_str()))
}

/// The CPU time of a process at one time.
struct Sample {
    /// Refers to this process even if its id is reused.
    stat: File,
    tag: u64,
    micros: u64,
}

impl Sample {
    fn read_process(pid: i32) -> Option<Self> {
        let stat = File::open(format!("/proc/{pid}/stat")).ok()?;
        let tag = tag_of(&contents(&File::open(format!("/proc/{pid}/limits")).ok()?).ok()?)?;
        let mut sample = Self { stat, tag, micros: 0 };
        sample.micros = sample.read().ok()?;
        Some(sample)
    }

    fn read(&self) -> io::Result<u64> {
        micros_of(&contents(&self.stat)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn contents(file: &File) -> io::Result<Vec<u8>> {
    let mut text = vec![0; TEXT];
    let length = file.read_at(&mut text, 0)?;
    text.truncate(length);
    Ok(text)
}

/// Returns the tag in a `/proc/PID/limits`. A process without a tag has no limit there.
fn tag_of(limits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(limits).ok()?;
    let values = text.lines().find_map(|line| line.strip_prefix(TAG_LABEL))?;
    values.split_whitespace().next()?.parse().ok()
}

/// Returns the CPU time in a `/proc/PID/stat`: the user and system time of the process and of children that it has
/// waited for.
fn micros_of(stat: &[u8]) -> Option<u64> {
    // The name is in parentheses, and may contain anything, also parentheses.
    let after = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(after + 1..)?).ok()?;
    let times = rest.split_whitespace().skip(11).take(4).map(str::parse::<u64>);
    let ticks = times.collect::<Result<Vec<_>, _>>().ok().filter(|times| times.len() == 4)?;
    let sum = ticks.into_iter().fold(0, u64::saturating_add);
    Some(sum.saturating_mul(TICK_MICROS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = b"7 (a) b) R 1 7 7 0 -1 4194560 100 0 0 0 11 5 3 1 20 0 1 0 99 0 0\n";
        assert_eq!(micros_of(stat), Some(20 * TICK_MICROS));
        assert_eq!(micros_of(b"7 (a) R 1 7 7 0 -1 4194560 100 0 0 0 11 5 3"), None);
        assert_eq!(micros_of(b"7 (a R"), None);
        assert_eq!(micros_of(b""), None);
    }

    #[test]
    fn marks_are_numbers_or_there_are_none() {
        let limits = |value: &str| format!("Limit  Soft  Hard  Units\nMax realtime timeout      {value} 9  us  \n");
        assert_eq!(tag_of(limits("7").as_bytes()), Some(7));
        assert_eq!(tag_of(limits("unlimited").as_bytes()), None);
        assert_eq!(tag_of(b"Max realtime timeout"), None);
        assert_eq!(tag_of(b""), None);
    }

    #[test]
    fn a_process_that_computes_is_seen_by_its_mark_until_it_is_gone() {
        let marked = ["-c", "ulimit -R 4711 && while :; do :; done"];
        let mut child = Command::new("bash").args(marked).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id() as i32;
        let used = || cpu_micros(&[pid, std::process::id() as i32]);
        let begun = Instant::now();
        while used().get(&4711).is_none_or(|micros| *micros < 50_000) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", used());
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(can_tell(&[i32::MAX, pid]) && !can_tell(&[i32::MAX]) && !can_tell(&[]));
        assert_eq!(used().len(), 1, "processes without a tag are not counted");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(cpu_micros(&[pid, 0, -1, i32::MAX]), BTreeMap::new());
    }
}
