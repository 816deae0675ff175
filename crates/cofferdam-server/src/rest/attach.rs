//! Output and input of an exec over a WebSocket, which a client may leave and come back to.
//!
//! Messages of the server: binary ones have a byte, 1 for standard output or 2 for standard error, then the bytes. Text
//! ones are JSON: the events `lost`, `exit` and `error` of the event stream. Messages of the client: binary ones are
//! input; text ones are [`Control`] documents.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::{BufMut, BytesMut};
use cofferdam_contract::{DEFAULT_CANCEL_GRACE, Error, OutputEvent, OutputStream, OutputSubscription, TerminalSize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::extract::{Path, Query};
use super::output::{OutputQuery, end};
use super::problem::Failure;
use super::views::{ExecEvent, Signal};
use super::{App, browser};
use crate::bounds::Bounds;
use crate::caller::{Caller, Scope};
use crate::live::{LiveExec, LiveSandbox};

/// The path of the endpoint.
pub(super) const PATH: &str = "/v1/sandboxes/{sandbox}/execs/{exec}/attach";
/// The first byte of a message with standard output.
pub const STDOUT: u8 = 1;
/// The first byte of a message with standard error.
pub const STDERR: u8 = 2;
/// Messages of input that wait for the program. The client waits when they are full.
const QUEUE: usize = 4;
/// The most bytes of output in one message.
const MAX_MESSAGE: usize = 64 << 10;

/// A message of the client that is no input.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "op", deny_unknown_fields)]
pub enum Control {
    /// Ends the input.
    Eof,
    /// Resizes the terminal.
    Resize {
        /// Number of rows.
        rows: u16,
        /// Number of columns.
        columns: u16,
    },
    /// Signals the exec.
    Signal {
        /// The signal.
        signal: Signal,
    },
}

/// Attach to an exec by a WebSocket.
///
/// Without the scope `execs:write`, messages of the client end the connection. A browser offers the protocols
/// `cofferdam.v1` and `cofferdam.bearer.KEY`, with its key in base64url.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs/{exec}/attach", tag = "execs",
    params(("sandbox" = String, Path, description = "The id or name"), ("exec" = String, Path), OutputQuery),
    responses((status = 101, description = "The connection is a WebSocket now")))]
pub async fn attach(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<OutputQuery>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let exec = live.exec(&exec)?;
    let upgrade = upgrade.map_err(|error| Failure::bad_request(error.body_text()))?;
    let bounds = app.bounds().clone();
    // The connection is no request any more once it is a WebSocket, and is counted on its own.
    let permits = (app.request_permit()?, app.tenant_slot(&caller.tenant)?);
    let stream = app.stream("attach", &caller, Some(&live.id));
    exec.link_to(&stream.0);
    let may_write = caller.may(Scope::ExecsWrite);
    let stop = app.stop_token();
    let upgrade = upgrade.protocols([browser::PROTOCOL]).max_message_size(bounds.stdin).max_frame_size(bounds.stdin);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let _held = (permits, stream);
        tokio::select! {
            () = serve(socket, live, exec, query.offset.unwrap_or(0), may_write, bounds) => {}
            () = stop.cancelled() => {}
            () = app.key_ended(&caller) => {}
        }
    }))
}

async fn serve(
    mut socket: WebSocket,
    live: Arc<LiveSandbox>,
    exec: Arc<LiveExec>,
    offset: u64,
    may_write: bool,
    bounds: Bounds,
) {
    let _use = live.keep();
    let mut output = exec.output_from(offset);
    let (input, waiting) = mpsc::channel(QUEUE);
    // A program that does not read its input must not stop its output.
    let feeder = tokio::spawn(feed(Arc::clone(&exec), waiting));
    let mut pings = tokio::time::interval(bounds.stall_time / 4);
    loop {
        // Input is read only while there is room for it.
        let permit = input.try_reserve().ok();
        let can_read = permit.is_some();
        tokio::select! {
            messages = next(&exec, &mut output) => {
                let (messages, last) = messages;
                for message in messages {
                    if socket.send(message).await.is_err() {
                        feeder.abort();
                        return;
                    }
                }
                if last {
                    feeder.abort();
                    let _ = tokio::time::timeout(Duration::from_secs(5), socket.send(Message::Close(None))).await;
                    return;
                }
            }
            received = socket.recv(), if can_read => match received {
                Some(Ok(message)) if may_write || matches!(message, Message::Ping(_) | Message::Pong(_)) => {
                    if let (false, Some(permit)) = (matches!(message, Message::Close(_)), permit) {
                        permit.send(message);
                    } else {
                        break;
                    }
                }
                _ => break,
            },
            () = input_room(&input), if !can_read => {}
            _ = pings.tick() => {
                if socket.send(Message::Ping(bytes::Bytes::new())).await.is_err() {
                    break;
                }
            }
        }
    }
    // The program keeps its input, for the client that comes back.
    feeder.abort();
}

async fn input_room(input: &mpsc::Sender<Message>) {
    drop(input.reserve().await);
}

/// Passes messages of the client to the exec.
async fn feed(exec: Arc<LiveExec>, mut from: mpsc::Receiver<Message>) {
    while let Some(message) = from.recv().await {
        // A program that has ended or closed its input is no failure of the connection.
        let _ = match message {
            Message::Binary(data) => exec.write_stdin(&data).await,
            Message::Text(text) => control(&exec, &text).await,
            _ => Ok(()),
        };
    }
}

async fn control(exec: &LiveExec, text: &str) -> Result<(), Error> {
    match serde_json::from_str(text).map_err(|_| Error::invalid("attach", "the message is no control document"))? {
        Control::Eof => exec.close_stdin().await,
        Control::Resize { rows, columns } => exec.resize(TerminalSize { rows, columns }),
        Control::Signal { signal: Signal::Term } => {
            exec.signal(DEFAULT_CANCEL_GRACE);
            Ok(())
        }
        Control::Signal { signal: Signal::Kill } => {
            exec.signal(Duration::ZERO);
            Ok(())
        }
    }
}

/// Waits for the next event. The flag is true for the last one.
async fn next(exec: &LiveExec, output: &mut OutputSubscription) -> (Vec<Message>, bool) {
    match output.next().await {
        Some(OutputEvent::Chunk(chunk)) => {
            let channel = if chunk.stream == OutputStream::Stdout { STDOUT } else { STDERR };
            let frames = chunk.data.chunks(MAX_MESSAGE).map(|part| {
                let mut frame = BytesMut::with_capacity(1 + part.len());
                frame.put_u8(channel);
                frame.extend_from_slice(part);
                Message::Binary(frame.freeze())
            });
            (frames.collect(), false)
        }
        Some(OutputEvent::Lost { bytes, .. }) => {
            (vec![text(&ExecEvent::Lost { bytes, offset: output.offset() })], false)
        }
        None => (vec![text(&end(exec).await)], true),
    }
}

fn text(event: &ExecEvent) -> Message {
    Message::Text(serde_json::to_string(event).unwrap_or_default().into())
}
