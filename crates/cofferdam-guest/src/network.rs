//! Network policies of containers and VMs: the gateway on this host serves the connections that the agent accepts.
//!
//! ```text
//! guest --name--> agent: 127.64.0.1:53 --Query--> gateway: rules --Response--> 127.64.x.y
//! guest --connection to it--> agent: 0.0.0.0:PORT --Connected, Data--> gateway: rules --> server
//! guest --connection to another port--> kernel: refused, as a raw socket shows the gateway, or the agent of a VM
//! ```
//!
//! The sandbox has no interface but its loopback interface, on which all of 127.0.0.0/8 leads to the agent. With a raw
//! socket, all IPv4 addresses do.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use cofferdam_contract::{Error, NetworkPolicy, Result};
use cofferdam_egress::{PROXY_PORT, Plan, Reach};

#[cfg(feature = "net")]
use cofferdam_egress::Access;
#[cfg(feature = "net")]
pub use serving::Network;

use crate::{Settings, wire};

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

/// The needs of a policy's network, read before its sandbox exists.
#[derive(Debug)]
#[cfg_attr(not(feature = "net"), expect(dead_code, reason = "only the gateway needs all of it"))]
pub struct Opening {
    policy: NetworkPolicy,
    ports: Vec<u16>,
    access: Access,
    /// True if programs of the sandbox ran before, with another gateway.
    resumed: bool,
    /// A raw socket in the sandbox's network.
    connection_attempts: Option<OwnedFd>,
}

impl Opening {
    /// Reads the secrets of a policy. Returns `None` without a plan.
    ///
    /// # Errors
    ///
    /// Those of the sources of secrets, and `Unsupported` in builds without the feature `net`.
    pub async fn of(policy: &NetworkPolicy, plan: Option<Plan>) -> Result<Option<Self>> {
        match plan {
            Some(Plan { rules, ports, .. }) => {
                let access = Access::of(policy, rules).await?;
                Ok(Some(Self { policy: policy.clone(), ports, access, resumed: false, connection_attempts: None }))
            }
            None => Ok(None),
        }
    }

    /// Notes that programs of the sandbox ran before, with another gateway.
    pub fn resumed(self) -> Self {
        Self { resumed: true, ..self }
    }

    /// Adds a raw socket in the sandbox's network, if there is one. It shows the connections that the kernel refuses.
    pub fn with_connection_attempts(self, connection_attempts: Option<OwnedFd>) -> Self {
        Self { connection_attempts, ..self }
    }

    /// Adds the ports and the variables to the settings of the connection to the guest.
    pub fn configure(&self, settings: &mut Settings) {
        let mut ports = self.ports.clone();
        if !ports.contains(&PROXY_PORT) {
            ports.push(PROXY_PORT);
        }
        settings.ports = Some(ports);
        settings.env.extend(self.access.variables(&settings.code));
    }
}

#[cfg(not(feature = "net"))]
use unavailable::Access;
#[cfg(not(feature = "net"))]
pub use unavailable::Network;

/// Stands for the network in builds without it.
#[cfg(not(feature = "net"))]
mod unavailable {
    use cofferdam_contract::{Error, NetworkDenial, NetworkEvent, NetworkPolicy, NetworkUsage, Result};
    use cofferdam_egress::Rules;
    use tokio::sync::broadcast;

    use super::Opening;
    use crate::Guest;

    /// The access of a policy. There is none.
    #[derive(Debug)]
    pub enum Access {}

    impl Access {
        /// Returns an error.
        pub async fn of(_: &NetworkPolicy, _: Rules) -> Result<Self> {
            Err(Error::unsupported("create", "this build has no network policies"))
        }

        /// Returns nothing.
        pub fn variables(&self, _: &str) -> Vec<(String, String)> {
            match *self {}
        }
    }

    /// The network of one sandbox. There is none.
    #[derive(Debug)]
    pub enum Network {}

    impl Network {
        /// Returns an error.
        pub async fn start(_: &Guest, _: Opening) -> Result<Self> {
            Err(Error::unsupported("create", "this build has no network policies"))
        }

        /// Returns nothing.
        pub fn denials(&self) -> Vec<NetworkDenial> {
            match *self {}
        }

        /// Returns nothing.
        pub fn usage(&self) -> NetworkUsage {
            match *self {}
        }

        /// Returns nothing.
        pub fn events(&self) -> broadcast::Receiver<NetworkEvent> {
            match *self {}
        }

        /// Does nothing.
        pub fn replace(&self, _: &NetworkPolicy, _: &str) -> Result<()> {
            match *self {}
        }

        /// Returns nothing.
        pub fn policy(&self) -> NetworkPolicy {
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
    use std::hash::{BuildHasher, Hasher, RandomState};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    use cofferdam_contract::{Error, ErrorKind, NetworkDenial, NetworkEvent, NetworkPolicy, NetworkUsage, Result};
    use cofferdam_egress::{Gateway, MAX_CONNECTIONS, PROXY_PORT, Pace, Reach};
    use parking_lot::Mutex;
    use tokio::sync::{Semaphore, broadcast};
    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::{Opening, RESOLVER};
    use crate::link::Link;
    use crate::streams::{self, Queries};
    use crate::wire::{self, Request, Root};
    use crate::{Guest, exec, files};

    /// The first address of a name.
    const FIRST_NAME: Ipv4Addr = Ipv4Addr::new(127, 64, 1, 0);
    /// The number of further blocks of addresses, and of addresses in each.
    const BLOCKS: u64 = 1000;
    const NAMES_OF_BLOCK: u32 = 4096;
    /// Time to wait if the agent cannot accept now.
    const RETRY_INTERVAL: Duration = Duration::from_millis(50);

    /// The network of one sandbox. Dropping it closes every connection.
    #[derive(Debug)]
    pub struct Network {
        gateway: Arc<Gateway>,
        ports: Vec<u16>,
        policy: Mutex<NetworkPolicy>,
        tasks: Mutex<JoinSet<()>>,
    }

    impl Network {
        /// Starts to serve a guest whose settings have the ports of a policy.
        ///
        /// # Errors
        ///
        /// `Internal` if the settings had no ports, or if its network was started already. The errors of a write.
        pub async fn start(guest: &Guest, opening: Opening) -> Result<Self> {
            let Opening { policy, ports, access, resumed, connection_attempts } = opening;
            let queries = guest.take_queries();
            let queries = queries
                .ok_or_else(|| Error::new(ErrorKind::Internal, "create", "the agent does not listen for a policy"))?;
            for (name, contents) in access.files() {
                let put = put_file(guest, name, contents, resumed).await;
                // A guest of an earlier time may have made it impossible. Then its programs do not trust the gateway.
                if let Err(error) = put
                    && !(resumed && guest.inner.link.is_open())
                {
                    return Err(error);
                }
            }
            let mut gateway = Gateway::without_sockets(access, RESOLVER, first_name(resumed));
            let served = [&ports[..], &[PROXY_PORT, wire::RESOLVER_PORT]].concat();
            if let Some(socket) = connection_attempts {
                gateway = gateway.with_connection_attempts(socket, &served).map_err(|error| {
                    Error::new(ErrorKind::Io, "create", "cannot read connection attempts").with_source(error)
                })?;
            }
            let gateway = Arc::new(gateway);
            let (refusing, pace) = (Arc::downgrade(&gateway), Mutex::new(Pace::of_connections()));
            queries.on_request(move |to| {
                if !served.contains(&to.port())
                    && pace.lock().try_turn()
                    && let Some(gateway) = refusing.upgrade()
                {
                    gateway.refuse(to);
                }
            });
            let mut tasks = JoinSet::new();
            let pace = Arc::new(tokio::sync::Mutex::new(Pace::of_connections()));
            let turns = Arc::new(Semaphore::new(MAX_CONNECTIONS));
            // The agent accepts so many at once. Further connections wait in the queues of its kernel, or fail.
            for _ in 0..MAX_CONNECTIONS {
                let (link, gateway) = (Arc::clone(&guest.inner.link), Arc::clone(&gateway));
                tasks.spawn(serve(link, gateway, Arc::clone(&pace), Arc::clone(&turns)));
            }
            tasks.spawn(answer(queries, Arc::clone(&gateway)));
            Ok(Self { gateway, ports, policy: Mutex::new(policy), tasks: Mutex::new(tasks) })
        }

        /// Returns what was refused so far.
        pub fn denials(&self) -> Vec<NetworkDenial> {
            self.gateway.denials()
        }

        /// Returns what the sandbox has used of its network.
        pub fn usage(&self) -> NetworkUsage {
            self.gateway.usage()
        }

        /// Returns a receiver of an event for each connection and request from now on.
        pub fn events(&self) -> broadcast::Receiver<NetworkEvent> {
            self.gateway.events()
        }

        /// Replaces the policy of a sandbox of the backend with this name.
        ///
        /// # Errors
        ///
        /// `Unsupported` for hosts that need other ports than the first policy had, and for other secrets.
        pub fn replace(&self, policy: &NetworkPolicy, backend: &str) -> Result<()> {
            let mut own = self.policy.lock();
            cofferdam_egress::replace(&self.gateway, &self.ports, policy, backend, Reach::Names)?;
            *own = policy.clone();
            Ok(())
        }

        /// Returns the policy as it is now.
        pub fn policy(&self) -> NetworkPolicy {
            self.policy.lock().clone()
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

    /// Puts a file of certificates into the guest.
    async fn put_file(guest: &Guest, name: &'static str, contents: Vec<u8>, resumed: bool) -> Result<()> {
        if resumed {
            let remove = Request::Remove { root: Root::Code, path: name.as_bytes() };
            // It need not be there.
            let _ = files::simple(&guest.inner, "start", name, &remove).await;
        }
        exec::put_file(&guest.inner, name, contents.into()).await
    }

    /// Returns the first address of a name. Programs that ran before may still have addresses from another gateway. They
    /// must not lead to another name, so these names get other addresses.
    fn first_name(resumed: bool) -> Ipv4Addr {
        let block = match resumed {
            true => 1 + (RandomState::new().build_hasher().finish() % BLOCKS) as u32,
            false => 0,
        };
        Ipv4Addr::from_bits(FIRST_NAME.to_bits() + block * NAMES_OF_BLOCK)
    }

    /// Serves one connection after the other until the link ends. It keeps neither the guest nor its agent alive.
    async fn serve(link: Arc<Link>, gateway: Arc<Gateway>, pace: Arc<tokio::sync::Mutex<Pace>>, turns: Arc<Semaphore>) {
        while link.is_open() {
            // A connection keeps its turn until its last byte was written to the agent.
            let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
            pace.lock().await.turn().await;
            match streams::accept(&link, Some(turn)).await {
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
