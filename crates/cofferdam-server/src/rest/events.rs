//! Work whose answer is a stream of server-sent events: those of the work, and at the end its result or failure.
//!
//! A failure before the first event is an answer with a status of its own, unless it takes longer than the interval of
//! keep-alives.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use opentelemetry::trace::FutureExt as _;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::output::{Events, KEEP_ALIVE};
use super::problem::{Failure, Problem};
use super::{Answer, App};
use crate::caller::Caller;

/// The media type of streams of events.
const EVENTS: &str = "text/event-stream";

/// An event of a stream.
pub trait StreamEvent: Serialize + Send + Sync + 'static {
    /// Returns the name.
    fn name(&self) -> &'static str;

    /// Creates the event of a failure.
    fn failed(error: Problem) -> Self;
}

/// The events that a client receives.
pub struct EventSender<E> {
    to: mpsc::Sender<Event>,
    /// The beginning of the answer: `None`, or the failure in place of a stream.
    begun: Mutex<Option<oneshot::Sender<Option<Failure>>>>,
    stall_time: Duration,
    kind: PhantomData<fn(E)>,
}

impl<E: StreamEvent> EventSender<E> {
    /// Sends an event without waiting. Returns false if the client is too slow or gone.
    pub fn offer(&self, next: &E) -> bool {
        let sent = self.to.try_send(event(next)).is_ok();
        self.begin(None);
        sent
    }

    /// Waits until the client takes an event. Returns false if it is gone, or takes nothing for too long.
    pub async fn send(&self, next: &E) -> bool {
        self.begin(None);
        tokio::time::timeout(self.stall_time, self.to.send(event(next))).await.is_ok_and(|sent| sent.is_ok())
    }

    /// Begins the answer. Returns the failure if the answer has begun before.
    fn begin(&self, failure: Option<Failure>) -> Option<Failure> {
        match self.begun.lock().take() {
            Some(begun) => begun.send(failure).err().flatten(),
            None => failure,
        }
    }
}

fn event(next: &impl StreamEvent) -> Event {
    Event::default().event(next.name()).data(serde_json::to_string(next).unwrap_or_default())
}

/// Returns true if a client takes a stream of events.
pub fn accepts_events(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(|text| text.contains(EVENTS)))
}

/// Answers with the events of work, of which `queue` wait for a slow client, and its last event. The work ends if the client
/// is gone, or its key is no longer valid.
pub async fn answer<E, W>(
    app: App,
    caller: Caller,
    queue: usize,
    work: impl FnOnce(Arc<EventSender<E>>) -> W + Send + 'static,
) -> Answer
where
    E: StreamEvent,
    W: Future<Output = Result<E, Failure>> + Send + 'static,
{
    let (to, events) = mpsc::channel(queue);
    let (begun, begin) = oneshot::channel();
    let (begun, stall_time) = (Mutex::new(Some(begun)), app.bounds().stall_time);
    let sender = Arc::new(EventSender { to, begun, stall_time, kind: PhantomData });
    let task = async move {
        let last = tokio::select! {
            last = work(Arc::clone(&sender)) => last,
            () = sender.to.closed() => return,
            () = app.key_ended(&caller) => return,
        };
        let last = match last {
            Ok(last) => last,
            Err(failure) => match sender.begin(Some(failure)) {
                Some(failure) => E::failed((&failure).into()),
                None => return,
            },
        };
        // The client may leave at any time.
        sender.send(&last).await;
    };
    tokio::spawn(task.with_current_context());
    // Work may be silent for long, so keep-alives begin before its first event.
    match tokio::time::timeout(KEEP_ALIVE, begin).await {
        Ok(Ok(Some(failure))) => return Err(failure),
        Ok(Err(_)) => return Err(Failure::unauthorized("the key is no longer valid")),
        Ok(Ok(None)) | Err(_) => {}
    }
    Ok(Sse::new(Events(events)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}
