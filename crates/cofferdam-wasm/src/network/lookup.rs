//! Names, asked of the host's resolver on a thread of its own: it cannot be interrupted, and takes its time.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::places::Place;
use super::wake::Waker;

/// How long a guest waits for an answer. The thread goes on until the resolver has one, in its place.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most addresses of one name.
const MAX_ADDRESSES: usize = 64;
/// Enough for what a C library's resolver loads and calls.
const STACK: usize = 512 << 10;

/// A look-up that is under way, or has come to its end.
#[derive(Debug)]
pub(crate) struct Lookup {
    found: Mutex<Option<Result<Vec<IpAddr>, Answer>>>,
    until: Instant,
}

/// What is told instead of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    NotYet,
    /// It took too long, or may work later.
    Later,
    None,
}

impl Lookup {
    pub(crate) fn begin(name: String, waker: Arc<Waker>, place: Place) -> io::Result<Arc<Self>> {
        let lookup = Arc::new(Self { found: Mutex::new(None), until: Instant::now() + PATIENCE });
        let told = Arc::clone(&lookup);
        let work = move || {
            told.tell(resolve(&name));
            drop(place);
            waker.wake();
        };
        std::thread::Builder::new().name("wasm-resolver".to_owned()).stack_size(STACK).spawn(work)?;
        Ok(lookup)
    }

    fn tell(&self, found: Result<Vec<IpAddr>, Answer>) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
    }

    pub(crate) fn answer(&self) -> Result<Vec<IpAddr>, Answer> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match &*found {
            Some(found) => found.clone(),
            None if Instant::now() >= self.until => Err(Answer::Later),
            None => Err(Answer::NotYet),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.answer() != Err(Answer::NotYet)
    }

    /// When there is an answer at the latest.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }
}

fn resolve(name: &str) -> Result<Vec<IpAddr>, Answer> {
    match (name, 0).to_socket_addrs() {
        Err(error) if error.to_string().contains("Temporary failure") => Err(Answer::Later),
        Err(_) => Err(Answer::None),
        Ok(found) => {
            let mut addresses: Vec<IpAddr> = Vec::new();
            for address in found.map(|found| found.ip()) {
                if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            if addresses.is_empty() { Err(Answer::None) } else { Ok(addresses) }
        }
    }
}
