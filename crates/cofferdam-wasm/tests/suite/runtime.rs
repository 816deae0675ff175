//! Guests and the tokio runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_contract::{Backend, ErrorKind, Spec};
use cofferdam_wasm::{WasmBackend, WasmConfig};
use tokio::time::{sleep, timeout};

use crate::support::{PROMPT, limited, program, sandbox, script, text};

fn endless() -> Vec<u8> {
    program("", "(loop $on (br $on))")
}

/// Promise (WebAssembly): An endless loop blocks neither the async runtime nor other execs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_loops_block_neither_timers_nor_others() {
    let backend = WasmBackend::default();
    let mut sandboxes = Vec::new();
    let mut handles = Vec::new();
    for _ in 0..8 {
        let sandbox = backend.create(limited(|limits| limits.cpu_time = None)).await.unwrap();
        handles.push(sandbox.start(script(endless()).build().unwrap()).await.unwrap());
        sandboxes.push(sandbox);
    }
    let ticks = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&ticks);
    let ticking = tokio::spawn(async move {
        loop {
            sleep(Duration::from_millis(10)).await;
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let hello = script(program("", "(call $print_number (i64.const 42))")).build().unwrap();
    let (done, _) = timeout(PROMPT, backend.run(Spec::default(), hello)).await.expect("another exec ran").unwrap();
    assert_eq!(text(&done.stdout), "42");
    let before = ticks.load(Ordering::Relaxed);
    sleep(Duration::from_millis(500)).await;
    assert!(ticks.load(Ordering::Relaxed) > before, "the timer stood still");
    assert!(handles.iter().all(|handle| handle.try_exit().is_none()), "the loops continue");
    for sandbox in &sandboxes {
        timeout(PROMPT, sandbox.close()).await.expect("closed").unwrap();
    }
    for handle in &handles {
        assert!(handle.exit().await.unwrap().cancelled);
    }
    ticking.abort();
}

#[tokio::test]
async fn number_of_running_guests_is_limited() {
    let config = WasmConfig { guests: 1, timeout: Duration::from_millis(100), ..WasmConfig::default() };
    let backend = WasmBackend::new(config);
    let sandbox = backend.create(Spec::default()).await.unwrap();
    let first = sandbox.start(script(endless()).build().unwrap()).await.unwrap();
    let refused = sandbox.start(script(endless()).build().unwrap()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
    first.close().await.unwrap();
    sandbox.start(script(endless()).build().unwrap()).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_dropped_handle_and_a_dropped_sandbox_end_their_guests() {
    let sandbox = sandbox(Spec::default()).await;
    drop(sandbox.start(script(endless()).build().unwrap()).await.unwrap());
    let gone = async {
        while sandbox.usage().await.unwrap().processes != Some(0) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PROMPT, gone).await.expect("the guest of a dropped handle ends");
    let handle = sandbox.start(script(endless()).build().unwrap()).await.unwrap();
    drop(sandbox);
    let exit = timeout(PROMPT, handle.exit()).await.expect("the guest of a dropped sandbox ends").unwrap();
    assert!(exit.cancelled, "{exit:?}");
}

#[tokio::test]
async fn a_single_command_ends_with_its_sandbox() {
    let request = script(endless()).build().unwrap();
    let (sandbox, handle) = WasmBackend::default().start_one(Spec::default(), request).await.unwrap();
    timeout(PROMPT, sandbox.close()).await.expect("closed").unwrap();
    let exit = handle.exit().await.unwrap();
    assert!(exit.cancelled && !exit.success(), "{exit:?}");
}

/// Promise (WebAssembly): No state of a module's run remains for the next run.
#[tokio::test]
async fn no_state_of_a_run_remains_for_the_next() {
    // Counts in a global, in memory and in open descriptors.
    let counting = wat::parse_str(
        r#"(module
          (import "wasi_snapshot_preview1" "path_open"
            (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
          (memory (export "memory") 1) (global $seen (mut i32) (i32.const 0))
          (data (i32.const 64) ".")
          (func (export "_start")
            (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
            (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
            (drop (call $open (i32.const 5) (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 2)
              (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 8)))
            (call $exit (i32.add (i32.add (global.get $seen) (i32.load (i32.const 0))) (i32.load (i32.const 8))))))"#,
    )
    .unwrap();
    let sandbox = sandbox(Spec::default()).await;
    for _ in 0..3 {
        let done = sandbox.exec(script(counting.clone()).build().unwrap()).await.unwrap();
        // One of each, and descriptor 6.
        assert_eq!(done.exit.code, 8, "{:?}", done.exit);
    }
}
