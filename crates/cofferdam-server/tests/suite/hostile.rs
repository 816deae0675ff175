//! Clients that are slow, or that close half of their connection: others are served, and nothing of them is left.

use std::time::Duration;

use cofferdam_server::{Bounds, Scope};
use cofferdam_simulated::Step;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{Method, Over, Running, bounds, create, get, send, start, steps};

/// Time for a server to end what a client began.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two bytes of a slow client.
const DRIP: Duration = Duration::from_millis(20);

async fn connect(server: &Running) -> TcpStream {
    TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap()
}

/// Sends a beginning, and then a byte after the other until the server ends the connection. Returns what it answers.
async fn drip(mut stream: TcpStream, beginning: &str) -> String {
    stream.write_all(beginning.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let mut answer = Vec::new();
    tokio::select! {
        _ = reading.read_to_end(&mut answer) => {}
        () = async {
            while writing.write_all(b"x").await.is_ok() {
                sleep(DRIP).await;
            }
        } => {}
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Promise (Server): Clients that send a byte at a time (slowloris) lose their connections in a bounded time, also if
/// they hold all connections of the server, and others are answered then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_lose_their_connections() {
    let short = Duration::from_millis(800);
    let tight = Bounds { connections: 32, head_time: short, body_time: short, ..bounds() };
    let server = start(Over::Tcp, tight).await;
    let head = "GET /v1/version HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";
    let body = "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{\"name\": \"";
    let mut slow = tokio::task::JoinSet::new();
    for number in 0..80 {
        let stream = connect(&server).await;
        slow.spawn(drip(stream, if number % 2 == 0 { head } else { body }));
    }
    let answered = timeout(END_TIMEOUT, get(&server.client(), "/v1/health")).await.expect("others are answered");
    assert_eq!(answered.unwrap()["status"], "ok");
    while let Some(answer) = timeout(END_TIMEOUT, slow.join_next()).await.expect("slow clients keep their connections")
    {
        let answer = answer.unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    assert_eq!(get(&server.client(), "/v1/sandboxes").await.unwrap()["sandboxes"], json!([]));
    server.stop().await;
}

/// Promise (Server): A client that closes its half of the connection keeps neither a run nor its reservation, and an
/// upload that ends early leaves no file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_closed_clients_leave_nothing() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    let run = json!({ "exec": steps(vec![Step::SleepForever]) }).to_string();
    let upload = "PUT /v1/sandboxes/a/files?path=part HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nsome";
    let run = format!(
        "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{run}",
        run.len()
    );
    let mut half_closed = Vec::new();
    for request in [&*run, upload, "POST /v1/runs HTTP/1.1\r\nHost: local", ""].repeat(5) {
        let mut stream = connect(&server).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        half_closed.push(stream);
    }
    let deadline = Instant::now() + END_TIMEOUT;
    while server.simulated.living().len() < 6 {
        assert!(Instant::now() < deadline, "the runs do not start");
        sleep(DRIP).await;
    }
    for stream in &mut half_closed {
        stream.shutdown().await.unwrap();
    }
    while get(&client, "/v1/quota").await.unwrap()["sandboxes"] != 1 {
        assert!(Instant::now() < deadline, "runs of half-closed clients continue");
        sleep(DRIP).await;
    }
    assert_eq!(server.simulated.living().len(), 1);
    for stream in &mut half_closed {
        let mut answer = Vec::new();
        let read = timeout(END_TIMEOUT, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "the server keeps its half: {}", String::from_utf8_lossy(&answer));
    }
    assert!(get(&client, "/v1/sandboxes/a/files?path=part").await.is_err(), "a part of an upload is a file");
    server.stop().await;
}

/// Promise (Server): An upload that takes too long is answered with the time that it had, and leaves no file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_without_end_is_given_up() {
    let tight = Bounds { transfer_time: Duration::from_millis(500), ..bounds() };
    let server = start(Over::Tcp, tight).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    let upload = "PUT /v1/sandboxes/a/files?path=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n";
    let answer = timeout(END_TIMEOUT, drip(connect(&server).await, upload)).await.expect("it is given up");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("the operation took longer than 0.5 s"), "{answer}");
    assert_eq!(get(&client, "/v1/sandboxes/a/files/list?path=").await.unwrap()["entries"], json!([]));
    server.stop().await;
}

/// Promise (Server): A client whose upload is refused before its end receives the answer, whether its sandbox, the scope
/// of its key or a rate refuses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_upload_is_answered() {
    let server = start(Over::Tcp, bounds()).await;
    let admin = server.with_key(Some(&server.key("default", Scope::ALL).await));
    let quota = json!({ "requests_per_second": 1 });
    send(&admin, Method::PUT, "/v1/admin/quotas/slow", Some(quota)).await.unwrap();
    let (all, none) = (server.key("default", Scope::ALL).await, server.key("default", &[Scope::UsageRead]).await);
    let slow = server.key("slow", Scope::ALL).await;
    let body = vec![0; 24 << 20];
    for (key, status) in [(&all, "404"), (&all, "404"), (&none, "403"), (&none, "403"), (&slow, "429"), (&slow, "429")]
    {
        let limited = server.with_key(Some(&slow));
        while status == "429" && get(&limited, "/v1/quota").await.is_ok() {}
        let mut stream = connect(&server).await;
        let head = format!(
            "PUT /v1/sandboxes/none/files?path=x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // A client that writes its whole request before it reads.
        timeout(END_TIMEOUT, stream.write_all(&body)).await.unwrap().expect("the server reads the rest");
        let mut answer = String::new();
        timeout(END_TIMEOUT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer}");
    }
    server.stop().await;
}
