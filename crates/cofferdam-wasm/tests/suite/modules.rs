//! Invalid modules, and modules that would exhaust the compiler's resources.

use std::time::{Duration, Instant};

use cofferdam_contract::{Backend, ErrorKind, ExecHandle, Result, Spec};
use cofferdam_wasm::{WasmBackend, WasmConfig};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};
use tokio::time::timeout;

use crate::support::{PROMPT, assemble, limited, program, script, text};

async fn start(backend: &WasmBackend, module: Vec<u8>) -> Result<ExecHandle> {
    let spec = limited(|limits| limits.wall_time = Duration::from_millis(300));
    let (sandbox, handle) =
        timeout(PROMPT, backend.start_one(spec, script(module).build().unwrap())).await.expect("an answer in time")?;
    let exit = timeout(PROMPT, handle.exit()).await.expect("an end in time");
    // Whatever the module did, it has ended, and the host did not fail.
    if let Err(error) = exit {
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    }
    sandbox.close().await.unwrap();
    Ok(handle)
}

fn good() -> Vec<u8> {
    program(
        "",
        "(call $print_numbered (i32.const 20)) (call $print_environment) (memory.fill (i32.const 0) (i32.const 7) (i32.const 64))",
    )
}

/// Promise (WebAssembly): A file that is not a module is refused with that reason.
#[tokio::test]
async fn file_that_is_no_module_is_refused() {
    let backend = WasmBackend::default();
    for (bytes, kind) in [
        (b"".to_vec(), ErrorKind::NotExecutable),
        (b"\0as".to_vec(), ErrorKind::NotExecutable),
        (b"\0asm".to_vec(), ErrorKind::NotExecutable),
        (b"\0asm\x01\0\0\0".to_vec(), ErrorKind::NotExecutable),
        (b"\0asm\x02\0\0\0".to_vec(), ErrorKind::NotExecutable),
        (b"\0asm\x0d\0\x01\0".to_vec(), ErrorKind::NotExecutable),
        (b"\0asm\x0c\0\x01\0".to_vec(), ErrorKind::NotExecutable),
        (b"\x7fELF\x02\x01".to_vec(), ErrorKind::NotExecutable),
        (assemble("(module)"), ErrorKind::NotExecutable),
        (assemble(r#"(module (func (export "_start") (param i32)))"#), ErrorKind::NotExecutable),
        (assemble(r#"(module (memory (export "_start") 1))"#), ErrorKind::NotExecutable),
        (assemble(r#"(module (import "env" "system" (func)) (func (export "_start")))"#), ErrorKind::NotExecutable),
        (
            assemble(
                r#"(module (import "wasi_snapshot_preview1" "fd_close" (func (param i64))) (func (export "_start")))"#,
            ),
            ErrorKind::NotExecutable,
        ),
        (
            assemble(r#"(module (import "wasi_snapshot_preview1" "no_such" (func)) (func (export "_start")))"#),
            ErrorKind::NotExecutable,
        ),
        (assemble("(component)"), ErrorKind::NotExecutable),
    ] {
        let error = start(&backend, bytes.clone()).await.expect_err("refused");
        assert_eq!(error.kind(), kind, "{bytes:?}: {error}");
    }
}

/// Promise (WebAssembly): WebAssembly proposals that programs do not need are disabled.
#[tokio::test]
async fn proposals_that_are_not_needed_are_off() {
    let backend = WasmBackend::default();
    for module in [
        r#"(module (memory 1) (memory 1) (func (export "_start")))"#,
        r#"(module (import "a" "a" (memory 1)) (memory 1) (func (export "_start")))"#,
        r#"(module (memory i64 1) (func (export "_start")))"#,
        r#"(module (memory 1 1 shared) (func (export "_start")))"#,
        r#"(module (func $f (export "_start") (return_call $f)))"#,
        r#"(module (type (struct)) (func (export "_start")))"#,
        r#"(module (tag) (func (export "_start")))"#,
        r#"(module (func (export "_start") (local externref)))"#,
    ] {
        let error = start(&backend, assemble(module)).await.expect_err(module);
        assert_eq!(error.kind(), ErrorKind::NotExecutable, "{module}: {error}");
    }
}

/// Promise (WebAssembly): A module that is cut at any byte runs or is refused.
#[tokio::test]
async fn every_cut_of_a_module_is_answered() {
    let (backend, good) = (WasmBackend::default(), good());
    for length in (0..good.len()).step_by(7) {
        assert!(start(&backend, good[..length].to_vec()).await.is_err(), "the first {length} bytes");
    }
    start(&backend, good).await.unwrap();
}

/// Promise (WebAssembly): A module with flipped bits or random bytes runs or is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flipped_bit_and_every_noise_is_answered() {
    let (backend, good) = (WasmBackend::default(), good());
    let mut runner = TestRunner::new(ProptestConfig { rng_seed: RngSeed::Fixed(9), ..ProptestConfig::default() });
    let flips = prop::collection::vec((8..good.len(), 0u8..8), 1..4);
    let noise = prop::collection::vec(any::<u8>(), 0..400);
    let (mut ran, mut refused) = (0, 0);
    for _ in 0..250 {
        let mut module = good.clone();
        for (at, bit) in flips.new_tree(&mut runner).unwrap().current() {
            module[at] ^= 1 << bit;
        }
        match start(&backend, module).await {
            Ok(_) => ran += 1,
            Err(_) => refused += 1,
        }
        let noise = noise.new_tree(&mut runner).unwrap().current();
        assert!(start(&backend, [b"\0asm\x01\0\0\0".to_vec(), noise].concat()).await.is_err());
    }
    assert!(ran > 0 && refused > 0, "{ran} ran, {refused} were refused");
}

/// Returns a function of many blocks, each of which can change each of many locals.
fn bomb(locals: usize, blocks: usize) -> Vec<u8> {
    let declared = "i64 ".repeat(locals);
    let body: String = (0..blocks)
        .map(|block| {
            format!(
                "(if (i64.eqz (local.get {})) (then (local.set {} (i64.const {block}))))\n",
                block % locals,
                block * 7 % locals
            )
        })
        .collect();
    assemble(&format!(r#"(module (func (export "_start") (local {declared}) (loop $again {body} (br $again))))"#))
}

/// Promise (WebAssembly): A function that is too large is refused before it is compiled.
#[tokio::test]
async fn a_function_too_large_for_the_compiler_is_refused_before_it() {
    let started = Instant::now();
    for module in [bomb(40_000, 10_000), bomb(10, 200_000)] {
        let error = start(&WasmBackend::default(), module).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::NotExecutable, "{error}");
    }
    println!("refused after {:?}", started.elapsed());
}

#[tokio::test]
async fn a_module_beyond_its_size_is_refused() {
    let config = WasmConfig { module_size: cofferdam_contract::ByteSize::from_bytes(100), ..WasmConfig::default() };
    let error = start(&WasmBackend::new(config), good()).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::NotExecutable);
}

/// Promise (WebAssembly): The wait for the compiler is bounded.
#[tokio::test]
async fn wait_for_the_compiler_is_bounded() {
    let config = WasmConfig { compile_time: Duration::from_millis(20), compilers: 2, ..WasmConfig::default() };
    let backend = WasmBackend::new(config);
    let error = start(&backend, bomb(400, 4000)).await.expect_err("the compilation takes longer");
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    // The other compile slot is free.
    let small = assemble(r#"(module (func (export "_start")))"#);
    let ran = async {
        while start(&backend, small.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PROMPT, ran).await.expect("another module compiles meanwhile or afterwards");
}

#[tokio::test]
async fn a_data_segment_outside_memory_is_refused() {
    let module = assemble(r#"(module (memory 1) (data (i32.const 0xfffffff0) "0123456789") (func (export "_start")))"#);
    let error = start(&WasmBackend::default(), module).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotExecutable);
}

#[tokio::test]
async fn a_module_runs_twice_the_same() {
    let backend = WasmBackend::default();
    let mut outputs = Vec::new();
    for _ in 0..2 {
        let (done, _) = backend.run(Spec::default(), script(good()).build().unwrap()).await.unwrap();
        outputs.push(text(&done.stdout));
    }
    assert_eq!(outputs[0], outputs[1]);
}
