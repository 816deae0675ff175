//! The rules of a network policy for lookups and connections. This module does no IO.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use cofferdam_contract::{Error, NetworkPolicy, Result};

use crate::addresses::is_public;

/// The maximum number of hosts of one policy.
const MAX_HOSTS: usize = 1024;
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Hosts that usual package managers need, by the name of the preset. A policy names a preset as `@NAME`.
pub const PRESETS: [(&str, &[&str]); 5] = [
    ("python-packages", &["pypi.org:443", "files.pythonhosted.org:443"]),
    ("node-packages", &["registry.npmjs.org:443", "registry.yarnpkg.com:443"]),
    ("rust-packages", &["index.crates.io:443", "static.crates.io:443", "crates.io:443"]),
    (
        "debian-packages",
        &["deb.debian.org:80", "deb.debian.org:443", "security.debian.org:80", "security.debian.org:443"],
    ),
    (
        "git-hosts",
        &[
            "github.com:22",
            "github.com:443",
            "codeload.github.com:443",
            "objects.githubusercontent.com:443",
            "raw.githubusercontent.com:443",
            "gitlab.com:22",
            "gitlab.com:443",
            "bitbucket.org:22",
            "bitbucket.org:443",
        ],
    ),
];

/// The hosts of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    host: Host,
    /// The allowed port. `None` allows every port.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Name(String),
    /// Every name below this one, but not the name itself.
    Below(String),
    Address(IpAddr),
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
    /// The policy lists `localhost`.
    Localhost,
    /// A name resolved to this address. The address must not be one of this host's own.
    Elsewhere,
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
    /// An allowed name resolves to the address, which is not public.
    NotPublic,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidName => "it is not a valid host name",
            Self::NotListed => "the policy does not list it",
            Self::NotLookedUp => "no name in the policy resolved to it",
            Self::OtherPort => "the policy does not allow this port",
            Self::NotPublic => "a name in the policy resolves to it, but the address is not public",
        })
    }
}

impl Rules {
    /// Reads a policy. Returns `None` if it allows no network.
    pub fn of(policy: &NetworkPolicy) -> Result<Option<Self>> {
        match policy {
            NetworkPolicy::None => Ok(None),
            NetworkPolicy::Allow { hosts } if hosts.len() > MAX_HOSTS => {
                Err(Error::invalid("create", format!("a network policy can have at most {MAX_HOSTS} hosts")))
            }
            NetworkPolicy::Allow { hosts } => {
                let mut rules = Vec::new();
                for host in hosts {
                    match host.strip_prefix('@') {
                        Some(name) => {
                            for host in preset(name)? {
                                rules.push(rule(host)?);
                            }
                        }
                        None => rules.push(rule(host)?),
                    }
                }
                Ok(Some(Self(rules)))
            }
            _ => Err(Error::unsupported("create", "this network policy is not supported")),
        }
    }

    /// Returns the ports of all hosts. Returns `None` if a host has no port, which allows every port.
    pub fn ports(&self) -> Option<BTreeSet<u16>> {
        self.0.iter().map(|rule| rule.port).collect()
    }

    /// Returns the hosts that are addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.0.iter().filter_map(|rule| match rule.host {
            Host::Address(address) => Some(address),
            _ => None,
        })
    }

    /// Checks that a guest may look up this name.
    pub fn lookup(&self, text: &str) -> std::result::Result<Query, Refusal> {
        if let Ok(address) = text.parse() {
            let listed = self.0.iter().any(|rule| rule.host == Host::Address(address));
            return if listed { Ok(Query::Address(address)) } else { Err(Refusal::NotListed) };
        }
        let name = name(text).ok_or(Refusal::InvalidName)?;
        let mut ports = Some(BTreeSet::new());
        let mut listed = false;
        for rule in self.0.iter().filter(|rule| rule.host.has(&name)) {
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
        for rule in self.0.iter().filter(|rule| rule.host == Host::Address(to.ip())) {
            if rule.port.is_none_or(|port| port == to.port()) {
                return Ok(Allowed::Listed);
            }
            refusal = Refusal::OtherPort;
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

impl Host {
    fn has(&self, name: &str) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Below(domain) => name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.')),
            Self::Address(_) => false,
        }
    }
}

/// Returns the hosts of a preset.
fn preset(name: &str) -> Result<&'static [&'static str]> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, hosts)| *hosts).ok_or_else(|| {
        let known: Vec<String> = PRESETS.iter().map(|(name, _)| format!("@{name}")).collect();
        let shown: String = name.chars().take(MAX_NAME).collect();
        Error::invalid("create", "there is no such preset of network hosts")
            .with_context("preset", shown.escape_debug().to_string())
            .with_remedy(format!("use {}", known.join(", ")))
    })
}

/// Reads a host of a policy.
fn rule(text: &str) -> Result<Rule> {
    let invalid = |what: &str, remedy: &str| {
        let shown: String = text.chars().take(MAX_NAME).collect();
        let error = Error::invalid("create", format!("a host of the network policy {what}"));
        Err(error.with_context("host", shown.escape_debug().to_string()).with_remedy(remedy))
    };
    const SYNTAX: &str = "use NAME, *.DOMAIN or ADDRESS (IPv6 in brackets), each with an optional :PORT";
    let Some((host, port)) = split(text) else { return invalid("has an invalid port, not 1 to 65535", SYNTAX) };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bare.unwrap_or(host).parse::<IpAddr>() {
        Ok(address) if bare.is_some() && address.is_ipv4() => {
            return invalid("is neither a name nor an address", SYNTAX);
        }
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            return invalid("is an IPv4-mapped IPv6 address", "write it as an IPv4 address");
        }
        Ok(address) if is_not_single_host(address) => return invalid("is not the address of a single host", SYNTAX),
        Ok(address) => Host::Address(address),
        Err(_) => match (name(host.strip_prefix("*.").unwrap_or(host)), host.starts_with("*.")) {
            (Some(domain), true) => Host::Below(domain),
            (Some(name), false) => Host::Name(name),
            (None, _) if !host.is_ascii() => {
                return invalid("is not ASCII", "use the ASCII form, with xn-- labels");
            }
            (None, _) => return invalid("is neither a name nor an address", SYNTAX),
        },
    };
    Ok(Rule { host, port })
}

/// Returns true for unspecified, multicast and broadcast addresses.
pub fn is_not_single_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    address.is_unspecified() || address.is_multicast() || broadcast
}

/// Splits a host and port; `None` if the port is invalid.
fn split(text: &str) -> Option<(&str, Option<u16>)> {
    let end = text.rfind(']').map_or(0, |end| end + 1);
    // An IPv6 address without brackets has no port.
    let unbracketed = end == 0 && text.matches(':').count() > 1;
    match text[end..].rfind(':').filter(|_| !unbracketed) {
        None => Some((text, None)),
        Some(colon) => {
            let (host, port) = (&text[..end + colon], &text[end + colon + 1..]);
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            port.parse().ok().filter(|port| digits && *port != 0).map(|port| (host, Some(port)))
        }
    }
}

/// Returns a valid host name in lower case, without a trailing dot. Numbers that resolvers parse as addresses are
/// invalid.
fn name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let of_letters = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        (1..=MAX_LABEL).contains(&label.len()) && of_letters
    };
    let last = text.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    (text.len() <= MAX_NAME && text.split('.').all(is_label) && !is_number).then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::ErrorKind;
    use proptest::prelude::*;

    use super::*;

    fn read(hosts: &[&str]) -> Result<Rules> {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Rules::of(&NetworkPolicy::Allow { hosts }).map(|rules| rules.expect("rules"))
    }

    /// Looks up a name that resolves to these addresses, then connects to one of these.
    fn verdict(hosts: &[&str], name: &str, resolved: &[&str], to: &str) -> std::result::Result<Allowed, Refusal> {
        let rules = read(hosts).unwrap();
        let known: Vec<ResolvedAddress> = match rules.lookup(name) {
            Ok(Query::Name(target)) => {
                let known =
                    |text: &&str| ResolvedAddress { address: text.parse().unwrap(), target: Arc::clone(&target) };
                resolved.iter().map(known).collect()
            }
            Ok(Query::Address(_)) => Vec::new(),
            Err(refusal) => return Err(refusal),
        };
        rules.connect(&known, to.parse().unwrap())
    }

    #[test]
    fn verdicts() {
        use Allowed::{Elsewhere, Listed, Localhost};
        use Refusal::{InvalidName, NotListed, NotLookedUp, NotPublic, OtherPort};
        for (hosts, name, resolved, to, expected) in [
            (&["a.example"][..], "a.example", &["8.8.8.8"][..], "8.8.8.8:443", Ok(Elsewhere)),
            (&["a.example"], "A.Example.", &["8.8.8.8"], "8.8.8.8:1", Ok(Elsewhere)),
            (&["A.EXAMPLE."], "a.example", &["8.8.8.8"], "8.8.8.8:1", Ok(Elsewhere)),
            (&["a.example:443"], "a.example", &["8.8.8.8"], "8.8.8.8:443", Ok(Elsewhere)),
            (&["a.example:443"], "a.example", &["8.8.8.8"], "8.8.8.8:80", Err(OtherPort)),
            (&["a.example:443", "a.example:80"], "a.example", &["8.8.8.8"], "8.8.8.8:80", Ok(Elsewhere)),
            (&["a.example:443", "a.example"], "a.example", &["8.8.8.8"], "8.8.8.8:80", Ok(Elsewhere)),
            (&["a.example", "a.example:443"], "a.example", &["8.8.8.8"], "8.8.8.8:80", Ok(Elsewhere)),
            (&["*.example:1", "a.example:2"], "a.example", &["8.8.8.8"], "8.8.8.8:2", Ok(Elsewhere)),
            (&["a.example"], "a.example", &["8.8.8.8"], "8.8.4.4:443", Err(NotLookedUp)),
            (&["a.example"], "a.example", &["2606:4700::1"], "[2606:4700::1]:443", Ok(Elsewhere)),
            (&["a.example"], "b.example", &[], "8.8.8.8:1", Err(NotListed)),
            (&["a.example"], "a.example.b", &[], "8.8.8.8:1", Err(NotListed)),
            (&["a.example"], "b.a.example", &[], "8.8.8.8:1", Err(NotListed)),
            (&["a.example"], "a.example..", &[], "8.8.8.8:1", Err(InvalidName)),
            (&["a.example"], "a.example\0", &[], "8.8.8.8:1", Err(InvalidName)),
            (&["a.example"], "", &[], "8.8.8.8:1", Err(InvalidName)),
            (&["*.example"], "b.a.example", &["8.8.8.8"], "8.8.8.8:1", Ok(Elsewhere)),
            (&["*.example"], "example", &[], "8.8.8.8:1", Err(NotListed)),
            (&["*.a.example"], "ba.example", &[], "8.8.8.8:1", Err(NotListed)),
            (&["*.example"], ".example", &[], "8.8.8.8:1", Err(InvalidName)),
            (&["*.a.example"], "*.a.example", &[], "8.8.8.8:1", Err(InvalidName)),
            // Names that resolve to addresses which are not allowed.
            (&["a.example"], "a.example", &["127.0.0.1"], "127.0.0.1:80", Err(NotPublic)),
            (&["a.example"], "a.example", &["169.254.169.254"], "169.254.169.254:80", Err(NotPublic)),
            (&["a.example"], "a.example", &["10.1.2.3"], "10.1.2.3:80", Err(NotPublic)),
            (&["a.example"], "a.example", &["::1"], "[::1]:80", Err(NotPublic)),
            (&["a.example"], "a.example", &["64:ff9b::7f00:1"], "[64:ff9b::7f00:1]:80", Err(NotPublic)),
            (&["a.example"], "a.example", &["::ffff:127.0.0.1"], "[::ffff:127.0.0.1]:80", Err(NotPublic)),
            (&["a.example", "127.0.0.1:80"], "a.example", &["127.0.0.1"], "127.0.0.1:81", Err(NotPublic)),
            (&["a.example", "10.1.2.3"], "a.example", &["10.1.2.3"], "10.1.2.3:80", Ok(Listed)),
            (&["*.localhost"], "a.localhost", &["127.0.0.1"], "127.0.0.1:80", Err(NotPublic)),
            (&["localhost"], "localhost", &["127.0.0.1", "::1"], "[::1]:80", Ok(Localhost)),
            (&["localhost:80"], "localhost", &["127.0.0.1"], "127.0.0.1:80", Ok(Localhost)),
            (&["localhost:80"], "localhost", &["127.0.0.1"], "127.0.0.1:81", Err(OtherPort)),
            (&["localhost"], "localhost", &["127.0.0.1"], "127.0.0.2:80", Err(NotLookedUp)),
            (&["localhost"], "localhost", &["8.8.8.8"], "8.8.8.8:80", Err(NotPublic)),
            // Listed addresses.
            (&["127.0.0.1:80"], "127.0.0.1", &[], "127.0.0.1:80", Ok(Listed)),
            (&["127.0.0.1:80"], "127.0.0.1", &[], "127.0.0.1:81", Err(OtherPort)),
            (&["127.0.0.1:80", "127.0.0.1:81"], "127.0.0.1", &[], "127.0.0.1:81", Ok(Listed)),
            (&["127.0.0.1"], "127.0.0.1", &[], "[::ffff:127.0.0.1]:80", Err(NotLookedUp)),
            (&["127.0.0.1"], "127.0.0.1", &[], "[::127.0.0.1]:80", Err(NotLookedUp)),
            (&["127.0.0.1"], "::ffff:127.0.0.1", &[], "127.0.0.1:80", Err(NotListed)),
            (&["127.0.0.1"], "127.0.0.2", &[], "127.0.0.1:80", Err(NotListed)),
            (&["127.0.0.1"], "2130706433", &[], "127.0.0.1:80", Err(InvalidName)),
            (&["127.0.0.1"], "0x7f.1", &[], "127.0.0.1:80", Err(InvalidName)),
            (&["127.0.0.1"], "0x7f000001", &[], "127.0.0.1:80", Err(InvalidName)),
            (&["[::1]:80"], "::1", &[], "[::1]:80", Ok(Listed)),
            (&["[::1]"], "::1", &[], "[::1]:9", Ok(Listed)),
            (&["fd00::1"], "fd00:0::1", &[], "[fd00::1]:9", Ok(Listed)),
            (&["[64:ff9b::7f00:1]"], "64:ff9b::127.0.0.1", &[], "[64:ff9b::7f00:1]:9", Ok(Listed)),
        ] {
            assert_eq!(verdict(hosts, name, resolved, to), expected, "{hosts:?} {name} {resolved:?} {to}");
        }
        assert_eq!(verdict(&[], "localhost", &[], "127.0.0.1:80"), Err(NotListed));
        assert_eq!(Rules::of(&NetworkPolicy::None).unwrap(), None);
    }

    #[test]
    fn hosts_that_are_none_are_refused() {
        let long = "a".repeat(64);
        for text in [
            "",
            ".",
            "*",
            "*.",
            "*a.example",
            "a.*.example",
            "*.*.example",
            "a..example",
            ".example",
            "a b",
            "a/b",
            "a:0",
            "a:",
            "a:65536",
            "a:+80",
            "a:x",
            "a:80:80",
            ":80",
            "http://a",
            "a@b",
            "127.1",
            "1",
            "0x7f.1",
            "a.1",
            "*.1",
            "127.0.0.1:",
            "127.0.0.256",
            "[127.0.0.1]",
            "[::1",
            "::1]",
            "[::1]:0",
            "[::1]x",
            "[a]",
            "fe80::1%1",
            "[]:80",
            "::ffff:127.0.0.1",
            "[::ffff:8.8.8.8]:80",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "ü.example",
            "a\0",
            long.as_str(),
        ] {
            let error = read(&[text]).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        }
        assert!(read(&["a"; MAX_HOSTS]).is_ok() && read(&["a"; MAX_HOSTS + 1]).is_err());
        for text in ["a", "a_b.c-d", "xn--tda.example", "*.com", "1.a", "10.0.0.1:65535", "fe80::1", "[fe80::1]:1"] {
            assert!(read(&[text]).is_ok(), "{text}");
        }
    }

    /// Promise (Network): A preset allows the hosts of a package manager and no others.
    #[test]
    fn presets_allow_their_hosts() {
        let rules = read(&["@python-packages", "a.example:1"]).unwrap();
        for (name, allowed) in
            [("pypi.org", true), ("files.pythonhosted.org", true), ("a.example", true), ("x.pypi.org", false)]
        {
            assert_eq!(rules.lookup(name).is_ok(), allowed, "{name}");
        }
        assert_eq!(rules.ports(), Some([1, 443].into()));
        for (name, _) in PRESETS {
            assert!(read(&[&format!("@{name}")]).unwrap().ports().is_some(), "{name}");
        }
        assert!(read(&["@other"]).unwrap_err().remedy().unwrap().contains("@git-hosts"));
    }

    proptest! {
        #[test]
        fn nothing_panics(host in ".{0,40}", asked in ".{0,40}") {
            let _ = read(&[&host]);
            let _ = read(&["a.example", "*.b"]).unwrap().lookup(&asked);
        }

        /// Promise (Network): A guest can look up listed names only.
        #[test]
        fn only_what_is_listed_is_looked_up(asked in "[a-c.*A-C]{0,12}") {
            let rules = read(&["a.b", "*.b.c"]).unwrap();
            if rules.lookup(&asked).is_ok() {
                let name = asked.to_ascii_lowercase();
                let name = name.strip_suffix('.').unwrap_or(&name);
                prop_assert!(name == "a.b" || name.ends_with(".b.c") && name.len() > 4, "{}", asked);
            }
        }

        /// Promise (Network): A listed name leads to public addresses only.
        #[test]
        fn a_name_leads_nowhere_but_to_public_addresses(bits in any::<u128>(), port in 1u16..) {
            for address in [IpAddr::V6(bits.into()), IpAddr::V4((bits as u32).into())] {
                let rules = read(&["a.b", "127.0.0.1:80"]).unwrap();
                let Ok(Query::Name(target)) = rules.lookup("a.b") else { panic!() };
                let known = ResolvedAddress { address, target };
                let to = SocketAddr::new(address, port);
                prop_assert_eq!(rules.connect([&known], to).is_ok(), is_public(address));
                prop_assert!(rules.connect([], to).is_err());
            }
        }

        /// Promise (Network): A rule for a port allows no other port.
        #[test]
        fn a_port_rule_holds(rule in 1u16.., port in 1u16..) {
            let rules = read(&[&format!("a.b:{rule}"), &format!("9.9.9.9:{rule}")]).unwrap();
            let Ok(Query::Name(target)) = rules.lookup("a.b") else { panic!() };
            let known = ResolvedAddress { address: [8, 8, 8, 8].into(), target };
            for address in [[8, 8, 8, 8], [9, 9, 9, 9]] {
                prop_assert_eq!(rules.connect([&known], (address, port).into()).is_ok(), rule == port);
            }
        }
    }
}
