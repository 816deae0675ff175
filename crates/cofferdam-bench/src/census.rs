//! Objects that must not be more after the benchmark than before.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::host::{groups, mounts, tree};

/// Maximum wait for objects to disappear.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The objects of a process and its descendants: one value for each name. `None` if this user may not read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    pid: u32,
    counts: [(&'static str, Option<usize>); 4],
}

impl Census {
    /// Counts the current objects of this process.
    pub fn now() -> Self {
        Self::of(std::process::id())
    }

    /// Counts the current objects of a process.
    pub fn of(pid: u32) -> Self {
        let below = tree::descendants_of(pid);
        let all: Vec<u32> = below.iter().copied().chain([pid]).collect();
        let counts = [
            ("processes", Some(below.len())),
            ("open descriptors", tree::descriptors(&[pid])),
            ("mounts", Some(mounts::count(pid))),
            ("control groups", Some(groups::of_launchers(&all).len())),
        ];
        Self { pid, counts }
    }

    /// Returns a text for each count that is higher than before.
    fn since(&self, before: &Self) -> Vec<String> {
        let pairs = self.counts.iter().zip(&before.counts).filter(|((_, now), (_, before))| now > before);
        pairs.map(|((name, now), (_, before))| difference(name, *now, *before)).collect()
    }
}

fn difference(name: &str, now: Option<usize>, before: Option<usize>) -> String {
    let mut text = name.to_owned();
    let _ = write!(text, ": {} instead of {}", now.unwrap_or_default(), before.unwrap_or_default());
    text
}

/// Returns the objects that remain after everything was closed.
pub async fn left(before: &Census) -> Vec<String> {
    let deadline = Instant::now() + CLEANUP_TIMEOUT;
    loop {
        let left = Census::of(before.pid).since(before);
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(processes: usize, descriptors: Option<usize>) -> Census {
        let counts = [
            ("processes", Some(processes)),
            ("open descriptors", descriptors),
            ("mounts", Some(9)),
            ("control groups", Some(0)),
        ];
        Census { pid: 1, counts }
    }

    #[test]
    fn only_increases_are_reported() {
        assert_eq!(census(3, Some(5)).since(&census(3, Some(7))), Vec::<String>::new());
        assert_eq!(census(3, None).since(&census(3, None)), Vec::<String>::new());
        assert_eq!(census(4, Some(5)).since(&census(1, Some(5))), ["processes: 4 instead of 1"]);
    }
}
