//! The network of one exec: TCP connections to the hosts that its policy allows.
//!
//! ```text
//! name --rules--> the host's resolver --rules--> known address --rules--> connection to exactly that address
//! ```
//!
//! [`Rules`] decides about names, and again about each address and port. This module applies the decisions. Guests
//! cannot listen, choose a local port or send datagrams. Connections, lookups and stored data are bounded.

mod connection;
mod lookup;
mod slots;
mod wake;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub(crate) use cofferdam_egress::{
    Allowed, Query, Refusal, ResolvedAddress, Rules, Target, is_not_single_host, is_own,
};
pub(crate) use connection::{Connection, Family, Finished, Interest, PERMITTED, await_any};
pub(crate) use lookup::{Lookup, LookupError};
use slots::Slots;
pub(crate) use wake::Waker;

/// The maximum number of connections of one exec, and of all execs together.
const MAX_CONNECTIONS: usize = 64;
static CONNECTIONS: Slots = Slots::new(512);
/// The maximum number of concurrent lookups of one exec, and of all execs together. Each is a thread.
const MAX_LOOKUPS: usize = 4;
static LOOKUPS: Slots = Slots::new(32);
/// The maximum number of resolved addresses of one exec. The oldest is removed first.
const MAX_KNOWN: usize = 1024;
/// The maximum number of reported refusals, and the maximum length of each.
const MAX_REFUSALS: usize = 8;
const MAX_TEXT: usize = 300;

/// The network access of one exec, with its resolved addresses.
#[derive(Debug)]
pub(crate) struct Egress {
    rules: Rules,
    known: VecDeque<ResolvedAddress>,
    connections: Arc<Slots>,
    lookups: Arc<Slots>,
    waker: Option<Arc<Waker>>,
    refused: Vec<String>,
    unreported: usize,
}

impl Egress {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            known: VecDeque::new(),
            connections: Arc::new(Slots::new(MAX_CONNECTIONS)),
            lookups: Arc::new(Slots::new(MAX_LOOKUPS)),
            waker: None,
            refused: Vec::new(),
            unreported: 0,
        }
    }

    /// Returns the waker of the guest's thread for waits on sockets. It is created when it is first needed.
    pub(crate) fn waker(&mut self) -> io::Result<&Arc<Waker>> {
        if self.waker.is_none() {
            self.waker = Some(Arc::new(Waker::new()?));
        }
        self.waker.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Creates a socket that is not connected. Returns `None` if there are too many.
    pub(crate) fn socket(&self, family: Family) -> io::Result<Option<Connection>> {
        let permit = Slots::acquire(&self.connections, &CONNECTIONS);
        permit.map(|permit| Connection::new(family, permit)).transpose()
    }

    /// Checks that the policy allows the lookup of a name.
    pub(crate) fn query(&mut self, name: &str) -> Result<Query, Refusal> {
        let query = self.rules.lookup(name);
        if let Err(refusal) = &query {
            let shown: String = name.chars().take(MAX_TEXT).collect();
            self.note(format_args!("the lookup of {}", shown.escape_debug()), *refusal);
        }
        query
    }

    /// Starts the lookup of a name. Returns `None` if too many lookups are in progress.
    pub(crate) fn start_lookup(&mut self, target: &Target) -> io::Result<Option<Arc<Lookup>>> {
        let waker = Arc::clone(self.waker()?);
        let permit = Slots::acquire(&self.lookups, &LOOKUPS);
        permit.map(|permit| Lookup::start(target.name.clone(), waker, permit)).transpose()
    }

    /// Returns the resolved addresses of a name that the policy allows, and remembers them.
    pub(crate) fn resolved(&mut self, target: &Arc<Target>, addresses: &[IpAddr]) -> VecDeque<IpAddr> {
        let mut allowed = VecDeque::new();
        for address in addresses {
            match target.leads_to(*address) {
                Ok(_) => {
                    allowed.push_back(*address);
                    self.remember(ResolvedAddress { address: *address, target: Arc::clone(target) });
                }
                Err(refusal) => self.note(format_args!("{} at {address}", target.name), refusal),
            }
        }
        allowed
    }

    fn remember(&mut self, known: ResolvedAddress) {
        self.known.retain(|other| *other != known);
        if self.known.len() >= MAX_KNOWN {
            self.known.pop_front();
        }
        self.known.push_back(known);
    }

    /// Checks that the policy allows a connection to this address.
    pub(crate) fn allows(&mut self, to: SocketAddr) -> Result<Allowed, Refusal> {
        let verdict = self.rules.connect(&self.known, to);
        if let Err(refusal) = &verdict {
            self.note(format_args!("the connection to {to}"), *refusal);
        }
        verdict
    }

    /// Records a refusal. Each is recorded once, up to a maximum number.
    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>, why: impl fmt::Display) {
        let text: String = format!("{what}: {why}").chars().take(MAX_TEXT).collect();
        if self.refused.contains(&text) {
            return;
        }
        if self.refused.len() < MAX_REFUSALS {
            self.refused.push(text);
        } else {
            self.unreported += 1;
        }
    }

    /// Returns the refusals as lines for the guest's standard error.
    pub(crate) fn refusals(&self) -> String {
        let mut lines: String = self.refused.iter().map(|text| format!("wasm network: refused {text}\n")).collect();
        if self.unreported > 0 {
            lines += &format!("wasm network: refused {} more\n", self.unreported);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::NetworkPolicy;

    use super::*;

    fn egress(host: &str) -> Egress {
        Egress::new(Rules::of(&NetworkPolicy::Allow { hosts: vec![host.to_owned()] }).unwrap().unwrap())
    }

    #[test]
    fn stored_data_is_bounded() {
        let mut egress = egress("*.example");
        for number in 0..2000u32 {
            let Ok(Query::Name(target)) = egress.query(&format!("a{number}.example")) else { panic!() };
            let public = IpAddr::from((0x0800_0000 + number).to_be_bytes());
            assert_eq!(egress.resolved(&target, &[public, [127, 0, 0, 1].into()]), [public]);
            assert!(egress.allows((public, 80).into()).is_ok());
            assert!(egress.query(&format!("b{number}.{}", "x".repeat(5000))).is_err());
        }
        assert_eq!(egress.known.len(), MAX_KNOWN);
        assert!(egress.allows(([8, 0, 0, 1], 80).into()).is_err(), "the oldest address is still known");
        let lines = egress.refusals();
        assert!(lines.lines().count() == MAX_REFUSALS + 1 && lines.len() < 2 * MAX_REFUSALS * MAX_TEXT, "{lines}");
    }

    /// Promise (WebAssembly): The number of name lookups of an exec is limited.
    #[test]
    fn an_exec_has_a_bounded_number_of_lookups() {
        let mut egress = egress("localhost");
        let Ok(Query::Name(target)) = egress.query("localhost") else { panic!() };
        let held: Vec<_> = (0..MAX_LOOKUPS).map(|_| Slots::acquire(&egress.lookups, &LOOKUPS).unwrap()).collect();
        assert!(egress.start_lookup(&target).unwrap().is_none());
        drop(held);
        let lookup = egress.start_lookup(&target).unwrap().unwrap();
        while !lookup.is_ready() {
            await_any(egress.waker().unwrap(), &[], lookup.until());
        }
        assert!(lookup.result().unwrap().iter().all(IpAddr::is_loopback));
    }

    #[test]
    fn an_exec_has_a_bounded_number_of_connections() {
        let egress = egress("a");
        let held: Vec<_> = (0..MAX_CONNECTIONS).map(|_| egress.socket(Family::V4).unwrap().unwrap()).collect();
        assert!(egress.socket(Family::V4).unwrap().is_none());
        drop(held);
        assert!(egress.socket(Family::V4).unwrap().is_some());
    }
}
