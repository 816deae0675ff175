//! The part of a policy that a sandbox with a network namespace or kernel of its own needs before it starts.

use std::net::{IpAddr, Ipv4Addr};

use cofferdam_contract::{Error, NetworkPolicy, Result};

use crate::addresses::is_translated;
use crate::{NETWORK, Rules};

/// The maximum of different ports of a policy. Each is a socket of every sandbox with it.
pub const MAX_PORTS: usize = 128;
/// The maximum of addresses and ranges of a policy.
const MAX_ADDRESSES: usize = 64;
/// The port of the sandbox's resolver.
const DNS: u16 = 53;

/// The addresses of a policy that a backend can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Host names and IPv4 addresses.
    Addresses,
    /// Host names only.
    Names,
}

/// The rules of a policy, and the ports and addresses on which the sandbox listens for the gateway.
#[derive(Debug)]
pub struct Plan {
    /// The rules.
    pub rules: Rules,
    /// The ports, in ascending order.
    pub ports: Vec<u16>,
    /// The addresses and ranges that programs may connect to, each with the length of its prefix.
    pub addresses: Vec<(Ipv4Addr, u8)>,
}

impl Plan {
    /// Plans the network of a sandbox of the backend with this name. Returns `None` if the policy allows no network.
    ///
    /// # Errors
    ///
    /// `Unsupported`, with a remedy, for hosts that such a sandbox cannot reach.
    pub fn of(policy: &NetworkPolicy, backend: &str, reach: Reach) -> Result<Option<Self>> {
        let Some(rules) = Rules::of(policy)? else { return Ok(None) };
        let refused =
            |what: String, remedy: &str| Err(Error::unsupported("create", what).with_remedy(remedy.to_owned()));
        let Some(ports) = rules.ports() else {
            return refused(
                format!("the {backend} backend needs a port for each host of the network policy"),
                "name it, such as --net example.com:443",
            );
        };
        if rules.lookup("localhost").is_ok() {
            return refused(
                format!("localhost is the sandbox itself in the {backend} backend"),
                match reach {
                    Reach::Addresses => "name an address of this host that is not a loopback address",
                    Reach::Names => "give the host a name",
                },
            );
        }
        let mut addresses = Vec::new();
        for (address, bits) in rules.addresses() {
            match address {
                // Names lead there. No program connects to such an address.
                IpAddr::V6(address) if is_translated(address, bits) => {}
                _ if reach == Reach::Names => {
                    return refused(
                        format!("the {backend} backend reaches names of a network policy only, not {address}"),
                        "use a host name, or the process backend",
                    );
                }
                IpAddr::V4(address) if overlaps(NETWORK, (address, bits)) => {
                    return refused(
                        format!("addresses in 198.18.0.0/15 stand for names in the {backend} backend"),
                        "use a host name",
                    );
                }
                IpAddr::V4(address) if !address.is_loopback() => addresses.push((address, bits)),
                IpAddr::V4(_) => {
                    return refused(
                        format!("loopback addresses are the sandbox itself in the {backend} backend"),
                        "name an address of this host that is not a loopback address",
                    );
                }
                IpAddr::V6(_) => {
                    return refused(
                        format!("the {backend} backend reaches no IPv6 addresses of a policy"),
                        "use a host name",
                    );
                }
            }
        }
        if ports.contains(&DNS) {
            return refused(
                format!("port 53 is that of the sandbox's resolver in the {backend} backend"),
                "leave it out",
            );
        }
        if ports.len() > MAX_PORTS || addresses.len() > MAX_ADDRESSES {
            return refused(
                format!(
                    "a network policy of the {backend} backend has at most {MAX_PORTS} different ports and \
                     {MAX_ADDRESSES} addresses"
                ),
                "allow fewer hosts, or use several sandboxes",
            );
        }
        Ok(Some(Self { rules, ports: ports.into_iter().collect(), addresses }))
    }
}

/// Replaces the rules of a gateway that serves these ports of a sandbox of the backend with this name.
///
/// # Errors
///
/// `Unsupported` for hosts that need further ports, for other secrets, and for the first interception of TLS: programs
/// have what the first policy needed.
#[cfg(feature = "gateway")]
pub fn replace(
    gateway: &crate::Gateway,
    ports: &[u16],
    policy: &NetworkPolicy,
    backend: &str,
    reach: Reach,
) -> Result<()> {
    let refused = |what: &str| {
        Err(Error::unsupported("set_network", what).with_remedy("create another sandbox with this policy"))
    };
    let rules = match Plan::of(policy, backend, reach)? {
        None => Rules::default(),
        Some(plan) if plan.ports.iter().any(|port| !ports.contains(port)) => {
            return refused("the new policy needs a port that the first one did not have");
        }
        Some(plan) => plan.rules,
    };
    let secrets: &[_] = match policy {
        NetworkPolicy::Learn { .. } => return refused("a live sandbox cannot begin to learn a policy"),
        NetworkPolicy::Rules(rules) => &rules.secrets,
        _ => &[],
    };
    if rules.intercepts() && !gateway.intercepts() {
        return refused("the new policy needs interception of TLS, which the first one did not");
    }
    if *policy != NetworkPolicy::None && !gateway.has_secrets(secrets) {
        return refused("the new policy has other secrets than the first one");
    }
    gateway.set_rules(rules);
    Ok(())
}

/// Returns true if two networks have a common address.
fn overlaps(one: (Ipv4Addr, u8), other: (Ipv4Addr, u8)) -> bool {
    (one.0.to_bits() ^ other.0.to_bits()).leading_zeros() >= u32::from(one.1.min(other.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hosts: &[&str], reach: Reach) -> Result<Option<Plan>> {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Plan::of(&NetworkPolicy::Allow { hosts }, "test", reach)
    }

    #[test]
    fn hosts_that_a_sandbox_cannot_reach_are_refused() {
        for hosts in [
            &["a.example"][..],
            &["localhost:80"],
            &["127.0.0.1:80"],
            &["[fd00::1]:80"],
            &["198.18.0.7:80"],
            &["198.0.0.0/8:80"],
            &["a.example:53"],
            &["a.example:1", "b"],
        ] {
            let error = of(hosts, Reach::Addresses).unwrap_err();
            assert!(error.remedy().is_some(), "{hosts:?}: {error}");
        }
        let hosts = ["a.example:443", "b.example:443", "*.c.example:80", "10.0.0.7:5432"];
        let plan = of(&hosts, Reach::Addresses).unwrap().unwrap();
        assert_eq!((plan.ports, plan.addresses), (vec![80, 443, 5432], vec![(Ipv4Addr::new(10, 0, 0, 7), 32)]));
        assert!(of(&hosts, Reach::Names).is_err());
        assert_eq!(of(&hosts[..3], Reach::Names).unwrap().unwrap().ports, [80, 443]);
        // A range of translated addresses is about the addresses of names.
        let hosts = ["a.example:443", "[64:ff9b::/96]:443", "[64:ff9b:1:7::/64]:443"];
        let names = |count: u16| (1000..1000 + count).map(|port| format!("a.example:{port}")).collect::<Vec<_>>();
        let of_many = |count| Plan::of(&NetworkPolicy::Allow { hosts: names(count) }, "test", Reach::Names);
        assert_eq!(of_many(128).unwrap().unwrap().ports.len(), MAX_PORTS);
        assert!(of_many(129).unwrap_err().remedy().is_some());
        for reach in [Reach::Addresses, Reach::Names] {
            let plan = of(&hosts, reach).unwrap().unwrap();
            assert_eq!((plan.ports, plan.addresses), (vec![443], Vec::new()));
        }
        assert!(of(&["[64:ff9b::/64]:443"], Reach::Addresses).is_err());
        assert!(Plan::of(&NetworkPolicy::None, "test", Reach::Names).unwrap().is_none());
    }
}
