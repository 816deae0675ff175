//! Budgets of bytes, to the byte. The servers are on loopback.
#![cfg(feature = "gateway")]
#![forbid(unsafe_code)]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use cofferdam_contract::{ByteSize, NetworkRule};
use cofferdam_egress::Gateway;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use support::{TIMEOUT, connect, echo, gateway, is_alive, rule};

/// The bytes of the rule. No buffer has a size that divides them.
const BYTES: u64 = 1000;

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Starts a server that sends this number of bytes on each connection, and then ends its half.
async fn sender(bytes: usize) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // The gateway may end the connection earlier.
                let _ = stream.write_all(&vec![b'x'; bytes]).await;
                let _ = stream.shutdown().await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    address
}

async fn limited(server: SocketAddr, bytes: u64) -> Arc<Gateway> {
    gateway([NetworkRule { max_bytes: Some(ByteSize::from_bytes(bytes)), ..rule(server) }]).await
}

/// Returns the number of bytes that the guest receives until the end of a connection.
async fn received(gateway: &Arc<Gateway>, server: SocketAddr) -> u64 {
    let mut connection = connect(gateway, server);
    let mut bytes = Vec::new();
    timeout(TIMEOUT, connection.read_to_end(&mut bytes)).await.expect("the connection ends").expect("it is read");
    bytes.len() as u64
}

/// All connections of a rule together receive the bytes of its budget, and no further one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_a_rule_receive_its_budget_and_no_byte_more() {
    let server = sender(1 << 20).await;
    for connections in [1, 8] {
        let gateway = limited(server, BYTES).await;
        let mut receiving = JoinSet::new();
        for _ in 0..connections {
            let gateway = Arc::clone(&gateway);
            receiving.spawn(async move { received(&gateway, server).await });
        }
        let total: u64 = receiving.join_all().await.iter().sum();
        assert_eq!((total, gateway.usage().received_bytes), (BYTES, BYTES), "{connections} connections");
        let denials: Vec<String> = gateway.denials().iter().map(ToString::to_string).collect();
        let why = format!("the budget of its rule is used up: {server}");
        assert!(denials.iter().all(|denial| denial.contains(&why)), "{denials:?}");
        assert!(!is_alive(&mut connect(&gateway, server)).await, "nothing is left");
    }
}

/// The denial and the event of a connection that a budget or a rate refuses name the rule.
#[tokio::test]
async fn refusals_by_a_budget_or_a_rate_name_the_rule() {
    let server = echo().await;
    let used_up = "the budget of its rule is used up";
    for (limited, why) in [
        (NetworkRule { max_requests: Some(1), ..rule(server) }, used_up),
        (NetworkRule { max_bytes: Some(ByteSize::from_bytes(10)), ..rule(server) }, used_up),
        (NetworkRule { requests_per_minute: Some(1), ..rule(server) }, "its rule allows fewer requests a minute"),
    ] {
        let gateway = gateway([limited]).await;
        let mut events = gateway.events();
        assert!(is_alive(&mut connect(&gateway, server)).await);
        assert!(!is_alive(&mut connect(&gateway, server)).await);
        let why = format!("{why}: {server}");
        let denials = gateway.denials();
        assert_eq!((denials.len(), &denials[0].why), (1, &why), "{denials:?}");
        // The end of the first connection has an event too.
        let refused = async {
            let mut reason = None;
            while reason.is_none() {
                reason = events.recv().await.expect("an event").reason;
            }
            reason
        };
        assert_eq!(timeout(TIMEOUT, refused).await.expect("an event in time"), Some(why));
    }
}

/// A server receives the bytes of the budget, and no further one.
#[tokio::test]
async fn a_guest_sends_the_budget_and_no_byte_more() {
    let (listener, server) = listen().await;
    let gateway = limited(server, BYTES).await;
    let mut connection = connect(&gateway, server);
    let receive = async {
        let (mut stream, _): (TcpStream, _) = listener.accept().await.expect("a connection");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("it is read");
        bytes.len() as u64
    };
    let send = connection.write_all(&[b'x'; 1 << 20]);
    let (sent, received) = timeout(TIMEOUT, async { tokio::join!(send, receive) }).await.expect("the connection ends");
    assert!(sent.is_err(), "the connection ends before the guest has sent everything");
    assert_eq!((received, gateway.usage().sent_bytes), (BYTES, BYTES));
    assert_eq!(gateway.denials().len(), 1);
}

/// The bytes of both directions count.
#[tokio::test]
async fn a_message_and_its_answer_use_the_budget_twice() {
    let server = echo().await;
    let gateway = limited(server, 10).await;
    let mut connection = connect(&gateway, server);
    assert!(is_alive(&mut connection).await);
    assert!(!is_alive(&mut connection).await && !is_alive(&mut connect(&gateway, server)).await);
    let usage = gateway.usage();
    assert_eq!((usage.sent_bytes, usage.received_bytes), (5, 5));
}

/// A connection that uses exactly the budget ends as usual. It is not refused.
#[tokio::test]
async fn a_connection_with_exactly_the_budget_is_not_refused() {
    let server = sender(BYTES as usize).await;
    let gateway = limited(server, BYTES).await;
    let mut events = gateway.events();
    assert_eq!(received(&gateway, server).await, BYTES);
    let event = timeout(TIMEOUT, events.recv()).await.expect("an event in time").expect("an event");
    assert_eq!((event.received, event.reason), (BYTES, None));
    assert!(gateway.denials().is_empty());
}
