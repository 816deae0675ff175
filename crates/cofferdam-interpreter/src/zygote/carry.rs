//! The two tasks between a zygote's exec and its forks: one writes orders, one reads what comes and sees to the end.

use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contract::{Chunk, ExecHandle, OutputEvent, OutputStream, OutputSubscription, StdinWriter};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::forks::Forks;
use super::wire::{Decoder, Nonsense};
use crate::error::ZygoteError;
use crate::ready::how_it_ended;

/// Writes orders as they come. What can be under way has a bound: each fork's input has a window.
pub async fn write(mut stdin: StdinWriter, mut orders: mpsc::UnboundedReceiver<Bytes>) {
    while let Some(order) = orders.recv().await {
        if stdin.write_all(&order).await.is_err() {
            // It has ended, which the reader sees.
            return;
        }
    }
}

/// Reads until the zygote ends or nobody needs it, then closes the sandbox. Waits for nobody who reads a fork's output.
pub async fn read(forks: Arc<Forks>, inner: ExecHandle, mut output: OutputSubscription) {
    let mut decoder = Decoder::default();
    let error = loop {
        if forks.is_done() {
            break ZygoteError::Closed;
        }
        let late = forks.ended_by();
        tokio::select! {
            event = output.next() => match event {
                Some(OutputEvent::Chunk(Chunk { stream: OutputStream::Stdout, data })) => {
                    if let Err(error) = take_in(&forks, &mut decoder, &data) {
                        break error;
                    }
                }
                // The relay's last words; how it ended says enough.
                Some(OutputEvent::Chunk(_)) => {}
                // More than all windows hold.
                Some(OutputEvent::Lost { .. }) => break ZygoteError::Nonsense,
                None => break ZygoteError::Died { how: how_it_ended(&inner).await },
            },
            () = forks.changed.notified() => {}
            () = sleep_until(late) => {
                if forks.ended_by().is_some_and(|late| late <= std::time::Instant::now()) {
                    break ZygoteError::NotEnded;
                }
            }
        }
    };
    drop(inner);
    // First the processes, so that whoever is told of the end finds nothing that still runs.
    let _ = forks.sandbox.close().await;
    forks.end(error.into());
}

fn take_in(forks: &Forks, decoder: &mut Decoder, data: &[u8]) -> Result<(), ZygoteError> {
    decoder.push(data);
    while let Some((fork, report)) = decoder.next().map_err(|Nonsense| ZygoteError::Nonsense)? {
        forks.take_in(fork, report)?;
    }
    Ok(())
}

async fn sleep_until(instant: Option<std::time::Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
