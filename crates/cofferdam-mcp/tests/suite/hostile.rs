//! Clients that exceed limits or send invalid messages.

use std::time::Duration;

use cofferdam_contract::{ByteSize, Limits};
use cofferdam_mcp::{Bounds, McpConfig};
use serde_json::json;

use crate::pipe::{Client, config, process, until_running};

/// Promise (MCP server): Paths and resource addresses that lead upwards are refused.
#[tokio::test(flavor = "multi_thread")]
async fn paths_that_climb_are_refused() {
    let mut client = Client::processes().await;
    client
        .works("run_command", json!({"command": "ln -s /etc out; ln -s /etc/passwd link; mkfifo pipe; ln -s . loop"}))
        .await;
    for path in [
        "../etc/passwd",
        "/etc/passwd",
        "a/../../x",
        "out/passwd",
        "link",
        "pipe",
        "a\u{0}b",
        "",
        "/workspace",
        &"x".repeat(5000),
    ] {
        for (tool, more) in [
            ("read_file", json!({})),
            ("write_file", json!({"content": "x"})),
            ("edit_file", json!({"old_text": "r", "new_text": "x"})),
        ] {
            // A file may replace a symlink. That changes nothing outside.
            if tool == "write_file" && ["pipe"].contains(&path) {
                continue;
            }
            let mut arguments = more.clone();
            arguments["path"] = json!(path);
            let (text, kind) = client.fails(tool, arguments).await;
            assert!(["path-escape", "invalid-input", "conflict"].contains(&kind.as_str()), "{tool} {path:?}: {text}");
            assert!(!text.contains("root:"), "{text}");
        }
    }
    for path in ["..", "/", "out"] {
        assert_eq!(client.fails("list_files", json!({"path": path})).await.1, "path-escape", "{path}");
    }
    let listing = client.works("list_files", json!({"depth": 32})).await;
    assert!(listing["entries"].as_array().unwrap().len() <= 5, "links are not followed: {listing}");
    for uri in ["file:///etc/passwd", "cofferdam://x/../y", "cofferdam://x", "http://example.com/"] {
        let answer = client.request("resources/read", json!({"uri": uri})).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    client.gone().await;
}

/// Promise (MCP server): Errors do not repeat long input of a client.
#[tokio::test(flavor = "multi_thread")]
async fn errors_do_not_repeat_all_that_a_client_sent() {
    let mut client = Client::processes().await;
    let long = "x".repeat(300_000);
    for (tool, arguments) in [
        ("read_file", json!({"path": long})),
        ("run_code", json!({"language": long, "code": "1"})),
        ("run_code", json!({"language": "python", "code": "1", "sandbox": long})),
        ("run_code", json!({"language": "python", "code": "1", "session": long})),
        ("close_sandbox", json!({"session": long})),
        ("create_sandbox", json!({long.as_str(): 1})),
        ("create_sandbox", json!({"network": long})),
    ] {
        let result = client.tool(tool, arguments).await;
        assert!(result["isError"] == true && result.to_string().len() < 20_000, "{tool}: {}", result.to_string().len());
    }
    for uri in [format!("cofferdam://{long}/a"), format!("cofferdam://sb-0/{}", "y".repeat(15_000)), long.clone()] {
        let answer = client.request("resources/read", json!({"uri": uri})).await;
        assert!(
            answer["error"]["code"].is_number() && answer.to_string().len() < 20_000,
            "{}",
            answer.to_string().len()
        );
    }
    let answer = client.request("tools/call", json!({"name": long, "arguments": {}})).await;
    assert!(answer["error"]["code"].is_number() && answer.to_string().len() < 20_000, "{}", answer.to_string().len());
    client.gone().await;
}

/// Promise (MCP server): Invalid arguments are answered with the remedy.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_arguments_are_results_with_the_reason() {
    let mut client = Client::processes().await;
    for (tool, arguments) in [
        ("run_command", json!({})),
        ("run_command", json!({"command": 1})),
        ("run_command", json!({"command": "id", "backend": "simulated"})),
        ("run_command", json!({"command": "id", "level": "simulated"})),
        ("run_command", json!({"command": "id", "timeout_seconds": -1})),
        ("run_command", json!({"command": "id", "timeout_seconds": 0})),
        ("run_command", json!({"command": "id", "max_output_bytes": -1})),
        ("run_command", json!({"command": "a\u{0}b", "env": {"A=B": "x"}})),
        ("run_command", json!({"command": "id", "env": ["A"]})),
        ("run_code", json!({"language": "python"})),
        ("run_code", json!({"language": "python", "code": "1", "unknown": 1})),
        ("create_sandbox", json!({"network": "all"})),
        ("create_sandbox", json!({"network": {"kind": "allow", "hosts": ["example.com"]}})),
        ("create_sandbox", json!({"workspace": "/etc"})),
        ("create_sandbox", json!({"limits": {"memory_bytes": 1e300}})),
        ("create_sandbox", json!({"limits": {"processes": 99_999_999_999_u64}})),
        ("create_sandbox", json!({"limits": {"allow_weaker": ["memory"]}})),
        ("write_file", json!({"path": "x", "content": "!", "encoding": "base64"})),
        ("list_files", json!({"depth": 4_000_000_000_u32})),
        ("close_sandbox", json!({})),
        ("close_sandbox", json!({"sandbox": "a", "snapshot": "b"})),
    ] {
        let (text, kind) = client.fails(tool, arguments.clone()).await;
        assert_eq!(kind, "invalid-input", "{tool} {arguments}: {text}");
    }
    let answer = client.request("tools/call", json!({"name": "rm", "arguments": {}})).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let answer = client.request("no/such/method", json!({})).await;
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    client.gone().await;
}

/// Promise (MCP server): No argument widens the settings of the server.
#[tokio::test(flavor = "multi_thread")]
async fn no_argument_widens_the_servers_settings() {
    let mut client = Client::processes().await;
    for limits in [
        json!({"timeout_seconds": 60.5}),
        json!({"cpu_seconds": 31}),
        json!({"memory_bytes": 257 << 20}),
        json!({"disk_bytes": u64::MAX}),
        json!({"pids": 33}),
    ] {
        let (text, kind) = client.fails("create_sandbox", json!({"limits": limits})).await;
        assert!(kind == "denied" && text.contains("try: "), "{limits}: {text}");
    }
    for (tool, code) in [("run_code", "code"), ("run_command", "command")] {
        for (name, value) in [("timeout_seconds", json!(61)), ("max_output_bytes", json!(2 << 20))] {
            let mut arguments = json!({name: value, code: "true"});
            if tool == "run_code" {
                arguments["language"] = json!("sh");
            }
            assert_eq!(client.fails(tool, arguments).await.1, "denied", "{tool} {name}");
        }
    }
    // A sandbox's own limit is the maximum for its calls.
    let created = client.works("create_sandbox", json!({"limits": {"timeout_seconds": 2}, "read_only": true})).await;
    let longer = json!({"command": "true", "sandbox": created["sandbox"], "timeout_seconds": 3});
    assert_eq!(client.fails("run_command", longer).await.1, "denied");
    let late = client.works("run_command", json!({"command": "sleep 30", "sandbox": created["sandbox"]})).await;
    assert_eq!(late["timed_out"], true, "{late}");
    let written = client.works("run_command", json!({"command": "echo x > f", "sandbox": created["sandbox"]})).await;
    assert_ne!(written["exit_code"], 0, "{written}");
    assert_eq!(client.fails("run_code", json!({"language": "perl", "code": "1"})).await.1, "denied");
    client.gone().await;
}

/// Promise (MCP server): The bash tool runs only where its language is allowed.
#[tokio::test(flavor = "multi_thread")]
async fn a_shell_runs_only_where_its_language_may() {
    let mut config = config(Bounds::default());
    let only = std::collections::BTreeSet::from(["python".to_owned()]);
    config.code.languages = cofferdam_code::Languages::new(&std::collections::BTreeMap::new(), Some(&only)).unwrap();
    let mut client = Client::new(process(), config).await;
    assert_eq!(client.fails("run_command", json!({"command": "id"})).await.1, "denied");
    assert_eq!(client.works("run_code", json!({"language": "python", "code": "print(1)"})).await["stdout"], "1\n");
    client.gone().await;
}

/// Promise (MCP server): Floods of output and files are limited.
#[tokio::test(flavor = "multi_thread")]
async fn floods_are_bounded() {
    let bounds = Bounds { file: ByteSize::from_bytes(100_000), entries: 50, ..Bounds::default() };
    let mut client = Client::new(process(), config(bounds)).await;
    let flood = client.works("run_command", json!({"command": "yes | head -c 30000000; seq 1 100 >&2"})).await;
    assert_eq!(flood["truncated"], true);
    assert!(flood["stdout"].as_str().unwrap().len() <= 21_000);
    assert!(flood["stderr"].as_str().unwrap().ends_with("99\n100\n"), "standard error is not lost in the flood");
    let logged: usize = client.heard.iter().map(|message| message.to_string().len()).sum();
    assert!(logged < 1 << 20, "{logged} bytes of messages");
    client
        .works("run_command", json!({"command": "head -c 200000 /dev/zero > big; for i in $(seq 99); do : > $i; done"}))
        .await;
    assert_eq!(client.works("read_file", json!({"path": "big"})).await["more"], true);
    assert_eq!(client.fails("read_file", json!({"path": "big", "limit": 100_001})).await.1, "denied");
    assert_eq!(client.fails("write_file", json!({"path": "x", "content": "x".repeat(100_001)})).await.1, "denied");
    let listing = client.works("list_files", json!({})).await;
    assert_eq!((listing["entries"].as_array().unwrap().len(), &listing["truncated"]), (50, &json!(true)));
    client.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_any_length_blocks_nothing() {
    let mut config = config(Bounds::default());
    let limits = Limits { wall_time: Duration::from_secs(2), ..config.spec.limits().clone() };
    config.spec = config.spec.to_builder().limits(limits).build().unwrap();
    let mut client = Client::new(process(), config).await;
    client.works("run_command", json!({"command": "truncate -s 1000M endless"})).await;
    for offset in [900_u64 << 20, (900 << 20) + 3] {
        let part = client.works("read_file", json!({"path": "endless", "offset": offset, "limit": 10})).await;
        assert_eq!((&part["bytes"], &part["more"]), (&json!(10), &json!(true)), "{part}");
    }
    let after = client.works("read_file", json!({"path": "endless", "offset": u64::MAX})).await;
    assert_eq!((&after["bytes"], &after["more"]), (&json!(0), &json!(false)), "{after}");
    let begin = client.works("read_file", json!({"path": "endless", "limit": 10})).await;
    assert_eq!((&begin["bytes"], &begin["more"]), (&json!(10), &json!(true)), "{begin}");
    client.gone().await;
}

/// Promise (MCP server): Sandboxes, calls and messages are limited.
#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_calls_and_messages_are_counted() {
    let bounds = Bounds {
        sandboxes_of_client: 2,
        calls: 1,
        message: ByteSize::from_bytes(20_000),
        requests: 4,
        ..Bounds::default()
    };
    let mut client = Client::new(process(), config(bounds)).await;
    let first = client.works("create_sandbox", json!({})).await["sandbox"].clone();
    client.works("create_sandbox", json!({})).await;
    let (text, kind) = client.fails("create_sandbox", json!({})).await;
    assert!(kind == "resource-exhausted" && text.contains("close_sandbox"), "{text}");
    client.works("close_sandbox", json!({"sandbox": first})).await;
    assert_eq!(client.fails("close_sandbox", json!({"sandbox": first})).await.1, "not-found");
    let call = json!({"name": "run_command", "arguments": {"command": "sleep 3.1415"}});
    let id = client.begin("tools/call", call).await;
    until_running("3.1415", 1, Duration::from_secs(30)).await;
    let (text, kind) = client.fails("run_command", json!({"command": "true"})).await;
    assert!(kind == "resource-exhausted" && text.contains("call again"), "{text}");
    client.answer(id).await;
    // The server drops a message that is too large or not JSON, and answers the next.
    client.raw(format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{}\"}}\n", "x".repeat(100_000)).as_bytes()).await;
    client.raw(b"\xff\xff{]\n\n").await;
    assert_eq!(client.works("run_command", json!({"command": "echo ok"})).await["stdout"], "ok\n");
    // Requests above the limit are read one after the other. A cancelled request no longer counts.
    for id in 1000..1020 {
        let call = json!({"name": "run_command", "arguments": {"command": "sleep 600"}});
        client
            .raw(
                format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call})).as_bytes(),
            )
            .await;
        client.notify("notifications/cancelled", json!({"requestId": id})).await;
    }
    let answer = client.request("ping", json!({})).await;
    assert_eq!(answer["result"], json!({}), "{answer}");
    client.gone().await;
}

/// Promise (MCP server): Two open requests with the same id are refused.
#[tokio::test(flavor = "multi_thread")]
async fn two_open_requests_of_one_id_are_not_one() {
    let mut client = Client::processes().await;
    let call = json!({"name": "run_command", "arguments": {"command": "sleep 3941.5"}});
    let id = client.begin("tools/call", call).await;
    until_running("3941.5", 1, Duration::from_secs(30)).await;
    let again = json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
    client.raw(format!("{again}\n").as_bytes()).await;
    let answer = client.answer(id).await;
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    // The first call continues, and others are answered.
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
    until_running("3941.5", 1, Duration::from_secs(1)).await;
    client.gone().await;
}

/// Promise (MCP server): Reads of resources are limited like calls.
#[tokio::test(flavor = "multi_thread")]
async fn resources_are_bounded_as_calls_are() {
    let mut config = config(Bounds { calls: 1, ..Bounds::default() });
    let limits = Limits { wall_time: Duration::from_secs(10), ..config.spec.limits().clone() };
    config.spec = config.spec.to_builder().limits(limits).build().unwrap();
    let mut client = Client::new(process(), config).await;
    let call = json!({"name": "run_command", "arguments": {"command": "sleep 3.1416"}});
    let id = client.begin("tools/call", call).await;
    until_running("3.1416", 1, Duration::from_secs(30)).await;
    for (method, params) in [("resources/list", json!({})), ("resources/read", json!({"uri": "cofferdam://sb-0/file"}))]
    {
        let answer = client.request(method, params).await;
        assert!(answer["error"]["message"].to_string().contains("call again"), "{answer}");
    }
    client.answer(id).await;
    client.gone().await;
}

/// Promise (MCP server): Idle sandboxes are closed, and busy ones are not.
#[tokio::test(flavor = "multi_thread")]
async fn idle_sandboxes_are_closed_and_busy_ones_are_not() {
    let bounds = Bounds { idle: Duration::from_secs(2), ..Bounds::default() };
    let mut client = Client::new(process(), config(bounds)).await;
    let busy = client.works("run_command", json!({"command": "sleep 4; echo done"})).await;
    assert_eq!(busy["stdout"], "done\n");
    let id = busy["sandbox"].clone();
    let call = json!({"command": "true", "sandbox": id});
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (text, kind) = client.fails("run_command", call).await;
    assert!(kind == "closed" && text.contains("create_sandbox"), "{text}");
    let new = client.works("run_command", json!({"command": "true"})).await;
    assert!(new["created"] == true && new["sandbox"] != id, "{new}");
    client.gone().await;
}

/// Promise (MCP server): The end of input ends all sandboxes.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_input_ends_everything() {
    let mut client = Client::processes().await;
    let call = json!({"name": "run_command", "arguments": {"command": "sleep 3942.5"}});
    client.begin("tools/call", call).await;
    until_running("3942.5", 1, Duration::from_secs(30)).await;
    client.gone().await;
    until_running("3942.5", 0, Duration::from_secs(1)).await;
}

/// Promise (MCP server): A stop of the server ends all sandboxes.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_signal_ends_everything() {
    let mut client = Client::processes().await;
    let call = json!({"name": "run_code", "arguments": {"language": "sh", "code": "sleep 3943.5"}});
    client.begin("tools/call", call).await;
    until_running("3943.5", 1, Duration::from_secs(30)).await;
    client.stop.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(30), &mut client.served).await.unwrap();
    ended.unwrap().unwrap();
    until_running("3943.5", 0, Duration::from_secs(1)).await;
}

#[test]
fn an_invalid_configuration_is_refused_with_a_remedy() {
    let bounds = Bounds { sandboxes: 0, ..Bounds::default() };
    let config = McpConfig { bounds, ..McpConfig::default() };
    assert!(config.validate().unwrap_err().remedy().is_some());
}
