//! The interfaces of WASI 0.2 that a component can call.

use std::time::Duration;

use cofferdam_contract::{ByteSize, ErrorKind, LimitKind, SandboxPath, Spec, Stdin, collect};
use tokio::io::AsyncWriteExt;

use crate::componentize::{component, component_with, texts};
use crate::support::{limited, run, sandbox, script, text};

async fn code_of(component: Vec<u8>) -> i32 {
    let done = run(component, Spec::default()).await.unwrap();
    assert_eq!(done.exit.signal, None, "{}", text(&done.stderr));
    done.exit.code
}

#[tokio::test]
async fn a_run_that_fails_or_exits_has_its_code() {
    for (code, expected) in [
        ("(i32.const 0)", 0),
        ("(i32.const 1)", 1),
        ("(call $exit (i32.const 77)) (i32.const 0)", 77),
        ("(call $exit (i32.const 255)) (i32.const 0)", 255),
        ("(call $exit_status (i32.const 0)) (i32.const 1)", 0),
        ("(call $exit_status (i32.const 1)) (i32.const 0)", 1),
    ] {
        assert_eq!(code_of(component(code)).await, expected, "{code}");
    }
}

#[tokio::test]
async fn a_component_of_any_version_of_0_2_runs() {
    let old = component_text("0.2.0");
    assert_eq!(text(&run(old, Spec::default()).await.unwrap().stdout), "hi");
    // A version that does not exist yet.
    let new = component_text("0.2.99");
    assert_eq!(text(&run(new, Spec::default()).await.unwrap().stdout), "hi");
    let error = run(component_text("0.3.0"), Spec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotExecutable, "{error}");
}

/// Returns a component that was built without any tool.
fn component_text(version: &str) -> Vec<u8> {
    crate::support::assemble(&format!(
        r#"(component
          (import "wasi:io/error@{version}" (instance $errors (export "error" (type (sub resource)))))
          (alias export $errors "error" (type $error))
          (import "wasi:io/streams@{version}" (instance $streams
            (export "output-stream" (type $output (sub resource)))
            (alias outer 1 $error (type $error))
            (export "error" (type $e (eq $error)))
            (type $failure (variant (case "last-operation-failed" (own $e)) (case "closed")))
            (export "stream-error" (type $stream_error (eq $failure)))
            (export "[method]output-stream.blocking-write-and-flush" (func (param "self" (borrow $output))
              (param "contents" (list u8)) (result (result (error $stream_error)))))))
          (alias export $streams "output-stream" (type $output))
          (import "wasi:cli/stdout@{version}" (instance $stdout
            (alias outer 1 $output (type $o))
            (export "output-stream" (type $out (eq $o)))
            (export "get-stdout" (func (result (own $out))))))
          (core module $memory (memory (export "m") 1) (data (i32.const 8) "hi"))
          (core instance $memory (instantiate $memory))
          (core func $get (canon lower (func $stdout "get-stdout")))
          (core func $write (canon lower (func $streams "[method]output-stream.blocking-write-and-flush")
            (memory (core memory $memory "m"))))
          (core module $main
            (import "w" "get" (func $get (result i32)))
            (import "w" "write" (func $write (param i32 i32 i32 i32)))
            (func (export "run") (result i32)
              (call $write (call $get) (i32.const 8) (i32.const 2) (i32.const 64)) (i32.const 0)))
          (core instance $w (export "get" (func $get)) (export "write" (func $write)))
          (core instance $main (instantiate $main (with "w" (instance $w))))
          (func $run (result (result)) (canon lift (core func $main "run")))
          (instance $exported (export "run" (func $run)))
          (export "wasi:cli/run@{version}" (instance $exported)))"#
    ))
}

#[tokio::test]
async fn input_comes_as_bytes_and_as_a_stream() {
    // Copies input to output until it ends.
    let copy = component(
        "(local.set $i (call $get_stdin))
         (block $done (loop $more
           (call $blocking_read (local.get $i) (i64.const 1000) (i32.const 256))
           (br_if $done (i32.load8_u (i32.const 256)))
           (call $print (i32.load (i32.const 260)) (i32.load (i32.const 264)))
           (br $more)))
         (i32.sub (i32.load8_u (i32.const 260)) (i32.const 1))",
    );
    let given = "line\n".repeat(1000);
    let sandbox = sandbox(Spec::default()).await;
    let request = script(copy.clone()).stdin(Stdin::Bytes(given.clone().into())).build().unwrap();
    let done = sandbox.exec(request).await.unwrap();
    assert!(done.exit.success() && text(&done.stdout) == given, "{:?}", done.exit);
    let handle = sandbox.start(script(copy).stdin(Stdin::Stream).build().unwrap()).await.unwrap();
    let mut writer = handle.stdin().unwrap();
    for _ in 0..20 {
        writer.write_all(b"word ").await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    drop(writer);
    let done = collect(&handle).await.unwrap();
    assert_eq!(text(&done.stdout), "word ".repeat(20));
}

#[tokio::test]
async fn files_are_those_of_the_sandbox() {
    let sandbox = sandbox(Spec::default()).await;
    sandbox.write_bytes(&SandboxPath::new("given").unwrap(), "from the host").await.unwrap();
    let (data, spans) = texts(&["given", "made"]);
    let program = component_with(
        &data,
        &format!(
            "(call $check (call $open (call $directory (i32.const 0)) {given} (i32.const 0) (i32.const 1)))
             (call $read_at (i32.load (i32.const 260)) (i64.const 100) (i64.const 5) (i32.const 256))
             (call $print (i32.load (i32.const 260)) (i32.load (i32.const 264)))
             (call $check (call $open (call $directory (i32.const 2)) {created} (i32.const 1) (i32.const 2)))
             (call $write_via_stream (i32.load (i32.const 260)) (i64.const 3) (i32.const 256))
             (call $write (i32.load (i32.const 260)) (i32.const 1024) (i32.const 5) (i32.const 256))
             (call $outcome (i32.const 4))",
            given = spans[0],
            created = spans[1],
        ),
    );
    let done = sandbox.exec(script(program).build().unwrap()).await.unwrap();
    assert!(done.exit.success(), "{:?} {}", done.exit, text(&done.stderr));
    assert_eq!(text(&done.stdout), "the host");
    let created =
        sandbox.read_file_to_end(&SandboxPath::new("made").unwrap(), ByteSize::from_mebibytes(1)).await.unwrap();
    assert_eq!(created, b"\0\0\0given");
}

#[tokio::test]
async fn a_seed_determines_clocks_and_random_numbers() {
    // Random bytes, a seed, both clocks, and a sleep of 1000 s.
    let nosy = component(
        "(call $random (i64.const 16) (i32.const 256))
         (call $print (i32.load (i32.const 256)) (i32.load (i32.const 260)))
         (call $seed (i32.const 512))
         (call $date (i32.const 528))
         (call $block (call $after (i64.const 1000000000000)))
         (i64.store (i32.const 544) (call $now))
         (call $print (i32.const 512) (i32.const 40))
         (i32.const 0)",
    );
    let mut outputs = Vec::new();
    for seed in [1, 1, 2] {
        let spec = Spec::builder().attribute("wasm.deterministic", seed).build().unwrap();
        let done = run(nosy.clone(), spec).await.unwrap();
        assert!(done.exit.success(), "{:?}", done.exit);
        outputs.push(done.stdout);
    }
    assert_eq!(outputs[0], outputs[1]);
    assert_ne!(outputs[0][..32], outputs[2][..32]);
    assert_eq!(outputs[0][32..], outputs[2][32..], "clocks do not depend on the seed");
    let seconds = u64::from_le_bytes(outputs[0][32..40].try_into().unwrap());
    assert_eq!(seconds, 946_684_800);
    let slept = u64::from_le_bytes(outputs[0][48..56].try_into().unwrap());
    assert!((1_000_000_000_000..1_000_001_000_000).contains(&slept), "{slept}");
}

#[tokio::test]
async fn poll_of_several_reports_the_ready_ones() {
    // A thousand seconds, one millisecond, and the end of the input.
    let waits = component(
        "(i32.store (i32.const 512) (call $after (i64.const 1000000000000)))
         (i32.store (i32.const 516) (call $after (i64.const 1000000)))
         (call $poll (i32.const 512) (i32.const 2) (i32.const 256))
         (if (i32.ne (i32.load (i32.const 260)) (i32.const 1)) (then (call $exit (i32.const 9))))
         (if (i32.ne (i32.load (i32.load (i32.const 256))) (i32.const 1)) (then (call $exit (i32.const 8))))
         (if (call $ready (i32.load (i32.const 512))) (then (call $exit (i32.const 7))))
         (i32.store (i32.const 516) (call $subscribe (call $get_stdin)))
         (call $poll (i32.const 512) (i32.const 2) (i32.const 256))
         (if (i32.ne (i32.load (i32.load (i32.const 256))) (i32.const 1)) (then (call $exit (i32.const 6))))
         (call $terminal (i32.const 256))
         (i32.load8_u (i32.const 256))",
    );
    assert_eq!(code_of(waits).await, 0);
}

#[tokio::test]
async fn there_is_no_network() {
    const ACCESS_DENIED: i32 = 101;
    let (data, spans) = texts(&["localhost"]);
    for call in [
        "(call $tcp (i32.const 0) (i32.const 256))".to_owned(),
        "(call $tcp (i32.const 1) (i32.const 256))".to_owned(),
        "(call $udp (i32.const 0) (i32.const 256))".to_owned(),
        format!("(call $resolve (call $network) {} (i32.const 256))", spans[0]),
    ] {
        let program =
            component_with(&data, &format!("{call} (call $exit (call $outcome (i32.const 4))) (i32.const 0)"));
        assert_eq!(code_of(program).await, ACCESS_DENIED, "{call}");
    }
}

#[tokio::test]
async fn every_limit_ends_or_refuses() {
    let spin = component("(loop $more (br $more)) (i32.const 0)");
    let done = run(spin.clone(), limited(|limits| limits.cpu_time = Some(Duration::from_millis(100)))).await.unwrap();
    assert_eq!(done.exit.killed_by, Some(LimitKind::Cpu), "{:?}", done.exit);
    let short = limited(|limits| limits.wall_time = Duration::from_secs(3));
    assert!(run(spin.clone(), short.clone()).await.unwrap().exit.timed_out);
    let sleep = component("(call $block (call $after (i64.const -1))) (i32.const 0)");
    assert!(run(sleep, short).await.unwrap().exit.timed_out);
    let grow = component("(loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable");
    let small = limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(16)));
    assert_eq!(run(grow, small).await.unwrap().exit.killed_by, Some(LimitKind::Memory));
    let spec = Spec::builder().attribute("wasm.fuel", 10_000).build().unwrap();
    assert_eq!(run(spin, spec).await.unwrap().exit.killed_by, Some(LimitKind::Cpu));
}

#[tokio::test]
async fn stream_reports_a_full_disk() {
    let (data, spans) = texts(&["big"]);
    let fill = component_with(
        &data,
        &format!(
            "(drop (call $open (call $directory (i32.const 0)) {} (i32.const 1) (i32.const 2)))
             (call $write_via_stream (i32.load (i32.const 260)) (i64.const 0) (i32.const 256))
             (local.set $i (i32.load (i32.const 260)))
             (block $full (loop $more
               (call $write_zeroes (local.get $i) (i64.const 100000) (i32.const 256))
               (br_if $full (i32.load8_u (i32.const 256)))
               (br $more)))
             (call $exit (i32.load8_u (i32.const 260))) (i32.const 0)",
            spans[0]
        ),
    );
    let spec = limited(|limits| limits.disk = Some(ByteSize::from_mebibytes(2)));
    let done = run(fill, spec).await.unwrap();
    // The last operation failed, but the stream is not closed.
    assert_eq!((done.exit.code, done.exit.limits_hit), (0, vec![LimitKind::Disk]));
}

#[tokio::test]
async fn a_cancel_ends_a_wait_at_once() {
    for code in [
        "(call $blocking_read (call $get_stdin) (i64.const 1) (i32.const 256)) (i32.const 0)",
        "(call $block (call $subscribe (call $get_stdin))) (i32.const 0)",
        "(call $block (call $after (i64.const -1))) (i32.const 0)",
    ] {
        let sandbox = sandbox(Spec::default()).await;
        let handle = sandbox.start(script(component(code)).stdin(Stdin::Stream).build().unwrap()).await.unwrap();
        let writer = handle.stdin();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let exit = tokio::time::timeout(Duration::from_secs(20), handle.cancel()).await.expect("an end").unwrap();
        assert!(exit.cancelled, "{code}: {exit:?}");
        drop(writer);
    }
}

/// Returns two components: one returns a text through its own resource, the other calls it and prints nothing.
fn composed(calls: &str) -> Vec<u8> {
    crate::support::assemble(&format!(
        r#"(component
          (component $giver
            (type $thing (resource (rep i32)))
            (core func $new (canon resource.new $thing))
            (core module $m
              (import "i" "new" (func $new (param i32) (result i32)))
              (memory (export "m") 1) (data (i32.const 16) "given")
              (func (export "r") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
              (func (export "make") (result i32) (call $new (i32.const 7)))
              (func (export "text") (param i32) (result i32)
                (if (i32.ne (local.get 0) (i32.const 7)) (then unreachable))
                (i32.store (i32.const 0) (i32.const 16)) (i32.store (i32.const 4) (i32.const 5)) (i32.const 0)))
            (core instance $i (export "new" (func $new)))
            (core instance $m (instantiate $m (with "i" (instance $i))))
            (export $t "thing" (type $thing))
            (func $make (result (own $t)) (canon lift (core func $m "make")))
            (export "make" (func $make))
            (func $text (param "self" (borrow $t)) (result string)
              (canon lift (core func $m "text") (memory (core memory $m "m"))))
            (export "text" (func $text)))
          (instance $giver (instantiate $giver))
          (component $taker
          (import "giver" (instance $giver
            (export "thing" (type $t (sub resource)))
            (export "make" (func (result (own $t))))
            (export "text" (func (param "self" (borrow $t)) (result string)))))
          (alias export $giver "thing" (type $thing))
          (core module $memory (memory (export "m") 1)
            (func (export "r") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
          (core instance $memory (instantiate $memory))
          (core func $make (canon lower (func $giver "make")))
          (core func $text (canon lower (func $giver "text") (memory (core memory $memory "m"))
            (realloc (core func $memory "r"))))
          (core func $drop (canon resource.drop $thing))
          (core module $main
            (import "i" "make" (func $make (result i32)))
            (import "i" "text" (func $text (param i32 i32)))
            (import "i" "drop" (func $drop (param i32)))
            (import "m" "m" (memory 1))
            (func (export "run") (result i32) (local $i i32) {calls}))
          (core instance $i (export "make" (func $make)) (export "text" (func $text)) (export "drop" (func $drop)))
          (core instance $main (instantiate $main (with "i" (instance $i)) (with "m" (instance $memory))))
          (func $run (result (result)) (canon lift (core func $main "run")))
          (export "run" (func $run)))
          (instance $taker (instantiate $taker (with "giver" (instance $giver))))
          (alias export $taker "run" (func $run))
          (instance $exported (export "run" (func $run)))
          (export "wasi:cli/run@0.2.3" (instance $exported)))"#
    ))
}

#[tokio::test]
async fn parts_of_a_component_call_each_other() {
    let calls = "(local.set $i (call $make)) (call $text (local.get $i) (i32.const 64)) (call $drop (local.get $i))
      (i32.or (i32.ne (i32.load (i32.const 68)) (i32.const 5))
              (i32.ne (i32.load (i32.load (i32.const 64))) (i32.const 0x65766967)))";
    assert_eq!(code_of(composed(calls)).await, 0);
}

#[tokio::test]
async fn resources_of_its_own_run_out_too() {
    for calls in [
        "(loop $more (drop (call $make)) (br $more)) (i32.const 0)",
        "(call $drop (call $make)) (call $text (i32.const 1) (i32.const 64)) (i32.const 0)",
    ] {
        let done = run(composed(calls), Spec::default()).await.unwrap();
        assert_eq!(done.exit.signal, Some(6), "{:?} {}", done.exit, text(&done.stderr));
    }
}

#[tokio::test]
async fn instances_run_out() {
    let component = |count: usize| {
        let instances = "(core instance (instantiate $m))".repeat(count);
        crate::support::assemble(&format!(
            r#"(component (core module $m (memory 1) (func (export "run") (result i32) (i32.const 0)))
              {instances} (core instance $i (instantiate $m))
              (func $run (result (result)) (canon lift (core func $i "run")))
              (instance $exported (export "run" (func $run)))
              (export "wasi:cli/run@0.2.3" (instance $exported)))"#
        ))
    };
    assert!(run(component(15), Spec::default()).await.unwrap().exit.success());
    let error = run(component(16), Spec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
}
