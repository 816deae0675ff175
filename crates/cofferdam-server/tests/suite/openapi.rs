//! The OpenAPI document, and the answers of a server compared with it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cofferdam_server::Scope;
use serde_json::Value;

use crate::support::{Over, bounds, start_with};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

/// Promise (Server): The committed OpenAPI document is that of the code.
#[test]
fn the_committed_document_is_current() {
    let current = cofferdam_server::document();
    if std::env::var_os("COFFERDAM_UPDATE_OPENAPI").is_some() {
        std::fs::write(COMMITTED, &current).unwrap();
    }
    let committed = std::fs::read_to_string(COMMITTED).unwrap_or_default();
    assert!(committed == current, "run this test with COFFERDAM_UPDATE_OPENAPI=1, and look at the difference");
}

#[test]
fn every_reference_leads_to_a_schema() {
    let document: Value = serde_json::from_str(&cofferdam_server::document()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let mut references = BTreeSet::new();
    collect(&document, &mut references);
    assert!(references.len() > 20, "{references:?}");
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

fn collect(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get("$ref") {
                into.insert(reference.clone());
            }
            fields.values().for_each(|value| collect(value, into));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, into)),
        _ => {}
    }
}

/// The time for schemathesis to make up requests, in seconds.
const FUZZING: &str = "40";
/// The most bytes of its output that are printed.
const MAX_PRINTED: usize = 16 << 10;

/// Promise (Server): Schemathesis finds no server error, and no answer that the OpenAPI document does not describe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_the_document() {
    let Some(tools) = std::env::var_os("COFFERDAM_TEST_SCHEMATHESIS").map(PathBuf::from) else {
        println!("SKIP answers_are_those_of_the_document: cargo xtask test installs schemathesis");
        return;
    };
    let server = start_with(Over::Tcp, bounds(), |config| config.policy.images = true).await;
    let key = server.key("acme", Scope::ALL).await;
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(tools.join("python/bin/schemathesis"));
    command
        .args(["run", COMMITTED, "--url", &server.url, "--header", &format!("Authorization: Bearer {key}")])
        // These are streams, bodies of a guest's own server, or archives, for which it makes up no data.
        .args(["--exclude-path-regex", "/(attach|tcp|ports|output|watch|archive|images/load)"])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"])
        .args(["--checks", "response_headers_conformance,response_schema_conformance"])
        .args(["--phases", "coverage,fuzzing", "--max-time", FUZZING, "--generation-deterministic", "--no-shrink"])
        .current_dir(home.path())
        .env("HOME", home.path())
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("schemathesis starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let shown: String = text.chars().take(MAX_PRINTED).collect();
    assert!(output.status.success(), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    let cases = text.lines().find_map(|line| line.trim().split_once(" generated, ")?.0.parse::<u32>().ok());
    assert!(cases.is_some_and(|cases| cases > 500), "{shown}");
    server.stop().await;
}
