//! A gateway in a process whose descriptors are exhausted. The limit is that of the process, so this program has one test.
#![cfg(feature = "gateway")]
#![forbid(unsafe_code)]

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use support::{connect, echo, gateway, is_alive, rule};

/// The denial of a connection by address names exhausted descriptors, if they are the reason.
#[tokio::test]
async fn exhausted_descriptors_are_the_reason_of_a_denial() {
    let server = echo().await;
    // The range includes the server, but no address of this host is reached by a range.
    let gateway = gateway([rule(format!("127.0.0.0/8:{}", server.port()))]).await;
    assert!(!is_alive(&mut connect(&gateway, server)).await);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).expect("the limit is lowered");
    assert!(!is_alive(&mut connect(&gateway, server)).await);
    let denials: Vec<String> = gateway.denials().iter().map(ToString::to_string).collect();
    assert_eq!(denials.len(), 2, "{denials:?}");
    assert!(denials[0].contains("the address is not public"), "{denials:?}");
    assert!(denials[1].contains("no free descriptor"), "{denials:?}");
}
