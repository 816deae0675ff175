//! Spans that the server exports, and the tasks that run now.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cofferdam_server::client::{Client, Content, Event};
use cofferdam_server::{Capacity, OtlpConfig, Scope, ServerConfig};
use cofferdam_simulated::Step;
use serde_json::{Value, json};

use crate::collector::{Behaviour, Collector, attributes, hex};
use crate::support::{Method, Over, Running, bounds, create, exec, get, post, process, send, start, start_with, steps};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

async fn exporting(collector: &Collector, ratio: f64) -> Running {
    let otlp = collector.config().sampled(ratio).unwrap();
    start_with(Over::Socket, bounds(), |config| config.otlp = Some(otlp)).await
}

/// Runs a program, and returns its `TRACEPARENT`.
async fn run(client: &Client) -> Option<String> {
    let exec = json!(steps(vec![Step::PrintEnvironment]));
    let result = post(client, "/v1/runs", json!({ "exec": exec })).await.unwrap();
    let text = result["stdout"]["text"].as_str().unwrap().to_owned();
    text.split('\0').find_map(|variable| variable.strip_prefix("TRACEPARENT=")).map(str::to_owned)
}

/// Waits until a condition holds.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| panic!("{what}"));
}

/// Promise (Server): A request, its create and its exec are spans of the client's trace, and the program's parent is the
/// span of its exec.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_lead_from_the_client_to_the_guest() {
    let collector = Collector::start(Behaviour::Accept).await;
    let server = exporting(&collector, 1.0).await;
    let client = server.client().traced(&traceparent("01"));
    let guest = run(&client).await.expect("the program is part of the trace");
    let box_id = create(&client, json!({ "name": "box" })).await;
    let failing = exec(&client, "box", &steps(vec![Step::Exit(3)])).await.unwrap();
    get(&client, &format!("/v1/sandboxes/box/execs/{}/wait", failing.id)).await.unwrap();
    get(&client, "/v1/sandboxes/none").await.unwrap_err();
    server.stop().await;

    let resource = collector.resource();
    assert_eq!(resource["service.name"], "cofferdam");
    let request = collector.only("POST /v1/runs");
    assert_eq!((hex(&request.trace_id), hex(&request.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    let own = attributes(&request.attributes);
    assert_eq!((&*own["http.request.method"], &*own["http.route"]), ("POST", "/v1/runs"));
    assert_eq!((&*own["http.response.status_code"], &*own["cofferdam.tenant"]), ("200", "default"));
    assert_eq!(request.kind, 2, "the kind of servers");
    let in_run = |name: &str| {
        let mut found = collector.named(name);
        found.retain(|span| span.parent_span_id == request.span_id);
        assert_eq!(found.len(), 1, "{name}");
        found.remove(0)
    };
    let (created, ran) = (in_run("create"), in_run("exec"));
    assert_eq!(guest, format!("00-{TRACE}-{}-01", hex(&ran.span_id)));
    assert_eq!(attributes(&created.attributes)["cofferdam.backend"], "simulated");
    assert_eq!(attributes(&ran.attributes)["process.exit.code"], "0");

    let started = collector.only("POST /v1/sandboxes/{sandbox}/execs");
    let failed = collector.named("exec").into_iter().find(|span| span.parent_span_id == started.span_id).unwrap();
    let own = attributes(&failed.attributes);
    assert_eq!((&own["cofferdam.exec.id"], &own["cofferdam.sandbox.id"]), (&failing.id, &box_id));
    assert_eq!((&*own["process.exit.code"], &*own["error.type"]), ("3", "failed"));
    assert_eq!(failed.status.unwrap().code, 2, "the code of errors");
    let missing = collector.only("GET /v1/sandboxes/{sandbox}");
    assert_eq!(attributes(&missing.attributes)["http.response.status_code"], "404");
    assert_eq!(missing.status.unwrap_or_default().code, 0, "an error of the client is none of the server");
}

/// Promise (Server): Spans have no arguments, environments, code, output, paths or keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_have_no_contents() {
    let collector = Collector::start(Behaviour::Accept).await;
    let otlp = collector.config();
    let server = start_with(Over::Tls, bounds(), |config| config.otlp = Some(otlp)).await;
    let key = server.key("acme", Scope::ALL).await;
    let client = server.with_key(Some(&key));
    create(&client, json!({ "name": "box", "backend": process()["backend"], "labels": { "a": "s3cret-label" } })).await;
    let exec = json!({ "shell": "echo s3cret-output; exit 4 # s3cret-argument", "env": { "B": "s3cret-variable" } });
    let started = post(&client, "/v1/sandboxes/box/execs", exec).await.unwrap();
    let path = format!("/v1/sandboxes/box/execs/{}/wait", started["id"].as_str().unwrap());
    get(&client, &path).await.unwrap();
    let code = json!({ "language": "sh", "code": "echo s3cret-code" });
    post(&client, "/v1/sandboxes/box/code", code).await.unwrap();
    get(&client, "/v1/sandboxes/box/files?path=s3cret-path").await.unwrap_err();
    server.stop().await;
    let spans = collector.spans();
    let shown = format!("{spans:?}");
    assert!(!shown.contains("s3cret") && !shown.contains(&key), "{shown}");
    let code = collector.only("code");
    assert_eq!(attributes(&code.attributes)["cofferdam.code.language"], "sh");
    assert!(spans.iter().any(|span| span.name == "exec" && span.parent_span_id == code.span_id), "{shown}");
    assert!(spans.iter().all(|span| span.trace_id.len() == 16));
}

/// Promise (Server): A client's choice whether a trace is recorded is honoured, and the ratio is that of other traces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sampling_of_a_client_is_honoured() {
    for (ratio, expected) in [(0.0, 1), (1.0, 3)] {
        let collector = Collector::start(Behaviour::Accept).await;
        let server = exporting(&collector, ratio).await;
        let ignored = run(&server.client().traced(&traceparent("00"))).await.unwrap();
        assert!(ignored.starts_with(&format!("00-{TRACE}-")) && ignored.ends_with("-00"), "{ignored}");
        let wanted = run(&server.client().traced(&traceparent("01"))).await.unwrap();
        assert!(wanted.ends_with("-01"), "{wanted}");
        for _ in 1..expected {
            let own = run(&server.client()).await.expect("a trace that begins here");
            assert!(!own.contains(TRACE) && own.ends_with("-01"), "{own}");
        }
        server.stop().await;
        assert_eq!(collector.named("POST /v1/runs").len(), expected, "{ratio}");
    }
}

/// Promise (Server): An attached client's connection is a span of its trace, which links to that of the exec.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attachments_link_to_their_execs() {
    let collector = Collector::start(Behaviour::Accept).await;
    let server = exporting(&collector, 1.0).await;
    let client = server.client();
    create(&client, json!({ "name": "box" })).await;
    let started = exec(&client, "box", &steps(vec![Step::Sleep { millis: 300 }, Step::Exit(0)])).await.unwrap();
    let mut attached = server.client().traced(&traceparent("01")).attach("box", &started.id, 0).await.unwrap();
    while !matches!(attached.next().await.unwrap(), Event::Exit(_)) {}
    drop(attached);
    server.stop().await;
    let (span, ran) = (collector.only("attach"), collector.only("exec"));
    assert_eq!(hex(&span.trace_id), TRACE);
    assert_ne!(ran.trace_id, span.trace_id, "the exec was started by another request");
    assert_eq!((&span.links[0].trace_id, &span.links[0].span_id), (&ran.trace_id, &ran.span_id));
}

/// Promise (Server): A receiver of spans that hangs, is down or refuses slows no request, and the loss is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_receiver_delays_no_request() {
    let hanging = Collector::start(Behaviour::Hang).await;
    // A port on which nothing listens.
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        OtlpConfig::collector(&format!("http://{}", listener.local_addr().unwrap())).unwrap()
    };
    for otlp in [hanging.config(), closed] {
        let change = |config: &mut ServerConfig| (config.otlp, config.audit) = (Some(otlp), None);
        let server = start_with(Over::Socket, bounds(), change).await;
        let client = server.client();
        // More requests than the queue has room for spans.
        let calls = async {
            for _ in 0..60 {
                let many = (0..50).map(|_| get(&client, "/v1/sandboxes"));
                for answer in futures_util::future::join_all(many).await {
                    answer.unwrap();
                }
            }
            run(&client).await.unwrap();
        };
        tokio::time::timeout(Duration::from_secs(60), calls).await.expect("requests do not wait for the receiver");
        let text = metrics(&client).await;
        let dropped = text.lines().find_map(|line| line.strip_prefix("cofferdam_spans_total{outcome=\"dropped\"} "));
        assert!(dropped.expect("it is counted").parse::<u64>().unwrap() > 0, "{text}");
        server.stop().await;
    }
    assert!(hanging.requests.load(Ordering::SeqCst) > 0, "it was asked");
}

async fn metrics(client: &Client) -> String {
    let response = client.send(Method::GET, "/v1/metrics", Content::None).await.unwrap();
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Promise (Server): Spans are sent again to a receiver that is overloaded, and are complete when the server has stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_are_sent_again_and_flushed() {
    let collector = Collector::start(Behaviour::Refuse(2)).await;
    let server = exporting(&collector, 1.0).await;
    run(&server.client()).await.unwrap();
    server.stop().await;
    assert_eq!(collector.named("exec").len(), 1);
    assert!(collector.requests.load(Ordering::SeqCst) >= 3);
}

async fn tasks(client: &Client, kind: &str) -> Vec<Value> {
    let list = get(client, "/debug/tasks").await.unwrap();
    let all = list["tasks"].as_array().unwrap().clone();
    all.into_iter().filter(|task| task["kind"] == kind).collect()
}

/// Promise (Server): The operator sees a running exec, a waiting create and open connections, until they end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_listed_until_they_end() {
    let full = Capacity { sandboxes: Some(1), ..Capacity::default() };
    let server = start_with(Over::Socket, bounds(), |config| config.capacity = full).await;
    let client = server.client().traced(&traceparent("01"));
    let sandbox = create(&client, json!({ "name": "box" })).await;
    let step = Step::Print { stream: cofferdam_contract::OutputStream::Stdout, text: "s3cret".to_owned() };
    let started = exec(&client, "box", &steps(vec![step, Step::SleepForever])).await.unwrap();
    let attached = client.attach("box", &started.id, 0).await.unwrap();
    let (waiting, asking) = (server.client(), server.client());
    let queued = tokio::spawn(async move { post(&waiting, "/v1/sandboxes", json!({ "name": "second" })).await });
    until("the create waits", async || !tasks(&asking, "create").await.is_empty()).await;

    let execs = tasks(&client, "exec").await;
    assert_eq!(execs.len(), 1, "{execs:?}");
    let exec = &execs[0];
    assert_eq!((&exec["exec"], &exec["sandbox"]), (&json!(started.id), &json!(sandbox)));
    assert_eq!(
        (&exec["tenant"], &exec["trace"], &exec["state"]),
        (&json!("default"), &json!(TRACE), &json!("running"))
    );
    assert!(exec["age"].as_f64().unwrap() >= 0.0);
    assert_eq!(tasks(&client, "create").await[0]["state"], "queued");
    assert_eq!(tasks(&client, "stream").await[0]["name"], "attach");
    let requests = tasks(&client, "request").await;
    let routes: Vec<_> = requests.iter().filter_map(|task| task["name"].as_str()).collect();
    assert!(routes.contains(&"POST /v1/sandboxes") && routes.contains(&"GET /debug/tasks"), "{routes:?}");
    assert!(!tasks(&client, "background").await.is_empty());
    let response = client.send(Method::GET, "/debug/tasks?format=text", Content::None).await.unwrap();
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    assert!(text.contains(&format!("exec={}", started.id)) && !text.contains("s3cret"), "{text}");
    let one = get(&client, "/debug/tasks?limit=1").await.unwrap();
    assert_eq!(one["tasks"].as_array().unwrap().len(), 1);
    assert!(one["total"].as_u64().unwrap() > 4, "{one}");
    let others = get(&client, "/debug/tasks?tenant=other").await.unwrap();
    assert_eq!(others["total"], 0);
    get(&client, "/debug/tasks?limit=0").await.unwrap_err();

    drop(attached);
    send(&client, Method::DELETE, "/v1/sandboxes/box", None).await.unwrap();
    queued.await.unwrap().unwrap();
    for kind in ["exec", "create", "stream"] {
        until(kind, async || tasks(&client, kind).await.is_empty()).await;
    }
    server.stop().await;
}

/// Promise (Server): Without an exporter, a server that gets no trace starts none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_exporter_there_is_no_trace() {
    let server = start(Over::Socket, bounds()).await;
    assert_eq!(run(&server.client()).await, None);
    server.stop().await;
}
