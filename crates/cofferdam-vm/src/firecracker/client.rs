//! The HTTP client: one persistent connection, a deadline for each call, a maximum length for each answer.
//!
//! ```text
//! none --connect--> idle --request, complete answer--> idle
//!                     '--error, deadline, call dropped--> none
//! ```
//!
//! A connection on which an error occurred is not used again: a late answer must not be taken for that of the next
//! request.

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
use super::model::{FirecrackerVersion, InstanceInfo};
use super::process::Tree;
use super::request::{Method, Pace, Request};
use super::socket;

/// Maximum length of an answer's body.
const MAX_ANSWER: usize = 64 * 1024;
/// Maximum length of an answer's head.
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 32;

/// Deadlines of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Time to connect.
    pub connect: Duration,
    /// Time for an answer.
    pub call: Duration,
    /// Time for an answer that reads or writes memory.
    pub slow: Duration,
}

type Message = hyper::Request<Full<Bytes>>;

/// A client of one Firecracker. It makes one call at a time; others wait for it.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    deadlines: Deadlines,
    idle: Mutex<Option<Connection>>,
    /// The mount that the socket's path starts at, if it must be kept open.
    _tree: Tree,
}

/// A connection and the task that forwards its bytes, which ends with it.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The body of an error response.
#[derive(Deserialize)]
struct Fault {
    #[serde(default)]
    fault_message: String,
}

impl Client {
    /// Creates a client of the Firecracker that listens at `socket`. Connects with the first call.
    pub fn new(socket: impl Into<PathBuf>, deadlines: Deadlines) -> Self {
        Self { socket: socket.into(), deadlines, idle: Mutex::new(None), _tree: None }
    }

    /// Keeps the mount open that the socket's path starts at.
    pub(super) fn holding(self, tree: Tree) -> Self {
        Self { _tree: tree, ..self }
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Requests the description of the process and the state of its VM.
    pub async fn describe(&self, operation: &'static str) -> Result<InstanceInfo> {
        self.query(operation, &Request::DescribeInstance).await
    }

    /// Requests the version of the process.
    pub async fn version(&self, operation: &'static str) -> Result<FirecrackerVersion> {
        self.query(operation, &Request::Version).await
    }

    /// Sends a request, and discards the body of the answer.
    pub async fn send(&self, operation: &'static str, request: &Request) -> Result<()> {
        self.call(operation, request).await.map(drop)
    }

    async fn query<T: DeserializeOwned>(&self, operation: &'static str, request: &Request) -> Result<T> {
        let answer = self.call(operation, request).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| Failed::Malformed(error.to_string()).into_error(operation, request.doing(), &self.socket))
    }

    async fn call(&self, operation: &'static str, request: &Request) -> Result<Bytes> {
        self.exchange(request).await.map_err(|failed| failed.into_error(operation, request.doing(), &self.socket))
    }

    async fn exchange(&self, request: &Request) -> Result<Bytes, Failed> {
        let message = message(request)?;
        let mut idle = self.idle.lock().await;
        // Taken out during the call: if the call fails or is dropped, so is the connection.
        let mut connection = self.connection(idle.take()).await?;
        let timeout = match request.pace() {
            Pace::Quick => self.deadlines.call,
            Pace::Slow => self.deadlines.slow,
        };
        let mut answered = timed(timeout, answer(&mut connection, message)).await;
        if let Err(Refusal::Unsent(message)) = answered {
            // The server had closed it: it has not received the request.
            connection = self.connection(None).await?;
            answered = timed(timeout, answer(&mut connection, *message)).await;
        }
        let (status, body) = answered.map_err(Failed::from)?;
        *idle = Some(connection);
        drop(idle);
        check_status(request, status, body)
    }

    /// Returns the idle connection if it is still open, else a new one.
    async fn connection(&self, idle: Option<Connection>) -> Result<Connection, Failed> {
        if let Some(mut connection) = idle
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
    // The caller that waits for an answer gets its errors.
    let driver = tokio::spawn(async move { drop(connection.await) });
    Ok(Connection { sender, driver })
}

/// The reason for a missing answer.
enum Refusal {
    /// The request was not sent.
    Unsent(Box<Message>),
    Failed(Failed),
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unsent(_) => Self::Broken("it was closed immediately".to_owned()),
            Refusal::Failed(failed) => failed,
        }
    }
}

async fn timed<T>(limit: Duration, answer: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    timeout(limit, answer).await.unwrap_or(Err(Refusal::Failed(Failed::Silent(limit))))
}

fn message(request: &Request) -> Result<Message, Failed> {
    let body = request.body().map_err(Failed::Unencodable)?.map(|body| body.to_string());
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

/// Returns the body if the status is the expected one.
fn check_status(request: &Request, status: u16, body: Bytes) -> Result<Bytes, Failed> {
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
