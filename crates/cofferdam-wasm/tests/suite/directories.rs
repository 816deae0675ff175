//! The preopened directories of a module, and the open flags.

use cofferdam_contract::{ErrorKind, SandboxPath, Spec};
use serde_json::{Value, json};

use crate::support::{program, run, sandbox, script, text};

const BADF: i32 = 8;
const ISDIR: i32 = 31;

fn named(directories: Value) -> Spec {
    Spec::builder().attribute("wasm.directories", directories).build().unwrap()
}

/// Returns code that opens `x` from descriptor 3 with these flags and rights.
fn open_x(how: u32, rights: u32, flags: u32) -> String {
    format!(
        "(i32.store8 (i32.const 0x200000) (i32.const 120))
         (local.set $i (call $path_open (i32.const 3) (i32.const 1) (i32.const 0x200000) (i32.const 1)
           (i32.const {how}) (i64.const {rights}) (i64.const 0) (i32.const {flags}) (i32.const 12)))"
    )
}

#[tokio::test]
async fn a_spec_names_the_directories_of_a_module() {
    let sandbox = sandbox(named(json!({ "/": "inner" }))).await;
    sandbox.write_bytes(&SandboxPath::new("inner/x").unwrap(), "found").await.unwrap();
    let read = "(call $check (local.get $i)) (drop (call $copy (i32.load (i32.const 12)) (i32.const 1)))
      (call $exit (call $fd_close (i32.const 5)))";
    let module = program("", &format!("{} {read}", open_x(0, 2, 0)));
    let done = sandbox.exec(script(module).build().unwrap()).await.unwrap();
    // The file has number 4. There are no other descriptors after the directory.
    assert_eq!((text(&done.stdout).as_str(), done.exit.code), ("found", BADF));
}

#[tokio::test]
async fn no_names_are_no_directories() {
    let module = program("", "(call $exit (call $fd_close (i32.const 3)))");
    assert_eq!(run(module, named(json!({}))).await.unwrap().exit.code, BADF);
}

#[tokio::test]
async fn a_name_for_a_directory_that_is_not_there_is_an_error() {
    let error = run(program("", ""), named(json!({ "a": "missing" }))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_directory_cannot_be_opened_for_writing() {
    let make = "(call $check (call $path_create_directory (i32.const 3) (i32.const 0x200000) (i32.const 1)))";
    let (directory, write) = (2, 1 << 6);
    for (rights, expected) in [(0, 0), (write, ISDIR)] {
        let store = "(i32.store8 (i32.const 0x200000) (i32.const 120))";
        let code = format!("{store} {make} {} (call $exit (local.get $i))", open_x(directory, rights, 0));
        assert_eq!(run(program("", &code), Spec::default()).await.unwrap().exit.code, expected);
    }
}

#[tokio::test]
async fn a_file_keeps_the_flags_that_it_was_opened_with() {
    let (create, append_and_sync) = (1, 1 | 1 << 4);
    let code = format!(
        "{} (call $check (local.get $i))
         (call $check (call $fd_fdstat_get (i32.load (i32.const 12)) (i32.const 0x200100)))
         (call $exit (i32.load16_u (i32.const 0x200102)))",
        open_x(create, 1 << 6, append_and_sync)
    );
    assert_eq!(run(program("", &code), Spec::default()).await.unwrap().exit.code, append_and_sync as i32);
}
