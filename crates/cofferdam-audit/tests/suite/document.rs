//! Tests that the crate reads the examples in docs/audit.md.

use std::collections::BTreeSet;
use std::process::Command;

use cofferdam_audit::*;

const DOCUMENT: &str = include_str!("../../../../docs/audit.md");

/// Returns the first code block of a language.
fn block(language: &str) -> &'static str {
    let (_, rest) = DOCUMENT.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

fn keys(value: &serde_json::Value, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                found.insert(key.clone());
                keys(value, found);
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn the_example_is_a_log_and_its_hash_can_be_computed_by_hand() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit-00000001.jsonl");
    std::fs::write(&path, block("json")).unwrap();
    let last: serde_json::Value = serde_json::from_str(block("json").lines().last().unwrap()).unwrap();
    let head = serde_json::json!({ "seq": last["seq"], "segment": 1, "hash": last["hash"] });
    std::fs::write(directory.path().join("head"), head.to_string()).unwrap();
    let report = verify(directory.path(), &Expect::default()).unwrap();
    assert_eq!((report.verdict, report.executions.ended), (Verdict::Whole, 1), "{report}");

    let shell = Command::new("sh").arg("-ec").arg(block("sh")).current_dir(directory.path()).output().unwrap();
    let output = String::from_utf8(shell.stdout).unwrap();
    assert!(shell.status.success() && output.starts_with(&report.head.unwrap().hash.to_string()), "{output}");
}

#[test]
fn every_field_is_explained() {
    let mut found = BTreeSet::new();
    for line in block("json").lines() {
        keys(&serde_json::from_str(line).unwrap(), &mut found);
    }
    assert!(found.len() > 40, "{found:?}");
    for key in found {
        assert!(DOCUMENT.contains(&format!("`{key}`")), "`{key}` is not explained");
    }
}
