//! Connections of several gateways in a process with few descriptors. The server is on loopback.
#![cfg(feature = "gateway")]
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{NetworkPolicy, NetworkRule, NetworkRules};
use cofferdam_egress::{Access, Gateway, Rules};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, copy, duplex};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// The limit of descriptors: a quarter of it is the number of connections.
const DESCRIPTORS: u64 = 256;

/// Starts a server that sends back what it receives.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                copy(&mut reader, &mut writer).await
            });
        }
    });
    address
}

async fn gateway(server: SocketAddr) -> Arc<Gateway> {
    let rule = NetworkRule { host: server.to_string(), ..NetworkRule::default() };
    let policy = NetworkPolicy::Rules(NetworkRules { allow: vec![rule], secrets: Vec::new() });
    let rules = Rules::of(&policy).expect("a policy").unwrap_or_default();
    let access = Access::of(&policy, rules).await.expect("access");
    Arc::new(Gateway::without_sockets(access, Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 1, 0)))
}

fn connect(gateway: &Arc<Gateway>, to: SocketAddr) -> DuplexStream {
    let (client, server) = duplex(64);
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move { gateway.serve(server, to).await });
    client
}

/// Returns true if a message comes back, and false if the connection ends instead.
async fn is_alive(connection: &mut DuplexStream) -> bool {
    let talk = async {
        let mut answer = [0; 5];
        let _ = connection.write_all(b"hello").await;
        connection.read_exact(&mut answer).await.is_ok_and(|_| answer == *b"hello")
    };
    timeout(Duration::from_secs(10), talk).await.expect("the connection answers or ends in time")
}

async fn alive(connections: &mut [DuplexStream]) -> usize {
    let mut count = 0;
    for connection in connections {
        count += usize::from(is_alive(connection).await);
    }
    count
}

/// Promise (Network): A sandbox with all connections of its process leaves others their share.
#[tokio::test]
async fn a_sandbox_with_all_connections_leaves_others_their_share() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), ..limit }).expect("the limit is lowered");
    let server = echo().await;
    let (greedy, other) = (gateway(server).await, gateway(server).await);
    let mut all: Vec<DuplexStream> = (0..64).map(|_| connect(&greedy, server)).collect();
    assert_eq!(alive(&mut all).await, 64);
    let mut few: Vec<DuplexStream> = (0..10).map(|_| connect(&other, server)).collect();
    assert_eq!((alive(&mut few).await, alive(&mut all).await), (10, 54));
    assert!(!is_alive(&mut connect(&greedy, server)).await, "it cannot take them back");
    assert_eq!((greedy.denials().len(), other.denials().len()), (1, 0), "the sandbox has the denial");
    drop(few);
    // The gateway sees the end of the connections.
    let freed = async {
        while !is_alive(&mut connect(&greedy, server)).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), freed).await.expect("freed places are used again");
}
