//! Case generation: the same seed gives the same case everywhere.

use std::sync::LazyLock;

use arbitrary::Unstructured;
use cofferdam_conformance::{GuestProgram, Programs};
use cofferdam_contract::Command;
use cofferdam_wasm::WasmPrograms;
use fastrand::Rng;
use wasm_smith::Config;

use crate::module::Mode;

/// Number of random bytes from which one module is generated.
const CHOICES: usize = 4096;
/// The functions that a module can import, as a module.
const IMPORTS: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_readdir" (func (param i32 i32 i32 i64 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_seek" (func (param i32 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_filestat_set_size" (func (param i32 i64) (result i32)))
    (import "wasi_snapshot_preview1" "path_open" (func (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_symlink" (func (param i32 i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "poll_oneoff" (func (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "args_get" (func (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "environ_get" (func (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "sched_yield" (func (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func (param i32))))"#;
/// The exports that make a module a command.
const EXPORTS: &str = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;

/// A library with state of every kind: memory, globals, a table, a file, descriptors.
const LIBRARY_MODULE: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_seek" (func $seek (param i32 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_readdir" (func $list (param i32 i32 i32 i64 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_open"
      (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "path_symlink" (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 2 40) (table $t 2 20 funcref)
    (global $long (mut i64) (i64.const 0)) (global $single (mut f32) (f32.const 0))
    (type $thunk (func))
    (elem declare func $one)
    (data (i32.const 64) "abcd")
    (func $one (global.set $long (i64.add (global.get $long) (i64.const 1))))
    (func (export "change")
      (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 4))
      (drop (call $mkdir (i32.const 3) (i32.const 64) (i32.const 1)))
      (drop (call $symlink (i32.const 64) (i32.const 1) (i32.const 3) (i32.const 65) (i32.const 1)))
      (drop (call $open (i32.const 3) (i32.const 0) (i32.const 66) (i32.const 1) (i32.const 1) (i64.const 66)
        (i64.const 0) (i32.const 0) (i32.const 8)))
      (drop (call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 2) (i64.const 0)
        (i64.const 0) (i32.const 0) (i32.const 8)))
      (drop (call $write (i32.const 6) (i32.const 0) (i32.const 1) (i32.const 8)))
      (drop (memory.grow (i32.const 3))) (i64.store (i32.const 300000) (i64.const 77))
      (table.set $t (i32.const 1) (ref.func $one)) (drop (table.grow $t (ref.func $one) (i32.const 2)))
      (global.set $single (f32.const 1.5)) (call $one))
    (func (export "tell") (local $fd i32)
      (call_indirect (type $thunk) (i32.const 1))
      (loop $each
        (drop (call $seek (local.get $fd) (i64.const -2) (i32.const 2) (i32.const 16)))
        (drop (call $read (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)))
        (drop (call $write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8)))
        (drop (call $list (local.get $fd) (i32.const 1024) (i32.const 512) (i64.const 0) (i32.const 8)))
        (drop (call $open (local.get $fd) (i32.const 1) (i32.const 65) (i32.const 1) (i32.const 1) (i64.const 66)
          (i64.const 0) (i32.const 0) (i32.const 8)))
        (br_if $each (i32.lt_u (local.tee $fd (i32.add (local.get $fd) (i32.const 1))) (i32.const 12))))))"#;

/// The assembled library, as the base of snapshots.
pub(crate) static LIBRARY: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| wat::parse_str(LIBRARY_MODULE).ok());
static ASSEMBLED_IMPORTS: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| wat::parse_str(IMPORTS).ok());
static ASSEMBLED_EXPORTS: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| wat::parse_str(EXPORTS).ok());
static PROGRAMS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(programs);

/// Generates a module and its execution mode.
pub fn module(seed: u64) -> (Vec<u8>, Mode) {
    let mut rng = Rng::with_seed(seed);
    let mode = [Mode::Plain, Mode::Plain, Mode::Fuel, Mode::Deterministic][rng.usize(..4)];
    let bytes = match rng.u8(..8) {
        0..4 => built(&mut rng),
        4 | 5 => {
            let bytes = built(&mut rng);
            damaged(&mut rng, bytes)
        }
        _ => {
            let bytes = rng.choice(&*PROGRAMS).cloned().unwrap_or_default();
            damaged(&mut rng, bytes)
        }
    };
    (bytes, mode)
}

/// Returns a module from bytes of the fuzzer: the bytes themselves if they begin like a module, else one generated from
/// them.
pub fn module_of(bytes: &[u8]) -> Vec<u8> {
    if bytes.starts_with(b"\0asm") {
        return bytes.to_vec();
    }
    let (first, choices) = bytes.split_first().unwrap_or((&0, &[]));
    smith(choices, u64::from(*first))
}

fn built(rng: &mut Rng) -> Vec<u8> {
    let mut choices = vec![0; rng.usize(64..CHOICES)];
    rng.fill(&mut choices);
    smith(&choices, rng.u64(..))
}

/// Generates a module that passes validation, unless it uses a disabled feature.
fn smith(choices: &[u8], shape: u64) -> Vec<u8> {
    let mut unstructured = Unstructured::new(choices);
    let module = wasm_smith::Module::new(config(shape), &mut unstructured);
    // Too few random bytes make no module. An empty module is a case too.
    module.map(|module| module.to_bytes()).unwrap_or_default()
}

/// Returns a configuration, mostly for a command that can start, and sometimes for a module that must be refused.
fn config(shape: u64) -> Config {
    let bit = |number: u32| shape >> number & 1 == 1;
    let is_command = shape & 7 != 7;
    let with_more = shape & 0x78 == 0x78;
    Config {
        available_imports: ASSEMBLED_IMPORTS.clone().filter(|_| is_command),
        exports: ASSEMBLED_EXPORTS.clone().filter(|_| is_command),
        gc_enabled: with_more,
        exceptions_enabled: with_more,
        memory64_enabled: with_more,
        relaxed_simd_enabled: with_more,
        // They use references to host values, which are disabled.
        reference_types_enabled: with_more,
        tail_call_enabled: with_more,
        threads_enabled: with_more,
        simd_enabled: bit(8),
        allow_invalid_funcs: shape & 0x1E00 == 0x1E00,
        // A command has exactly one memory, the exported one.
        max_memories: usize::from(!is_command) + usize::from(with_more),
        max_memory32_bytes: if bit(13) { 4 << 20 } else { 1 << 32 },
        max_tables: 4,
        max_instructions: if bit(14) { 2000 } else { 200 },
        max_nesting_depth: if bit(15) { 1000 } else { 10 },
        generate_custom_sections: bit(16),
        ..Config::default()
    }
}

/// Changes, removes, duplicates or moves a few bytes.
pub(crate) fn damaged(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..1 << rng.u32(..5) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.usize(..bytes.len());
        let to = (at + rng.usize(..32)).min(bytes.len());
        match rng.u8(..7) {
            0 => bytes[at] ^= 1 << rng.u32(..8),
            1 => bytes[at] = rng.u8(..),
            2 => bytes[at] = bytes[at].wrapping_add(1),
            3 => drop(bytes.drain(at..to)),
            4 => bytes.insert(at, rng.u8(..)),
            5 => bytes.extend_from_within(at..to),
            // A number with a continuation bit: lengths and counts become huge.
            _ => bytes[at] |= 0x80,
        }
    }
    bytes
}

/// Returns the programs of the conformance suite that end or wait.
fn programs() -> Vec<Vec<u8>> {
    use GuestProgram as P;
    let path = || "a".to_owned();
    let programs = [
        P::Print { stdout: "o".into(), stderr: "e".into() },
        P::PrintRepeated { line: "x".into(), total: 100_000 },
        P::CopyInput { code: 3 },
        P::PrintEnvironment,
        P::PrintWorkingDir,
        P::SleepForever,
        P::WriteFile { path: path(), contents: "c".into() },
        P::ReadFile { path: path() },
        P::MakeDirectory { path: path() },
        P::MakeSymlink { path: path(), target: "/".into() },
        P::MakeFiles { path: ".".into(), count: 300 },
        P::SwapSymlinkForever { path: path(), inside: "b".into(), outside: "/c".into() },
        P::AllocateMemory { bytes: 1 << 20, processes: 1 },
        P::SpinCpu { processes: 1 },
        P::FillDisk { path: path(), bytes: 4 << 20 },
    ];
    programs.iter().filter_map(contents).collect()
}

fn contents(program: &GuestProgram) -> Option<Vec<u8>> {
    let request = WasmPrograms.request(program)?.build().ok()?;
    match request.command() {
        Command::Script(script) => Some(script.contents.to_vec()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_always_the_same_case() {
        for seed in 0..50 {
            assert_eq!(module(seed), module(seed));
        }
    }

    #[test]
    fn all_programs_are_there() {
        assert_eq!(PROGRAMS.len(), 15);
    }
}
