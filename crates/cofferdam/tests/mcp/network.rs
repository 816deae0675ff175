//! The network policy of a server.

use serde_json::json;

use crate::client::{Client, processes};

/// Promise (MCP server): What the network policy refused is in the result of the call, with the rule that would allow
/// it.
#[test]
fn refusals_are_in_the_result() {
    let mut client = Client::new(&processes(), &["--net", "web.example:80"]);
    let sandbox = client.makes("create_sandbox", json!({}));
    let look_up =
        |name: &str| format!("import socket\ntry: socket.getaddrinfo('{name}', 80)\nexcept OSError: print('unknown')");
    for session in [json!(null), json!("main")] {
        let arguments = |code: &str| {
            let mut arguments = json!({"language": "python", "sandbox": sandbox, "code": code});
            if !session.is_null() {
                arguments["session"] = session.clone();
            }
            arguments
        };
        let result = client.works("run_code", arguments(&look_up("other.example")));
        assert_eq!(result["stdout"], "unknown\n", "{result}");
        let denials = result["network_denials"].as_array().expect("a list");
        let text = denials[0].as_str().unwrap_or_default();
        assert!(text.contains("the look-up of other.example") && text.contains("--net other.example"), "{result}");
        assert_eq!(denials.len(), 1, "{result}");
        // Those of a call before are not repeated.
        assert_eq!(client.works("run_code", arguments("print(1)"))["network_denials"], json!([]));
    }
    let id = client.begin("run_command", json!({"sandbox": sandbox, "command": "getent hosts third.example; true"}));
    let result = client.result(id);
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.contains("[network: refused the look-up of third.example"), "{result}");
    client.end();
}
