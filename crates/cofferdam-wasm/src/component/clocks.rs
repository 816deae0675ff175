//! The clocks of components.

use wasmtime::component::Resource;

use super::bindings::clocks::wall_clock::Datetime;
use super::bindings::clocks::{monotonic_clock, timezone, wall_clock};
use super::resources::Pollable;
use crate::wasi::Host;

const SECOND: u64 = 1_000_000_000;
/// The reported resolution, as in preview 1.
const RESOLUTION: u64 = 1_000;

/// Converts nanoseconds since 1970 to a date.
pub(crate) fn date(nanos: u64) -> Datetime {
    Datetime { seconds: nanos / SECOND, nanoseconds: (nanos % SECOND) as u32 }
}

/// Converts a date to nanoseconds, if it is valid and does not overflow.
pub(crate) fn nanos(date: Datetime) -> Option<u64> {
    let below = u64::from(date.nanoseconds);
    (below < SECOND).then_some(())?;
    date.seconds.checked_mul(SECOND)?.checked_add(below)
}

impl wall_clock::Host for Host {
    fn now(&mut self) -> wasmtime::Result<Datetime> {
        Ok(date(self.clock().realtime()))
    }

    fn resolution(&mut self) -> wasmtime::Result<Datetime> {
        Ok(date(RESOLUTION))
    }
}

/// Unstable, so not linked; the bindings require the implementation.
impl timezone::Host for Host {
    fn display(&mut self, _: Datetime) -> wasmtime::Result<timezone::TimezoneDisplay> {
        Ok(timezone::TimezoneDisplay { utc_offset: 0, name: "UTC".to_owned(), in_daylight_saving_time: false })
    }

    fn utc_offset(&mut self, _: Datetime) -> wasmtime::Result<i32> {
        Ok(0)
    }
}

impl monotonic_clock::Host for Host {
    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(self.clock().monotonic())
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        Ok(RESOLUTION)
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<Pollable>> {
        self.push_resource(Pollable::Moment(when))
    }

    fn subscribe_duration(&mut self, length: u64) -> wasmtime::Result<Resource<Pollable>> {
        let moment = self.clock().monotonic().saturating_add(length);
        self.push_resource(Pollable::Moment(moment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_that_are_none_are_refused() {
        assert_eq!(nanos(date(u64::MAX)), Some(u64::MAX));
        assert_eq!(nanos(Datetime { seconds: 1, nanoseconds: 2 }), Some(SECOND + 2));
        assert_eq!(nanos(Datetime { seconds: 1, nanoseconds: 1_000_000_000 }), None);
        assert_eq!(nanos(Datetime { seconds: u64::MAX, nanoseconds: 0 }), None);
    }
}
