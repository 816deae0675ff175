//! Limits, exceeded in ways for which the conformance suite has no program.

use std::time::{Duration, Instant};

use cofferdam_contract::{
    Backend, ByteSize, ErrorKind, LimitKind, Limits, Protection, ProtectionState, SandboxPath, Spec,
};
use tokio::time::{sleep, timeout};

use crate::support::{PROMPT, assemble, limited, program, run, sandbox, script, text};

const SIGSEGV: i32 = 11;
const SIGABRT: i32 = 6;
const SIGFPE: i32 = 8;

fn memory(mebibytes: u64) -> Spec {
    limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(mebibytes)))
}

/// Promise (WebAssembly): A module cannot grow its memories and tables beyond the memory limit.
#[tokio::test]
async fn a_loop_of_growth_gets_no_more_than_the_limit() {
    let code = "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
      (call $print_number (i64.extend_i32_u (memory.size)))";
    let done = run(program("", code), memory(32)).await.unwrap();
    let pages: u64 = text(&done.stdout).parse().unwrap();
    assert!((256..=512).contains(&pages), "{pages} pages under a limit of 512");
    assert_eq!(done.exit.limits_hit, [LimitKind::Memory]);
    assert!(done.exit.usage.peak_memory_bytes.unwrap() <= 32 << 20);
}

#[tokio::test]
async fn memory_below_the_limit_is_usable() {
    let code = "(if (i32.eq (memory.grow (i32.const 1024)) (i32.const -1)) (then unreachable))
      (call $touch (i32.const 1024))";
    let done = run(program("", code), memory(256)).await.unwrap();
    assert!(done.exit.success() && done.exit.limits_hit.is_empty(), "{:?}", done.exit);
}

#[tokio::test]
async fn a_program_that_gives_up_without_memory_was_killed_by_the_limit() {
    let code = "(if (i32.eq (memory.grow (i32.const 60000)) (i32.const -1)) (then unreachable))";
    let done = run(program("", code), memory(32)).await.unwrap();
    assert_eq!(done.exit.killed_by, Some(LimitKind::Memory), "{:?}", done.exit);
}

/// Promise (WebAssembly): The initial memories and tables of a module count against the memory limit.
#[tokio::test]
async fn initial_memories_and_tables_count() {
    for module in [
        r#"(module (memory 65536) (func (export "_start")))"#,
        r#"(module (table 1000000 funcref) (func (export "_start")))"#,
        r#"(module (table 4000000000 funcref) (func (export "_start")))"#,
    ] {
        let done = run(assemble(module), memory(8)).await.unwrap();
        assert_eq!(done.exit.killed_by, Some(LimitKind::Memory), "{module}: {:?}", done.exit);
    }
}

/// Promise (WebAssembly): All execs of a sandbox share its memory limit and free their part at their end.
#[tokio::test]
async fn execs_share_one_memory_limit_and_give_it_back() {
    let sandbox = sandbox(memory(64)).await;
    let hold = program(
        "",
        "(if (i32.eq (memory.grow (i32.const 600)) (i32.const -1)) (then unreachable))
      (call $write (i32.const 1) (i32.const 0x100000) (i32.const 1)) (loop $on (call $sleep) (br $on))",
    );
    let first = sandbox.start(script(hold.clone()).build().unwrap()).await.unwrap();
    first.output().next().await.unwrap();
    let second = sandbox.exec(script(hold).build().unwrap()).await.unwrap();
    assert_eq!(second.exit.killed_by, Some(LimitKind::Memory), "{:?}", second.exit);
    first.close().await.unwrap();
    let light = sandbox.usage().await.unwrap().memory_bytes.unwrap();
    assert!(light < 1 << 20, "{light} bytes are still charged");
}

/// Promise (WebAssembly): Files in memory count against the memory limit.
#[tokio::test]
async fn files_count_towards_the_memory_limit() {
    let sandbox = sandbox(limited(|limits| {
        limits.memory = Some(ByteSize::from_mebibytes(4));
        limits.disk = None;
    }))
    .await;
    let path = SandboxPath::new("big").unwrap();
    let error = sandbox.write_bytes(&path, vec![1; 8 << 20]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    sandbox.write_bytes(&path, vec![1; 2 << 20]).await.unwrap();
}

#[tokio::test]
async fn traps_surface_as_the_signals_of_native_programs() {
    for (code, signal) in [
        ("unreachable", SIGABRT),
        ("(drop (i32.load (i32.const 0x7fffffff)))", SIGSEGV),
        ("(drop (i32.div_u (i32.const 1) (local.get $i)))", SIGFPE),
    ] {
        let done = run(program("", code), Spec::default()).await.unwrap();
        assert_eq!((done.exit.code, done.exit.signal), (-1, Some(signal)), "{code}: {:?}", done.exit);
        assert!(text(&done.stderr).starts_with("wasm trap: "), "{:?}", text(&done.stderr));
        assert_eq!(done.exit.killed_by, None);
    }
    let deeper = r#"(module (func $deeper (export "_start") (call $deeper)))"#;
    let done = run(assemble(deeper), Spec::default()).await.unwrap();
    assert_eq!(done.exit.signal, Some(SIGSEGV), "{:?}", done.exit);
}

/// Promise (WebAssembly): A timeout ends an endless loop, also in a start function.
#[tokio::test]
async fn a_start_function_that_loops_is_ended_like_the_rest() {
    let module = assemble(r#"(module (func $s (loop (br 0))) (start $s) (func (export "_start")))"#);
    let done = run(module.clone(), limited(|limits| limits.wall_time = Duration::from_millis(300))).await.unwrap();
    assert!(done.exit.timed_out, "{:?}", done.exit);
    let spec = limited(|limits| limits.cpu_time = Some(Duration::from_millis(300)));
    assert_eq!(run(module, spec).await.unwrap().exit.killed_by, Some(LimitKind::Cpu));
}

/// Promise (WebAssembly): A timeout and a cancel end calls that wait.
#[tokio::test]
async fn calls_that_wait_are_ended_by_time_and_by_order() {
    let asleep = program("", "(loop $on (call $sleep) (br $on))");
    let reading = program("", "(call $read_line)");
    for module in [asleep, reading] {
        let sandbox = sandbox(limited(|limits| limits.wall_time = Duration::from_millis(300))).await;
        let request = || script(module.clone()).stdin(cofferdam_contract::Stdin::Stream);
        let handle = sandbox.start(request().build().unwrap()).await.unwrap();
        let exit = timeout(PROMPT, handle.exit()).await.unwrap().unwrap();
        assert!(exit.timed_out, "{exit:?}");
        let long = request().timeout(Duration::from_secs(3600)).build().unwrap();
        let handle = sandbox.start(long).await.unwrap();
        sleep(Duration::from_millis(50)).await;
        let exit = timeout(PROMPT, handle.cancel()).await.unwrap().unwrap();
        assert!(exit.cancelled && exit.signal == Some(15), "{exit:?}");
        assert!(exit.usage.cpu_seconds < 5.0, "a blocked guest must not use the processor: {exit:?}");
    }
}

#[tokio::test]
async fn execs_at_once_are_the_processes_that_are_counted() {
    let sandbox = sandbox(limited(|limits| limits.pids = Some(2))).await;
    let asleep = || script(program("", "(loop $on (call $sleep) (br $on))")).build().unwrap();
    let one = sandbox.start(asleep()).await.unwrap();
    let _two = sandbox.start(asleep()).await.unwrap();
    assert_eq!(sandbox.start(asleep()).await.unwrap_err().kind(), ErrorKind::ResourceExhausted);
    one.close().await.unwrap();
    sandbox.start(asleep()).await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn posture_claims_the_tested_protections() {
    let sandbox = sandbox(Spec::default()).await;
    for protection in [
        Protection::Memory,
        Protection::CpuTime,
        Protection::WallTime,
        Protection::Disk,
        Protection::Processes,
        Protection::Workspace,
        Protection::Network,
    ] {
        assert_eq!(sandbox.posture().get(protection).unwrap().state, ProtectionState::Enforced, "{protection}");
    }
    let share = Limits { cpus: Some(cofferdam_contract::Cpus::from_millis(500)), ..Limits::default() };
    let backend = cofferdam_wasm::WasmBackend::default();
    let refused = backend.create(Spec::builder().limits(share).build().unwrap()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::WeakerThanRequired);
}

#[tokio::test]
async fn a_flood_of_single_bytes_stays_within_bounds() {
    let started = Instant::now();
    let code = "(loop $on (call $write (i32.const 1) (i32.const 0x100000) (i32.const 1))
      (call $write (i32.const 2) (i32.const 0x100000) (i32.const 1)) (br $on))";
    let sandbox = sandbox(limited(|limits| limits.wall_time = Duration::from_millis(500))).await;
    let request = script(program("", code)).max_output(ByteSize::from_mebibytes(64)).build().unwrap();
    let handle = sandbox.start(request).await.unwrap();
    let (mut chunks, mut bytes) = (0u64, 0u64);
    let mut output = handle.output();
    while let Some(event) = output.next().await {
        match event {
            cofferdam_contract::OutputEvent::Chunk(chunk) => {
                chunks += 1;
                bytes += chunk.data.len() as u64;
            }
            cofferdam_contract::OutputEvent::Lost { chunks: lost, bytes: gone } => {
                chunks += lost;
                bytes += gone;
            }
        }
    }
    assert!(handle.exit().await.unwrap().timed_out);
    // A chunk for each 4 KiB, and two for each periodic check of the guest.
    let checks = started.elapsed().as_millis() as u64 + 2;
    assert!(bytes > 10_000, "only {bytes} bytes were received");
    assert!(chunks <= bytes / 4096 + 2 * checks, "{chunks} chunks for {bytes} bytes in {checks} ms");
}
