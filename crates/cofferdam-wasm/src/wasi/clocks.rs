//! The clocks of preview 1.

use super::abi::{Answer, CLOCK_MONOTONIC, CLOCK_PROCESS_CPU, CLOCK_REALTIME, CLOCK_THREAD_CPU, Errno};
use super::host::{Call, Host};
use crate::time::{Clock, nanos};

impl Call<'_> {
    pub(super) fn clock_res_get(&mut self, clock: u32, result: u32) -> Answer {
        if clock > CLOCK_THREAD_CPU {
            return Err(Errno::Inval.into());
        }
        Ok(self.memory.put_u64(result, 1_000)?)
    }

    pub(super) fn clock_time_get(&mut self, clock: u32, _precision: u64, result: u32) -> Answer {
        let now = self.host.now(clock)?;
        Ok(self.memory.put_u64(result, now)?)
    }
}

impl Host {
    /// Reads a clock.
    pub(super) fn now(&mut self, clock: u32) -> Result<u64, Errno> {
        match clock {
            CLOCK_REALTIME => Ok(self.clock.realtime()),
            CLOCK_MONOTONIC => Ok(self.clock.monotonic()),
            CLOCK_PROCESS_CPU | CLOCK_THREAD_CPU => match self.clock {
                Clock::Real { .. } => Ok(nanos(self.cpu())),
                // Real processor time is not reproducible.
                Clock::Deterministic { .. } => Ok(self.clock.monotonic()),
            },
            _ => Err(Errno::Inval),
        }
    }
}
