//! A gateway without sockets, and a server on loopback that its rules name.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{NetworkPolicy, NetworkRule, NetworkRules};
use cofferdam_egress::{Access, Gateway, Rules};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, copy, duplex};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Time in which a connection must answer or end.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a server that sends back what it receives. Returns its address.
pub async fn echo() -> SocketAddr {
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

/// Returns a rule for one host and port.
pub fn rule(host: impl ToString) -> NetworkRule {
    NetworkRule { host: host.to_string(), ..NetworkRule::default() }
}

/// Returns a policy of these rules.
pub fn policy(rules: impl IntoIterator<Item = NetworkRule>) -> NetworkPolicy {
    NetworkPolicy::Rules(NetworkRules { allow: rules.into_iter().collect(), secrets: Vec::new() })
}

/// Returns the rules of a policy.
pub fn rules(policy: &NetworkPolicy) -> Rules {
    Rules::of(policy).expect("a policy").unwrap_or_default()
}

/// Starts a gateway with a policy of these rules.
pub async fn gateway(rules: impl IntoIterator<Item = NetworkRule>) -> Arc<Gateway> {
    let policy = policy(rules);
    let access = Access::of(&policy, self::rules(&policy)).await.expect("access");
    Arc::new(Gateway::without_sockets(access, Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 1, 0)))
}

/// Opens a connection of the sandbox. The gateway ends it if the rules do not allow it.
pub fn connect(gateway: &Arc<Gateway>, to: SocketAddr) -> DuplexStream {
    let (client, server) = duplex(64);
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move { gateway.serve(server, to).await });
    client
}

/// Returns true if a message comes back, and false if the connection ends instead.
pub async fn is_alive(connection: &mut DuplexStream) -> bool {
    let talk = async {
        let mut answer = [0; 5];
        // The end is seen by reading.
        let _ = connection.write_all(b"hello").await;
        connection.read_exact(&mut answer).await.is_ok_and(|_| answer == *b"hello")
    };
    timeout(TIMEOUT, talk).await.expect("the connection answers or ends in time")
}
