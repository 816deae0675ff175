//! Network policies of containers and VMs: the gateway on this host serves the connections that the agent accepts.
//!
//! ```text
//! guest --name--> agent: 127.64.0.1:53 --Query--> gateway: rules --Response--> 127.64.x.y
//! guest --connection to it--> agent: 0.0.0.0:PORT --Connected, Data--> gateway: rules --> server
//! ```
//!
//! The sandbox has no interface but its loopback interface, on which all of 127.0.0.0/8 leads to the agent.

use std::net::Ipv4Addr;

use cofferdam_contract::{Error, NetworkPolicy, Result};
use cofferdam_egress::{Plan, Reach};

#[cfg(feature = "net")]
pub use serving::Network;

use crate::wire;

/// The address of the resolver in a sandbox with a policy.
pub const RESOLVER: Ipv4Addr = {
    let [a, b, c, d] = wire::RESOLVER;
    Ipv4Addr::new(a, b, c, d)
};

/// True if this build has network policies.
pub const IS_SUPPORTED: bool = cfg!(feature = "net");

/// Plans the network of a sandbox of the backend with this name. Returns `None` if the policy allows no network.
///
/// # Errors
///
/// `Unsupported` for hosts that such a sandbox cannot reach, and in builds without the feature `net`.
pub fn plan(policy: &NetworkPolicy, backend: &str) -> Result<Option<Plan>> {
    let plan = Plan::of(policy, backend, Reach::Names)?;
    if plan.is_some() && !IS_SUPPORTED {
        let what = format!("this build of the {backend} backend has no network policies");
        return Err(Error::unsupported("create", what).with_remedy(
            "install a full build: `cargo install --path crates/cofferdam --features full`; or use --net none",
        ));
    }
    Ok(plan)
}

#[cfg(not(feature = "net"))]
pub use absent::Network;

/// Stands for the network in builds without it.
#[cfg(not(feature = "net"))]
mod absent {
    use cofferdam_contract::{Error, Result};
    use cofferdam_egress::Rules;

    use crate::Guest;

    /// The network of one sandbox. There is none.
    #[derive(Debug)]
    pub enum Network {}

    impl Network {
        /// Returns an error.
        pub fn start(_: &Guest, _: Rules) -> Result<Self> {
            Err(Error::unsupported("create", "this build has no network policies"))
        }

        /// Returns nothing.
        pub fn denials(&self) -> Vec<String> {
            match *self {}
        }

        /// Does nothing.
        pub async fn close(&self) {
            match *self {}
        }
    }
}

#[cfg(feature = "net")]
mod serving {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use cofferdam_contract::{Error, ErrorKind, Result};
    use cofferdam_egress::{Gateway, Pace, Rules};
    use parking_lot::Mutex;
    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use crate::Guest;
    use crate::link::Link;
    use crate::streams::{self, Queries};

    /// The first address of a name.
    const FIRST_NAME: Ipv4Addr = Ipv4Addr::new(127, 64, 1, 0);
    /// The maximum of connections of one sandbox. The agent accepts so many at once, since the queues of its kernel are
    /// short. Further connections wait there, or fail.
    const MAX_CONNECTIONS: usize = 64;
    /// Time to wait if the agent cannot accept now.
    const RETRY_INTERVAL: Duration = Duration::from_millis(50);

    /// The network of one sandbox. Dropping it closes every connection.
    #[derive(Debug)]
    pub struct Network {
        gateway: Arc<Gateway>,
        tasks: Mutex<JoinSet<()>>,
    }

    impl Network {
        /// Starts to serve a guest whose settings have the ports of a policy.
        ///
        /// # Errors
        ///
        /// `Internal` if the settings had no ports, or if its network was started already.
        pub fn start(guest: &Guest, rules: Rules) -> Result<Self> {
            let queries = guest.take_queries();
            let queries = queries
                .ok_or_else(|| Error::new(ErrorKind::Internal, "create", "the agent does not listen for a policy"))?;
            let gateway = Arc::new(Gateway::without_sockets(rules, FIRST_NAME));
            let mut tasks = JoinSet::new();
            let pace = Arc::new(tokio::sync::Mutex::new(Pace::of_connections()));
            for _ in 0..MAX_CONNECTIONS {
                tasks.spawn(serve(Arc::clone(&guest.inner.link), Arc::clone(&gateway), Arc::clone(&pace)));
            }
            tasks.spawn(answer(queries, Arc::clone(&gateway)));
            Ok(Self { gateway, tasks: Mutex::new(tasks) })
        }

        /// Returns what the policy refused so far, as text.
        pub fn denials(&self) -> Vec<String> {
            self.gateway.denials().iter().map(ToString::to_string).collect()
        }

        /// Closes all connections, and waits until that is done.
        pub async fn close(&self) {
            self.gateway.close().await;
            let mut tasks = std::mem::take(&mut *self.tasks.lock());
            tasks.shutdown().await;
        }
    }

    impl Drop for Network {
        fn drop(&mut self) {
            self.gateway.shut();
        }
    }

    /// Serves one connection after the other until the link ends. It keeps neither the guest nor its agent alive.
    async fn serve(link: Arc<Link>, gateway: Arc<Gateway>, pace: Arc<tokio::sync::Mutex<Pace>>) {
        while link.is_open() {
            pace.lock().await.turn().await;
            match streams::accept(&link).await {
                Ok((stream, to)) => gateway.serve(stream, SocketAddr::V4(to)).await,
                // The sandbox is being copied, or has too many connections.
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        }
    }

    /// Answers queries until the link ends.
    async fn answer(mut queries: Queries, gateway: Arc<Gateway>) {
        let mut pace = Pace::of_queries();
        while let Some(query) = queries.next().await {
            let response = gateway.answer(&query.data).unwrap_or_default();
            if queries.respond(query.from, &response).await.is_err() {
                return;
            }
            pace.turn().await;
        }
    }
}
