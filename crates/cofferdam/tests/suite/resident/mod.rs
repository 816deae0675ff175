//! The private socket of a server: a run through it equals a run without it, other users have no access, and it leaves
//! nothing behind.

mod http;
pub mod inside;
mod life;
mod other_users;
mod runs;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::census;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Limits that may be unenforceable on the host of an unprivileged user.
const CONFIG: &str = "allow_weaker = [\"memory\", \"cpu\", \"cpus\", \"pids\", \"disk\"]\n";

/// A separate runtime directory for a test, with a configuration file.
pub struct Home {
    directory: TempDir,
    /// Environment variables of the server only.
    server_variables: Vec<(String, String)>,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("config.toml"), CONFIG).expect("it is ours");
        Self { directory, server_variables: Vec::new() }
    }

    /// Returns the binary, with an environment that contains only the server's directory.
    fn cofferdam(&self) -> Command {
        self.program(Path::new(env!("CARGO_BIN_EXE_cofferdam")))
    }

    fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("XDG_RUNTIME_DIR", self.directory.path())
            .env("XDG_STATE_HOME", self.directory.path().join("state"))
            .env("COFFERDAM_CONFIG", self.directory.path().join("config.toml"))
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .stdin(Stdio::null());
        command
    }

    fn run<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.cofferdam();
        command.arg("run").args(words);
        command
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("cofferdam/server.sock")
    }

    /// Starts a server in the foreground and waits until it listens.
    fn server(&self, words: &[&str]) -> Server<'_> {
        let mut command = self.cofferdam();
        command.arg("serve").args(words).envs(self.server_variables.iter().cloned());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("it can be read");
        assert!(line.contains("serving unix:"), "{line}");
        Server { home: self, child, stderr }
    }

    /// Returns the output of `server status --json`, or `None` without a server.
    fn status(&self) -> Option<Value> {
        let output = self.cofferdam().args(["serve", "status", "--json"]).output().expect("the binary starts");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("a document"))
    }

    fn gone(&self) -> bool {
        !self.directory.path().join("cofferdam").exists()
    }
}

/// A server in the foreground.
pub struct Server<'a> {
    home: &'a Home,
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Server<'_> {
    fn status(&self) -> Value {
        self.home.status().expect("it runs")
    }

    /// Waits until a condition on its status holds.
    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            // The server may be too busy to answer if a test overloads it.
            let status = self.home.status();
            match status {
                Some(status) if holds(&status) => return status,
                status => assert!(Instant::now() < deadline, "{what}: {status:#?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until every configured interpreter is prepared, or cannot be started on this host.
    fn warm(&self) {
        self.until("interpreters", |status| {
            let kinds = status["interpreters"].as_array().expect("a list");
            kinds.iter().all(|kind| kind["waiting"] == 1 || kind["failures"] != 0)
        });
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is our child");
    }

    /// Stops the server. Returns its exit status and its messages.
    fn end(mut self) -> (Option<i32>, String) {
        self.signal(Signal::TERM);
        let status = self.child.wait().expect("it ends").code();
        let mut printed = String::new();
        self.stderr.read_to_string(&mut printed).expect("it can be read");
        (status, printed)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test between two censuses of the host.
fn leaving_nothing(test: impl FnOnce()) {
    let before = census::census();
    test();
    let left = census::left_behind(&before, TEST_TIMEOUT);
    assert!(left.is_empty(), "{left:?}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(output: &Output) -> (Option<i32>, String, String) {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Returns true if `--verbose` reported that a server executed the run.
fn by_server(stderr: &str) -> bool {
    stderr.contains("run by the server")
}

/// Starts a run that prints `ready`, and waits for that.
fn ready(command: &mut Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("it can be read");
    assert_eq!(line, "ready\n");
    (child, stdout)
}
