//! Sessions over a simulated sandbox.
#![forbid(unsafe_code)]

mod support;

use std::sync::Arc;

use cofferdam_contract::{Backend, ErrorKind, ExecId, SandboxPath, Spec};
use cofferdam_engine::{RunningExec, Session, SessionConfig};
use cofferdam_simulated::{FaultPlan, SimulatedBackend};
use support::{SECOND, pool, print, settle, sleep_forever, small};

async fn created(config: SessionConfig) -> (Arc<SimulatedBackend>, Session) {
    let backend = Arc::new(SimulatedBackend::default());
    let session = Session::created(backend.create(Spec::default()).await.unwrap(), config).unwrap();
    (backend, session)
}

#[tokio::test(start_paused = true)]
async fn execs_have_handles_of_their_own_and_one_is_cancelled_without_the_others() {
    let (_backend, session) = created(SessionConfig::default()).await;
    let one = session.start(sleep_forever()).await.unwrap();
    tokio::time::advance(SECOND).await;
    let other = session.start(sleep_forever()).await.unwrap();
    let done = session.exec(print("hello")).await.unwrap();
    assert_eq!(done.stdout, "hello");
    let listed = session.execs();
    assert_eq!(listed.iter().map(|exec| exec.id).collect::<Vec<_>>(), [one.id(), other.id()]);
    assert!(matches!(listed[0], RunningExec { running_for, .. } if running_for >= SECOND));
    assert_eq!(session.cancel(one.id()).await.unwrap().code, 3);
    assert_eq!(session.cancel(one.id()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(session.cancel(ExecId(999)).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(other.try_exit().is_none());
    assert_eq!(session.execs().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn so_many_run_at_once_and_a_dropped_handle_ends_its_exec() {
    let (_backend, session) = created(SessionConfig { max_execs: 2, ..SessionConfig::default() }).await;
    let one = session.start(sleep_forever()).await.unwrap();
    let _other = session.start(sleep_forever()).await.unwrap();
    let refused = session.start(print("x")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
    assert!(refused.remedy().is_some_and(|remedy| remedy.contains("max_execs")));
    drop(one);
    settle().await;
    for _ in 0..5 {
        // One after the other, without a pause between them.
        assert!(session.exec(print("x")).await.unwrap().exit.success());
    }
    assert_eq!(session.execs().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_fails_takes_no_place() {
    let (_backend, session) = created(SessionConfig { max_execs: 1, ..SessionConfig::default() }).await;
    let missing = cofferdam_contract::ExecRequest::argv(["/nowhere/no-such-program"]).build().unwrap();
    for _ in 0..3 {
        assert_eq!(session.start(missing.clone()).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert!(session.exec(print("x")).await.unwrap().exit.success());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_nobody_uses_is_closed() {
    let (backend, session) = created(SessionConfig { idle_timeout: 60 * SECOND, ..SessionConfig::default() }).await;
    tokio::time::sleep(50 * SECOND).await;
    session.exec(print("x")).await.unwrap();
    tokio::time::sleep(50 * SECOND).await;
    session.sandbox().write_bytes(&SandboxPath::new("a").unwrap(), "x").await.unwrap();
    tokio::time::sleep(50 * SECOND).await;
    assert!(!session.is_closed());
    tokio::time::sleep(11 * SECOND).await;
    assert!(session.is_closed() && backend.living().is_empty());
    let error = session.start(print("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.message().contains("60s"), "{error}");
    session.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_runs_keeps_a_session_open() {
    let (_backend, session) = created(SessionConfig { idle_timeout: 20 * SECOND, ..SessionConfig::default() }).await;
    let request = sleep_forever().to_builder().timeout(100 * SECOND).build().unwrap();
    let long = session.start(request).await.unwrap();
    tokio::time::sleep(99 * SECOND).await;
    assert!(!session.is_closed());
    assert!(long.exit().await.unwrap().timed_out);
    tokio::time::sleep(19 * SECOND).await;
    assert!(!session.is_closed());
    tokio::time::sleep(22 * SECOND).await;
    assert!(session.is_closed());
}

#[tokio::test(start_paused = true)]
async fn close_and_drop_end_everything() {
    let (backend, session) = created(SessionConfig::default()).await;
    let running = session.start(sleep_forever()).await.unwrap();
    session.close().await.unwrap();
    assert!(running.exit().await.unwrap().cancelled && backend.living().is_empty());
    session.close().await.unwrap();
    assert_eq!(session.start(print("x")).await.unwrap_err().kind(), ErrorKind::Closed);

    let (backend, session) = created(SessionConfig::default()).await;
    let (running, kept) = (session.start(sleep_forever()).await.unwrap(), Arc::clone(session.sandbox()));
    drop(session);
    assert!(running.exit().await.unwrap().cancelled && backend.living().is_empty());
    assert_eq!(kept.start(print("x")).await.unwrap_err().kind(), ErrorKind::Closed);
    settle().await;
    assert_eq!(Arc::strong_count(&kept), 1, "no task holds on to the sandbox");
}

#[tokio::test(start_paused = true)]
async fn a_leased_session_gives_its_place_back() {
    let (_backend, pool) = pool(small(), FaultPlan::none());
    settle().await;
    let session = Session::leased(pool.claim(Spec::default()).await.unwrap(), SessionConfig::default()).unwrap();
    assert!(session.exec(print("x")).await.unwrap().exit.success());
    assert_eq!(pool.metrics().claimed, 1);
    session.close().await.unwrap();
    assert_eq!(pool.metrics().claimed, 0);
    let session = Session::leased(pool.claim(Spec::default()).await.unwrap(), SessionConfig::default()).unwrap();
    drop(session);
    settle().await;
    assert_eq!(pool.metrics().claimed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_session_in_which_nothing_could_run_is_refused() {
    let backend = SimulatedBackend::default();
    for config in [
        SessionConfig { max_execs: 0, ..SessionConfig::default() },
        SessionConfig { idle_timeout: std::time::Duration::ZERO, ..SessionConfig::default() },
    ] {
        let sandbox = backend.create(Spec::default()).await.unwrap();
        assert_eq!(Session::created(sandbox, config).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
