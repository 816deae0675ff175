//! Connections of the gateway to servers.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::addresses::{find_own, is_exhausted};
use crate::literal::decide_literal;
use crate::rules::{Allowed, Refusal, Rules, Target};

/// Time to look up a name, and to connect to one of its addresses.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum of look-ups at once, of one sandbox and of all in this process. Each occupies a thread until the host's
/// resolver returns.
const MAX_LOOKUPS: usize = 8;
static LOOKUPS: Semaphore = Semaphore::const_new(32);
/// The maximum of addresses of a name that are kept.
const MAX_ADDRESSES: usize = 64;
/// The maximum of addresses of a name that are tried.
const MAX_TRIED: usize = 4;
/// The time for which addresses of a name are used again, and the maximum of names.
const KEPT: Duration = Duration::from_secs(10);
const MAX_KEPT: usize = 64;
/// The maximum size of each buffer of a connection in the kernel. No limit of the sandbox counts it.
const BUFFER: u32 = 256 << 10;
/// The maximum size of the host's file of names.
const MAX_HOSTS_FILE: u64 = 1 << 20;

/// The reason why there is no connection to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The policy does not allow any address of the name.
    Denied(Refusal),
    /// The server or the host's resolver did not answer.
    Unreachable,
    /// This process has no free descriptor.
    Exhausted,
}

/// The connections of one sandbox.
#[derive(Debug)]
pub struct Upstream {
    lookups: Arc<Semaphore>,
    /// Addresses of names, and the time until which they are used.
    known: Mutex<HashMap<String, (Vec<IpAddr>, Instant)>>,
}

impl Default for Upstream {
    fn default() -> Self {
        Self { lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)), known: Mutex::default() }
    }
}

impl Upstream {
    /// Connects to a name, by addresses that were resolved and checked here. So an answer that changes later gains
    /// nothing.
    pub async fn connect(&self, target: &Arc<Target>, port: u16, rules: &Rules) -> Result<TcpStream, Failure> {
        let addresses = allowed(&self.addresses(target).await?, target, port, rules)?;
        for address in addresses.into_iter().take(MAX_TRIED) {
            match self.to(address, port).await {
                Err(Failure::Unreachable) => {}
                decided => return decided,
            }
        }
        Err(Failure::Unreachable)
    }

    /// Connects to an address that the guest named itself, if the rules allow it.
    pub async fn connect_literal(&self, to: SocketAddr, rules: &Rules) -> Result<TcpStream, Failure> {
        match decide_literal(rules, to).map_err(|_| Failure::Exhausted)? {
            Ok(_) => self.to(to.ip(), to.port()).await,
            Err(refusal) => Err(Failure::Denied(refusal)),
        }
    }

    async fn to(&self, address: IpAddr, port: u16) -> Result<TcpStream, Failure> {
        let socket = match address {
            IpAddr::V4(_) => TcpSocket::new_v4(),
            IpAddr::V6(_) => TcpSocket::new_v6(),
        };
        let socket = socket.map_err(|error| match is_exhausted(&error) {
            true => Failure::Exhausted,
            false => Failure::Unreachable,
        })?;
        let _ = socket.set_recv_buffer_size(BUFFER).and_then(|()| socket.set_send_buffer_size(BUFFER));
        let connecting = timeout(CONNECT_TIMEOUT, socket.connect(SocketAddr::new(address, port)));
        let stream = connecting.await.ok().and_then(Result::ok).ok_or(Failure::Unreachable)?;
        // Small messages must not wait.
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        Ok(stream)
    }

    async fn addresses(&self, target: &Arc<Target>) -> Result<Vec<IpAddr>, Failure> {
        if let Some((addresses, until)) = self.known.lock().get(&target.name)
            && Instant::now() < *until
        {
            return Ok(addresses.clone());
        }
        let permits = async { (Arc::clone(&self.lookups).acquire_owned().await, LOOKUPS.acquire().await) };
        let Ok((Ok(own), Ok(all))) = timeout(LOOKUP_TIMEOUT, permits).await else { return Err(Failure::Unreachable) };
        let name = target.name.clone();
        let lookup = tokio::task::spawn_blocking(move || {
            let _permits = (own, all);
            resolve(&name)
        });
        let Ok(Ok(Some(addresses))) = timeout(LOOKUP_TIMEOUT, lookup).await else { return Err(Failure::Unreachable) };
        let mut known = self.known.lock();
        if known.len() >= MAX_KEPT {
            known.clear();
        }
        known.insert(target.name.clone(), (addresses.clone(), Instant::now() + KEPT));
        Ok(addresses)
    }
}

/// Lets the kernel end a connection whose other side is gone.
pub fn keep_alive(stream: &TcpStream) {
    // Without it, the connection lives as long as the sandbox.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(60));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(20));
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

/// Resolves a name as the host does. Blocks its thread.
fn resolve(name: &str) -> Option<Vec<IpAddr>> {
    let mut found = in_hosts_file(&hosts_file().ok()?, name);
    if found.is_empty() {
        // With a dot at its end, the name is not completed by a search domain of the host, which the policy does not have.
        let resolved = (format!("{name}."), 0).to_socket_addrs().ok()?;
        found.extend(resolved.map(|found| found.ip()).take(MAX_ADDRESSES));
    }
    Some(found)
}

/// Returns the addresses that a name may lead to: public ones, and those that a rule names with the port.
fn allowed(found: &[IpAddr], target: &Target, port: u16, rules: &Rules) -> Result<Vec<IpAddr>, Failure> {
    let mut refusal = None;
    let mut addresses = Vec::new();
    for address in found.iter().copied() {
        let listed = rules.connect([], SocketAddr::new(address, port));
        match listed.or_else(|_| target.leads_to(address)) {
            Ok(Allowed::Elsewhere | Allowed::InRange) if find_own(address).map_err(|_| Failure::Exhausted)? => {
                refusal = Some(Refusal::NotPublic);
            }
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

fn hosts_file() -> io::Result<String> {
    let mut text = Vec::new();
    match std::fs::File::open("/etc/hosts") {
        Ok(file) => file.take(MAX_HOSTS_FILE).read_to_end(&mut text).map(drop)?,
        // A name in the file must not get another address because the file cannot be opened now.
        Err(error) if is_exhausted(&error) => return Err(error),
        // A host without the file has no names in it.
        Err(_) => {}
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the addresses of a name in a file of the form of `/etc/hosts`.
fn in_hosts_file(text: &str, name: &str) -> Vec<IpAddr> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|other| other.eq_ignore_ascii_case(name)).then_some(address)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hosts_file_are_found() {
        let text =
            "127.0.0.1 localhost\n# 1.1.1.1 a.example\n8.8.8.8\ta.example  b.example # c.example\nx y\n::1 a.example\n";
        let addresses = |name: &str| in_hosts_file(text, name).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(addresses("A.example"), ["8.8.8.8", "::1"]);
        assert_eq!(addresses("b.example"), ["8.8.8.8"]);
        for name in ["c.example", "y", "example", ""] {
            assert!(addresses(name).is_empty(), "{name}");
        }
    }
}
