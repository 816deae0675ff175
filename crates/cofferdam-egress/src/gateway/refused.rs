//! Connections to ports that the gateway does not serve.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Gateway, RETRY_INTERVAL, Shared, until};
use crate::pace::Pace;
use crate::rules::Refusal;
use crate::unserved::Requests;

impl Gateway {
    /// Reports a connection that the sandbox's kernel refuses. The caller bounds the rate.
    pub fn refuse(&self, to: SocketAddrV4) {
        self.shared.refuse_unserved(to);
    }

    /// Reports connections to other ports than `served`, which a raw socket in the sandbox's network shows.
    pub fn with_requests(mut self, socket: OwnedFd, served: &[u16]) -> io::Result<Self> {
        let served = served.iter().map(|port| SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, *port)).collect();
        let closed = self.closing.subscribe();
        self.shared.watch_requests(Requests::new(socket, served)?, closed, self.tasks.get_mut());
        Ok(self)
    }
}

impl Shared {
    /// Reports connections that the kernel refuses, until the gateway closes.
    pub(super) fn watch_requests(
        self: &Arc<Self>,
        requests: Requests,
        closed: watch::Receiver<bool>,
        tasks: &mut JoinSet<()>,
    ) {
        self.requests.get_or_init(|| requests);
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
        let arrived = self.requests.get().map(Requests::arrived).unwrap_or_default();
        arrived.into_iter().for_each(|to| self.refuse_unserved(to));
    }
}

/// Reports connections that the kernel refuses, because the gateway does not serve their ports.
async fn refuse_unserved(shared: Arc<Shared>) {
    let (Some(requests), mut pace) = (shared.requests.get(), Pace::of_connections()) else { return };
    loop {
        match requests.next().await {
            Ok(to) => shared.refuse_unserved(to),
            Err(_) => sleep(RETRY_INTERVAL).await,
        }
        pace.turn().await;
    }
}
