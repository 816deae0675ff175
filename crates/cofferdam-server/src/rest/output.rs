//! Output of an exec as server-sent events, from any offset.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_contract::{OutputEvent, OutputSubscription};
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use super::App;
use super::extract::{Path, Query};
use super::problem::Failure;
use super::views::ExecEvent;
use crate::caller::Caller;
use crate::live::{LiveExec, LiveSandbox};

/// The time between two comments that keep a quiet connection open.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events that wait for a slow client. More stay in the exec's own ring.
const QUEUE: usize = 4;

/// Parameters of a stream of output.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OutputQuery {
    /// The offset to start from: the number of bytes of both streams that were read before. Default: 0, or the header
    /// `Last-Event-ID`.
    pub offset: Option<u64>,
}

/// Follow the output of an exec.
///
/// The events are `output`, `lost`, and at the end `exit` or `error`. Their ids are the offsets after them.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs/{exec}/output", tag = "execs",
    params(("sandbox" = String, Path, description = "The id or name"), ("exec" = String, Path), OutputQuery),
    responses((status = 200, body = ExecEvent, content_type = "text/event-stream")))]
pub async fn follow(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<OutputQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let exec = live.exec(&exec)?;
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    let offset = query.offset.or(last).unwrap_or(0);
    let (sender, events) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        tokio::select! {
            () = forward(live, exec, offset, sender) => {}
            () = app.key_ended(&caller) => {}
        }
    });
    let stream = Events(events);
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
}

/// A queue of events as a stream.
pub(super) struct Events(pub(super) mpsc::Receiver<Event>);

impl futures_core::Stream for Events {
    type Item = Result<Event, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}

/// Sends the events of an exec until its end, or until the client is gone.
async fn forward(live: Arc<LiveSandbox>, exec: Arc<LiveExec>, offset: u64, to: mpsc::Sender<Event>) {
    let _use = live.keep();
    let mut output = exec.output_from(offset);
    loop {
        let (event, last) = tokio::select! {
            event = next(&exec, &mut output) => event,
            () = to.closed() => return,
        };
        let data = serde_json::to_string(&event).unwrap_or_default();
        let event = Event::default().id(output.offset().to_string()).event(name(&event)).data(data);
        if to.send(event).await.is_err() || last {
            return;
        }
    }
}

fn name(event: &ExecEvent) -> &'static str {
    match event {
        ExecEvent::Output { .. } => "output",
        ExecEvent::Lost { .. } => "lost",
        ExecEvent::Exit { .. } => "exit",
        ExecEvent::Error { .. } => "error",
    }
}

/// Waits for the next event. The flag is true for the last one.
async fn next(exec: &LiveExec, output: &mut OutputSubscription) -> (ExecEvent, bool) {
    let offset = output.offset();
    match output.next().await {
        Some(OutputEvent::Chunk(chunk)) => {
            let event = ExecEvent::Output { stream: chunk.stream, offset, data: STANDARD.encode(&chunk.data) };
            (event, false)
        }
        Some(OutputEvent::Lost { bytes, .. }) => (ExecEvent::Lost { bytes, offset: output.offset() }, false),
        None => (end(exec).await, true),
    }
}

/// Waits for the exit.
pub(super) async fn end(exec: &LiveExec) -> ExecEvent {
    loop {
        match exec.exit_within(Duration::MAX).await {
            Some(Ok(exit)) => return ExecEvent::Exit { exit },
            Some(Err(error)) => return ExecEvent::Error { error: (&Failure::from(error)).into() },
            None => {}
        }
    }
}
