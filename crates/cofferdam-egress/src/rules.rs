//! The rules of a network policy for lookups, connections and requests. This module does no IO.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use cofferdam_contract::{Error, NetworkPolicy, NetworkProtocol, NetworkRule, Result};

use crate::addresses::{is_metadata, is_public};
use crate::budget::Budget;
use crate::host::{self, Host, HostAndPort};

/// The maximum number of hosts of one policy, and of methods and paths of one rule.
const MAX_HOSTS: usize = 1024;
const MAX_LISTED: usize = 64;
/// The maximum length of a prefix of paths.
const MAX_PATH: usize = 1024;
/// The maximum length of methods and paths in the text of a rule.
const MAX_TEXT: usize = 100;
/// The ports that are served while a policy is learned.
pub const LEARNED_PORTS: [u16; 14] = [21, 22, 80, 443, 1433, 3306, 5000, 5432, 6379, 8000, 8080, 8443, 9418, 27017];

/// The rules of a policy.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    rules: Vec<Arc<Rule>>,
    /// True if everything is refused, and names are looked up only to learn what a guest wants.
    learns: bool,
}

/// A rule of a policy.
#[derive(Debug)]
pub struct Rule {
    /// The host and port as the policy has them, and the methods and paths, such as `a.example:443 GET /simple/`. The end
    /// of long lists is left out.
    pub text: String,
    host: Host,
    /// The allowed port. `None` allows every port.
    port: Option<u16>,
    protocol: NetworkProtocol,
    methods: Vec<String>,
    paths: Vec<String>,
    pub(crate) budget: Budget,
}

/// A name that may be looked up, with the allowed ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The name in lower case, without a dot at its end.
    pub name: String,
    /// `None` allows every port.
    ports: Option<BTreeSet<u16>>,
}

/// A lookup that the policy allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// An IP address literal.
    Address(IpAddr),
    /// A host name.
    Name(Arc<Target>),
}

/// An address that a name resolved to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address.
    pub address: IpAddr,
    /// The name.
    pub target: Arc<Target>,
}

/// The reason for which a connection is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// The policy lists this address.
    Listed,
    /// The policy lists a range with this address. The address must not be one of this host's own.
    InRange,
    /// The policy lists `localhost`.
    Localhost,
    /// A name resolved to this address. The address must not be one of this host's own.
    Elsewhere,
}

/// The server of a connection, as the guest named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server<'a> {
    /// A name in lower case, without a dot at its end.
    Name(&'a str),
    /// An address.
    Address(IpAddr),
}

/// The content of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Bytes of any protocol without checks.
    Any,
    /// TLS that passes through.
    Tls,
    /// A request of HTTP.
    Request {
        /// True over TLS.
        secure: bool,
        /// The method.
        method: String,
        /// The path, without the query.
        path: String,
    },
}

/// The reason for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The text is not a host name.
    InvalidName,
    /// No rule has the name or address.
    NotListed,
    /// No allowed name resolved to the address.
    NotLookedUp,
    /// The rules have other ports of the name or address.
    OtherPort,
    /// The rules have other protocols.
    OtherProtocol,
    /// The rules have other methods.
    OtherMethod,
    /// The rules have other paths.
    OtherPath,
    /// The path has segments that servers resolve, or characters that they read differently.
    AmbiguousPath,
    /// The requests or bytes that the rule allows are used up.
    UsedUp,
    /// The requests of this minute are used up.
    TooFast,
    /// The address is not public, and no rule names it: a name resolves to it, or it is one that ranges do not include.
    NotPublic,
    /// The policy is being learned, and refuses everything.
    Learning,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidName => "it is not a valid host name",
            Self::NotListed => "the policy does not list it",
            Self::NotLookedUp => "no name in the policy resolved to it",
            Self::OtherPort => "the policy does not allow this port",
            Self::OtherProtocol => "the policy does not allow this protocol",
            Self::OtherMethod => "the policy does not allow this method",
            Self::OtherPath => "the policy does not allow this path",
            Self::AmbiguousPath => "servers may read this path as another one",
            Self::UsedUp => "the budget of its rule is used up",
            Self::TooFast => "its rule allows fewer requests a minute",
            Self::NotPublic => "the address is not public, and no rule names it",
            Self::Learning => "the policy is being learned",
        })
    }
}

impl Rules {
    /// Reads a policy. Returns `None` if it allows no network.
    pub fn of(policy: &NetworkPolicy) -> Result<Option<Self>> {
        let plain = |host: &String| NetworkRule { host: host.clone(), ..NetworkRule::default() };
        let rules = match policy {
            NetworkPolicy::None => return Ok(None),
            NetworkPolicy::Allow { hosts } => hosts.iter().map(plain).collect(),
            NetworkPolicy::Rules(rules) => rules.allow.clone(),
            NetworkPolicy::Learn { allow } => return Ok(Some(Self::learning(*allow))),
            _ => return Err(Error::unsupported("create", "this network policy is not supported")),
        };
        if rules.len() > MAX_HOSTS {
            return Err(Error::invalid("create", format!("a network policy can have at most {MAX_HOSTS} hosts")));
        }
        let mut read = Vec::new();
        for rule in rules {
            match rule.host.strip_prefix('@') {
                Some(name) => {
                    for host in host::preset(name)? {
                        read.push(Arc::new(Rule::read(&NetworkRule { host: (*host).to_owned(), ..rule.clone() })?));
                    }
                }
                None => read.push(Arc::new(Rule::read(&rule)?)),
            }
        }
        Ok(Some(Self { rules: read, learns: false }))
    }

    /// Returns rules that have every name with usual ports, for learning a policy.
    fn learning(allow: bool) -> Self {
        let rule = |port: u16| {
            let rule = NetworkRule { host: format!("*:{port}"), ..NetworkRule::default() };
            Arc::new(Rule::new(&rule, (Host::Every, Some(port))))
        };
        Self { rules: LEARNED_PORTS.into_iter().map(rule).collect(), learns: !allow }
    }

    /// Takes over the budgets of earlier rules, as far as the rules are the same.
    pub fn with_budgets_of(mut self, earlier: &Self) -> Self {
        for rule in &mut self.rules {
            if let Some(same) = earlier.rules.iter().find(|same| same.is_same(rule)) {
                *rule = Arc::clone(same);
            }
        }
        self
    }

    /// Returns true if a rule is about more than host and port. Only the gateway applies such rules.
    pub fn is_detailed(&self) -> bool {
        self.rules.iter().any(|rule| rule.is_detailed())
    }

    /// Returns the ports of all hosts. Returns `None` if a host has no port, which allows every port.
    pub fn ports(&self) -> Option<BTreeSet<u16>> {
        self.rules.iter().map(|rule| rule.port).collect()
    }

    /// Returns the addresses and ranges of hosts, each with the length of its prefix.
    pub fn addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.rules.iter().filter_map(|rule| match rule.host {
            Host::Range(address, bits) => Some((address, bits)),
            _ => None,
        })
    }

    /// Checks that a guest may look up this name.
    pub fn lookup(&self, text: &str) -> std::result::Result<Query, Refusal> {
        if let Ok(address) = text.parse() {
            let listed = self.rules.iter().any(|rule| rule.host.has_address(address));
            return if listed { Ok(Query::Address(address)) } else { Err(Refusal::NotListed) };
        }
        let name = host::name(text).ok_or(Refusal::InvalidName)?;
        let mut ports = Some(BTreeSet::new());
        let mut listed = false;
        for rule in self.rules.iter().filter(|rule| rule.host.has(&name)) {
            listed = true;
            match (rule.port, &mut ports) {
                (Some(port), Some(ports)) => drop(ports.insert(port)),
                _ => ports = None,
            }
        }
        if listed { Ok(Query::Name(Arc::new(Target { name, ports }))) } else { Err(Refusal::NotListed) }
    }

    /// Checks that a guest may connect to this address, if its lookups resolved to `known`.
    pub fn connect<'a>(
        &self,
        known: impl IntoIterator<Item = &'a ResolvedAddress>,
        to: SocketAddr,
    ) -> std::result::Result<Allowed, Refusal> {
        let mut refusal = Refusal::NotLookedUp;
        let mut in_range = false;
        for rule in self.rules.iter().filter(|rule| rule.host.has_address(to.ip())) {
            match (rule.has_port(to.port()), rule.host.is_single()) {
                (true, true) => return Ok(Allowed::Listed),
                (true, false) => in_range = true,
                (false, _) => refusal = Refusal::OtherPort,
            }
        }
        // Services of clouds that trust any client are not meant by a range.
        match (in_range, is_metadata(to.ip())) {
            (true, false) => return Ok(Allowed::InRange),
            (true, true) => refusal = Refusal::NotPublic,
            (false, _) => {}
        }
        for ResolvedAddress { target, .. } in known.into_iter().filter(|known| known.address == to.ip()) {
            match target.leads_to(to.ip()) {
                Ok(allowed) if target.has_port(to.port()) => return Ok(allowed),
                Ok(_) => refusal = Refusal::OtherPort,
                Err(other) => refusal = other,
            }
        }
        Err(refusal)
    }

    /// Returns the rule that allows this content of a connection. The refusal is that of the rule that comes closest.
    pub fn decide(&self, server: Server<'_>, port: u16, content: &Content) -> std::result::Result<Arc<Rule>, Refusal> {
        let mut refusal = Refusal::NotListed;
        for rule in &self.rules {
            match rule.allows(server, port, content) {
                Ok(()) if self.learns => return Err(Refusal::Learning),
                Ok(()) => return Ok(Arc::clone(rule)),
                Err(other) if closeness(other) >= closeness(refusal) => refusal = other,
                Err(_) => {}
            }
        }
        Err(refusal)
    }

    /// Returns true if nothing is allowed, and connections show only what a guest wants.
    pub fn is_learning(&self) -> bool {
        self.learns
    }

    /// Returns true if a rule needs TLS to be intercepted.
    pub fn intercepts(&self) -> bool {
        let https = |rule: &Arc<Rule>| match rule.protocol {
            NetworkProtocol::Https => true,
            NetworkProtocol::Any => rule.is_request(),
            _ => false,
        };
        self.rules.iter().any(https)
    }

    /// Returns true if a rule may allow requests to a host, which is in the syntax of a policy.
    pub fn may_request(&self, host: &str) -> bool {
        let Ok((host, port)) = host::read(host) else { return false };
        let is_match = |rule: &Arc<Rule>| {
            let same = match &host {
                Host::Name(name) => rule.host.has(name),
                other => rule.host == *other,
            };
            same && rule.protocol != NetworkProtocol::Tls
                && (rule.port.is_none() || port.is_none() || rule.port == port)
        };
        self.rules.iter().any(is_match)
    }

    /// Returns true if requests over TLS to this server are seen only where the gateway intercepts them: rules allow
    /// some of them, and none allows TLS that passes through.
    pub fn needs_interception(&self, server: Server<'_>, port: u16) -> bool {
        let tls = self.decide(server, port, &Content::Tls);
        tls == Err(Refusal::OtherProtocol) && self.rules.iter().any(|rule| rule.is_intercepted(server, port))
    }
}

/// Orders refusals by how far a rule matched.
fn closeness(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::NotListed | Refusal::InvalidName | Refusal::NotLookedUp => 0,
        Refusal::OtherPort => 1,
        Refusal::OtherProtocol => 2,
        Refusal::OtherMethod => 3,
        Refusal::OtherPath => 4,
        _ => 5,
    }
}

impl Rule {
    fn read(rule: &NetworkRule) -> Result<Self> {
        let host = host::read(&rule.host)?;
        let invalid = |what: String| Err(Error::invalid("create", what).with_context("host", rule.host.clone()));
        let NetworkRule { protocol, methods, paths, .. } = rule;
        let is_request = !methods.is_empty() || !paths.is_empty();
        if is_request && *protocol == NetworkProtocol::Tls {
            return invalid("a rule for TLS that passes through cannot have methods or paths".to_owned());
        }
        if (is_request || *protocol != NetworkProtocol::Any) && matches!(host.0, Host::Range(..)) {
            return invalid("a rule with a protocol, methods or paths needs a host name, not an address".to_owned());
        }
        if methods.len() > MAX_LISTED || paths.len() > MAX_LISTED {
            return invalid(format!("a rule has at most {MAX_LISTED} methods and {MAX_LISTED} paths"));
        }
        let is_method = |text: &String| {
            (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
        };
        if let Some(method) = methods.iter().find(|method| !is_method(method)) {
            return invalid(format!("'{}' is not a method of HTTP in capital letters", method.escape_debug()));
        }
        let is_path = |text: &String| text.len() <= MAX_PATH && text.starts_with('/') && path(text).is_some();
        if let Some(path) = paths.iter().find(|path| !is_path(path)) {
            return invalid(format!("'{}' is not a path that starts with / and has no query", path.escape_debug()));
        }
        Budget::check(rule)?;
        Ok(Self::new(rule, host))
    }

    fn new(rule: &NetworkRule, (host, port): HostAndPort) -> Self {
        Self {
            text: text(rule),
            host,
            port,
            protocol: rule.protocol,
            methods: rule.methods.clone(),
            paths: rule.paths.clone(),
            budget: Budget::new(rule),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let key = |rule: &Self| (rule.host.clone(), rule.port, rule.protocol, rule.methods.clone(), rule.paths.clone());
        key(self) == key(other) && self.budget.has_limits_of(&other.budget)
    }

    fn is_detailed(&self) -> bool {
        self.is_request()
            || self.protocol != NetworkProtocol::Any
            || self.budget.is_limited()
            || self.host == Host::Every
    }

    fn is_request(&self) -> bool {
        !self.methods.is_empty() || !self.paths.is_empty()
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }

    fn has(&self, server: Server<'_>) -> bool {
        match server {
            Server::Name(name) => self.host.has(name),
            Server::Address(address) => self.host.has_address(address),
        }
    }

    /// Returns true if the rule allows requests over TLS, and no TLS that passes through.
    fn is_intercepted(&self, server: Server<'_>, port: u16) -> bool {
        let https = match self.protocol {
            NetworkProtocol::Https => true,
            NetworkProtocol::Any => self.is_request(),
            _ => false,
        };
        https && self.has(server) && self.has_port(port)
    }

    fn allows(&self, server: Server<'_>, port: u16, content: &Content) -> std::result::Result<(), Refusal> {
        if !self.has(server) {
            return Err(Refusal::NotListed);
        }
        if !self.has_port(port) {
            return Err(Refusal::OtherPort);
        }
        let protocols: &[NetworkProtocol] = match content {
            Content::Any if self.is_request() => &[],
            Content::Any => &[NetworkProtocol::Any],
            Content::Tls if self.is_request() => &[],
            Content::Tls => &[NetworkProtocol::Any, NetworkProtocol::Tls],
            Content::Request { secure: true, .. } => &[NetworkProtocol::Any, NetworkProtocol::Https],
            Content::Request { secure: false, .. } => &[NetworkProtocol::Any, NetworkProtocol::Http],
        };
        if !protocols.contains(&self.protocol) {
            return Err(Refusal::OtherProtocol);
        }
        let Content::Request { method, path: requested, .. } = content else { return Ok(()) };
        if !self.methods.is_empty() && !self.methods.contains(method) {
            return Err(Refusal::OtherMethod);
        }
        if self.paths.is_empty() {
            return Ok(());
        }
        let requested = path(requested).ok_or(Refusal::AmbiguousPath)?;
        match self.paths.iter().any(|prefix| is_below(&requested, prefix)) {
            true => Ok(()),
            false => Err(Refusal::OtherPath),
        }
    }
}

/// Returns the text of a rule, for records and explanations.
fn text(rule: &NetworkRule) -> String {
    let mut text = rule.host.clone();
    let max = text.len() + MAX_TEXT;
    for list in [&rule.methods, &rule.paths].into_iter().filter(|list| !list.is_empty()) {
        text.push(' ');
        text.push_str(&list.join(","));
    }
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
        text.push('…');
    }
    text
}

/// Returns a path without percent-encoding of plain characters, for comparison. Returns `None` for a path that servers
/// may read in different ways: segments of dots, empty segments, backslashes, encoded slashes, and invalid encoding.
fn path(text: &str) -> Option<String> {
    let mut plain = String::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let byte = digit(bytes.next()?)? * 16 + digit(bytes.next()?)?;
                u8::try_from(byte).ok().filter(|byte| !matches!(byte, b'/' | b'\\' | b'%' | b'?' | b'#' | b';'))?
            }
            other => other,
        };
        // Bytes of other characters keep their encoding: only ASCII is compared.
        match byte {
            0..=0x20 | 0x7f | b'\\' | b'?' | b'#' | b';' => return None,
            0x80.. => plain.push_str(&format!("%{byte:02X}")),
            _ => plain.push(char::from(byte)),
        }
    }
    let mut segments = plain.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if segment == "." || segment == ".." || (segment.is_empty() && !is_last) {
            return None;
        }
    }
    Some(plain)
}

/// Returns true if a path is a prefix itself, or below it.
fn is_below(requested: &str, prefix: &str) -> bool {
    let Some(prefix) = path(prefix) else { return false };
    let rest = requested.strip_prefix(prefix.as_str());
    rest.is_some_and(|rest| rest.is_empty() || prefix.ends_with('/') || rest.starts_with('/'))
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other)
    }
}

impl Target {
    /// Checks that the name may resolve to this address. `localhost` must resolve to this host, all others must not.
    pub fn leads_to(&self, address: IpAddr) -> std::result::Result<Allowed, Refusal> {
        match self.name.as_str() {
            "localhost" if address.is_loopback() => Ok(Allowed::Localhost),
            "localhost" => Err(Refusal::NotPublic),
            _ if is_public(address) => Ok(Allowed::Elsewhere),
            _ => Err(Refusal::NotPublic),
        }
    }

    /// Returns true if the policy allows this port of the name.
    pub fn has_port(&self, port: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
