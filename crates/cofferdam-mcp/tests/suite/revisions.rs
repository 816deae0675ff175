//! Both protocol revisions, over pipes.

use cofferdam_mcp::Bounds;
use serde_json::{Value, json};

use crate::pipe::{Client, config, process};

/// Returns the metadata of every request in the current revision.
pub fn meta(more: Value) -> Value {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    if let (Some(meta), Some(more)) = (meta.as_object_mut(), more.as_object()) {
        meta.extend(more.clone());
    }
    meta
}

/// Promise (MCP server): The current MCP revision needs no handshake.
#[tokio::test(flavor = "multi_thread")]
async fn the_current_revision_needs_no_handshake() {
    let mut client = Client::silent(process(), config(Bounds::default()));
    let found = client.request("server/discover", json!({"_meta": meta(json!({}))})).await;
    let versions = found["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!("2026-07-28")) && versions.contains(&json!("2025-11-25")), "{found}");
    assert!(found["result"]["capabilities"]["tools"].is_object(), "{found}");
    let call =
        |name: &str, arguments: Value, more: Value| json!({"name": name, "arguments": arguments, "_meta": meta(more)});
    let run = call("run_command", json!({"command": "echo x > f; echo loud"}), json!({}));
    let first = client.request("tools/call", run).await;
    assert_eq!(first["result"]["resultType"], "complete", "{first}");
    assert!(client.heard.is_empty(), "the client did not request messages: {:?}", client.heard);
    // One connection is one client: its own sandbox exists in the next request.
    let logs = json!({"io.modelcontextprotocol/logLevel": "info"});
    let second = client.request("tools/call", call("run_command", json!({"command": "cat f"}), logs)).await;
    assert_eq!(second["result"]["structuredContent"]["stdout"], "x\n", "{second}");
    assert!(client.heard.iter().any(|message| message["params"]["data"] == "x\n"), "{:?}", client.heard);
    let bare = client.request("tools/list", json!({})).await;
    assert_eq!(bare["error"]["code"], -32602, "a request without its revision: {bare}");
    client.gone().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_revision_is_answered_with_a_known_one() {
    let mut client = Client::silent(process(), config(Bounds::default()));
    let info =
        json!({"protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let answer = client.request("initialize", info).await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
    client.gone().await;
    let mut client = Client::silent(process(), config(Bounds::default()));
    let wrong = meta(json!({"io.modelcontextprotocol/protocolVersion": "2031-01-01"}));
    let answer = client.request("tools/list", json!({"_meta": wrong})).await;
    assert_eq!(answer["error"]["code"], -32022, "{answer}");
    client.gone().await;
}
