//! HTTP servers for the tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_vm::firecracker::{Client, Deadlines};
use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// Far longer than any operation: anything later is a hang.
pub(crate) const NO_HANG: Duration = Duration::from_secs(60);

/// A request that a server received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub method: String,
    pub path: String,
    pub head: String,
    pub body: Option<Value>,
    /// The number of its connection, counted from 1.
    pub connection: usize,
}

/// A server's reaction to a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Sends these bytes, and waits for the next request.
    Respond(Vec<u8>),
    /// Sends these bytes, and closes the connection.
    RespondAndClose(Vec<u8>),
    /// Sends nothing.
    Silence,
    /// Sends these bytes repeatedly.
    Flood(Vec<u8>),
}

/// Returns an HTTP answer.
pub(crate) fn http(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// A server at a Unix socket that ends with it.
#[derive(Debug)]
pub(crate) struct Server {
    directory: TempDir,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(crate) fn start(reply: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(socket(directory.path())).expect("a socket");
        let seen = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(listen(listener, Arc::clone(&seen), reply));
        Self { directory, seen }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(socket(self.directory.path()), quick())
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }
}

/// Serves for ever.
pub(crate) async fn listen(
    listener: UnixListener,
    seen: Arc<Mutex<Vec<Seen>>>,
    reply: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
) {
    let reply = Arc::new(reply);
    for connection in 1.. {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (reply, seen) = (Arc::clone(&reply), Arc::clone(&seen));
        tokio::spawn(async move { serve(stream, connection, &*reply, &seen).await });
    }
}

/// Returns short deadlines.
pub(crate) fn quick() -> Deadlines {
    let short = Duration::from_millis(300);
    Deadlines { connect: short, call: short, slow: short }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("api.sock")
}

async fn serve(mut stream: UnixStream, connection: usize, reply: &dyn Reacts, all: &Mutex<Vec<Seen>>) {
    let mut buffer = Vec::new();
    while let Some(seen) = read(&mut stream, &mut buffer, connection).await {
        all.lock().push(seen.clone());
        match reply.react(&seen) {
            Reply::Respond(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Reply::RespondAndClose(bytes) => {
                let _ = stream.write_all(&bytes).await;
                return;
            }
            Reply::Silence => std::future::pending().await,
            Reply::Flood(bytes) => while stream.write_all(&bytes).await.is_ok() {},
        }
    }
}

trait Reacts: Sync {
    fn react(&self, seen: &Seen) -> Reply;
}

impl<F: Fn(&Seen) -> Reply + Sync> Reacts for F {
    fn react(&self, seen: &Seen) -> Reply {
        self(seen)
    }
}

async fn read(stream: &mut UnixStream, buffer: &mut Vec<u8>, connection: usize) -> Option<Seen> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|part| part == b"\r\n\r\n") {
            break at + 4;
        }
        more(stream, buffer).await?;
    };
    let head = String::from_utf8(buffer.drain(..end).collect()).expect("a head of text");
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().expect("a length"))
    });
    let length: usize = length.unwrap_or(0);
    while buffer.len() < length {
        more(stream, buffer).await?;
    }
    let body: Vec<u8> = buffer.drain(..length).collect();
    let body = (!body.is_empty()).then(|| serde_json::from_slice(&body).expect("a body of JSON"));
    let mut parts = head.split(' ');
    let (method, path) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    Some(Seen { method, path, head, body, connection })
}

async fn more(stream: &mut UnixStream, buffer: &mut Vec<u8>) -> Option<()> {
    match stream.read_buf(buffer).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(()),
    }
}
