//! Faults occur as planned, and identically in each run.
#![forbid(unsafe_code)]

use std::time::Duration;

use cofferdam_contract::{
    Backend, ErrorKind, ExecRequest, OutputStream, Protection, ProtectionState, Sandbox, SandboxPath, Spec,
};
use cofferdam_simulated::{ExecFault, FaultPlan, FaultPoint, Program, SimulatedBackend, SimulatedConfig, Step};
use std::sync::Arc;

fn lines(count: u64) -> ExecRequest {
    let line = Step::Print { stream: OutputStream::Stdout, text: "line\n".into() };
    Program::new([Step::Repeat { times: Some(count), steps: vec![line] }]).request().build().unwrap()
}

async fn sandbox(plan: FaultPlan) -> Arc<dyn Sandbox> {
    SimulatedBackend::with_faults(plan).create(Spec::default()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_nth_create_and_start_fail() {
    let plan = FaultPlan::none().fail(FaultPoint::Create, 2, ErrorKind::Unavailable).fail(
        FaultPoint::Start,
        1,
        ErrorKind::ResourceExhausted,
    );
    let backend = SimulatedBackend::with_faults(plan);
    let sandbox = backend.create(Spec::default()).await.unwrap();
    assert_eq!(backend.create(Spec::default()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(backend.create(Spec::default()).await.is_ok());
    assert_eq!(sandbox.exec(lines(1)).await.unwrap_err().kind(), ErrorKind::ResourceExhausted);
    assert_eq!(sandbox.exec(lines(1)).await.unwrap().stdout, "line\n");
}

/// Promise (Process isolation): A failed close does not hide the reason of a failed command.
#[tokio::test(start_paused = true)]
async fn a_failed_close_does_not_hide_why_the_command_failed() {
    let close_fails = || FaultPlan::none().fail(FaultPoint::Close, 1, ErrorKind::Internal);
    let start_fails = || close_fails().fail(FaultPoint::Start, 1, ErrorKind::ResourceExhausted);
    let exit_fails = || close_fails().exec(1, ExecFault::FailExit(ErrorKind::Io));
    for (plan, kind) in [(start_fails(), ErrorKind::ResourceExhausted), (exit_fails(), ErrorKind::Io)] {
        let error = SimulatedBackend::with_faults(plan).run(Spec::default(), lines(1)).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.context().any(|(key, why)| key == "close" && !why.is_empty()), "{error}");
    }
    let error = SimulatedBackend::with_faults(start_fails()).start_one(Spec::default(), lines(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    let error = SimulatedBackend::with_faults(close_fails()).run(Spec::default(), lines(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
}

#[tokio::test(start_paused = true)]
async fn execs_are_killed_cut_and_failed() {
    let plan = FaultPlan::none()
        .exec(1, ExecFault::KillAfterChunks(3))
        .exec(2, ExecFault::DropOutputAfterChunks(2))
        .exec(3, ExecFault::FailExit(ErrorKind::Io));
    let sandbox = sandbox(plan).await;
    let killed = sandbox.exec(lines(10)).await.unwrap();
    assert_eq!((killed.exit.signal, killed.exit.cancelled, killed.stdout.len()), (Some(9), false, 15));
    let cut = sandbox.exec(lines(10)).await.unwrap();
    assert_eq!((cut.exit.code, cut.exit.truncated, cut.stdout.len()), (0, false, 10));
    assert_eq!(sandbox.exec(lines(10)).await.unwrap_err().kind(), ErrorKind::Io);
    assert!(sandbox.exec(lines(10)).await.unwrap().exit.success());
}

#[tokio::test(start_paused = true)]
async fn a_lost_sandbox_takes_its_execs_with_it() {
    let sandbox = sandbox(FaultPlan::none().exec(2, ExecFault::LoseSandboxAfterChunks(1))).await;
    let sleeper = sandbox.start(Program::new([Step::SleepForever]).request().build().unwrap()).await.unwrap();
    assert_eq!(sandbox.exec(lines(5)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(sleeper.exit().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(sandbox.usage().await.unwrap_err().kind(), ErrorKind::Unavailable);
    sandbox.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_delay_passes_on_the_paused_clock() {
    let hour = Duration::from_secs(3600);
    let sandbox = sandbox(FaultPlan::none().delay(FaultPoint::WriteFile, 1, hour)).await;
    let start = tokio::time::Instant::now();
    sandbox.write_bytes(&SandboxPath::new("a").unwrap(), "x").await.unwrap();
    assert!(start.elapsed() >= hour);
}

/// Promise (Conformance suite): A seed injects the same faults each time.
#[tokio::test(start_paused = true)]
async fn a_seed_gives_the_same_faults_again() {
    let run = |seed| async move {
        let backend = SimulatedBackend::with_faults(FaultPlan::seeded(seed, 300, ErrorKind::Io));
        let mut failed = Vec::new();
        for _ in 0..50 {
            failed.push(backend.create(Spec::default()).await.is_err());
        }
        failed
    };
    assert_eq!(run(1).await, run(1).await);
    assert_ne!(run(1).await, run(2).await);
}

#[tokio::test(start_paused = true)]
async fn a_pretended_shortfall_is_refused_unless_named() {
    let shortfalls = [(Protection::Memory, ProtectionState::Absent)].into();
    let backend = SimulatedBackend::new(SimulatedConfig { shortfalls, ..SimulatedConfig::default() });
    assert_eq!(backend.create(Spec::default()).await.unwrap_err().kind(), ErrorKind::WeakerThanRequired);
    let spec = Spec::builder().allow_weaker(Protection::Memory).build().unwrap();
    assert!(backend.create(spec).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn warm_and_claim_fail_and_leave_nothing() {
    let plan = FaultPlan::none().fail(FaultPoint::Warm, 1, ErrorKind::Unavailable).fail(
        FaultPoint::Claim,
        1,
        ErrorKind::ResourceExhausted,
    );
    let backend = SimulatedBackend::with_faults(plan);
    assert_eq!(backend.prepare(Spec::default()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let warm = backend.prepare(Spec::default()).await.unwrap();
    assert_eq!(backend.living().len(), 1);
    assert_eq!(warm.claim(Spec::default()).await.unwrap_err().kind(), ErrorKind::ResourceExhausted);
    assert_eq!(backend.living().len(), 0);
    let sandbox = backend.prepare(Spec::default()).await.unwrap().claim(Spec::default()).await.unwrap();
    assert!(backend.living().contains(sandbox.id()));
    drop(sandbox);
    assert_eq!(backend.living().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_sandbox_that_dies_is_not_alive() {
    let hour = Duration::from_secs(3600);
    let backend = SimulatedBackend::with_faults(FaultPlan::none().die_waiting(1, hour));
    let (mortal, other) =
        (backend.prepare(Spec::default()).await.unwrap(), backend.prepare(Spec::default()).await.unwrap());
    assert!(mortal.is_alive());
    tokio::time::advance(hour).await;
    assert!(!mortal.is_alive() && other.is_alive());
    let error = mortal.claim(Spec::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, cofferdam_contract::Retry::MayHelp));
    other.close().await.unwrap();
    assert_eq!(backend.living().len(), 0);
}
