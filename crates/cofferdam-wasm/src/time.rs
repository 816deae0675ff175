//! Clocks and random numbers of a guest: the host's, or deterministic ones.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The start of deterministic time: 2000-01-01.
const EPOCH: u64 = 946_684_800_000_000_000;
/// The step by which each reading advances a deterministic clock.
const STEP: u64 = 1_000;

/// A guest's clocks, in nanoseconds.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The host's clocks. The monotonic clock starts at `before` when the exec starts.
    Real { started: Instant, before: u64 },
    /// A clock with a fixed start. Each reading advances it by a microsecond, each sleep by its length.
    Deterministic { passed: u64 },
}

impl Clock {
    /// Creates a clock for a guest for which `passed` nanoseconds have elapsed: time never goes back.
    pub(crate) fn real(passed: u64) -> Self {
        Self::Real { started: Instant::now(), before: passed }
    }

    /// Creates a deterministic clock at `passed` nanoseconds.
    pub(crate) fn deterministic(passed: u64) -> Self {
        Self::Deterministic { passed }
    }

    /// Returns the monotonic time without advancing a deterministic clock.
    pub(crate) fn passed(&self) -> u64 {
        match self {
            Self::Real { started, before } => before.saturating_add(nanos(started.elapsed())),
            Self::Deterministic { passed } => *passed,
        }
    }

    pub(crate) fn realtime(&mut self) -> u64 {
        match self {
            Self::Real { .. } => since_1970(),
            Self::Deterministic { .. } => EPOCH.saturating_add(self.monotonic()),
        }
    }

    pub(crate) fn monotonic(&mut self) -> u64 {
        match self {
            Self::Real { .. } => self.passed(),
            Self::Deterministic { passed } => {
                *passed = passed.saturating_add(STEP);
                *passed
            }
        }
    }

    /// Returns the time for file timestamps, without advancing a deterministic clock.
    pub(crate) fn stamp(&self) -> u64 {
        match self {
            Self::Real { .. } => since_1970(),
            Self::Deterministic { passed } => EPOCH.saturating_add(*passed),
        }
    }

    /// Advances a deterministic clock; returns false for a real one.
    pub(crate) fn skip(&mut self, time: Duration) -> bool {
        match self {
            Self::Real { .. } => false,
            Self::Deterministic { passed } => {
                *passed = passed.saturating_add(nanos(time));
                true
            }
        }
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the host's time.
pub(crate) fn since_1970() -> u64 {
    nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The random numbers of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Random {
    /// The host's, suitable for keys.
    Real,
    /// A sequence determined by a seed, not suitable for keys.
    Seeded(u64),
}

impl Random {
    /// Fills the buffer. Fails if the host has no random bytes.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> Result<(), getrandom::Error> {
        match self {
            Self::Real => getrandom::fill(buffer),
            Self::Seeded(state) => {
                for chunk in buffer.chunks_mut(8) {
                    let bytes = split_mix(state).to_le_bytes();
                    chunk.copy_from_slice(&bytes[..chunk.len()]);
                }
                Ok(())
            }
        }
    }
}

/// Generates a number by SplitMix64.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Returns the processor time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deterministic_time_advances_by_fixed_steps() {
        let mut clock = Clock::deterministic(0);
        assert_eq!(clock.monotonic(), STEP);
        assert_eq!(clock.realtime(), EPOCH + 2 * STEP);
        assert!(clock.skip(Duration::from_secs(3)));
        assert_eq!(clock.monotonic(), 3 * STEP + 3_000_000_000);
        clock.skip(Duration::MAX);
        assert_eq!(clock.monotonic(), u64::MAX);
    }

    #[test]
    fn a_seed_determines_the_sequence() {
        let draw = |seed| {
            let mut buffer = [0; 13];
            Random::Seeded(seed).fill(&mut buffer).unwrap();
            buffer
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
