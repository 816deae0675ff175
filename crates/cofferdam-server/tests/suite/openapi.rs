use std::collections::BTreeSet;

use serde_json::Value;

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
