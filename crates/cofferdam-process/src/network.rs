//! The owner's side of a sandbox's network: the policy's plan, and the gateway that serves the sandbox's sockets.

use std::io;
use std::os::fd::OwnedFd;

use cofferdam_contract::{Error, NetworkPolicy, Result};
use cofferdam_egress::{Plan, Reach, Rules};
use tokio::io::unix::AsyncFd;

use crate::client;
use crate::protocol::{Event, NetworkPlan};

#[cfg(feature = "net")]
pub use cofferdam_egress::Gateway;

/// The maximum of sockets of one sandbox: those of ports, and of the resolver.
const MAX_SOCKETS: usize = 18;

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
    let Some(Plan { rules, ports, addresses }) = Plan::of(policy, "process", Reach::Addresses)? else {
        return Ok(None);
    };
    if cfg!(not(feature = "net")) {
        return Err(Error::unsupported("create", "this build of the process backend has no network policies")
            .with_remedy(
                "install a full build: `cargo install --path crates/cofferdam --features full`; or use --net none",
            ));
    }
    Ok(Some((NetworkPlan { ports, addresses }, rules)))
}

/// Receives the next event that does not bring sockets, and the sockets that came before.
pub async fn receive_sockets(
    control: &AsyncFd<OwnedFd>,
    sockets: &mut Vec<OwnedFd>,
) -> io::Result<Option<(Event, Vec<OwnedFd>)>> {
    loop {
        match client::receive::<Event>(control).await? {
            Some((Event::Sockets, more)) if sockets.len() <= MAX_SOCKETS => sockets.extend(more),
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
