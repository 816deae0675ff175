//! A Firecracker that refuses requests, is silent, sends too much, or is missing.

use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Retry};
use cofferdam_vm::firecracker::{BootSource, Client, InstanceState, Request};

use crate::support::{Reply, Server, http, quick};

const START: Request = Request::Start;

/// Far longer than any deadline: anything later is a hang.
const NO_HANG: Duration = Duration::from_secs(20);

async fn failure(client: &Client, request: &Request) -> Error {
    let outcome = tokio::time::timeout(NO_HANG, client.send("create", request)).await;
    outcome.expect("an answer in time").expect_err("it cannot work")
}

async fn failure_of(reply: Reply) -> Error {
    let server = Server::start(move |_| reply.clone());
    failure(&server.client(), &START).await
}

fn check(error: &Error, kind: ErrorKind, retry: Retry, says: &str) {
    assert_eq!((error.kind(), error.retry()), (kind, retry), "{error}");
    assert!(error.to_string().contains(says), "{error}");
    assert!(error.remedy().is_some(), "{error}");
    assert!(error.context().any(|(key, _)| key == "socket"), "{error}");
}

#[tokio::test]
async fn a_socket_that_is_not_there_may_come() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::new(directory.path().join("none"), quick());
    check(&failure(&client, &START).await, ErrorKind::Unavailable, Retry::MayHelp, "the socket does not exist");
}

#[tokio::test]
async fn socket_without_a_listener_means_the_vmm_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let client = Client::new(socket, quick());
    check(&failure(&client, &START).await, ErrorKind::Unavailable, Retry::Never, "has ended");
}

/// A guest that broke out into Firecracker owns its directory.
#[tokio::test]
async fn link_at_the_socket_path_is_not_followed() {
    let server = Server::start(|_| Reply::Respond(http(204, "")));
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("api.sock");
    std::os::unix::fs::symlink(server.client().socket(), &link).unwrap();
    let client = Client::new(&link, quick());
    check(&failure(&client, &START).await, ErrorKind::Unavailable, Retry::Never, "the path is not a socket");
    std::fs::remove_file(&link).unwrap();
    std::fs::write(&link, "").unwrap();
    check(&failure(&client, &START).await, ErrorKind::Unavailable, Retry::Never, "the path is not a socket");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn path_that_is_not_utf_8_is_refused_before_any_request() {
    use std::os::unix::ffi::OsStrExt;
    let server = Server::start(|_| Reply::Respond(http(204, "")));
    let kernel = std::ffi::OsStr::from_bytes(b"/\xff").into();
    let (initrd_path, boot_args) = ("/initrd".into(), String::new());
    let request = Request::BootSource(BootSource { kernel_image_path: kernel, initrd_path, boot_args });
    let error = failure(&server.client(), &request).await;
    check(&error, ErrorKind::InvalidInput, Retry::Never, "UTF-8");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn refusals_quote_firecracker() {
    let full = r#"{"fault_message":"No space left on device (os error 28)"}"#;
    for (status, body, kind, retry, says) in [
        (400, full, ErrorKind::ResourceExhausted, Retry::MayHelp, "No space left"),
        (400, r#"{"fault_message":"bad \u001b[2J"}"#, ErrorKind::InvalidInput, Retry::Never, "bad  [2J"),
        (400, "not JSON", ErrorKind::InvalidInput, Retry::Never, "not JSON"),
        (404, "", ErrorKind::Unsupported, Retry::Never, "404"),
        (500, r#"{"fault_message":7}"#, ErrorKind::Unavailable, Retry::MayHelp, "500"),
        (301, "", ErrorKind::Unavailable, Retry::Never, "301"),
    ] {
        check(&failure_of(Reply::Respond(http(status, body))).await, kind, retry, says);
    }
}

#[tokio::test]
async fn silence_ends_at_the_deadline() {
    check(&failure_of(Reply::Silence).await, ErrorKind::Unavailable, Retry::MayHelp, "no answer within 0.3 s");
}

#[tokio::test]
async fn half_an_answer_is_none() {
    for half in ["", "HTTP/1.1 2", "HTTP/1.1 204 X\r\nServer: ", "HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\n{}"] {
        let error = failure_of(Reply::RespondAndClose(half.into())).await;
        check(&error, ErrorKind::Unavailable, Retry::Never, "broke");
    }
    let waits = "HTTP/1.1 204 X\r\nServer: ";
    check(&failure_of(Reply::Respond(waits.into())).await, ErrorKind::Unavailable, Retry::MayHelp, "no answer within");
}

#[tokio::test]
async fn invalid_http_breaks_the_connection() {
    for rubbish in [&b"SSH-2.0-x\r\n\r\n"[..], b"\0\0\0\0\0\0\0\0\r\n\r\n", b"HTTP/9.9 204\r\n\r\n"] {
        check(&failure_of(Reply::Respond(rubbish.into())).await, ErrorKind::Unavailable, Retry::Never, "broke");
    }
}

#[tokio::test]
async fn floods_are_cut_off() {
    let many = http(200, &"x".repeat(1 << 20));
    let chunks = b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let chunk = [format!("{:x}\r\n", 32 << 10).into_bytes(), vec![b'x'; 32 << 10], b"\r\n".to_vec()].concat();
    let endless = [chunks, chunk.repeat(64)].concat();
    for answer in [many, endless] {
        check(
            &failure_of(Reply::Respond(answer)).await,
            ErrorKind::Unavailable,
            Retry::Never,
            "longer than 65536 bytes",
        );
    }
    let head = [b"HTTP/1.1 200 X\r\n".to_vec(), b"A: b\r\n".repeat(100_000)].concat();
    check(&failure_of(Reply::Respond(head)).await, ErrorKind::Unavailable, Retry::Never, "broke");
    let line = vec![b'x'; 1 << 20];
    check(&failure_of(Reply::Flood(line)).await, ErrorKind::Unavailable, Retry::Never, "broke");
    let interim = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
    check(&failure_of(Reply::Flood(interim)).await, ErrorKind::Unavailable, Retry::MayHelp, "no answer within");
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_is_an_error() {
    for body in ["", "[]", "{}", "nonsense", r#"{"firecracker_version": 7}"#] {
        let server = Server::start(move |_| Reply::Respond(http(200, body)));
        let error = server.client().version("create").await.unwrap_err();
        check(&error, ErrorKind::Unavailable, Retry::Never, "is malformed");
    }
    let unknown = r#"{"app_name":"x","id":"x","state":"Exploded","vmm_version":"x"}"#;
    let server = Server::start(move |_| Reply::Respond(http(200, unknown)));
    assert!(server.client().describe("create").await.is_err());
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_is_made_again() {
    let server = Server::start(|_| Reply::RespondAndClose(http(204, "")));
    let client = server.client();
    for _ in 0..3 {
        client.send("create", &START).await.expect("a new connection");
    }
    let connections: Vec<_> = server.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [1, 2, 3], "and nothing is sent twice");
}

#[tokio::test]
async fn late_response_is_not_read_by_the_next_request() {
    let answer = |state| format!(r#"{{"app_name":"x","id":"x","state":"{state}","vmm_version":"x"}}"#);
    let server = Server::start(move |seen| match seen.connection {
        1 | 2 => Reply::Silence,
        _ => Reply::Respond(http(200, &answer("Running"))),
    });
    let client = server.client();
    assert!(client.describe("create").await.is_err());
    let dropped = tokio::time::timeout(Duration::from_millis(20), client.send("create", &START)).await;
    assert!(dropped.is_err(), "it was cancelled");
    assert_eq!(client.describe("create").await.unwrap().state, InstanceState::Running);
    let last = server.seen().last().map(|seen| seen.connection);
    assert_eq!(last, Some(3), "neither connection is used again");
}

#[tokio::test]
async fn calls_side_by_side_wait_for_each_other() {
    let server = Server::start(|_| Reply::Respond(http(204, "")));
    let client = std::sync::Arc::new(server.client());
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let client = std::sync::Arc::clone(&client);
            tokio::spawn(async move { client.send("create", &START).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().expect("each is answered");
    }
    assert!(server.seen().iter().all(|seen| seen.connection == 1));
    assert_eq!(server.seen().len(), 32);
}
