//! The driver, which runs cases in sequence for a time or a number of cases.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::watch;

/// Number of cases after which memory use must be stable.
const WARM: u64 = 300;
/// Maximum growth of resident memory after that. Allocators retain some freed memory.
const GROWTH: u64 = 256 << 20;

/// The outcome of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The input was refused before anything ran.
    Refused,
    /// The guest ended by itself.
    Ended,
    /// The guest trapped, or its memory was refused at once.
    Trapped,
    /// A limit ended the guest.
    Limited,
}

/// The bound of a run.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// The maximum time.
    pub time: Duration,
    /// The maximum number of cases.
    pub cases: u64,
}

/// Counts of the outcomes of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    /// Number of refused cases.
    pub refused: u64,
    /// Number of cases that ended by themselves.
    pub ended: u64,
    /// Number of cases that trapped.
    pub trapped: u64,
    /// Number of cases that a limit ended.
    pub limited: u64,
    /// Peak resident memory of this process, in bytes.
    pub resident: u64,
}

impl Report {
    /// Returns the number of cases.
    pub fn cases(&self) -> u64 {
        self.refused + self.ended + self.trapped + self.limited
    }

    fn add(&mut self, outcome: Outcome) {
        let count = match outcome {
            Outcome::Refused => &mut self.refused,
            Outcome::Ended => &mut self.ended,
            Outcome::Trapped => &mut self.trapped,
            Outcome::Limited => &mut self.limited,
        };
        *count += 1;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused, ended, trapped, limited, resident } = self;
        write!(
            f,
            "{} cases: {refused} refused, {ended} ended, {trapped} trapped, {limited} hit a limit; peak memory {} MiB",
            self.cases(),
            resident >> 20
        )
    }
}

/// Checks the cases of `seed`, `seed + 1`, … The error of a finding names the seed of its case.
pub fn drive(seed: u64, bound: Bound, mut check: impl FnMut(u64) -> Result<Outcome>) -> Result<Report> {
    let (mut report, start) = (Report::default(), Instant::now());
    let mut warm = None;
    while report.cases() < bound.cases && start.elapsed() < bound.time {
        let seed = seed.wrapping_add(report.cases());
        report.add(check(seed).with_context(|| format!("the case of seed {seed}"))?);
        let resident = watch::resident();
        report.resident = report.resident.max(resident);
        if report.cases() > WARM {
            let warm = *warm.get_or_insert(report.resident);
            ensure!(resident < warm + GROWTH, "{} MiB more memory by seed {seed}", (resident - warm) >> 20);
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound { time: Duration::from_secs(60), cases: 5 };

    #[test]
    fn cases_are_counted_by_outcome() {
        let report = drive(u64::MAX, BOUND, |seed| Ok(if seed < 2 { Outcome::Ended } else { Outcome::Trapped }));
        let report = report.unwrap();
        assert_eq!((report.cases(), report.ended, report.trapped), (5, 2, 3));
    }

    #[test]
    fn a_finding_names_its_seed() {
        let found = drive(7, BOUND, |seed| if seed == 9 { anyhow::bail!("bad") } else { Ok(Outcome::Refused) });
        assert_eq!(format!("{:#}", found.unwrap_err()), "the case of seed 9: bad");
    }
}
