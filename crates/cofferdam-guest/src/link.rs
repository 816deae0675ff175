//! The connection to an agent: reading, writing, timeouts and its end.
//!
//! ```text
//! open --close, drop--> ended by the owner
//!   '--stream ends, invalid frame, silence--> failed; the owner is asked for the reason --> all receivers are notified
//! ```
//!
//! One task reads, one writes, one sends pings. The reader waits only for the stream. [`quiesce`] stops the connection
//! between two frames.

mod quiesce;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use cofferdam_contract::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::error;
use crate::settings::{Reason, Termination};
use crate::slots::{After, Notifier, Reply, Slot, handle_answer};
use crate::window::Taken;
use crate::wire::{self, Answer, Frame, HEAD, MAX_BODY, PART, Request, Split};

/// The interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit for the owner's reason.
const REASON_TIMEOUT: Duration = Duration::from_secs(6);
/// The highest number of queued bytes of long requests and contents.
const MAX_QUEUED: usize = 8 << 20;
const READ_BUFFER: usize = 256 * 1024;

/// The causes for which the programs inside do not run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pause {
    /// The instant at which the owner stopped all processes from outside.
    owner: Option<Instant>,
    /// The instant at which the guest was quiesced.
    quiesced: Option<Instant>,
}

impl Pause {
    /// Returns the instant at which the programs stopped, if they are stopped.
    pub fn since(&self) -> Option<Instant> {
        [self.owner, self.quiesced].into_iter().flatten().min()
    }
}

struct Table {
    slots: HashMap<u64, Slot>,
    last: u64,
    /// Operations of the owner that have not ended.
    operations: usize,
    quiescing: quiesce::State,
    /// Limits that the agent found exceeded: memory, CPU time.
    passed: (bool, bool),
    ping: Ping,
}

/// The state of the last ping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ping {
    Queued,
    /// The agent can answer it.
    Written,
    Answered,
}

struct Outgoing {
    bytes: Vec<u8>,
    _permit: Option<OwnedSemaphorePermit>,
    /// Credit for the contents, until the frame is written.
    taken: Option<Taken>,
    is_ping: bool,
    /// The source of the next frame. Until it yields, nothing is written.
    then: Option<oneshot::Receiver<Vec<u8>>>,
}

impl Outgoing {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, _permit: None, taken: None, is_ping: false, then: None }
    }
}

/// The end of the connection. The inner value is `None` if the owner ended it.
type Closed = Option<Arc<Option<Termination>>>;

/// The connection to one agent.
pub struct Link {
    table: Mutex<Table>,
    out: mpsc::UnboundedSender<Outgoing>,
    budget: Arc<Semaphore>,
    /// True as soon as the connection has ended.
    over: watch::Sender<bool>,
    /// The reason, once it is known.
    ended: watch::Sender<Closed>,
    paused: watch::Sender<Pause>,
    /// True if the agent was asked to exit.
    closing: AtomicBool,
    answer_timeout: Duration,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("open", &self.is_open()).finish_non_exhaustive()
    }
}

impl Link {
    /// Starts reading and writing. The last id and the pending slots come from the record of a former host.
    pub fn begin(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        answer_timeout: Duration,
        reason: Option<Reason>,
        (last, slots): (u64, HashMap<u64, Slot>),
    ) -> Arc<Self> {
        let (out, outgoing) = mpsc::unbounded_channel();
        let (operations, quiescing) = (0, quiesce::State::Open);
        let link = Arc::new(Self {
            table: Mutex::new(Table {
                slots,
                last,
                operations,
                quiescing,
                passed: (false, false),
                ping: Ping::Answered,
            }),
            out,
            budget: Arc::new(Semaphore::new(MAX_QUEUED)),
            over: watch::Sender::new(false),
            ended: watch::Sender::new(None),
            paused: watch::Sender::new(Pause::default()),
            closing: AtomicBool::new(false),
            answer_timeout,
        });
        let (reading, writing) = (Arc::clone(&link), Arc::clone(&link));
        tokio::spawn(async move {
            let over = reading.over.subscribe();
            let termination = tokio::select! {
                termination = reading.read(reader) => Some(termination),
                termination = reading.write(writer, outgoing) => Some(termination),
                termination = reading.send_pings() => Some(termination),
                () = until(over) => None,
            };
            reading.finish(termination, reason).await;
        });
        writing
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Returns true until the connection has ended.
    pub fn is_open(&self) -> bool {
        !*self.over.borrow()
    }

    /// Waits until the connection has ended and the reason is known. Returns the reason.
    pub async fn closed(&self) -> Option<Termination> {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.as_ref().and_then(|termination| (**termination).clone()),
            Err(_) => None,
        }
    }

    /// Waits for the same without keeping the link alive. Returns as well if the link is dropped.
    pub fn until_closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.subscribe();
        async move {
            let _ = ended.wait_for(Option::is_some).await;
        }
    }

    /// Ends the connection on behalf of its owner.
    pub fn close(&self) {
        self.over.send_replace(true);
    }

    /// Asks the agent to exit, and ends the connection after its exit or the timeout.
    pub async fn end(&self, limit: Duration) {
        // A quiesced agent gets no further frame.
        if self.is_open() && !self.is_quiesced() && !self.closing.swap(true, Ordering::AcqRel) {
            self.send(0, &Request::End);
            let _ = tokio::time::timeout(limit, until(self.over.subscribe())).await;
        }
        self.close();
        self.closed().await;
    }

    /// Frees the slot of an exec that was not requested.
    pub fn withdraw(&self, exec: u64) {
        self.table().slots.remove(&exec);
    }

    /// Takes the slot of an exec that was not requested.
    pub fn take(&self, exec: u64) -> Option<Slot> {
        self.table().slots.remove(&exec)
    }

    /// Records that the owner stopped or resumed the agent from outside.
    pub fn set_paused(&self, paused: bool) {
        self.paused.send_modify(|pause| {
            pause.owner = paused.then(|| pause.owner.unwrap_or_else(Instant::now));
        });
    }

    /// Returns true while the owner has stopped the agent from outside.
    pub fn is_paused(&self) -> bool {
        self.paused.borrow().owner.is_some()
    }

    /// Returns true while the agent cannot send anything.
    pub fn is_stopped(&self) -> bool {
        self.paused.borrow().since().is_some()
    }

    /// Returns a receiver of pauses as they begin and end.
    pub fn pauses(&self) -> watch::Receiver<Pause> {
        self.paused.subscribe()
    }

    /// Waits until the programs inside run.
    pub async fn wait_until_running(&self) {
        let _ = self.pauses().wait_for(|pause| pause.since().is_none()).await;
    }

    /// Returns true for each limit that the agent found exceeded: memory, CPU time.
    pub fn passed(&self) -> (bool, bool) {
        self.table().passed
    }

    /// Returns true if the owner ended the connection.
    pub fn is_closed_by_owner(&self) -> bool {
        matches!(&*self.ended.borrow(), Some(termination) if termination.is_none())
    }

    /// Returns true if the memory limit ended the connection.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(&*self.ended.borrow(), Some(termination) if termination.as_ref().as_ref().is_some_and(|it| it.out_of_memory))
    }

    /// Creates the error for an operation after the end.
    pub fn error(&self, operation: &'static str) -> Error {
        let ended = self.ended.borrow();
        error::ended(operation, ended.as_ref().and_then(|termination| (**termination).as_ref()))
    }

    /// Returns an error if the connection has ended.
    pub fn check(&self, operation: &'static str) -> Result<()> {
        if self.is_open() { Ok(()) } else { Err(self.error(operation)) }
    }

    /// Registers the slot that `slot` creates under a new id. Returns the id.
    pub fn enroll(&self, operation: &'static str, slot: impl FnOnce(u64) -> Slot) -> Result<u64> {
        let mut table = self.table();
        // Checked under the lock, so that the end of the connection clears every slot.
        self.check(operation)?;
        if matches!(table.quiescing, quiesce::State::Quiesced { .. }) {
            return Err(quiesce::quiesced(operation));
        }
        table.last += 1;
        let id = table.last;
        let slot = slot(id);
        table.slots.insert(id, slot);
        Ok(id)
    }

    /// Frees a slot, and asks the agent to drop the request.
    pub fn forget(&self, id: u64) {
        let known = self.table().slots.remove(&id).is_some();
        if known {
            self.send(id, &Request::Forget);
        }
    }

    /// Sends a short request. It is lost if the connection has ended.
    pub fn send(&self, id: u64, request: &Request<'_>) {
        let _ = self.out.send(Outgoing::new(encode(id, request)));
    }

    /// Sends a short request that uses credit of a window. It is lost if the connection has ended.
    pub fn send_taken(&self, id: u64, request: &Request<'_>, taken: Taken) {
        let _ = self.out.send(Outgoing { taken: Some(taken), ..Outgoing::new(encode(id, request)) });
    }

    /// Sends a request that may be long, once the queue has room for it.
    pub async fn send_long(&self, operation: &'static str, id: u64, request: &Request<'_>) -> Result<()> {
        self.send_queued(operation, id, request, None).await
    }

    /// Sends a request that may be long and uses credit of a window, like [`Self::send_long`].
    pub async fn send_queued(
        &self,
        operation: &'static str,
        id: u64,
        request: &Request<'_>,
        taken: Option<Taken>,
    ) -> Result<()> {
        let bytes = encode(id, request);
        let count = u32::try_from(bytes.len().min(MAX_QUEUED)).unwrap_or(u32::MAX);
        let acquired = Arc::clone(&self.budget).acquire_many_owned(count);
        let permit = tokio::select! {
            permit = acquired => permit.map_err(|_| self.error(operation))?,
            termination = self.closed() => return Err(error::ended(operation, termination.as_ref())),
        };
        let _ = self.out.send(Outgoing { _permit: Some(permit), taken, ..Outgoing::new(bytes) });
        Ok(())
    }

    /// Sends a short request that has one answer, and does not wait for it.
    pub fn ask(&self, operation: &'static str, request: &Request<'_>) -> Result<oneshot::Receiver<Reply>> {
        let (call, receiver) = Notifier::new();
        let id = self.enroll(operation, |_| Slot::Call(call))?;
        self.send(id, request);
        Ok(receiver)
    }

    /// Sends a request and waits for its single answer.
    pub async fn call(self: &Arc<Self>, operation: &'static str, request: &Request<'_>) -> Result<Reply> {
        let (call, receiver) = Notifier::new();
        let id = self.enroll(operation, |_| Slot::Call(call))?;
        let waiting = Waiting { link: Arc::clone(self), id };
        self.send_long(operation, id, request).await?;
        let reply = self.wait(operation, receiver).await;
        drop(waiting);
        reply
    }

    /// Waits for an answer until the answer timeout.
    pub async fn wait<T>(&self, operation: &'static str, receiver: oneshot::Receiver<T>) -> Result<T> {
        match tokio::time::timeout(self.answer_timeout, receiver).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => {
                // The end of the connection dropped the sender. The reason follows.
                let termination = self.closed().await;
                Err(error::ended(operation, termination.as_ref()))
            }
            Err(_) => Err(error::silent(operation)),
        }
    }

    async fn read(&self, mut reader: impl AsyncRead + Unpin) -> Termination {
        let mut buffer = BytesMut::with_capacity(READ_BUFFER);
        loop {
            match reader.read_buf(&mut buffer).await {
                Ok(0) => return Termination::new("its connection was closed"),
                Ok(_) => {}
                Err(error) => return Termination::new(format!("its connection broke: {error}")),
            }
            loop {
                let length = match wire::split(&buffer) {
                    Split::More => break,
                    Split::Invalid => return invalid("a frame of an invalid length"),
                    Split::Frame(frame, length) => {
                        if let Err(what) = self.receive(&frame) {
                            return invalid(what);
                        }
                        length
                    }
                };
                buffer.advance(length);
            }
            if !buffer.is_empty() && self.table().quiescing.is_silent() {
                return invalid("a byte while it was quiesced");
            }
            buffer.reserve(HEAD + MAX_BODY);
        }
    }

    async fn write(
        &self,
        mut writer: impl AsyncWrite + Unpin,
        mut outgoing: mpsc::UnboundedReceiver<Outgoing>,
    ) -> Termination {
        let mut next: Option<Outgoing> = None;
        loop {
            let mut out = match next.take() {
                Some(out) => out,
                None => match outgoing.recv().await {
                    Some(out) => out,
                    None => break,
                },
            };
            let written = async {
                writer.write_all(&out.bytes).await?;
                // The agent may answer from here on.
                out.taken = None;
                if out.is_ping {
                    self.table().ping = Ping::Written;
                }
                if outgoing.is_empty() || out.then.is_some() { writer.flush().await } else { Ok(()) }
            };
            tokio::pin!(written);
            loop {
                match tokio::time::timeout(self.answer_timeout, &mut written).await {
                    Ok(Ok(())) => break,
                    // The reader reports the end first, since it may know the reason.
                    Ok(Err(_)) => {
                        tokio::time::sleep(REASON_TIMEOUT).await;
                        return Termination::new("its connection broke");
                    }
                    Err(_) if self.is_stopped() => {}
                    Err(_) => return Termination::new("its agent reads no requests"),
                }
            }
            if let Some(then) = out.then {
                next = then.await.ok().map(Outgoing::new);
            }
        }
        std::future::pending().await
    }

    async fn send_pings(&self) -> Termination {
        let mut requested_at: Option<Instant> = None;
        loop {
            tokio::time::sleep(PING_INTERVAL.min(self.answer_timeout / 3)).await;
            let ponged = self.table().ping == Ping::Answered;
            match requested_at {
                _ if self.is_stopped() => requested_at = requested_at.map(|_| Instant::now()),
                Some(since) if !ponged => {
                    if since.elapsed() > self.answer_timeout {
                        return Termination::new("its agent does not answer");
                    }
                }
                _ => {
                    self.table().ping = Ping::Queued;
                    requested_at = Some(Instant::now());
                    let _ = self.out.send(Outgoing { is_ping: true, ..Outgoing::new(encode(0, &Request::Ping)) });
                }
            }
        }
    }

    async fn finish(&self, termination: Option<Termination>, reason: Option<Reason>) {
        self.over.send_replace(true);
        // An end on request has no reason.
        let termination = termination.filter(|_| !self.closing.load(Ordering::Acquire));
        let termination = match (termination, reason) {
            (Some(termination), Some(reason)) => {
                let answered = tokio::time::timeout(REASON_TIMEOUT, reason()).await;
                Some(answered.ok().flatten().unwrap_or(termination))
            }
            (termination, _) => termination,
        };
        self.ended.send_replace(Some(Arc::new(termination)));
        let slots = std::mem::take(&mut self.table().slots);
        for slot in slots.into_values() {
            match slot {
                Slot::Exec(exec) => exec.end(None),
                Slot::Read { flow, .. } => flow.end(Err(self.error("read_file"))),
                Slot::Watch { flow, .. } => flow.end(Ok(())),
                Slot::Write { window, .. } => window.close(),
                Slot::Reattached(exec) => exec.end(None),
                Slot::Connection(connection) => connection.end(Some(self.error("connect"))),
                Slot::Call(_) | Slot::List { .. } | Slot::Mark { .. } | Slot::Listener(_) => {}
            }
        }
        self.budget.close();
    }

    /// Handles one answer. Fails if it violates the protocol.
    fn receive(&self, frame: &Frame<'_>) -> Result<(), &'static str> {
        let answer = Answer::decode(frame).ok_or("an invalid frame")?;
        let mut table = self.table();
        if frame.id > table.last {
            return Err("an answer to a request that was not sent");
        }
        if table.quiescing.is_silent() {
            return Err("a frame while it was quiesced");
        }
        match answer {
            Answer::Pong if table.ping == Ping::Written && frame.id == 0 => {
                table.ping = Ping::Answered;
                return Ok(());
            }
            Answer::LimitPassed { memory } if frame.id == 0 => {
                if memory {
                    table.passed.0 = true;
                } else {
                    table.passed.1 = true;
                }
                return Ok(());
            }
            _ => {}
        }
        if frame.id == 0 {
            return Err("an answer without a request");
        }
        // The host dropped the request while the answer was in transit.
        let Some(slot) = table.slots.get_mut(&frame.id) else { return Ok(()) };
        // After an invalid answer, the receiver gets the end of the connection like all others.
        let after = handle_answer(slot, &answer)?;
        if answer == Answer::Quiesced {
            table.quiescing.set_silent(frame.id)?;
        }
        if after == After::Go {
            return Ok(());
        }
        let slot = table.slots.remove(&frame.id);
        drop(table);
        match (slot, after) {
            (Some(Slot::Exec(exec)), After::Ended(ended, counts)) => exec.end(Some((ended, counts))),
            (Some(Slot::Reattached(exec)), After::Ended(ended, counts)) => exec.end(Some((ended, counts))),
            (Some(Slot::Exec(exec)), _) => exec.end(None),
            (_, After::GiveUp) => self.send(frame.id, &Request::Forget),
            _ => {}
        }
        Ok(())
    }
}

fn invalid(what: &str) -> Termination {
    Termination {
        why: format!("its agent sent {what}"),
        remedy: Some("create another sandbox; a program inside may have taken over the agent".to_owned()),
        out_of_memory: false,
    }
}

async fn until(mut flag: watch::Receiver<bool>) {
    let _ = flag.wait_for(|over| *over).await;
}

/// A guard that frees the slot of a call if its future is dropped.
struct Waiting {
    link: Arc<Link>,
    id: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.link.table().slots.remove(&self.id);
    }
}

struct Growing(Vec<u8>);

impl wire::Sink for Growing {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Encodes a request as frames: several if it is long.
fn encode(id: u64, request: &Request<'_>) -> Vec<u8> {
    let mut body = Growing(vec![0; HEAD]);
    request.encode(&mut body);
    let mut bytes = body.0;
    if bytes.len() <= HEAD + MAX_BODY {
        let length = bytes.len() - HEAD;
        bytes[..HEAD].copy_from_slice(&wire::head(request.kind(), id, length));
        return bytes;
    }
    let mut frames = Vec::with_capacity(bytes.len() + 64 * HEAD);
    let mut rest = &bytes[HEAD..];
    while let Some((part, more)) = rest.split_at_checked(MAX_BODY).filter(|(_, more)| !more.is_empty()) {
        frames.extend_from_slice(&wire::head(PART, id, part.len()));
        frames.extend_from_slice(part);
        rest = more;
    }
    frames.extend_from_slice(&wire::head(request.kind(), id, rest.len()));
    frames.extend_from_slice(rest);
    frames
}
