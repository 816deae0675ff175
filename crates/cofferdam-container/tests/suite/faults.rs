//! Tests of failures: a clear error, no hang, and no leftovers.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::query_parameters::{
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder,
};
use cofferdam_container::{ContainerBackend, ContainerConfig, Deadlines};
use cofferdam_contract::{Backend, Error, ErrorKind, ExecRequest, Limits, RootFs, Sandbox};
use rustix::process::Signal;

use crate::own::OwnEngine;
use crate::support::{self, TestEngine, unique};

/// The time limit that detects a hang.
const HANG_TIMEOUT: Duration = Duration::from_secs(90);

async fn promptly<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG_TIMEOUT, work).await.expect("no hang")
}

fn forever() -> ExecRequest {
    ExecRequest::argv(["sleep", "1000000"]).timeout(Duration::from_secs(3600)).build().unwrap()
}

/// Creates a sandbox with a unique label. Returns it and its container's id.
async fn labelled(engine: &TestEngine, backend: &ContainerBackend) -> (Arc<dyn Sandbox>, String) {
    let tag = unique("tag");
    let spec = support::spec().label("tag", &tag).build().unwrap();
    let sandbox = backend.create(spec).await.expect("a sandbox");
    let filters = HashMap::from([("label".to_owned(), vec![format!("dev.cofferdam.label.tag={tag}")])]);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let found = engine.negotiated().await.list_containers(Some(options)).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    (sandbox, found[0].id.clone().unwrap())
}

fn ended(error: &Error, why: &str) {
    assert!(error.to_string().contains(why), "{error}");
    assert!(error.remedy().is_some(), "{error:?}");
}

/// Promise (Containers): The execs of a container that another process removes end with that reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_removed_by_another_process_ends_execs_with_the_reason() {
    for engine in support::engines("container_removed_by_another_process_ends_execs_with_the_reason") {
        let backend = engine.backend();
        for by_kill in [false, true] {
            let (sandbox, id) = labelled(&engine, &backend).await;
            let handle = sandbox.start(forever()).await.unwrap();
            let docker = engine.negotiated().await;
            if by_kill {
                let options = KillContainerOptionsBuilder::default().signal("KILL").build();
                // Podman may remove a killed container before it answers. The kill is checked below.
                match docker.kill_container(&id, Some(options)).await {
                    Ok(()) => {}
                    Err(error) => assert!(error.to_string().contains("no such container"), "{error}"),
                }
            } else {
                let options = RemoveContainerOptionsBuilder::default().force(true).build();
                docker.remove_container(&id, Some(options)).await.unwrap();
            }
            let error = promptly(handle.exit()).await.expect_err("the program was not stopped on request");
            ended(&error, "by another program");
            let error = promptly(sandbox.start(forever())).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            promptly(sandbox.close()).await.expect("a removed container is closed");
        }
        assert_eq!(backend.leftovers(), 0);
    }
}

/// Promise (Containers): The error for a deleted image has a remedy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_for_a_deleted_image_has_a_remedy() {
    for engine in support::engines("error_for_a_deleted_image_has_a_remedy") {
        let backend = engine.backend();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "x").unwrap();
        let name = format!("cofferdam-test/{}:v1", unique("deleted"));
        backend.import_image(directory.path(), &name).await.unwrap();
        let spec = support::spec().root(RootFs::Image { reference: name.clone() }).build().unwrap();
        // An image without any program is valid.
        let sandbox = backend.create(spec.clone()).await.expect("a sandbox of it");
        let error = sandbox.start(ExecRequest::argv(["sh"]).build().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        sandbox.close().await.unwrap();
        let options = RemoveImageOptionsBuilder::default().force(true).build();
        engine.negotiated().await.remove_image(&name, Some(options), None).await.unwrap();
        let error = backend.create(spec).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("--pull missing")), "{error:?}");
        let config = ContainerConfig { image: "cofferdam-test/never-made:v1".to_owned(), ..engine.config() };
        let error = ContainerBackend::new(&config).unwrap().create(support::spec().build().unwrap()).await.unwrap_err();
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("image build")), "{error:?}");
    }
}

/// Promise (Containers): A hundred containers run at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_at_once_all_run() {
    let test = "a_hundred_at_once_all_run";
    let Some(engine) = support::docker(test) else { return };
    let before = engine.census().await;
    let backend = engine.backend();
    let limits = Limits { memory: Some(cofferdam_contract::ByteSize::from_mebibytes(32)), ..Limits::default() };
    let spec = support::spec().limits(limits).build().unwrap();
    let runs: Vec<_> = (0..100)
        .map(|_| {
            let (backend, spec) = (backend.clone(), spec.clone());
            tokio::spawn(async move { backend.run(spec, ExecRequest::argv(["true"]).build().unwrap()).await })
        })
        .collect();
    for run in runs {
        let (done, _) =
            tokio::time::timeout(Duration::from_secs(600), run).await.expect("no hang").unwrap().expect("it runs");
        assert!(done.exit.success(), "{:?}", done.exit);
    }
    let left = support::left(&engine, &before).await;
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_is_given_up_leaves_nothing() {
    for engine in support::engines("a_create_that_is_given_up_leaves_nothing") {
        let backend = engine.backend();
        backend.create(support::spec().build().unwrap()).await.unwrap().close().await.unwrap();
        let before = engine.census().await;
        for after in [1, 10, 30, 60, 100, 150, 250] {
            let making = backend.create(support::spec().build().unwrap());
            let _ = tokio::time::timeout(Duration::from_millis(after), making).await;
        }
        let left = support::left(&engine, &before).await;
        assert!(left.is_empty(), "{}: {left:?}", engine.name);
    }
}

/// The supervisor process of the next test. Creates a sandbox, prints its id, and waits for a kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_a_sandbox_and_waits() {
    let Some(socket) = std::env::var_os("COFFERDAM_TEST_KILLED") else { return };
    let engine = TestEngine { name: "killed", socket: socket.into(), runtime: None };
    let sandbox = engine.backend().create(support::spec().label("tag", "killed").build().unwrap()).await.unwrap();
    let _handle = sandbox.start(forever()).await.unwrap();
    println!("CREATED {}", sandbox.id());
    tokio::time::sleep(Duration::from_secs(3600)).await;
}

/// Promise (Containers): A killed supervisor leaves no container.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_supervisor_leaves_no_container() {
    use std::io::{BufRead, BufReader};
    for engine in support::engines("a_killed_supervisor_leaves_no_container") {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::creates_a_sandbox_and_waits", "--nocapture"])
            .env("COFFERDAM_TEST_KILLED", &engine.socket)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let created =
            lines.find_map(|line| Some(line.split_once("CREATED ")?.1.to_owned())).expect("it creates a sandbox");
        child.kill().unwrap();
        child.wait().unwrap();
        let docker = engine.negotiated().await;
        let begun = Instant::now();
        while docker.inspect_container(&created, None).await.is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{}: {created} is still there", engine.name);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Promise (Containers): A killed engine daemon causes no hang, and no container remains when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_killed_is_no_hang_and_leaves_nothing_when_it_is_back() {
    let test = "a_daemon_that_is_killed_is_no_hang_and_leaves_nothing_when_it_is_back";
    let Some(own) = OwnEngine::start(test, "2g").await else { return };
    let backend = own.engine.backend();
    backend.create(support::spec().build().unwrap()).await.unwrap().close().await.unwrap();
    let before = own.engine.census().await;
    let sandbox = backend.create(support::spec().build().unwrap()).await.unwrap();
    let handle = sandbox.start(forever()).await.unwrap();
    own.signal(Signal::KILL);
    let error = promptly(handle.exit()).await.expect_err("the program was not stopped on request");
    ended(&error, "the container engine went away");
    let error = promptly(backend.create(support::spec().build().unwrap())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    ended(&error, "engine");
    let error = promptly(sandbox.close()).await.expect_err("the container cannot be removed now");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(backend.leftovers(), 1);
    own.start_again().await;
    // The next create finds the engine again, and removes the leftover container.
    let after = promptly(backend.create(support::spec().build().unwrap())).await.expect("the engine is back");
    let done = after.exec(ExecRequest::argv(["true"]).build().unwrap()).await.unwrap();
    assert!(done.exit.success());
    after.close().await.unwrap();
    let begun = Instant::now();
    while backend.leftovers() > 0 {
        assert!(begun.elapsed() < HANG_TIMEOUT, "it is not removed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    promptly(sandbox.close()).await.expect("the container is gone");
    let left = support::left(&own.engine, &before).await;
    assert!(left.is_empty(), "{left:?}");
}

/// Promise (Containers): An engine daemon that stops answering causes no hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_stops_answering_is_no_hang() {
    let test = "a_daemon_that_stops_answering_is_no_hang";
    let Some(own) = OwnEngine::start(test, "2g").await else { return };
    let short = Duration::from_secs(3);
    let deadlines = Deadlines { connect: short, call: short, change: short, stall: short };
    let backend = ContainerBackend::new(&ContainerConfig { deadlines, ..own.engine.config() }).unwrap();
    let sandbox = backend.create(support::spec().build().unwrap()).await.unwrap();
    own.signal(Signal::STOP);
    let error = promptly(backend.create(support::spec().build().unwrap())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    ended(&error, "gave no answer within 3 s");
    assert!(promptly(sandbox.pause()).await.is_err());
    assert_eq!(promptly(sandbox.close()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    own.signal(Signal::CONT);
    promptly(sandbox.close()).await.expect("the engine answers again");
    assert_eq!(backend.leftovers(), 0);
}

/// Promise (Containers): An error of the engine that comes from a full disk states that reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_of_the_engine_is_reported() {
    let test = "full_disk_of_the_engine_is_reported";
    let Some(own) = OwnEngine::start(test, "1g").await else { return };
    let backend = own.engine.backend();
    backend.create(support::spec().build().unwrap()).await.unwrap().close().await.unwrap();
    let before = own.engine.census().await;
    let filler = own.disk().join("filler");
    let full =
        Command::new("dd").args(["if=/dev/zero", "bs=1M"]).arg(format!("of={}", filler.display())).output().unwrap();
    assert!(!full.status.success(), "the disk is full");
    let error = promptly(backend.create(support::spec().build().unwrap())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    ended(&error, "no space left");
    std::fs::remove_file(&filler).unwrap();
    backend.create(support::spec().build().unwrap()).await.expect("the disk has space again").close().await.unwrap();
    let left = support::left(&own.engine, &before).await;
    assert!(left.is_empty(), "{left:?}");
}
