//! Signals that ask Cofferdam itself to end, and those that say the terminal's size changed.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that ask for the end of the run: hang-up, interrupt, quit, terminate.
const ENDING: [SignalKind; 4] =
    [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()];

/// Listens for requests to end.
#[derive(Debug)]
pub struct Interrupts(Vec<(i32, Signal)>);

impl Interrupts {
    /// Begins to listen. What our starter ignores (as `nohup` does) stays ignored.
    pub fn listen() -> io::Result<Self> {
        let ignored = ignored_mask();
        let mut signals = Vec::new();
        for kind in ENDING {
            let number = kind.as_raw_value();
            if ignored & (1 << (number - 1)) == 0 {
                signals.push((number, signal(kind)?));
            }
        }
        Ok(Self(signals))
    }

    /// Waits for the next request; gives the signal's number.
    pub async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
}

/// Waits for changes of the terminal's size.
#[derive(Debug)]
pub struct Resizes(Option<Signal>);

impl Resizes {
    /// Begins to listen.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::window_change()).map(Some).map(Self)
    }

    /// Never reports anything.
    pub fn none() -> Self {
        Self(None)
    }

    /// Waits for the next change.
    pub async fn next(&mut self) {
        match &mut self.0 {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}
