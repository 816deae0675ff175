//! The QMP connection, over which QEMU takes commands.
//!
//! ```text
//! started --greeting, qmp_capabilities--> commands, each answered once --end of stream, bad line, timeout--> over
//! ```

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_linux::message;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{oneshot, watch};

use super::broken;
use super::message::{MAX_LINE, Message};
use crate::error::Result;

type Answer = Result<Value, String>;

struct Shared {
    /// Senders for pending answers, by command ID; `None` after the connection has ended.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>,
    greeted: watch::Sender<bool>,
    /// The reason for the VM's stop, once QEMU reported it.
    shutdown: watch::Sender<Option<String>>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Answer>>>> {
        self.waiting.lock()
    }
}

/// A connection. It ends with QEMU, or when it is dropped.
pub(crate) struct Qmp {
    shared: Arc<Shared>,
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    last: AtomicU64,
    timeout: Duration,
}

impl std::fmt::Debug for Qmp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qmp").field("shutdown", &*self.shared.shutdown.borrow()).finish_non_exhaustive()
    }
}

impl Qmp {
    /// Starts to read messages.
    pub(crate) fn begin(stream: UnixStream, timeout: Duration) -> Self {
        let (reader, writer) = stream.into_split();
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Some(HashMap::new())),
            greeted: watch::Sender::new(false),
            shutdown: watch::Sender::new(None),
        });
        tokio::spawn(listen(Arc::clone(&shared), reader));
        Self { shared, writer: tokio::sync::Mutex::new(writer), last: AtomicU64::new(0), timeout }
    }

    /// Waits for the greeting, and completes the handshake.
    pub(crate) async fn greet(&self) -> Result<()> {
        let mut greeted = self.shared.greeted.subscribe();
        let waited = tokio::time::timeout(self.timeout, async {
            loop {
                if *greeted.borrow_and_update() {
                    return true;
                }
                if self.shared.waiting().is_none() || greeted.changed().await.is_err() {
                    return false;
                }
            }
        });
        match waited.await {
            Ok(true) => self.command("qmp_capabilities").await.map(drop),
            Ok(false) => Err(broken("it ended before its greeting")),
            Err(_) => Err(broken(format!("it sent no greeting within {:?}", self.timeout))),
        }
    }

    /// Sends a command without arguments, and returns its result.
    pub(crate) async fn command(&self, name: &'static str) -> Result<Value> {
        self.request(name, json!({}), None).await
    }

    /// Sends a command, optionally with a descriptor.
    pub(crate) async fn request(
        &self,
        name: &'static str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Value> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        match &mut *self.shared.waiting() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(broken(format!("cannot send the command {name}: it has ended"))),
        };
        let line = format!("{}\n", json!({ "execute": name, "arguments": arguments, "id": id }));
        let answered = async {
            let mut writer = self.writer.lock().await;
            // QEMU may have a part of the line, so no other command can follow: all pending answers are cancelled.
            let unsent = |_| {
                *self.shared.waiting() = None;
                broken(format!("cannot send the command {name}"))
            };
            let rest = match descriptor {
                // The descriptor is sent with the first byte.
                Some(descriptor) => {
                    let (first, rest) = line.split_at(1);
                    let socket: &UnixStream = writer.as_ref();
                    let send = || message::send(socket.as_fd(), first.as_bytes(), &[descriptor]);
                    socket.async_io(Interest::WRITABLE, send).await.map_err(unsent)?;
                    rest
                }
                None => &line,
            };
            writer.write_all(rest.as_bytes()).await.map_err(unsent)?;
            drop(writer);
            match answer.await {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(why)) => Err(broken(format!("it refuses the command {name}: {why}"))),
                Err(_) => Err(broken(format!("it ended during the command {name}"))),
            }
        };
        let outcome = tokio::time::timeout(self.timeout, answered).await;
        if let Some(waiting) = &mut *self.shared.waiting() {
            waiting.remove(&id);
        }
        outcome.unwrap_or_else(|_| Err(broken(format!("no answer to the command {name} within {:?}", self.timeout))))
    }

    /// Returns true if the connection accepts no more commands.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.waiting().is_none()
    }

    /// Returns the reason for the VM's stop, if QEMU reported it.
    pub(crate) fn shutdown(&self) -> Option<String> {
        self.shared.shutdown.borrow().clone()
    }
}

async fn listen(shared: Arc<Shared>, reader: OwnedReadHalf) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while let Some(()) = next_line(&mut reader, &mut line).await {
        match Message::parse(&line) {
            Some(Message::Greeting) => drop(shared.greeted.send_replace(true)),
            Some(Message::Done(id, value)) => answer(&shared, id, Ok(value)),
            Some(Message::Failed(id, why)) => answer(&shared, id, Err(why)),
            Some(Message::Shutdown(reason)) => drop(shared.shutdown.send_replace(Some(reason))),
            Some(Message::Other) => {}
            None => break,
        }
    }
    // Ends all pending commands.
    *shared.waiting() = None;
    shared.greeted.send_modify(|_| {});
}

fn answer(shared: &Shared, id: u64, outcome: Answer) {
    let sender = shared.waiting().as_mut().and_then(|waiting| waiting.remove(&id));
    if let Some(sender) = sender {
        // The caller may have stopped waiting.
        let _ = sender.send(outcome);
    }
}

/// Reads a line; returns `None` at the end, and if the line is too long.
async fn next_line(reader: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> Option<()> {
    line.clear();
    loop {
        let chunk = reader.fill_buf().await.ok()?;
        if chunk.is_empty() {
            return None;
        }
        let end = chunk.iter().position(|&byte| byte == b'\n');
        let taken = end.map_or(chunk.len(), |end| end + 1);
        line.extend_from_slice(&chunk[..taken]);
        reader.consume(taken);
        if line.len() > MAX_LINE {
            return None;
        }
        if end.is_some() {
            return Some(());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// Creates a QEMU that sends these answers, one for each line that it receives.
    fn scripted(greeting: &'static str, answers: Vec<String>) -> Qmp {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        tokio::spawn(async move {
            theirs.write_all(greeting.as_bytes()).await.unwrap();
            let mut received = vec![0; 4096];
            for answer in answers {
                if !matches!(theirs.read(&mut received).await, Ok(1..)) {
                    return;
                }
                let _ = theirs.write_all(answer.as_bytes()).await;
            }
            // Then it is silent, as long as the connection is open.
            let _ = theirs.read(&mut received).await;
            std::future::pending::<()>().await;
        });
        Qmp::begin(ours, Duration::from_millis(300))
    }

    const GREETING: &str = "{\"QMP\": {}}\n";

    fn done(id: u64) -> String {
        format!("{{\"return\": {{}}, \"id\": {id}}}\n")
    }

    #[tokio::test]
    async fn commands_are_answered_once_each() {
        let refusal = "{\"event\": \"STOP\"}\n{\"id\": 2, \"error\": {\"desc\": \"not now\"}}\n".to_owned();
        let qmp = scripted(GREETING, vec![done(1), refusal, done(99) + &done(3)]);
        qmp.greet().await.unwrap();
        let error = qmp.command("stop").await.unwrap_err().to_string();
        assert!(error.contains("not now"), "{error}");
        qmp.command("cont").await.unwrap();
        let silent = qmp.command("stop").await.unwrap_err().to_string();
        assert!(silent.contains("no answer"), "{silent}");
    }

    #[tokio::test]
    async fn qmp_with_a_closed_reader_fails_at_once() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // The end of its output is not seen, as when a process closes its descriptors one after another.
        theirs.into_std().unwrap().shutdown(std::net::Shutdown::Read).unwrap();
        let qmp = Qmp::begin(ours, Duration::from_secs(60));
        let error = qmp.command("cont").await.unwrap_err().to_string();
        assert!(error.contains("cannot send the command cont"), "{error}");
        assert!(qmp.is_over());
    }

    #[tokio::test]
    async fn invalid_qmp_output_fails_without_a_hang() {
        let long = "x".repeat(MAX_LINE + 10) + "\n";
        for line in ["rubbish\n".to_owned(), long, "{}\n".to_owned()] {
            let qmp = scripted(GREETING, vec![line]);
            let error = qmp.greet().await.unwrap_err().to_string();
            assert!(error.contains("ended during") || error.contains("cannot send"), "{error}");
            assert!(qmp.command("stop").await.unwrap_err().to_string().contains("has ended"));
        }
        let error = scripted("", Vec::new()).greet().await.unwrap_err().to_string();
        assert!(error.contains("sent no greeting"), "{error}");
    }
}
