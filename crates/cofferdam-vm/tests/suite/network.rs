//! Network policies, and connections to servers in a VM.

use std::time::Duration;

use cofferdam_contract::{Backend, ErrorKind, ExecRequest, OutputEvent, Spec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{self, NO_HANG};

async fn promptly<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(NO_HANG, work).await.expect("no hang")
}

fn python(code: &str) -> ExecRequest {
    ExecRequest::argv(["python3", "-c", code]).timeout(Duration::from_secs(120)).build().unwrap()
}

/// Promise (Network): The host connects to a server in a VM, and each direction ends on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_connects_to_a_server_in_a_vm() {
    let Some(backend) = support::backend("the_host_connects_to_a_server_in_a_vm") else { return };
    let sandbox = promptly(backend.create(Spec::default())).await.unwrap();
    let error = promptly(sandbox.connect(8000)).await.err().expect("nothing listens");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let server = "
import socket
server = socket.create_server(('127.0.0.1', 8000))
print('listening', flush=True)
connection, data = server.accept()[0], b''
while more := connection.recv(65536): data += more
connection.sendall(data[::-1])
connection.close()";
    let handle = promptly(sandbox.start(python(server))).await.unwrap();
    let first = promptly(handle.output().next()).await;
    assert!(matches!(first, Some(OutputEvent::Chunk(_))), "{first:?}");
    let mut connection = promptly(sandbox.connect(8000)).await.unwrap();
    let data: Vec<u8> = (0..1_000_000).map(|at| (at % 251) as u8).collect();
    promptly(connection.write_all(&data)).await.unwrap();
    connection.shutdown().await.unwrap();
    let mut answer = Vec::new();
    promptly(connection.read_to_end(&mut answer)).await.unwrap();
    answer.reverse();
    assert!(answer == data, "{} bytes", answer.len());
    promptly(sandbox.close()).await.unwrap();
}

/// Promise (Network): A VM's resolver answers for the names of its policy only, also in a copy with another policy.
#[cfg(feature = "net")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_of_a_vm_is_its_only_way_out() {
    use std::sync::Arc;

    use cofferdam_contract::{NetworkPolicy, Sandbox};

    let Some(backend) = support::backend("a_policy_of_a_vm_is_its_only_way_out") else { return };
    let spec = |host: &str| {
        let hosts = vec![format!("{host}.invalid:80"), format!("{host}.invalid:443")];
        Spec::builder().network(NetworkPolicy::Allow { hosts }).build().unwrap()
    };
    let check = async |sandbox: &Arc<dyn Sandbox>, allowed: &str, denied: &str| {
        let code = format!(
            "
import socket
def attempt(call, *rest):
    try: print(call(*rest))
    except OSError as error: print(type(error).__name__)
def talk(address, port):
    with socket.create_connection((address, port), 60) as connection: return connection.recv(10)
attempt(socket.gethostbyname, '{allowed}.invalid')
attempt(socket.gethostbyname, '{denied}.invalid')
attempt(talk, '{allowed}.invalid', 443)
attempt(talk, '127.64.9.9', 80)
attempt(talk, '{allowed}.invalid', 81)
attempt(talk, '1.1.1.1', 80)"
        );
        let done = promptly(sandbox.exec(python(&code))).await.unwrap();
        let expected = "gaierror\nb''\nb''\nConnectionRefusedError\nOSError\n";
        let (stdout, stderr) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        // A copy has other addresses for its names.
        let (address, rest) = stdout.split_once('\n').unwrap_or_default();
        assert!(address.starts_with("127.") && rest == expected, "{stdout} {stderr}");
        let denials = sandbox.network_denials().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(denials.contains(&format!("the look-up of {denied}.invalid")), "{denials}");
    };
    let sandbox = promptly(backend.create(spec("one"))).await.unwrap();
    check(&sandbox, "one", "two").await;
    let snapshot = promptly(sandbox.snapshot()).await.unwrap();
    check(&sandbox, "one", "two").await;
    let copy = promptly(backend.restore(snapshot, spec("two"))).await.unwrap();
    check(&copy, "two", "one").await;
    promptly(copy.close()).await.unwrap();
    promptly(sandbox.close()).await.unwrap();
    let prepared = promptly(backend.prepare(spec("three"))).await.unwrap();
    let claimed = promptly(prepared.claim(spec("three"))).await.unwrap();
    check(&claimed, "three", "one").await;
    promptly(claimed.close()).await.unwrap();
}
