//! Live interpreters, which persist between calls.

use std::time::Duration;

use cofferdam_code::{AuditConfig, AuditSync, ScreeningMode, SessionBounds};
use cofferdam_mcp::{Bounds, McpConfig};
use cofferdam_simulated::{SimulatedBackend, SimulatedConfig};
use serde_json::{Value, json};

use crate::pipe::{Client, config, process, until_running};

fn call(session: &str, language: &str, code: &str) -> Value {
    json!({"session": session, "language": language, "code": code, "timeout_seconds": 20})
}

fn python(session: &str, code: &str) -> Value {
    call(session, "python", code)
}

fn value(result: &Value) -> &str {
    result["results"][0]["data"]["text/plain"].as_str().unwrap_or_default()
}

/// Creates a configuration with an audit log and screening.
fn watched(directory: &std::path::Path) -> McpConfig {
    let mut config = config(Bounds::default());
    config.code.audit = Some(AuditConfig {
        directory: directory.to_owned(),
        mandatory: true,
        sync: AuditSync::Never,
        key: None,
        segment_bytes: None,
        keep_segments: None,
        artifact_bytes: None,
    });
    config.code.screening.mode = ScreeningMode::Block;
    config
}

/// Returns the lines of one kind in the log.
fn lines(log: &std::path::Path, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(log.join("audit-00000001.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["kind"] == kind).collect()
}

/// Promise (MCP server): Variables of a code session persist between calls.
#[tokio::test(flavor = "multi_thread")]
async fn variables_persist_between_calls() {
    let mut client = Client::processes().await;
    let first = client.works("run_code", python("main", "x = 20\nprint('one')\nopen('f', 'w').write('x')")).await;
    assert_eq!(first["stdout"], "one\n", "{first}");
    assert_eq!(first["session"], json!({"name": "main", "calls": 1, "lost": null}), "{first}");
    assert_eq!(first["files"][0]["path"], "f", "{first}");
    let second = client.works("run_code", python("main", "def f(y):\n  return x + y\nf(22)")).await;
    assert_eq!((value(&second), &second["session"]["calls"]), ("42", &json!(2)), "{second}");
    let failed = client.works("run_code", python("main", "f(None)")).await;
    assert_eq!((&failed["exit_code"], &failed["session"]["lost"]), (&json!(1), &Value::Null), "{failed}");
    client.works("run_code", call("js", "javascript", "const x = 'j'; var n = 1")).await;
    assert_eq!(value(&client.works("run_code", call("js", "javascript", "x + n")).await), "'j1'");
    // Other names, other sandboxes and calls without a session have separate variables.
    let unset = "print('x' in globals())";
    assert_eq!(client.works("run_code", python("other", unset)).await["stdout"], "False\n");
    let plain = client.works("run_code", json!({"language": "python", "code": unset})).await;
    assert_eq!((&plain["stdout"], &plain["session"]), (&json!("False\n"), &Value::Null), "{plain}");
    let sandbox = client.works("create_sandbox", json!({})).await["sandbox"].clone();
    let mut request = python("main", unset);
    request["sandbox"] = sandbox;
    assert_eq!(client.works("run_code", request).await["stdout"], "False\n");
    client.gone().await;
}

/// Promise (MCP server): A crash, a timeout or an endless loop ends its own code session only, with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_ends_one_session_and_is_reported() {
    let mut client = Client::processes().await;
    client.works("run_code", python("good", "kept = 1")).await;
    for (name, language, code, why) in [
        ("loop", "python", "while True: pass", "did not end within"),
        ("crash", "python", "import os; os._exit(3)", "exit code 3"),
        ("signal", "python", "import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("js", "javascript", "for (;;) {}", "did not end within"),
    ] {
        let mut wrong = call(name, language, code);
        wrong["timeout_seconds"] = json!(2);
        let result = client.tool("run_code", wrong).await;
        let lost = result["structuredContent"]["session"]["lost"].as_str().unwrap_or_default().to_owned();
        assert!(lost.contains(why), "{code}: {result}");
        assert!(result["content"][0]["text"].as_str().unwrap().contains("is lost"), "{result}");
        let (text, kind) = client.fails("run_code", call(name, language, "1")).await;
        assert!(kind == "closed" && text.contains(why) && text.contains("close_sandbox"), "{text}");
        assert_eq!(value(&client.works("run_code", python("good", "kept")).await), "1");
        // The client can reuse the name after closing the session.
        client.works("close_sandbox", json!({"session": name})).await;
        assert_eq!(client.works("run_code", call(name, language, "1")).await["session"]["calls"], 1);
        client.works("close_sandbox", json!({"session": name})).await;
    }
    client.gone().await;
}

/// Promise (MCP server): A cancelled call ends its own code session only.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_loses_its_session_alone_and_is_killed() {
    let mut client = Client::processes().await;
    client.works("run_code", python("good", "kept = 1")).await;
    client.works("run_code", python("busy", "import subprocess")).await;
    let arguments = python("busy", "subprocess.run(['sleep', '3947.5'])");
    let id = client.begin("tools/call", json!({"name": "run_code", "arguments": arguments})).await;
    until_running("3947.5", 1, Duration::from_secs(30)).await;
    let (text, kind) = client.fails("run_code", python("busy", "1")).await;
    assert_eq!(kind, "conflict", "{text}");
    client.notify("notifications/cancelled", json!({"requestId": id, "reason": "enough"})).await;
    until_running("3947.5", 0, Duration::from_secs(5)).await;
    let (text, kind) = client.fails("run_code", python("busy", "1")).await;
    assert!(kind == "closed" && text.contains("cancelled"), "{text}");
    assert_eq!(value(&client.works("run_code", python("good", "kept")).await), "1");
    // A call that is cancelled while its interpreter starts frees the name.
    let id = client.begin("tools/call", json!({"name": "run_code", "arguments": python("new", "1")})).await;
    client.notify("notifications/cancelled", json!({"requestId": id})).await;
    for _ in 0..200 {
        let result = client.tool("run_code", python("new", "2")).await;
        if result["isError"] == false {
            client.gone().await;
            return;
        }
        let closed = result["_meta"]["cofferdam/error"]["kind"] == "closed";
        if closed {
            client.works("close_sandbox", json!({"session": "new"})).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("its name is not free");
}

/// Promise (MCP server): Code sessions are limited, end when idle, and widen no setting.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_bounded_end_when_idle_and_cannot_widen_anything() {
    let mut config = config(Bounds { interpreters_of_client: 2, ..Bounds::default() });
    config.code.sessions = SessionBounds { idle_timeout: Duration::from_secs(6), ..SessionBounds::default() };
    let mut client = Client::new(process(), config).await;
    client.works("run_code", python("a", "1")).await;
    client.works("run_code", python("b", "1")).await;
    let (text, kind) = client.fails("run_code", python("c", "1")).await;
    assert!(kind == "resource-exhausted" && text.contains("close_sandbox"), "{text}");
    client.works("close_sandbox", json!({"session": "a"})).await;
    client.works("run_code", python("c", "1")).await;
    for (key, value, expected) in [
        ("timeout_seconds", json!(61), "denied"),
        ("max_output_bytes", json!(1 << 30), "denied"),
        ("env", json!({"A": "1"}), "invalid-input"),
        ("args", json!(["1"]), "invalid-input"),
        ("stdin", json!("x"), "invalid-input"),
        ("working_dir", json!("d"), "invalid-input"),
        ("session", json!("../c"), "invalid-input"),
        ("session", json!(""), "invalid-input"),
        ("language", json!("javascript"), "conflict"),
        ("language", json!("ruby"), "denied"),
    ] {
        let mut arguments = python("c", "1");
        arguments[key] = value;
        let (text, kind) = client.fails("run_code", arguments.clone()).await;
        assert_eq!(kind, expected, "{arguments}: {text}");
    }
    client.works("close_sandbox", json!({"session": "c"})).await;
    assert_eq!(client.fails("run_code", call("sh", "sh", "true")).await.1, "unsupported");
    assert_eq!(client.fails("close_sandbox", json!({"session": "never"})).await.1, "not-found");
    client.works("run_code", python("idle", "1")).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    let (text, kind) = client.fails("run_code", python("idle", "1")).await;
    assert!(kind == "closed" && text.contains("it was idle for 6 s"), "{text}");
    // Its reservation is released.
    client.works("run_code", python("d", "1")).await;
    client.works("run_code", python("e", "1")).await;
    client.gone().await;
}

/// Promise (MCP server): Each call of a code session is analysed and logged before it runs.
#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_a_session_is_screened_and_logged() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let mut client = Client::new(process(), watched(&log)).await;
    // Refused code starts nothing: the first call of a name is screened before the start.
    assert_eq!(client.fails("run_code", python("main", "import os")).await.1, "denied");
    assert_eq!(client.fails("run_code", python("main", "= =")).await.1, "invalid-input");
    let first = client.works("run_code", python("main", "x = 1")).await;
    assert_eq!(first["session"]["calls"], 1, "{first}");
    assert_eq!(client.fails("run_code", python("main", "import socket")).await.1, "denied");
    assert_eq!(client.works("run_code", python("main", "x")).await["session"]["calls"], 2);
    client.gone().await;
    let counts = ["begin", "end", "cancelled"].map(|kind| lines(&log, kind).len());
    assert_eq!(counts, [5, 2, 3]);
    let ends = lines(&log, "end");
    assert!(ends[0]["sandbox"].is_string() && ends[0]["sandbox"] == ends[1]["sandbox"], "{ends:?}");
}

/// Promise (MCP server): A restore or fork has a line in the audit log, and fails if the log cannot be written.
#[tokio::test(flavor = "multi_thread")]
async fn restore_and_fork_are_logged_or_fail() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let backend = std::sync::Arc::new(SimulatedBackend::new(SimulatedConfig::default()));
    let mut client = Client::new(backend, watched(&log)).await;
    let sandbox = client.works("create_sandbox", json!({})).await["sandbox"].clone();
    let snapshot = client.works("snapshot_sandbox", json!({"sandbox": sandbox})).await["snapshot"].clone();
    client.works("fork_sandbox", json!({"sandbox": sandbox})).await;
    client.works("restore_sandbox", json!({"snapshot": snapshot})).await;
    let ends = lines(&log, "end");
    assert_eq!(ends.len(), 2, "{ends:?}");
    for end in &ends {
        assert_eq!((&end["program"]["of"], &end["exit"]["code"]), (&json!("snapshot"), &json!(0)), "{end}");
        assert!(end["posture"].is_string() && end["restored"]["from"].is_string(), "{end}");
        assert!(end["restored"]["programs"] == false && end["restored"]["from"] != end["sandbox"], "{end}");
    }
    // Without sessions an id grants access, so the log does not contain it.
    let text = std::fs::read_to_string(log.join("audit-00000001.jsonl")).unwrap();
    for id in [&sandbox, &snapshot] {
        assert!(!text.contains(id.as_str().unwrap()), "{text}");
    }
    std::fs::remove_dir_all(&log).unwrap();
    for (tool, arguments) in
        [("restore_sandbox", json!({"snapshot": snapshot})), ("fork_sandbox", json!({"sandbox": sandbox}))]
    {
        for _ in 0..8 {
            let (text, kind) = client.fails(tool, arguments.clone()).await;
            assert!(kind == "unavailable" && text.contains("audit log"), "{text}");
        }
    }
    client.gone().await;
}

/// Promise (MCP server): A restored sandbox gets no more than its source had.
#[tokio::test(flavor = "multi_thread")]
async fn restored_sandbox_gets_no_more_than_its_source() {
    let backend = std::sync::Arc::new(SimulatedBackend::new(SimulatedConfig::default()));
    let mut client = Client::new(backend, config(Bounds::default())).await;
    let less = json!({"limits": {"timeout_seconds": 5, "pids": 3}, "read_only": true});
    let sandbox = client.works("create_sandbox", less).await["sandbox"].clone();
    let snapshot = client.works("snapshot_sandbox", json!({"sandbox": sandbox})).await["snapshot"].clone();
    let restored = client.works("restore_sandbox", json!({"snapshot": snapshot})).await;
    assert_eq!((&restored["limits"]["timeout_seconds"], &restored["limits"]["pids"]), (&json!(5.0), &json!(3)));
    let wider = json!({"snapshot": snapshot, "limits": {"timeout_seconds": 6}});
    assert_eq!(client.fails("restore_sandbox", wider).await.1, "denied");
    client.gone().await;
}
