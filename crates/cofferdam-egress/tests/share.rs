//! Connections of several gateways in a process with few descriptors. The server is on loopback.
#![cfg(feature = "gateway")]
#![forbid(unsafe_code)]

mod support;

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::DuplexStream;
use tokio::time::timeout;

use support::{TIMEOUT, connect, echo, gateway, is_alive, rule};

/// The limit of descriptors: a quarter of it is the number of connections.
const DESCRIPTORS: u64 = 256;

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
    let (greedy, other) = (gateway([rule(server)]).await, gateway([rule(server)]).await);
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
    timeout(TIMEOUT, freed).await.expect("freed places are used again");
}
