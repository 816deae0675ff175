//! Network policies, and connections to servers in a container.

use std::time::Duration;

use cofferdam_contract::{Backend, Capability, ErrorKind, ExecRequest, OutputEvent, Protection, SpecBuilder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{self, TestEngine};

async fn engines(test: &str) -> Vec<TestEngine> {
    support::engines(test).into_iter().chain(support::runsc(test).await).collect()
}

/// Returns a builder of a spec that gVisor can enforce too: its limit of processes is outside.
fn spec() -> SpecBuilder {
    support::spec().allow_weaker(Protection::Processes)
}

fn python(code: &str) -> ExecRequest {
    ExecRequest::argv(["python3", "-c", code]).timeout(Duration::from_secs(60)).build().unwrap()
}

/// Promise (Network): The host connects to a server in a container, and each direction ends on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_connects_to_a_server_in_a_container() {
    for engine in engines("the_host_connects_to_a_server_in_a_container").await {
        let backend = engine.backend();
        assert!(backend.capabilities().contains(&Capability::Connect));
        let sandbox = backend.create(spec().build().unwrap()).await.unwrap();
        let error = sandbox.connect(8000).await.err().expect("nothing listens");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{}: {error}", engine.name);
        let server = "
import socket
server = socket.create_server(('127.0.0.1', 8000))
print('listening', flush=True)
connection, data = server.accept()[0], b''
while more := connection.recv(65536): data += more
connection.sendall(data[::-1])
connection.close()";
        let handle = sandbox.start(python(server)).await.unwrap();
        let first = handle.output().next().await;
        assert!(matches!(first, Some(OutputEvent::Chunk(_))), "{}: {first:?}", engine.name);
        let mut connection = sandbox.connect(8000).await.unwrap();
        let data: Vec<u8> = (0..1_000_000).map(|at| (at % 251) as u8).collect();
        connection.write_all(&data).await.unwrap();
        connection.shutdown().await.unwrap();
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).await.unwrap();
        answer.reverse();
        assert!(answer == data, "{}: {} bytes", engine.name, answer.len());
        sandbox.close().await.unwrap();
    }
}

/// Refused connections, with the rule that would allow them if there can be one.
#[cfg(feature = "net")]
const UNSERVED: [&str; 3] = [
    "allowed.invalid:81: the policy does not allow this port; --net allowed.invalid:81 would allow it",
    "1.1.1.1:80: no name in the policy resolved to it\n",
    "1.1.1.1:83: no name in the policy resolved to it",
];

/// Promise (Network): A container's resolver answers for the names of its policy only, and nothing else is reachable.
#[cfg(feature = "net")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_of_a_container_is_its_only_way_out() {
    use cofferdam_contract::NetworkPolicy;

    for engine in engines("a_policy_of_a_container_is_its_only_way_out").await {
        let backend = engine.backend();
        let hosts = vec!["allowed.invalid:80".to_owned(), "allowed.invalid:443".to_owned()];
        let spec = self::spec().network(NetworkPolicy::Allow { hosts }).build().unwrap();
        let code = "
import socket
def attempt(call, *rest):
    try: print(call(*rest))
    except OSError as error: print(type(error).__name__)
def talk(address, port):
    with socket.create_connection((address, port), 15) as connection: return connection.recv(10)
attempt(socket.gethostbyname, 'allowed.invalid')
attempt(socket.gethostbyname, 'secret.evil.invalid')
attempt(talk, 'allowed.invalid', 443)
attempt(talk, '127.64.9.9', 80)
attempt(talk, 'allowed.invalid', 81)
attempt(talk, '127.0.0.1', 82)
attempt(talk, '1.1.1.1', 80)
attempt(talk, '1.1.1.1', 83)";
        // The container shares this kernel, and root can join its network.
        let joined = engine.runtime.is_none() && rustix::process::geteuid().is_root();
        let (to_addresses, unserved) = match joined {
            true => ("b''\nConnectionRefusedError\n", &UNSERVED[..]),
            false => ("OSError\nOSError\n", &[][..]),
        };
        let refused = "ConnectionRefusedError\n";
        let expected = format!("127.64.1.0\ngaierror\nb''\nb''\n{refused}{refused}{to_addresses}");
        // Prepared sandboxes have a gateway of their own as well.
        let prepared = backend.prepare(spec.clone()).await.unwrap();
        assert!(prepared.is_compatible(&spec) && !prepared.is_compatible(&self::spec().build().unwrap()));
        for sandbox in [backend.create(spec.clone()).await.unwrap(), prepared.claim(spec.clone()).await.unwrap()] {
            let row = sandbox.posture().get(Protection::Network).unwrap();
            assert!(row.mechanism.contains("allows 2 hosts"), "{}: {row:?}", engine.name);
            let done = sandbox.exec(python(code)).await.unwrap();
            let (stdout, stderr) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
            assert_eq!(stdout, expected, "{}: {stderr}", engine.name);
            let denials = sandbox.network_denials().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            for text in ["the look-up of secret.evil.invalid", "127.64.9.9:80"].iter().chain(unserved) {
                assert!(denials.contains(text), "{}: {denials}", engine.name);
            }
            assert!(!denials.contains("127.0.0.1"), "{}: {denials}", engine.name);
            sandbox.close().await.unwrap();
        }
    }
}
