//! Reports to a client while code runs: output as log messages, and progress. A slow client, or a program with endless
//! output, costs no more than a buffer. Output that does not fit is only in the result.
#![expect(deprecated, reason = "log messages are how every revision of the protocol carries live output")]

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Chunk, OutputStream};
use parking_lot::Mutex;
use rmcp::RoleServer;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Interval between two messages, in which output is collected.
const SEND_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of progress reports without output.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of buffered bytes.
const MAX_WAITING: usize = 64 * 1024;
/// Maximum number of bytes that are sent for one call.
const MAX_SENT: usize = 256 * 1024;
/// Maximum length of output in a progress report, in characters.
const MAX_LINE: usize = 200;
/// Timeout for sending the last messages.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// A reporter of one call to its client. Dropping it stops the reports.
#[derive(Debug)]
pub struct Reporter {
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Notified of output and of the end.
    news: Notify,
    /// Notified of the end of the call.
    end: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    streams: [Vec<u8>; 2],
    ended: bool,
}

/// The reports that a client requested.
#[derive(Debug)]
struct Subscription {
    peer: Peer<RoleServer>,
    progress: Option<ProgressToken>,
    logs: bool,
}

impl Reporter {
    /// Creates a reporter for a call, with the reports that its client requested. `logs` is true if output is sent.
    pub fn new(context: &RequestContext<RoleServer>, logs: bool) -> Self {
        let shared = Arc::new(Shared::default());
        let progress = context.meta.get_progress_token();
        let subscription = Subscription { peer: context.peer.clone(), progress, logs };
        let is_active = subscription.logs || subscription.progress.is_some();
        let task = is_active.then(|| tokio::spawn(report(subscription, Arc::clone(&shared))));
        Self { shared, task }
    }

    /// Buffers output. Never blocks.
    pub fn output(&self, chunk: &Chunk) {
        if self.task.is_none() {
            return;
        }
        let mut waiting = self.shared.waiting.lock();
        let stream = &mut waiting.streams[index(chunk.stream)];
        let room = MAX_WAITING.saturating_sub(stream.len());
        stream.extend_from_slice(&chunk.data[..room.min(chunk.data.len())]);
        drop(waiting);
        self.shared.news.notify_one();
    }

    /// Sends buffered output, then stops the reports.
    pub async fn finish(mut self) {
        self.shared.waiting.lock().ended = true;
        self.shared.end.notify_one();
        self.shared.news.notify_one();
        if let Some(task) = &mut self.task {
            // A client that does not read gets only the result.
            let _ = timeout(FLUSH_TIMEOUT, task).await;
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

fn index(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

const NAMES: [&str; 2] = ["stdout", "stderr"];

async fn report(subscription: Subscription, shared: Arc<Shared>) {
    let start = Instant::now();
    let mut left = MAX_SENT;
    let mut last_line = String::new();
    loop {
        // Also reports progress without output.
        let _ = timeout(HEARTBEAT_INTERVAL, shared.news.notified()).await;
        // Does not collect further output after the end of the call.
        let _ = timeout(SEND_INTERVAL, shared.end.notified()).await;
        let (texts, ended) = {
            let mut waiting = shared.waiting.lock();
            let ended = waiting.ended;
            (waiting.streams.each_mut().map(|stream| take_text(stream, ended)), ended)
        };
        for (name, text) in NAMES.into_iter().zip(&texts) {
            if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
                last_line = line.chars().take(MAX_LINE).collect();
            }
            let sends = subscription.logs && !text.is_empty() && left > 0;
            if sends && !send_log(&subscription.peer, name, text, &mut left).await {
                return;
            }
        }
        let silent = texts.iter().all(String::is_empty);
        if let Some(token) = subscription.progress.as_ref().filter(|_| !ended || !silent) {
            let seconds = start.elapsed().as_secs_f64();
            let message = if last_line.is_empty() { "running".to_owned() } else { last_line.clone() };
            let progress = ProgressNotificationParam::new(token.clone(), seconds).with_message(message);
            if subscription.peer.notify_progress(progress).await.is_err() {
                return;
            }
        }
        if ended {
            return;
        }
    }
}

/// Sends output. Returns true if more can be sent.
async fn send_log(peer: &Peer<RoleServer>, name: &str, text: &str, left: &mut usize) -> bool {
    let text = match text.len() > *left {
        true => format!("{}\n[further output is only in the result]", clip(text, *left)),
        false => text.to_owned(),
    };
    *left = left.saturating_sub(text.len());
    let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, Value::String(text)).with_logger(name);
    peer.notify_logging_message(message).await.is_ok()
}

/// Returns at most `max_bytes` bytes of text, cut between characters.
fn clip(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// Takes the buffered text, and leaves an incomplete character unless the stream has ended.
fn take_text(stream: &mut Vec<u8>, ended: bool) -> String {
    let keep = match std::str::from_utf8(stream) {
        Err(error) if error.error_len().is_none() && !ended => stream.len() - error.valid_up_to(),
        _ => 0,
    };
    let rest = stream.split_off(stream.len() - keep);
    let taken = std::mem::replace(stream, rest);
    String::from_utf8_lossy(&taken).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_is_cut_waits_for_its_rest() {
        let mut stream = "aé".as_bytes()[..2].to_vec();
        assert_eq!(take_text(&mut stream, false), "a");
        stream.push(0xa9);
        assert_eq!(take_text(&mut stream, false), "é");
        stream.push(0xc3);
        assert_eq!(take_text(&mut stream, true), "\u{fffd}");
        stream.extend(b"\xffb");
        assert_eq!(take_text(&mut stream, false), "\u{fffd}b");
        assert_eq!(clip("aé", 2), "a");
    }
}
