//! Network policies of containers and VMs, whose connections come through their agent.

use std::process::Command;

use super::{Fixture, PRELUDE, outcome};
use crate::cli::published::{ECHO, Serving, client, exchange};
use crate::cli::{WEAKER, cofferdam, containers, vms};

/// Returns a run of a line of Python in the servers' network, under a backend.
fn run(fixture: &Fixture, backend: &str, policy: &str, code: &str) -> Command {
    let code = format!("{PRELUDE}\n{code}");
    fixture.command_under(backend, &["--net", policy, "--timeout", "120s", "--", "python3", "-c", &code])
}

/// Checks that a backend reaches the hosts of its policy, and nothing else. `prepare` gives a run what it needs.
fn check(fixture: &Fixture, backend: &str, prepare: impl Fn(Command) -> Option<Command>) {
    let http = "GET /x HTTP/1.1\\nHost: web.example\\nConnection: close\\n\\n";
    let get = format!("print(http('web.example', '{http}')[:15])");
    let tls = "context = ssl._create_unverified_context()\ndef greet():\n    \
               with socket.create_connection(('web.example', 443), 30) as plain:\n        \
               with context.wrap_socket(plain, server_hostname='web.example') as connection: return connection.recv(100)\n\
               attempt(greet)";
    let many = "import threading\ndone = []\n\
                def one(): done.append(talk('web.example', 7, b'abc'))\n\
                threads = [threading.Thread(target=one) for _ in range(40)]\n\
                for thread in threads: thread.start()\n\
                for thread in threads: thread.join()\n\
                print(done == [b'3 bytes'] * 40)";
    let ports: String = (20_000..20_127).map(|port| format!("web.example:{port},")).collect();
    let ports = format!("{ports}web.example:7");
    // The processes of an engine are invisible in the servers' namespaces.
    let of_vm = |of_vm, other| if backend == "vm" { of_vm } else { other };
    for (policy, code, printed, denied) in [
        (ports.as_str(), "print(talk('web.example', 7, b'abc'))", "b'3 bytes'\n", ""),
        ("web.example:80", get.as_str(), "b'HTTP/1.1 200 OK'\n", ""),
        ("web.example:443", tls, "b'secret greeting'\n", ""),
        ("*.suffix.example:22", "print(talk('a.suffix.example', 22, b'x\\n'))", "b'banner\\necho x\\n'\n", ""),
        ("web.example:7", "print(talk('web.example', 7, b'\\0' * 3_000_000))", "b'3000000 bytes'\n", ""),
        ("web.example:7", many, "True\n", ""),
        (
            "web.example:80",
            "attempt(talk, 'other.example', 80)",
            "failed: gaierror\n",
            "the look-up of other.example: the policy does not list it; --net other.example:PORT would allow it",
        ),
        (
            "web.example:80",
            "attempt(talk, 'web.example', 7)",
            "failed: ConnectionRefusedError\n",
            of_vm("the connection to web.example:7: the policy does not allow this port; --net web.example:7", ""),
        ),
        (
            "web.example:80",
            "attempt(talk, '11.22.33.44', 80)",
            of_vm("b''\n", "failed: OSError\n"),
            of_vm("the connection to 11.22.33.44:80: no name in the policy resolved to it", ""),
        ),
        ("web.example:80", "attempt(talk, '127.64.200.200', 80)", "b''\n", "the connection to 127.64.200.200:80"),
        ("web.example:80", "attempt(talk, '127.0.0.1', 80)", "b''\n", "the connection to 127.0.0.1:80"),
        ("private.example:80", "attempt(talk, 'private.example', 80)", "b''\n", "the address is not public"),
    ] {
        let Some(mut run) = prepare(run(fixture, backend, policy, code)) else { return };
        let output = run.output().expect("it runs");
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success() && stdout == printed,
            "{backend} {policy} {code}: {} {stdout} {stderr}",
            output.status
        );
        assert_eq!(stderr.contains("cofferdam: network: refused"), !denied.is_empty(), "{backend} {code}: {stderr}");
        assert!(stderr.contains(denied), "{backend} {code}: {stderr}");
    }
}

/// The value of a secret.
const TOKEN: &str = "token-91b07ce4d2";

/// Checks that interception, a secret, rules for requests and budgets hold under a backend.
fn check_rules(fixture: &Fixture, backend: &str, prepare: impl Fn(Command) -> Option<Command>) {
    let policy = fixture.policy(
        r#"
        [[allow]]
        host = "api.example:443"
        methods = ["GET"]
        paths = ["/v1"]
        [[allow]]
        host = "api.example:80"
        max_requests = 2
        [[allow]]
        host = "elsewhere.example:80"
        max_bytes = "100k"
        [[secret]]
        name = "API_TOKEN"
        from = "env:SOURCE"
        hosts = ["api.example:443"]
        "#,
    );
    // The VM's image has no `http.client`.
    let code = r"
import os
def fetch(url, method='GET', headers={}):
    scheme, _, rest = url.partition('://')
    host, _, path = rest.partition('/')
    connection = socket.create_connection((host, 443 if scheme == 'https' else 80), 30)
    if scheme == 'https': connection = ssl.create_default_context().wrap_socket(connection, server_hostname=host)
    lines = [f'{method} /{path} HTTP/1.1', 'Host: ' + host, 'Connection: close']
    lines += [f'{name}: {value}' for name, value in headers.items()]
    connection.sendall('\r\n'.join(lines + ['', '']).encode())
    answer = b''
    while piece := connection.recv(65536): answer += piece
    head, _, body = answer.partition(b'\r\n\r\n')
    fields = dict(line.lower().split(b': ', 1) for line in head.split(b'\r\n')[1:])
    if fields.get(b'transfer-encoding') == b'chunked':
        pieces, rest = [], body
        while size := int((line := rest.partition(b'\r\n'))[0], 16):
            pieces.append(line[2][:size])
            rest = line[2][size + 2:]
        body = b''.join(pieces)
    elif len(body) != int(fields[b'content-length']): raise EOFError
    return int(head.split()[1]), body.decode()
token = os.environ['API_TOKEN']
print(*fetch('https://api.example/v1/x', headers={'Authorization': 'Bearer ' + token}))
print('# rules', status('https://api.example/v2'), status('https://api.example/v1', 'PUT'))
print('# budgets', [status('http://api.example/') for _ in range(3)],
      status('http://elsewhere.example/size/1000'), status('http://elsewhere.example/size/200000') == 200)
print('# variables', token in str(os.environ), 'SOURCE' in os.environ)";
    let code = format!("{PRELUDE}\n{code}");
    let options = ["--net-policy", &policy, "--timeout", "120s", "--", "python3", "-c", &code];
    let mut run = fixture.command_under(backend, &options);
    run.env("SOURCE", TOKEN).env("SSL_CERT_FILE", fixture.files().join("certificate.pem"));
    let Some(mut run) = prepare(run) else { return };
    let (status, stdout, stderr) = outcome(&mut run);
    assert_eq!(status, 0, "{backend}: {stdout} {stderr}");
    let backwards: String = TOKEN.chars().rev().collect();
    let (answer, rest) = stdout.split_once("# rules ").unwrap_or_else(|| panic!("{backend}: {stdout} {stderr}"));
    // The server has the value, and the sandbox stars of the same length.
    assert!(answer.starts_with("200 GET /v1/x ") && answer.contains(&backwards), "{backend}: {answer}");
    assert!(answer.contains(&format!("Bearer {}\n", "*".repeat(TOKEN.len()))), "{backend}: {answer}");
    assert!(!stdout.contains(TOKEN) && !stderr.contains(TOKEN), "{backend}: {stdout} {stderr}");
    let expected = "403 403\n# budgets [200, 200, 403] 200 False\n# variables True False\n";
    assert_eq!(rest, expected, "{backend}: {stderr}");
    for denied in ["does not allow this path", "does not allow this method", "the budget of its rule is used up"] {
        assert!(stderr.contains(denied), "{backend} {denied}: {stderr}");
    }
}

/// Returns a command that uses the other engine, if there is one.
fn with_podman(mut run: Command) -> Option<Command> {
    let Ok(socket) = std::env::var("COFFERDAM_TEST_PODMAN") else {
        println!("SKIP a container of Podman: COFFERDAM_TEST_PODMAN is not set");
        return None;
    };
    run.env("DOCKER_HOST", format!("unix://{socket}"));
    Some(run)
}

/// Promise (Network): Interception, secrets, rules for requests and budgets hold in a container.
#[test]
fn a_container_has_secrets_and_budgets() {
    let Some(fixture) = Fixture::new("a_container_has_secrets_and_budgets") else { return };
    check_rules(&fixture, "docker", containers::with_engine);
    check_rules(&fixture, "docker", with_podman);
}

/// Promise (Network): Interception, secrets, rules for requests and budgets hold in a VM.
#[test]
fn a_vm_has_secrets_and_budgets() {
    let test = "a_vm_has_secrets_and_budgets";
    let Some(fixture) = Fixture::new(test) else { return };
    check_rules(&fixture, "vm", |run| vms::with_vms(run, test));
}

/// Promise (Network): A container reaches the hosts and ports of its policy by name, and nothing else.
#[test]
fn a_container_reaches_the_hosts_of_its_policy() {
    let Some(fixture) = Fixture::new("a_container_reaches_the_hosts_of_its_policy") else { return };
    check(&fixture, "docker", containers::with_engine);
    // The same API, by another engine.
    check(&fixture, "docker", with_podman);
}

/// Promise (Network): Refused connections of a container are listed on every port, and `--net-learn` learns them.
#[test]
fn refused_connections_of_a_container_are_listed() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP refused_connections_of_a_container_are_listed: only root can join its network");
    }
    // Not in the servers' namespaces, where the container's processes are invisible.
    let code = format!("{PRELUDE}\nattempt(talk, 'web.example', 6667)\nattempt(talk, '11.22.33.44', 6667)");
    for (options, expected) in [
        (
            &["--net", "web.example:80"][..],
            &[
                "refused the connection to web.example:6667: the policy does not allow this port; --net \
                 web.example:6667 would allow it",
                "refused the connection to 11.22.33.44:6667: no name in the policy resolved to it\n",
            ][..],
        ),
        (&["--net-learn"], &["the smallest policy that allows this: --net web.example:6667\n"]),
    ] {
        for with in [containers::with_engine, with_podman] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
            command.args(["run", "--backend", "docker", "--timeout", "120s"]);
            command.args(["--allow-weaker", WEAKER]).args(options).args(["--", "python3", "-c", &code]);
            let Some(mut command) = with(command) else { continue };
            let (status, stdout, stderr) = outcome(&mut command);
            assert_eq!((status, stdout.as_str()), (0, &*"failed: ConnectionRefusedError\n".repeat(2)), "{stderr}");
            for text in expected {
                assert!(stderr.contains(text), "{text}: {stderr}");
            }
        }
    }
}

/// Promise (Network): A VM reaches the hosts and ports of its policy by name, and nothing else.
#[test]
fn a_vm_reaches_the_hosts_of_its_policy() {
    let test = "a_vm_reaches_the_hosts_of_its_policy";
    let Some(fixture) = Fixture::new(test) else { return };
    check(&fixture, "vm", |run| vms::with_vms(run, test));
}

/// Checks that a published port leads to the server in a sandbox of a backend. `prepare` gives a run what it needs.
fn check_published(backend: &str, prepare: impl Fn(Command) -> Option<Command>) {
    let mut run = cofferdam();
    run.args(["run", "--backend", backend, "--allow-weaker", WEAKER, "--publish", "0:8000", "--timeout", "300s"]);
    run.args(["--", "python3", "-c", ECHO]);
    let Some(mut run) = prepare(run) else { return };
    let serving = Serving::start(&mut run, 1);
    let address = serving.addresses[0].clone();
    let data = vec![b'x'; 100_000];
    for data in [&b"hello"[..], &data] {
        let end = format!("end {}", data.len());
        assert_eq!(exchange(&address, data), [data, end.as_bytes()].concat(), "{backend}");
    }
    let (status, stderr) = serving.stop();
    assert_eq!(status, Some(143), "{backend}: {stderr}");
    assert!(client(&address).is_err(), "{backend}: {address} outlives the run");
}

/// Promise (Network): A published port leads to the server in a container.
#[test]
fn published_ports_lead_to_a_container() {
    check_published("docker", containers::with_engine);
    check_published("docker", with_podman);
}

/// Promise (Network): A published port leads to the server in a VM.
#[test]
fn published_ports_lead_to_a_vm() {
    check_published("vm", |run| vms::with_vms(run, "published_ports_lead_to_a_vm"));
}
