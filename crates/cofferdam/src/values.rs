//! Parsers of structured option values: variables, labels, network policies, published ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use cofferdam::NetworkPolicy;
use cofferdam::publish::Address;

/// Parses a variable. Refuses one without a value: no values are inherited from the environment.
pub fn parse_env(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("the variable has no name; write KEY=VALUE".to_owned()),
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("nothing is inherited from the environment; write {text}=VALUE")),
    }
}

/// Parses the name of a variable whose value is taken from the environment of this process.
pub fn parse_secret(text: &str) -> Result<String, String> {
    match text {
        "" => Err("the variable has no name".to_owned()),
        // The value is visible in the process list already. Do not repeat it in the message.
        text if text.contains('=') => {
            Err("write only the name; the value is read from the environment, which other users cannot see".to_owned())
        }
        text => Ok(text.to_owned()),
    }
}

/// Parses a label.
pub fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// Parses a network policy: `none`, or hosts.
pub fn parse_network(text: &str) -> Result<NetworkPolicy, String> {
    if text == "none" {
        return Ok(NetworkPolicy::None);
    }
    let hosts: Vec<String> = text.split(',').map(|host| host.trim().to_owned()).collect();
    if hosts.iter().any(|host| host.is_empty() || host == "none") {
        return Err("write none, or host names with commas between them".to_owned());
    }
    Ok(NetworkPolicy::Allow { hosts })
}

/// A port of the sandbox and the address on which it is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// The address on the host.
    pub address: Address,
    /// The port in the sandbox.
    pub guest: NonZeroU16,
}

/// Parses a published port: `[ADDR:]PORT:GUEST` or `unix:PATH:GUEST`.
pub fn parse_publish(text: &str) -> Result<Publication, String> {
    let form = || "write [ADDR:]PORT:GUEST or unix:PATH:GUEST".to_owned();
    let (address, guest) = text.rsplit_once(':').ok_or_else(form)?;
    let guest = guest.parse().map_err(|_| format!("'{guest}' is not a port of the sandbox; {}", form()))?;
    if let Some(path) = address.strip_prefix("unix:") {
        if path.is_empty() {
            return Err(form());
        }
        return Ok(Publication { address: Address::Unix(path.into()), guest });
    }
    let (ip, port) = match address.rsplit_once(':') {
        None => (IpAddr::V4(Ipv4Addr::LOCALHOST), address),
        Some((ip, port)) => (parse_ip(ip)?, port),
    };
    let port: u16 = port.parse().map_err(|_| format!("'{port}' is not a port of this host; {}", form()))?;
    Ok(Publication { address: Address::Tcp((ip, port).into()), guest })
}

/// Parses an IPv4 address, or an IPv6 address in brackets.
fn parse_ip(text: &str) -> Result<IpAddr, String> {
    let wrong = || format!("'{text}' is not an IPv4 address or an IPv6 address in brackets");
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().map(IpAddr::V6).map_err(|_| wrong()),
        None => text.parse::<Ipv4Addr>().map(IpAddr::V4).map_err(|_| wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_port_has_an_address_and_a_port_of_the_sandbox() {
        for (text, address, guest) in [
            ("8080:80", "127.0.0.1:8080", 80),
            ("0:1", "127.0.0.1:0", 1),
            ("127.0.0.2:8080:80", "127.0.0.2:8080", 80),
            ("[::1]:8080:80", "[::1]:8080", 80),
            ("unix:/run/a.sock:80", "unix:/run/a.sock", 80),
            ("unix:a:b:80", "unix:a:b", 80),
        ] {
            let parsed = parse_publish(text).unwrap();
            assert_eq!((parsed.address.to_string().as_str(), parsed.guest.get()), (address, guest), "{text}");
        }
        for text in ["80", "80:", ":80", "80:0", "80:65536", "65536:80", "::1:80:80", "[::1]:80", "a:80:80", "unix::80"]
        {
            assert!(parse_publish(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_variable_has_a_name_and_a_value() {
        assert_eq!(parse_env("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(parse_env("A="), Ok(("A".to_owned(), String::new())));
        assert!(parse_env("=a").is_err());
        let error = parse_env("HOME").unwrap_err();
        assert_eq!(error, "nothing is inherited from the environment; write HOME=VALUE");
    }

    #[test]
    fn a_secret_is_a_name_and_no_value() {
        assert_eq!(parse_secret("TOKEN"), Ok("TOKEN".to_owned()));
        for text in ["", "TOKEN=hunter2"] {
            assert!(!parse_secret(text).unwrap_err().contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_network_is_none_or_hosts() {
        assert_eq!(parse_network("none"), Ok(NetworkPolicy::None));
        let hosts = vec!["a.example".to_owned(), "*.b.example:443".to_owned()];
        assert_eq!(parse_network("a.example, *.b.example:443"), Ok(NetworkPolicy::Allow { hosts }));
        for text in ["", "a,,b", "none,a", ","] {
            assert!(parse_network(text).is_err(), "{text}");
        }
    }
}
