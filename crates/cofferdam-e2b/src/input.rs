//! Input of an exec, sent piece by piece.
//!
//! A piece whose request failed may have arrived or not. So the program's input ends there, instead of having a gap or
//! a repetition.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

use crate::core::{Core, Phase};
use crate::wire::{Input, OfProcess, Selector};

/// Bytes that are sent at once.
pub(crate) const PIECE: usize = 32 << 10;
/// The character that ends input in a terminal.
const END_OF_INPUT: &[u8] = &[4];

/// Sends what a reader has, then ends the input. `attached` is the sandbox's time of running in which the exec's events
/// are followed: what a program prints for input that comes before them would be lost.
pub(crate) async fn feed(
    core: Arc<Core>,
    pid: u32,
    has_terminal: bool,
    mut reader: impl AsyncRead + Unpin,
    mut attached: watch::Receiver<Option<u64>>,
) {
    let process = Selector { pid };
    let mut phases = core.phases();
    loop {
        let mut buffer = vec![0; PIECE];
        let count = reader.read(&mut buffer).await.unwrap_or(0);
        if !followed(&mut phases, &mut attached).await {
            return;
        }
        let data = if count == 0 { END_OF_INPUT } else { &buffer[..count] };
        let input = if has_terminal { Input::Pty(data) } else { Input::Stdin(data) };
        if count == 0 && !has_terminal {
            break;
        }
        match core.agent().send(&OfProcess { process, input: Some(input), pty: None }).await {
            Ok(()) if count == 0 => return,
            Ok(()) => {}
            Err(_) => break,
        }
    }
    if !has_terminal {
        // A process that has ended needs no end of input.
        let _ = core.agent().call("CloseStdin", &OfProcess { process, input: None, pty: None }).await;
    }
}

/// Waits until the sandbox runs and the events are followed. Returns false if that will not be.
async fn followed(phases: &mut watch::Receiver<Phase>, attached: &mut watch::Receiver<Option<u64>>) -> bool {
    loop {
        let followed = *attached.borrow_and_update();
        match *phases.borrow_and_update() {
            Phase::Running(epoch) if followed == Some(epoch) => return true,
            Phase::Running(_) | Phase::Paused(_) => {}
            Phase::Closed | Phase::Gone => return false,
        }
        let changed = tokio::select! {
            changed = phases.changed() => changed,
            changed = attached.changed() => changed,
        };
        if changed.is_err() {
            return false;
        }
    }
}
