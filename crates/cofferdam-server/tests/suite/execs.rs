use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cofferdam_contract::{ErrorKind, OutputStream, TerminalSize};
use cofferdam_server::client::{Client, Content, Event, Input};
use cofferdam_server::rest::Control;
use cofferdam_server::rest::views::{ExecEvent, ExecState, ExecView, RunResult, StartExec, StdinView};
use cofferdam_simulated::Step;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::support::{Method, Over, bounds, create, exec, get, post, process, send, shell, start, steps};

/// Reads events until the stream ends.
async fn follow(client: &Client, path: &str) -> Vec<ExecEvent> {
    let response = client.send(Method::GET, path, Content::None).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let lines = std::str::from_utf8(&text).unwrap().lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns what the events say: output, lost bytes, exit code.
fn collected(events: &[ExecEvent]) -> (Vec<u8>, u64, Option<i32>) {
    let (mut output, mut missing, mut code) = (Vec::new(), 0, None);
    for event in events {
        match event {
            ExecEvent::Output { data, .. } => output.extend(STANDARD.decode(data).unwrap()),
            ExecEvent::Lost { bytes, .. } => missing += bytes,
            ExecEvent::Exit { exit } => code = Some(exit.code),
            ExecEvent::Error { error } => panic!("{error:?}"),
        }
    }
    (output, missing, code)
}

/// Promise (Server): Output is streamed as events, and again from any offset, also after the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_streamed_from_any_offset() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "backend": "process", "name": "box" })).await;
    let line = "printf abc; sleep 0.3; printf def >&2; exit 3";
    let started = shell(&client, "box", line).await.unwrap();
    assert_eq!((started.state, started.command.as_str()), (ExecState::Running, line));
    let path = format!("/v1/sandboxes/box/execs/{}", started.id);
    let events = follow(&client, &format!("{path}/output")).await;
    assert_eq!(collected(&events), (b"abcdef".to_vec(), 0, Some(3)));
    assert!(matches!(&events[1], ExecEvent::Output { stream: OutputStream::Stderr, offset: 3, .. }));
    assert_eq!(collected(&follow(&client, &format!("{path}/output?offset=4")).await), (b"ef".to_vec(), 0, Some(3)));
    let ended: ExecView = client.call(Method::GET, &format!("{path}/wait"), None::<&()>).await.unwrap();
    assert_eq!((ended.state, ended.exit.unwrap().code), (ExecState::Ended, 3));
    let list = get(&client, "/v1/sandboxes/box/execs").await.unwrap();
    assert_eq!(list["execs"][0]["id"], started.id);
    let missing = get(&client, "/v1/sandboxes/box/execs/ex-1").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    server.stop().await;
}

/// Promise (Server): A reader that is too late for the bounded buffer learns how many bytes it lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_beyond_the_buffer_is_reported_as_lost() {
    let mut small = bounds();
    small.replay = cofferdam_contract::ByteSize::from_bytes(64 << 10);
    let server = start(Over::Socket, small).await;
    let client = server.client();
    create(&client, json!({ "name": "box" })).await;
    let mut body = steps(vec![Step::PrintRepeated { text: "0123456789abcdef".to_owned(), total: 1 << 20 }]);
    body.max_output = Some(cofferdam_contract::ByteSize::from_mebibytes(2));
    let started = exec(&client, "box", &body).await.unwrap();
    let path = format!("/v1/sandboxes/box/execs/{}", started.id);
    let ended = get(&client, &format!("{path}/wait")).await.unwrap();
    assert_eq!(ended["state"], "ended");
    let (output, missing, code) = collected(&follow(&client, &format!("{path}/output")).await);
    assert_eq!((output.len() as u64 + missing, code), (1 << 20, Some(0)));
    assert!(missing > 0 && output.len() <= 64 << 10, "{missing} {}", output.len());
    server.stop().await;
}

/// Promise (Server): A terminal survives a lost connection: its client attaches again and continues at its offset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_attaches_again_and_continues() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "backend": "process", "name": "box" })).await;
    let body = StartExec {
        argv: Some(vec!["cat".to_owned()]),
        stdin: StdinView::Stream,
        terminal: Some(TerminalSize { rows: 24, columns: 80 }),
        ..StartExec::default()
    };
    let started = exec(&client, "box", &body).await.unwrap();
    let mut first = client.attach("box", &started.id, 0).await.unwrap();
    first.send(Input::Bytes(Bytes::from_static(b"one\n"))).await.unwrap();
    let mut seen = Vec::new();
    // The terminal echoes the line, then the program prints it.
    while seen != b"one\r\none\r\n" {
        let Event::Output(OutputStream::Stdout, data) = first.next().await.unwrap() else { panic!("output") };
        seen.extend_from_slice(&data);
        assert!(seen.len() <= 10, "{seen:?}");
    }
    let offset = first.offset();
    drop(first);

    let mut second = client.attach("box", &started.id, offset).await.unwrap();
    second.send(Input::Control(Control::Resize { rows: 50, columns: 132 })).await.unwrap();
    second.send(Input::Bytes(Bytes::from_static(b"two\n\x04"))).await.unwrap();
    let mut seen = Vec::new();
    let exit = loop {
        match second.next().await.unwrap() {
            Event::Output(_, data) => seen.extend_from_slice(&data),
            Event::Lost(bytes) => panic!("{bytes} lost"),
            Event::Exit(exit) => break exit,
        }
    };
    assert_eq!((String::from_utf8(seen).unwrap().as_str(), exit.code), ("two\r\ntwo\r\n", 0));
    server.stop().await;
}

/// Promise (Server): Input arrives by requests, and signals end an exec.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_and_signals_arrive() {
    let server = start(Over::Socket, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "box" })).await;
    let mut body = steps(vec![Step::CountInput]);
    body.stdin = StdinView::Stream;
    let counting = exec(&client, "box", &body).await.unwrap();
    let path = format!("/v1/sandboxes/box/execs/{}", counting.id);
    for (query, data) in [("", "12345"), ("?eof=true", "67")] {
        let content = Content::Bytes(data.into());
        client.send(Method::POST, &format!("{path}/stdin{query}"), content).await.unwrap();
    }
    assert_eq!(collected(&follow(&client, &format!("{path}/output")).await), (b"7\n".to_vec(), 0, Some(0)));
    let late = client.send(Method::POST, &format!("{path}/stdin"), Content::Bytes("x".into())).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Conflict);

    let forever = exec(&client, "box", &steps(vec![Step::SleepForever])).await.unwrap();
    let path = format!("/v1/sandboxes/box/execs/{}", forever.id);
    let still: ExecView = client.call(Method::GET, &format!("{path}/wait?timeout=0.05"), None::<&()>).await.unwrap();
    assert_eq!(still.state, ExecState::Running);
    send(&client, Method::POST, &format!("{path}/signal"), Some(json!({ "signal": "TERM" }))).await.unwrap();
    let ended = get(&client, &format!("{path}/wait")).await.unwrap();
    assert_eq!((&ended["exit"]["signal"], &ended["exit"]["cancelled"]), (&json!(15), &json!(true)));
    server.stop().await;
}

/// Promise (Server): A run answers with output and exit, and leaves nothing; a client that goes away ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_leaves_nothing() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    let body = json!({ "sandbox": process(), "exec": { "shell": "echo hi; echo no >&2; exit 4" } });
    let result: RunResult = client.call(Method::POST, "/v1/runs", Some(&body)).await.unwrap();
    assert_eq!(result.exit.code, 4);
    assert_eq!(json!([result.stdout, result.stderr]), json!([{ "text": "hi\n" }, { "text": "no\n" }]));
    let missing = json!({ "sandbox": process(), "exec": { "argv": ["no-such-program"] } });
    assert_eq!(post(&client, "/v1/runs", missing).await.unwrap_err().kind(), ErrorKind::NotFound);
    for exec in [json!({}), json!({ "argv": ["a"], "shell": "a" }), json!({ "shell": "a", "stdin": "stream" })] {
        let error = post(&client, "/v1/runs", json!({ "exec": exec })).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{exec}");
    }
    let forever = steps(vec![Step::SleepForever]);
    let gone = json!({ "exec": forever });
    let answer = tokio::time::timeout(Duration::from_millis(300), post(&client, "/v1/runs", gone)).await;
    assert!(answer.is_err());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !server.simulated.living().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "the sandbox of the client that went away is left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}

/// Promise (Server): The outputs that execs of one sandbox keep are bounded together; ended execs give way to new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kept_outputs_of_a_sandbox_are_bounded_together() {
    let mut tight = bounds();
    tight.replay_of_sandbox = cofferdam_contract::ByteSize::from_bytes(100 << 10);
    let server = start(Over::Tcp, tight).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    let print = Step::PrintRepeated { text: "x".repeat(1000), total: 200 << 10 };
    let printed = Step::MakeDirectory { path: "printed".into() };
    let first = exec(&client, "a", &steps(vec![print, printed, Step::SleepForever])).await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while get(&client, "/v1/sandboxes/a/files/stat?path=printed").await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "nothing is printed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = exec(&client, "a", &steps(vec![Step::Exit(0)])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
    let path = format!("/v1/sandboxes/a/execs/{}", first.id);
    send(&client, Method::POST, &format!("{path}/signal"), Some(json!({ "signal": "KILL" }))).await.unwrap();
    get(&client, &format!("{path}/wait")).await.unwrap();
    let (_, missing, _) = collected(&follow(&client, &format!("{path}/output")).await);
    assert!(missing >= 100 << 10, "{missing}");
    exec(&client, "a", &steps(vec![Step::Exit(0)])).await.unwrap();
    assert_eq!(get(&client, &path).await.unwrap_err().kind(), ErrorKind::NotFound, "the ended exec gave way");
    server.stop().await;
}

/// Promise (Server): The program of an exec finds its place in its client's trace, and nothing of a malformed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_from_the_client_to_the_guest() {
    let server = start(Over::Socket, bounds()).await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let run = async |client: Client, variable: Value| {
        let mut exec = json!(steps(vec![Step::PrintEnvironment]));
        exec["env"] = variable;
        let result = post(&client, "/v1/runs", json!({ "exec": exec })).await.unwrap();
        let text = result["stdout"]["text"].as_str().unwrap().to_owned();
        let found = text.split('\0').find_map(|variable| variable.strip_prefix("TRACEPARENT="));
        found.map(str::to_owned)
    };
    let found = run(server.client().traced(parent), json!({})).await.expect("it has one");
    let parts: Vec<_> = found.split('-').collect();
    assert_eq!((parts[1], parts[3]), ("4bf92f3577b34da6a3ce929d0e0e4736", "01"));
    assert!(parts[2].len() == 16 && parts[2] != "00f067aa0ba902b7", "its parent is the request, {found}");
    let other = run(server.client().traced(parent), json!({})).await.unwrap();
    assert_ne!(found, other, "each request has a span of its own");
    assert_eq!(run(server.client(), json!({})).await, None);
    assert_eq!(run(server.client().traced("00-x"), json!({})).await, None);
    let own = json!({ "TRACEPARENT": "mine" });
    assert_eq!(run(server.client().traced(parent), own).await.as_deref(), Some("mine"));
    server.stop().await;
}
