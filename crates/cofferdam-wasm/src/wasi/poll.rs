//! Waiting for time and input.

use std::time::{Duration, Instant};

use super::abi::{Answer, CLOCK_MONOTONIC, CLOCK_REALTIME, Errno, Stop};
use super::descriptors::Descriptor;
use super::host::Call;
use crate::guest_control::Input;

/// The maximum number of subscriptions of one call.
const MAX_SUBSCRIPTIONS: u32 = 1024;
const SUBSCRIPTION: u32 = 48;
const EVENT: u32 = 32;
const ABSOLUTE: u16 = 1;

/// The condition of a subscription.
enum Wanted {
    Time { left: Duration },
    Read { fd: u32 },
    Write { fd: u32 },
}

struct Subscription {
    userdata: u64,
    wanted: Result<Wanted, Errno>,
    tag: u8,
}

struct Event {
    userdata: u64,
    errno: Option<Errno>,
    tag: u8,
    bytes: u64,
}

impl Call<'_> {
    pub(super) fn poll_oneoff(&mut self, subscriptions: u32, events: u32, count: u32, result: u32) -> Answer {
        if count == 0 || count > MAX_SUBSCRIPTIONS {
            return Err(Errno::Inval.into());
        }
        // All of them must be valid before the call waits.
        self.memory.slice(subscriptions, count * SUBSCRIPTION)?;
        self.memory.slice(events, count * EVENT)?;
        self.memory.slice(result, 4)?;
        let wanted: Vec<Subscription> = (0..count)
            .map(|number| self.subscription(subscriptions + number * SUBSCRIPTION))
            .collect::<Result<_, Stop>>()?;
        let ready = self.wait_for(&wanted)?;
        for (number, event) in (0u32..).zip(&ready) {
            let mut bytes = [0; EVENT as usize];
            bytes[..8].copy_from_slice(&event.userdata.to_le_bytes());
            bytes[8..10].copy_from_slice(&event.errno.map_or(0, |errno| errno as u16).to_le_bytes());
            bytes[10] = event.tag;
            bytes[16..24].copy_from_slice(&event.bytes.to_le_bytes());
            self.memory.put(events + number * EVENT, &bytes)?;
        }
        Ok(self.memory.put_u32(result, ready.len() as u32)?)
    }

    fn subscription(&mut self, at: u32) -> Answer<Subscription> {
        let userdata = self.memory.u64(at)?;
        let tag = self.memory.u8(at + 8)?;
        let wanted = match tag {
            0 => {
                let (clock, timeout) = (self.memory.u32(at + 16)?, self.memory.u64(at + 24)?);
                let absolute = self.memory.u16(at + 40)? & ABSOLUTE != 0;
                match clock {
                    CLOCK_REALTIME | CLOCK_MONOTONIC if absolute => {
                        let now = self.host.now(clock)?;
                        Ok(Wanted::Time { left: Duration::from_nanos(timeout.saturating_sub(now)) })
                    }
                    CLOCK_REALTIME | CLOCK_MONOTONIC => Ok(Wanted::Time { left: Duration::from_nanos(timeout) }),
                    _ => Err(Errno::Inval),
                }
            }
            1 => Ok(Wanted::Read { fd: self.memory.u32(at + 16)? }),
            2 => Ok(Wanted::Write { fd: self.memory.u32(at + 16)? }),
            _ => return Err(Errno::Inval.into()),
        };
        Ok(Subscription { userdata, wanted, tag })
    }

    fn wait_for(&mut self, wanted: &[Subscription]) -> Answer<Vec<Event>> {
        let began = Instant::now();
        let first = wanted.iter().filter_map(|subscription| match subscription.wanted {
            Ok(Wanted::Time { left }) => Some(left),
            _ => None,
        });
        let first = first.min();
        let input = wanted.iter().any(|subscription| match subscription.wanted {
            Ok(Wanted::Read { fd }) => matches!(self.host.descriptors.get(fd), Ok(Descriptor::Input)),
            _ => false,
        });
        loop {
            let passed = began.elapsed();
            let ready: Vec<Event> = wanted.iter().filter_map(|subscription| self.event(subscription, passed)).collect();
            if !ready.is_empty() {
                return Ok(ready);
            }
            if let Some(first) = first
                && self.host.clock.skip(first)
            {
                self.host.check()?;
                let over = wanted.iter().filter_map(|subscription| self.event(subscription, first)).collect();
                return Ok(over);
            }
            // A time that the clock cannot represent is later than every deadline.
            let until = first.and_then(|first| began.checked_add(first));
            self.host.wait(until, input)?;
        }
    }

    fn event(&self, subscription: &Subscription, passed: Duration) -> Option<Event> {
        let (ready, errno, bytes) = match &subscription.wanted {
            Err(errno) => (true, Some(*errno), 0),
            Ok(Wanted::Time { left }) => (*left <= passed, None, 0),
            Ok(Wanted::Read { fd }) => match self.host.descriptors.get(*fd) {
                Err(errno) => (true, Some(errno), 0),
                Ok(Descriptor::Input) => match &self.host.input {
                    Input::Given(bytes) => (true, None, bytes.len() as u64),
                    Input::Streamed => (self.host.control.readable(), None, 1),
                },
                Ok(Descriptor::File(file)) => {
                    let size = self.host.tree().stat(file.ino).map_or(0, |stat| stat.size);
                    (true, None, size.saturating_sub(file.position))
                }
                Ok(_) => (true, Some(Errno::Badf), 0),
            },
            Ok(Wanted::Write { fd }) => match self.host.descriptors.get(*fd) {
                Err(errno) => (true, Some(errno), 0),
                Ok(Descriptor::Output | Descriptor::Errors | Descriptor::File(_)) => (true, None, 1 << 16),
                Ok(_) => (true, Some(Errno::Badf), 0),
            },
        };
        ready.then_some(Event { userdata: subscription.userdata, errno, tag: subscription.tag, bytes })
    }
}
