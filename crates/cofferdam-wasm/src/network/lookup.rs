//! Name resolution by the host's resolver, on its own thread, since it is slow and cannot be interrupted.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::slots::Permit;
use super::wake::Waker;

/// The time that a guest waits for an answer. The thread continues until the resolver returns, and keeps its slot.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum addresses of one name.
const MAX_ADDRESSES: usize = 64;
/// The stack size of a resolver thread, enough for what a C library's resolver loads and calls.
const STACK: usize = 512 << 10;

/// A lookup that is in progress or finished.
#[derive(Debug)]
pub(crate) struct Lookup {
    result: Mutex<Option<Result<Vec<IpAddr>, LookupError>>>,
    until: Instant,
}

/// The reason for which a lookup has no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupError {
    Pending,
    /// The lookup timed out, or may work later.
    Temporary,
    NotFound,
}

impl Lookup {
    pub(crate) fn start(name: String, waker: Arc<Waker>, permit: Permit) -> io::Result<Arc<Self>> {
        let lookup = Arc::new(Self { result: Mutex::new(None), until: Instant::now() + LOOKUP_TIMEOUT });
        let finished = Arc::clone(&lookup);
        let work = move || {
            finished.finish(resolve(&name));
            drop(permit);
            waker.wake();
        };
        std::thread::Builder::new().name("wasm-resolver".to_owned()).stack_size(STACK).spawn(work)?;
        Ok(lookup)
    }

    fn finish(&self, result: Result<Vec<IpAddr>, LookupError>) {
        *self.result.lock() = Some(result);
    }

    pub(crate) fn result(&self) -> Result<Vec<IpAddr>, LookupError> {
        let result = self.result.lock();
        match &*result {
            Some(result) => result.clone(),
            None if Instant::now() >= self.until => Err(LookupError::Temporary),
            None => Err(LookupError::Pending),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.result() != Err(LookupError::Pending)
    }

    /// Returns the time at which the lookup times out.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }
}

fn resolve(name: &str) -> Result<Vec<IpAddr>, LookupError> {
    match (name, 0).to_socket_addrs() {
        Err(error) if error.to_string().contains("Temporary failure") => Err(LookupError::Temporary),
        Err(_) => Err(LookupError::NotFound),
        Ok(found) => {
            let mut addresses: Vec<IpAddr> = Vec::new();
            for address in found.map(|found| found.ip()) {
                if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            if addresses.is_empty() { Err(LookupError::NotFound) } else { Ok(addresses) }
        }
    }
}
