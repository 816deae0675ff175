//! Waiting for time, input and the network.

use std::time::{Duration, Instant};

use wasmtime::component::Resource;

use super::bindings::io::poll;
use super::error::trap;
use super::resources::Pollable;
use crate::guest_control::Input;
use crate::network::{Connection, Interest};
use crate::wasi::Host;

/// The maximum number of pollables of one call.
const MAX_WAITED_FOR: usize = 1024;

impl poll::Host for Host {
    fn poll(&mut self, wanted: Vec<Resource<Pollable>>) -> wasmtime::Result<Vec<u32>> {
        if wanted.is_empty() || wanted.len() > MAX_WAITED_FOR {
            return Err(trap("a poll of no pollables, or of too many"));
        }
        let wanted =
            wanted.iter().map(|handle| self.resource(handle).cloned()).collect::<wasmtime::Result<Vec<_>>>()?;
        self.wait_for(&wanted)
    }
}

impl poll::HostPollable for Host {
    fn ready(&mut self, pollable: Resource<Pollable>) -> wasmtime::Result<bool> {
        let pollable = self.resource(&pollable)?.clone();
        let now = self.clock().monotonic();
        Ok(self.is_ready(&pollable, now))
    }

    fn block(&mut self, pollable: Resource<Pollable>) -> wasmtime::Result<()> {
        let pollable = self.resource(&pollable)?.clone();
        self.wait_for(&[pollable]).map(drop)
    }

    fn drop(&mut self, pollable: Resource<Pollable>) -> wasmtime::Result<()> {
        self.delete_resource(pollable).map(drop)
    }
}

impl Host {
    fn is_ready(&mut self, pollable: &Pollable, now: u64) -> bool {
        match pollable {
            Pollable::Ready => true,
            Pollable::Moment(moment) => *moment <= now,
            Pollable::Input => match self.input() {
                (Input::Given(_), _) => true,
                (Input::Streamed, control) => control.readable(),
            },
            Pollable::Connection(connection, interest) => connection.is_ready(*interest),
            Pollable::Lookup(lookup) => lookup.is_ready(),
        }
    }

    /// Waits until a pollable is ready, and returns the indexes of all ready ones.
    pub(super) fn wait_for(&mut self, wanted: &[Pollable]) -> wasmtime::Result<Vec<u32>> {
        let input = wanted.iter().any(|pollable| matches!(pollable, Pollable::Input));
        let moments = wanted.iter().filter_map(|pollable| match pollable {
            Pollable::Moment(moment) => Some(*moment),
            _ => None,
        });
        let first = moments.min();
        let network = wanted.iter().any(|pollable| matches!(pollable, Pollable::Connection(..) | Pollable::Lookup(_)));
        let waker = network.then(|| self.waker()).transpose().map_err(wasmtime::Error::new)?;
        let timeout = wanted.iter().filter_map(Pollable::until).min();
        loop {
            if let Some(waker) = &waker {
                waker.clear();
            }
            let now = self.clock().monotonic();
            let ready: Vec<u32> =
                (0u32..).zip(wanted).filter(|(_, pollable)| self.is_ready(pollable, now)).map(|(at, _)| at).collect();
            if !ready.is_empty() {
                return Ok(ready);
            }
            let left = first.map(|first| Duration::from_nanos(first.saturating_sub(now)));
            if let Some(left) = left
                && self.clock().skip(left)
            {
                self.check().map_err(wasmtime::Error::new)?;
                continue;
            }
            // A time that the clock cannot represent is later than every deadline.
            let until = left.and_then(|left| Instant::now().checked_add(left));
            let waited = match &waker {
                None => self.wait_until(until, input),
                Some(waker) => {
                    let until = until.into_iter().chain(timeout).min();
                    let connections: Vec<_> = wanted.iter().filter_map(Pollable::connection).collect();
                    self.wait_for_connections(waker, until, &connections)
                }
            };
            waited.map_err(wasmtime::Error::new)?;
        }
    }
}

impl Pollable {
    fn connection(&self) -> Option<(&Connection, Interest)> {
        match self {
            Self::Connection(connection, interest) => Some((connection, *interest)),
            _ => None,
        }
    }

    /// Returns the time at which the connection or lookup times out.
    fn until(&self) -> Option<Instant> {
        match self {
            Self::Connection(connection, _) => connection.until(),
            Self::Lookup(lookup) => Some(lookup.until()),
            _ => None,
        }
    }
}
