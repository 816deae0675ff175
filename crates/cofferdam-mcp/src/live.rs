//! What a client is told while code runs: its output as log messages, and that it goes on as progress. A client that
//! reads slowly, or a program that writes without end, costs no more than a buffer: what does not fit is in the result
//! alone.
#![expect(deprecated, reason = "log messages are how every revision of the protocol carries live output")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_contract::{Chunk, OutputStream};
use rmcp::RoleServer;
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// Time between two messages, in which output gathers.
const GATHER: Duration = Duration::from_millis(100);
/// Time without output after which progress is reported all the same.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Bytes that wait to be sent, at most.
const MAX_WAITING: usize = 64 * 1024;
/// Bytes that are sent for one call, at most.
const MAX_SENT: usize = 256 * 1024;
/// Characters of output in a report of progress.
const MAX_LINE: usize = 200;
/// How long the last messages may take.
const LAST: Duration = Duration::from_millis(500);

/// Tells a client about one call. Dropped, it says no more.
#[derive(Debug)]
pub struct Reporter {
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// There is output, or the end.
    news: Notify,
    /// The call has ended.
    end: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    streams: [Vec<u8>; 2],
    ended: bool,
}

/// What a client wants to be told.
#[derive(Debug)]
struct Wanted {
    peer: Peer<RoleServer>,
    progress: Option<ProgressToken>,
    logs: bool,
}

impl Reporter {
    /// A reporter for a call, as far as its client wants one; `logs` is whether output is to be sent.
    pub fn new(context: &RequestContext<RoleServer>, logs: bool) -> Self {
        let shared = Arc::new(Shared::default());
        let progress = context.meta.get_progress_token();
        let wanted = Wanted { peer: context.peer.clone(), progress, logs };
        let wants_any = wanted.logs || wanted.progress.is_some();
        let task = wants_any.then(|| tokio::spawn(report(wanted, Arc::clone(&shared))));
        Self { shared, task }
    }

    /// Takes output as it comes; never waits.
    pub fn output(&self, chunk: &Chunk) {
        if self.task.is_none() {
            return;
        }
        let mut waiting = self.shared.lock();
        let stream = &mut waiting.streams[index(chunk.stream)];
        let room = MAX_WAITING.saturating_sub(stream.len());
        stream.extend_from_slice(&chunk.data[..room.min(chunk.data.len())]);
        drop(waiting);
        self.shared.news.notify_one();
    }

    /// Sends what waits still. Nothing is sent after it.
    pub async fn finish(mut self) {
        self.shared.lock().ended = true;
        self.shared.end.notify_one();
        self.shared.news.notify_one();
        if let Some(task) = &mut self.task {
            // Who does not read has to do with the result.
            let _ = timeout(LAST, task).await;
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

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn index(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

const NAMES: [&str; 2] = ["stdout", "stderr"];

async fn report(wanted: Wanted, shared: Arc<Shared>) {
    let start = Instant::now();
    let mut left = MAX_SENT;
    let mut last_line = String::new();
    loop {
        // A beat without news is reported, too.
        let _ = timeout(HEARTBEAT, shared.news.notified()).await;
        // Nobody waits for more once the call has ended.
        let _ = timeout(GATHER, shared.end.notified()).await;
        let (texts, ended) = {
            let mut waiting = shared.lock();
            let ended = waiting.ended;
            (waiting.streams.each_mut().map(|stream| take_text(stream, ended)), ended)
        };
        for (name, text) in NAMES.into_iter().zip(&texts) {
            if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
                last_line = line.chars().take(MAX_LINE).collect();
            }
            if wanted.logs && !text.is_empty() && left > 0 && !send_log(&wanted.peer, name, text, &mut left).await {
                return;
            }
        }
        let silent = texts.iter().all(String::is_empty);
        if let Some(token) = wanted.progress.as_ref().filter(|_| !ended || !silent) {
            let seconds = start.elapsed().as_secs_f64();
            let message = if last_line.is_empty() { "running".to_owned() } else { last_line.clone() };
            let progress = ProgressNotificationParam::new(token.clone(), seconds).with_message(message);
            if wanted.peer.notify_progress(progress).await.is_err() {
                return;
            }
        }
        if ended {
            return;
        }
    }
}

/// Sends output; gives whether more can be sent.
async fn send_log(peer: &Peer<RoleServer>, name: &str, text: &str, left: &mut usize) -> bool {
    let text = match text.len() > *left {
        true => format!("{}\n[more output is in the result alone]", clip(text, *left)),
        false => text.to_owned(),
    };
    *left = left.saturating_sub(text.len());
    let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, Value::String(text)).with_logger(name);
    peer.notify_logging_message(message).await.is_ok()
}

/// At most `most` bytes of text, cut between characters.
fn clip(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Takes what is there as text, and leaves the beginning of a character whose rest is to come.
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
