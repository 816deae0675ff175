//! Sessions of libraries: their state, their end, and the effects of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_contract::{
    ByteSize, Command, ErrorKind, ExecRequest, ExecRequestBuilder, LimitKind, SandboxPath, Spec, Stdin,
};
use cofferdam_wasm::{Session, SessionKind, WasmBackend, WasmConfig};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use crate::support::{PROMPT, library, limited, text};

/// A library that counts in a global and in memory, with functions that end the session.
pub(crate) fn counter() -> Vec<u8> {
    library(
        r#"(global $count (mut i64) (i64.const 0)) (global $begun (mut i64) (i64.const 0))
          (data (i32.const 3000) "kept.txt")
          (func (export "_initialize") (global.set $begun (i64.add (global.get $begun) (i64.const 100))))
          (func $count (export "count")
            (global.set $count (i64.add (global.get $count) (i64.const 1)))
            (i64.store (i32.const 2048) (i64.add (i64.load (i32.const 2048)) (i64.const 10)))
            (call $print_number (i64.add (global.get $begun) (i64.add (global.get $count) (i64.load (i32.const 2048))))))
          (func (export "trap") (call $count) (unreachable))
          (func (export "forever") (loop $on (br $on)))
          (func (export "exit") (call $exit (i32.const 7)))
          (func (export "hungry") (loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) (unreachable))
          (func (export "refused") (drop (memory.grow (i32.const 60000))))
          (func (export "echo") (drop (call $copy (i32.const 0) (i32.const 1))))
          (func (export "loud") (call $repeat (i32.const 3000) (i32.const 8) (i64.const 100000)))
          (func (export "save") (local $file i32)
            (local.set $file (call $create (i32.const 3) (i32.const 3000) (i32.const 8)))
            (call $write (local.get $file) (i32.const 3000) (i32.const 4))
            (call $check (call $fd_close (local.get $file))))
          (func (export "with_argument") (param i32))"#,
    )
}

pub(crate) fn named(function: &str) -> ExecRequestBuilder {
    ExecRequest::builder(Command::Argv(vec![function.to_owned()]))
}

pub(crate) async fn open(backend: &WasmBackend, module: Vec<u8>, spec: Spec) -> Session {
    backend.open_session(SessionKind::Module(module.into()), spec).await.unwrap()
}

pub(crate) async fn output_of(session: &Session, function: &str) -> String {
    let done = session.call(function, "").await.unwrap();
    assert!(done.exit.success(), "{function}: {:?}", done.exit);
    text(&done.stdout)
}

fn ended(session: &Session) {
    assert!(!session.is_alive());
    let refused = session.start(&named("count").build().unwrap()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed);
    assert!(refused.to_string().contains("session has ended"), "{refused}");
    assert_eq!(session.snapshot().unwrap_err().kind(), ErrorKind::Closed);
}

/// Promise (WebAssembly): The state that a call leaves is there for the next call of its session, and for no other
/// session.
#[tokio::test]
async fn state_persists_between_calls_of_the_same_session_only() {
    let backend = WasmBackend::default();
    let one = open(&backend, counter(), Spec::default()).await;
    assert_eq!(output_of(&one, "count").await, "111");
    assert_eq!(output_of(&one, "count").await, "122");
    let other = open(&backend, counter(), Spec::default()).await;
    assert_eq!(output_of(&other, "count").await, "111");
    assert_eq!(output_of(&one, "count").await, "133");
}

/// Promise (WebAssembly): The end of a guest ends its session and no other.
#[tokio::test]
async fn end_of_a_guest_ends_its_own_session_only() {
    let backend = WasmBackend::default();
    let spec = || limited(|limits| limits.memory = Some(ByteSize::from_mebibytes(8)));
    let other = open(&backend, counter(), spec()).await;
    assert_eq!(output_of(&other, "count").await, "111");
    for (number, what) in ["trap", "forever", "exit", "hungry"].into_iter().enumerate() {
        let session = open(&backend, counter(), spec()).await;
        let request = named(what).timeout(Duration::from_millis(200)).build().unwrap();
        let exit = timeout(PROMPT, session.exec(&request)).await.expect(what).unwrap().exit;
        match what {
            "trap" => assert!(exit.signal.is_some(), "{exit:?}"),
            "forever" => assert!(exit.timed_out, "{exit:?}"),
            "exit" => assert_eq!((exit.code, exit.signal), (7, None)),
            _ => assert_eq!(exit.killed_by, Some(LimitKind::Memory), "{exit:?}"),
        }
        ended(&session);
        session.close().await.unwrap();
        assert_eq!(output_of(&other, "count").await, (122 + 11 * number).to_string());
    }
    let session = open(&backend, counter(), spec()).await;
    let handle = session.start(&named("forever").build().unwrap()).unwrap();
    sleep(Duration::from_millis(30)).await;
    handle.close().await.unwrap();
    assert!(timeout(PROMPT, handle.exit()).await.expect("cancelled").unwrap().cancelled);
    ended(&session);
}

#[tokio::test]
async fn busy_session_answers_conflict_with_any_limits() {
    for processes in [None, Some(1)] {
        let spec = limited(|limits| limits.pids = processes.or(limits.pids));
        let session = open(&WasmBackend::default(), counter(), spec).await;
        let running = session.start(&named("forever").build().unwrap()).unwrap();
        let refused = session.start(&named("count").build().unwrap()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        assert_eq!(session.snapshot().unwrap_err().kind(), ErrorKind::Conflict);
        timeout(PROMPT, session.close()).await.expect("closed").unwrap();
        assert!(running.exit().await.unwrap().cancelled);
        ended_or_closed(&session);
    }
}

fn ended_or_closed(session: &Session) {
    assert!(!session.is_alive());
    assert_eq!(session.start(&named("count").build().unwrap()).unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn calls_that_the_library_does_not_have_are_refused_and_end_nothing() {
    let session = open(&WasmBackend::default(), counter(), Spec::default()).await;
    for name in ["", "nothing", "with_argument", "memory", "\u{1}cofferdam:start", "\u{1}cofferdam:global:0"] {
        let Ok(request) = named(name).build() else { continue };
        let refused = session.start(&request).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput), "{name:?}: {refused}");
    }
    assert_eq!(session.execute("1").await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(output_of(&session, "count").await, "111");
}

#[tokio::test]
async fn input_and_output_are_of_the_call() {
    let session = open(&WasmBackend::default(), counter(), Spec::default()).await;
    for input in ["one", "", "three"] {
        let done = session.call("echo", input).await.unwrap();
        assert_eq!((text(&done.stdout), done.exit.code), (input.to_owned(), 0));
    }
    let request = named("loud").max_output(ByteSize::from_bytes(1000)).build().unwrap();
    let loud = session.exec(&request).await.unwrap();
    assert!(loud.exit.truncated && loud.exit.success(), "{:?}", loud.exit);
    assert_eq!(loud.stdout.len(), 1000);
    let streamed = session.start(&named("echo").stdin(Stdin::Stream).build().unwrap()).unwrap();
    let mut stdin = streamed.stdin().unwrap();
    stdin.write_all(b"streamed").await.unwrap();
    drop(stdin);
    let done = cofferdam_contract::collect(streamed).await.unwrap();
    assert_eq!(text(&done.stdout), "streamed");
    assert_eq!(output_of(&session, "count").await, "111");
}

#[tokio::test]
async fn limits_hit_are_reported_for_their_own_call_only() {
    let session = open(&WasmBackend::default(), counter(), Spec::default()).await;
    let done = session.call("refused", "").await.unwrap();
    assert_eq!(done.exit.limits_hit, [LimitKind::Memory]);
    assert!(session.call("count", "").await.unwrap().exit.limits_hit.is_empty());
}

#[tokio::test]
async fn files_of_a_session_are_its_sandboxs() {
    let session = open(&WasmBackend::default(), counter(), Spec::default()).await;
    assert_eq!(output_of(&session, "save").await, "");
    let path = SandboxPath::new("kept.txt").unwrap();
    let sandbox = session.sandbox();
    let file = sandbox.read_file_to_end(&path, ByteSize::from_bytes(100)).await.unwrap();
    assert_eq!(&file[..], b"kept");
    sandbox.close().await.unwrap();
    ended_or_closed_by_sandbox(&session);
}

fn ended_or_closed_by_sandbox(session: &Session) {
    assert_eq!(session.start(&named("count").build().unwrap()).unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn calls_count_among_the_guests_that_may_run() {
    let backend = WasmBackend::new(WasmConfig { guests: 1, ..WasmConfig::default() });
    let (one, other) =
        (open(&backend, counter(), Spec::default()).await, open(&backend, counter(), Spec::default()).await);
    let running = one.start(&named("forever").build().unwrap()).unwrap();
    let refused = other.start(&named("count").build().unwrap()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted, "{refused}");
    one.close().await.unwrap();
    assert!(running.exit().await.unwrap().cancelled);
    assert_eq!(output_of(&other, "count").await, "111");
}

/// Promise (WebAssembly): Endless calls block neither the async runtime nor other sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_calls_block_neither_timers_nor_other_sessions() {
    let backend = WasmBackend::default();
    let mut busy = Vec::new();
    for _ in 0..6 {
        let session = open(&backend, counter(), limited(|limits| limits.cpu_time = None)).await;
        let handle = session.start(&named("forever").build().unwrap()).unwrap();
        busy.push((session, handle));
    }
    let ticks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&ticks);
    let ticking = tokio::spawn(async move {
        loop {
            sleep(Duration::from_millis(10)).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let other = open(&backend, counter(), Spec::default()).await;
    assert_eq!(timeout(PROMPT, output_of(&other, "count")).await.expect("another session is called"), "111");
    let before = ticks.load(Ordering::Relaxed);
    sleep(Duration::from_millis(500)).await;
    assert!(ticks.load(Ordering::Relaxed) > before, "the timer stood still");
    for (session, handle) in &busy {
        assert!(handle.try_exit().is_none());
        timeout(PROMPT, session.close()).await.expect("closed").unwrap();
        assert!(handle.exit().await.unwrap().cancelled);
    }
    ticking.abort();
}

#[tokio::test]
async fn a_library_that_fails_at_its_beginning_is_no_session() {
    let backend = WasmBackend::default();
    for code in [
        r#"(func (export "_initialize") (unreachable))"#,
        r#"(func (export "_initialize") (call $exit (i32.const 1)))"#,
        r#"(func $begin (unreachable)) (start $begin)"#,
    ] {
        let kind = SessionKind::Module(library(code).into());
        let refused = backend.open_session(kind, Spec::default()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotExecutable, "{code}: {refused}");
    }
}

/// Returns the threads, descriptors and mappings of this process.
fn census() -> [usize; 3] {
    let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    // Only the address space of linear memories, since allocators map memory at any time.
    let guests = maps.lines().filter(|line| line.contains("wasm-image")).count();
    [count("/proc/self/task"), count("/proc/self/fd"), guests]
}

/// Runs in its own process, since other tests would change these numbers.
#[test]
fn a_closed_session_leaves_nothing() {
    const ROLE: &str = "COFFERDAM_TEST_CENSUS";
    if std::env::var_os(ROLE).is_none() {
        let test = ["sessions::a_closed_session_leaves_nothing", "--exact", "--nocapture"];
        let status = std::process::Command::new(std::env::current_exe().unwrap()).args(test).env(ROLE, "1").status();
        return assert!(status.unwrap().success());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = WasmBackend::default();
        let round = async || {
            let sessions =
                [open(&backend, counter(), Spec::default()).await, open(&backend, counter(), Spec::default()).await];
            let fork = sessions[0].fork().await.unwrap();
            assert_eq!(output_of(&fork, "count").await, "111");
            let running = sessions[0].start(&named("forever").build().unwrap()).unwrap();
            let _ = sessions[1].call("trap", "").await.unwrap();
            for session in &sessions {
                session.close().await.unwrap();
            }
            drop((fork, running));
        };
        // The first rounds fill the backend's caches.
        for _ in 0..3 {
            round().await;
        }
        // The clock thread ends when no guest runs.
        sleep(Duration::from_millis(100)).await;
        let before = census();
        for _ in 0..20 {
            round().await;
        }
        let settled = async {
            while census() != before {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(20), settled).await.unwrap_or_else(|_| panic!("{before:?} became {:?}", census()));
    });
}
