//! Connections to ports that the gateway does not serve.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Gateway, RETRY_INTERVAL, Shared, until};
use crate::connection_attempts::ConnectionAttempts;
use crate::pace::Pace;
use crate::rules::Refusal;

impl Gateway {
    /// Reports a connection that the sandbox's kernel refuses. The caller bounds the rate.
    pub fn refuse(&self, to: SocketAddrV4) {
        self.shared.refuse_unserved(to);
    }

    /// Reports connections to other ports than `served`, which a raw socket in the sandbox's network shows.
    pub fn with_connection_attempts(mut self, socket: OwnedFd, served: &[u16]) -> io::Result<Self> {
        let served = served.iter().map(|port| SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, *port)).collect();
        let closed = self.closing.subscribe();
        self.shared.watch_connection_attempts(ConnectionAttempts::new(socket, served)?, closed, self.tasks.get_mut());
        Ok(self)
    }
}

impl Shared {
    /// Reports connections that the kernel refuses, until the gateway closes.
    pub(super) fn watch_connection_attempts(
        self: &Arc<Self>,
        attempts: ConnectionAttempts,
        closed: watch::Receiver<bool>,
        tasks: &mut JoinSet<()>,
    ) {
        self.connection_attempts.get_or_init(|| attempts);
        tasks.spawn(until(closed, refuse_unserved(Arc::clone(self))));
    }

    /// Reports a connection that the kernel refused, unless it is one to the sandbox itself.
    fn refuse_unserved(&self, to: SocketAddrV4) {
        let is_own = to.ip().is_loopback() || to.ip().is_unspecified();
        if is_own && self.names.lock().name(*to.ip()).is_none() {
            return;
        }
        let (name, refusal) = match self.destination(to.into()) {
            Err(refused) => refused,
            // No rule of the policy that the sockets were created for has this port.
            Ok(_) => (to.ip().to_string(), Refusal::OtherPort),
        };
        self.refused(&name, to.port(), refusal).refuse(refusal);
    }

    /// Reports what the kernel has refused so far.
    pub(super) fn refuse_arrived(&self) {
        let arrived = self.connection_attempts.get().map(ConnectionAttempts::arrived).unwrap_or_default();
        arrived.into_iter().for_each(|to| self.refuse_unserved(to));
    }
}

/// Reports connections that the kernel refuses, because the gateway does not serve their ports.
async fn refuse_unserved(shared: Arc<Shared>) {
    let (Some(attempts), mut pace) = (shared.connection_attempts.get(), Pace::of_connections()) else { return };
    loop {
        match attempts.next().await {
            Ok(to) => shared.refuse_unserved(to),
            Err(_) => sleep(RETRY_INTERVAL).await,
        }
        pace.turn().await;
    }
}
