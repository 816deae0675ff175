use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use cofferdam_contract::{ByteSize, ErrorKind};
use cofferdam_server::client::{Client, Content, Method};
use cofferdam_server::{Listen, Listener, Scope};
use cofferdam_simulated::Step;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Over, bounds, create, exec, get, post, start, steps};

/// Promise (Server): A server that stops refuses new sandboxes, lets requests end, and leaves no sandbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_drains() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    assert_eq!(get(&client, "/v1/ready").await.unwrap()["status"], "ok");
    create(&client, json!({ "name": "a" })).await;
    let started = exec(&client, "a", &steps(vec![Step::Sleep { millis: 400 }, Step::Exit(7)])).await.unwrap();
    let waiting = tokio::spawn({
        let (client, path) = (client.clone(), format!("/v1/sandboxes/a/execs/{}/wait", started.id));
        async move { get(&client, &path).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.begin_stop();
    let ended = waiting.await.unwrap().unwrap();
    assert_eq!(ended["exit"]["code"], 7, "a request that runs gets its answer");
    server.stop().await;
    assert_eq!(get(&client, "/v1/health").await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Promise (Server): A connection that was accepted just before a stop gets an answer to its first request, and a silent
/// one delays the stop by a second at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_answers_connections_that_were_just_accepted() {
    let mut long = bounds();
    long.drain_time = Duration::from_secs(60);
    let server = start(Over::Socket, long).await;
    let connect = async || tokio::net::UnixStream::connect(server.socket().unwrap()).await.unwrap();
    let (mut late, silent) = (connect().await, connect().await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.begin_stop();
    tokio::time::sleep(Duration::from_millis(100)).await;
    late.write_all(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    late.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    tokio::time::timeout(Duration::from_secs(20), server.stop()).await.expect("the server stops");
    drop(silent);
}

/// Promise (Server): A stop ends programs and connections that go on for longer than the time to drain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_no_program_forever() {
    let mut quick = bounds();
    quick.drain_time = Duration::from_millis(200);
    let server = start(Over::Socket, quick).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    let started =
        exec(&client, "a", &steps(vec![Step::OnTerm(cofferdam_simulated::OnTerm::Ignore), Step::SleepForever]))
            .await
            .unwrap();
    let mut attached = client.attach("a", &started.id, 0).await.unwrap();
    let socket = server.socket().unwrap();
    tokio::time::timeout(Duration::from_secs(20), server.stop()).await.expect("the server stops");
    assert!(attached.next().await.is_err());
    assert!(!socket.exists());
}

/// Promise (Server): The socket belongs to this user alone, replaces a stale one and no live one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_socket_is_private() {
    let server = start(Over::Socket, bounds()).await;
    let path = server.socket().unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = Listener::bind(&Listen::Socket(path.clone())).await.unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Unavailable);
    server.stop().await;

    let directory = tempfile::tempdir().unwrap();
    let stale = directory.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    drop(Listener::bind(&Listen::Socket(stale.clone())).await.expect("a stale socket is replaced"));
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(Listener::bind(&Listen::Socket(stale)).await.unwrap_err().kind(), ErrorKind::Denied);
}

/// Promise (Server): Requests beyond a bound are refused, and clients that send or read nothing are disconnected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_clients_are_bounded() {
    let mut tight = bounds();
    (tight.json, tight.head_time, tight.stall_time) = (2000, Duration::from_millis(300), Duration::from_millis(600));
    tight.body_time = Duration::from_millis(300);
    let server = start(Over::Tcp, tight).await;
    let client = server.client();
    let large = json!({ "labels": { "x": "y".repeat(3000) } });
    let error = post(&client, "/v1/sandboxes", large).await.unwrap_err();
    assert_eq!(error.message(), "the body is larger than 2000 bytes");
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let many = "GET /v1/version HTTP/1.1\r\n".to_owned() + &"X-A: b\r\n".repeat(200) + "\r\n";
    let long = format!("GET /v1/version HTTP/1.1\r\nX-A: {}\r\n\r\n", "b".repeat(100 << 10));
    for (sent, expected) in [
        ("", ""),
        ("GET /v1/version HTTP/1.1\r\nHost: x", ""),
        ("POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", "HTTP/1.1 408"),
        (&many, "HTTP/1.1 431"),
        (&long, "HTTP/1.1 431"),
        ("nonsense\r\n\r\n", "HTTP/1.1 400"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        let start = &sent[..sent.len().min(40)];
        assert!(read.is_ok(), "{start:?} keeps its connection");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with(expected), "{start:?}: {answer}");
    }
    // A client that reads nothing loses its connection, and the program continues.
    create(&client, json!({ "name": "a" })).await;
    let mut body = steps(vec![Step::PrintRepeated { text: "x".repeat(1000), total: 30 << 20 }]);
    body.max_output = Some(ByteSize::from_mebibytes(64));
    let started = exec(&client, "a", &body).await.unwrap();
    let path = format!("/v1/sandboxes/a/execs/{}", started.id);
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    stream.write_all(format!("GET {path}/output HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    assert_eq!(get(&client, &format!("{path}/wait")).await.unwrap()["state"], "ended");
    assert_eq!(get(&client, "/v1/health").await.unwrap()["status"], "ok");
    server.stop().await;
}

/// Promise (Server): Unknown endpoints and methods answer with problem documents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_endpoints_are_problems() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    assert_eq!(get(&client, "/v1/nothing").await.unwrap_err().kind(), ErrorKind::NotFound);
    let error = post(&client, "/v1/version", json!({})).await.unwrap_err();
    assert_eq!(error.message(), "the endpoint has no such method");
    let error = get(&client, "/v1/sandboxes?limit=0").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(get(&client, "/v1/sandboxes?nonsense=1").await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let keyed = Client::new(&server.url, Some("cfd_x"), None).unwrap();
    assert_eq!(get(&keyed, "/v1/sandboxes").await.unwrap_err().kind(), ErrorKind::Denied);
    server.stop().await;
}

/// Promise (Server): The requests and streams of one tenant leave room for other tenants, and health is always answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_cannot_take_all_requests() {
    let mut tight = bounds();
    (tight.requests, tight.requests_of_tenant) = (4, 3);
    let server = start(Over::Tls, tight).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", Scope::ALL).await, server.keyed("other", Scope::ALL).await);
    let mut paths = Vec::new();
    for client in [&acme, &other] {
        create(client, json!({ "name": "a" })).await;
        let started = exec(client, "a", &steps(vec![Step::SleepForever])).await.unwrap();
        paths.push(format!("/v1/sandboxes/a/execs/{}/output", started.id));
    }
    let follow = async |client: &Client, path: &str| client.send(Method::GET, path, Content::None).await;
    let first = follow(&acme, &paths[0]).await.unwrap();
    let attached = acme.attach("a", paths[0].split('/').nth(5).unwrap(), 0).await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let second = loop {
        // The request of the WebSocket counts until its answer is sent.
        match follow(&acme, &paths[0]).await {
            Ok(second) => break second,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
    };
    assert_eq!(get(&acme, "/v1/sandboxes").await.unwrap_err().kind(), ErrorKind::ResourceExhausted);
    assert!(get(&other, "/v1/sandboxes").await.is_ok(), "there is room for others");
    let third = follow(&other, &paths[1]).await.unwrap();
    assert_eq!(get(&other, "/v1/sandboxes").await.unwrap_err().kind(), ErrorKind::Unavailable, "the server is full");
    for path in ["/v1/health", "/v1/ready"] {
        assert_eq!(get(&other, path).await.unwrap()["status"], "ok");
    }
    drop((first, attached, second, third));
    while get(&acme, "/v1/sandboxes").await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the slots are never free again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}
