//! Clients of live sandboxes: cut connections, renames, usage and prunes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::terminal::Terminal;
use super::{Server, WEAKER, json, outcome, program};

/// A proxy that cuts connections.
struct Proxy {
    url: String,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let to = server.url.strip_prefix("http://").unwrap().to_owned();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let open = Arc::clone(&streams);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&to) else { return };
                // Known before the first byte passes, so that a cut reaches it.
                open.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Self { url, streams }
    }

    /// Waits until a client has connected again after a cut.
    fn wait_for_a_client(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.streams.lock().unwrap().is_empty() {
            assert!(Instant::now() < deadline, "the client does not connect again");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cuts all connections, and returns their number.
    fn cut(&self) -> usize {
        let streams = std::mem::take(&mut *self.streams.lock().unwrap());
        streams.iter().filter(|stream| stream.shutdown(Shutdown::Both).is_ok()).count()
    }
}

/// Reads until the text has arrived.
fn wait_for(child: &mut Child, text: &str) {
    let (mut seen, mut piece) = (Vec::new(), [0; 256]);
    while !String::from_utf8_lossy(&seen).contains(text) {
        let count = child.stdout.as_mut().unwrap().read(&mut piece).unwrap();
        assert!(count > 0, "the output ends with {seen:?}");
        seen.extend_from_slice(&piece[..count]);
    }
}

/// Promise (Server): A command continues with its input and output after its client's connection was cut, and another
/// client can attach to it.
#[test]
fn a_cut_connection_is_made_again() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--without-keys"]);
    let proxy = Proxy::before(&server);
    server.ask(&["create", "--name", "box"]);
    let script = "read a; echo one-$a; read b; echo two-$b; exit 5";
    let mut client = server.client(&["exec", "-i", "box", "--", "sh", "-c", script]);
    let client = client.env("COFFERDAM_SERVER", &proxy.url).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = client.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"a\n").unwrap();
    wait_for(&mut child, "one-a\n");
    assert!(proxy.cut() >= 1, "no connection was cut");
    // Input that was sent before the cut was noticed may be lost, so it is sent over the new connection.
    proxy.wait_for_a_client();
    input.write_all(b"b\n").unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), &*String::from_utf8_lossy(&ended.stdout)), (Some(5), "two-b\n"), "{ended:?}");

    let exec = server.ask(&["exec", "--detach", "box", "--", "sh", "-c", "echo 12345; sleep 0.4; echo end; exit 6"]);
    let attached = outcome(&mut server.client(&["attach", "box"]));
    assert_eq!((attached.0, attached.1.as_str()), (6, "12345\nend\n"), "{attached:?}");
    let again = outcome(&mut server.client(&["attach", "--offset", "3", "box", exec.trim()]));
    assert_eq!((again.0, again.1.as_str()), (6, "45\nend\n"), "{again:?}");
    let (code, _, stderr) = outcome(&mut server.client(&["attach", "box"]));
    assert!(code == 127 && stderr.contains("no command runs in this sandbox"), "{stderr}");
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): `exec` and `attach` print what the network policy refused while the command ran, as `run` does.
#[cfg(feature = "net")]
#[test]
fn exec_prints_refusals_of_the_network_policy() {
    let server = Server::start(&["--allow-network"]);
    server.ask(&["create", "--name", "box", "--net", "allowed.example:80"]);
    let refused = |name: &str| {
        format!(
            "cofferdam: network: refused the look-up of {name}: the policy does not list it; --net {name}:PORT would \
             allow it"
        )
    };
    let mut run = program(server.state.path());
    run.args(["run", "--allow-weaker", WEAKER, "--net", "allowed.example:80"]);
    run.args(["--", "getent", "ahostsv4", "zero.example"]);
    let (code, _, of_run) = outcome(&mut run);
    assert!(code == 2 && of_run.contains(&refused("zero.example")), "{code} {of_run}");
    for name in ["one.example", "two.example"] {
        let (code, stdout, stderr) = outcome(&mut server.client(&["exec", "box", "--", "getent", "ahostsv4", name]));
        assert_eq!((code, stdout.as_str(), stderr), (2, "", of_run.replace("zero.example", name)));
    }
    // Nothing is refused.
    server.ask(&["exec", "box", "--", "true"]);
    let (code, stdout, stderr) =
        outcome(&mut server.client(&["exec", "--json", "box", "--", "getent", "ahostsv4", "three.example"]));
    let denials = &json(&stdout)["network_denials"];
    assert!(denials[0].as_str().is_some_and(|denial| refused("three.example").contains(denial)), "{stdout}");
    assert_eq!((code, stderr.as_str(), denials[1].is_null()), (2, "", true), "{stdout}");
    let script = "echo on; sleep 1; getent ahostsv4 four.example";
    server.ask(&["exec", "--detach", "box", "--", "sh", "-c", script]);
    let (code, stdout, stderr) = outcome(&mut server.client(&["attach", "box"]));
    assert_eq!((code, stdout.as_str()), (2, "on\n"), "{stderr}");
    assert!(stderr.contains(&refused("four.example")), "{stderr}");
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): `exec -it` gives a terminal with the client's size and keys, which survives a cut connection and can
/// be left with Ctrl-] while its command runs on.
#[test]
fn a_terminal_survives_a_cut_connection() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--without-keys"]);
    let proxy = Proxy::before(&server);
    server.ask(&["create", "--name", "box"]);
    let mut terminal = Terminal::new();
    terminal.resize(41, 101);
    let mut client = server.client(&["exec", "-it", "box", "--", "sh"]);
    client.env("COFFERDAM_SERVER", &proxy.url).stdin(terminal.stdio()).stdout(terminal.stdio());
    let mut child = client.stderr(terminal.stdio()).spawn().unwrap();
    let type_line = |terminal: &mut Terminal, keys: &[u8], expected: &str| {
        terminal.screen.write_all(keys).unwrap();
        terminal.read_until(expected)
    };
    // The sums differ from the echo of the keys.
    type_line(&mut terminal, b"x=40; stty size; echo ready $((x + 2))\r", "ready 42");
    assert!(!terminal.is_cooked());
    type_line(&mut terminal, b"stty size\r", "41 101");
    type_line(&mut terminal, b"sleep 600; echo after $((x + 3))\r", "\r\n");
    type_line(&mut terminal, b"\x03", "^C");
    assert!(proxy.cut() >= 1, "no connection was cut");
    proxy.wait_for_a_client();
    type_line(&mut terminal, b"echo again $((x + 4))\r", "again 44");

    terminal.screen.write_all(b"\x1d").unwrap();
    let left = terminal.read_until("cofferdam attach");
    assert!(child.wait().unwrap().success(), "{left}");
    assert!(terminal.is_cooked());
    assert_eq!(json(&server.ask(&["ls", "--json"]))["sandboxes"][0]["running"], 1);
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): A client that leaves a command with a signal leaves it running.
#[test]
fn a_signal_leaves_an_attached_command_running() {
    let server = Server::start(&[]);
    server.ask(&["create", "--name", "box"]);
    let exec = server.ask(&["exec", "--detach", "box", "--", "sh", "-c", "echo on; sleep 60"]);
    let mut child = server.client(&["attach", "box"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&mut child, "on\n");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let left = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&left.stderr);
    let command = format!("cofferdam attach --offset 3 box {}", exec.trim());
    assert!(left.status.success() && stderr.contains(&command), "{stderr}");
    assert_eq!(json(&server.ask(&["ls", "--json"]))["sandboxes"][0]["running"], 1);
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): Sandboxes are paused, extended, renamed, measured and pruned from the command line.
#[test]
fn sandboxes_are_paused_renamed_measured_and_pruned() {
    let server = Server::start(&["--backend", "process", "--backend", "simulated"]);
    server.ask(&["create", "--name", "one"]);
    server.ask(&["create", "--name", "quiet", "--backend", "simulated", "--label", "job=7"]);
    let paused = json(&server.ask(&["pause", "--json", "quiet"]));
    assert_eq!(paused["sandboxes"][0]["state"], "paused");
    server.ask(&["resume", "quiet"]);
    let (code, _, stderr) = outcome(&mut server.client(&["pause", "one"]));
    assert!(code == 125 && stderr.contains("cannot pause"), "{code} {stderr}");
    let extended = json(&server.ask(&["extend", "--json", "--idle", "2m", "one"]));
    assert_eq!(extended["idle"], 120.0);
    server.ask(&["rename", "one", "two"]);
    assert_eq!(outcome(&mut server.client(&["rename", "one", "three"])).0, 127);

    server.ask(&["exec", "--detach", "two", "--", "sh", "-c", "while :; do :; done"]);
    let measured = json(&server.ask(&["stats", "--json", "two"]));
    let [stats] = measured["sandboxes"].as_array().unwrap().as_slice() else { panic!("{measured}") };
    assert!(stats["cpu_percent"].as_f64().is_none_or(|percent| percent > 10.0), "{measured}");
    assert_eq!((&stats["name"], stats["limits"]["disk"].is_null()), (&"two".into(), false), "{measured}");
    let table = server.ask(&["stats"]);
    assert!(table.lines().count() == 3 && table.contains("MEMORY / LIMIT") && table.contains(" two "), "{table}");

    let (code, _, stderr) = outcome(&mut server.client(&["prune"]));
    assert!(code == 125 && stderr.contains("1 sandboxes would be closed"), "{stderr}");
    assert_eq!(server.ask(&["prune", "--yes", "--label", "job=8"]), "");
    assert_eq!(server.ask(&["prune", "--yes", "--unused", "1h"]), "");
    assert_eq!(json(&server.ask(&["prune", "--yes", "--json"]))["removed"].as_array().unwrap().len(), 1);
    assert_eq!(json(&server.ask(&["ls", "--json"]))["sandboxes"][0]["name"], "two", "a command runs in it");
    assert_eq!(server.ask(&["prune", "--yes", "--running"]).lines().count(), 1);
    assert_eq!(json(&server.ask(&["ls", "--json"]))["sandboxes"].as_array().unwrap().len(), 0);
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): Snapshots are taken, listed, moved to another server and restored from the command line.
#[test]
fn snapshots_are_taken_moved_and_restored() {
    let backends = &["--backend", "simulated", "--backend", "process"];
    let server = Server::start(backends);
    let here = server.state.path();
    server.ask(&["create", "--name", "box"]);
    std::fs::write(here.join("x"), "one").unwrap();
    server.ask(&["cp", "x", "box:d/x"]);
    let id = server.ask(&["snapshot", "take", "--name", "base", "box"]);
    assert!(id.starts_with("sn-"), "{id}");
    server.ask(&["fork", "--name", "copy", "box"]);
    assert_eq!(server.ask(&["cp", "copy:d/x", "-"]), "one");
    let listed = server.ask(&["snapshot", "ls"]);
    assert!(listed.lines().count() == 2 && listed.contains(" base ") && listed.contains(id.trim()), "{listed}");
    server.ask(&["snapshot", "download", "base", "base.tar"]);
    assert_eq!(
        outcome(&mut server.client(&["snapshot", "download", "base", "base.tar"])).0,
        125,
        "it replaces nothing"
    );

    let other = Server::start(backends);
    let file = here.join("base.tar");
    other.ask(&["snapshot", "upload", "--name", "moved", file.to_str().unwrap()]);
    other.ask(&["create", "--name", "restored", "--snapshot", "moved"]);
    assert_eq!(other.ask(&["cp", "restored:d/x", "-"]), "one");
    other.ask(&["snapshot", "rm", "moved"]);
    assert_eq!(json(&other.ask(&["snapshot", "ls", "--json"]))["snapshots"].as_array().unwrap().len(), 0);
    assert_eq!(other.stop(), Some(0));

    server.ask(&["create", "--name", "plain", "--backend", "process"]);
    let (code, _, stderr) = outcome(&mut server.client(&["snapshot", "take", "plain"]));
    assert!(code == 125 && stderr.contains("stores no snapshots of the backend 'process'"), "{stderr}");
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): A volume of a server is created, mounted, listed and deleted from the command line, and is no volume
/// of this host.
#[test]
fn volumes_of_a_server_are_used() {
    let server = Server::start(&["--disk", "none"]);
    let created = json(&server.ask(&["volume", "create", "data", "--size", "none", "--on-server", "--json"]));
    assert_eq!((&created["name"], &created["size"]), (&"data".into(), &serde_json::Value::Null));
    server.ask(&["create", "--name", "a", "--volume", "data:/data"]);
    server.ask(&["exec", "a", "--", "sh", "-c", "echo kept > /data/x"]);
    let (code, _, stderr) = outcome(&mut server.client(&["volume", "rm", "data", "--server", &server.url]));
    assert!(code == 125 && stderr.contains("the volume is in use by a sandbox"), "{stderr}");
    server.ask(&["rm", "a"]);
    server.ask(&["create", "--name", "b", "--volume", "data:/data:ro"]);
    assert_eq!(server.ask(&["exec", "b", "--", "cat", "/data/x"]), "kept\n");
    let listed = server.ask(&["volume", "ls", "--on-server"]);
    assert!(listed.starts_with("data ") && listed.trim_end().ends_with("in use"), "{listed}");
    assert_eq!(server.ask(&["volume", "ls"]), "", "the host's own volumes are others");
    server.ask(&["rm", "b"]);
    assert_eq!(json(&server.ask(&["volume", "inspect", "data", "--on-server", "--json"]))["in_use"], false);
    server.ask(&["volume", "rm", "data", "--on-server"]);
    assert_eq!(json(&server.ask(&["volume", "ls", "--on-server", "--json"]))["volumes"], serde_json::json!([]));
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): A local address leads to a port of a sandbox until its command ends.
#[test]
fn a_port_is_forwarded() {
    let server = Server::start(&[]);
    server.ask(&["create", "--name", "box"]);
    let code = "import socket; l = socket.create_server(('127.0.0.1', 8000)); print('up', flush=True)\n\
                while True: c = l.accept()[0]; c.sendall(c.recv(99).upper()); c.close()";
    let exec = server.ask(&["exec", "--detach", "box", "--", "python3", "-c", code]);
    let mut logs = server.client(&["logs", "box", exec.trim()]).stdout(Stdio::piped()).spawn().unwrap();
    wait_for(&mut logs, "up");
    let mut port = server.client(&["port", "box", "8000", "--listen", "127.0.0.1:0"]);
    let mut port = port.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(port.stderr.as_mut().unwrap()), &mut line).unwrap();
    let address = line.split(' ').nth(2).unwrap_or_else(|| panic!("{line}"));
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "HELLO");
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&port), rustix::process::Signal::INT).unwrap();
    assert_eq!(port.wait().unwrap().code(), Some(0));
    assert_eq!(outcome(&mut server.client(&["port", "no-such", "8000", "--listen", "127.0.0.1:0"])).0, 127);
    assert_eq!(server.stop(), Some(0));
    logs.wait().unwrap();
}

/// Promise (Server): Directories are copied into and out of a sandbox, and watched, from the command line.
#[test]
fn directories_are_copied_and_watched() {
    let server = Server::start(&[]);
    let here = server.state.path();
    server.ask(&["create", "--name", "box"]);
    std::fs::create_dir_all(here.join("src/sub")).unwrap();
    std::fs::write(here.join("src/a"), "one").unwrap();
    std::fs::write(here.join("src/sub/b"), "two").unwrap();
    let mut watched = server.client(&["watch", "box"]).stdout(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while json(&server.ask(&["ls", "--json"]))["sandboxes"][0]["busy"] == false {
        assert!(Instant::now() < deadline, "the watch does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.ask(&["cp", "src", "box:project"]);
    wait_for(&mut watched, "created /workspace/project");
    watched.kill().unwrap();
    watched.wait().unwrap();

    let script = "echo changed > project/src/a; mkdir -p project/src/.git; echo x > project/src/.git/config; ln -s / project/src/root";
    server.ask(&["exec", "box", "--", "sh", "-c", script]);
    std::fs::create_dir(here.join("out")).unwrap();
    let (code, _, stderr) = outcome(&mut server.client(&["cp", "box:project/src", "out"]));
    assert!(code == 125 && stderr.contains(".git"), "{code} {stderr}");
    let read = |path: &str| std::fs::read_to_string(here.join("out/src").join(path)).ok();
    assert_eq!(
        (read("a").as_deref(), read("sub/b").as_deref(), read(".git/config")),
        (Some("changed\n"), Some("two"), None)
    );

    server.ask(&[
        "exec",
        "box",
        "--",
        "sh",
        "-c",
        "rm -r project/src/.git project/src/root; echo again > project/src/a",
    ]);
    assert_eq!(outcome(&mut server.client(&["cp", "box:project/src", "out"])).0, 125, "it replaces nothing");
    assert_eq!(read("a").as_deref(), Some("changed\n"));
    server.ask(&["cp", "--force", "box:project/src", "out"]);
    assert_eq!(read("a").as_deref(), Some("again\n"));
    assert_eq!(outcome(&mut server.client(&["cp", "box:project/src", "missing/directory"])).0, 125);
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): `cofferdam run --backend remote` runs its command on a server, with its input, its exit status and
/// copies of files.
#[test]
fn a_run_uses_a_server_as_its_backend() {
    let server = Server::start(&[]);
    let run = |words: &[&str]| {
        let mut command = server.client(&["run", "--allow-weaker", WEAKER]);
        command.args(words);
        command
    };
    let script = "cat given; cat; echo made > made; echo error >&2; exit 7";
    std::fs::write(server.state.path().join("given"), "given\n").unwrap();
    let mut command = run(&["--backend", "remote", "--stdin", "--copy-in", "given", "--copy-out", "made"]);
    command.args(["--", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(7), "given\ntyped\n".to_owned()), "{output:?}");
    assert!(text(&output.stderr).contains("error"), "{output:?}");
    assert_eq!(std::fs::read_to_string(server.state.path().join("made")).unwrap(), "made\n");
    assert_eq!(json(&server.ask(&["ls", "--json"]))["sandboxes"], json("[]"), "it is closed");
    let (code, stdout, _) = outcome(&mut server.client(&["doctor", "--backend", "remote"]));
    assert!(code == 0 && stdout.contains("its backend has level process"), "{stdout}");
    for (backend, text) in [("remote:vm", "has no backend 'vm'"), ("remote:process", "")] {
        let (code, _, stderr) = outcome(run(&["--backend", backend]).args(["--", "true"]));
        assert!((code == 0) == text.is_empty() && stderr.contains(text), "{backend}: {code} {stderr}");
    }
    let (code, _, stderr) = outcome(run(&["--backend", "remote", "--mount", "given:/given"]).args(["--", "true"]));
    assert!(code == 125 && stderr.contains("mounts no files of its clients"), "{code} {stderr}");
    // A workspace of this host is copied.
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("x"), "on the client\n").unwrap();
    let mut command = run(&["--backend", "remote", "--diff", "--workspace"]);
    command.arg(tree.path()).args(["--", "sh", "-c", "cat x; echo changed > x"]);
    let (code, stdout, stderr) = outcome(&mut command);
    assert!(code == 0 && stdout.contains("on the client") && stdout.contains("+changed"), "{code} {stdout} {stderr}");
    let url = server.url.clone();
    drop(server.kill());
    let mut command = program(std::env::temp_dir().as_path());
    let (code, _, stderr) =
        outcome(command.args(["run", "--backend", "remote", "--", "true"]).env("COFFERDAM_SERVER", url));
    assert!(code == 125 && stderr.contains("cannot connect to the server"), "{code} {stderr}");
}
