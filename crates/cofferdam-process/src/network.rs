//! The owner's side of a sandbox's network: the policy's plan, and the gateway that serves the sandbox's sockets.

use std::io;
use std::os::fd::OwnedFd;

use cofferdam_contract::{Error, NetworkDenial, NetworkEvent, NetworkPolicy, NetworkUsage, Result};
use cofferdam_egress::{Plan, Reach, Rules};
use tokio::io::unix::AsyncFd;
use tokio::sync::broadcast;

use crate::client;
use crate::protocol::{Event, NetworkPlan};

#[cfg(feature = "net")]
pub use cofferdam_egress::{Access, Gateway};

/// The maximum of sockets of one sandbox: those of ports, of the resolver and of the proxy, and the raw one.
const MAX_SOCKETS: usize = cofferdam_egress::MAX_PORTS + 4;

/// The directory of the sandbox that has the file of certificates.
#[cfg(feature = "net")]
const CODE: &str = "/code";

/// Stands for the gateway in builds without it.
#[cfg(not(feature = "net"))]
#[derive(Debug)]
pub enum Gateway {}

/// Stands for the access of a policy in builds without the gateway.
#[cfg(not(feature = "net"))]
#[derive(Debug)]
pub enum Access {}

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
    let Some(Plan { rules, ports, addresses: _ }) = Plan::of(policy, "process", Reach::Addresses)? else {
        return Ok(None);
    };
    if cfg!(not(feature = "net")) {
        return Err(Error::unsupported("create", "this build of the process backend has no network policies")
            .with_remedy(
                "install a full build: `cargo install --path crates/cofferdam --features full`; or use --net none",
            ));
    }
    let certificates = rules.intercepts() || matches!(policy, NetworkPolicy::Rules(rules) if !rules.secrets.is_empty());
    Ok(Some((NetworkPlan { ports, certificates }, rules)))
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

/// Reads what the gateway of a policy needs.
#[cfg(feature = "net")]
pub async fn access(policy: &NetworkPolicy, rules: Rules) -> Result<Access> {
    Access::of(policy, rules).await
}

#[cfg(not(feature = "net"))]
pub async fn access(_: &NetworkPolicy, _: Rules) -> Result<Access> {
    Err(Error::unsupported("create", "this build has no network policies"))
}

/// Returns the variables that the policy adds to each exec.
#[cfg(feature = "net")]
pub fn variables(access: &Access) -> Vec<(String, String)> {
    access.variables(CODE)
}

#[cfg(not(feature = "net"))]
pub fn variables(access: &Access) -> Vec<(String, String)> {
    match *access {}
}

/// Returns true if the sandbox needs files of certificates.
#[cfg(feature = "net")]
pub fn has_files(access: &Access) -> bool {
    access.has_files()
}

#[cfg(not(feature = "net"))]
pub fn has_files(access: &Access) -> bool {
    match *access {}
}

/// Returns the files of certificates that programs of the sandbox need, with their names.
#[cfg(feature = "net")]
pub fn files(access: &Access) -> Vec<(&'static str, Vec<u8>)> {
    access.files()
}

#[cfg(not(feature = "net"))]
pub fn files(access: &Access) -> Vec<(&'static str, Vec<u8>)> {
    match *access {}
}

/// Starts the gateway of a sandbox, whose sockets are those of its plan.
#[cfg(feature = "net")]
pub fn start(sockets: Vec<OwnedFd>, plan: &NetworkPlan, access: Access) -> Result<Gateway> {
    use std::os::fd::AsFd;

    use cofferdam_contract::ErrorKind;

    let listeners = plan.listeners().count();
    let complete = sockets.len() >= listeners + 2;
    let mut sockets = sockets.into_iter();
    let (Some(resolver), Some(resolver_listener), true) = (sockets.next(), sockets.next(), complete) else {
        return Err(Error::new(ErrorKind::Internal, "create", "the sandbox has not all sockets of its network"));
    };
    let failed = |error| crate::error::os("create", "cannot serve the sandbox's network", error);
    let listeners = sockets.by_ref().take(listeners).collect();
    let connection_attempts = sockets.next();
    if let Some(socket) = &connection_attempts {
        cofferdam_linux::connection_attempts::attach_syn_filter(socket.as_fd()).map_err(failed)?;
    }
    let sockets = cofferdam_egress::Sockets { listeners, resolver, resolver_listener, connection_attempts };
    Gateway::start(sockets, access).map_err(failed)
}

/// Returns what the gateway refused.
#[cfg(feature = "net")]
pub fn denials(gateway: &Gateway) -> Vec<NetworkDenial> {
    gateway.denials()
}

/// Returns what the sandbox has used of its network.
#[cfg(feature = "net")]
pub fn usage(gateway: &Gateway) -> NetworkUsage {
    gateway.usage()
}

#[cfg(not(feature = "net"))]
pub fn usage(gateway: &Gateway) -> NetworkUsage {
    match *gateway {}
}

/// Returns a receiver of the gateway's events.
#[cfg(feature = "net")]
pub fn events(gateway: &Gateway) -> broadcast::Receiver<NetworkEvent> {
    gateway.events()
}

#[cfg(not(feature = "net"))]
pub fn events(gateway: &Gateway) -> broadcast::Receiver<NetworkEvent> {
    match *gateway {}
}

/// Replaces the rules of a gateway that serves these ports.
#[cfg(feature = "net")]
pub fn replace(gateway: &Gateway, ports: &[u16], policy: &NetworkPolicy) -> Result<()> {
    cofferdam_egress::replace(gateway, ports, policy, "process", Reach::Addresses)
}

#[cfg(not(feature = "net"))]
pub fn replace(gateway: &Gateway, _: &[u16], _: &NetworkPolicy) -> Result<()> {
    match *gateway {}
}

#[cfg(not(feature = "net"))]
pub fn denials(gateway: &Gateway) -> Vec<NetworkDenial> {
    match *gateway {}
}

#[cfg(not(feature = "net"))]
pub fn start(_: Vec<OwnedFd>, _: &NetworkPlan, _: Access) -> Result<Gateway> {
    Err(Error::unsupported("create", "this build has no network policies"))
}
