//! Connections of several gateways in a process with few descriptors. The server is on loopback.
#![cfg(feature = "gateway")]
#![forbid(unsafe_code)]

mod support;

use std::time::Duration;

use cofferdam_contract::NetworkEvent;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::DuplexStream;
use tokio::time::timeout;

use support::{TIMEOUT, connect, echo, gateway, is_alive, rule};

/// The limit of descriptors: a quarter of it is the number of connections.
const DESCRIPTORS: u64 = 256;
/// The reason of a refusal because of the number of connections.
const TOO_MANY: &str = "too many are open";

async fn alive(connections: &mut [DuplexStream]) -> usize {
    let mut count = 0;
    for connection in connections {
        count += usize::from(is_alive(connection).await);
    }
    count
}

/// Promise (Network): A sandbox with all connections of its process leaves others their share.
/// Promise (Network): A connection that another sandbox displaced is reported as allowed and displaced.
#[tokio::test]
async fn a_sandbox_with_all_connections_leaves_others_their_share() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), ..limit }).expect("the limit is lowered");
    let server = echo().await;
    let (greedy, other) = (gateway([rule(server)]).await, gateway([rule(server)]).await);
    let mut events = greedy.events();
    let mut all: Vec<DuplexStream> = (0..64).map(|_| connect(&greedy, server)).collect();
    assert_eq!(alive(&mut all).await, 64);
    let mut few: Vec<DuplexStream> = (0..10).map(|_| connect(&other, server)).collect();
    assert_eq!((alive(&mut few).await, alive(&mut all).await), (10, 54));
    assert!(!is_alive(&mut connect(&greedy, server)).await, "it cannot take them back");
    let ended: Vec<NetworkEvent> = std::iter::from_fn(|| events.try_recv().ok()).collect();
    assert_eq!(ended.len(), 11);
    for event in &ended[..10] {
        assert_eq!((event.ended.as_deref(), &event.reason), (Some("displaced"), &None), "{event:?}");
        assert_eq!((&event.rule, event.sent), (&Some(server.to_string()), 5));
    }
    assert_eq!((&ended[10].host, ended[10].port), (&server.ip().to_string(), server.port()));
    assert_eq!((ended[10].reason.as_deref(), &ended[10].rule), (Some(TOO_MANY), &None), "{:?}", ended[10]);
    let (usage, denials) = (greedy.usage(), greedy.denials());
    assert_eq!((usage.displaced, usage.refused, other.usage().displaced), (10, 11, 0));
    assert!(denials[0].times == 10 && denials[0].why.contains("displaced"), "{denials:?}");
    assert!(denials[1].times == 1 && denials[1].why.contains("too many are open"), "{denials:?}");
    assert!(other.denials().is_empty(), "the sandbox has the denials");
    drop(few);
    // The gateway sees the end of the connections.
    let freed = async {
        while !is_alive(&mut connect(&greedy, server)).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, freed).await.expect("freed places are used again");
    // Attempts before a place was free have events, too.
    let ended = async {
        loop {
            let event = events.recv().await.expect("an event");
            if event.reason.as_deref() != Some(TOO_MANY) {
                return event;
            }
        }
    };
    let ended = timeout(TIMEOUT, ended).await.expect("the end is reported");
    assert_eq!((ended.ended, ended.reason), (None, None));
}
