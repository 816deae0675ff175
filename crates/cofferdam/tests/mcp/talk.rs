//! A client over pipes that says what a test tells it to, and backends to talk about.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{cofferdam, wait};

/// How long an answer may take on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);
/// What an ordinary user's host may be unable to enforce is no matter here.
const WEAKER: &str = "memory,cpu,pids,disk";

/// A backend that the tests were given.
#[derive(Debug, Clone)]
pub struct Place {
    arguments: Vec<&'static str>,
    variables: Vec<(&'static str, OsString)>,
}

/// Containers, where the tests have an engine.
pub fn containers(test: &str) -> Option<Place> {
    let Some(socket) = std::env::var_os("COFFERDAM_TEST_DOCKER") else {
        println!("SKIP {test}: COFFERDAM_TEST_DOCKER names no engine");
        return None;
    };
    let mut host = OsString::from("unix://");
    host.push(socket);
    Some(Place { arguments: vec!["--backend", "docker"], variables: vec![("DOCKER_HOST", host)] })
}

/// Machines, where tests may start some.
pub fn machines(test: &str) -> Option<Place> {
    if std::env::var_os("COFFERDAM_TEST_MACHINES").is_none() {
        println!("SKIP {test}: translated machines take minutes; COFFERDAM_TEST_MACHINES=1 has them tested");
        return None;
    }
    let monitor = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
    if !cfg!(target_arch = "x86_64") || monitor.is_err() {
        println!("SKIP {test}: no QEMU here (package qemu-system-x86)");
        return None;
    }
    let cache = cache();
    let variables: Vec<(&str, OsString)> = vec![
        // Packages are kept beside images, in a directory that is called as the program is.
        ("XDG_CACHE_HOME", cache.parent().expect("a cache is in something").into()),
        ("COFFERDAM_VM_IMAGES", cache.join("vm").into()),
        ("COFFERDAM_VM_IMAGE", "mcp-tests".into()),
    ];
    let build = ["vm", "build-image", "--tiny", "--name", "mcp-tests", "--json"];
    let built = Command::new(cofferdam()).args(build).envs(variables.clone()).output().expect("it runs");
    assert!(built.status.success(), "no image could be made: {}", String::from_utf8_lossy(&built.stderr));
    Some(Place { arguments: vec!["--backend", "vm", "--memory", "96M"], variables })
}

/// Where tests keep images: they take long, and are the same each time.
fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let usual = || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let named = std::env::var_os("COFFERDAM_TEST_CACHE").map(PathBuf::from);
    named.unwrap_or_else(|| usual().unwrap_or_else(std::env::temp_dir).join("cofferdam"))
}

/// Processes of this host, where the tests need no more.
pub fn processes() -> Place {
    Place { arguments: vec!["--backend", "process"], variables: Vec::new() }
}

impl Place {
    pub fn is_processes(&self) -> bool {
        self.arguments.contains(&"process")
    }
}

/// A conversation of the revision before the current one with a server of its own.
pub struct Talk {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<Value>,
    came: BTreeMap<u64, Value>,
    last: u64,
}

impl Talk {
    /// Starts a server with these arguments besides, and begins a session.
    pub fn new(place: &Place, arguments: &[&str]) -> Self {
        let mut child = Command::new(cofferdam())
            .args(["mcp", "--allow-weaker", WEAKER])
            .args(&place.arguments)
            .args(arguments)
            .envs(place.variables.clone())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let message = serde_json::from_str(&line).expect("each line is JSON");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        let mut talk = Self { child, input, output, came: BTreeMap::new(), last: 0 };
        let info =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let id = talk.request("initialize", info);
        assert_eq!(talk.answer(id)["result"]["protocolVersion"], "2025-11-25");
        talk.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        talk
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.input.as_mut().expect("open"), "{message}").expect("written");
    }

    fn request(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        self.say(&json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}));
        self.last
    }

    /// Begins a call; gives its id.
    pub fn begin(&mut self, name: &str, arguments: Value) -> u64 {
        self.request("tools/call", json!({"name": name, "arguments": arguments}))
    }

    pub fn cancel(&mut self, id: u64) {
        self.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    }

    fn answer(&mut self, id: u64) -> Value {
        loop {
            if let Some(answer) = self.came.remove(&id) {
                return answer;
            }
            let message = self.output.recv_timeout(PATIENCE).expect("an answer in time");
            if let Some(id) = message["id"].as_u64() {
                self.came.insert(id, message);
            }
        }
    }

    /// The result of a call that was begun.
    pub fn result(&mut self, id: u64) -> Value {
        let answer = self.answer(id);
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// The structured result of a tool that works.
    pub fn works(&mut self, name: &str, arguments: Value) -> Value {
        let id = self.begin(name, arguments);
        let result = self.result(id);
        assert_eq!(result["isError"], false, "{name}: {result}");
        result["structuredContent"].clone()
    }

    /// What a shell line prints.
    pub fn prints(&mut self, sandbox: &Value, line: &str) -> String {
        let result = self.works("run_command", json!({"sandbox": sandbox, "command": line}));
        assert_eq!((&result["exit_code"], &result["stderr"]), (&json!(0), &json!("")), "{line}: {result}");
        result["stdout"].as_str().expect("text").to_owned()
    }

    /// The text of a tool that fails, and the kind of its error.
    pub fn fails(&mut self, name: &str, arguments: Value) -> (String, String) {
        let id = self.begin(name, arguments);
        let result = self.result(id);
        assert_eq!(result["isError"], true, "{name}: {result}");
        let kind = result["_meta"]["cofferdam/error"]["kind"].as_str().expect("a kind").to_owned();
        (result["content"][0]["text"].as_str().expect("text").to_owned(), kind)
    }

    /// The id of a new sandbox.
    pub fn makes(&mut self, name: &str, arguments: Value) -> Value {
        self.works(name, arguments)["sandbox"].clone()
    }

    /// Closes our side, and waits for the end.
    pub fn end(mut self) {
        drop(self.input.take());
        assert_eq!(wait(&mut self.child, Duration::from_secs(60)), Some(0));
    }

    /// Kills the server, which can do nothing about it.
    pub fn kill(mut self) {
        self.child.kill().expect("it is there");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Talk {
    /// Where a test fails before it ends it.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Waits until something holds.
pub fn until(what: &str, patience: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
