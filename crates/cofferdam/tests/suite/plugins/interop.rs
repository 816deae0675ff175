//! Plugins without an SDK, whose protocol independent libraries speak. `cargo xtask test` installs the libraries.

use std::path::PathBuf;
use std::process::Command;

use cofferdam::plugins::{CallOptions, StreamItem};
use serde_json::{Value, json};

use super::{Bench, run};

/// The directory of the libraries.
const PEERS: &str = "COFFERDAM_TEST_PEERS";

/// Copies a library into the package of a plugin, and loads the plugin. Returns false if there are no libraries.
async fn load(bench: &Bench, test: &str, library: &str, entry: [&str; 2], code: &str) -> bool {
    let Some(peers) = std::env::var_os(PEERS).map(PathBuf::from) else {
        println!("SKIP {test}: {PEERS} names no libraries; cargo xtask clients installs them");
        return false;
    };
    let manifest = format!(
        "manifest = 1\nname = \"peer\"\nversion = \"1.0.0\"\nruntime = \"command\"\nentry = {entry:?}\n\
         permissions = [\"sandbox.execute\"]\n[methods.echo]\n[methods.kv]\n[methods.denied]\n[methods.abandon]\n\
         [methods.count]\n[methods.wait]\n"
    );
    let package = bench.package("peer", &manifest, &[(entry[1], code)]);
    let copied = Command::new("cp").arg("-r").arg(peers.join(library)).arg(&package).status();
    assert!(copied.expect("cp starts").success());
    bench.load(&package).await;
    true
}

/// Checks a plugin with each part of the protocol.
async fn check(bench: &Bench) {
    let input =
        json!({"text": "Grüße, 世界 🎉 \u{0} \u{2028}", "list": [null, 1.5, {"a": []}], "big": "ß".repeat(1 << 20)});
    assert_eq!(bench.call("peer", "echo", input.clone()).await, Ok(input));
    let pair = json!({"key": "a", "value": {"b": ["ü"]}});
    assert_eq!(bench.call("peer", "kv", pair).await, Ok(json!({"b": ["ü"]})));
    assert_eq!(bench.call("peer", "denied", json!({})).await, Ok(json!("permission-denied")));
    assert_eq!(bench.call("peer", "abandon", json!({})).await, Ok(json!(-32800)));
    let stream = || CallOptions { stream: true, ..CallOptions::default() };
    let mut call = bench.host.call("peer", "count", json!({"n": 300}), stream());
    for expected in 0..300 {
        assert_eq!(call.next().await, Some(StreamItem::Item(json!(expected))));
    }
    assert_eq!(call.result().await, Ok(json!(300)));
    let mut call = bench.host.call("peer", "wait", json!({}), stream());
    assert_eq!(call.next().await, Some(StreamItem::Progress(json!({"message": "waiting"}))));
    let id = call.id().to_owned();
    drop(call);
    logged(bench, "cancelled").await;
    let is_cancelled =
        |line: &Value| line["correlationId"] == id.as_str() && line["error"]["data"]["kind"] == "cancelled";
    assert!(bench.wait_for("call.ended", 6).await.iter().any(is_cancelled));
    logged(bench, "ping").await;
    assert_eq!(bench.call("peer", "echo", json!(1)).await, Ok(json!(1)));
    assert_eq!(bench.events("plugin.started").len(), 1);
    assert_eq!(bench.events("plugin.protocol-violation"), [] as [Value; 0]);
}

/// Waits until the plugin has logged a message.
async fn logged(bench: &Bench, message: &str) {
    for count in 1.. {
        let lines = bench.wait_for("plugin.log", count).await;
        if lines.iter().any(|line| line["message"] == message) {
            return;
        }
    }
}

/// Promise (Plugins): The JSON-RPC library of Visual Studio Code is enough for a plugin without an SDK.
#[test]
fn vscode_jsonrpc_serves_a_plugin() {
    run(|| async {
        let bench = Bench::new();
        let code = include_str!("interop/main.cjs");
        let entry = ["node", "main.cjs"];
        if load(&bench, "vscode_jsonrpc_serves_a_plugin", "node_modules", entry, code).await {
            check(&bench).await;
        }
        bench.end().await;
    });
}

/// Promise (Plugins): The JSON-RPC library of a Python language server is enough for a plugin without an SDK.
#[test]
fn python_lsp_jsonrpc_serves_a_plugin() {
    run(|| async {
        let bench = Bench::new();
        let code = include_str!("interop/main.py");
        // The library has a part in C, for the system's interpreter.
        let entry = ["/usr/bin/python3", "main.py"];
        if load(&bench, "python_lsp_jsonrpc_serves_a_plugin", "lib", entry, code).await {
            check(&bench).await;
        }
        bench.end().await;
    });
}
