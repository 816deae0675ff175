//! Copy-on-write workspaces of a server: shown to clients, kept for the person at the host.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{Client, Target, containers, processes, webassembly};
use crate::cofferdam;

/// Returns the kept changes.
fn stored(state: &Path) -> Vec<Value> {
    let mut command = Command::new(cofferdam());
    let output = command.args(["changes", "ls", "--json"]).env("XDG_STATE_HOME", state).output().expect("it runs");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    document["changes"].as_array().expect("a list").clone()
}

fn changes_are_shown_and_kept(target: &Target, write: impl Fn(&mut Client, &Value)) {
    let (project, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    fs::write(project.path().join("file"), "one\ntwo\n").expect("written");
    let workspace = format!("{}:cow", project.path().display());
    let target = target.with("XDG_STATE_HOME", state.path());
    let mut client = Client::new(&target, &["--workspace", &workspace]);
    let sandbox = client.makes("create_sandbox", json!({}));
    assert_eq!(client.works("show_changes", json!({"sandbox": sandbox}))["files"], 0);
    write(&mut client, &sandbox);
    let id = client.begin("show_changes", json!({"sandbox": sandbox}));
    let result = client.result(id);
    let shown = &result["structuredContent"];
    assert_eq!((&shown["files"], &shown["truncated"]), (&json!(2), &json!(false)), "{result}");
    assert_eq!(shown["changes"][0], json!({"path": "file", "kind": "modified"}), "{result}");
    let diff = result["content"][0]["text"].as_str().expect("text");
    assert!(diff.contains("-two\n+TWO\n") && !diff.contains('\u{1b}'), "{diff}");
    // Another sandbox begins with the directory as it is.
    let other = client.makes("create_sandbox", json!({}));
    assert_eq!(client.works("read_file", json!({"sandbox": other, "path": "file"}))["text"], "one\ntwo\n");
    client.works("close_sandbox", json!({"sandbox": other}));
    assert_eq!(stored(state.path()).len(), 0, "nothing changed in the other sandbox");
    client.end();
    let found = stored(state.path());
    let [set] = &found[..] else { panic!("one change set: {found:?}") };
    assert_eq!(fs::read_to_string(project.path().join("file")).expect("a file"), "one\ntwo\n");
    let id = set["id"].as_str().expect("an id");
    let mut apply = Command::new(cofferdam());
    let output = apply.args(["changes", "apply", id]).env("XDG_STATE_HOME", state.path()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(project.path().join("file")).expect("a file"), "one\nTWO\n");
    assert_eq!(fs::read_to_string(project.path().join("made")).expect("a file"), "\u{1b}[2J");
}

fn by_shell(client: &mut Client, sandbox: &Value) {
    client.prints(sandbox, "sed -i s/two/TWO/ file; printf '\\033[2J' > made");
}

fn by_tools(client: &mut Client, sandbox: &Value) {
    client.works("edit_file", json!({"sandbox": sandbox, "path": "file", "old_text": "two", "new_text": "TWO"}));
    client.works("write_file", json!({"sandbox": sandbox, "path": "made", "content": "\u{1b}[2J"}));
}

/// Promise (MCP server): A client sees the changes of a copy-on-write workspace, and only the person at the host can
/// apply them: they are kept when the sandbox ends.
#[test]
fn changes_of_processes_are_shown_and_kept() {
    changes_are_shown_and_kept(&processes(), by_shell);
}

/// Promise (MCP server): A container has a copy-on-write workspace as well.
#[test]
fn changes_of_containers_are_shown_and_kept() {
    if let Some(target) = containers("changes_of_containers_are_shown_and_kept") {
        changes_are_shown_and_kept(&target, by_shell);
    }
}

/// Promise (MCP server): A WebAssembly sandbox has a copy-on-write workspace as well.
#[test]
fn changes_of_webassembly_are_shown_and_kept() {
    if let Some(target) = webassembly("changes_of_webassembly_are_shown_and_kept") {
        changes_are_shown_and_kept(&target, by_tools);
    }
}

/// A fork of a copy has changes of its own.
#[test]
fn a_fork_of_a_container_keeps_its_own_changes() {
    let Some(target) = containers("a_fork_of_a_container_keeps_its_own_changes") else { return };
    let (project, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    fs::write(project.path().join("file"), "one\n").expect("written");
    let workspace = format!("{}:cow", project.path().display());
    let mut client = Client::new(&target.with("XDG_STATE_HOME", state.path()), &["--workspace", &workspace]);
    let first = client.makes("create_sandbox", json!({}));
    client.prints(&first, "echo two >> file");
    let fork = client.makes("fork_sandbox", json!({"sandbox": first}));
    client.prints(&fork, "echo three > new");
    assert_eq!(client.works("show_changes", json!({"sandbox": first}))["files"], 1);
    assert_eq!(client.works("show_changes", json!({"sandbox": fork}))["files"], 2);
    assert_eq!(client.fails("snapshot_sandbox", json!({"sandbox": first})).1, "unsupported");
    client.end();
    assert_eq!(stored(state.path()).len(), 2);
}
