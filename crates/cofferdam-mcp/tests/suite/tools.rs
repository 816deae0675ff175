//! Behaviour of each tool.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contract::{Access, Capability, Limits, Workspace};
use cofferdam_mcp::{Bounds, McpConfig};
use cofferdam_simulated::{SimulatedBackend, SimulatedConfig};
use serde_json::{Value, json};

use crate::pipe::{Client, config, process, spec, until_running};

/// A picture with one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test(flavor = "multi_thread")]
async fn every_tool_is_listed_with_schemas_and_hints() {
    let mut client = Client::processes().await;
    let answer = client.request("tools/list", json!({})).await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let expected = [
        "run_code",
        "run_command",
        "read_file",
        "write_file",
        "edit_file",
        "list_files",
        "create_sandbox",
        "close_sandbox",
    ];
    assert_eq!(names, expected);
    for tool in tools {
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
        let read_only = ["read_file", "list_files"].contains(&tool["name"].as_str().unwrap());
        assert_eq!(tool["annotations"]["readOnlyHint"], read_only, "{tool}");
        assert!(tool["annotations"]["destructiveHint"].is_boolean(), "{tool}");
    }
    client.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_that_the_backend_cannot_serve_are_not_listed() {
    let listed = async |capabilities: Vec<Capability>| {
        let simulated = SimulatedBackend::new(SimulatedConfig {
            capabilities: capabilities.into_iter().collect(),
            ..SimulatedConfig::default()
        });
        let mut client = Client::new(std::sync::Arc::new(simulated), McpConfig::default()).await;
        let answer = client.request("tools/list", json!({})).await;
        client.gone().await;
        let tools = answer["result"]["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let wasm = listed(vec![Capability::Files, Capability::Snapshot, Capability::Fork]).await;
    assert!(!wasm.contains(&"run_command".to_owned()) && wasm.contains(&"fork_sandbox".to_owned()), "{wasm:?}");
    assert_eq!(listed(Vec::new()).await, ["run_code", "create_sandbox", "close_sandbox"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_long_output_is_kept() {
    let mut client = Client::processes().await;
    let line = "seq 1 400000; echo error: the last line; seq 1 400000 >&2; echo failed >&2; exit 2";
    let command = client.works("run_command", json!({"command": line})).await;
    let code =
        "import sys\nprint('begin')\nfor i in range(300000): print(i)\nprint('error: the last line')\nsys.exit(2)";
    let program = client.works("run_code", json!({"language": "python", "code": code})).await;
    let session = code.replace("sys.exit(2)", "1");
    let session = client.works("run_code", json!({"language": "python", "session": "main", "code": session})).await;
    for (result, first) in [(&command, "1\n2\n"), (&program, "begin\n"), (&session, "begin\n")] {
        let stdout = result["stdout"].as_str().unwrap();
        assert!(stdout.starts_with(first) && stdout.ends_with("error: the last line\n"), "{result}");
        assert!(stdout.contains("characters left out") && stdout.len() < 21_000, "{}", stdout.len());
        assert_eq!(result["truncated"], true, "{result}");
    }
    assert!(command["stderr"].as_str().unwrap().ends_with("\n400000\nfailed\n"), "{command}");
    assert_eq!((&command["exit_code"], &command["working_dir"]), (&json!(2), &json!("/workspace")));
    let more = client.works("run_command", json!({"command": "seq 1 20000", "max_output_bytes": 200_000})).await;
    assert_eq!((more["stdout"].as_str().unwrap().lines().count(), &more["truncated"]), (20_000, &json!(false)));
    client.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn code_gives_output_value_files_and_where_it_ran() {
    let mut client = Client::processes().await;
    let code = "import sys\nopen('made.txt', 'w').write('hello')\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7";
    let result = client.works("run_code", json!({"language": "python", "code": code, "file_contents": true})).await;
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!("out\n"), &json!("err\n")), "{result}");
    assert_eq!(result["exit_code"], 0, "{result}");
    assert_eq!(result["results"][0]["data"]["text/plain"], "42", "{result}");
    assert_eq!(result["files"][0]["path"], "made.txt", "{result}");
    assert_eq!(result["files"][0]["text"], "hello", "{result}");
    assert_eq!((&result["backend"], &result["level"]), (&json!("process"), &json!("process")), "{result}");
    assert_eq!(result["created"], true, "{result}");
    let again = client.works("run_code", json!({"language": "sh", "code": "cat made.txt; exit 3"})).await;
    assert_eq!((&again["stdout"], &again["exit_code"], &again["created"]), (&json!("hello"), &json!(3), &json!(false)));
    client.gone().await;
}

/// Promise (MCP server): A figure is an image in the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_figure_is_an_image() {
    let mut client = Client::processes().await;
    let code = format!(
        "import base64\nclass Picture:\n  def _repr_png_(self):\n    return base64.b64decode('{PNG}')\nPicture()"
    );
    let result = client.tool("run_code", json!({"language": "python", "code": code})).await;
    let image = result["content"].as_array().unwrap().iter().find(|content| content["type"] == "image");
    assert_eq!(
        image.map(|image| (&image["data"], &image["mimeType"])),
        Some((&json!(PNG), &json!("image/png"))),
        "{result}"
    );
    assert!(!result["structuredContent"].to_string().contains(PNG), "{result}");
    client.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_keeps_its_directory_and_nothing_else() {
    let mut client = Client::processes().await;
    let first = client.works("run_command", json!({"command": "mkdir -p a/b; cd a/b; X=1; false"})).await;
    assert_eq!((&first["exit_code"], &first["working_dir"]), (&json!(1), &json!("/workspace/a/b")), "{first}");
    assert_eq!(first["stderr"], "", "{first}");
    let second = client.works("run_command", json!({"command": "pwd; echo \"[$X]\"; cat", "stdin": "in"})).await;
    assert_eq!(second["stdout"], "/workspace/a/b\n[]\nin", "{second}");
    let named = json!({"command": "pwd; cd /tmp", "working_dir": "a", "env": {"Y": "2"}});
    assert_eq!(client.works("run_command", named).await["stdout"], "/workspace/a\n");
    assert_eq!(client.works("run_command", json!({"command": "pwd"})).await["stdout"], "/workspace\n");
    client.works("run_command", json!({"command": "mkdir gone; cd gone"})).await;
    client.works("run_code", json!({"language": "sh", "code": "rmdir /workspace/gone"})).await;
    assert_eq!(client.works("run_command", json!({"command": "pwd"})).await["stdout"], "/workspace\n");
    client.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_read_edited_and_listed() {
    let mut client = Client::processes().await;
    let written = client.works("write_file", json!({"path": "d/a.txt", "content": "one two two"})).await;
    assert_eq!((&written["bytes"], &written["path"]), (&json!(11), &json!("d/a.txt")));
    let edit = |old: &str, all: bool| json!({"path": "d/a.txt", "old_text": old, "new_text": "3", "replace_all": all});
    assert_eq!(client.fails("edit_file", edit("two", false)).await.1, "conflict");
    assert_eq!(client.fails("edit_file", edit("four", false)).await.1, "not-found");
    assert_eq!(client.works("edit_file", edit("two", true)).await["replacements"], 2);
    let part = client.works("read_file", json!({"path": "/workspace/d/a.txt", "offset": 4, "limit": 2})).await;
    assert_eq!((&part["text"], &part["more"]), (&json!("3 "), &json!(true)), "{part}");
    let listing = client.works("list_files", json!({"depth": 2})).await;
    let entry = |path, kind, size| json!({"path": path, "kind": kind, "size": size});
    assert_eq!(listing["entries"], json!([entry("d", "directory", 0), entry("d/a.txt", "file", 7)]));
    client.works("write_file", json!({"path": "p.png", "content": PNG, "encoding": "base64"})).await;
    let image = client.tool("read_file", json!({"path": "p.png"})).await;
    assert_eq!((&image["content"][0]["type"], &image["content"][0]["data"]), (&json!("image"), &json!(PNG)), "{image}");
    client.gone().await;
}

/// Promise (Files): No MCP tool changes a host directory that is mounted read-only.
#[tokio::test(flavor = "multi_thread")]
async fn no_tool_writes_to_a_read_only_mount() {
    let mounted = tempfile::tempdir().unwrap();
    let file = mounted.path().join("a.txt");
    std::fs::write(&file, "as it was").unwrap();
    for (access, asks) in [(Access::ReadOnly, false), (Access::ReadWrite, true)] {
        let workspace = Workspace::HostDir { path: mounted.path().canonicalize().unwrap(), access };
        let spec = spec().to_builder().workspace(workspace).limits(Limits { disk: None, ..spec().limits().clone() });
        let config = McpConfig { spec: spec.build().unwrap(), ..config(Bounds::default()) };
        let mut client = Client::new(process(), config).await;
        // Also if only the client restricts a workspace that the server mounts writable.
        let sandbox = client.works("create_sandbox", json!({"read_only": asks})).await["sandbox"].clone();
        let read = client.works("read_file", json!({"path": "a.txt", "sandbox": sandbox})).await;
        assert_eq!(read["text"], "as it was", "{read}");
        for (tool, arguments) in [
            ("write_file", json!({"path": "a.txt", "content": "changed", "sandbox": sandbox})),
            ("write_file", json!({"path": "d/new.txt", "content": "new", "sandbox": sandbox})),
            ("edit_file", json!({"path": "a.txt", "old_text": "was", "new_text": "is", "sandbox": sandbox})),
        ] {
            let (text, kind) = client.fails(tool, arguments).await;
            assert!(kind == "denied" && text.contains("mounted read-only") && text.contains("try: "), "{tool}: {text}");
        }
        let run = client.works("run_command", json!({"command": "echo x > a.txt", "sandbox": sandbox})).await;
        assert_ne!(run["exit_code"], 0, "{run}");
        client.gone().await;
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "as it was");
        assert_eq!(std::fs::read_dir(mounted.path()).unwrap().count(), 1);
    }
}

/// Promise (MCP server): A file that is not text is a blob in the answer.
#[tokio::test(flavor = "multi_thread")]
async fn binary_file_is_returned_as_a_blob() {
    let mut client = Client::processes().await;
    let bytes = STANDARD.encode(b"\xff\xfe\0x");
    let written =
        client.works("write_file", json!({"path": "a b/é.bin", "content": bytes, "encoding": "base64"})).await;
    let read = client.tool("read_file", json!({"path": "a b/é.bin"})).await;
    let resource = &read["content"][0]["resource"];
    assert_eq!((&resource["blob"], &read["structuredContent"]["text"]), (&json!(bytes), &Value::Null), "{read}");
    let listed = client.request("resources/list", json!({})).await;
    let uri = listed["result"]["resources"][0]["uri"].as_str().unwrap().to_owned();
    assert_eq!(uri, format!("cofferdam://{}/a%20b/%C3%A9.bin", written["sandbox"].as_str().unwrap()));
    let read = client.request("resources/read", json!({"uri": uri})).await;
    assert_eq!(read["result"]["contents"][0]["blob"], json!(bytes), "{read}");
    let templates = client.request("resources/templates/list", json!({})).await;
    assert_eq!(templates["result"]["resourceTemplates"][0]["uriTemplate"], "cofferdam://{sandbox}/{+path}");
    client.gone().await;
}

/// Promise (MCP server): Long file listings are split into pages.
#[tokio::test(flavor = "multi_thread")]
async fn many_files_come_in_pages() {
    let mut client = Client::processes().await;
    client.works("run_command", json!({"command": "for i in $(seq 1 450); do : > f$i; done"})).await;
    let (mut seen, mut cursor, mut pages) = (std::collections::BTreeSet::new(), Value::Null, 0);
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let page = client.request("resources/list", params).await["result"].clone();
        for resource in page["resources"].as_array().unwrap() {
            assert!(seen.insert(resource["uri"].as_str().unwrap().to_owned()), "{resource}");
        }
        pages += 1;
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!((seen.len(), pages), (450, 3));
    let wrong = client.request("resources/list", json!({"cursor": "7"})).await;
    assert_eq!(wrong["error"]["code"], -32602, "{wrong}");
    client.gone().await;
}

/// Promise (MCP server): Output and progress are sent while code runs.
#[tokio::test(flavor = "multi_thread")]
async fn output_and_progress_come_while_code_runs() {
    let mut client = Client::processes().await;
    let arguments = json!({"command": "echo first; echo oops >&2; sleep 2; echo last"});
    let id = client
        .begin("tools/call", json!({"name": "run_command", "arguments": arguments, "_meta": {"progressToken": "p"}}))
        .await;
    let mut early = Vec::new();
    while !early.iter().any(|message: &Value| message["params"]["data"] == "first\n") {
        early.push(client.hear().await.unwrap());
    }
    let answer = client.answer(id).await;
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "first\nlast\n", "{answer}");
    let heard: Vec<&Value> = early.iter().chain(&client.heard).collect();
    assert!(
        heard.iter().any(|message| message["params"]["logger"] == "stderr" && message["params"]["data"] == "oops\n")
    );
    let progress: Vec<f64> = heard
        .iter()
        .filter(|message| message["method"] == "notifications/progress" && message["params"]["progressToken"] == "p")
        .filter_map(|message| message["params"]["progress"].as_f64())
        .collect();
    assert!(progress.len() >= 2 && progress.is_sorted_by(|a, b| a < b), "{progress:?}");
    // A client that opts out of info messages gets none.
    client.request("logging/setLevel", json!({"level": "error"})).await;
    client.works("run_command", json!({"command": "echo x"})).await;
    assert!(client.heard.is_empty(), "{:?}", client.heard);
    client.gone().await;
}

/// Promise (MCP server): A cancelled call is killed within a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_is_killed_within_a_second_and_the_next_call_works() {
    let mut client = Client::processes().await;
    client.works("run_command", json!({"command": "echo x > kept"})).await;
    let call = json!({"name": "run_command", "arguments": {"command": "trap '' TERM; sleep 3941.5; sleep 3941.5"}});
    let id = client.begin("tools/call", call).await;
    until_running("3941.5", 1, Duration::from_secs(30)).await;
    client.notify("notifications/cancelled", json!({"requestId": id, "reason": "enough"})).await;
    until_running("3941.5", 0, Duration::from_secs(1)).await;
    assert_eq!(client.works("run_command", json!({"command": "cat kept"})).await["stdout"], "x\n");
    client.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_restored_and_sandboxes_forked_where_the_backend_can() {
    let backend = std::sync::Arc::new(SimulatedBackend::new(SimulatedConfig::default()));
    let mut client = Client::new(backend, config(Bounds { snapshots_of_client: 1, ..Bounds::default() })).await;
    let sandbox = client.works("create_sandbox", json!({})).await["sandbox"].clone();
    let write = |sandbox: &Value, text: &str| json!({"path": "a", "content": text, "sandbox": sandbox});
    client.works("write_file", write(&sandbox, "1")).await;
    let snapshot = client.works("snapshot_sandbox", json!({"sandbox": sandbox})).await["snapshot"].clone();
    assert_eq!(client.fails("snapshot_sandbox", json!({"sandbox": sandbox})).await.1, "resource-exhausted");
    client.works("write_file", write(&sandbox, "2")).await;
    let fork = client.works("fork_sandbox", json!({"sandbox": sandbox})).await["sandbox"].clone();
    let limits = json!({"timeout_seconds": 5});
    let restored = client.works("restore_sandbox", json!({"snapshot": snapshot, "limits": limits})).await;
    assert_eq!(restored["limits"]["timeout_seconds"], 5.0, "{restored}");
    for (sandbox, text) in [(&sandbox, "2"), (&fork, "2"), (&restored["sandbox"], "1")] {
        let read = client.works("read_file", json!({"path": "a", "sandbox": sandbox})).await;
        assert_eq!(read["text"], text, "{read}");
    }
    let (text, kind) =
        client.fails("restore_sandbox", json!({"snapshot": snapshot, "limits": {"timeout_seconds": 61}})).await;
    assert_eq!(kind, "denied", "{text}");
    client.works("close_sandbox", json!({"snapshot": snapshot})).await;
    assert_eq!(client.fails("restore_sandbox", json!({"snapshot": snapshot})).await.1, "not-found");
    client.gone().await;
    let mut client = Client::new(process(), config(Bounds::default())).await;
    let sandbox = client.works("create_sandbox", json!({})).await["sandbox"].clone();
    for tool in ["snapshot_sandbox", "fork_sandbox"] {
        assert_eq!(client.fails(tool, json!({"sandbox": sandbox})).await.1, "unsupported", "{tool}");
    }
    client.gone().await;
}

/// Promise (MCP server): The pages of a listing contain every file.
#[tokio::test(flavor = "multi_thread")]
async fn every_file_is_listed_however_many_there_are() {
    let bounds = Bounds { entries: 20, ..Bounds::default() };
    let mut client = Client::new(process(), config(bounds)).await;
    let line = "mkdir -p a/b/c d 'e f' empty; for i in $(seq 30); do mkdir z$i; done; \
                for at in . a a/b a/b/c d 'e f'; do for i in $(seq 9); do : > \"$at/$i%\"; done; done";
    for _ in 0..2 {
        let created = client.works("create_sandbox", json!({})).await["sandbox"].clone();
        let done = client.works("run_command", json!({"command": line, "sandbox": created})).await;
        assert_eq!(done["exit_code"], 0, "{done}");
    }
    let (mut seen, mut cursor) = (std::collections::BTreeSet::new(), json!({}));
    for pages in 0.. {
        assert!(pages < 40, "{} files", seen.len());
        let page = client.request("resources/list", cursor.clone()).await["result"].clone();
        for resource in page["resources"].as_array().expect("resources") {
            assert!(seen.insert(resource["uri"].to_string()), "listed twice: {resource}");
        }
        match &page["nextCursor"] {
            Value::Null => break,
            next => cursor = json!({"cursor": next}),
        }
    }
    assert_eq!(seen.len(), 2 * 6 * 9);
    client.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_unanalyzed_code_state_it() {
    let mut config = config(Bounds::default());
    config.code.screening.mode = cofferdam_code::ScreeningMode::Warn;
    config.code.screening.syntax = cofferdam_code::ScreeningMode::Warn;
    let mut client = Client::new(process(), config).await;
    let result = client.works("run_code", json!({"language": "python", "code": "= ="})).await;
    let findings = result["findings"].to_string();
    assert!(findings.contains("was not screened"), "{result}");
    client.gone().await;
}
