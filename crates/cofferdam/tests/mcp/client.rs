//! A scripted client over pipes, and the backends to test.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{cofferdam, wait};

/// Timeout for answers on a busy host.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Protections that may be unavailable on the host of an unprivileged user and are not tested here.
const WEAKER: &str = "memory,cpu,pids,disk";

/// A backend to test.
#[derive(Debug, Clone)]
pub struct Target {
    arguments: Vec<&'static str>,
    variables: Vec<(&'static str, OsString)>,
}

/// Returns the container backend if the tests have an engine.
pub fn containers(test: &str) -> Option<Target> {
    let Some(socket) = std::env::var_os("COFFERDAM_TEST_DOCKER") else {
        println!("SKIP {test}: COFFERDAM_TEST_DOCKER names no engine");
        return None;
    };
    let mut host = OsString::from("unix://");
    host.push(socket);
    Some(Target { arguments: vec!["--backend", "docker"], variables: vec![("DOCKER_HOST", host)] })
}

/// Returns the WebAssembly backend if its interpreters are installed for the tests.
pub fn webassembly(test: &str) -> Option<Target> {
    let interpreters = std::env::var_os("COFFERDAM_TEST_WASM_CACHE").map(PathBuf::from);
    let Some(cache) = interpreters.as_deref().and_then(Path::parent).and_then(Path::parent) else {
        println!("SKIP {test}: COFFERDAM_TEST_WASM_CACHE names no interpreters for WebAssembly");
        return None;
    };
    Some(Target { arguments: vec!["--backend", "wasm"], variables: vec![("XDG_CACHE_HOME", cache.into())] })
}

/// Returns the VM backend if the tests may start VMs.
pub fn vms(test: &str) -> Option<Target> {
    if std::env::var_os("COFFERDAM_TEST_MACHINES").is_none() {
        println!("SKIP {test}: tests of emulated VMs take minutes; enable them with COFFERDAM_TEST_MACHINES=1");
        return None;
    }
    let vmm = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status();
    if !cfg!(target_arch = "x86_64") || vmm.is_err() {
        println!("SKIP {test}: no QEMU here (package qemu-system-x86)");
        return None;
    }
    let cache = cache();
    let variables: Vec<(&str, OsString)> = vec![
        // Packages are stored next to the images, in a directory with the program's name.
        ("XDG_CACHE_HOME", cache.parent().expect("a cache is in something").into()),
        ("COFFERDAM_VM_IMAGES", cache.join("vm").into()),
        ("COFFERDAM_VM_IMAGE", "mcp-tests".into()),
    ];
    let build = ["vm", "build-image", "--tiny", "--name", "mcp-tests", "--json"];
    let built = Command::new(cofferdam()).args(build).envs(variables.clone()).output().expect("it runs");
    assert!(built.status.success(), "no image could be made: {}", String::from_utf8_lossy(&built.stderr));
    Some(Target { arguments: vec!["--backend", "vm", "--memory", "96M"], variables })
}

/// Returns the image directory that tests share, because builds take long and give the same result.
fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let usual = || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let named = std::env::var_os("COFFERDAM_TEST_CACHE").map(PathBuf::from);
    named.unwrap_or_else(|| usual().unwrap_or_else(std::env::temp_dir).join("cofferdam"))
}

/// Returns the process backend if the tests need no other.
pub fn processes() -> Target {
    Target { arguments: vec!["--backend", "process"], variables: Vec::new() }
}

impl Target {
    /// Returns the same backend with another variable.
    pub fn with(&self, name: &'static str, value: &Path) -> Self {
        let mut target = self.clone();
        target.variables.push((name, value.into()));
        target
    }

    pub fn forks_while_programs_run(&self) -> bool {
        !self.arguments.contains(&"process") && !self.arguments.contains(&"wasm")
    }
}

/// A connection of the previous protocol revision with its own server.
pub struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<Value>,
    came: BTreeMap<u64, Value>,
    last: u64,
}

impl Client {
    /// Starts a server with these additional arguments, and begins a session.
    pub fn new(target: &Target, arguments: &[&str]) -> Self {
        let mut child = Command::new(cofferdam())
            .args(["mcp", "--allow-weaker", WEAKER])
            .args(&target.arguments)
            .args(arguments)
            .envs(target.variables.clone())
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
        let mut client = Self { child, input, output, came: BTreeMap::new(), last: 0 };
        let info =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let id = client.request("initialize", info);
        assert_eq!(client.answer(id)["result"]["protocolVersion"], "2025-11-25");
        client.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.input.as_mut().expect("open"), "{message}").expect("written");
    }

    fn request(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        self.say(&json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}));
        self.last
    }

    /// Begins a call. Returns its id.
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
            let message = self.output.recv_timeout(ANSWER_TIMEOUT).expect("an answer in time");
            if let Some(id) = message["id"].as_u64() {
                self.came.insert(id, message);
            }
        }
    }

    /// Waits for the result of a call.
    pub fn result(&mut self, id: u64) -> Value {
        let answer = self.answer(id);
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// Calls a tool and requires success. Returns the structured result.
    pub fn works(&mut self, name: &str, arguments: Value) -> Value {
        let id = self.begin(name, arguments);
        let result = self.result(id);
        assert_eq!(result["isError"], false, "{name}: {result}");
        result["structuredContent"].clone()
    }

    /// Returns the output of a shell line.
    pub fn prints(&mut self, sandbox: &Value, line: &str) -> String {
        let result = self.works("run_command", json!({"sandbox": sandbox, "command": line}));
        assert_eq!((&result["exit_code"], &result["stderr"]), (&json!(0), &json!("")), "{line}: {result}");
        result["stdout"].as_str().expect("text").to_owned()
    }

    /// Calls a tool and requires failure. Returns the text and kind of the error.
    pub fn fails(&mut self, name: &str, arguments: Value) -> (String, String) {
        let id = self.begin(name, arguments);
        let result = self.result(id);
        assert_eq!(result["isError"], true, "{name}: {result}");
        let kind = result["_meta"]["cofferdam/error"]["kind"].as_str().expect("a kind").to_owned();
        (result["content"][0]["text"].as_str().expect("text").to_owned(), kind)
    }

    /// Creates a sandbox. Returns its id.
    pub fn makes(&mut self, name: &str, arguments: Value) -> Value {
        self.works(name, arguments)["sandbox"].clone()
    }

    /// Closes the client's side, and waits for the end of the server.
    pub fn end(mut self) {
        drop(self.input.take());
        assert_eq!(wait(&mut self.child, Duration::from_secs(60)), Some(0));
    }

    /// Kills the server with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("it exists");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Client {
    /// Ends the server if the test failed before.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Waits until a condition holds.
pub fn until(what: &str, timeout: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + timeout;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
