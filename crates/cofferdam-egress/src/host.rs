//! Hosts of a policy: their syntax, and what they match.

use std::net::IpAddr;

use cofferdam_contract::{Error, Result};

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;
/// The shortest prefix of a range, for IPv4 and IPv6.
const MIN_PREFIX: (u8, u8) = (8, 32);

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

/// A host of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    Name(String),
    /// Every name below this one, but not the name itself.
    Below(String),
    /// Every address with this prefix of this length. A single address has the full length.
    Range(IpAddr, u8),
    /// Every name but `localhost`, while a policy is learned.
    Every,
}

/// A host with the port of its rule. `None` means every port.
pub type HostAndPort = (Host, Option<u16>);

impl Host {
    /// Returns true if the host matches a name.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Below(domain) => name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.')),
            Self::Range(..) => false,
            // In the sandbox it is the sandbox itself.
            Self::Every => name != "localhost",
        }
    }

    /// Returns true for a single address.
    pub fn is_single(&self) -> bool {
        matches!(self, Self::Range(address, bits) if *bits == length(*address))
    }

    /// Returns true if the host matches an address. An IPv4-mapped address is not its IPv4 address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        match (self, address) {
            (Self::Range(IpAddr::V4(first), bits), IpAddr::V4(address)) => {
                (first.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(*bits)
            }
            (Self::Range(IpAddr::V6(first), bits), IpAddr::V6(address)) => {
                (first.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(*bits)
            }
            _ => false,
        }
    }
}

/// Returns the hosts of a preset.
pub fn preset(name: &str) -> Result<&'static [&'static str]> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, hosts)| *hosts).ok_or_else(|| {
        let known: Vec<String> = PRESETS.iter().map(|(name, _)| format!("@{name}")).collect();
        let shown: String = name.chars().take(MAX_NAME).collect();
        Error::invalid("create", "there is no such preset of network hosts")
            .with_context("preset", shown.escape_debug().to_string())
            .with_remedy(format!("use {}", known.join(", ")))
    })
}

/// Reads a host of a policy.
pub fn read(text: &str) -> Result<HostAndPort> {
    let invalid = |what: &str, remedy: &str| {
        let shown: String = text.chars().take(MAX_NAME).collect();
        let error = Error::invalid("create", format!("a host of the network policy {what}"));
        Err(error.with_context("host", shown.escape_debug().to_string()).with_remedy(remedy))
    };
    const SYNTAX: &str =
        "use NAME, *.DOMAIN, ADDRESS or ADDRESS/PREFIX (IPv6 in brackets), each with an optional :PORT";
    let Some((host, port)) = split(text) else { return invalid("has an invalid port, not 1 to 65535", SYNTAX) };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let (address, bits) = match bare.unwrap_or(host).split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (bare.unwrap_or(host), None),
    };
    let host = match (address.parse::<IpAddr>(), bits) {
        (Ok(address), _) if bare.is_some() && address.is_ipv4() => {
            return invalid("is neither a name nor an address", SYNTAX);
        }
        (Ok(IpAddr::V6(address)), _) if address.to_ipv4_mapped().is_some() => {
            return invalid("is an IPv4-mapped IPv6 address", "write it as an IPv4 address");
        }
        (Ok(address), Some(bits)) => match range(address, bits) {
            Some(range) => range,
            None => {
                return invalid(
                    "is not a range",
                    "use an address whose bits after the prefix are 0, such as 10.0.0.0/8",
                );
            }
        },
        (Ok(address), None) if is_not_single_host(address) => {
            return invalid("is not the address of a single host", SYNTAX);
        }
        (Ok(address), None) => Host::Range(address, length(address)),
        (Err(_), _) => match (name(host.strip_prefix("*.").unwrap_or(host)), host.starts_with("*.")) {
            (Some(domain), true) => Host::Below(domain),
            (Some(name), false) => Host::Name(name),
            (None, _) if !host.is_ascii() => {
                return invalid("is not ASCII", "use the ASCII form, with xn-- labels");
            }
            (None, _) => return invalid("is neither a name nor an address", SYNTAX),
        },
    };
    Ok((host, port))
}

/// Reads a range. Returns `None` if its prefix is too short, or the address has bits after it.
fn range(address: IpAddr, bits: &str) -> Option<Host> {
    let digits = (1..=3).contains(&bits.len()) && bits.bytes().all(|byte| byte.is_ascii_digit());
    let bits: u8 = bits.parse().ok().filter(|_| digits)?;
    let (shortest, rest) = match address {
        IpAddr::V4(address) => (MIN_PREFIX.0, address.to_bits().checked_shl(bits.into()).unwrap_or(0) == 0),
        IpAddr::V6(address) => (MIN_PREFIX.1, address.to_bits().checked_shl(bits.into()).unwrap_or(0) == 0),
    };
    let valid = (shortest..=length(address)).contains(&bits) && rest && !is_not_single_host(address);
    valid.then_some(Host::Range(address, bits))
}

fn length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns true for unspecified, multicast and broadcast addresses.
pub fn is_not_single_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    address.is_unspecified() || address.is_multicast() || broadcast
}

/// Splits a host and port; `None` if the port is invalid.
pub fn split(text: &str) -> Option<(&str, Option<u16>)> {
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
pub fn name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let of_letters = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        (1..=MAX_LABEL).contains(&label.len()) && of_letters
    };
    let last = text.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    (text.len() <= MAX_NAME && text.split('.').all(is_label) && !is_number).then(|| text.to_ascii_lowercase())
}
