//! Policies that change while a sandbox runs. Its servers are on an address of this host, which the policy names.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use cofferdam::{ErrorKind, ExecRequest, Limits, NetworkPolicy, OutputEvent, Spec, registry};

/// Returns an address of this host that is not loopback. Sends nothing.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.77:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// Starts a server that sends a dot twenty times a second on each connection.
fn server(address: IpAddr) -> SocketAddr {
    use std::io::Write;
    let listener = TcpListener::bind((address, 0)).expect("a listener");
    let own = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                while stream.write_all(b".").is_ok() {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
        }
    });
    own
}

fn allow(servers: &[SocketAddr]) -> NetworkPolicy {
    NetworkPolicy::Allow { hosts: servers.iter().map(ToString::to_string).collect() }
}

/// Connects to the first address until a connection ends, while a connection to the second one stays open.
const CLIENT: &str = r"
import socket, sys
first, second = ((address, int(port)) for address, port in (text.split(':') for text in sys.argv[1:]))
one, other = socket.create_connection(first, 10), socket.create_connection(second, 10)
assert one.recv(1) and other.recv(1)
print('connected', flush=True)
try:
    while one.recv(1): pass
except ConnectionResetError: pass
print('ended', flush=True)
for _ in range(5): assert other.recv(1) == b'.'
again = socket.create_connection(first, 10)
try: print('again', again.recv(1))
except ConnectionResetError: print('again', b'')
sys.stdin.read()
";

/// Promise (Network): A policy of a live sandbox can change. Connections that no longer match end at once,
/// and others continue.
#[tokio::test]
async fn the_policy_of_a_live_sandbox_changes() {
    let test = "the_policy_of_a_live_sandbox_changes";
    let Some(address) = own_address() else { return println!("SKIP {test}: this host has only loopback addresses") };
    let (first, second) = (server(address), server(address));
    let limits = Limits { memory: None, cpu_time: None, disk: None, pids: None, ..Limits::default() };
    let spec = Spec::builder().limits(limits).network(allow(&[first, second])).build().expect("it is valid");
    let backend = registry::backend("process").expect("the backend is built in");
    let sandbox = backend.create(spec).await.expect("it is created");
    let words = ["python3", "-c", CLIENT, &first.to_string(), &second.to_string()].map(str::to_owned);
    let client = sandbox.start(ExecRequest::argv(words).build().expect("it is valid")).await.expect("it starts");
    let next = async || match tokio::time::timeout(Duration::from_secs(5), client.output().next()).await {
        Ok(Some(OutputEvent::Chunk(chunk))) => chunk.data,
        other => panic!("{other:?}"),
    };
    assert_eq!(next().await, "connected\n");

    let error = sandbox.set_network(allow(&["10.1.2.3:1".parse().expect("an address")])).await;
    assert_eq!(error.expect_err("the port was not in the first policy").kind(), ErrorKind::Unsupported);
    sandbox.set_network(allow(&[second])).await.expect("the policy changes");
    assert_eq!(next().await, "ended\n");
    assert_eq!(next().await, "again b''\n");
    let denials = sandbox.network_denials();
    assert!(denials.iter().any(|denial| denial.why.contains("the policy changed")), "{denials:?}");
    sandbox.close().await.expect("it closes");
}
