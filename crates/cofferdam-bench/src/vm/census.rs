//! Objects that must not be more after the benchmark than before.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::host::{groups, mounts, tree};

/// Maximum wait for objects to disappear.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// One value for each name. `None` if this user may not read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census([(&'static str, Option<usize>); 4]);

impl Census {
    /// Counts the current objects.
    pub fn now() -> Self {
        let own = std::process::id();
        Self([
            ("processes", Some(tree::descendants().len())),
            ("open descriptors", tree::descriptors(&[own])),
            ("mounts", Some(mounts::count(own))),
            ("control groups", Some(groups::of_launchers(&[own]).len())),
        ])
    }

    /// Returns a text for each count that is higher than before.
    fn since(&self, before: &Self) -> Vec<String> {
        let pairs = self.0.iter().zip(&before.0).filter(|((_, now), (_, before))| now > before);
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
        let left = Census::now().since(before);
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
        Census([
            ("processes", Some(processes)),
            ("open descriptors", descriptors),
            ("mounts", Some(9)),
            ("control groups", Some(0)),
        ])
    }

    #[test]
    fn only_increases_are_reported() {
        assert_eq!(census(3, Some(5)).since(&census(3, Some(7))), Vec::<String>::new());
        assert_eq!(census(3, None).since(&census(3, None)), Vec::<String>::new());
        assert_eq!(census(4, Some(5)).since(&census(1, Some(5))), ["processes: 4 instead of 1"]);
    }
}
