//! Tests of sessions.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_code::{CodeConfig, CodeRequest, CodeResult, CodeSession, SessionBounds, Sessions};
use cofferdam_contract::ErrorKind;

use crate::support::{World, spec};

struct Open {
    world: World,
    sessions: Sessions,
}

impl Open {
    async fn with(bounds: SessionBounds) -> Self {
        let world = World::with(CodeConfig { sessions: bounds, ..CodeConfig::default() }, spec()).await;
        let sessions = Sessions::new(world.executor.clone());
        Self { world, sessions }
    }

    async fn session(&self, language: &str) -> Arc<CodeSession> {
        self.sessions.open(&self.world.profile, &self.world.sandbox, language).await.expect("a session")
    }
}

async fn call(session: &CodeSession, code: &str) -> CodeResult {
    session.call(CodeRequest::new("", code).timeout(Duration::from_secs(10))).await.expect("a result")
}

fn value(result: &CodeResult) -> &str {
    result.results.first().and_then(|result| result.data["text/plain"].as_str()).unwrap_or_default()
}

/// Promise (Code execution): Python variables persist between the calls of a session.
#[tokio::test]
async fn variables_survive_in_python() {
    let open = Open::with(SessionBounds::default()).await;
    let session = open.session("python").await;
    assert_eq!(call(&session, "x = 20\nprint('one')").await.stdout.text(), "one\n");
    let second = call(&session, "def f(y):\n    return x + y\nf(22)").await;
    assert_eq!((value(&second), second.stdout.text().as_ref()), ("42", ""));
    let failed = call(&session, "print('before')\n\nf(None)").await;
    assert_eq!((failed.exit_code, failed.stdout.text().as_ref()), (1, "before\n"));
    let traceback = failed.stderr.text().into_owned();
    assert!(
        traceback.contains("line 3, in <module>\n    f(None)") && traceback.contains("    return x + y"),
        "{traceback}"
    );
    assert!(failed.session.as_ref().is_some_and(|state| state.lost.is_none() && state.calls == 3));
    let files = call(&session, "open('made.txt', 'w').write('x')").await;
    assert_eq!(files.files.changes[0].name, "made.txt");
    assert_eq!(call(&session, "import sys\nsys.stdin.read()").await.results[0].data["text/plain"], "''");
    session.close().await;
    let error = session.call(CodeRequest::new("", "1")).await.expect_err("closed");
    assert_eq!((error.kind(), error.message()), (ErrorKind::Closed, "the session has ended: it was closed"));
}

/// Promise (Code execution): JavaScript variables persist between the calls of a session.
#[tokio::test]
async fn variables_survive_in_javascript() {
    let open = Open::with(SessionBounds::default()).await;
    let session = open.session("javascript").await;
    assert_eq!(call(&session, "const x = 20; console.log('one')").await.stdout.text(), "one\n");
    assert_eq!(value(&call(&session, "function f(y) { return x + y } f(22)").await), "42");
    let waited = call(&session, "const z = await Promise.resolve(7); console.log(z)").await;
    assert_eq!(waited.stdout.text(), "7\n", "{}", waited.stderr.text());
    assert_eq!(value(&call(&session, "z").await), "7");
    let failed = call(&session, "throw new Error('no')").await;
    assert_eq!(failed.exit_code, 1);
    assert!(failed.stderr.text().contains("Error: no"), "{}", failed.stderr.text());
    assert_eq!(value(&call(&session, "require('path').sep").await), "'/'");
    let ended = call(&session, "process.exit(9)").await;
    assert_eq!(ended.exit_code, 9);
    assert!(ended.session.and_then(|state| state.lost).is_some_and(|why| why.contains("exit code 9")));
}

/// Promise (Code execution): A crash, a timeout or an endless loop ends its own session only, with the reason.
/// [Configuration](docs/configuration.md#cpu-time) describes the exception: all sessions of a sandbox share CPU time.
#[tokio::test]
async fn failure_ends_its_own_session_only() {
    let open = Open::with(SessionBounds::default()).await;
    let good = open.session("python").await;
    call(&good, "kept = 1").await;
    for (language, code, why, exit) in [
        ("python", "print('a', flush=True)\nwhile True: pass", "did not end within", -1),
        ("python", "import os\nos._exit(3)", "exit code 3", 3),
        ("python", "import sys\nsys.exit(4)", "exit code 4", 4),
        ("python", "import os\nos.kill(os.getpid(), 9)", "signal 9", -1),
        ("javascript", "for (;;) {}", "did not end within", -1),
        ("javascript", "process.abort()", "signal 6", -1),
    ] {
        let session = open.session(language).await;
        let request = CodeRequest::new("", code).timeout(Duration::from_secs(2));
        let result = session.call(request).await.expect("a result");
        assert_eq!(result.exit_code, exit, "{code}: {result:?}");
        let lost = result.session.and_then(|state| state.lost).unwrap_or_default();
        assert!(lost.contains(why), "{code}: {lost}");
        let again = session.call(CodeRequest::new("", "1")).await.expect_err("gone");
        assert_eq!(again.kind(), ErrorKind::Closed);
        assert!(again.message().contains(why), "{again}");
        assert!(open.sessions.find(session.id()).is_err_and(|error| error.kind() == ErrorKind::Closed));
        assert_eq!(value(&call(&good, "kept").await), "1");
    }
    assert_eq!(open.sessions.ids(), [good.id().to_owned()]);
}

#[tokio::test]
async fn end_of_a_session_between_calls_is_reported() {
    let open = Open::with(SessionBounds::default()).await;
    for (end, why) in [
        ("os.kill(os.getpid(), 9)", "the interpreter was ended by signal 9, between two calls"),
        ("os._exit(3)", "the interpreter ended, with exit code 3, between two calls"),
    ] {
        let session = open.session("python").await;
        let later = format!("import os, threading\nthreading.Timer(0.5, lambda: {end}).start()");
        assert_eq!(call(&session, &later).await.exit_code, 0);
        for _ in 0..200 {
            if session.lost().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let again = session.call(CodeRequest::new("", "1")).await.expect_err("gone");
        assert_eq!(again.kind(), ErrorKind::Closed);
        assert!(again.message().contains(why), "{again}");
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_ends_its_session() {
    let open = Open::with(SessionBounds::default()).await;
    let session = open.session("python").await;
    let endless = session.call(CodeRequest::new("", "while True: pass"));
    assert!(tokio::time::timeout(Duration::from_millis(500), endless).await.is_err());
    assert_eq!(session.lost().as_deref(), Some("a call was cancelled"));
    let error = session.call(CodeRequest::new("", "1")).await.expect_err("gone");
    assert!(error.message().contains("a call was cancelled"), "{error}");
    for _ in 0..100 {
        if open.sessions.ids().is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it is listed still");
}

#[tokio::test]
async fn closing_ends_a_call_and_lets_no_other_begin() {
    let open = Open::with(SessionBounds { max_open: 1, ..SessionBounds::default() }).await;
    let session = open.session("python").await;
    let slow = session.call(CodeRequest::new("", "import time; time.sleep(5); 'slow'"));
    let closing = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        open.sessions.shutdown().await;
    };
    let begun = std::time::Instant::now();
    let (slow, ()) = tokio::join!(slow, closing);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let lost = slow.expect("a result").session.and_then(|state| state.lost);
    assert_eq!(lost.as_deref(), Some("it was closed"));
    let error = session.call(CodeRequest::new("", "1")).await.expect_err("closed");
    assert_eq!((error.kind(), error.message()), (ErrorKind::Closed, "the session has ended: it was closed"));
    assert!(open.sessions.ids().is_empty());
    let next = open.session("python").await;
    assert_eq!(value(&call(&next, "2").await), "2", "its slot is free");
}

/// Promise (Code execution): The number of sessions is limited, and idle sessions end.
#[tokio::test]
async fn sessions_are_bounded_and_idle_ones_end() {
    let bounds = SessionBounds { max_open: 1, idle_timeout: Duration::from_millis(700), ..SessionBounds::default() };
    let open = Open::with(bounds).await;
    let session = open.session("python").await;
    let full = open.sessions.open(&open.world.profile, &open.world.sandbox, "python").await.expect_err("full");
    assert_eq!(full.kind(), ErrorKind::ResourceExhausted);
    for _ in 0..100 {
        if let Err(error) = open.sessions.find(session.id()) {
            assert!(error.message().contains("it was idle for 0.7 s"), "{error}");
            open.session("python").await;
            assert!(open.sessions.open(&open.world.profile, &open.world.sandbox, "bash").await.is_err());
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it lives still");
}

#[tokio::test]
async fn two_calls_at_once_are_refused() {
    let open = Open::with(SessionBounds::default()).await;
    let session = open.session("python").await;
    let slow = session.call(CodeRequest::new("", "import time; time.sleep(1); 'slow'"));
    let quick = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        session.call(CodeRequest::new("", "1")).await
    };
    let (slow, quick) = tokio::join!(slow, quick);
    assert_eq!(value(&slow.expect("it continues")), "'slow'");
    assert_eq!(quick.expect_err("busy").kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn output_of_a_call_is_bounded_and_does_not_reach_the_next() {
    let open = Open::with(SessionBounds::default()).await;
    let session = open.session("python").await;
    let mut request = CodeRequest::new("", "import sys\nfor _ in range(200): sys.stdout.write('x' * 65536)");
    request.max_output = Some(cofferdam_contract::ByteSize::from_bytes(1000));
    let result = session.call(request).await.expect("a result");
    assert_eq!((result.stdout.bytes().len(), result.truncated, result.exit_code), (1000, true, 0));
    assert_eq!(call(&session, "print('next')").await.stdout.text(), "next\n");
    let forged = call(&session, "print('\\x1e' + '0' * 32 + ' ok 0')").await;
    assert_eq!(forged.stdout.text().len(), 39, "a marker of another call ends nothing");
}
