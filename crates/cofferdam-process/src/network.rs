//! The owner's side of a sandbox's network: the policy's plan, and the gateway that serves the sandbox's sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

use cofferdam_contract::{Error, NetworkPolicy, Result};
use cofferdam_egress::{NETWORK, Rules};
use tokio::io::unix::AsyncFd;

use crate::client;
use crate::protocol::{Event, NetworkPlan};

#[cfg(feature = "net")]
pub use cofferdam_egress::Gateway;

/// The maximum of ports and of addresses of a policy at this level. Each is a socket or a setting of the kernel.
const MAX_PORTS: usize = 16;
const MAX_ADDRESSES: usize = 64;

/// Stands for the gateway in builds without it.
#[cfg(not(feature = "net"))]
#[derive(Debug)]
pub enum Gateway {}

#[cfg(not(feature = "net"))]
impl Gateway {
    pub fn shut(&self) {
        match *self {}
    }

    pub async fn close(&self) {
        match *self {}
    }
}

/// Returns the plan and the rules of a policy. Returns `None` if it allows no network.
pub fn plan(policy: &NetworkPolicy) -> Result<Option<(NetworkPlan, Rules)>> {
    let Some(rules) = Rules::of(policy)? else { return Ok(None) };
    if cfg!(not(feature = "net")) {
        return Err(Error::unsupported("create", "this build of the process backend has no network policies")
            .with_remedy(
                "install a full build: `cargo install --path crates/cofferdam --features full`; or use --net none",
            ));
    }
    let refused = |what: &str, remedy: &str| Err(Error::unsupported("create", what).with_remedy(remedy.to_owned()));
    let Some(ports) = rules.ports() else {
        return refused(
            "the process backend needs a port for each host of the network policy",
            "name it, such as --net example.com:443",
        );
    };
    if rules.lookup("localhost").is_ok() {
        return refused(
            "in a process sandbox, localhost is the sandbox itself",
            "name an address of this host that is not a loopback address",
        );
    }
    let mut addresses = Vec::new();
    for address in rules.addresses() {
        match address {
            IpAddr::V4(address) if is_synthetic(address) => {
                return refused("addresses in 198.18.0.0/15 stand for names in a process sandbox", "use a host name");
            }
            IpAddr::V4(address) if !address.is_loopback() => addresses.push(address),
            IpAddr::V4(_) => {
                return refused(
                    "in a process sandbox, loopback addresses are the sandbox itself",
                    "name an address of this host that is not a loopback address",
                );
            }
            IpAddr::V6(_) => {
                return refused("the process backend reaches no IPv6 addresses of a policy", "use a host name");
            }
        }
    }
    if ports.contains(&53) {
        return refused("in a process sandbox, port 53 is that of the sandbox's resolver", "leave it out");
    }
    if ports.len() > MAX_PORTS || addresses.len() > MAX_ADDRESSES {
        let what = format!(
            "a network policy of the process backend has at most {MAX_PORTS} different ports and {MAX_ADDRESSES} addresses"
        );
        return Err(Error::unsupported("create", what));
    }
    Ok(Some((NetworkPlan { ports: ports.into_iter().collect(), addresses }, rules)))
}

fn is_synthetic(address: Ipv4Addr) -> bool {
    let (network, prefix) = NETWORK;
    (address.to_bits() ^ network.to_bits()) >> (32 - prefix) == 0
}

/// Receives the next event that does not bring sockets, and the sockets that came before.
pub async fn receive_sockets(
    control: &AsyncFd<OwnedFd>,
    sockets: &mut Vec<OwnedFd>,
) -> io::Result<Option<(Event, Vec<OwnedFd>)>> {
    loop {
        match client::receive::<Event>(control).await? {
            Some((Event::Sockets, more)) if sockets.len() <= MAX_PORTS + 2 => sockets.extend(more),
            other => return Ok(other),
        }
    }
}

/// Starts the gateway of a sandbox.
#[cfg(feature = "net")]
pub fn start(sockets: Vec<OwnedFd>, rules: Rules) -> Result<Gateway> {
    use cofferdam_contract::ErrorKind;

    let complete = sockets.len() == rules.ports().map_or(0, |ports| ports.len()) + 2;
    let mut sockets = sockets.into_iter();
    let (Some(resolver), Some(resolver_listener), true) = (sockets.next(), sockets.next(), complete) else {
        return Err(Error::new(ErrorKind::Internal, "create", "the sandbox has not all sockets of its network"));
    };
    let sockets = cofferdam_egress::Sockets { listeners: sockets.collect(), resolver, resolver_listener };
    Gateway::start(sockets, rules)
        .map_err(|error| crate::error::os("create", "cannot serve the sandbox's network", error))
}

/// Returns what the gateway refused.
#[cfg(feature = "net")]
pub fn denials(gateway: &Gateway) -> Vec<String> {
    gateway.denials().iter().map(ToString::to_string).collect()
}

#[cfg(not(feature = "net"))]
pub fn denials(gateway: &Gateway) -> Vec<String> {
    match *gateway {}
}

#[cfg(not(feature = "net"))]
pub fn start(_: Vec<OwnedFd>, _: Rules) -> Result<Gateway> {
    Err(Error::unsupported("create", "this build has no network policies"))
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "net")]
    use super::*;

    #[test]
    #[cfg(feature = "net")]
    fn hosts_that_a_sandbox_cannot_reach_are_refused() {
        let of = |hosts: &[&str]| {
            plan(&NetworkPolicy::Allow { hosts: hosts.iter().map(|host| (*host).to_owned()).collect() })
        };
        for hosts in [
            &["a.example"][..],
            &["localhost:80"],
            &["127.0.0.1:80"],
            &["[fd00::1]:80"],
            &["198.18.0.7:80"],
            &["a.example:53"],
            &["a.example:1", "b"],
        ] {
            assert!(of(hosts).is_err(), "{hosts:?}");
        }
        let (plan, _) = of(&["a.example:443", "b.example:443", "*.c.example:80", "10.0.0.7:5432"]).unwrap().unwrap();
        assert_eq!(plan, NetworkPlan { ports: vec![80, 443, 5432], addresses: vec![Ipv4Addr::new(10, 0, 0, 7)] });
        assert!(super::plan(&NetworkPolicy::None).unwrap().is_none());
    }
}
