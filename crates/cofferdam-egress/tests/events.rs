//! Events of connections that are refused or fail.
#![cfg(feature = "gateway")]
#![forbid(unsafe_code)]

mod support;

use std::net::{Ipv4Addr, SocketAddr};

use cofferdam_contract::NetworkEvent;
use cofferdam_egress::MAX_CONNECTIONS;
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;

use support::{TIMEOUT, connect, echo, gateway, is_alive, rule};

async fn next(events: &mut Receiver<NetworkEvent>) -> NetworkEvent {
    timeout(TIMEOUT, events.recv()).await.expect("an event in time").expect("an event")
}

/// A connection that is refused because too many are open has one denial and one event with the same reason.
#[tokio::test]
async fn a_connection_beyond_the_maximum_has_an_event() {
    let server = echo().await;
    let gateway = gateway([rule(server)]).await;
    let mut events = gateway.events();
    let mut open: Vec<DuplexStream> = (0..MAX_CONNECTIONS).map(|_| connect(&gateway, server)).collect();
    for connection in &mut open {
        assert!(is_alive(connection).await);
    }
    assert!(!is_alive(&mut connect(&gateway, server)).await);
    let event = next(&mut events).await;
    assert_eq!((event.host, event.port), (server.ip().to_string(), server.port()));
    assert_eq!((event.reason.as_deref(), event.rule), (Some("too many are open"), None));
    assert!(events.try_recv().is_err(), "there is one event");
    let denials = gateway.denials();
    assert_eq!((denials.len(), denials[0].why.as_str()), (1, "too many are open"), "{denials:?}");
}

/// The event of an allowed connection to a server that does not answer has the failure, and is no refusal.
#[tokio::test]
async fn a_server_that_is_not_there_is_reported_as_unreachable() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a listener");
    let server = listener.local_addr().expect("an address");
    drop(listener);
    let gateway = gateway([rule(server)]).await;
    let mut events = gateway.events();
    assert!(!is_alive(&mut connect(&gateway, server)).await);
    let event = next(&mut events).await;
    assert_eq!((event.ended.as_deref(), &event.reason), (Some("unreachable"), &None), "{event:?}");
    assert_eq!((event.address, gateway.denials().len()), (None, 0));
}

/// A rule for a range of NAT64 is about the addresses of names. Such an address is refused if the guest names it.
#[tokio::test]
async fn no_guest_connects_to_a_translated_address() {
    let gateway = gateway([rule("[64:ff9b::/96]:80")]).await;
    let to: SocketAddr = "[64:ff9b::127.0.0.1]:80".parse().expect("an address");
    assert!(!is_alive(&mut connect(&gateway, to)).await);
    let denials: Vec<String> = gateway.denials().iter().map(ToString::to_string).collect();
    assert!(denials.len() == 1 && denials[0].contains("no name in the policy resolved to it"), "{denials:?}");
}
