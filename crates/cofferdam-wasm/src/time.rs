//! Clocks and random numbers of a guest: the host's, or made up by rule.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::wasi::abi::Errno;

/// Where made-up time begins: 2000-01-01.
const BEGINNING: u64 = 946_684_800_000_000_000;
/// How far each look at a made-up clock moves it.
const STEP: u64 = 1_000;

/// A guest's clocks, in nanoseconds.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The host's; the monotonic one shows `before` when the exec begins.
    Real { started: Instant, before: u64 },
    /// Begins at the same moment each time; each look moves it by a microsecond, each sleep by its length.
    MadeUp { passed: u64 },
}

impl Clock {
    /// A clock for a guest that has seen `passed` nanoseconds go by: time never goes back.
    pub(crate) fn real(passed: u64) -> Self {
        Self::Real { started: Instant::now(), before: passed }
    }

    /// As above, by rule.
    pub(crate) fn made_up(passed: u64) -> Self {
        Self::MadeUp { passed }
    }

    /// What the monotonic clock shows. Does not move a made-up one.
    pub(crate) fn passed(&self) -> u64 {
        match self {
            Self::Real { started, before } => before.saturating_add(nanos(started.elapsed())),
            Self::MadeUp { passed } => *passed,
        }
    }

    pub(crate) fn realtime(&mut self) -> u64 {
        match self {
            Self::Real { .. } => since_1970(),
            Self::MadeUp { .. } => BEGINNING.saturating_add(self.monotonic()),
        }
    }

    pub(crate) fn monotonic(&mut self) -> u64 {
        match self {
            Self::Real { .. } => self.passed(),
            Self::MadeUp { passed } => {
                *passed = passed.saturating_add(STEP);
                *passed
            }
        }
    }

    /// The time for a file's stamps. Does not move a made-up clock.
    pub(crate) fn stamp(&self) -> u64 {
        match self {
            Self::Real { .. } => since_1970(),
            Self::MadeUp { passed } => BEGINNING.saturating_add(*passed),
        }
    }

    /// Lets made-up time go on; gives whether it was made up.
    pub(crate) fn skip(&mut self, time: Duration) -> bool {
        match self {
            Self::Real { .. } => false,
            Self::MadeUp { passed } => {
                *passed = passed.saturating_add(nanos(time));
                true
            }
        }
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The host's time.
pub(crate) fn since_1970() -> u64 {
    nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A guest's random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Random {
    /// The host's, fit for keys.
    Real,
    /// A sequence that a seed determines. Not fit for keys.
    Seeded(u64),
}

impl Random {
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> Result<(), Errno> {
        match self {
            Self::Real => getrandom::fill(buffer).map_err(|_| Errno::Io),
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

/// The generator SplitMix64.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Processor time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_time_follows_its_rule() {
        let mut clock = Clock::made_up(0);
        assert_eq!(clock.monotonic(), STEP);
        assert_eq!(clock.realtime(), BEGINNING + 2 * STEP);
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
