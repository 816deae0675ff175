//! Share of the processors' time that tests use.

use std::fs;

/// The time of all processors since the boot, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Processors {
    idle: u64,
    total: u64,
}

impl Processors {
    /// Reads the counters, or returns `None` where the kernel has none.
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses the first line: user, nice, system, idle, waiting, interrupts, soft interrupts, stolen. Guests' time, after
    /// these, is part of the user's.
    fn parse(stat: &str) -> Option<Self> {
        let ticks: Vec<u64> =
            stat.lines().next()?.split_whitespace().skip(1).take(8).map_while(|word| word.parse().ok()).collect();
        Some(Self { idle: ticks.get(3)? + ticks.get(4)?, total: ticks.iter().sum() })
    }

    /// Returns the percentage of the time since then in which processors worked.
    fn busy_until(self, later: Self) -> Option<u64> {
        let total = later.total.checked_sub(self.total)?;
        let idle = later.idle.saturating_sub(self.idle).min(total);
        ((total - idle) * 100).checked_div(total)
    }
}

/// Returns the percentage since `processors` were read.
pub fn busy(since: Option<Processors>) -> Option<u64> {
    since?.busy_until(Processors::now()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_disks_is_idle_and_guests_are_counted_once() {
        let before = Processors::parse("cpu  100 0 50 800 50 0 0 0 70 0\ncpu0 1 2 3\n").unwrap();
        let after = Processors::parse("cpu  160 0 60 820 60 0 0 0 99 0\n").unwrap();
        assert_eq!(before.busy_until(after), Some(70));
        assert_eq!(before.busy_until(before), None);
        assert!(Processors::parse("cpu 1 2\n").is_none());
    }
}
