//! `wasm.deterministic` and `wasm.fuel`.

use cofferdam_contract::{ErrorKind, LimitKind, Spec, Stdin};
use serde_json::Value;

use crate::support::{program, run, sandbox, script};

/// Returns a module that prints random bytes, both clocks, the measured length of a sleep, and a new file's times.
fn nosy() -> Vec<u8> {
    let imports = r#"
      (import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "clock_time_get" (func $clock_time_get (param i32 i64 i32) (result i32)))"#;
    let code = r#"
      (call $check (call $random_get (i32.const 0x100000) (i32.const 32)))
      (call $check (call $clock_time_get (i32.const 0) (i64.const 0) (i32.const 0x100020)))
      (call $check (call $clock_time_get (i32.const 1) (i64.const 0) (i32.const 0x100028)))
      (call $sleep)
      (call $check (call $clock_time_get (i32.const 3) (i64.const 0) (i32.const 0x100030)))
      (i32.store8 (i32.const 0x200000) (i32.const 97))
      (local.set $i (call $create (i32.const 5) (i32.const 0x200000) (i32.const 1)))
      (call $check (call $fd_filestat_get (local.get $i) (i32.const 0x100038)))
      (call $write (i32.const 1) (i32.const 0x100000) (i32.const 120))"#;
    program(imports, code)
}

fn seeded(seed: impl Into<Value>) -> Spec {
    Spec::builder().attribute("wasm.deterministic", seed).build().unwrap()
}

/// Promise (WebAssembly): The same seed gives the same bytes.
#[tokio::test]
async fn the_same_seed_gives_the_same_bytes() {
    let mut outputs = Vec::new();
    for seed in ["one", "one", "two"] {
        let done = run(nosy(), seeded(seed)).await.unwrap();
        assert!(done.exit.success(), "{:?}", done.exit);
        assert_eq!(done.stdout.len(), 120);
        outputs.push(done.stdout);
    }
    assert_eq!(outputs[0], outputs[1]);
    assert_ne!(outputs[0], outputs[2], "another seed gives other random bytes");
    assert_eq!(outputs[0][32..], outputs[2][32..], "clocks do not depend on the seed");
}

#[tokio::test]
async fn a_sleep_of_made_up_time_takes_none() {
    // 1000 s by the guest's clocks; the limit of the test's spec is 60.
    let done = run(nosy(), seeded(7)).await.unwrap();
    assert!(done.exit.success() && !done.exit.timed_out, "{:?}", done.exit);
}

#[tokio::test]
async fn a_deterministic_exec_takes_no_stream() {
    let sandbox = sandbox(seeded(1)).await;
    let error = sandbox.start(script(nosy()).stdin(Stdin::Stream).build().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn random_bytes_differ_unless_asked_otherwise() {
    let imports = r#"(import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))"#;
    let code = r#"(call $check (call $random_get (i32.const 0x100000) (i32.const 32)))
      (call $write (i32.const 1) (i32.const 0x100000) (i32.const 32))"#;
    let one = run(program(imports, code), Spec::default()).await.unwrap();
    let other = run(program(imports, code), Spec::default()).await.unwrap();
    assert_ne!(one.stdout, other.stdout);
}

#[tokio::test]
async fn fuel_runs_out_at_the_same_step() {
    let counting = program(
        "",
        "(loop $more (local.set $i (i32.add (local.get $i) (i32.const 1)))
           (call $numbered (i32.const 1) (i32.const 97) (local.get $i)) (br $more))",
    );
    let spec = Spec::builder().attribute("wasm.fuel", 20_000).build().unwrap();
    let one = run(counting.clone(), spec.clone()).await.unwrap();
    let other = run(counting, spec).await.unwrap();
    assert_eq!(one.exit.killed_by, Some(LimitKind::Cpu), "{:?}", one.exit);
    assert!(!one.stdout.is_empty());
    assert_eq!(one.stdout, other.stdout);
}
