//! A running or ended exec of a live sandbox, which any number of clients may follow.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use cofferdam_contract::{
    Command, Error, ErrorKind, ExecHandle, ExecRequest, Exit, NetworkDenial, OutputSubscription, Result, Sandbox,
    Stdin, StdinWriter, TerminalSize,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::Mutex;

use super::rings::Ring;
use crate::layers::traces::Started;
use crate::tracer::Span;

/// The most characters of a command in a list.
const MAX_COMMAND: usize = 200;

/// An exec of a live sandbox.
#[derive(Debug)]
pub struct LiveExec {
    /// The id, unique on this server.
    pub id: String,
    /// The start of the command line, for people.
    pub command: String,
    /// The time of the start.
    pub started: SystemTime,
    /// True if it runs in a terminal.
    pub has_terminal: bool,
    /// True if it takes input as a stream.
    pub has_stdin: bool,
    handle: ExecHandle,
    stdin: Mutex<Option<StdinWriter>>,
    ring: Ring,
    trace: Arc<Started>,
    /// The refusals of the network policy, once the exec has ended.
    denials: Option<Arc<OnceLock<Vec<String>>>>,
}

impl LiveExec {
    pub(super) fn new(started: Arc<Started>, request: &ExecRequest, handle: ExecHandle, ring: Ring) -> Self {
        let stdin = Mutex::new(handle.stdin());
        let (has_terminal, has_stdin) = (request.terminal().is_some(), *request.stdin() == Stdin::Stream);
        let command = summary(request.command());
        let id = started.id.clone();
        let (began, denials) = (SystemTime::now(), None);
        Self { id, command, started: began, has_terminal, has_stdin, handle, stdin, ring, trace: started, denials }
    }

    /// Notes at the end of the exec what the network policy of its sandbox refused after `before`.
    pub(super) fn with_denials(mut self, sandbox: &Arc<dyn Sandbox>, before: Vec<NetworkDenial>) -> Self {
        let (sandbox, denials) = (Arc::downgrade(sandbox), Arc::new(OnceLock::new()));
        self.denials = Some(Arc::clone(&denials));
        self.handle = self.handle.before_exit(async move |outcome| {
            if let Some(sandbox) = sandbox.upgrade() {
                let new = NetworkDenial::since(sandbox.network_denials(), &before);
                denials.get_or_init(|| new.iter().map(ToString::to_string).collect());
            }
            outcome
        });
        self
    }

    /// Returns what the network policy refused while the exec ran: nothing before its end. Returns `None` if the sandbox
    /// has no policy.
    pub fn network_denials(&self) -> Option<Vec<String>> {
        self.denials.as_ref().map(|denials| denials.get().cloned().unwrap_or_default())
    }

    /// Links the span of a client that follows the exec to that of the exec.
    pub fn link_to(&self, span: &Span) {
        if let Some(own) = self.trace.span.get() {
            span.link(own);
        }
    }

    /// Subscribes to the output from a byte offset.
    pub fn output_from(&self, offset: u64) -> OutputSubscription {
        self.handle.output_from(offset)
    }

    /// Returns the exit if the exec has ended.
    pub fn try_exit(&self) -> Option<Result<Exit>> {
        self.handle.try_exit()
    }

    /// Returns true if the exec has ended. Its output then takes as much memory as there is of it.
    pub(super) fn has_ended(&self) -> bool {
        let exit = self.try_exit();
        if let Some(Ok(exit)) = &exit {
            self.ring.shrink(exit.usage.output_bytes);
        }
        exit.is_some()
    }

    /// Waits for the exit, at most for `limit`. Returns `None` if the exec still runs then.
    pub async fn exit_within(&self, limit: Duration) -> Option<Result<Exit>> {
        tokio::time::timeout(limit, self.handle.exit()).await.ok()
    }

    /// Writes to standard input, and waits until the program has taken it or the pipe has room.
    ///
    /// # Errors
    /// - `Conflict` if the exec takes no input, or its input has ended.
    pub async fn write_stdin(&self, data: &[u8]) -> Result<()> {
        let mut stdin = self.stdin.lock().await;
        let writer = stdin.as_mut().ok_or_else(no_stdin)?;
        let written = async {
            writer.write_all(data).await?;
            writer.flush().await
        };
        written.await.map_err(|error| {
            Error::new(ErrorKind::Closed, "write input", "the program no longer reads its input").with_source(error)
        })
    }

    /// Ends standard input. Idempotent.
    pub async fn close_stdin(&self) -> Result<()> {
        let writer = self.stdin.lock().await.take();
        if let Some(writer) = writer {
            // The program may have ended or closed its end before.
            let _ = writer.close().await;
        }
        Ok(())
    }

    /// Resizes the terminal.
    pub fn resize(&self, size: TerminalSize) -> Result<()> {
        self.handle.resize(size)
    }

    /// Sends SIGTERM, and SIGKILL after `grace`. With no grace, SIGKILL at once.
    pub fn signal(&self, grace: Duration) {
        if self.try_exit().is_none() {
            self.handle.request_cancel(grace);
        }
    }
}

fn no_stdin() -> Error {
    Error::new(ErrorKind::Conflict, "write input", "the exec takes no input, or its input has ended")
        .with_remedy("start it with \"stdin\": \"stream\"")
}

/// Returns the start of a command line, without control characters.
fn summary(command: &Command) -> String {
    let words = match command {
        Command::Argv(argv) => argv.join(" "),
        Command::Shell(line) => line.clone(),
        Command::Script(script) => format!("{} {}", script.interpreter.join(" "), script.name),
    };
    words.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(MAX_COMMAND).collect()
}
