//! Policies of live sandboxes of a server, which its clients replace.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{Fixture, PRELUDE, outcome};

/// A server in the servers' network. Dropping it ends it.
struct Server<'a> {
    fixture: &'a Fixture,
    child: Child,
    state: tempfile::TempDir,
}

impl<'a> Server<'a> {
    fn start(fixture: &'a Fixture) -> Self {
        let state = tempfile::tempdir().expect("a directory");
        let mut serve = program(fixture, state.path());
        serve.args(["serve", "--allow-network", "--allow-weaker", crate::cli::WEAKER]);
        let mut child = serve.stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("serving unix:")), "it serves");
        // Its other lines are read, so that it never waits.
        std::thread::spawn(move || lines.for_each(drop));
        Self { fixture, child, state }
    }

    fn socket(&self) -> PathBuf {
        self.state.path().join("cofferdam/server.sock")
    }

    /// Returns the metrics of the server, which a client in its namespaces asks for.
    fn metrics(&self) -> String {
        let code = "import http.client, socket, sys\n\
                    server = http.client.HTTPConnection('localhost')\n\
                    server.sock = socket.socket(socket.AF_UNIX)\nserver.sock.connect(sys.argv[1])\n\
                    server.request('GET', '/v1/metrics')\nprint(server.getresponse().read().decode())";
        let (status, stdout, stderr) = outcome(self.fixture.enter().args(["python3", "-c", code]).arg(self.socket()));
        assert_eq!(status, 0, "{stderr}");
        stdout
    }

    fn client(&self, words: &[&str]) -> Command {
        let mut command = program(self.fixture, self.state.path());
        command.args(words);
        command
    }

    /// Runs a client that succeeds, and returns what it prints.
    fn ask(&self, words: &[&str]) -> String {
        let (code, stdout, stderr) = outcome(&mut self.client(words));
        assert_eq!((code, stderr.as_str()), (0, ""), "{words:?}: {stdout}");
        stdout
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = outcome(&mut self.client(&["serve", "stop"]));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program in the servers' network, with a state and a runtime directory of its own.
fn program(fixture: &Fixture, directory: &std::path::Path) -> Command {
    let mut command = fixture.enter();
    command.arg(env!("CARGO_BIN_EXE_cofferdam"));
    command.env("XDG_STATE_HOME", directory).env("XDG_RUNTIME_DIR", directory).env("HOME", directory);
    command
}

/// Keeps a connection to the first name until it ends, then tries both names again.
const CLIENT: &str = r"
import socket, sys
def attempt(name):
    try:
        with socket.create_connection((name, 22), 15) as connection: return connection.recv(6)
    except OSError as error: return type(error).__name__
connection = socket.create_connection(('web.example', 22), 15)
print(connection.recv(6), flush=True)
try:
    while connection.recv(100): pass
except ConnectionResetError: pass
print('ended', attempt('web.example'), attempt('other.example'), flush=True)
";

/// Promise (Network): `net set` replaces the policy of a live sandbox of a server: its connections end, its old host is
/// refused and the new one is reached. A policy that is refused changes nothing.
#[test]
fn the_policy_of_a_sandbox_of_a_server_is_replaced() {
    let Some(fixture) = Fixture::new("the_policy_of_a_sandbox_of_a_server_is_replaced") else { return };
    let server = Server::start(&fixture);
    server.ask(&["create", "--name", "build", "--net", "web.example:22"]);
    assert_eq!(server.ask(&["net", "show", "build"]), "build: allows web.example:22\n");
    let mut exec = server.client(&["exec", "build", "--", "python3", "-c", CLIENT]);
    let mut exec = exec.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stdout = BufReader::new(exec.stdout.take().expect("piped"));
    let mut first = String::new();
    stdout.read_line(&mut first).expect("it is text");
    assert_eq!(first, "b'banner'\n");

    for (words, reason) in [
        (&["--net", "not a host:22"][..], "host"),
        (&["--net", "other.example:23"], "port"),
        (&["--net", "127.0.0.1:22"], "names hosts, not addresses"),
        (&[], "--net"),
        (&["--net", "none", "--net-policy", "/dev/null"], "--net-policy"),
    ] {
        let (code, _, stderr) = outcome(server.client(&["net", "set", "build"]).args(words));
        assert!(code != 0 && stderr.contains(reason), "{words:?}: {code} {stderr}");
    }
    let (code, _, stderr) = outcome(&mut server.client(&["net", "set", "other", "--net", "none"]));
    assert!(code == 127 && stderr.contains("no such sandbox"), "{code} {stderr}");
    assert_eq!(server.ask(&["net", "show", "build"]), "build: allows web.example:22\n");

    assert_eq!(server.ask(&["net", "set", "build", "--net", "other.example:22"]), "build: allows other.example:22\n");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("it is text");
    assert_eq!(rest, "ended gaierror b'banner'\n");
    assert!(exec.wait().expect("it ends").success());

    let policy = fixture.policy("[[allow]]\nhost = \"web.example:22\"\nmax_requests = 5\n");
    let shown = server.ask(&["net", "set", "build", "--net-policy", &policy, "--json"]);
    assert_eq!(crate::cli::json(&shown)["allow"][0]["max_requests"], 5, "{shown}");
    server.ask(&["create", "--name", "ruled", "--net-policy", &policy]);
    let shown = server.ask(&["net", "show", "ruled", "--json"]);
    assert_eq!(crate::cli::json(&shown)["allow"][0]["max_requests"], 5, "{shown}");
    assert_eq!(server.ask(&["net", "set", "build", "--net", "none"]), "build: allows no network\n");
    assert_eq!(crate::cli::json(&server.ask(&["net", "show", "build", "--json"]))["kind"], "none");
}

/// Promise (Network): The metrics of a server count the connections of its sandboxes, and what their policies refused.
#[test]
fn metrics_count_connections_and_refusals() {
    let Some(fixture) = Fixture::new("metrics_count_connections_and_refusals") else { return };
    let server = Server::start(&fixture);
    server.ask(&["create", "--name", "build", "--net", "web.example:7"]);
    let code = "print(talk('web.example', 7, b'abc'), talk('web.example', 7, b'abcd'))\n\
                attempt(talk, 'web.example', 22)\nattempt(socket.gethostbyname, 'other.example')";
    let code = format!("{PRELUDE}\n{code}");
    let (status, stdout, stderr) = outcome(&mut server.client(&["exec", "build", "--", "python3", "-c", &code]));
    let expected = "b'3 bytes' b'4 bytes'\nfailed: ConnectionRefusedError\nfailed: gaierror\n";
    assert_eq!((status, stdout.as_str()), (0, expected), "{stderr}");
    server.ask(&["rm", "build"]);
    let metrics = server.metrics();
    for (name, labels, count) in [
        ("connections", "", 3),
        ("refused", "", 2),
        ("bytes", ",direction=\"sent\"", 7),
        ("bytes", ",direction=\"received\"", 14),
    ] {
        let line = format!("cofferdam_network_{name}_total{{backend=\"process\"{labels}}} {count}\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

/// Promise (Network): The policy of a live sandbox can be replaced through the remote backend.
#[test]
fn the_remote_backend_replaces_the_policy() {
    let Some(fixture) = Fixture::new("the_remote_backend_replaces_the_policy") else { return };
    let server = Server::start(&fixture);
    let socket = format!("unix:{}", server.socket().display());
    let case = "network/policy-of-a-live-sandbox";
    let mut suite = server.client(&["conformance", "--backend", "remote", "--filter", case]);
    let (code, stdout, stderr) = outcome(suite.env("COFFERDAM_SERVER", socket));
    assert!(code == 0 && stdout.contains("1 passed"), "{code} {stdout} {stderr}");
}
