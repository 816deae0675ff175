//! Isolation of direct runs: thousands of runs, each of which checks its whole state before it changes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{ByteSize, Completed, ErrorKind, LimitKind, Spec};
use cofferdam_wasm::{Call, Loaded, Runner, WasmBackend};

use crate::support::{assemble, limited, text};

/// The initial pages of the checking module. A free slot keeps fewer than half of them.
const PAGES: usize = 40;
/// The data segments: behind the start of memory, in the middle across a page border, and at the end of a page.
const DATA: [(usize, usize); 3] = [(5 * 4096, 8192), (19 * 65_536 - 4096, 40_000), (31 * 65_536 - 16, 16)];
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// The action of a run after its check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mischief {
    Nothing,
    Few,
    Many,
    Zeros,
    Grow,
    Trap,
    Overflow,
    Exit,
    /// Grows until an allocation fails, then traps as programs do.
    Memory,
    Forever,
}

const ALL: [Mischief; 9] = [
    Mischief::Few,
    Mischief::Nothing,
    Mischief::Many,
    Mischief::Few,
    Mischief::Zeros,
    Mischief::Trap,
    Mischief::Overflow,
    Mischief::Grow,
    Mischief::Exit,
];

fn data() -> String {
    DATA.iter()
        .map(|(at, length)| {
            let words =
                (*at..at + length).step_by(8).flat_map(|at| ((at as u64).wrapping_mul(FACTOR) | 1).to_le_bytes());
            let text: String = words.map(|byte| format!("\\{byte:02x}")).collect();
            format!("(data (i32.const {at}) \"{text}\")\n")
        })
        .collect()
}

/// Returns a module that checks every word of memory and every global, then reads the action and random addresses for
/// it. It exits with 99 if a value is wrong.
pub(crate) fn checking() -> Vec<u8> {
    let expected: String = DATA.iter().fold("(i64.const 0)".to_owned(), |other, (at, length)| {
        let inside = format!("(i32.lt_u (i32.sub (local.get $at) (i32.const {at})) (i32.const {length}))");
        let word = format!("(i64.or (i64.mul (i64.extend_i32_u (local.get $at)) (i64.const {FACTOR})) (i64.const 1))");
        format!("(if (result i64) {inside} (then {word}) (else {other}))")
    });
    assemble(&format!(
        r#"(module
          (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
          (memory (export "memory") {PAGES} 200)
          (global $int (mut i32) (i32.const 7))
          (global $long (export "long") (mut i64) (i64.const -7))
          (global $float (mut f32) (f32.const 7))
          (global $double (mut f64) (f64.const -0.5))
          (global $vector (mut v128) (v128.const i64x2 1 2))
          {}
          (func $wrong (call $exit (i32.const 99)))
          (func $expected (param $at i32) (result i64) {expected})
          (func $look (local $at i32) (local $end i32)
            (if (i32.ne (memory.size) (i32.const {PAGES})) (then (call $wrong)))
            (if (i32.ne (global.get $int) (i32.const 7)) (then (call $wrong)))
            (if (i64.ne (global.get $long) (i64.const -7)) (then (call $wrong)))
            (if (f32.ne (global.get $float) (f32.const 7)) (then (call $wrong)))
            (if (f64.ne (global.get $double) (f64.const -0.5)) (then (call $wrong)))
            (if (i64.ne (i64x2.extract_lane 1 (global.get $vector)) (i64.const 2)) (then (call $wrong)))
            (local.set $end (i32.mul (memory.size) (i32.const 65536)))
            (loop $next
              (if (i64.ne (i64.load (local.get $at)) (call $expected (local.get $at))) (then (call $wrong)))
              (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (local.get $end)))))
          (func $zeros (param $at i32) (param $end i32)
            (loop $next
              (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then (call $wrong)))
              (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (local.get $end)))))
          (func $globals
            (global.set $int (i32.const 1)) (global.set $long (i64.const 1)) (global.set $float (f32.const nan))
            (global.set $double (f64.const inf)) (global.set $vector (v128.const i64x2 3 3)))
          ;; Random words at random places: as many as are asked for, with the choices at 64.
          (func $scribble (param $count i32) (local $at i32)
            (loop $again
              (drop (call $random (i32.const 64) (i32.const 8)))
              (local.set $at (i32.rem_u (i32.load (i32.const 64)) (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 8))))
              (i64.store (local.get $at) (i64.const 0x6b6e6f776e207965))
              (br_if $again (local.tee $count (i32.sub (local.get $count) (i32.const 1))))))
          (func $every (param $with i64) (local $at i32) (local $end i32)
            (local.set $end (i32.mul (memory.size) (i32.const 65536)))
            (loop $next
              (i64.store (local.get $at) (local.get $with))
              (i64.store (i32.add (local.get $at) (i32.const 4088)) (local.get $with))
              (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 4096))) (local.get $end)))))
          (func $deep (param i64) (result i64)
            (i64.add (local.get 0) (call $deep (i64.add (local.get 0) (i64.const 1)))))
          (func (export "_start") (local $what i32) (local $before i32)
            (call $look)
            (i32.store (i32.const 0) (i32.const 16)) (i32.store (i32.const 4) (i32.const 1))
            (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
            (local.set $what (i32.load8_u (i32.const 16)))
            (if (i32.eqz (local.get $what)) (then (return)))
            (call $globals)
            (call $scribble (i32.const 5))
            (if (i32.eq (local.get $what) (i32.const {many})) (then (call $every (i64.const -1))))
            (if (i32.eq (local.get $what) (i32.const {zeros})) (then (memory.fill (i32.const 0) (i32.const 0) (i32.const {all}))))
            (if (i32.eq (local.get $what) (i32.const {grow})) (then
              (local.set $before (i32.mul (memory.grow (i32.const 8)) (i32.const 65536)))
              (call $zeros (local.get $before) (i32.add (local.get $before) (i32.const 524288)))
              (call $every (i64.const -2))))
            (if (i32.eq (local.get $what) (i32.const {trap})) (then (call $scribble (i32.const 300)) (unreachable)))
            (if (i32.eq (local.get $what) (i32.const {overflow})) (then (drop (call $deep (i64.const 0)))))
            (if (i32.eq (local.get $what) (i32.const {exit})) (then (call $exit (i32.const 3))))
            (if (i32.eq (local.get $what) (i32.const {memory})) (then
              (loop $more (br_if $more (i32.ne (memory.grow (i32.const 8)) (i32.const -1))))
              (call $every (i64.const -3)) (unreachable)))
            (if (i32.eq (local.get $what) (i32.const {forever})) (then (loop $on (call $scribble (i32.const 9)) (br $on))))))"#,
        data(),
        all = PAGES * 65_536,
        many = Mischief::Many as u8,
        zeros = Mischief::Zeros as u8,
        grow = Mischief::Grow as u8,
        trap = Mischief::Trap as u8,
        overflow = Mischief::Overflow as u8,
        exit = Mischief::Exit as u8,
        memory = Mischief::Memory as u8,
        forever = Mischief::Forever as u8,
    ))
}

pub(crate) fn spec() -> Spec {
    limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(6)))
}

pub(crate) fn load(module: Vec<u8>, spec: Spec) -> Loaded {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(WasmBackend::default().load(module.into(), spec)).unwrap()
}

fn run(runner: &Runner<'_>, mischief: Mischief) -> Completed {
    let timeout = (mischief == Mischief::Forever).then_some(Duration::from_millis(15));
    let call = Call { stdin: Bytes::from(vec![mischief as u8]), timeout, ..Call::default() };
    runner.run(&call).unwrap_or_else(|error| panic!("{mischief:?}: {error}"))
}

/// Runs the guest, and checks that it found the initial state and ended as expected.
fn check(runner: &Runner<'_>, mischief: Mischief) {
    let exit = run(runner, mischief).exit;
    assert_ne!(exit.code, 99, "the run found traces of an earlier one, before {mischief:?}");
    let as_expected = match mischief {
        Mischief::Trap => exit.signal == Some(4) || exit.signal == Some(6),
        Mischief::Overflow => exit.signal.is_some() && exit.killed_by.is_none(),
        Mischief::Exit => exit.code == 3,
        Mischief::Memory => exit.killed_by == Some(LimitKind::Memory),
        Mischief::Forever => exit.timed_out,
        _ => exit.success(),
    };
    assert!(as_expected, "{mischief:?}: {exit:?}");
}

/// Returns all actions in turn, in a different order for each thread; the slow ones rarely.
fn mischief(thread: usize, round: usize) -> Mischief {
    match round % 100 {
        50 => Mischief::Memory,
        99 => Mischief::Forever,
        _ => ALL[(round * (thread + 1) + round / 9 + thread) % ALL.len()],
    }
}

/// Runs on two threads, which take each other's guests.
pub(crate) fn runs_on_two_threads(loaded: &Loaded, until: impl Fn(usize) -> bool + Sync) -> usize {
    std::thread::scope(|scope| {
        let run = |thread| {
            let until = &until;
            move || {
                let rounds = loaded.on_runner(|runner| {
                    let mut round = 0;
                    while !until(round) {
                        check(runner, mischief(thread, round));
                        round += 1;
                    }
                    round
                });
                rounds.unwrap_or_else(|error| panic!("{error}"))
            }
        };
        let threads = [scope.spawn(run(0)), scope.spawn(run(1))];
        threads.into_iter().map(|thread| thread.join().expect("a run found traces of an earlier one")).sum()
    })
}

/// Promise (WebAssembly): No run sees the memory of another over thousands of direct runs on two threads.
#[test]
fn thousands_of_runs_on_two_threads_see_no_foreign_memory() {
    let loaded = load(checking(), spec());
    assert_eq!(runs_on_two_threads(&loaded, |round| round == 1500), 3000);
}

/// Promise (WebAssembly): No run sees the memory of another while the process takes page faults.
#[test]
fn nothing_is_seen_while_the_process_takes_page_faults_all_the_time() {
    let loaded = load(checking(), spec());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Too large for the allocator to keep: every page causes a fault.
                let mut memory = vec![0u8; 64 << 20];
                memory.iter_mut().step_by(4096).take(300).for_each(|byte| *byte = 1);
            }
        });
        runs_on_two_threads(&loaded, |round| round == 400);
        done.store(true, Ordering::Relaxed);
    });
}

/// Promise (WebAssembly): A run that only reads sees nothing of an earlier run that wrote all its memory.
#[test]
fn reading_run_sees_nothing_of_a_run_that_wrote_all_memory() {
    let loaded = load(checking(), spec());
    let seen = loaded.on_runner(|runner| {
        for mischief in [Mischief::Many, Mischief::Zeros, Mischief::Grow, Mischief::Memory, Mischief::Forever] {
            for _ in 0..20 {
                check(runner, mischief);
                check(runner, Mischief::Nothing);
                // This time probably without page faults in between.
                check(runner, Mischief::Few);
                check(runner, Mischief::Nothing);
            }
        }
    });
    seen.unwrap();
}

/// Tests the check itself: it must detect wrong values.
#[test]
fn memory_check_finds_a_changed_word() {
    let (module, prefix) = (checking(), format!("(i32.const {}) \"", DATA[2].0));
    let text = wasmprinter::print_bytes(&module).unwrap();
    let (before, after) = text.split_once(&prefix).expect("the last data");
    // Change the first byte of the data, as `\xx`, and in the second case a global.
    let spoiled = [
        format!("{before}{prefix}\\00{}", &after[3..]),
        text.replacen("(mut f64) f64.const -0x1p-1", "(mut f64) f64.const -0x1p-2", 1),
    ];
    for spoiled in spoiled {
        assert_ne!(text, spoiled);
        let loaded = load(assemble(&spoiled), spec());
        let found = loaded.on_runner(|runner| run(runner, Mischief::Nothing).exit.code).unwrap();
        assert_eq!(found, 99);
    }
}

#[test]
fn access_beyond_memory_traps_after_a_run_that_grew_it() {
    let module = assemble(
        r#"(module
          (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
          (memory (export "memory") 1 20)
          (func (export "_start")
            (i32.store (i32.const 0) (i32.const 16)) (i32.store (i32.const 4) (i32.const 1))
            (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
            (if (i32.load8_u (i32.const 16))
              (then (drop (memory.grow (i32.const 9))) (i64.store (i32.const 300000) (i64.const 5)))
              (else (drop (i64.load (i32.const 300000)))))))"#,
    );
    let loaded = load(module, spec());
    let ran = loaded.on_runner(|runner| {
        for _ in 0..10 {
            assert!(run(runner, Mischief::Few).exit.success());
            let exit = run(runner, Mischief::Nothing).exit;
            assert!(exit.signal.is_some(), "the guest reads behind its memory: {exit:?}");
        }
    });
    ran.unwrap();
}

/// Tables and passive data cannot be reset: such guests are recreated.
///
/// Promise (WebAssembly): Each run starts with the initial tables and passive segments.
#[test]
fn tables_and_dropped_segments_are_as_at_the_beginning() {
    let module = assemble(
        r#"(module
          (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
          (memory (export "memory") 1) (table $t 3 funcref) (elem (table $t) (i32.const 1) func $a)
          (elem $spare func $b) (data $words "xyz")
          (func $a) (func $b)
          (func $wrong (call $exit (i32.const 99)))
          (func (export "_start")
            (if (i32.ne (table.size $t) (i32.const 3)) (then (call $wrong)))
            (if (i32.eqz (ref.is_null (table.get $t (i32.const 0)))) (then (call $wrong)))
            (if (ref.is_null (table.get $t (i32.const 1))) (then (call $wrong)))
            ;; Traps if an earlier run has dropped them.
            (memory.init $words (i32.const 0) (i32.const 0) (i32.const 3))
            (table.init $t $spare (i32.const 2) (i32.const 0) (i32.const 1))
            (table.set $t (i32.const 0) (ref.func $b)) (table.set $t (i32.const 1) (ref.null func))
            (drop (table.grow $t (ref.null func) (i32.const 5)))
            (data.drop $words) (elem.drop $spare)))"#,
    );
    let loaded = load(module, spec());
    let ran = loaded.on_runner(|runner| {
        for _ in 0..50 {
            let exit = runner.run(&Call::default()).unwrap().exit;
            assert!(exit.success(), "{exit:?}");
        }
    });
    ran.unwrap();
}

#[test]
fn tables_alone_are_as_at_the_beginning() {
    let module = assemble(
        r#"(module
          (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
          (table $t 2 funcref) (elem (table $t) (i32.const 1) func $a)
          (func $a)
          (func (export "_start")
            (if (i32.eqz (ref.is_null (table.get $t (i32.const 0)))) (then (call $exit (i32.const 99))))
            (table.set $t (i32.const 0) (ref.func $a))))"#,
    );
    let loaded = load(module, spec());
    let ran = loaded.on_runner(|runner| {
        (0..50).for_each(|_| assert!(runner.run(&Call::default()).unwrap().exit.success()));
    });
    ran.unwrap();
}

#[test]
fn files_descriptors_and_streams_of_a_run_are_its_own() {
    let module = assemble(
        r#"(module
          (import "wasi_snapshot_preview1" "path_open"
            (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
          (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
          (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
          (memory (export "memory") 1) (data (i32.const 64) "name")
          (func (export "_start")
            ;; It must be new: create and exclusive. Descriptor 6, because the first three directories are there.
            (if (call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 4) (i32.const 5)
                  (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 8)) (then (call $exit (i32.const 99))))
            (if (i32.ne (i32.load (i32.const 8)) (i32.const 6)) (then (call $exit (i32.const 98))))
            (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 4))
            (if (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 12)) (then (call $exit (i32.const 97))))
            (drop (call $close (i32.const 3))) (drop (call $close (i32.const 1)))))"#,
    );
    let loaded = load(module, spec());
    let ran = loaded.on_runner(|runner| {
        for _ in 0..20 {
            let done = runner.run(&Call::default()).unwrap();
            assert!(done.exit.success(), "{:?}", done.exit);
            assert_eq!(text(&done.stdout), "name");
        }
    });
    ran.unwrap();
}

#[test]
fn runner_reports_limits_and_panics() {
    let small = limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(1)));
    let loaded = load(checking(), small);
    let exit = loaded.on_runner(|runner| runner.run(&Call::default()).map(|done| done.exit)).unwrap();
    assert_eq!(exit.unwrap().killed_by, Some(LimitKind::Memory));
    let panicked = loaded.on_runner(|_| -> () { panic!("the caller's own") });
    assert_eq!(panicked.unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn the_time_of_a_run_is_its_own() {
    let loaded = load(checking(), spec());
    let started = Instant::now();
    let ran = loaded.on_runner(|runner| {
        check(runner, Mischief::Forever);
        // The deadline of the last run must not apply to the next one.
        std::thread::sleep(Duration::from_millis(30));
        check(runner, Mischief::Many);
    });
    ran.unwrap();
    assert!(started.elapsed() < Duration::from_secs(60));
}
