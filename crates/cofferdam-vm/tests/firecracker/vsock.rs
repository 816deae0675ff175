//! Streams into a VM: the handshake, also with hostile ends.

use std::path::Path;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Retry};
use cofferdam_vm::firecracker::vsock;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;

const TIMEOUT: Duration = Duration::from_millis(300);

/// Creates a socket that answers the first line with these bytes, and echoes everything else. The channel returns the
/// line.
fn socket(answer: &'static [u8], and_end: bool) -> (TempDir, tokio::sync::oneshot::Receiver<String>) {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("v.sock")).unwrap();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = stream.into_split();
        let (mut reader, mut line) = (BufReader::new(reader), String::new());
        reader.read_line(&mut line).await.unwrap();
        let _ = sender.send(line);
        writer.write_all(answer).await.unwrap();
        if !and_end {
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        }
    });
    (directory, receiver)
}

async fn failure(path: &Path) -> Error {
    let outcome = tokio::time::timeout(Duration::from_secs(20), vsock::connect(path, 52, TIMEOUT)).await;
    let error = outcome.expect("no hang").expect_err("there is no stream");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.remedy().is_some() && error.to_string().contains("port 52"), "{error}");
    error
}

#[tokio::test]
async fn the_guests_first_bytes_come_out_of_the_stream() {
    let (directory, receiver) = socket(b"OK 1073741824\nhello", false);
    let mut stream = vsock::connect(&directory.path().join("v.sock"), 52, TIMEOUT).await.unwrap();
    assert_eq!(receiver.await.unwrap(), "CONNECT 52\n");
    stream.write_all(b" world").await.unwrap();
    let mut text = [0; 11];
    stream.read_exact(&mut text).await.unwrap();
    assert_eq!(&text, b"hello world");
}

#[tokio::test]
async fn vsock_port_without_a_listener_can_be_retried() {
    let (directory, _asked) = socket(b"", true);
    let error = failure(&directory.path().join("v.sock")).await;
    assert!(error.to_string().contains("no process inside listens"), "{error}");
    assert_eq!(error.retry(), Retry::MayHelp);
}

#[tokio::test]
async fn malformed_greeting_is_refused() {
    for answer in [&b"NO\n"[..], b"OK\n", b"OK x\n", b"OK 99999999999999999999999999\n", b"xxxxxxxxxxxxxxxxxxxxxxxx"] {
        let (directory, _asked) = socket(answer, false);
        let error = failure(&directory.path().join("v.sock")).await;
        assert!(error.to_string().contains("is malformed"), "{error}");
        assert_eq!(error.retry(), Retry::Never);
    }
    let (directory, _asked) = socket(b"OK 1", true);
    assert!(failure(&directory.path().join("v.sock")).await.to_string().contains("is malformed"));
}

#[tokio::test]
async fn half_a_greeting_is_no_hang() {
    for answer in [&b""[..], b"OK 1"] {
        let (directory, _asked) = socket(answer, false);
        let error = failure(&directory.path().join("v.sock")).await;
        assert!(error.to_string().contains("no answer within 0.3 s"), "{error}");
    }
}

#[tokio::test]
async fn a_socket_that_is_not_there_or_a_link_is_refused() {
    let (directory, _asked) = socket(b"OK 1\n", false);
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path().join("v.sock"), &link).unwrap();
    failure(&link).await;
    failure(&directory.path().join("none")).await;
}
