use std::time::Duration;

use cofferdam_contract::ErrorKind;
use cofferdam_server::client::{Content, Method};
use cofferdam_server::{Scope, keys};
use cofferdam_simulated::Step;
use serde_json::json;

use crate::support::{Over, bounds, create, exec, get, post, start, steps};

const ALL: &[Scope] = Scope::ALL;

/// Promise (Server): A tenant sees its own sandboxes only, over TLS and by its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_see_their_own_sandboxes() {
    let server = start(Over::Tls, bounds()).await;
    let ((acme, _), (umbrella, _)) = (server.keyed("acme", ALL).await, server.keyed("umbrella", ALL).await);
    let own = create(&acme, json!({ "name": "box" })).await;
    assert_eq!(get(&acme, "/v1/sandboxes/box").await.unwrap()["id"], own);
    for path in [format!("/v1/sandboxes/{own}"), "/v1/sandboxes/box".to_owned()] {
        assert_eq!(get(&umbrella, &path).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(get(&umbrella, "/v1/sandboxes").await.unwrap()["sandboxes"], json!([]));
    let other = create(&umbrella, json!({ "name": "box" })).await;
    assert_ne!(own, other, "names belong to tenants");
    server.stop().await;
}

/// Promise (Server): A revoked key is refused at once, and a request without a key always.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_is_refused_at_once() {
    let server = start(Over::Tls, bounds()).await;
    let (client, id) = server.keyed("acme", ALL).await;
    assert!(get(&client, "/v1/sandboxes").await.is_ok());
    keys::revoke(&server.store, &id).await.unwrap();
    let refused = get(&client, "/v1/sandboxes").await.unwrap_err();
    assert_eq!((refused.kind(), refused.operation()), (ErrorKind::Denied, "authenticate"));
    for client in [server.client(), server.with_key(Some("cfd_x")), server.with_key(Some("a b"))] {
        assert_eq!(get(&client, "/v1/sandboxes").await.unwrap_err().operation(), "authenticate");
        assert!(get(&client, "/v1/health").await.is_ok(), "health needs no key");
    }
    server.stop().await;
}

/// Promise (Server): The open streams of a revoked key end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_streams_of_a_revoked_key_end() {
    use http_body_util::BodyExt;
    let mut quick = bounds();
    quick.stall_time = Duration::from_millis(800);
    let server = start(Over::Tls, quick).await;
    let ((client, id), (other, _)) = (server.keyed("acme", ALL).await, server.keyed("acme", ALL).await);
    create(&client, json!({ "name": "a" })).await;
    let started = exec(&client, "a", &steps(vec![Step::SleepForever])).await.unwrap();
    let path = format!("/v1/sandboxes/a/execs/{}/output", started.id);
    let mut attached = client.attach("a", &started.id, 0).await.unwrap();
    let followed = client.send(Method::GET, &path, Content::None).await.unwrap().into_body();
    let mut output = other.attach("a", &started.id, 0).await.unwrap();
    keys::revoke(&server.store, &id).await.unwrap();
    let ends = Duration::from_secs(20);
    let attached = tokio::time::timeout(ends, attached.next()).await.expect("the WebSocket ends");
    assert!(attached.is_err(), "the exec runs");
    let followed = tokio::time::timeout(ends, followed.collect()).await.expect("the events end");
    assert!(followed.is_ok_and(|body| !body.to_bytes().windows(5).any(|part| part == b"exit\n")));
    let next = tokio::time::timeout(Duration::from_millis(500), output.next()).await;
    assert!(next.is_err(), "another key is still valid");
    server.stop().await;
}

/// Promise (Server): A key without the scope of an endpoint is refused there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scope_is_needed() {
    let server = start(Over::Tls, bounds()).await;
    let (reader, _) = server.keyed("acme", &[Scope::SandboxesRead]).await;
    assert!(get(&reader, "/v1/sandboxes").await.is_ok());
    let refused = post(&reader, "/v1/sandboxes", json!({})).await.unwrap_err();
    assert_eq!((refused.kind(), refused.operation()), (ErrorKind::Denied, "authorize"));
    server.stop().await;
}

/// Promise (Server): A web page cannot use a server without keys through a user's browser.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_page_needs_a_key() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = start(Over::Tcp, bounds()).await;
    let address = server.url.strip_prefix("http://").unwrap();
    for (headers, status) in [
        ("Host: 127.0.0.1:80\r\n", 200),
        ("Host: [::1]:80\r\n", 200),
        ("Host: localhost:80\r\n", 200),
        ("Host: evil.example:80\r\n", 401),
        ("Host: localhost\r\nOrigin: https://evil.example\r\n", 401),
        ("Host: localhost\r\nOrigin: null\r\n", 401),
        ("Host: 127.0.0.1:80\r\nOrigin: http://127.0.0.1:80\r\nSec-Fetch-Site: same-origin\r\n", 200),
        ("Host: 127.0.0.1:80\r\nOrigin: http://127.0.0.1:81\r\n", 401),
        ("Host: 127.0.0.1:80\r\nSec-Fetch-Site: same-site\r\n", 401),
        ("Host: evil.example:80\r\nOrigin: http://evil.example:80\r\nSec-Fetch-Site: same-origin\r\n", 401),
    ] {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET /v1/sandboxes HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {answer}");
    }
    server.stop().await;
}

/// Promise (Server): A web page cannot use a Unix socket that its user forwarded to a port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_page_cannot_use_a_forwarded_socket() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let server = start(Over::Socket, bounds()).await;
    for (headers, status) in [
        ("Host: localhost:8080\r\n", 200),
        ("Host: localhost:8080\r\nOrigin: http://localhost:8080\r\n", 200),
        ("Host: localhost:8080\r\nOrigin: https://evil.example\r\n", 401),
        ("Host: evil.example:8080\r\n", 401),
    ] {
        let mut stream = tokio::net::UnixStream::connect(server.socket().unwrap()).await.unwrap();
        let request = format!("GET /v1/sandboxes HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{headers}: {answer}");
    }
    server.stop().await;
}

/// Promise (Server): A guest that reaches a Unix socket of its own user, from its user namespace, is not that user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_of_the_own_user_needs_a_key() {
    let server = start(Over::Socket, bounds()).await;
    let socket = server.socket().unwrap();
    let key = server.key("acme", Scope::ALL).await;
    let status = async |words: &[&str], header: &str| {
        let script = "import socket, sys\n\
                      s = socket.socket(socket.AF_UNIX)\n\
                      s.connect(sys.argv[1])\n\
                      h = 'GET /v1/sandboxes HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n'\n\
                      s.sendall((h + sys.argv[2] + '\\r\\n').encode())\n\
                      print(s.recv(12).decode()[-3:])";
        let mut command = std::process::Command::new(words[0]);
        command.args(&words[1..]).args(["python3", "-c", script]).arg(&socket).arg(header);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("it starts");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let inside = ["unshare", "--user", "env"];
    if status(&["env"], "").await != "200"
        || !std::process::Command::new("unshare").args(["--user", "true"]).status().is_ok_and(|it| it.success())
    {
        println!("SKIP a_guest_of_the_own_user_needs_a_key: no python3, or no user namespaces");
        return server.stop().await;
    }
    assert_eq!(status(&inside, "").await, "401");
    assert_eq!(status(&inside, &format!("Authorization: Bearer {key}\r\n")).await, "200");
    server.stop().await;
}

/// Promise (Server): A client trusts no server with another certificate, and sends no key in plain text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_checks_the_server() {
    use cofferdam_server::client::Client;
    let server = start(Over::Tls, bounds()).await;
    let stranger = Client::new(&server.url, Some("cfd_x"), None).unwrap();
    assert_eq!(get(&stranger, "/v1/health").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(Client::new("http://192.0.2.1:80", Some("cfd_x"), None).is_err());
    server.stop().await;
}
