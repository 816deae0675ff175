//! Examples of the documentation, tested verbatim.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use cofferdam::code::{CodeConfig, CodeRequest, Executor};
use cofferdam::{Backend, ErrorKind, Spec, registry};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{WEAKER, cofferdam, json, outcome, start};

const CODE: &str = include_str!("../../../../../docs/code.md");
const MCP: &str = include_str!("../../../../../docs/mcp.md");

/// Returns the code blocks of a language.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let parts = document.split("\n```").collect::<Vec<_>>();
    let blocks: Vec<_> = parts.iter().filter_map(|part| part.strip_prefix(language)?.strip_prefix('\n')).collect();
    assert!(!blocks.is_empty(), "no block in {language}");
    blocks
}

/// Writes a configuration that accepts the missing protections of this user's host. Returns its path.
pub(super) fn configure(home: &Path, more: &str) -> PathBuf {
    let config = home.join("config.toml");
    let weaker: Vec<_> = WEAKER.split(',').collect();
    std::fs::write(&config, format!("allow_weaker = {weaker:?}\n{more}")).expect("written");
    config
}

/// Returns a shell that finds the built program in PATH and runs in a separate directory.
pub(super) fn shell(line: &str, home: &Path) -> Command {
    let config = home.join("config.toml");
    let config = if config.exists() { config } else { configure(home, "") };
    let ours = Path::new(env!("CARGO_BIN_EXE_cofferdam")).parent().expect("a directory");
    let path = std::env::join_paths(
        [ours.into()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    );
    let mut command = Command::new("sh");
    command.args(["-ec", line]).current_dir(home).env_clear().env("PATH", path.expect("a path"));
    command
        .env("HOME", home)
        .env("XDG_DATA_HOME", home.join("data"))
        .env("XDG_STATE_HOME", home.join("state"))
        .env("COFFERDAM_CONFIG", config)
        .stdin(Stdio::null());
    command
}

#[test]
fn documented_command_on_code_gives_its_output() {
    let home = tempfile::tempdir().expect("a directory");
    for line in blocks(CODE, "sh") {
        let (status, stdout, stderr) = outcome(&mut shell(line, home.path()));
        assert_eq!((status, stderr.as_str()), (0, ""), "{line}");
        let document = json(&stdout);
        assert_eq!(document["results"][0]["data"]["text/plain"], "6.283185307179586");
        assert_eq!(document["files"]["changes"][0]["name"], "a.txt");
        for field in CODE
            .split_once("## The result")
            .and_then(|(_, rest)| rest.split_once("### Results"))
            .expect("both")
            .0
            .lines()
        {
            let Some(names) = field.strip_prefix("| `").and_then(|rest| rest.split(" | ").next()) else { continue };
            for name in names.split(['`', ',', ' ']).filter(|name| !name.is_empty()) {
                let exists = document.get(name).is_some() || ["screening", "session"].contains(&name);
                assert!(exists, "{name} is documented but missing: {document:#}");
            }
        }
    }
}

#[test]
fn the_language_of_the_page_on_code_runs() {
    let home = tempfile::tempdir().expect("a directory");
    let [block] = blocks(CODE, "toml")[..] else { panic!("one block") };
    let file = home.path().join("c.toml");
    std::fs::write(&file, block).expect("written");
    let mut command = cofferdam();
    command.args([
        "run",
        "--allow-weaker",
        WEAKER,
        "--lang",
        "c",
        "--code",
        "int main(void) { return 5; }",
        "--config",
    ]);
    let (status, _, stderr) = outcome(command.arg(&file));
    assert_eq!(status, 5, "{stderr}");
}

/// Runs the example of docs/code.md.
async fn shown_on_the_page_on_code(backend: Arc<dyn Backend>) -> cofferdam::Result<()> {
    let executor = Executor::new(CodeConfig::default())?;
    let result = executor.run(&*backend, Spec::default(), CodeRequest::new("python", "print(1)\n6 * 7")).await?;
    assert_eq!(result.results[0].data["text/plain"], "42");
    Ok(())
}

#[tokio::test]
async fn the_program_of_the_page_on_code_is_this_one_and_runs() {
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let here = bare(include_str!("documents.rs"));
    let [block] = blocks(CODE, "rust")[..] else { panic!("one block") };
    let (uses, body) = block.split_once("\n\n").expect("a line for what is used");
    assert!(here.contains(&bare(uses)) && here.contains(&bare(body)), "{block}");
    let backend = registry::backend("process").expect("there is one");
    match shown_on_the_page_on_code(backend).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("SKIP on a host that cannot enforce all that is usual: {error}");
        }
        ran => ran.expect("it runs"),
    }
}

#[test]
fn the_commands_of_the_page_on_mcp_serve() {
    let home = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(home.path().join("project")).expect("created");
    let lines: Vec<_> = blocks(MCP, "sh").into_iter().flat_map(str::lines).collect();
    assert!(lines.len() >= 3, "{lines:?}");
    for line in lines {
        if !line.contains("--http") {
            // A client that sends nothing and disconnects.
            let (status, stdout, stderr) = outcome(&mut shell(line, home.path()));
            assert_eq!((status, stdout.as_str()), (0, ""), "{line}: {stderr}");
            continue;
        }
        let (command, address) = line.split_once('#').expect("where it is");
        assert!(address.contains("http://127.0.0.1:8765/mcp"), "{address}");
        // Uses any free port.
        let mut child = start(&mut shell(&format!("exec {}", command.replace(":8765", ":0")), home.path()));
        let mut first_line = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut first_line).expect("it says where it is");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it exists");
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
        assert!(first_line.contains("http://127.0.0.1:") && first_line.contains("/mcp"), "{first_line}");
    }
}

#[test]
fn the_configurations_of_clients_start_the_server() {
    let home = tempfile::tempdir().expect("a directory");
    let mut servers: Vec<Value> = Vec::new();
    let mut add = |configuration: &Value| {
        let all = ["mcpServers", "servers", "mcp_servers"].iter().find_map(|name| configuration.get(name));
        servers.push(all.and_then(|all| all.get("cofferdam")).cloned().expect("a server of our name"));
    };
    for block in blocks(MCP, "json") {
        add(&json(block));
    }
    for block in blocks(MCP, "toml") {
        add(&serde_json::to_value(toml::from_str::<toml::Table>(block).expect("TOML")).expect("JSON"));
    }
    let (_, table) = MCP.split_once("| client | |").expect("a table");
    let cells = table.lines().skip(2).take_while(|line| line.starts_with('|')).filter_map(|line| line.split_once("`{"));
    for (_, rest) in cells {
        add(&json(&format!("{{{}", rest.rsplit_once('`').expect("an end").0)));
    }
    assert!(servers.len() >= 7, "{servers:?}");
    for server in servers {
        if let Some(url) = server.get("url").or_else(|| server.get("httpUrl")) {
            assert_eq!(url, "http://127.0.0.1:8765/mcp");
            continue;
        }
        assert_eq!(server["command"], "cofferdam");
        let words = server["args"].as_array().expect("words").iter().map(|word| word.as_str().expect("a word"));
        let words: Vec<_> =
            words.map(|word| word.replace("${workspaceFolder}", home.path().to_str().expect("a name"))).collect();
        let (status, stdout, stderr) = outcome(&mut shell(&format!("cofferdam {}", words.join(" ")), home.path()));
        assert_eq!((status, stdout.as_str()), (0, ""), "{words:?}: {stderr}");
    }
}
