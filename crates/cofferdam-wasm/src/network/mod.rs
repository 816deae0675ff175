//! The network of one exec: connections by TCP to the hosts that its policy names, and nothing else.
//!
//! ```text
//! name --rules--> resolver of the host --rules--> address known --rules--> connection to exactly that address
//! ```
//!
//! What is allowed is decided in [`rules`], for names and again for each address and port; here is what follows from it.
//! There is no listening, no port of one's own and no datagram. Connections, look-ups and what is kept are bounded.

mod addresses;
mod connection;
mod lookup;
mod places;
mod rules;
mod wake;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub(crate) use connection::{Connection, Family, Finished, Interest, PERMITTED, await_any, is_own};
pub(crate) use lookup::{Answer, Lookup};
use places::Places;
pub(crate) use rules::{Allowed, Known, Refusal, Rules, Sought, Target, is_of_none_or_many};
pub(crate) use wake::Waker;

/// The most connections that one exec has, and all together.
const MAX_CONNECTIONS: usize = 64;
static CONNECTIONS: Places = Places::new(512);
/// The most look-ups that one exec has under way, and all together: each is a thread.
const MAX_LOOKUPS: usize = 4;
static LOOKUPS: Places = Places::new(32);
/// The most addresses that names of one exec have led to. The oldest is forgotten.
const MAX_KNOWN: usize = 1024;
/// The most refusals that are told, and how much of each.
const MAX_TOLD: usize = 8;
const MAX_TEXT: usize = 300;

/// What one exec may reach, and what it knows.
#[derive(Debug)]
pub(crate) struct Egress {
    rules: Rules,
    known: VecDeque<Known>,
    connections: Arc<Places>,
    lookups: Arc<Places>,
    waker: Option<Arc<Waker>>,
    refused: Vec<String>,
    untold: usize,
}

impl Egress {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            known: VecDeque::new(),
            connections: Arc::new(Places::new(MAX_CONNECTIONS)),
            lookups: Arc::new(Places::new(MAX_LOOKUPS)),
            waker: None,
            refused: Vec::new(),
            untold: 0,
        }
    }

    /// What wakes the guest's thread while it waits for sockets, made when it is first needed.
    pub(crate) fn waker(&mut self) -> io::Result<&Arc<Waker>> {
        if self.waker.is_none() {
            self.waker = Some(Arc::new(Waker::new()?));
        }
        self.waker.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A socket that is not connected. `None` if there are too many.
    pub(crate) fn socket(&self, family: Family) -> io::Result<Option<Connection>> {
        let places = Places::take(&self.connections, &CONNECTIONS);
        places.map(|place| Connection::new(family, place)).transpose()
    }

    /// What a name is, if it may be looked up.
    pub(crate) fn sought(&mut self, name: &str) -> Result<Sought, Refusal> {
        let sought = self.rules.lookup(name);
        if let Err(refusal) = &sought {
            let shown: String = name.chars().take(MAX_TEXT).collect();
            self.note(format_args!("the look-up of {}", shown.escape_debug()), *refusal);
        }
        sought
    }

    /// Begins to look up a name. `None` if too many look-ups are under way.
    pub(crate) fn look_up(&mut self, target: &Target) -> io::Result<Option<Arc<Lookup>>> {
        let waker = Arc::clone(self.waker()?);
        let place = Places::take(&self.lookups, &LOOKUPS);
        place.map(|place| Lookup::begin(target.name.clone(), waker, place)).transpose()
    }

    /// Of the addresses that a name resolved to, those that it may lead to, which are remembered.
    pub(crate) fn found(&mut self, target: &Arc<Target>, addresses: &[IpAddr]) -> VecDeque<IpAddr> {
        let mut allowed = VecDeque::new();
        for address in addresses {
            match target.leads_to(*address) {
                Ok(_) => {
                    allowed.push_back(*address);
                    self.remember(Known { address: *address, target: Arc::clone(target) });
                }
                Err(refusal) => self.note(format_args!("{} at {address}", target.name), refusal),
            }
        }
        allowed
    }

    fn remember(&mut self, known: Known) {
        self.known.retain(|other| *other != known);
        if self.known.len() >= MAX_KNOWN {
            self.known.pop_front();
        }
        self.known.push_back(known);
    }

    /// Whether the guest may connect there.
    pub(crate) fn allows(&mut self, to: SocketAddr) -> Result<Allowed, Refusal> {
        let verdict = self.rules.connect(&self.known, to);
        if let Err(refusal) = &verdict {
            self.note(format_args!("the connection to {to}"), *refusal);
        }
        verdict
    }

    /// Notes what was refused, each once and a few at all.
    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>, why: impl fmt::Display) {
        let text: String = format!("{what}: {why}").chars().take(MAX_TEXT).collect();
        if self.refused.contains(&text) {
            return;
        }
        if self.refused.len() < MAX_TOLD {
            self.refused.push(text);
        } else {
            self.untold += 1;
        }
    }

    /// What was refused, for whoever reads what the guest wrote to standard error.
    pub(crate) fn last_words(&self) -> String {
        let mut words: String = self.refused.iter().map(|text| format!("wasm network: refused {text}\n")).collect();
        if self.untold > 0 {
            words += &format!("wasm network: refused {} more\n", self.untold);
        }
        words
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
    fn what_is_kept_is_bounded() {
        let mut egress = egress("*.example");
        for number in 0..2000u32 {
            let Ok(Sought::Name(target)) = egress.sought(&format!("a{number}.example")) else { panic!() };
            let public = IpAddr::from((0x0800_0000 + number).to_be_bytes());
            assert_eq!(egress.found(&target, &[public, [127, 0, 0, 1].into()]), [public]);
            assert!(egress.allows((public, 80).into()).is_ok());
            assert!(egress.sought(&format!("b{number}.{}", "x".repeat(5000))).is_err());
        }
        assert_eq!(egress.known.len(), MAX_KNOWN);
        assert!(egress.allows(([8, 0, 0, 1], 80).into()).is_err(), "the oldest is forgotten");
        let words = egress.last_words();
        assert!(words.lines().count() == MAX_TOLD + 1 && words.len() < 2 * MAX_TOLD * MAX_TEXT, "{words}");
    }

    #[test]
    fn an_exec_has_a_bounded_number_of_lookups() {
        let mut egress = egress("localhost");
        let Ok(Sought::Name(target)) = egress.sought("localhost") else { panic!() };
        let held: Vec<_> = (0..MAX_LOOKUPS).map(|_| Places::take(&egress.lookups, &LOOKUPS).unwrap()).collect();
        assert!(egress.look_up(&target).unwrap().is_none());
        drop(held);
        let lookup = egress.look_up(&target).unwrap().unwrap();
        while !lookup.is_ready() {
            await_any(egress.waker().unwrap(), &[], lookup.until());
        }
        assert!(lookup.answer().unwrap().iter().all(IpAddr::is_loopback));
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
