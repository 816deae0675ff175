//! Published ports, with clients on the host.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{json, outcome, run};

/// Time for an answer, on a host under load.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Echoes each connection, and then sends the number of its bytes.
pub const ECHO: &str = r#"
import socket, sys, threading
def serve(connection):
    total = 0
    while data := connection.recv(65536):
        total += len(data)
        connection.sendall(data)
    connection.sendall(b"end %d" % total)
    connection.close()
kind, host = (socket.AF_INET6, "::1") if sys.argv[1:] else (socket.AF_INET, "127.0.0.1")
listener = socket.create_server((host, 8000), family=kind)
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"#;

/// A run with published ports.
pub struct Serving {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// The addresses, in the order of the options.
    pub addresses: Vec<String>,
}

impl Serving {
    /// Starts a run that publishes `count` ports, and waits until its command prints a line.
    pub fn start(command: &mut Command, count: usize) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let addresses = (0..count).map(|_| {
            let mut line = String::new();
            stderr.read_line(&mut line).expect("it can be read");
            let address = line.strip_prefix("cofferdam: published ").and_then(|rest| rest.split(" -> ").next());
            address.unwrap_or_else(|| panic!("{line}")).to_owned()
        });
        let addresses = addresses.collect();
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it can be read");
        assert_ne!(line, "", "the command has started");
        Self { child, stderr, addresses }
    }

    /// Stops the run. Returns its exit status and the rest of its standard error.
    pub fn stop(mut self) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it is our child");
        self.wait()
    }

    fn wait(&mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).expect("it can be read");
        (self.child.wait().expect("it ends").code(), rest)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client of either kind.
pub trait Client: Read + Write {
    fn end_sending(&self) -> io::Result<()>;
}

impl Client for TcpStream {
    fn end_sending(&self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

impl Client for UnixStream {
    fn end_sending(&self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

/// Connects to a published address.
pub fn client(address: &str) -> io::Result<Box<dyn Client>> {
    if let Some(path) = address.strip_prefix("unix:") {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        return Ok(Box::new(stream));
    }
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(Box::new(stream))
}

/// Sends data and its end. Returns what arrives before the other end. The data must fit into buffers on the way.
pub fn exchange(address: &str, data: &[u8]) -> Vec<u8> {
    let mut client = client(address).expect("it is published");
    let mut answer = Vec::new();
    client.write_all(data).and_then(|()| client.end_sending()).expect("it is connected");
    client.read_to_end(&mut answer).expect("the connection ends in order");
    answer
}

fn publishing<'a>(options: impl IntoIterator<Item = &'a str>) -> Command {
    run(options.into_iter().chain(["--timeout", "120s", "--", "python3", "-c", ECHO]))
}

/// Promise (Network): A published port leads to the server in the sandbox, from loopback addresses or a Unix socket.
#[test]
fn published_ports_lead_to_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let unix = format!("unix:{}", socket.display());
    let (named, options) = (format!("{unix}:8000"), ["--publish", "0:8000", "--publish", "[::1]:0:8000", "--publish"]);
    let serving = Serving::start(&mut publishing(options.into_iter().chain([&*named])), 3);
    assert!(serving.addresses[0].starts_with("127.0.0.1:"), "{:?}", serving.addresses);
    assert!(serving.addresses[1].starts_with("[::1]:"), "{:?}", serving.addresses);
    assert_eq!(serving.addresses[2], unix);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let addresses = serving.addresses.clone();
    for address in &addresses {
        assert_eq!(exchange(address, b"hello"), b"helloend 5", "{address}");
    }
    let (status, stderr) = serving.stop();
    assert_eq!(status, Some(143), "{stderr}");
    assert!(!socket.exists());
    for address in &addresses {
        assert!(client(address).is_err(), "{address} outlives the run");
    }
}

#[test]
fn a_server_on_ipv6_alone_is_reached() {
    let mut command = publishing(["--publish", "0:8000"]);
    let serving = Serving::start(command.arg("ipv6"), 1);
    assert_eq!(exchange(&serving.addresses[0], b"x"), b"xend 1");
}

/// Promise (Network): Clients of a published port do not wait for each other, and each direction ends by itself.
#[test]
fn clients_do_not_wait_for_each_other() {
    let serving = Serving::start(&mut publishing(["--publish", "0:8000"]), 1);
    let address = &serving.addresses[0];
    let mut idle = client(address).unwrap();
    idle.write_all(b"a").unwrap();
    let data = vec![b'x'; 4 << 20];
    let sender = TcpStream::connect(address).unwrap();
    let mut answer = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&sender).write_all(&data).unwrap();
            sender.end_sending().unwrap();
        });
        (&sender).read_to_end(&mut answer).unwrap();
    });
    assert_eq!(&answer[data.len()..], b"end 4194304");
    assert!(answer.starts_with(&data));
    let mut byte = [0];
    idle.read_exact(&mut byte).unwrap();
    idle.write_all(b"b").unwrap();
    idle.end_sending().unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert_eq!((byte, rest.as_slice()), ([b'a'], &b"bend 2"[..]));
}

/// Promise (Network): Connections of a published port end with the run, and do not delay its end.
#[test]
fn connections_end_with_the_run() {
    let once = r#"
import os, signal, socket, sys
listener = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
connection = listener.accept()[0]
word = connection.recv(100)
connection.sendall(b"last words" * 1000)
os.kill(os.getpid(), signal.SIGKILL) if word == b"kill" else sys.exit(3)
"#;
    for (word, expected) in [("kill", 137), ("exit", 3)] {
        let mut serving = Serving::start(&mut run(["--publish", "0:8000", "--", "python3", "-c", once]), 1);
        let mut client = client(&serving.addresses[0]).unwrap();
        client.write_all(word.as_bytes()).unwrap();
        let (status, stderr) = serving.wait();
        assert_eq!(status, Some(expected), "{stderr}");
        // The client has not ended its side.
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), 10_000, "what the server sent before its end arrives");
    }
}

/// Promise (Network): A client of a published port without a server is disconnected, and the run reports it.
#[test]
fn a_port_without_a_server_disconnects_its_client() {
    let serving = Serving::start(&mut run(["--publish", "0:8001", "--", "sh", "-c", "echo ready; sleep 100"]), 1);
    assert_eq!(exchange(&serving.addresses[0], b""), b"");
    let (_, stderr) = serving.stop();
    assert!(stderr.contains("1 of the connections to 127.0.0.1:"), "{stderr}");
    assert!(stderr.contains("no program in the sandbox listens on port 8001"), "{stderr}");
}

#[cfg(feature = "net")]
#[test]
fn a_port_of_the_network_policy_is_not_connected() {
    let options = ["--net", "example.com:443", "--publish", "0:8000", "--publish", "0:443"];
    let serving = Serving::start(&mut publishing(options), 2);
    assert_eq!(exchange(&serving.addresses[0], b"x"), b"xend 1");
    assert_eq!(exchange(&serving.addresses[1], b""), b"");
    let (_, stderr) = serving.stop();
    assert!(stderr.contains("port 443 of the sandbox belongs to its network policy"), "{stderr}");
}

/// Promise (Network): A run is refused before its sandbox exists if a port cannot be published, or only by an address
/// that other hosts can reach.
#[test]
fn ports_that_cannot_be_published_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let occupied = format!("{}:8000", listener.local_addr().unwrap().port());
    let exists = format!("unix:{}:8000", file.display());
    let many = ["--publish", "0:8000"].repeat(17);
    for (options, expected) in [
        (&["--publish", &*occupied][..], "the address is in use"),
        (&["--publish", &exists], "the file exists"),
        (&["--publish", "unix:/nowhere/socket:8000"], "the socket cannot be created"),
        (&["--publish", "0.0.0.0:0:8000"], "--publish-beyond-loopback"),
        (&["--publish", "[::]:0:8000"], "--publish-beyond-loopback"),
        (&["--publish", "[::ffff:10.0.0.1]:0:8000"], "--publish-beyond-loopback"),
        (&["--publish", "8000"], "[ADDR:]PORT:GUEST"),
        (&["--publish", "8000:0"], "'0' is not a port of the sandbox"),
        (&["--publish-beyond-loopback"], "--publish"),
        (&many, "at most 16 ports"),
        (&["--backend", "simulated", "--publish", "0:8000"], "cannot connect to ports of a sandbox"),
    ] {
        let marker = directory.path().join("mark");
        let workspace = &format!("{}:rw", directory.path().display());
        let mut words = options.to_vec();
        if !words.contains(&"simulated") {
            words.extend(["--disk", "none", "--workspace", workspace]);
        }
        let (status, stdout, stderr) = outcome(&mut run(words.into_iter().chain(["--", "touch", "mark"])));
        assert_eq!((status, stdout.as_str()), (125, ""), "{options:?}: {stderr}");
        assert!(stderr.contains(expected), "{options:?}: {stderr}");
        assert!(!marker.exists(), "{options:?}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

#[test]
fn published_ports_are_in_the_document() {
    let options = ["--json", "--publish-beyond-loopback", "--publish", "0.0.0.0:0:8000", "--", "true"];
    let (status, stdout, stderr) = outcome(&mut run(options));
    assert_eq!(status, 0, "{stderr}");
    let published = &json(&stdout)["published"][0];
    assert!(published["address"].as_str().unwrap().starts_with("0.0.0.0:"), "{published}");
    assert_eq!(published["port"], 8000);
    let (_, stdout, stderr) = outcome(&mut run(["--quiet", "--events", "--publish", "0:8000", "--", "true"]));
    assert_eq!(stderr, "");
    assert!(json(stdout.lines().next().unwrap())["published"][0]["address"].is_string(), "{stdout}");
}
