//! Rules that change while a gateway has connections. The servers are on loopback, which the rules name.
#![cfg(feature = "gateway")]
#![forbid(unsafe_code)]

mod support;

use cofferdam_contract::{NetworkPolicy, NetworkRule};
use cofferdam_egress::Rules;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

use support::{TIMEOUT, connect, echo, gateway, is_alive, policy, rule, rules};

/// Waits until a connection on which nothing is sent ends.
async fn ends(connection: &mut DuplexStream) {
    let read = timeout(TIMEOUT, connection.read(&mut [0; 16])).await;
    assert!(matches!(read.expect("the connection ends in time"), Ok(0) | Err(_)));
}

/// Promise (Network): After a change of the rules, idle connections that they do not allow end at once. Others stay open,
/// and new ones follow the new rules.
#[tokio::test]
async fn connections_that_no_longer_match_end_at_once() {
    let (first, second) = (echo().await, echo().await);
    let gateway = gateway([rule(first), rule(second)]).await;
    let (mut to_first, mut to_second) = (connect(&gateway, first), connect(&gateway, second));
    assert!(is_alive(&mut to_first).await && is_alive(&mut to_second).await);

    gateway.set_rules(rules(&policy([rule(second)])));
    ends(&mut to_first).await;
    assert!(is_alive(&mut to_second).await, "a connection that still matches stays open");
    assert!(!is_alive(&mut connect(&gateway, first)).await);
    assert!(is_alive(&mut connect(&gateway, second)).await);
    let denials: Vec<String> = gateway.denials().iter().map(ToString::to_string).collect();
    assert!(denials[0].contains("the policy changed"), "{denials:?}");

    // A range includes no address of this host. A rule can come back.
    let range = rule(format!("127.0.0.0/8:{}", first.port()));
    gateway.set_rules(rules(&policy([range])));
    ends(&mut to_second).await;
    assert!(!is_alive(&mut connect(&gateway, first)).await);
    gateway.set_rules(rules(&policy([rule(first)])));
    let mut again = connect(&gateway, first);
    assert!(is_alive(&mut again).await);
    gateway.set_rules(rules(&NetworkPolicy::None));
    ends(&mut again).await;
    for to in [first, second] {
        assert!(!is_alive(&mut connect(&gateway, to)).await);
    }
}

/// Promise (Network): What is used of a budget stays used when the rules change, as long as its rule stays.
#[tokio::test]
async fn budgets_survive_a_change_of_the_rules() {
    let (first, second) = (echo().await, echo().await);
    let limited = || NetworkRule { max_requests: Some(2), ..rule(first) };
    let gateway = gateway([limited()]).await;
    assert!(is_alive(&mut connect(&gateway, first)).await);
    gateway.set_rules(rules(&policy([rule(second), limited()])));
    assert!(is_alive(&mut connect(&gateway, first)).await);
    assert!(!is_alive(&mut connect(&gateway, first)).await, "the budget is used up");
    gateway.set_rules(rules(&policy([limited()])));
    assert!(!is_alive(&mut connect(&gateway, first)).await, "the budget is still used up");
    // Another budget is a new rule.
    gateway.set_rules(rules(&policy([NetworkRule { max_requests: Some(3), ..limited() }])));
    assert!(is_alive(&mut connect(&gateway, first)).await);
}

/// Promise (Network): A connection that races with a change of the rules is never left open against them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_survives_a_race_with_a_change() {
    let server = echo().await;
    let gateway = gateway([rule(server)]).await;
    for _ in 0..50 {
        let mut connections: Vec<DuplexStream> = (0..8).map(|_| connect(&gateway, server)).collect();
        tokio::task::yield_now().await;
        gateway.set_rules(Rules::default());
        for connection in &mut connections {
            let mut byte = [0];
            let talk = async {
                // A byte may still pass. The connection ends all the same.
                while connection.write_all(b"x").await.is_ok() && connection.read(&mut byte).await.is_ok_and(|n| n > 0)
                {
                }
            };
            timeout(TIMEOUT, talk).await.expect("the connection ends");
        }
        gateway.set_rules(rules(&policy([rule(server)])));
        assert!(is_alive(&mut connect(&gateway, server)).await);
    }
}
