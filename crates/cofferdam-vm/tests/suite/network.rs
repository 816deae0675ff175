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
attempt(talk, '127.0.0.1', 82)
attempt(talk, '1.1.1.1', 80)
attempt(talk, '1.1.1.1', 83)"
        );
        let done = promptly(sandbox.exec(python(&code))).await.unwrap();
        let refused = "ConnectionRefusedError\n";
        let expected = format!("gaierror\nb''\nb''\n{refused}{refused}b''\n{refused}");
        let (stdout, stderr) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        // A copy has other addresses for its names.
        let (address, rest) = stdout.split_once('\n').unwrap_or_default();
        assert!(address.starts_with("127.") && rest == expected, "{stdout} {stderr}");
        let denials = sandbox.network_denials().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        for text in [
            format!("the look-up of {denied}.invalid"),
            format!(
                "{allowed}.invalid:81: the policy does not allow this port; --net {allowed}.invalid:81 would allow it"
            ),
            "1.1.1.1:80: no name in the policy resolved to it".to_owned(),
            "1.1.1.1:83: no name in the policy resolved to it".to_owned(),
        ] {
            assert!(denials.contains(&text), "{text}: {denials}");
        }
        assert!(!denials.contains("127.0.0.1"), "{denials}");
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

/// Promise (Network): A snapshot of a VM has no value of a secret. A copy reads the value again, and has another
/// placeholder.
#[cfg(feature = "net")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_vm_has_no_secret() {
    use cofferdam_contract::{NetworkPolicy, NetworkRule, NetworkRules, NetworkSecret, SecretPlace};
    use cofferdam_vm::VmSnapshot;

    // The value, and its base64 at each of the three positions in a group of bytes.
    const VALUE: &str = "token-5e1c09d7b3aa";
    const BASE64: [&str; 3] = ["dG9rZW4tNWUxYzA5ZDdiM2Fh", "Rva2VuLTVlMWMwOWQ3YjNhY", "0b2tlbi01ZTFjMDlkN2IzYW"];

    let Some(backend) = support::backend("a_snapshot_of_a_vm_has_no_secret") else { return };
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("token");
    std::fs::write(&file, VALUE).unwrap();
    let hosts = vec!["api.invalid:443".to_owned()];
    let secret = NetworkSecret {
        name: "API_TOKEN".to_owned(),
        from: format!("file:{}", file.display()),
        hosts: hosts.clone(),
        location: SecretPlace::Header("authorization".to_owned()),
        max_uses: None,
    };
    let allow = hosts.into_iter().map(|host| NetworkRule { host, ..NetworkRule::default() }).collect();
    let policy = NetworkPolicy::Rules(NetworkRules { allow, secrets: vec![secret] });
    let spec = Spec::builder().network(policy).build().unwrap();
    let sandbox = promptly(backend.create(spec.clone())).await.unwrap();
    // A program that keeps its placeholder in memory, and in a file.
    let keep = "import os, time\nkept = os.environ['API_TOKEN']\nopen('/workspace/kept', 'w').write(kept)\n\
                print(kept, flush=True)\ntime.sleep(3600)";
    let handle = promptly(sandbox.start(python(keep))).await.unwrap();
    let Some(OutputEvent::Chunk(first)) = promptly(handle.output().next()).await else { panic!("it prints") };
    let placeholder = String::from_utf8(first.data.to_vec()).unwrap().trim().to_owned();
    let snapshot = promptly(sandbox.snapshot()).await.unwrap();
    let taken = VmSnapshot::of(&snapshot).unwrap();
    let mut bytes = serde_json::to_vec(taken.manifest()).unwrap();
    for file in [taken.state().memory(), taken.state().devices()].into_iter().chain(taken.disk()) {
        use std::os::unix::fs::FileExt;
        let mut part = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut part, 0).unwrap();
        bytes.extend(part.chunks(4096).filter(|page| **page != [0; 4096][..page.len()]).flatten());
    }
    let has = |text: &str| contains(&bytes, text.as_bytes());
    assert!(has(&placeholder), "the placeholder of a running program is in a snapshot");
    for text in [VALUE].into_iter().chain(BASE64) {
        assert!(!has(text), "{text} is in the snapshot");
    }

    std::fs::remove_file(&file).unwrap();
    let copies = [promptly(backend.restore(snapshot.clone(), spec.clone())).await, promptly(sandbox.fork()).await];
    for copied in copies {
        let error = copied.expect_err("the secret has no source").to_string();
        assert!(error.contains("API_TOKEN") && !error.contains(VALUE), "{error}");
    }
    std::fs::write(&file, VALUE).unwrap();
    let copy = promptly(backend.restore(snapshot, spec)).await.unwrap();
    let done = promptly(copy.exec(python("import os\nprint(os.environ['API_TOKEN'])"))).await.unwrap();
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(!printed.trim().is_empty() && printed.trim() != placeholder && !printed.contains(VALUE), "{printed}");
    promptly(copy.close()).await.unwrap();
    promptly(sandbox.close()).await.unwrap();
}

/// Returns true if bytes contain others.
#[cfg(feature = "net")]
fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}
