//! Signals that terminate Cofferdam, and signals for changes of the terminal's size.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that terminate the run: hang-up, interrupt, quit, terminate.
const TERMINATION_SIGNALS: [SignalKind; 4] =
    [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit(), SignalKind::terminate()];

/// A listener for termination signals.
#[derive(Debug)]
pub struct Interrupts(Vec<(i32, Signal)>);

impl Interrupts {
    /// Starts to listen. Signals that the parent process ignores (as `nohup` does) stay ignored.
    pub fn listen() -> io::Result<Self> {
        let ignored = ignored_mask();
        let mut signals = Vec::new();
        for kind in TERMINATION_SIGNALS {
            let number = kind.as_raw_value();
            if ignored & (1 << (number - 1)) == 0 {
                signals.push((number, signal(kind)?));
            }
        }
        Ok(Self(signals))
    }

    /// Waits for the next signal and returns its number.
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

/// A listener for changes of the terminal's size.
#[derive(Debug)]
pub struct Resizes(Option<Signal>);

impl Resizes {
    /// Starts to listen.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::window_change()).map(Some).map(Self)
    }

    /// Creates a listener that never reports a change.
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
