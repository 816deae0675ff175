//! Network policies, with servers at invented names and public-looking addresses. Everything is in
//! network namespaces that the test made.

#[cfg(all(feature = "container", feature = "vm"))]
mod agents;
mod audit;
mod faults;
mod hostile;
mod live;
mod packages;
mod policies;
mod proxies;
mod secrets;
mod served;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// The user of runs without privileges.
const ORDINARY: &str = "65533";

/// A network with servers. Dropping it ends everything in it.
pub struct Fixture {
    child: Child,
    /// The process in whose namespaces runs start.
    first: u32,
    directory: TempDir,
}

impl Fixture {
    /// Creates the network. Returns `None` and prints the reason if that is impossible.
    pub fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP {test}: only root can create the servers' network");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("cofferdam-net-").tempdir_in("/var/tmp").expect("a directory");
        std::fs::create_dir(directory.path().join("files")).expect("a directory");
        open_to_all(directory.path());
        open_to_all(&directory.path().join("files"));
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/net");
        let mut child = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "sh"])
            .args([&files.join("network.sh"), directory.path(), &files.join("server.py")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert_eq!(lines.next().and_then(Result::ok).as_deref(), Some("ready"), "the servers start");
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).expect("children");
        let first = children.trim().parse().expect("one child");
        Some(Self { child, first, directory })
    }

    pub fn files(&self) -> PathBuf {
        self.directory.path().join("files")
    }

    /// Returns `nsenter`, which starts a program in the servers' network. Only the search path is in its environment.
    pub fn enter(&self) -> Command {
        let mut enter = Command::new("nsenter");
        enter.args(["--mount", "--net", "--pid", "--target", &self.first.to_string()]);
        enter.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
        enter
    }

    /// Returns `cofferdam run` with these options in the servers' network, as root or as an ordinary user. It
    /// trusts the authority of the servers.
    fn command(&self, user: &str, options: &[&str]) -> Command {
        let mut run = self.enter();
        run.args(["setpriv", "--reuid", user, "--regid", user]);
        run.args(["--clear-groups", env!("CARGO_BIN_EXE_cofferdam"), "run", "--allow-weaker", super::cli::WEAKER]);
        run.args(["--timeout", "60s", "--workspace"]).arg(format!("{}:ro", self.files().display())).args(options);
        run.env("SSL_CERT_FILE", self.files().join("certificate.pem"));
        run
    }

    /// Returns `cofferdam run` with these options in the servers' network, under a backend and as root.
    #[cfg(all(feature = "container", feature = "vm"))]
    fn command_under(&self, backend: &str, options: &[&str]) -> Command {
        let mut run = self.enter();
        run.args([env!("CARGO_BIN_EXE_cofferdam"), "run", "--backend", backend]);
        run.args(["--allow-weaker", super::cli::WEAKER]).args(options);
        run
    }

    /// Runs lines of Python in a sandbox with these options. Returns the exit status, standard output and standard
    /// error.
    fn run(&self, user: &str, options: &[&str], code: &str) -> (i32, String, String) {
        outcome(self.command(user, options).args(["--", "python3", "-c", &format!("{PRELUDE}\n{code}")]))
    }

    /// Runs lines of Python in a sandbox with this policy.
    fn python(&self, user: &str, policy: &str, code: &str) -> (i32, String, String) {
        self.run(user, &["--net", policy], code)
    }

    /// Writes a policy file, in place of the last one. Returns its path.
    fn policy(&self, text: &str) -> String {
        let path = self.directory.path().join("policy.toml");
        std::fs::write(&path, text).expect("the policy is written");
        path.to_str().expect("a path of UTF-8").to_owned()
    }

    /// Returns the lines of a log of the servers: `requests` or `connections`.
    fn log(&self, name: &str) -> String {
        let text = std::fs::read(self.directory.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Checks that code prints a text first, and that the run reports this denial, or none if the text is empty.
    fn check(&self, (user, policy): (&str, &str), code: &str, printed: &str, denied: &str) {
        let (status, stdout, stderr) = self.python(user, policy, code);
        assert!(status == 0 && stdout.starts_with(printed), "{user} {policy} {code}: {status} {stdout} {stderr}");
        assert_eq!(stderr.contains("cofferdam: network: refused"), !denied.is_empty(), "{policy} {code}: {stderr}");
        assert!(stderr.contains(denied), "{user} {policy} {code}: {stderr}");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command. Returns the exit status, standard output and standard error.
pub fn outcome(run: &mut Command) -> (i32, String, String) {
    let output = run.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("the mode is set");
}

/// Functions of the guest programs.
const PRELUDE: &str = r"
import socket, ssl, sys
def talk(name, port, data=b'', end=True):
    with socket.create_connection((name, port), 15) as connection:
        connection.sendall(data)
        if end: connection.shutdown(socket.SHUT_WR)
        answer = b''
        while more := connection.recv(65536): answer += more
        return answer
def http(name, lines, port=80):
    return talk(name, port, lines.replace('\n', '\r\n').encode(), False)
def attempt(call, *rest):
    try: print(call(*rest))
    except OSError as error: print('failed:', type(error).__name__)
def fetch(url, method='GET', headers={}, body=None, cafile=None):
    import http.client, urllib.parse
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == 'https':
        context = ssl.create_default_context(cafile=cafile)
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=15, context=context)
    else: connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=15)
    connection.request(method, parts.path + (parts.query and '?' + parts.query), body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()
def status(*rest, **more):
    try: return fetch(*rest, **more)[0]
    except Exception as error: return type(error).__name__
";

pub const USERS: [&str; 2] = ["0", ORDINARY];

/// Promise (Network): A process sandbox reaches the hosts and ports of its policy by name, and nothing else.
#[test]
fn policy_allows_its_hosts_and_nothing_else() {
    let Some(fixture) = Fixture::new("policy_allows_its_hosts_and_nothing_else") else { return };
    for user in USERS {
        for (policy, code, printed, denied) in [
            (
                "web.example:80",
                "print(http('web.example', 'GET /x HTTP/1.1\\nHost: web.example\\nConnection: close\\n\\n'))",
                "b'HTTP/1.1 200 OK",
                "",
            ),
            ("*.suffix.example:22", "print(talk('a.suffix.example', 22, b'x\\n'))", "b'banner\\necho x\\n'\n", ""),
            ("web.example:7", "print(talk('web.example', 7, b'\\0' * 3_000_000))", "b'3000000 bytes'\n", ""),
            ("11.22.33.44:7", "print(talk('11.22.33.44', 7, b'abc'))", "b'3 bytes'\n", ""),
            // Names, addresses and ports that the policy does not have.
            (
                "web.example:80",
                "attempt(talk, 'other.example', 80)",
                "failed: gaierror\n",
                "the look-up of other.example: the policy does not list it; --net other.example:PORT would allow it",
            ),
            (
                "*.suffix.example:80",
                "attempt(talk, 'suffix.example', 80)",
                "failed: gaierror\n",
                "the look-up of suffix.example",
            ),
            (
                "web.example:80",
                "attempt(talk, 'web.example', 7)",
                "failed: ConnectionRefusedError\n",
                "the connection to web.example:7: the policy does not allow this port; --net web.example:7 would allow it",
            ),
            (
                "web.example:80",
                "attempt(talk, '11.22.33.44', 80)",
                "b''\n",
                "the connection to 11.22.33.44:80: no name in the policy resolved to it; --net 11.22.33.44:80 would \
                 allow it",
            ),
            (
                "web.example:80",
                "attempt(talk, '169.254.169.254', 8775)",
                "failed: ConnectionRefusedError\n",
                "the connection to 169.254.169.254:8775: no name in the policy resolved to it",
            ),
            // A server of the sandbox's own is no matter of the policy.
            ("web.example:80", "attempt(talk, '127.0.0.1', 81)", "failed: ConnectionRefusedError\n", ""),
            ("web.example:80", "attempt(talk, '198.18.200.200', 80)", "b''\n", "the connection to 198.18.200.200:80"),
            ("web.example:80", "attempt(talk, '198.18.0.1', 80)", "b''\n", "the connection to 198.18.0.1:80"),
            ("web.example:80", "attempt(talk, '127.0.0.1', 80)", "b''\n", "the connection to 127.0.0.1:80"),
            ("web.example:80", "attempt(talk, '::1', 80)", "failed: ConnectionRefusedError\n", ""),
            // Names that lead to this host or its networks.
            ("own.example:22", "attempt(talk, 'own.example', 22)", "b''\n", "the address is not public"),
            ("private.example:80", "attempt(talk, 'private.example', 80)", "b''\n", "the address is not public"),
            ("metadata.example:80", "attempt(talk, 'metadata.example', 80)", "b''\n", "the address is not public"),
            ("loopback.example:80", "attempt(talk, 'loopback.example', 80)", "b''\n", "the address is not public"),
        ] {
            fixture.check((user, policy), code, printed, denied);
        }
    }
}

/// Promise (Network): A policy can have 128 different ports.
#[test]
fn policies_have_many_ports() {
    let Some(fixture) = Fixture::new("policies_have_many_ports") else { return };
    let ports = |count| (20_000..20_000 + count).map(|port| format!("web.example:{port},")).collect::<String>();
    for user in USERS {
        let policy = format!("{}web.example:7,web.example:22", ports(126));
        let code = "print(talk('web.example', 7, b'abc'), talk('web.example', 22, b'x\\n'))";
        fixture.check((user, &policy), code, "b'3 bytes' b'banner\\necho x\\n'\n", "");
    }
    let (status, _, stderr) = fixture.python("0", &format!("{}web.example:7", ports(128)), "");
    assert!(status == 125 && stderr.contains("at most 128 different ports"), "{status} {stderr}");
}

/// Promise (Network): HTTP/2 over TLS passes, and is refused where the gateway intercepts TLS.
#[test]
fn http2_passes_over_tls_that_is_not_intercepted() {
    let Some(fixture) = Fixture::new("http2_passes_over_tls_that_is_not_intercepted") else { return };
    let code = r"
def frame(kind, flags, stream, body=b''):
    return len(body).to_bytes(3, 'big') + bytes((kind, flags)) + stream.to_bytes(4, 'big') + body
def http2(name, cafile):
    context = ssl.create_default_context(cafile=cafile)
    context.set_alpn_protocols(['h2'])
    with socket.create_connection((name, 8443), 15) as plain, context.wrap_socket(plain, server_hostname=name) as c:
        file = c.makefile('rwb')
        head = b'\x82\x87\x84\x41' + bytes([len(name)]) + name.encode()
        file.write(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(4, 0, 0) + frame(1, 5, 1, head))
        file.flush()
        while head := file.read(9):
            body = file.read(int.from_bytes(head[:3], 'big'))
            if head[3] == 0: return c.selected_alpn_protocol(), body
import os
bundle = os.environ.get('SSL_CERT_FILE')
try: print(http2('api.example', bundle or '/workspace/certificate.pem'))
except (ssl.SSLError, ConnectionResetError): print('failed')
# A server may close the connection before the request arrives.
if bundle: print({'RemoteDisconnected': 502}.get(code := status('https://api.example:8443/'), code))";
    for (protocol, printed, denied) in [
        ("tls", "('h2', b'over h2')\n", ""),
        // The client speaks nothing else, and then the server.
        ("https", "failed\n502\n", "the client must speak HTTP/1.1"),
    ] {
        let rule = format!("[[allow]]\nhost = \"api.example:8443\"\nprotocol = \"{protocol}\"\n");
        let (status, stdout, stderr) = fixture.run("0", &["--net-policy", &fixture.policy(&rule)], code);
        assert_eq!((status, stdout.as_str()), (0, printed), "{protocol}: {stderr}");
        assert!(stderr.contains(denied), "{protocol}: {stderr}");
    }
    assert_eq!(fixture.log("requests"), "h2\n");
}

/// Promise (Network): The gateway looks names up in DNS, and the answers lead to public addresses only, whenever they
/// change.
#[test]
fn names_of_dns_lead_to_public_addresses_only() {
    let Some(fixture) = Fixture::new("names_of_dns_lead_to_public_addresses_only") else { return };
    for (policy, code, printed, denied) in [
        ("named.example:7", "print(talk('named.example', 7, b'abc'))", "b'3 bytes'\n", ""),
        // One address is private: the other one serves.
        ("mixed.example:7", "print(talk('mixed.example', 7, b'abc'))", "b'3 bytes'\n", ""),
        // An answer changes after addresses of the first one are no longer used.
        (
            "turning.example:7",
            "import time\nprint(talk('turning.example', 7, b'abc'))\ntime.sleep(11)\n\
             attempt(talk, 'turning.example', 7)",
            "b'3 bytes'\nb''\n",
            "the address is not public",
        ),
        ("empty.example:7", "attempt(talk, 'empty.example', 7)", "b''\n", ""),
        ("missing.example:7", "attempt(talk, 'missing.example', 7)", "b''\n", ""),
    ] {
        fixture.check(("0", policy), code, printed, denied);
    }
    let queries = fixture.log("queries");
    assert!(queries.contains("turning.example 1\n"), "{queries}");
    // Nothing but names of policies is looked up.
    let queried: std::collections::BTreeSet<_> = queries.lines().filter_map(|line| line.split(' ').next()).collect();
    let expected = ["empty.example", "missing.example", "mixed.example", "named.example", "turning.example"];
    assert_eq!(queried, expected.into(), "{queries}");
}

/// Promise (Network): A connection of TLS or HTTP is for the name that was looked up, and for no other on the same server.
#[test]
fn connections_are_for_the_name_that_was_looked_up() {
    let Some(fixture) = Fixture::new("connections_are_for_the_name_that_was_looked_up") else { return };
    let tls = |name: &str| {
        format!(
            "context = ssl.create_default_context(cafile='/workspace/certificate.pem')\ncontext.check_hostname = False\n\
             def greet():\n    with socket.create_connection(('web.example', 443), 15) as plain:\n        \
             with context.wrap_socket(plain, server_hostname={name}) as connection: return connection.recv(100)\n\
             attempt(greet)"
        )
    };
    let ask = |lines: &str| format!("print(http('web.example', {lines:?})[:15])");
    let at_8080 = |lines: &str| format!("print(http('web.example', {lines:?}, 8080)[:15])");
    let host = |host: &str| ask(&format!("GET / HTTP/1.1\n{host}Connection: close\n\n"));
    for (code, printed, denied) in [
        (tls("'web.example'"), "b'secret greeting'", ""),
        (tls("'WEB.example'"), "b'secret greeting'", ""),
        (tls("'other.example'"), "failed: ", "TLS asks for other.example"),
        (tls("None"), "failed: ", "TLS asks for no name"),
        ("attempt(talk, 'web.example', 443, b'GET / HTTP/1.0\\r\\n\\r\\n')".to_owned(), "b''", "it is not TLS"),
        ("attempt(talk, 'web.example', 443, b'hello\\n')".to_owned(), "b''", "it is not TLS"),
        (
            "attempt(talk, 'web.example', 443, b'\\x16\\x03\\x01\\x00\\x04\\x02\\x00\\x00\\x00')".to_owned(),
            "b''",
            "invalid TLS",
        ),
        (
            "attempt(talk, 'web.example', 443, b'\\x16\\x03\\x01')".to_owned(),
            "b''",
            "its first message was never complete",
        ),
        (host("Host: web.example\n"), "b'HTTP/1.1 200 OK", ""),
        (host("Host: WEB.example:80\n"), "b'HTTP/1.1 200 OK", ""),
        (host("Host: other.example\n"), "b'HTTP/1.1 403", "the request is for other.example"),
        (host("Host: web.example:8080\n"), "b'HTTP/1.1 403", "the request is for web.example:8080"),
        (host(""), "b'HTTP/1.1 403", "must have one Host header"),
        (host("Host: web.example\nHost: other.example\n"), "b'HTTP/1.1 403", "must have one Host header"),
        (
            ask("GET http://other.example/ HTTP/1.1\nHost: web.example\nConnection: close\n\n"),
            "b'HTTP/1.1 403",
            "other.example",
        ),
        (
            ask("CONNECT other.example:80 HTTP/1.1\nHost: web.example\nConnection: close\n\n"),
            "b'HTTP/1.1 403",
            "through another server",
        ),
        (ask("PRI * HTTP/2.0\n\nSM\n\n"), "b''", "it is not valid HTTP/1"),
        // Requests that servers accept and strict parsers do not, on another port.
        (at_8080("PRI * HTTP/2.0\n\nSM\n\n"), "b''", "HTTP/2 without TLS"),
        (
            at_8080(&format!("{}GET / HTTP/1.1\nHost: other.example\nConnection: close\n\n", "\n".repeat(60))),
            "b'HTTP/1.1 403",
            "the request is for other.example",
        ),
        (at_8080("GET\t/\tHTTP/1.1\nHost: other.example\n\n"), "b'HTTP/1.1 400", "it is not valid HTTP/1"),
        (at_8080(" GET / HTTP/1.1\nHost: other.example\n\n"), "b'HTTP/1.1 400", "it is not valid HTTP/1"),
        (at_8080("GET /\nHost: other.example\n\n"), "b'HTTP/1.1 400", "it is not valid HTTP/1"),
        (
            at_8080(&format!("{} / HTTP/1.1\nHost: other.example\n\n", "A".repeat(40_000))),
            "b'HTTP/1.1 403",
            "the request is for other.example",
        ),
        // The second request of a connection.
        (
            ask("GET /1 HTTP/1.1\nHost: web.example\n\nGET /2 HTTP/1.1\nHost: other.example\nConnection: close\n\n"),
            "b'HTTP/1.1 200 OK",
            "the request is for other.example",
        ),
        // Two lengths, and a length beside chunks: none of the bodies becomes a request.
        (
            ask("POST / HTTP/1.1\nHost: web.example\nContent-Length: 1\nContent-Length: 2\nConnection: close\n\nab"),
            "b'HTTP/1.1 400",
            "it is not valid HTTP/1",
        ),
    ] {
        fixture.check(("0", "web.example:80,web.example:443,web.example:8080"), &code, printed, denied);
    }
}

/// Promise (Network): Bodies, keep-alive and WebSockets pass through the gateway, and another upgrade does not.
#[test]
fn requests_and_upgrades_pass() {
    let Some(fixture) = Fixture::new("requests_and_upgrades_pass") else { return };
    for (code, printed) in [
        (
            "import http.client\nc = http.client.HTTPConnection('web.example')\n\
             for n in range(3):\n    c.request('POST', f'/{n}', b'x' * 100_000 * n)\n    print(len(c.getresponse().read()))\n\
             c.request('PUT', '/c', iter([b'ab', b'cd']), encode_chunked=True, headers={'Transfer-Encoding': 'chunked'})\n\
             print(c.getresponse().read())",
            "29\n100029\n200029\nb'PUT /c HTTP/1.1 web.example abcd'\n",
        ),
        (
            "with socket.create_connection(('web.example', 80)) as c:\n    \
             c.sendall(b'GET / HTTP/1.1\\r\\nHost: web.example\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n')\n    \
             head = c.recv(4096); c.sendall(b'frame'); print(head[:12], b'connection: upgrade\\r\\n' in head.lower(), c.recv(4096))",
            "b'HTTP/1.1 101' True b'echo frame'\n",
        ),
        (
            "print(http('web.example', 'GET / HTTP/1.1\\nHost: web.example\\nConnection: Upgrade, close\\nUpgrade: h2c\\n\\n')[:15])",
            "b'HTTP/1.1 200 OK'\n",
        ),
        (
            "print(talk('web.example', 80, b'GET / HTTP/1.1\\r\\nHost: web.example\\r\\nConnection: close\\r\\n\\r\\n')[:15])",
            "b'HTTP/1.1 200 OK'\n",
        ),
    ] {
        let (status, stdout, stderr) = fixture.python("0", "web.example:80", code);
        assert_eq!((status, stdout.as_str()), (0, printed), "{code}: {stderr}");
    }
}

/// Promise (Network): A sandbox that opens many connections, or never completes a message, harms itself alone.
#[test]
fn many_connections_are_bounded() {
    let Some(fixture) = Fixture::new("many_connections_are_bounded") else { return };
    let code = "held = []\n\
        try:\n    \
            for n in range(400):\n        \
                c = socket.create_connection(('web.example', 7), 15); held.append(c)\n\
        except OSError: pass\n\
        closed = 0\n\
        for c in held:\n    \
            c.settimeout(0.01)\n    \
            try: closed += c.recv(1) == b''\n    \
            except ConnectionResetError: closed += 1\n    \
            except TimeoutError: pass\n\
        print(len(held), len(held) - closed)\n\
        for c in held: c.close()\n\
        print(talk('web.example', 7, b'abc'))";
    let (status, stdout, stderr) = fixture.python("0", "web.example:7,web.example:9", code);
    assert_eq!((status, stdout.as_str()), (0, "400 64\nb'3 bytes'\n"), "{stderr}");
    assert!(stderr.contains("too many are open"), "{stderr}");
}

/// Promise (Network): After a run with a network, no process and no namespace is left.
#[test]
fn a_killed_run_leaves_no_namespace() {
    let Some(fixture) = Fixture::new("a_killed_run_leaves_no_namespace") else { return };
    // Of the processes in this place only: other tests have namespaces, too.
    let namespaces = || {
        let mut list = Command::new("nsenter");
        list.args(["--mount", "--net", "--pid", "--target", &fixture.first.to_string()]);
        let (_, stdout, _) = outcome(list.args(["sh", "-c", "readlink /proc/[0-9]*/ns/net"]));
        stdout.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
    };
    let before = namespaces();
    assert!(!before.is_empty(), "the network of the servers is seen");
    let (status, _, stderr) = fixture.python(
        "0",
        "web.example:7",
        "socket.create_connection(('web.example', 7)); import os; os.kill(os.getpid(), 9)",
    );
    assert_eq!(status, 137, "{stderr}");
    let open = "connection = socket.create_connection(('web.example', 9)); connection.send(b'x'); sys.exit(3)";
    let (status, _, stderr) = fixture.python("0", "web.example:9", open);
    assert_eq!(status, 3, "{stderr}");
    let begun = std::time::Instant::now();
    while !namespaces().is_subset(&before) {
        assert!(begun.elapsed().as_secs() < 20, "a network namespace is left");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
