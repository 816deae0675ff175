//! `cofferdam serve` and its clients, used like a person or a script uses them.
#![forbid(unsafe_code)]

#[path = "../../../cofferdam-server/tests/suite/postgres.rs"]
mod postgres;
#[path = "../suite/terminal.rs"]
mod terminal;

mod faults;
mod identity;
#[cfg(feature = "images")]
mod images;
mod kills;
mod live;
mod plugins;
mod upgrade;
mod work;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Limits that may be unenforceable on the host of an unprivileged user. Other tests test their enforcement.
const WEAKER: &str = "memory,cpu,cpus,pids,disk";

/// Runs a command. Returns its exit status, standard output and standard error.
fn outcome(command: &mut Command) -> (i32, String, String) {
    let output = command.output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A running server.
struct Server {
    child: Child,
    url: String,
    state: tempfile::TempDir,
    /// The lines that it prints after its address.
    lines: Receiver<String>,
}

impl Server {
    fn start(words: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), words)
    }

    fn start_in(state: tempfile::TempDir, words: &[&str]) -> Self {
        let mut command = program(state.path());
        command.args(["serve", "--allow-weaker", WEAKER]).args(words);
        Self::spawn(state, &mut command)
    }

    fn spawn(state: tempfile::TempDir, command: &mut Command) -> Self {
        Self::of(state, command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn of(state: tempfile::TempDir, mut child: Child) -> Self {
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut printed = Vec::new();
        let url = lines.find_map(|line| {
            let url = line.split_once("serving ").map(|(_, url)| url.to_owned());
            printed.push(line);
            url
        });
        let url = url.unwrap_or_else(|| panic!("the server does not listen: {printed:?}"));
        let (sender, later) = std::sync::mpsc::channel();
        std::thread::spawn(move || lines.for_each(|line| drop(sender.send(line))));
        Self { child, url, state, lines: later }
    }

    fn client(&self, words: &[&str]) -> Command {
        let mut command = program(self.state.path());
        command.args(words).env("COFFERDAM_SERVER", &self.url);
        command
    }

    /// Runs a client that succeeds, and returns what it prints.
    fn ask(&self, words: &[&str]) -> String {
        let (code, stdout, stderr) = outcome(&mut self.client(words));
        assert_eq!((code, stderr.as_str()), (0, ""), "{words:?}: {stdout}");
        stdout
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Asks it to stop and returns its exit status.
    fn stop(mut self) -> Option<i32> {
        kill_process(self.pid(), Signal::TERM).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the server does not stop");
    }

    /// Kills it, and returns its state.
    fn kill(mut self) -> tempfile::TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.state, tempfile::tempdir().unwrap())
    }

    /// Answers a request over the Unix socket.
    fn get(&self, path: &str) -> Value {
        let mut stream = UnixStream::connect(self.url.strip_prefix("unix:").unwrap()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        json(&answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program with a state and a runtime directory of its own.
fn program(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
    command.env("XDG_STATE_HOME", directory).env("XDG_RUNTIME_DIR", directory).env("HOME", directory);
    command.current_dir(directory);
    command
}

/// Writes the URL of a database to a file for `--database-file`.
fn database_file(directory: &Path, url: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let file = directory.join("url");
    std::fs::write(&file, url).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    file
}

/// Promise (Server): A sandbox on a server is created, used, listed and closed from the command line.
#[test]
fn a_server_is_used_from_the_command_line() {
    let server = Server::start(&[]);
    let here = server.state.path();
    assert!(server.url.starts_with("unix:") && server.url.ends_with("/cofferdam/server.sock"), "{}", server.url);
    let id = server.ask(&["create", "--name", "box", "--label", "job=7"]);
    assert!(id.starts_with("sb-") && id.len() == 47, "{id}");
    // Without COFFERDAM_SERVER, the client finds the server of its user.
    let own = outcome(program(here).args(["ls", "--label", "job=7", "--json"]));
    assert_eq!(json(&own.1)["sandboxes"][0]["name"], "box", "{own:?}");

    let (code, stdout, stderr) = outcome(&mut server.client(&[
        "exec",
        "--env",
        "A=b",
        "box",
        "--",
        "sh",
        "-c",
        "echo $A; echo no >&2; echo kept > file; exit 3",
    ]));
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (3, "b\n", "no\n"));
    let (code, stdout, _) = outcome(&mut server.client(&["exec", "--json", "box", "--", "sh", "-c", "exit 4"]));
    assert_eq!((code, &json(&stdout)["exit"]["code"]), (4, &Value::from(4)));
    let (code, _, stderr) = outcome(&mut server.client(&["exec", "box", "--", "no-such-program"]));
    assert_eq!(code, 127, "{stderr}");

    let mut piped = server.client(&["exec", "--stdin", "box", "--", "wc", "-c"]);
    let mut child = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&vec![b'x'; 300_000]).unwrap();
    let counted = child.wait_with_output().unwrap();
    assert_eq!((counted.status.code(), counted.stdout.as_slice()), (Some(0), &b"300000\n"[..]));

    let exec = server.ask(&["exec", "--detach", "box", "--", "sh", "-c", "echo one; sleep 0.3; echo two"]);
    assert_eq!(server.ask(&["logs", "box", exec.trim()]), "one\ntwo\n");
    assert_eq!(server.ask(&["logs", "box"]), "one\ntwo\n", "the newest is the default");

    assert_eq!(server.ask(&["cp", "box:file", "-"]), "kept\n");
    let data: Vec<u8> = (0..200_000u32).map(|at| (at * 7) as u8).collect();
    std::fs::write(here.join("up.bin"), &data).unwrap();
    server.ask(&["cp", "up.bin", "box:d/x.bin"]);
    server.ask(&["cp", "box:d/x.bin", "down.bin"]);
    assert_eq!(std::fs::read(here.join("down.bin")).unwrap(), data);
    assert_eq!(outcome(&mut server.client(&["cp", "box:file", "down.bin"])).0, 125, "it replaces nothing");
    server.ask(&["cp", "--force", "box:file", "down.bin"]);
    assert_eq!(std::fs::read(here.join("down.bin")).unwrap(), b"kept\n");

    server.ask(&["rm", "box"]);
    let (code, _, stderr) = outcome(&mut server.client(&["rm", "box"]));
    assert!(code == 127 && stderr.contains("there is no such sandbox"), "{stderr}");
    server.ask(&["create", "--name", "left"]);
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): A key opens the server to its tenant until it is revoked, and is stored as a hash only.
#[test]
fn a_key_opens_the_server_until_it_is_revoked() {
    let server = Server::start(&["--listen", "127.0.0.1:0"]);
    assert!(server.url.starts_with("http://127.0.0.1:"), "{}", server.url);
    let (code, _, stderr) = outcome(&mut server.client(&["ls"]));
    assert!(code == 125 && stderr.contains("the request has no key"), "{stderr}");
    let created = json(&server.ask(&["keys", "create", "--tenant", "acme", "--name", "ci", "--json"]));
    let (key, id) = (created["key"].as_str().unwrap().to_owned(), created["id"].as_str().unwrap());
    let with = |key: &str, words: &[&str]| outcome(server.client(words).env("COFFERDAM_KEY", key));
    assert_eq!(with(&key, &["create", "--name", "box"]).0, 0);
    let rotated = server.ask(&["keys", "rotate", id, "--grace", "1h"]);
    assert_eq!(with(rotated.trim(), &["exec", "box", "--", "echo", "hi"]).1, "hi\n");
    server.ask(&["keys", "revoke", id]);
    let (code, _, stderr) = with(&key, &["ls"]);
    assert!(code == 125 && stderr.contains("the key is not valid"), "{stderr}");
    assert_eq!(with(rotated.trim(), &["ls"]).0, 0);
    let listed = server.ask(&["keys", "ls"]);
    assert!(listed.contains("revoked") && listed.contains("valid") && !listed.contains(&key[..30]), "{listed}");
    let database = std::fs::read(server.state.path().join("cofferdam/server/state.db")).unwrap();
    assert!(!database.windows(20).any(|window| window == &key.as_bytes()[30..50]));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn unsafe_listeners_and_broken_settings_are_refused() {
    let state = tempfile::tempdir().unwrap();
    for (words, expected) in [
        (&["--listen", "0.0.0.0:0"][..], "without TLS"),
        (&["--listen", "0.0.0.0:0", "--without-tls"], "there is no valid key"),
        (&["--backend", "no-such"], "no-such"),
        (&["--quota", "missing.json"], "the file of --quota"),
        (&["--listen", "127.0.0.1:0", "--without-keys", "--idle-exit", "1m"], "are for the private socket"),
        (&["--detach", "--check"], "cannot be used with"),
    ] {
        let (code, stdout, stderr) = outcome(program(state.path()).arg("serve").args(words));
        assert!(code == 125 && stdout.is_empty() && stderr.contains(expected), "{words:?}: {stderr}");
        assert!(stderr.contains("try: "), "{stderr}");
    }
    let file = |name: &str, directory: &str| {
        let file = state.path().join(name);
        let audit = state.path().join(directory);
        std::fs::write(&file, format!("[audit]\ndirectory = {audit:?}\n")).unwrap();
        file.into_os_string().into_string().unwrap()
    };
    let (usable, broken) = (file("usable.toml", "audit"), file("broken.toml", "usable.toml"));
    let check = |config: &str, words: &[&str]| {
        outcome(program(state.path()).args(["--config", config, "serve", "--check", "--without-keys"]).args(words))
    };
    let checked = check(&usable, &["--listen", "127.0.0.1:0"]);
    for expected in ["the audit log is created when the server starts", "the settings and the database are valid"] {
        assert!(checked.2.contains(expected), "{checked:?}");
    }
    assert!(!state.path().join("audit").exists());
    let checked = check(&broken, &[]);
    assert!(checked.0 == 1 && checked.2.contains("cannot open the audit log"), "{checked:?}");
    let checked = check(&usable, &["--listen", "192.0.2.1:80", "--without-tls"]);
    assert!(checked.0 == 125 && checked.2.contains("cannot listen"), "{checked:?}");
    let (code, _, stderr) = outcome(program(state.path()).arg("ls"));
    assert!(code == 125 && stderr.contains("cannot connect"), "{stderr}");
}

/// Promise (Server): A changed file of quotas takes effect while the server runs, and a broken one changes nothing.
#[test]
fn a_changed_file_of_quotas_takes_effect() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("quota.json");
    std::fs::write(&file, r#"{"sandboxes": 1}"#).unwrap();
    let server = Server::start_in(state, &["--quota", file.to_str().unwrap()]);
    let quota = || server.get("/v1/quota")["quota"]["sandboxes"].clone();
    assert_eq!(quota(), 1);
    std::fs::write(&file, "nonsense").unwrap();
    let line = server.lines.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(line.contains("the quotas remain as they were") && quota() == 1, "{line}");
    std::fs::write(&file, r#"{"sandboxes": 2}"#).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while quota() != 2 {
        assert!(Instant::now() < deadline, "the changed file has no effect");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): A server with a private socket and one with a listener do not use the same state, and a second
/// server of a state is refused, so that none settles the sandboxes of another.
#[test]
fn servers_of_one_user_do_not_disturb_each_other() {
    let server = Server::start(&["--listen", "127.0.0.1:0", "--without-keys"]);
    server.ask(&["create", "--name", "box"]);
    let own = || program(server.state.path());
    let (code, _, stderr) = outcome(own().args(["serve", "--allow-weaker", WEAKER, "--detach"]));
    assert!(code == 0 && !stderr.contains("settled"), "{stderr}");
    assert_eq!(json(&outcome(own().args(["ls", "--json"])).1)["sandboxes"], Value::Array(Vec::new()));
    let (code, _, stderr) = outcome(own().args(["serve", "--listen", "127.0.0.1:0", "--without-keys"]));
    assert!(code == 125 && stderr.contains("another server uses the same state"), "{code} {stderr}");
    assert_eq!(server.ask(&["exec", "box", "--", "echo", "there"]), "there\n");
    assert_eq!(outcome(own().args(["serve", "stop"])).0, 0);
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): A server that is killed at any moment loses no usage of an exec whose exit it reported, and settles
/// its sandboxes at the next start.
#[test]
fn a_killed_server_loses_no_reported_usage() {
    kill_often(&[]);
}

/// Promise (Server): The same holds for a server whose state is in PostgreSQL.
#[test]
fn a_killed_server_on_postgresql_loses_no_reported_usage() {
    let Some(database) = postgres::Postgres::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = database_file(directory.path(), &database.url);
    kill_often(&["--database-file", file.to_str().unwrap()]);
}

/// Kills servers with these options while a client runs commands, and compares what was recorded with what was reported.
fn kill_often(words: &[&str]) {
    let (mut state, mut reported) = (tempfile::tempdir().unwrap(), 0);
    for round in 0..4u64 {
        let server = Server::start_in(state, words);
        server.ask(&["create", "--name", "box"]);
        let pid = server.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150 + 130 * round));
            kill_process(pid, Signal::KILL).unwrap();
        });
        // A client that is cut off tries again for some seconds, so each has a time of its own.
        loop {
            let request = "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 29\r\n\r\n\
                           {\"exec\": {\"argv\": [\"true\"]} }";
            let sent = UnixStream::connect(server.url.strip_prefix("unix:").unwrap()).and_then(|mut stream| {
                stream.write_all(request.as_bytes())?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                Ok(answer)
            });
            match sent {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") && answer.trim_end().ends_with('}') => reported += 1,
                Ok(answer) if answer.starts_with("HTTP/1.1 4") => panic!("{answer}"),
                _ => break,
            }
        }
        killer.join().unwrap();
        state = server.kill();
    }
    assert!(reported > 0);
    let server = Server::start_in(state, words);
    let usage = server.get("/v1/usage?from=0&to=0");
    assert_eq!(usage["usage"], Value::Array(Vec::new()), "{usage}");
    let usage = server.get("/v1/usage");
    let rows = usage["usage"].as_array().unwrap();
    let sum = |of: &str| rows.iter().map(|row| row[of].as_i64().unwrap()).sum::<i64>();
    assert!(sum("execs") >= reported, "{usage}: {reported} were reported");
    // Each round's own sandbox was settled at the next start.
    assert!(sum("sandboxes") >= 4, "{usage}");
    assert_eq!(server.get("/v1/quota")["sandboxes"], 0);
    assert_eq!(server.get("/v1/sandboxes")["sandboxes"], Value::Array(Vec::new()));
    assert_eq!(server.stop(), Some(0));
}
