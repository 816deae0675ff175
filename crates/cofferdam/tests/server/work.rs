//! Clients that work in a sandbox: workspaces, code, kernels, and completion of names.

use std::time::{Duration, Instant};

use super::{Server, json, outcome, program};

/// Promise (Server): A sandbox of this user's server works on a copy of a directory; `diff` shows, saves and applies the
/// changes, and others are kept when it ends.
#[test]
fn changes_of_a_workspace_are_applied() {
    let server = Server::start(&["--backend", "process", "--backend", "simulated"]);
    let project = server.state.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("a.txt"), "one\n").unwrap();
    std::fs::write(project.join("host.txt"), "one\n").unwrap();
    for (name, backend) in [("fix", "process"), ("copy", "simulated")] {
        server.ask(&["create", "--name", name, "--backend", backend, "--workspace", "project"]);
        assert_eq!(server.ask(&["diff", name]), "", "{name}");
        assert_eq!(server.ask(&["rm", name]), "");
    }
    server.ask(&["create", "--name", "fix", "--workspace", "project"]);
    server.ask(&["exec", "fix", "--", "sh", "-c", "echo two | tee a.txt host.txt > new.txt"]);
    let shown = server.ask(&["diff", "fix"]);
    assert!(shown.contains("-one\n+two") && shown.contains("new.txt"), "{shown}");
    assert_eq!(json(&server.ask(&["diff", "--json", "fix"]))["summary"]["files"], 3);
    server.ask(&["diff", "--save", "fix.tar", "fix"]);
    let saved = server.ask(&["changes", "show", "--json", "fix.tar"]);
    assert_eq!(json(&saved)["summary"]["files"], 3, "{saved}");
    assert_eq!(std::fs::read_to_string(project.join("a.txt")).unwrap(), "one\n");

    // The host's own change stays, and the guest's version is beside it.
    std::fs::write(project.join("host.txt"), "other\n").unwrap();
    let (code, _, stderr) = outcome(&mut server.client(&["diff", "--apply", "fix"]));
    assert!(code == 125 && stderr.contains("conflict: host.txt"), "{code} {stderr}");
    assert_eq!(std::fs::read_to_string(project.join("a.txt")).unwrap(), "two\n");
    assert_eq!(std::fs::read_to_string(project.join("host.txt")).unwrap(), "other\n");

    let (code, _, stderr) = outcome(&mut server.client(&["rm", "fix"]));
    assert!(code == 0 && stderr.contains("cofferdam changes apply "), "{code} {stderr}");
    assert_eq!(json(&server.ask(&["changes", "ls", "--json"]))["changes"].as_array().unwrap().len(), 1);
    server.ask(&["create", "--name", "fix", "--workspace", "project"]);
    server.ask(&["exec", "fix", "--", "sh", "-c", "echo three > a.txt"]);
    server.ask(&["rm", "--discard-changes", "fix"]);
    assert_eq!(json(&server.ask(&["changes", "ls", "--json"]))["changes"].as_array().unwrap().len(), 1);

    let (code, _, stderr) = outcome(&mut server.client(&["create", "--workspace", "project:rw"]));
    assert!(code == 125 && stderr.contains("copy-on-write only"), "{stderr}");
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): The audit log of a server is searched, exported and verified from the command line.
#[test]
fn the_audit_log_of_a_server_is_searched() {
    let state = tempfile::tempdir().unwrap();
    let config = state.path().join("config.toml");
    std::fs::write(&config, format!("[audit]\ndirectory = {:?}\n", state.path().join("audit"))).unwrap();
    let server = Server::start_in(state, &["--config", config.to_str().unwrap()]);
    server.ask(&["create", "--name", "box"]);
    server.ask(&["exec", "box", "--", "true"]);
    let lines = |words: &[&str]| -> Vec<serde_json::Value> {
        let all = [&["audit", "query", "--server", &server.url][..], words].concat();
        server.ask(&all).lines().map(json).collect()
    };
    let ends = lines(&["--kind", "end"]);
    assert!(ends.len() == 1 && ends[0]["record"]["exit"]["code"] == 0, "{ends:?}");
    let calls = lines(&["--kind", "call", "--sandbox", "box"]);
    assert!(calls.iter().any(|line| line["record"]["method"] == "POST"), "{calls:?}");
    let found = lines(&["--text", "/V1/sandboxes/{sandbox}/execs", "--kind", "call"]);
    let endpoint = |line: &serde_json::Value| line["record"]["endpoint"].as_str().unwrap().to_owned();
    assert!(!found.is_empty() && found.iter().all(|line| endpoint(line).contains("/execs")), "{found:?}");
    assert_eq!(lines(&["--text", "&kind=end"]).len(), 0, "the text is one parameter");
    let (all, last) = (lines(&[]), lines(&["--last", "2"]));
    let seq = |line: &serde_json::Value| line["seq"].as_u64().unwrap();
    assert!(all.iter().map(seq).is_sorted_by(|one, next| one < next) && all.len() > 5, "{all:?}");
    assert!(last.len() == 2 && seq(&last[0]) < seq(&last[1]), "{last:?}");
    assert_eq!(lines(&["--tenant", "other"]).len(), 0);
    let verified = server.ask(&["audit", "verify", "--server", &server.url]);
    assert!(verified.starts_with("whole: every line is unchanged\n"), "{verified}");
    let words = ["audit", "verify", "--server", &server.url, "--artifacts"];
    let (code, _, stderr) = outcome(&mut server.client(&words));
    assert!(code == 125 && stderr.contains("--server excludes"), "{code} {stderr}");
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): Code of a language runs in a sandbox and in kernels, which keep their variables, and figures are saved.
#[test]
fn code_and_kernels_run() {
    let server = Server::start(&[]);
    server.ask(&["create", "--name", "box"]);
    assert_eq!(server.ask(&["code", "box", "--code", "print(1); 2 + 3"]), "1\n5\n");
    let (code, _, stderr) = outcome(&mut server.client(&["code", "box", "--code", "import sys; sys.exit(3)"]));
    assert_eq!(code, 3, "{stderr}");
    let (code, _, stderr) = outcome(&mut server.client(&["code", "box", "--timeout", "1s", "--code", "while 1: pass"]));
    assert!(code == 124 && stderr.contains("time limit"), "{code} {stderr}");

    let figure = "class F:\n  def _repr_png_(self): return bytes.fromhex('89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000154a24f5d0000000049454e44ae426082')\nF()";
    let found = json(&server.ask(&["code", "--json", "box", "--code", figure]));
    assert!(found["results"][0]["data"]["image/png"].is_string(), "{found}");
    let (code, _, stderr) = outcome(&mut server.client(&["code", "--figures", ".", "box", "--code", figure]));
    assert!(code == 0 && stderr.contains("saved ./figure-1.png"), "{code} {stderr}");
    assert!(std::fs::read(server.state.path().join("figure-1.png")).unwrap().starts_with(b"\x89PNG"));
    let again = outcome(&mut server.client(&["code", "--figures", ".", "box", "--code", figure]));
    assert!(again.0 == 0 && again.2.contains("saved ./figure-2.png"), "it replaces nothing: {again:?}");
    let (code, stdout, stderr) =
        outcome(&mut server.client(&["code", "--figures", "missing", "box", "--code", &format!("print(1)\n{figure}")]));
    assert!(
        code == 125 && stdout.starts_with("1\n") && stderr.contains("the figures are not saved"),
        "{code} {stdout} {stderr}"
    );

    let kernel = server.ask(&["kernel", "start", "box"]);
    let kernel = kernel.trim();
    assert!(server.ask(&["kernel", "ls", "box"]).contains(kernel));
    server.ask(&["code", "--kernel", kernel, "box", "--code", "x = 41"]);
    assert_eq!(server.ask(&["code", "--kernel", kernel, "box", "--code", "x + 1"]), "42\n");
    server.ask(&["kernel", "rm", "box", kernel]);
    assert_eq!(outcome(&mut server.client(&["code", "--kernel", kernel, "box", "--code", "x"])).0, 125);
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): A shell completes names of sandboxes, and gets none and no error without a server.
#[test]
fn names_are_completed_by_the_shell() {
    let server = Server::start(&[]);
    server.ask(&["create", "--name", "build"]);
    server.ask(&["create", "--name", "bench"]);
    let complete = |mut command: std::process::Command, words: &[&str]| {
        command.env("COFFERDAM_COMPLETE", "bash").env("_CLAP_IFS", "\n");
        command.env("_CLAP_COMPLETE_INDEX", words.len().to_string());
        let (code, stdout, stderr) = outcome(command.args(["--", "cofferdam"]).args(words));
        assert_eq!((code, stderr.as_str()), (0, ""), "{words:?}");
        stdout.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
    };
    for (words, expected) in [
        (&["exec", "bu"][..], &["build"][..]),
        (&["rm", "build", "be"], &["bench"]),
        (&["logs", "b"], &["bench", "build"]),
        (&["snapshot", "take", "bu"], &["build"]),
        (&["cp", "bu"], &["build:"]),
    ] {
        let mut found = complete(server.client(&[]), words);
        found.sort();
        assert_eq!(found, expected, "{words:?}");
    }
    // A server that never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut slow = server.client(&[]);
    slow.env("COFFERDAM_SERVER", &url);
    let start = Instant::now();
    assert_eq!(complete(slow, &["rm", "bu"]), Vec::<String>::new());
    assert!(start.elapsed() < Duration::from_secs(10), "it does not wait for an answer");
    let elsewhere = tempfile::tempdir().unwrap();
    assert_eq!(complete(program(elsewhere.path()), &["rm", "bu"]), Vec::<String>::new());
    assert_eq!(server.stop(), Some(0));
}
