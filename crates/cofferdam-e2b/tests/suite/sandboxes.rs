//! Sandboxes: the specs that are accepted, the requests to E2B, and their lifetimes.

use std::time::Duration;

use cofferdam_contract::{
    Access, Backend, ErrorKind, ExecRequest, Limits, NetworkPolicy, Protection, ProtectionState, RootFs, Spec,
    Workspace,
};
use cofferdam_e2b::{E2bBackend, E2bConfig};

use crate::server::{Fault, LocalE2b};
use crate::support::{backend, config, create, eventually, spec, weaker_spec};

/// Promise (E2B): A spec that E2B cannot satisfy is refused before a VM is created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn specs_that_e2b_cannot_satisfy_are_refused_before_a_vm_is_created() {
    let server = LocalE2b::start().await;
    let backend = backend(&server);
    let policy = NetworkPolicy::Allow { hosts: vec!["example.org:443".to_owned()] };
    let image = RootFs::Image { reference: "python:3.13".to_owned() };
    let host = Workspace::HostDir { path: "/tmp".into(), access: Access::ReadOnly };
    let processes = Limits { processes: Some(3), ..spec().limits().clone() };
    for (changed, kind) in [
        (spec().to_builder().network(policy), ErrorKind::Unsupported),
        (spec().to_builder().root(image), ErrorKind::Unsupported),
        (spec().to_builder().workspace(host), ErrorKind::Unsupported),
        (spec().to_builder().limits(processes), ErrorKind::Unsupported),
        (spec().to_builder().limits(Limits::default()), ErrorKind::WeakerThanRequired),
        (spec().to_builder().attribute("e2b.x", true), ErrorKind::InvalidInput),
    ] {
        let error = backend.create(changed.build().unwrap()).await.expect_err("refused");
        assert!(error.kind() == kind && error.remedy().is_some(), "{error:?}");
    }
    assert_eq!(server.state.faults.seen(), [], "a request was sent");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn posture_marks_only_measured_rows_as_probed() {
    let server = LocalE2b::start().await;
    let limits = Limits { wall_time: Duration::from_secs(60), ..Limits::default() };
    let sandbox = backend(&server).create(weaker_spec().to_builder().limits(limits).build().unwrap()).await.unwrap();
    let row = |protection| sandbox.posture().get(protection).expect("a row");
    // The local server's sandboxes see all memory of the host.
    assert_eq!(row(Protection::Memory).state, ProtectionState::WeakerThanRequired);
    assert!(row(Protection::Memory).probed && row(Protection::User).probed && row(Protection::Workspace).probed);
    assert_eq!(row(Protection::Network).state, ProtectionState::Enforced);
    assert!(!row(Protection::Network).probed && !row(Protection::WallTime).probed);
    assert_eq!(row(Protection::Processes).state, ProtectionState::Absent);
    sandbox.close().await.expect("closed");
    // A measurement that falls short leaves no VM.
    let limits = Limits { memory: Limits::default().memory, ..spec().limits().clone() };
    let error = backend(&server).create(Spec::builder().limits(limits).build().unwrap()).await.expect_err("weaker");
    assert!(error.kind() == ErrorKind::WeakerThanRequired && error.to_string().contains("memory"), "{error}");
    server.stop().await;
}

/// Promise (E2B): The key goes to the API alone, and the token of a sandbox to its agent alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_goes_to_the_api_and_the_token_to_the_agent() {
    let server = LocalE2b::start().await;
    let labelled = spec().to_builder().label("job", "7").build().unwrap();
    let sandbox = backend(&server).create(labelled).await.expect("created");
    let metadata = server.metadata(sandbox.id().as_str());
    assert_eq!((&metadata["job"], &metadata["cofferdam-tenant"]), (&"7".into(), &"default".into()));
    assert!(sandbox.exec(ExecRequest::argv(["true"]).build().unwrap()).await.unwrap().exit.success());
    assert_eq!(sandbox.usage().await.unwrap().memory_bytes, Some(200 << 20), "the newest measurement");
    sandbox.close().await.expect("closed");
    let seen = server.state.faults.seen();
    assert!(seen.len() > 5, "{seen:?}");
    for one in seen {
        let is_agents = one.path.contains("process.Process") || one.path.contains("/files");
        assert_eq!((one.has_key, one.has_token), (!is_agents, is_agents), "{one:?}");
    }
    server.stop().await;
}

/// Promise (E2B): A sandbox lives while it is used here, and ends by its time when its owner is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lifetime_is_extended_while_a_sandbox_is_used() {
    let server = LocalE2b::start().await;
    let lifetime = Duration::from_secs(15);
    let config = E2bConfig { lifetime, ..config(&server) };
    let sandbox = E2bBackend::new(config).unwrap().create(spec()).await.expect("created");
    assert!(server.left(sandbox.id().as_str()) <= lifetime);
    eventually(async || server.state.faults.seen().iter().any(|seen| seen.path.ends_with("/timeout"))).await;
    assert!(server.left(sandbox.id().as_str()) > lifetime * 3 / 4);
    sandbox.close().await.expect("closed");
    server.stop().await;
}

/// Promise (E2B): A pause whose answer is lost does not end the sandbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_without_an_answer_does_not_end_the_sandbox() {
    let server = LocalE2b::start().await;
    let sandbox = create(&server).await;
    let handle = sandbox.start(ExecRequest::shell("sleep 2; exit 7").build().unwrap()).await.expect("started");
    // The request is repeated, and E2B reports that the sandbox is paused.
    server.state.faults.add("/pause", Fault::Lost);
    sandbox.pause().await.expect("paused");
    sandbox.resume().await.expect("resumed");
    // No answer arrives, and the state shows that the sandbox is paused.
    let unavailable = |count: usize| {
        for _ in 0..count {
            server.state.faults.add("/pause", Fault::Status(503, "not now"));
        }
    };
    server.state.faults.add("/pause", Fault::Lost);
    unavailable(3);
    sandbox.pause().await.expect("paused");
    sandbox.resume().await.expect("resumed");
    // No request arrives, and the state shows that the sandbox runs.
    unavailable(4);
    let error = sandbox.pause().await.expect_err("not paused");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(handle.exit().await.expect("it ends").code, 7);
    sandbox.close().await.expect("closed");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_reports_valid_and_invalid_keys() {
    let server = LocalE2b::start().await;
    let good = cofferdam_e2b::doctor(config(&server)).await;
    assert_eq!(good[0].state, cofferdam_contract::FindingState::Ok, "{good:?}");
    let wrong = E2bConfig { key: cofferdam_e2b::Key::new("e2b_wrong").unwrap(), ..config(&server) };
    let bad = cofferdam_e2b::doctor(wrong).await;
    assert_eq!(bad[0].state, cofferdam_contract::FindingState::Missing, "{bad:?}");
    assert!(bad[0].remedy.as_deref().is_some_and(|remedy| remedy.contains("E2B_API_KEY")), "{bad:?}");
    drop(create(&server).await);
    eventually(async || server.living().is_empty()).await;
    server.stop().await;
}
