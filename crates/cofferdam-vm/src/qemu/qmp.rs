//! The connection over which QEMU takes commands.
//!
//! ```text
//! begun --greeting, qmp_capabilities--> commands, each answered once --end of the stream, rubbish, silence--> over
//! ```

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_linux::message;
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
    /// Who waits for which answer; `None` when there will be no more.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>,
    greeted: watch::Sender<bool>,
    /// Why the machine stops, once QEMU said so.
    shutdown: watch::Sender<Option<String>>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Answer>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection. It ends when QEMU does, or when this is dropped.
pub(crate) struct Qmp {
    shared: Arc<Shared>,
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    last: AtomicU64,
    patience: Duration,
}

impl std::fmt::Debug for Qmp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Qmp").field("shutdown", &*self.shared.shutdown.borrow()).finish_non_exhaustive()
    }
}

impl Qmp {
    /// Begins to listen.
    pub(crate) fn begin(stream: UnixStream, patience: Duration) -> Self {
        let (reader, writer) = stream.into_split();
        let shared = Arc::new(Shared {
            waiting: Mutex::new(Some(HashMap::new())),
            greeted: watch::Sender::new(false),
            shutdown: watch::Sender::new(None),
        });
        tokio::spawn(listen(Arc::clone(&shared), reader));
        Self { shared, writer: tokio::sync::Mutex::new(writer), last: AtomicU64::new(0), patience }
    }

    /// Waits for the greeting, and answers it.
    pub(crate) async fn greet(&self) -> Result<()> {
        let mut greeted = self.shared.greeted.subscribe();
        let waited = tokio::time::timeout(self.patience, async {
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
            Ok(false) => Err(broken("it ended before it greeted")),
            Err(_) => Err(broken(format!("it did not greet within {:?}", self.patience))),
        }
    }

    /// Has a command without arguments carried out, and gives what it says.
    pub(crate) async fn command(&self, name: &'static str) -> Result<Value> {
        self.order(name, json!({}), None).await
    }

    /// Has a command carried out that may come with a descriptor.
    pub(crate) async fn order(
        &self,
        name: &'static str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<Value> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        match &mut *self.shared.waiting() {
            Some(waiting) => waiting.insert(id, sender),
            None => return Err(broken(format!("it has ended, and takes no command {name}"))),
        };
        let line = format!("{}\n", json!({ "execute": name, "arguments": arguments, "id": id }));
        let asked = async {
            let mut writer = self.writer.lock().await;
            // Whatever it has of the line, the next one cannot follow: nobody else is to wait for an answer.
            let takes_none = |_| {
                *self.shared.waiting() = None;
                broken(format!("it takes no command {name}"))
            };
            let rest = match descriptor {
                // It comes with the first bytes.
                Some(descriptor) => {
                    let (first, rest) = line.split_at(1);
                    let socket: &UnixStream = writer.as_ref();
                    let send = || message::send(socket.as_fd(), first.as_bytes(), &[descriptor]);
                    socket.async_io(Interest::WRITABLE, send).await.map_err(takes_none)?;
                    rest
                }
                None => &line,
            };
            writer.write_all(rest.as_bytes()).await.map_err(takes_none)?;
            drop(writer);
            match answer.await {
                Ok(Ok(said)) => Ok(said),
                Ok(Err(why)) => Err(broken(format!("it refuses the command {name}: {why}"))),
                Err(_) => Err(broken(format!("it ended during the command {name}"))),
            }
        };
        let outcome = tokio::time::timeout(self.patience, asked).await;
        if let Some(waiting) = &mut *self.shared.waiting() {
            waiting.remove(&id);
        }
        outcome.unwrap_or_else(|_| Err(broken(format!("no answer to the command {name} within {:?}", self.patience))))
    }

    /// Whether it takes no commands any more.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.waiting().is_none()
    }

    /// Why the machine stops, if QEMU said so.
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
            Some(Message::Done(id, said)) => answer(&shared, id, Ok(said)),
            Some(Message::Failed(id, why)) => answer(&shared, id, Err(why)),
            Some(Message::Shutdown(reason)) => drop(shared.shutdown.send_replace(Some(reason))),
            Some(Message::Other) => {}
            None => break,
        }
    }
    // Whoever waits is told by that.
    *shared.waiting() = None;
    shared.greeted.send_modify(|_| {});
}

fn answer(shared: &Shared, id: u64, outcome: Answer) {
    let sender = shared.waiting().as_mut().and_then(|waiting| waiting.remove(&id));
    if let Some(sender) = sender {
        // Nobody may wait any more.
        let _ = sender.send(outcome);
    }
}

/// Reads a line; `None` at the end, and for one that is too long.
async fn next_line(reader: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> Option<()> {
    line.clear();
    loop {
        let piece = reader.fill_buf().await.ok()?;
        if piece.is_empty() {
            return None;
        }
        let end = piece.iter().position(|&byte| byte == b'\n');
        let taken = end.map_or(piece.len(), |end| end + 1);
        line.extend_from_slice(&piece[..taken]);
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

    /// A QEMU that says these things, one for each line that it is told.
    fn scripted(greeting: &'static str, answers: Vec<String>) -> Qmp {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        tokio::spawn(async move {
            theirs.write_all(greeting.as_bytes()).await.unwrap();
            let mut heard = vec![0; 4096];
            for answer in answers {
                if !matches!(theirs.read(&mut heard).await, Ok(1..)) {
                    return;
                }
                let _ = theirs.write_all(answer.as_bytes()).await;
            }
            // Then it is silent, for as long as anybody listens.
            let _ = theirs.read(&mut heard).await;
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
    async fn one_that_takes_nothing_is_over_at_once() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        // What comes from it is never seen to end, as when its process goes one descriptor after another.
        theirs.into_std().unwrap().shutdown(std::net::Shutdown::Read).unwrap();
        let qmp = Qmp::begin(ours, Duration::from_secs(60));
        let error = qmp.command("cont").await.unwrap_err().to_string();
        assert!(error.contains("takes no command cont"), "{error}");
        assert!(qmp.is_over());
    }

    #[tokio::test]
    async fn what_is_no_qemu_is_no_hang() {
        let long = "x".repeat(MAX_LINE + 10) + "\n";
        for said in ["rubbish\n".to_owned(), long, "{}\n".to_owned()] {
            let qmp = scripted(GREETING, vec![said]);
            let error = qmp.greet().await.unwrap_err().to_string();
            assert!(error.contains("ended during") || error.contains("takes no"), "{error}");
            assert!(qmp.command("stop").await.unwrap_err().to_string().contains("has ended"));
        }
        let error = scripted("", Vec::new()).greet().await.unwrap_err().to_string();
        assert!(error.contains("did not greet"), "{error}");
    }
}
