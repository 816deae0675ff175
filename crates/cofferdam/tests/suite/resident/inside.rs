//! A server in a thread of the test, with a client of the library.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cofferdam::engine::{InterpretersConfig, PoolConfig, PreparedBackend};
use cofferdam::resident::{
    Connection, Requirements, ResidentBackend, ResidentConfig, ResidentServer, SocketDirectory, Surroundings,
};
use cofferdam::{
    Access, Backend, ByteSize, Capability, ErrorKind, ExecRequest, OutputEvent, Protection, Result, Spec, Workspace,
    registry,
};
use tokio::sync::oneshot;

use super::leaving_nothing;

const BUILD: &str = "tests";

/// A server in a thread.
pub struct Inside {
    end: oneshot::Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Inside {
    /// Starts a server that listens in this directory.
    pub fn start(directory: &Path) -> Self {
        let (started, listening) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let directory: PathBuf = directory.to_owned();
        let thread = std::thread::spawn(move || {
            block_on(async {
                let config = ResidentConfig::new(BUILD, Surroundings::default());
                let claimed = SocketDirectory::claim(&directory)?;
                let (backend, none) = (registry::backend("process")?, InterpretersConfig::new([]));
                let backend = PreparedBackend::new(backend, Spec::default(), PoolConfig::default(), none)?;
                let server = ResidentServer::new(claimed, Arc::new(backend), config, None)?;
                started.send(()).expect("the test waits");
                server.run(async { drop(ended.await) }, async || Ok(())).await
            })
        });
        listening.recv().expect("the server listens");
        Self { end, thread }
    }

    /// Connects to the server in this directory.
    pub fn connect(directory: &Path) -> Result<ResidentBackend, String> {
        let requirements = Requirements {
            build: BUILD.to_owned(),
            surroundings: Surroundings::default(),
            backend: "process".to_owned(),
        };
        let text = |error: cofferdam::Error| error.to_string();
        let socket_directory =
            SocketDirectory::open(directory.to_owned()).map_err(text)?.ok_or("the server is gone")?;
        let connection = Connection::for_run(&socket_directory, &requirements)
            .map_err(text)?
            .map_err(|refusal| refusal.to_string())?;
        Ok(ResidentBackend::from(connection))
    }

    /// Stops the server.
    pub fn end(self) -> Result<()> {
        drop(self.end);
        self.thread.join().expect("the server does not panic")
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

fn with_server(test: impl AsyncFnOnce(&Path)) {
    leaving_nothing(|| {
        let base = tempfile::tempdir().expect("a directory");
        let directory = base.path().join("cofferdam");
        let server = Inside::start(&directory);
        block_on(test(&directory));
        server.end().expect("it ends");
    });
}

fn spec() -> Spec {
    use cofferdam::Protection as P;
    let weaker = [P::Memory, P::CpuTime, P::Processes, P::Disk];
    weaker.into_iter().fold(Spec::builder(), |spec, item| spec.allow_weaker(item)).build().expect("valid")
}

/// Promise (Server): A client that does not read loses output, learns how much, and does not delay its program.
#[test]
fn slow_reader_loses_output_and_learns_how_much() {
    const WRITTEN: u64 = 16 << 20;
    with_server(async |directory| {
        let sandbox = Inside::connect(directory).expect("it exists").create(spec()).await.expect("a sandbox");
        let request = ExecRequest::shell(format!("head -c {WRITTEN} /dev/zero"))
            .max_output(ByteSize::from_bytes(2 * WRITTEN))
            .output_buffer(ByteSize::from_bytes(100_000));
        let handle = sandbox.start(request.build().expect("valid")).await.expect("it starts");
        let mut output = handle.output();
        // This thread does not read in the meantime, but the program continues.
        std::thread::sleep(Duration::from_secs(1));
        let (mut got, mut lost) = (0, 0);
        while let Some(event) = output.next().await {
            match event {
                OutputEvent::Chunk(chunk) => got += chunk.data.len() as u64,
                OutputEvent::Lost { bytes, .. } => lost += bytes,
            }
        }
        let exit = handle.exit().await.expect("it ended");
        assert!(lost > 0 && got + lost == WRITTEN, "{got} came and {lost} were lost");
        assert_eq!((exit.usage.output_bytes, exit.truncated), (WRITTEN, false));
        sandbox.close().await.expect("it closes");
    });
}

/// Promise (Server): The server refuses a capability that the client does not offer, and serves one run for each
/// connection.
#[test]
fn server_refuses_capabilities_that_the_client_lacks() {
    with_server(async |directory| {
        let backend = Inside::connect(directory).expect("it exists");
        assert!(!backend.capabilities().contains(&Capability::MultipleExecs));
        let kind = |result: Result<()>| result.expect_err("it is not offered").kind();
        assert_eq!(kind(backend.prepare(spec()).await.map(drop)), ErrorKind::Unsupported);
        let sandbox = backend.create(spec()).await.expect("a sandbox");
        assert_eq!(kind(backend.create(spec()).await.map(drop)), ErrorKind::ResourceExhausted);
        assert!(sandbox.posture().items().is_empty());
        let request = ExecRequest::shell("sleep 1000").build().expect("valid");
        let handle = sandbox.start(request.clone()).await.expect("it starts");
        assert!(!sandbox.posture().items().is_empty());
        assert_eq!(kind(sandbox.start(request).await.map(drop)), ErrorKind::Unsupported);
        assert_eq!(kind(sandbox.usage().await.map(drop)), ErrorKind::Unsupported);
        sandbox.close().await.expect("it closes");
        assert!(handle.exit().await.expect("it ended").cancelled);
    });
}

#[test]
fn a_directory_that_is_exchanged_after_the_client_opened_it_is_never_another_one() {
    let temp = tempfile::tempdir().expect("a directory");
    let top = temp.path().canonicalize().expect("a path");
    let make = |name: &str| {
        let path = top.join(name);
        std::fs::create_dir(&path).expect("created");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("opened to guests");
        path
    };
    let (named, other) = (make("named"), make("other"));
    let mounted = Workspace::HostDir { path: named.clone(), access: Access::ReadWrite };
    let spec = spec().to_builder().workspace(mounted).allow_weaker(Protection::Disk).build().expect("valid");
    let exchanges: [(&str, &dyn Fn()); 3] = [
        ("nothing", &|| {}),
        ("another in its place", &|| {
            std::fs::rename(&named, top.join("aside")).expect("ours");
            std::fs::rename(&other, &named).expect("ours");
        }),
        // File systems reuse the inode number of a removed directory.
        ("a new one in its place", &|| {
            std::fs::remove_dir(&named).expect("it is empty");
            make("named");
        }),
    ];
    with_server(async |directory| {
        for (what, exchange) in exchanges {
            let sandbox = Inside::connect(directory).expect("it exists").create(spec.clone()).await.expect("opened");
            exchange();
            let begun = sandbox.start(ExecRequest::shell("echo x > written").build().expect("valid")).await;
            if what == "nothing" {
                assert!(begun.expect("it starts").exit().await.expect("it ends").success());
                sandbox.close().await.expect("it closes");
                std::fs::remove_file(named.join("written")).expect("the guest wrote it");
            } else {
                let error = begun.expect_err("it is another one");
                assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: {error}");
                assert!(std::fs::read_dir(&named).expect("there").next().is_none(), "{what}: the guest wrote there");
            }
        }
    });
}
