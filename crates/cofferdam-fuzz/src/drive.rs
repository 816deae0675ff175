//! Cases one after the other, for a time or for a number.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::watch;

/// Cases after which the process has all that it will keep.
const WARM: u64 = 300;
/// What it may grow by after that. Allocators keep some of what they had.
const GROWTH: u64 = 256 << 20;

/// What became of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was refused before anything ran.
    Refused,
    /// It came to an end of its own.
    Ended,
    /// It trapped, or its memory was refused at once.
    Trapped,
    /// A limit ended it.
    Limited,
}

/// When to stop.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// After this time.
    pub time: Duration,
    /// After so many cases.
    pub cases: u64,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    /// Cases that were refused.
    pub refused: u64,
    /// That ended by themselves.
    pub ended: u64,
    /// That trapped.
    pub trapped: u64,
    /// That a limit ended.
    pub limited: u64,
    /// The most memory that this process had, in bytes.
    pub resident: u64,
}

impl Report {
    /// Cases in all.
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
            "{} cases: {refused} refused, {ended} ended, {trapped} trapped, {limited} met a limit; {} MiB at most",
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
    fn cases_are_counted_by_what_became_of_them() {
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
