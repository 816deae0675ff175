//! Fault injection, identical in every run.
//!
//! A plan counts calls by kind. It holds explicit faults, and may fail other calls at a rate. The result of the nth
//! call of a kind then depends on the seed, the kind and n only.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use parking_lot::Mutex;

/// A kind of call that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FaultPoint {
    /// `Backend::create`.
    Create,
    /// `Backend::restore`.
    Restore,
    /// `Backend::prepare`.
    Warm,
    /// `PreparedSandbox::claim`. The sandbox is closed nevertheless.
    Claim,
    /// `Sandbox::start`, and so `Sandbox::exec`.
    Start,
    /// `Sandbox::read_file`.
    ReadFile,
    /// `Sandbox::write_file`.
    WriteFile,
    /// `Sandbox::list_dir`.
    ListDir,
    /// `Sandbox::rename`.
    Rename,
    /// `Sandbox::remove`.
    Remove,
    /// `Sandbox::snapshot`.
    Snapshot,
    /// `Sandbox::fork`.
    Fork,
    /// `Sandbox::pause`.
    Pause,
    /// `Sandbox::resume`.
    Resume,
    /// `Sandbox::usage`.
    Usage,
    /// `Sandbox::close` and `PreparedSandbox::close`. They close nevertheless.
    Close,
}

impl FaultPoint {
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Restore => "restore",
            Self::Warm => "warm",
            Self::Claim => "claim",
            Self::Start => "start",
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::ListDir => "list_dir",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::Snapshot => "snapshot",
            Self::Fork => "fork",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Usage => "usage",
            Self::Close => "close",
        }
    }
}

/// A fault of an exec that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExecFault {
    /// SIGKILL kills the program when it has written this many chunks.
    KillAfterChunks(u64),
    /// Output after this many chunks is lost without a report.
    DropOutputAfterChunks(u64),
    /// The exec ends with this error instead of an exit, when its program ends.
    FailExit(ErrorKind),
    /// The whole sandbox is lost when its program has written this many chunks. Its execs end with `Unavailable`, and
    /// so does every later call but `close`.
    LoseSandboxAfterChunks(u64),
}

/// A plan of faults. Calls of one kind are counted from 1, over the life of the backend.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct FaultPlan {
    errors: BTreeMap<(FaultPoint, u64), ErrorKind>,
    delays: BTreeMap<(FaultPoint, u64), Duration>,
    execs: BTreeMap<u64, Vec<ExecFault>>,
    deaths: BTreeMap<u64, Duration>,
    random: Option<Random>,
}

#[derive(Debug, Clone, Copy)]
struct Random {
    seed: u64,
    per_mille: u16,
    kind: ErrorKind,
}

impl FaultPlan {
    /// Creates a plan without faults.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates a plan in which each call fails with `kind` in about `per_mille` of 1000 cases, selected by `seed`.
    /// `close` never fails.
    pub fn seeded(seed: u64, per_mille: u16, kind: ErrorKind) -> Self {
        Self { random: Some(Random { seed, per_mille, kind }), ..Self::default() }
    }

    /// Makes the nth call of a kind fail.
    pub fn fail(mut self, point: FaultPoint, nth: u64, kind: ErrorKind) -> Self {
        self.errors.insert((point, nth), kind);
        self
    }

    /// Delays the nth call of a kind, before it fails or proceeds.
    pub fn delay(mut self, point: FaultPoint, nth: u64, time: Duration) -> Self {
        self.delays.insert((point, nth), time);
        self
    }

    /// Injects a fault into the exec of the nth start.
    pub fn exec(mut self, nth_start: u64, fault: ExecFault) -> Self {
        self.execs.entry(nth_start).or_default().push(fault);
        self
    }

    /// Makes the sandbox of the nth `warm` die after this time, unless it is claimed first.
    pub fn die_waiting(mut self, nth_warm: u64, after: Duration) -> Self {
        self.deaths.insert(nth_warm, after);
        self
    }

    /// Returns the planned error of the nth call of a kind.
    fn error(&self, point: FaultPoint, nth: u64) -> Option<ErrorKind> {
        self.errors.get(&(point, nth)).copied().or_else(|| {
            let random = self.random.filter(|_| point != FaultPoint::Close)?;
            let call = (point as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ nth;
            (mix(random.seed ^ mix(call)) % 1000 < u64::from(random.per_mille)).then_some(random.kind)
        })
    }
}

/// Applies the finaliser of SplitMix64.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A plan that is being executed.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    plan: FaultPlan,
    counts: Mutex<BTreeMap<FaultPoint, u64>>,
}

impl Faults {
    pub(crate) fn new(plan: FaultPlan) -> Self {
        Self { plan, counts: Mutex::default() }
    }

    /// Counts a call, and delays or fails it as planned. Returns its number.
    pub(crate) async fn pass(&self, point: FaultPoint) -> Result<u64> {
        let nth = {
            let mut counts = self.counts.lock();
            let count = counts.entry(point).or_default();
            *count += 1;
            *count
        };
        if let Some(time) = self.plan.delays.get(&(point, nth)) {
            tokio::time::sleep(*time).await;
        }
        match self.plan.error(point, nth) {
            Some(kind) => {
                Err(Error::new(kind, point.operation(), "a fault was injected").with_context("call", nth.to_string()))
            }
            None => Ok(nth),
        }
    }

    /// Returns the time after which the unclaimed sandbox of the nth `warm` dies, if it does.
    pub(crate) fn death(&self, nth_warm: u64) -> Option<Duration> {
        self.plan.deaths.get(&nth_warm).copied()
    }

    pub(crate) fn of_exec(&self, nth_start: u64) -> Vec<ExecFault> {
        self.plan.execs.get(&nth_start).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_faults_repeat_and_hit_the_rate() {
        let hits = |seed| {
            let plan = FaultPlan::seeded(seed, 100, ErrorKind::Io);
            (1..=10_000).filter(|nth| plan.error(FaultPoint::Start, *nth).is_some()).collect::<Vec<u64>>()
        };
        assert_eq!(hits(7), hits(7));
        assert_ne!(hits(7), hits(8));
        assert!((800..1200).contains(&hits(7).len()), "{}", hits(7).len());
        let plan = FaultPlan::seeded(7, 1000, ErrorKind::Io);
        assert_eq!(plan.error(FaultPoint::Close, 1), None);
    }

    #[tokio::test]
    async fn calls_are_counted_by_kind() {
        let faults = Faults::new(FaultPlan::none().fail(FaultPoint::ReadFile, 2, ErrorKind::Io));
        assert_eq!(faults.pass(FaultPoint::ReadFile).await.unwrap(), 1);
        assert_eq!(faults.pass(FaultPoint::WriteFile).await.unwrap(), 1);
        assert_eq!(faults.pass(FaultPoint::ReadFile).await.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(faults.pass(FaultPoint::ReadFile).await.unwrap(), 3);
    }
}
