//! One connection to a plugin.
//!
//! ```text
//! Peer::request --frame--> queue --writer--> plugin's stdin
//! plugin's stdout --serve: Decoder, parse--> response: its waiter; stream item: its receiver; request: Served
//! ```
//!
//! The reader never waits for the host's own work, so that a slow service cannot fill the output's ring buffer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cofferdam_contract::{OutputEvent, OutputStream, OutputSubscription, StdinWriter};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use super::backlog::{self, Backlog, End, STREAM_CREDIT};
use super::frame::encode;
use super::message::{Body, Id, Message, answer, parse, request};
use super::{CallError, Decoder, ErrorKind, Violation};

/// The maximum size of a message in bytes.
pub const MAX_MESSAGE: usize = 8 << 20;
/// The maximum number of requests of one side without an answer.
const MAX_REQUESTS: usize = 256;
/// The maximum number of frames that wait for the plugin to read them.
const MAX_QUEUED_FRAMES: usize = 8;
/// The number of consumed stream items after which the host acknowledges them.
const ACKNOWLEDGE_EVERY: u64 = 16;
/// The maximum size of all responses that the plugin has not read, in bytes.
const MAX_UNREAD: usize = 64 << 20;
/// The maximum size of all requests of the plugin that run, in bytes.
const MAX_HELD: usize = 64 << 20;
/// The time after which a process that closed its input must have ended.
const CLOSED_INPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum time between the first and the last byte of a frame.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// A request of the plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Incoming {
    /// The method, such as `kv.get`.
    pub method: String,
    /// The parameters.
    pub params: Value,
    /// The correlation identifier, if the plugin sent one.
    pub correlation: Option<String>,
}

/// The host's side of a plugin's requests.
#[async_trait]
pub trait Served: Send + Sync + 'static {
    /// Answers a request. A cancelled request drops the future.
    async fn request(&self, incoming: Incoming) -> Result<Value, CallError>;

    /// Takes a notification.
    fn notification(&self, incoming: Incoming);

    /// Takes bytes that the plugin wrote to its log.
    fn log(&self, bytes: &[u8]);
}

/// Something that a plugin sends while a request runs.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamItem {
    /// Progress, as the plugin reports it.
    Progress(Value),
    /// The next item of a streaming result.
    Item(Value),
}

/// The rule of a stream.
const TOO_MANY_ITEMS: &str = "a stream has more than 64 items that are not acknowledged";
/// The maximum number of answers that the plugin has not read.
const MAX_UNSENT: usize = 256;

struct Waiter {
    reply: oneshot::Sender<Result<Value, CallError>>,
    items: Option<backlog::Sender>,
    /// The number of items that the plugin sent.
    received: u64,
    /// The number of items that the host acknowledged, or is about to.
    acknowledged: Arc<AtomicU64>,
    /// The number of items for the task that acknowledges discarded ones.
    discarded: Option<watch::Sender<u64>>,
}

struct Shared {
    out: mpsc::Sender<Bytes>,
    waiters: Mutex<HashMap<u64, Waiter>>,
    next: AtomicU64,
    backlog: Backlog,
    /// The bytes of responses that the plugin has not read.
    unread: AtomicUsize,
    /// The number of answers that the plugin has not read.
    unsent: AtomicUsize,
    /// Notified when they are too many.
    overflow: Notify,
    /// The bytes of the plugin's requests that run.
    held: AtomicUsize,
    /// Notified when the plugin has closed its input.
    broken: Arc<Notify>,
    closed: AtomicBool,
}

/// The host's end of a connection.
#[derive(Clone)]
pub struct Peer(Arc<Shared>);

impl Peer {
    /// Creates the connection and the task that writes to the plugin.
    pub fn new(stdin: StdinWriter) -> (Self, JoinHandle<()>) {
        let (out, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        let broken = Arc::new(Notify::new());
        let shared = Shared {
            out,
            waiters: Mutex::default(),
            next: AtomicU64::new(1),
            backlog: Backlog::default(),
            unread: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            overflow: Notify::new(),
            held: AtomicUsize::new(0),
            broken: Arc::clone(&broken),
            closed: AtomicBool::new(false),
        };
        (Self(Arc::new(shared)), tokio::spawn(write(stdin, frames, broken)))
    }

    /// Sends a request. With the name of a caller, the request has progress and stream items, within the caller's share of
    /// the room for them.
    ///
    /// # Errors
    /// - `Limit` if 256 requests wait for an answer, or if the parameters are too large.
    /// - `Unavailable` if the connection has ended.
    pub async fn request(
        &self,
        method: &str,
        params: &Value,
        correlation: &str,
        caller: Option<&str>,
    ) -> Result<Request, CallError> {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let frame = body(&request(Some(id), method, params, correlation))?;
        let (reply, answer) = oneshot::channel();
        let (items, receiver) = caller.map(|caller| self.0.backlog.open(caller)).unzip();
        let acknowledged = Arc::new(AtomicU64::new(0));
        {
            let mut waiters = self.0.waiters.lock();
            if self.0.closed.load(Ordering::Acquire) {
                return Err(ended());
            }
            if waiters.len() >= MAX_REQUESTS {
                let message = format!("{MAX_REQUESTS} calls of this plugin are running");
                return Err(CallError::new(ErrorKind::Limit, message));
            }
            let acknowledged = Arc::clone(&acknowledged);
            waiters.insert(id, Waiter { reply, items, received: 0, acknowledged, discarded: None });
        }
        let mut request = Request {
            peer: self.clone(),
            id,
            answer: Some(answer),
            items: receiver,
            consumed: 0,
            acknowledged,
            is_sent: false,
        };
        self.0.out.send(frame).await.map_err(|_| ended())?;
        request.is_sent = true;
        Ok(request)
    }

    /// Sends a notification.
    pub async fn notify(&self, method: &str, params: &Value, correlation: &str) -> Result<(), CallError> {
        self.0.out.send(body(&request(None, method, params, correlation))?).await.map_err(|_| ended())
    }

    /// Returns true while the plugin's output is read.
    pub fn is_open(&self) -> bool {
        !self.0.closed.load(Ordering::Acquire)
    }

    /// Reads the plugin's output until it ends. Returns the rule that the plugin broke, if any.
    pub async fn serve(&self, output: OutputSubscription, served: Arc<dyn Served>) -> Option<Violation> {
        let active = Arc::new(Active::default());
        let result = self.read(output, &served, &active).await;
        self.0.closed.store(true, Ordering::Release);
        self.0.waiters.lock().clear();
        active.abort_all();
        result.err()
    }

    async fn read(
        &self,
        mut output: OutputSubscription,
        served: &Arc<dyn Served>,
        active: &Arc<Active>,
    ) -> Result<(), Violation> {
        let mut decoder = Decoder::new(MAX_MESSAGE);
        let mut deadline = None;
        loop {
            let event = tokio::select! {
                event = output.next() => event,
                () = until(deadline) => return Err(Violation::Silence),
                () = self.0.broken.notified() => return Err(Violation::ClosedInput),
                () = self.0.overflow.notified() => {
                    return Err(Violation::Flood("the plugin does not read the answers to its requests"));
                }
            };
            match event {
                None => return Ok(()),
                Some(OutputEvent::Lost { .. }) => {
                    return Err(Violation::Flood("the plugin writes faster than the host reads"));
                }
                Some(OutputEvent::Chunk(chunk)) if chunk.stream == OutputStream::Stderr => served.log(&chunk.data),
                Some(OutputEvent::Chunk(chunk)) => {
                    decoder.feed(&chunk.data);
                    let mut whole = false;
                    while let Some(body) = decoder.next_body()? {
                        whole = true;
                        self.take(&body, served, active)?;
                    }
                    deadline = match decoder.is_inside_frame() {
                        false => None,
                        true if whole => Some(Instant::now() + FRAME_TIMEOUT),
                        true => deadline.or_else(|| Some(Instant::now() + FRAME_TIMEOUT)),
                    };
                }
            }
        }
    }

    fn take(&self, body: &[u8], served: &Arc<dyn Served>, active: &Arc<Active>) -> Result<(), Violation> {
        let (messages, is_batch) = match parse(body)? {
            Body::Single(message) => (vec![message], false),
            Body::Batch(messages) => (messages, true),
        };
        let mut requests = Vec::new();
        for message in messages {
            match message {
                Message::Response { id, outcome } => self.answered(&id, outcome)?,
                Message::Notification { method, params, correlation } => match method.as_str() {
                    "$/cancelRequest" => active.cancel(&params),
                    "$/progress" => self.progress(params, body.len())?,
                    "$/stream" => self.streamed(params, body.len())?,
                    _ => served.notification(Incoming { method, params, correlation }),
                },
                Message::Request { id, method, params, correlation } => {
                    let echoed = correlation.clone().unwrap_or_default();
                    let (served, incoming) = (Arc::clone(served), Incoming { method, params, correlation });
                    let task = tokio::spawn(async move { served.request(incoming).await });
                    active.add(&id, task.abort_handle())?;
                    requests.push((id, echoed, task));
                }
            }
        }
        if requests.is_empty() {
            return Ok(());
        }
        let held = Held::new(self, body.len());
        if self.0.held.load(Ordering::Relaxed) > MAX_HELD {
            return Err(Violation::Flood("the requests of the plugin that run have more than 64 MiB"));
        }
        tokio::spawn(respond(self.clone(), requests, is_batch, (Arc::clone(active), held)));
        Ok(())
    }

    fn answered(&self, id: &Id, outcome: Result<Value, CallError>) -> Result<(), Violation> {
        let Id::Number(id) = id else { return Err(Violation::UnknownId) };
        let waiter = self.0.waiters.lock().remove(id).ok_or(Violation::UnknownId)?;
        // A caller that gave up does not wait any more.
        let _ = waiter.reply.send(outcome);
        Ok(())
    }

    fn progress(&self, params: Value, size: usize) -> Result<(), Violation> {
        let id = params.get("token").and_then(Value::as_u64).ok_or(Violation::UnknownId)?;
        let value = params.get("value").cloned().unwrap_or_default();
        // Progress can arrive after the caller gave up.
        if let Some(items) = self.0.waiters.lock().get(&id).and_then(|waiter| waiter.items.as_ref()) {
            items.push(StreamItem::Progress(value), size);
        }
        Ok(())
    }

    fn streamed(&self, mut params: Value, size: usize) -> Result<(), Violation> {
        let id = params.get("id").and_then(Value::as_u64).ok_or(Violation::UnknownId)?;
        let seq = params.get("seq").and_then(Value::as_u64);
        let value = params.get_mut("value").map(Value::take).unwrap_or_default();
        let mut waiters = self.0.waiters.lock();
        let Some(waiter) = waiters.get_mut(&id) else { return Err(Violation::UnknownId) };
        if seq != Some(waiter.received) {
            return Err(Violation::BadMessage("the seq of a stream item is not the next number"));
        }
        waiter.received += 1;
        if waiter.received > waiter.acknowledged.load(Ordering::Acquire) + STREAM_CREDIT as u64 {
            return Err(Violation::Flood(TOO_MANY_ITEMS));
        }
        if !waiter.items.as_ref().is_some_and(|items| items.push(StreamItem::Item(value), size)) {
            self.discard(id, waiter);
        }
        Ok(())
    }

    /// Acknowledges items that no caller takes, so that the plugin continues.
    fn discard(&self, id: u64, waiter: &mut Waiter) {
        let discarded = waiter.discarded.get_or_insert_with(|| {
            let (sender, mut counts) = watch::channel(0);
            let (peer, acknowledged) = (self.clone(), Arc::clone(&waiter.acknowledged));
            tokio::spawn(async move {
                while counts.changed().await.is_ok() {
                    let count = *counts.borrow_and_update();
                    peer.acknowledge(id, &acknowledged, count).await;
                }
            });
            sender
        });
        discarded.send_replace(waiter.received);
    }

    /// Acknowledges items if enough came since the last time.
    async fn acknowledge(&self, id: u64, acknowledged: &AtomicU64, count: u64) {
        let due = |before| (count >= before + ACKNOWLEDGE_EVERY).then_some(count);
        // First, because the plugin may send more as soon as it reads the message.
        if acknowledged.fetch_update(Ordering::AcqRel, Ordering::Acquire, due).is_ok() {
            let _ = self.notify("$/streamAck", &json!({"id": id, "count": count}), "stream").await;
        }
    }
}

fn ended() -> CallError {
    CallError::new(ErrorKind::Unavailable, "the plugin has ended")
}

fn body(message: &impl Serialize) -> Result<Bytes, CallError> {
    let text = serde_json::to_vec(message).map_err(|error| CallError::new(ErrorKind::Internal, error.to_string()))?;
    if text.len() > MAX_MESSAGE {
        return Err(CallError::new(
            ErrorKind::Limit,
            format!("the message has {} bytes; 8 MiB are allowed", text.len()),
        ));
    }
    Ok(encode(&text))
}

async fn write(mut stdin: StdinWriter, mut frames: mpsc::Receiver<Bytes>, broken: Arc<Notify>) {
    while let Some(frame) = frames.recv().await {
        if stdin.write_all(&frame).await.is_err() {
            // A process that ends closes its output, too.
            tokio::time::sleep(CLOSED_INPUT_TIMEOUT).await;
            broken.notify_one();
            return;
        }
    }
}

/// A request of the plugin that runs: its identifier, its correlation identifier and its task.
type Begun = (Id, String, JoinHandle<Result<Value, CallError>>);

/// Sends the responses to one body's requests when all are there.
async fn respond(peer: Peer, requests: Vec<Begun>, is_batch: bool, (active, held): (Arc<Active>, Held)) {
    let mut answers = Vec::with_capacity(requests.len());
    for (id, correlation, task) in requests {
        let outcome = match task.await {
            Ok(outcome) => outcome,
            Err(error) if error.is_cancelled() => {
                Err(CallError::new(ErrorKind::Cancelled, "the request was cancelled"))
            }
            Err(_) => Err(CallError::new(ErrorKind::Internal, "the host failed on this request")),
        };
        active.remove(&id);
        answers.push(answer(&id, outcome, &correlation));
    }
    let message = if is_batch { Value::Array(answers) } else { answers.remove(0) };
    let frame = body(&message).or_else(|error| match &message {
        Value::Object(members) => {
            let mut short = json!({"jsonrpc": "2.0", "error": error.to_json()});
            short["id"] = members["id"].clone();
            body(&short)
        }
        _ => Err(error),
    });
    let Ok(frame) = frame else { return };
    drop((message, held));
    let size = frame.len();
    let unsent = peer.0.unsent.fetch_add(1, Ordering::Relaxed) + 1;
    if peer.0.unread.fetch_add(size, Ordering::Relaxed) + size > MAX_UNREAD || unsent > MAX_UNSENT {
        peer.0.overflow.notify_one();
    }
    let _ = peer.0.out.send(frame).await;
    peer.0.unread.fetch_sub(size, Ordering::Relaxed);
    peer.0.unsent.fetch_sub(1, Ordering::Relaxed);
}

/// The bytes of one body's requests while they run.
struct Held(Peer, usize);

impl Held {
    fn new(peer: &Peer, size: usize) -> Self {
        peer.0.held.fetch_add(size, Ordering::Relaxed);
        Self(peer.clone(), size)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.held.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Waits until a time, or forever.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The requests of the plugin that run.
#[derive(Default)]
struct Active(Mutex<HashMap<Id, AbortHandle>>);

impl Active {
    fn add(&self, id: &Id, task: AbortHandle) -> Result<(), Violation> {
        let mut running = self.0.lock();
        let refused = if running.len() >= MAX_REQUESTS {
            Some(Violation::Flood("more than 256 requests of the plugin are running"))
        } else if running.contains_key(id) {
            Some(Violation::BadMessage("the id of a request is used twice at a time"))
        } else {
            None
        };
        if let Some(refused) = refused {
            task.abort();
            return Err(refused);
        }
        running.insert(id.clone(), task);
        Ok(())
    }

    fn remove(&self, id: &Id) {
        self.0.lock().remove(id);
    }

    fn cancel(&self, params: &Value) {
        let id = match params.get("id") {
            Some(Value::String(text)) => Id::Text(text.clone()),
            Some(number) => Id::Number(number.as_u64().unwrap_or(u64::MAX)),
            None => return,
        };
        if let Some(task) = self.0.lock().get(&id) {
            task.abort();
        }
    }

    fn abort_all(&self) {
        self.0.lock().drain().for_each(|(_, task)| task.abort());
    }
}

/// The next event of a request that was sent to the plugin.
#[derive(Debug)]
pub enum Step {
    /// Progress or an item.
    Item(StreamItem),
    /// The caller was too slow, and its items are lost. The plugin still answers.
    Cut,
    /// The answer.
    Answer(Result<Value, CallError>),
    /// The connection ended without an answer.
    Ended,
}

/// A request that was sent to the plugin. Dropping it before its answer cancels it.
pub struct Request {
    peer: Peer,
    id: u64,
    answer: Option<oneshot::Receiver<Result<Value, CallError>>>,
    items: Option<backlog::Receiver>,
    consumed: u64,
    acknowledged: Arc<AtomicU64>,
    /// False until the whole request waits for the plugin. Until then, no answer can come.
    is_sent: bool,
}

impl Request {
    /// Waits for the next step. All items come before the answer. A dropped future loses no item.
    pub async fn step(&mut self) -> Step {
        if let Some(items) = &self.items {
            self.peer.acknowledge(self.id, &self.acknowledged, self.consumed).await;
            match items.next().await {
                Ok(item) => {
                    self.consumed += u64::from(matches!(item, StreamItem::Item(_)));
                    return Step::Item(item);
                }
                Err(End::Closed) => self.items = None,
                Err(End::Cut) => {
                    self.items = None;
                    if let Some(waiter) = self.peer.0.waiters.lock().get_mut(&self.id) {
                        // The plugin may wait for an acknowledgement.
                        self.peer.discard(self.id, waiter);
                    }
                    return Step::Cut;
                }
            }
        }
        let Some(answer) = &mut self.answer else { return Step::Ended };
        let answer = answer.await;
        self.answer = None;
        answer.map_or(Step::Ended, Step::Answer)
    }

    /// Waits until the caller was too slow. The next step is the cut.
    pub async fn cut(&self) {
        match &self.items {
            Some(items) => items.cut().await,
            None => std::future::pending().await,
        }
    }

    /// Asks the plugin to cancel the request. The plugin still answers.
    pub async fn cancel(&self, correlation: &str) {
        let _ = self.peer.notify("$/cancelRequest", &json!({"id": self.id}), correlation).await;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.is_sent {
            self.peer.0.waiters.lock().remove(&self.id);
        } else if self.answer.is_some() && self.peer.0.waiters.lock().contains_key(&self.id) {
            let (peer, id) = (self.peer.clone(), self.id);
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move {
                    let _ = peer.notify("$/cancelRequest", &json!({"id": id}), "cancelled").await;
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
