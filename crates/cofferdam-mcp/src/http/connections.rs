//! Limits on connections, and the choice of connections to evict. The choice is pure.
//!
//! ```text
//! new --(a request with the token)--> known: idle <-> receiving -> serving -> idle
//!  \--(no request in time | evicted)-> closed          \--(evicted)-> closed
//! ```
//!
//! Connections without an authenticated request are in a small pool of their own. When it is full, the oldest
//! connection of the address with most connections is evicted. So clients without the token cannot block others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::store::part_of_client;

/// Maximum number of connections without an authenticated request.
const MAX_NEW: usize = 32;

/// The address of a client: an IPv6 network counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client(IpAddr);

impl Client {
    /// Returns the client at an address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            address => address,
        })
    }
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Without an authenticated request so far.
    New,
    /// Waiting for the next request.
    Idle,
    /// Receiving the body of a request.
    Receiving,
    /// Answering a request.
    Serving,
}

#[derive(Debug)]
struct Entry {
    client: Client,
    phase: Phase,
    /// Start of the phase, in steps of the table.
    since: u64,
    evict: CancellationToken,
}

/// All connections.
#[derive(Debug)]
pub struct Connections {
    table: Mutex<Table>,
    max: usize,
    max_of_client: usize,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    step: u64,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// The client has reached its limit of connections or sessions.
    Client,
    /// The server has reached its limit of connections or sessions.
    Server,
}

impl Connections {
    /// Allows `max` authenticated connections at once, three quarters of them to one client.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), max, max_of_client: part_of_client(max) })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The state is consistent after a panic, because every change is one step.
        self.table.lock()
    }

    /// Adds a connection. May evict another new one.
    pub fn enter(self: &Arc<Self>, client: Client) -> Arc<Connection> {
        let mut table = self.lock();
        if table.count(|entry| entry.phase == Phase::New) >= MAX_NEW {
            table.evict(|entry| entry.phase == Phase::New);
        }
        let evict = CancellationToken::new();
        let id = table.next();
        table.entries.insert(id, Entry { client, phase: Phase::New, since: id, evict: evict.clone() });
        Arc::new(Connection { of: Arc::clone(self), id, client, evicted: evict })
    }
}

impl Table {
    fn next(&mut self) -> u64 {
        self.step += 1;
        self.step
    }

    fn count(&self, of: impl Fn(&Entry) -> bool) -> usize {
        self.entries.values().filter(|entry| of(entry)).count()
    }

    /// Evicts the connection with the longest time in its phase, among those of the client with most of them.
    fn evict(&mut self, of: impl Fn(&Entry) -> bool) -> bool {
        let mut counts: BTreeMap<Client, usize> = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| of(entry)) {
            *counts.entry(entry.client).or_default() += 1;
        }
        let highest = counts.values().copied().max().unwrap_or_default();
        let candidates = self.entries.iter().filter(|(_, entry)| of(entry) && counts[&entry.client] == highest);
        let Some(id) = candidates.min_by_key(|(_, entry)| entry.since).map(|(id, _)| *id) else { return false };
        // Cancelling ends the connection's task. It cannot return, because it has no entry.
        if let Some(entry) = self.entries.remove(&id) {
            entry.evict.cancel();
        }
        true
    }
}

/// A handle of an open connection.
#[derive(Debug)]
pub struct Connection {
    of: Arc<Connections>,
    id: u64,
    /// The client at its other end.
    pub client: Client,
    /// Cancelled when the connection is evicted.
    pub evicted: CancellationToken,
}

impl Connection {
    /// Records an authenticated request, whose body may be incomplete.
    ///
    /// # Errors
    /// Returns an error if the client or the server has reached its connection limit, and all connections are answering.
    pub fn receive(&self) -> Result<(), NoRoom> {
        let mut table = self.of.lock();
        let known = |entry: &Entry| entry.phase != Phase::New;
        let was_new = table.entries.get(&self.id).is_none_or(|entry| !known(entry));
        let own = |entry: &Entry| entry.client == self.client;
        // Evicts idle connections before receiving ones.
        let make_room = |table: &mut Table, among: &dyn Fn(&Entry) -> bool| {
            table.evict(|entry| among(entry) && entry.phase == Phase::Idle)
                || table.evict(|entry| among(entry) && entry.phase == Phase::Receiving)
        };
        if was_new
            && table.count(|entry| known(entry) && own(entry)) >= self.of.max_of_client
            && !make_room(&mut table, &own)
        {
            return Err(NoRoom::Client);
        }
        if was_new && table.count(known) >= self.of.max && !make_room(&mut table, &|_| true) {
            return Err(NoRoom::Server);
        }
        self.begin(&mut table, Phase::Receiving);
        Ok(())
    }

    /// Records that a request is complete and is being answered.
    pub fn serve(&self) {
        self.begin(&mut self.of.lock(), Phase::Serving);
    }

    /// Records that an answer is complete.
    pub fn rest(&self) {
        self.begin(&mut self.of.lock(), Phase::Idle);
    }

    fn begin(&self, table: &mut Table, phase: Phase) {
        let since = table.next();
        if let Some(entry) = table.entries.get_mut(&self.id) {
            (entry.phase, entry.since) = (phase, since);
        }
    }

    /// Returns true if the connection had no authenticated request.
    pub fn is_new(&self) -> bool {
        self.of.lock().entries.get(&self.id).is_none_or(|entry| entry.phase == Phase::New)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.of.lock().entries.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> Client {
        Client::of(IpAddr::from([192, 0, 2, number]))
    }

    #[test]
    fn the_oldest_unauthenticated_connection_of_the_busiest_address_makes_room() {
        let connections = Connections::new(128);
        let honest = connections.enter(client(1));
        let flood: Vec<_> = (0..4 * MAX_NEW).map(|_| connections.enter(client(2))).collect();
        assert!(!honest.evicted.is_cancelled(), "the oldest connection has another address");
        let left = flood.iter().filter(|one| !one.evicted.is_cancelled()).count();
        assert_eq!(left, MAX_NEW - 1);
        assert!(!flood[flood.len() - 1].evicted.is_cancelled(), "the newest stays");
        assert_eq!(honest.receive(), Ok(()));
        assert!(!honest.is_new() && flood[flood.len() - 1].is_new());
    }

    #[test]
    fn idle_connections_make_room_before_slow_ones_and_served_ones_never() {
        let connections = Connections::new(4);
        let all: Vec<_> = (1..=4).map(|number| connections.enter(client(number))).collect();
        all.iter().for_each(|one| one.receive().unwrap());
        all[0].serve();
        all[1].serve();
        all[1].rest();
        all[3].serve();
        let evicted = || all.iter().map(|one| one.evicted.is_cancelled()).collect::<Vec<_>>();
        let (next, last) = (connections.enter(client(5)), connections.enter(client(6)));
        assert_eq!(next.receive(), Ok(()));
        assert_eq!(evicted(), [false, true, false, false]);
        next.serve();
        assert_eq!(last.receive(), Ok(()));
        assert_eq!(evicted(), [false, true, true, false]);
        last.serve();
        assert_eq!(connections.enter(client(7)).receive(), Err(NoRoom::Server));
        drop(next);
        assert_eq!(connections.enter(client(7)).receive(), Ok(()));
    }

    #[test]
    fn client_cannot_take_every_connection() {
        let connections = Connections::new(4);
        let own: Vec<_> = (0..4).map(|_| connections.enter(client(1))).collect();
        for one in &own[..3] {
            one.receive().unwrap();
            one.serve();
        }
        assert_eq!(own[3].receive(), Err(NoRoom::Client));
        assert_eq!(connections.enter(client(2)).receive(), Ok(()));
        let [a, b] = ["2001:db8::1", "2001:db8::2:1"].map(|text| Client::of(text.parse().unwrap()));
        assert_eq!(a, b);
        assert_eq!(Client::of("::ffff:192.0.2.1".parse().unwrap()), client(1));
    }
}
