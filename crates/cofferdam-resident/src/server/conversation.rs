//! A run and its client: output, input, control, the end.
//!
//! ```text
//! handle --output, exit--> pump --\
//!                                  bounded queue --> writer --> client
//! program <--stdin-- feeder --acks/
//!                      '--bounded by the window-- reader <-- client
//! ```
//!
//! The reader waits only for the client, so a cancellation arrives even if the program does not read its input. A
//! client that does not read blocks only the writer and the pump. Output of the program is buffered meanwhile, and lost
//! beyond the buffer, as the contract defines.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contract::{Chunk, ErrorData, ExecHandle, OutputEvent, Result, Sandbox, StdinWriter};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::connections::Connections;
use super::handshake::{Ends, closed};
use super::service::Begun;
use crate::directories::Receiver;
use crate::frame::{Frames, encode};
use crate::message::{Accepted, PIECE, STDIN_WINDOW, ToClient, ToServer};

/// Capacity of the queue of messages to the client.
const QUEUE: usize = 4;
/// Capacity of the queue of input pieces: the pieces that a client may have in flight, and the end.
const PIECES: usize = STDIN_WINDOW + 1;

/// Serves a run until its end. The sandbox is removed when it returns.
pub async fn serve(mut ends: Ends, begun: Begun, accepted: Accepted) {
    let Begun { sandbox, handle } = begun;
    let mut connections = Connections::new(&sandbox);
    if ends.send(&ToClient::Accepted(accepted)).await.is_ok() {
        exchange(ends, &sandbox, &handle, &mut connections).await;
    }
    // Kill the program if it still runs.
    drop(handle);
    // The pool counts a failed close.
    let _ = sandbox.close().await;
    connections.finish().await;
}

async fn exchange(ends: Ends, sandbox: &Arc<dyn Sandbox>, handle: &ExecHandle, connections: &mut Connections) {
    let Ends { mut frames, mut writer } = ends;
    let (sender, mut messages) = mpsc::channel::<ToClient>(QUEUE);
    let (input, pieces) = mpsc::channel::<Bytes>(PIECES);
    let acknowledge = sender.clone();
    let work = async {
        tokio::join!(pump(&**sandbox, handle, &sender), feed(handle.stdin(), pieces, &acknowledge));
        std::future::pending::<()>().await;
    };
    let writing = async {
        while let Some(message) = messages.recv().await {
            let last = matches!(message, ToClient::Closed(_));
            if writer.write_all(&encode(&message)?).await.is_err() || last {
                break;
            }
        }
        io::Result::Ok(())
    };
    tokio::select! {
        _ = writing => {}
        _ = listen(&mut frames, handle, input, connections) => {}
        () = work => {}
    }
}

/// Forwards output, then the exit, then the close of the sandbox.
async fn pump(sandbox: &dyn Sandbox, handle: &ExecHandle, sender: &mpsc::Sender<ToClient>) {
    let mut output = handle.output();
    while let Some(event) = output.next().await {
        let sent = match event {
            OutputEvent::Chunk(chunk) => send_pieces(chunk, sender).await,
            OutputEvent::Lost { chunks, bytes } => sender.send(ToClient::Lost { chunks, bytes }).await.is_ok(),
        };
        if !sent {
            return;
        }
    }
    let last = match handle.exit().await {
        Ok(exit) => ToClient::Exit(exit),
        Err(error) => ToClient::Failed(ErrorData::from(&error)),
    };
    if sender.send(last).await.is_ok() {
        let outcome: Result<()> = sandbox.close().await;
        let _ = sender.send(closed(&outcome)).await;
    }
}

async fn send_pieces(chunk: Chunk, sender: &mpsc::Sender<ToClient>) -> bool {
    let Chunk { stream, mut data } = chunk;
    while !data.is_empty() {
        let data = data.split_to(data.len().min(PIECE));
        if sender.send(ToClient::Output { stream, data }).await.is_err() {
            return false;
        }
    }
    true
}

/// Writes input to the program, and acknowledges each piece.
async fn feed(writer: Option<StdinWriter>, mut pieces: mpsc::Receiver<Bytes>, sender: &mpsc::Sender<ToClient>) {
    let Some(mut writer) = writer else { return };
    while let Some(piece) = pieces.recv().await {
        // An empty piece marks the end. Clients cannot send one.
        if piece.is_empty() {
            break;
        }
        if writer.write_all(&piece).await.is_err() || writer.flush().await.is_err() {
            let _ = sender.send(ToClient::StdinClosed).await;
            return;
        }
        let _ = sender.send(ToClient::StdinTaken).await;
    }
    // The program may have ended already, which is not an error.
    let _ = writer.close().await;
}

/// Handles the client's messages until it disconnects or violates the protocol.
async fn listen(
    frames: &mut Frames<Receiver>,
    handle: &ExecHandle,
    input: mpsc::Sender<Bytes>,
    connections: &mut Connections,
) -> io::Result<()> {
    let mut input = Some(input);
    while let Some(message) = frames.next().await? {
        match message {
            ToServer::Stdin(piece) if !piece.is_empty() && piece.len() <= PIECE => queue_input(&mut input, piece)?,
            ToServer::StdinEnd => {
                queue_input(&mut input, Bytes::new())?;
                input = None;
            }
            ToServer::Cancel { grace } => handle.request_cancel(grace),
            ToServer::Kill => kill(handle),
            ToServer::Connect { port } => {
                let socket = frames.reader().take_descriptor().ok_or(io::ErrorKind::InvalidData)?;
                connections.open(port, socket);
            }
            // Fails if the exec has just ended or has no terminal. The client knows both.
            ToServer::Resize(size) => drop(handle.resize(size)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

/// Queues input. Fails if the client exceeds its window, which ends the connection.
fn queue_input(input: &mut Option<mpsc::Sender<Bytes>>, piece: Bytes) -> io::Result<()> {
    match input {
        // A program that closed its input takes nothing more. The client is notified.
        Some(sender) if sender.is_closed() => Ok(()),
        Some(sender) => sender.try_send(piece).map_err(|_| io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Requests the end of the exec without waiting for it.
fn kill(handle: &ExecHandle) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = std::pin::pin!(handle.close()).poll(&mut context);
}
