//! Connections of the gateway to servers.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::addresses::is_own;
use crate::rules::{Allowed, Refusal, Target};

/// Time to look up a name, and to connect to one of its addresses.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum of look-ups of one sandbox at once. Each occupies a thread until the host's resolver returns.
pub const MAX_LOOKUPS: usize = 8;
/// The maximum of addresses of a name that are tried.
const MAX_TRIED: usize = 4;

/// The reason why there is no connection to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The policy does not allow any address of the name.
    Denied(Refusal),
    /// The server or the host's resolver did not answer.
    Unreachable,
}

/// Connects to a name, by addresses that are resolved now. So an answer that changes between two connections gains
/// nothing.
pub async fn connect(target: &Arc<Target>, port: u16, lookups: &Arc<Semaphore>) -> Result<TcpStream, Failure> {
    let Ok(Ok(permit)) = timeout(LOOKUP_TIMEOUT, Arc::clone(lookups).acquire_owned()).await else {
        return Err(Failure::Unreachable);
    };
    let wanted = Arc::clone(target);
    let lookup = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        allowed(&wanted)
    });
    let Ok(Ok(addresses)) = timeout(LOOKUP_TIMEOUT, lookup).await else { return Err(Failure::Unreachable) };
    for address in addresses?.into_iter().take(MAX_TRIED) {
        if let Ok(stream) = to(address, port).await {
            return Ok(stream);
        }
    }
    Err(Failure::Unreachable)
}

/// Connects to an address.
pub async fn to(address: IpAddr, port: u16) -> Result<TcpStream, Failure> {
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(SocketAddr::new(address, port)));
    let stream = connecting.await.ok().and_then(Result::ok).ok_or(Failure::Unreachable)?;
    // Small messages must not wait.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Resolves a name by the host's resolver. Returns the addresses that it may lead to. Blocks its thread.
fn allowed(target: &Target) -> Result<Vec<IpAddr>, Failure> {
    let found = (target.name.as_str(), 0).to_socket_addrs().map_err(|_| Failure::Unreachable)?;
    let mut refusal = None;
    let mut addresses = Vec::new();
    for address in found.map(|found| found.ip()) {
        match target.leads_to(address) {
            Ok(Allowed::Elsewhere) if is_own(address) => refusal = Some(Refusal::NotPublic),
            Ok(_) if !addresses.contains(&address) => addresses.push(address),
            Ok(_) => {}
            Err(other) => refusal = Some(other),
        }
    }
    match (addresses.is_empty(), refusal) {
        (true, Some(refusal)) => Err(Failure::Denied(refusal)),
        (true, None) => Err(Failure::Unreachable),
        (false, _) => Ok(addresses),
    }
}
