//! Runs the public test suite of WASI (github.com/WebAssembly/wasi-testsuite) with this backend, each test in its own
//! sandbox. `cargo xtask wasi-testsuite DIR` builds and starts it.
#![forbid(unsafe_code)]

mod find;
mod run;
mod specification;

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use find::find;
use run::{Outcome, run};

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let as_json = words.iter().any(|word| word == "--json");
    let Some(directory) = words.iter().find(|word| !word.starts_with("--")) else {
        eprintln!("usage: wasi-testsuite DIR [--json]");
        return ExitCode::from(2);
    };
    let tests = match find(Path::new(directory)) {
        Ok(tests) if !tests.is_empty() => tests,
        Ok(_) => {
            eprintln!("error: no test found in {directory}: a test is a file NAME.wasm");
            return ExitCode::from(2);
        }
        Err(error) => {
            eprintln!("error: cannot read {directory}: {error}");
            return ExitCode::from(2);
        }
    };
    let mut outcomes = Vec::new();
    for test in tests {
        let outcome = run(&test).await;
        if !as_json {
            println!("{}", line(&test.name, &outcome));
        }
        outcomes.push((test.name, outcome));
    }
    finish(&outcomes, as_json)
}

fn line(name: &str, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed => format!("pass {name}"),
        Outcome::Failed(reason) => format!("FAIL {name}: {reason}"),
        Outcome::Skipped(reason) => format!("skip {name}: {reason}"),
    }
}

/// Prints the summary. Fails if a test failed or if all were skipped, since then nothing was tested.
fn finish(outcomes: &[(String, Outcome)], as_json: bool) -> ExitCode {
    let count = |wanted: fn(&Outcome) -> bool| outcomes.iter().filter(|(_, outcome)| wanted(outcome)).count();
    let passed = count(|outcome| matches!(outcome, Outcome::Passed));
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = outcomes.len() - passed - failed;
    if as_json {
        let tests: Vec<Value> = outcomes.iter().map(|(name, outcome)| describe(name, outcome)).collect();
        println!("{:#}", json!({ "passed": passed, "failed": failed, "skipped": skipped, "tests": tests }));
    } else {
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn describe(name: &str, outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Passed => json!({ "name": name, "outcome": "passed" }),
        Outcome::Failed(reason) => json!({ "name": name, "outcome": "failed", "reason": reason }),
        Outcome::Skipped(reason) => json!({ "name": name, "outcome": "skipped", "reason": reason }),
    }
}
