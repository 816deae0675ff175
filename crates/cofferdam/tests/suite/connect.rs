//! Connections of the library to servers in process sandboxes.

use std::sync::Arc;

use cofferdam::{
    Access, Backend, Connection, ErrorKind, ExecHandle, ExecRequest, Limits, OutputEvent, Spec, Workspace, registry,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cli::published::ECHO;

/// The bound of the process backend.
const MAX_CONNECTIONS: usize = 64;

fn process() -> Arc<dyn Backend> {
    registry::backend("process").expect("the backend is built in")
}

/// Returns a spec that every host can enforce.
fn unlimited(workspace: Workspace) -> Spec {
    let limits = Limits { memory: None, cpu_time: None, disk: None, pids: None, ..Limits::default() };
    Spec::builder().limits(limits).workspace(workspace).build().expect("it is valid")
}

fn server() -> ExecRequest {
    ExecRequest::argv(["python3", "-c", ECHO]).build().expect("it is valid")
}

/// Waits until the server listens.
async fn ready(server: &ExecHandle) {
    match server.output().next().await {
        Some(OutputEvent::Chunk(chunk)) => assert_eq!(chunk.data, "ready\n"),
        other => panic!("{other:?}"),
    }
}

async fn echo(connection: &mut Connection) {
    connection.write_all(b"word").await.expect("it is connected");
    let mut word = [0; 4];
    connection.read_exact(&mut word).await.expect("it is connected");
    assert_eq!(&word, b"word");
}

#[tokio::test]
async fn each_kind_of_process_sandbox_can_be_connected() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().canonicalize().expect("it exists");
    let backend = process();
    for workspace in [Workspace::default(), Workspace::HostDir { path, access: Access::ReadOnly }] {
        let spec = unlimited(workspace);
        let sandbox = backend.create(spec.clone()).await.expect("it is created");
        let handle = sandbox.start(server()).await.expect("it starts");
        ready(&handle).await;
        echo(&mut sandbox.connect(8000).await.expect("it is connected")).await;
        sandbox.close().await.expect("it closes");

        let (sandbox, handle) = backend.start_one(spec, server()).await.expect("it starts");
        ready(&handle).await;
        let mut connection = sandbox.connect(8000).await.expect("it is connected");
        echo(&mut connection).await;
        // The sandbox ends with its command.
        handle.close().await.expect("it is killed");
        assert_eq!(connection.read(&mut [0]).await.unwrap_or(0), 0);
        sandbox.close().await.expect("it closes");
        let error = sandbox.connect(8000).await.map(drop).expect_err("it is closed");
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
}

/// Promise (Network): The connections to a sandbox are bounded, and a closed one makes room for another.
#[tokio::test]
async fn connections_to_a_sandbox_are_bounded() {
    let sandbox = process().create(unlimited(Workspace::default())).await.expect("it is created");
    let handle = sandbox.start(server()).await.expect("it starts");
    ready(&handle).await;
    let mut connections = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut connection = sandbox.connect(8000).await.expect("it is connected");
        echo(&mut connection).await;
        connections.push(connection);
    }
    let error = sandbox.connect(8000).await.map(drop).expect_err("there are too many");
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
    connections.pop();
    echo(&mut sandbox.connect(8000).await.expect("there is room")).await;
    sandbox.close().await.expect("it closes");
}
