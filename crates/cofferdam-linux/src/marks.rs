//! What processes used, told apart by the mark that each inherits and none can change: a limit on real-time scheduling, as
//! the init sets it and the filter of system calls keeps it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Longer than any `/proc/PID/stat` and `/proc/PID/limits`.
const TEXT: usize = 4096;
/// What stands before the mark in the latter. To ask for it by a call would take a capability that root in a container
/// need not have.
const MARK: &str = "Max realtime timeout";
/// The unit of times there, which is the same on every machine.
const TICK_MICROS: u64 = 10_000;

/// CPU microseconds of these processes, and of children that they have waited for, by mark.
///
/// # Behavior
///
/// - No use is counted twice, whoever ends, is waited for, or gets the number of another meanwhile; some may be missed.
/// - A process of which anything cannot be read counts for nothing.
pub fn cpu_micros(pids: &[i32]) -> BTreeMap<u64, u64> {
    let mut used = BTreeMap::new();
    if !sees_own_processes() {
        return used;
    }
    let seen: Vec<Seen> = pids.iter().filter_map(|pid| Seen::look(*pid)).collect();
    // A child that was read and then waited for could be in what was read of its parent, as well. One that is still
    // there had not been; and the number by which its mark was found was its own all the time.
    for seen in seen.iter().filter(|seen| seen.read().is_ok()) {
        let sum: &mut u64 = used.entry(seen.mark).or_default();
        *sum = sum.saturating_add(seen.micros);
    }
    used
}

/// Whether what any of these used could be told, and by what mark.
pub fn can_tell(pids: &[i32]) -> bool {
    let read = |pid: &i32, name| contents(&File::open(format!("/proc/{pid}/{name}"))?);
    let has_mark = |text: Vec<u8>| String::from_utf8_lossy(&text).contains(MARK);
    let tells = |pid: &i32| {
        read(pid, "limits").is_ok_and(has_mark) && read(pid, "stat").is_ok_and(|stat| micros_of(&stat).is_some())
    };
    sees_own_processes() && pids.iter().any(tells)
}

/// Whether `/proc` numbers processes as the caller does.
fn sees_own_processes() -> bool {
    let own = std::fs::read_link("/proc/self").ok();
    own.is_some_and(|own| own.to_str() == Some(std::process::id().to_string().as_str()))
}

/// A process that was looked at.
struct Seen {
    /// Reads of this one process, whatever its number becomes.
    stat: File,
    mark: u64,
    micros: u64,
}

impl Seen {
    fn look(pid: i32) -> Option<Self> {
        let stat = File::open(format!("/proc/{pid}/stat")).ok()?;
        let mark = mark_of(&contents(&File::open(format!("/proc/{pid}/limits")).ok()?).ok()?)?;
        let mut seen = Self { stat, mark, micros: 0 };
        seen.micros = seen.read().ok()?;
        Some(seen)
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

/// The mark in a `/proc/PID/limits`; a process without one has no limit there.
fn mark_of(limits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(limits).ok()?;
    let values = text.lines().find_map(|line| line.strip_prefix(MARK))?;
    values.split_whitespace().next()?.parse().ok()
}

/// The CPU time in a `/proc/PID/stat`: user and system, its own and that of children that it has waited for.
fn micros_of(stat: &[u8]) -> Option<u64> {
    // The name is in brackets, and may hold anything, brackets too.
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
        assert_eq!(mark_of(limits("7").as_bytes()), Some(7));
        assert_eq!(mark_of(limits("unlimited").as_bytes()), None);
        assert_eq!(mark_of(b"Max realtime timeout"), None);
        assert_eq!(mark_of(b""), None);
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
        assert_eq!(used().len(), 1, "who has no mark is nobody's");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(cpu_micros(&[pid, 0, -1, i32::MAX]), BTreeMap::new());
    }
}
