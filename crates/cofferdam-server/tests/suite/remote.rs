//! The backend `remote`: sandboxes of a server behind the contract.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_conformance::{Options, Outcome, Target, UnixPrograms, run};
use cofferdam_contract::{Access, Backend, ByteSize, ErrorKind, ExecRequest, Limits, Protection, Spec, Workspace};
use cofferdam_server::remote::{RemoteBackend, RemoteConfig};
use cofferdam_server::{Bounds, Scope};

use crate::support::{Over, Running, start_with};

/// Starts a server whose default is the process backend.
async fn started(over: Over, weaker: BTreeSet<Protection>) -> Running {
    let bounds = Bounds {
        replay: ByteSize::from_mebibytes(16),
        output: ByteSize::from_mebibytes(64),
        running: 200,
        ..crate::support::bounds()
    };
    start_with(over, bounds, |config| {
        config.policy.default_backend = "process".to_owned();
        config.policy.allow_weaker = weaker;
        let none = Limits { cpu_time: None, memory: None, disk: None, pids: None, ..Limits::default() };
        config.policy.max_limits = Limits { processes: None, cpus: None, ..none };
    })
    .await
}

async fn remote(server: &Running) -> RemoteConfig {
    let key = server.key("acme", Scope::ALL).await;
    let ca = Some(server.directory.path().join("cert.pem"));
    RemoteConfig { server: server.url.clone(), key: Some(key), ca, ..RemoteConfig::default() }
}

/// Promise (Conformance suite): The remote backend passes the conformance suite over a real socket with TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_backend_passes_the_conformance_suite() {
    let server = started(Over::Tls, BTreeSet::new()).await;
    let backend = Arc::new(RemoteBackend::connect(&remote(&server).await).await.expect("connected"));
    let report = run(&Target::new(backend, UnixPrograms::default()), &Options::default()).await;
    for case in report.cases.iter().filter(|case| matches!(case.outcome, Outcome::Skipped(_))) {
        println!("{case}");
    }
    let failures: Vec<String> = report.failures().map(ToString::to_string).collect();
    assert!(report.is_success(), "{}\n{}", failures.join("\n"), report.summary());
    let passed = report.cases.iter().filter(|case| case.outcome == Outcome::Passed).count();
    assert!(passed >= 80, "only {passed} cases could be run");
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop().await;
}

/// A proxy that can cut its connections.
struct Proxy {
    port: u16,
    cut: tokio::sync::broadcast::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    async fn to(server: &str) -> Self {
        let to = server.rsplit_once('/').expect("an address").1.to_owned();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (cut, _) = tokio::sync::broadcast::channel(1);
        let cuts = cut.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let (to, mut is_cut) = (to.clone(), cuts.subscribe());
                tokio::spawn(async move {
                    let Ok(mut to) = tokio::net::TcpStream::connect(to).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                        _ = is_cut.recv() => {}
                    }
                });
            }
        });
        Self { port, cut, task }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Promise (Server): A client whose connection is cut loses no output and repeats none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_loses_and_repeats_no_output() {
    let server = started(Over::Tls, BTreeSet::new()).await;
    let proxy = Proxy::to(&server.url).await;
    let config = RemoteConfig { server: format!("https://127.0.0.1:{}", proxy.port), ..remote(&server).await };
    let backend = RemoteBackend::connect(&config).await.expect("connected");
    let sandbox = backend.create(spec()).await.expect("created");
    let script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; sleep 0.01; done; exit 7";
    let handle = sandbox.start(ExecRequest::shell(script).build().unwrap()).await.expect("started");
    let cutting = async {
        let mut cuts = 0;
        while handle.try_exit().is_none() {
            tokio::time::sleep(Duration::from_millis(150)).await;
            cuts += usize::from(proxy.cut.send(()).is_ok());
        }
        cuts
    };
    let (completed, cuts) = tokio::join!(cofferdam_contract::collect(&handle), cutting);
    let completed = completed.expect("it ends");
    let expected: String = (1..=300).map(|number| format!("line {number}\n")).collect();
    assert_eq!((completed.exit.code, &*completed.stdout), (7, expected.as_bytes()));
    assert!(cuts >= 5, "{cuts}");
    sandbox.close().await.expect("closed");
    server.stop().await;
}

/// Promise (Server): What a client drops ends on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_client_objects_end_on_the_server() {
    let server = started(Over::Tls, BTreeSet::new()).await;
    let config = remote(&server).await;
    let backend = RemoteBackend::connect(&config).await.expect("connected");
    let client = server.with_key(config.key.as_deref());
    let state = async |what: &str| crate::support::get(&client, what).await.expect("an answer");
    let sandbox = backend.create(spec()).await.expect("created");
    let handle = sandbox.start(ExecRequest::argv(["sleep", "1000"]).build().unwrap()).await.expect("started");
    let execs = format!("/v1/sandboxes/{}/execs", sandbox.id().as_str());
    assert_eq!(state(&execs).await["execs"][0]["state"], "running");
    drop(handle);
    eventually(async || state(&execs).await["execs"][0]["state"] == "ended").await;
    // A create that is given up leaves nothing either.
    let given_up = tokio::time::timeout(Duration::from_millis(1), backend.create(spec())).await;
    assert!(given_up.is_err() || given_up.is_ok_and(|created| created.is_ok()));
    drop(sandbox);
    eventually(async || state("/v1/sandboxes").await["sandboxes"] == serde_json::json!([])).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_to_connect_name_the_reason() {
    let server = started(Over::Tls, BTreeSet::new()).await;
    let good = remote(&server).await;
    for (config, kind, text) in [
        (RemoteConfig { key: Some("cfd_nonsense".to_owned()), ..good.clone() }, ErrorKind::Denied, "key"),
        (RemoteConfig { ca: None, ..good.clone() }, ErrorKind::Unavailable, "certificate"),
        (RemoteConfig { backend: Some("vm".to_owned()), ..good.clone() }, ErrorKind::NotFound, "no backend 'vm'"),
        (RemoteConfig { server: "https://127.0.0.1:1".to_owned(), ..good.clone() }, ErrorKind::Unavailable, "connect"),
        (RemoteConfig { server: "ftp://x".to_owned(), ..good.clone() }, ErrorKind::InvalidInput, "address"),
    ] {
        let error = RemoteBackend::connect(&config).await.expect_err("refused");
        let shown = format!("{error} {:?} {:?}", error.remedy(), std::error::Error::source(&error));
        assert!(error.kind() == kind && shown.contains(text), "{shown}");
    }
    let backend = RemoteBackend::connect(&good).await.expect("connected");
    let mounted = Spec::builder().workspace(Workspace::HostDir { path: "/tmp".into(), access: Access::ReadOnly });
    let error = backend.create(mounted.build().unwrap()).await.expect_err("refused");
    assert!(error.kind() == ErrorKind::Unsupported && error.remedy().is_some(), "{error:?}");
    server.stop().await;
}

/// Answers all requests with a document.
async fn stand_in(status: u16, body: &'static str) -> (String, tokio::task::JoinHandle<()>) {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let answer = hyper::service::service_fn(move |_| async move {
        let answer = hyper::Response::builder().status(status).header("content-type", "application/json");
        answer.body(http_body_util::Full::new(bytes::Bytes::from_static(body.as_bytes())))
    });
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
        }
    });
    (url, task)
}

/// Promise (Server): A client of a server with another version of the API names both versions and the remedy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_version_is_named() {
    let missing = r#"{"type":"urn:cofferdam:error:not-found","title":"x","status":404,"detail":"there is no such endpoint",
        "kind":"not-found","fault":"caller","retry":"never","operation":"route"}"#;
    let own = env!("CARGO_PKG_VERSION");
    for (status, body, speaks) in [
        (200, r#"{"version":"9.1\u001b","api":["v2","v3"]}"#, "(version 9.1\\u{1b}) speaks API v2, v3"),
        (404, missing, "(version unknown) speaks another API"),
    ] {
        let (server, task) = stand_in(status, body).await;
        let config = RemoteConfig { server, ..RemoteConfig::default() };
        let error = RemoteBackend::connect(&config).await.expect_err("refused");
        task.abort();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let expected = format!("the server {speaks}, this client (version {own}) speaks API v1");
        assert_eq!(error.message(), expected);
        assert_eq!(error.remedy(), Some("use a client and a server of one release"));
    }
}

fn spec() -> Spec {
    let limits = Limits { cpu_time: None, memory: None, disk: None, pids: None, ..Limits::default() };
    Spec::builder().limits(limits).build().expect("valid")
}

async fn eventually(mut is_true: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not happen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
