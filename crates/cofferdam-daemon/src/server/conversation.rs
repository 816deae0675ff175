//! A run and its client: output, input, wishes, the end.
//!
//! ```text
//! handle --output, exit--> pump --\
//!                                  queue of a few --> writer --> client
//! program <--stdin-- feeder --acks/
//!                      '--bounded by the window-- reader <-- client
//! ```
//!
//! The reader never waits for anything but the client: so a wish to cancel comes through whatever the program does with its
//! input. A client that does not read holds up the writer and the pump, and nothing else; what the program writes meanwhile
//! is kept, and lost, as the contract's output is.

use std::io;

use bytes::Bytes;
use cofferdam_contract::{Chunk, ErrorData, ExecHandle, OutputEvent, Result, Sandbox, StdinWriter};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::sync::mpsc;

use super::service::Begun;
use super::visit::{Ends, closed};
use crate::frame::{Frames, encode};
use crate::message::{Accepted, PIECE, STDIN_WINDOW, ToClient, ToServer};

/// Messages that wait for the client.
const QUEUE: usize = 4;
/// Pieces of input that wait for the program: as many as a client may have on their way, and the end.
const PIECES: usize = STDIN_WINDOW + 1;

/// Holds the conversation to its end; nothing of the sandbox is left after it.
pub async fn hold(mut ends: Ends, begun: Begun, accepted: Accepted) {
    let Begun { sandbox, handle } = begun;
    if ends.say(&ToClient::Accepted(accepted)).await.is_ok() {
        talk(ends, &*sandbox, &handle).await;
    }
    // Kills what runs still.
    drop(handle);
    // The pool counts a close that fails.
    let _ = sandbox.close().await;
}

async fn talk(ends: Ends, sandbox: &dyn Sandbox, handle: &ExecHandle) {
    let Ends { mut frames, mut writer } = ends;
    let (say, mut words) = mpsc::channel::<ToClient>(QUEUE);
    let (input, pieces) = mpsc::channel::<Bytes>(PIECES);
    let acknowledge = say.clone();
    let work = async {
        tokio::join!(pump(sandbox, handle, &say), feed(handle.stdin(), pieces, &acknowledge));
        std::future::pending::<()>().await;
    };
    let writing = async {
        while let Some(word) = words.recv().await {
            let last = matches!(word, ToClient::Closed(_));
            if writer.write_all(&encode(&word)?).await.is_err() || last {
                break;
            }
        }
        io::Result::Ok(())
    };
    tokio::select! {
        _ = writing => {}
        _ = listen(&mut frames, handle, input) => {}
        () = work => {}
    }
}

/// Passes on output, then the exit, then that the sandbox is closed.
async fn pump(sandbox: &dyn Sandbox, handle: &ExecHandle, say: &mpsc::Sender<ToClient>) {
    let mut output = handle.output();
    while let Some(event) = output.next().await {
        let sent = match event {
            OutputEvent::Chunk(chunk) => send_pieces(chunk, say).await,
            OutputEvent::Lost { chunks, bytes } => say.send(ToClient::Lost { chunks, bytes }).await.is_ok(),
        };
        if !sent {
            return;
        }
    }
    let last = match handle.exit().await {
        Ok(exit) => ToClient::Exit(exit),
        Err(error) => ToClient::Failed(ErrorData::from(&error)),
    };
    if say.send(last).await.is_ok() {
        let outcome: Result<()> = sandbox.close().await;
        let _ = say.send(closed(&outcome)).await;
    }
}

async fn send_pieces(chunk: Chunk, say: &mpsc::Sender<ToClient>) -> bool {
    let Chunk { stream, mut data } = chunk;
    while !data.is_empty() {
        let data = data.split_to(data.len().min(PIECE));
        if say.send(ToClient::Output { stream, data }).await.is_err() {
            return false;
        }
    }
    true
}

/// Gives the program its input, and says when it took a piece.
async fn feed(writer: Option<StdinWriter>, mut pieces: mpsc::Receiver<Bytes>, say: &mpsc::Sender<ToClient>) {
    let Some(mut writer) = writer else { return };
    while let Some(piece) = pieces.recv().await {
        // The marker of the end: there is no other empty piece.
        if piece.is_empty() {
            break;
        }
        if writer.write_all(&piece).await.is_err() || writer.flush().await.is_err() {
            let _ = say.send(ToClient::StdinClosed).await;
            return;
        }
        let _ = say.send(ToClient::StdinTaken).await;
    }
    // The program may be gone already, which is no fault.
    let _ = writer.close().await;
}

/// Takes in what the client says, until it goes or breaks the rules.
async fn listen(
    frames: &mut Frames<impl AsyncRead + Unpin>,
    handle: &ExecHandle,
    input: mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let mut input = Some(input);
    while let Some(message) = frames.next().await? {
        match message {
            ToServer::Stdin(piece) if !piece.is_empty() && piece.len() <= PIECE => give(&mut input, piece)?,
            ToServer::StdinEnd => {
                give(&mut input, Bytes::new())?;
                input = None;
            }
            ToServer::Cancel { grace } => handle.request_cancel(grace),
            ToServer::Kill => kill(handle),
            // The exec may have ended just now, or has no terminal, which its client knows.
            ToServer::Resize(size) => drop(handle.resize(size)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

/// Queues input. One who sends more than was allowed is let go.
fn give(input: &mut Option<mpsc::Sender<Bytes>>, piece: Bytes) -> io::Result<()> {
    match input {
        // A program that closed its input takes nothing more; the client is told.
        Some(sender) if sender.is_closed() => Ok(()),
        Some(sender) => sender.try_send(piece).map_err(|_| io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Orders the end without waiting for it.
fn kill(handle: &ExecHandle) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = std::pin::pin!(handle.close()).poll(&mut context);
}
