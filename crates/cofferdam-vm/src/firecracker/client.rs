//! The client: one connection that is kept, each call with a deadline, each answer with a length.
//!
//! ```text
//! none --connect--> kept --request, whole answer--> kept
//!                     '--error, deadline, call dropped--> none
//! ```
//!
//! A connection on which anything went wrong is not used again: an answer that comes too late must not be taken for the
//! next one's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::Result;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::error::Failed;
use super::model::{BalloonStats, FirecrackerVersion, InstanceInfo, MachineConfig};
use super::process::Tree;
use super::request::{Method, Pace, Request};
use super::socket;

/// The longest body of an answer.
const MAX_ANSWER: usize = 64 * 1024;
/// The longest head of an answer.
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 32;

/// How long is waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For a connection.
    pub connect: Duration,
    /// For an answer.
    pub call: Duration,
    /// For an answer where memory is read or written.
    pub slow: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { connect: Duration::from_secs(2), call: Duration::from_secs(5), slow: Duration::from_secs(60) }
    }
}

type Message = hyper::Request<Full<Bytes>>;

/// A client of one Firecracker. One call is made at a time; others wait for it.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    deadlines: Deadlines,
    kept: Mutex<Option<Connection>>,
    /// What the socket's path begins with, if that needs to be held.
    _tree: Tree,
}

/// A connection and the task that moves its bytes, which ends with it.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    mover: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.mover.abort();
    }
}

/// What is said with a status that is no success.
#[derive(Deserialize)]
struct Fault {
    #[serde(default)]
    fault_message: String,
}

impl Client {
    /// A client of the Firecracker that listens at `socket`. Nothing is contacted before the first call.
    pub fn new(socket: impl Into<PathBuf>, deadlines: Deadlines) -> Self {
        Self { socket: socket.into(), deadlines, kept: Mutex::new(None), _tree: None }
    }

    /// The same, with what the socket's path begins with.
    pub(super) fn holding(self, tree: Tree) -> Self {
        Self { _tree: tree, ..self }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the process is and what its machine does.
    pub async fn describe(&self, operation: &'static str) -> Result<InstanceInfo> {
        self.ask(operation, &Request::DescribeInstance).await
    }

    /// The version of the process.
    pub async fn version(&self, operation: &'static str) -> Result<FirecrackerVersion> {
        self.ask(operation, &Request::Version).await
    }

    /// Processors and memory as they are set.
    pub async fn machine(&self, operation: &'static str) -> Result<MachineConfig> {
        self.ask(operation, &Request::DescribeMachine).await
    }

    /// What the guest says of its memory.
    pub async fn balloon_stats(&self, operation: &'static str) -> Result<BalloonStats> {
        self.ask(operation, &Request::BalloonStats).await
    }

    /// Has something set or done. What is answered to a question is checked to be JSON and forgotten.
    pub async fn send(&self, operation: &'static str, request: &Request) -> Result<()> {
        if request.method() == Method::Get {
            return self.ask::<serde_json::Value>(operation, request).await.map(drop);
        }
        self.call(operation, request).await.map(drop)
    }

    async fn ask<T: DeserializeOwned>(&self, operation: &'static str, request: &Request) -> Result<T> {
        let answer = self.call(operation, request).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| Failed::Senseless(error.to_string()).into_error(operation, request.doing(), &self.socket))
    }

    async fn call(&self, operation: &'static str, request: &Request) -> Result<Bytes> {
        self.exchange(request).await.map_err(|failed| failed.into_error(operation, request.doing(), &self.socket))
    }

    async fn exchange(&self, request: &Request) -> Result<Bytes, Failed> {
        let message = message(request)?;
        let mut kept = self.kept.lock().await;
        // Taken out for as long as the call lasts: if it fails or is dropped, so is the connection.
        let mut connection = self.ready(kept.take()).await?;
        let limit = match request.pace() {
            Pace::Quick => self.deadlines.call,
            Pace::Slow => self.deadlines.slow,
        };
        let mut answered = timed(limit, answer(&mut connection, message)).await;
        if let Err(Refusal::Unsent(message)) = answered {
            // It had been closed by the other side: nobody has seen the request.
            connection = self.ready(None).await?;
            answered = timed(limit, answer(&mut connection, *message)).await;
        }
        let (status, body) = answered.map_err(Failed::from)?;
        *kept = Some(connection);
        drop(kept);
        judged(request, status, body)
    }

    /// The kept connection if it still stands, else a new one.
    async fn ready(&self, kept: Option<Connection>) -> Result<Connection, Failed> {
        if let Some(mut connection) = kept
            && let Ok(Ok(())) = timeout(self.deadlines.connect, connection.sender.ready()).await
        {
            return Ok(connection);
        }
        let limit = self.deadlines.connect;
        timeout(limit, connect(&self.socket)).await.map_err(|_| Failed::Silent(limit))?
    }
}

async fn connect(path: &Path) -> Result<Connection, Failed> {
    let stream = socket::connect(path).await.map_err(Failed::Unreachable)?;
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Failed::Broken(chain(&error)))?;
    // Its errors are told to whoever waits for an answer.
    let mover = tokio::spawn(async move { drop(connection.await) });
    Ok(Connection { sender, mover })
}

/// Why there is no answer.
enum Refusal {
    /// The request never left.
    Unsent(Box<Message>),
    Failed(Failed),
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unsent(_) => Self::Broken("it is closed again at once".to_owned()),
            Refusal::Failed(failed) => failed,
        }
    }
}

async fn timed<T>(limit: Duration, answer: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    timeout(limit, answer).await.unwrap_or(Err(Refusal::Failed(Failed::Silent(limit))))
}

fn message(request: &Request) -> Result<Message, Failed> {
    let body = request.body().map_err(Failed::Unsayable)?.map(|body| body.to_string());
    let method = match request.method() {
        Method::Get => hyper::Method::GET,
        Method::Put => hyper::Method::PUT,
        Method::Patch => hyper::Method::PATCH,
    };
    let mut head = hyper::Request::builder().method(method).uri(request.path().as_ref()).header(HOST, "localhost");
    if body.is_some() {
        head = head.header(CONTENT_TYPE, "application/json");
    }
    head.body(Full::new(Bytes::from(body.unwrap_or_default()))).map_err(|error| Failed::Broken(error.to_string()))
}

async fn answer(connection: &mut Connection, message: Message) -> Result<(u16, Bytes), Refusal> {
    let broken = |error: &(dyn std::error::Error + 'static)| Refusal::Failed(Failed::Broken(chain(error)));
    let response = match connection.sender.try_send_request(message).await {
        Ok(response) => response,
        Err(mut error) => {
            return Err(match error.take_message() {
                Some(message) => Refusal::Unsent(Box::new(message)),
                None => broken(error.error()),
            });
        }
    };
    let status = response.status().as_u16();
    match Limited::new(response.into_body(), MAX_ANSWER).collect().await {
        Ok(body) => Ok((status, body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err(Refusal::Failed(Failed::TooLong(MAX_ANSWER))),
        Err(error) => Err(broken(error.as_ref())),
    }
}

/// The body, if the status is the one that says it was done.
fn judged(request: &Request, status: u16, body: Bytes) -> Result<Bytes, Failed> {
    if status == request.success() {
        return Ok(body);
    }
    let message = match serde_json::from_slice::<Fault>(&body) {
        Ok(fault) => fault.fault_message,
        Err(_) => String::from_utf8_lossy(&body).into_owned(),
    };
    Err(Failed::Refused { status, message })
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}
