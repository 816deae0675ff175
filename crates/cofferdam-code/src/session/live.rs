//! The interpreter of a session, and a call of it.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{
    ByteSize, Chunk, Command, Error, ErrorKind, ExecHandle, ExecRequest, Exit, ExitWatch, OutputEvent, OutputStream,
    OutputSubscription, Result, Sandbox, Script, Stdin, StdinWriter,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::SessionBounds;
use super::wire::{Report, Stream, frame};
use crate::bootstrap::{self, Parameters};
use crate::executor::MAX_OUTPUT;
use crate::result::{limit_name, random_id};
use crate::{Language, error};

/// The size of the output buffer.
const BUFFER: ByteSize = ByteSize::from_mebibytes(8);
/// Timeout for the exit of an interpreter that reported that it ends.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A callback for all output of a call as it arrives, with the number of bytes of a chunk that the result keeps.
pub type OnSession<'a> = &'a (dyn Fn(&OutputEvent, usize) + Send + Sync);

/// A running interpreter. Dropping it kills it.
pub struct Live {
    handle: Arc<ExecHandle>,
    stdin: StdinWriter,
    output: OutputSubscription,
    /// The interpreter's pid in the sandbox, as it reports it.
    pid: Option<i32>,
    /// Output after the end of the last call.
    rest: [Vec<u8>; 2],
    /// The slot among the open sessions, and other resources of the session.
    _held: Held,
}

/// Resources that are released when nothing of an interpreter is left.
pub type Held = (OwnedSemaphorePermit, Box<dyn Any + Send>);

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// The end of a call.
#[derive(Debug)]
pub enum End {
    /// The interpreter is ready for the next call.
    Served(Report),
    /// The interpreter ended, as the backend reports.
    Died(Exit),
    /// The call timed out.
    TimedOut,
    /// The interpreter sent an invalid report.
    Invalid,
}

/// The outcome of a call.
#[derive(Debug)]
pub struct Answer {
    pub end: End,
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub truncated: bool,
    /// Number of output bytes, including dropped ones.
    pub output: u64,
    pub duration: Duration,
}

impl Live {
    /// Starts an interpreter and waits until it is ready.
    pub async fn start(
        sandbox: &dyn Sandbox,
        name: &str,
        language: &Language,
        bounds: &SessionBounds,
        max_results: ByteSize,
        held: Held,
    ) -> Result<Self> {
        let file = language.file_name();
        let parameters = Parameters {
            code: "",
            name: &file,
            results_path: None,
            max_results: max_results.as_bytes(),
            session: true,
        };
        let (contents, file) = bootstrap::wrap(language.results(), parameters)
            .ok_or_else(|| Error::unsupported("open a session", format!("{name} has no sessions")))?;
        let script = Script {
            interpreter: language.command(),
            name: file.to_owned(),
            contents: contents.into_bytes().into(),
            args: Vec::new(),
        };
        let request = ExecRequest::builder(Command::Script(script))
            .stdin(Stdin::Stream)
            .timeout(bounds.lifetime)
            .max_output(MAX_OUTPUT)
            .output_buffer(BUFFER)
            .build()?;
        let started = sandbox.start(request).await;
        let handle = started.map_err(|error| error::not_started(error, name, language.program()))?;
        let output = handle.output();
        let stdin = handle.stdin().ok_or_else(|| {
            Error::new(ErrorKind::Internal, "open a session", "the interpreter has no standard input")
        })?;
        let mut live =
            Self { handle: Arc::new(handle), stdin, output, pid: None, rest: Default::default(), _held: held };
        let until = Instant::now() + bounds.start_timeout;
        let answer = live.call(None, "", until, ByteSize::from_bytes(4096), &|_, _| {}).await?;
        match answer.end {
            End::Served(Report::Done(pid)) => {
                live.pid = (pid > 1).then_some(pid);
                Ok(live)
            }
            end => {
                let printed = String::from_utf8_lossy(&answer.stderr).chars().take(300).collect::<String>();
                let why = lost(&end, answer.duration).unwrap_or_default();
                let message = format!("cannot start a session in {name}: {why} {}", printed.escape_debug());
                Err(Error::new(ErrorKind::Unavailable, "open a session", message.trim().to_owned()).with_remedy(
                    "check the output of the interpreter; a session needs memory and processes within the sandbox's limits",
                ))
            }
        }
    }

    /// Returns the process, so that it can be ended during a call.
    pub fn process(&self) -> Weak<ExecHandle> {
        Arc::downgrade(&self.handle)
    }

    /// Returns the pid in the sandbox that the interpreter reported.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Returns a watch on the end of the process.
    pub fn end(&self) -> ExitWatch {
        self.handle.exit_watch()
    }

    /// Sends code and collects output until the end of the call.
    pub async fn call(
        &mut self,
        results_path: Option<&str>,
        code: &str,
        until: Instant,
        max: ByteSize,
        on_output: OnSession<'_>,
    ) -> Result<Answer> {
        let marker = random_id()?;
        let begun = Instant::now();
        let mut collector = OutputCollector::new(&marker, max, on_output);
        for (stream, rest) in [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(&mut self.rest) {
            collector.take(stream, &std::mem::take(rest));
        }
        let request = frame(&marker, results_path, code);
        let (stdin, output) = (&mut self.stdin, &mut self.output);
        let send = async {
            // If the interpreter is gone, its exit explains the failure.
            let _ = stdin.write_all(&request).await;
            let _ = stdin.flush().await;
            std::future::pending::<()>().await;
        };
        let receive = async {
            while !collector.ended() {
                match output.next().await {
                    Some(OutputEvent::Chunk(Chunk { stream, data })) => collector.take(stream, &data),
                    Some(OutputEvent::Lost { bytes, .. }) => collector.lose(bytes),
                    None => return false,
                }
                tokio::task::consume_budget().await;
            }
            true
        };
        let came = tokio::select! {
            () = send => false,
            came = timeout_at(until, receive) => match came {
                Ok(true) => true,
                Ok(false) => {
                    let exit = self.handle.exit().await?;
                    return Ok(collector.answer(End::Died(exit), begun, &mut self.rest));
                }
                Err(_) => return Ok(collector.answer(End::TimedOut, begun, &mut self.rest)),
            },
        };
        let report = if came { collector.report() } else { None };
        let end = report.map_or(End::Invalid, End::Served);
        Ok(collector.answer(end, begun, &mut self.rest))
    }

    /// Ends the interpreter and waits for its exit. `exiting` is true if it reported that it ends, which gives it time
    /// to exit.
    pub async fn close(self, exiting: bool) {
        if exiting {
            let _ = tokio::time::timeout(EXIT_TIMEOUT, self.handle.exit()).await;
        }
        // A failure belongs to the sandbox, whose owner sees it.
        let _ = self.handle.close().await;
    }
}

/// Returns the reason why a session is gone after a call with this end, or `None` if it is not.
pub fn lost(end: &End, duration: Duration) -> Option<String> {
    match end {
        End::Served(Report::Done(_) | Report::Failed) => None,
        End::Served(Report::Exited(code)) => Some(format!("the code ended the interpreter, with exit code {code}")),
        End::Invalid => Some("the interpreter sent an invalid report; code may have written to its output".to_owned()),
        End::TimedOut => {
            Some(format!("a call did not end within {:.1} s and the interpreter was killed", duration.as_secs_f64()))
        }
        End::Died(exit) => Some(died(exit)),
    }
}

/// Returns the reason why a session is gone whose interpreter ended between two calls.
pub fn ended_unasked(exit: Result<Exit>) -> String {
    match exit {
        Ok(exit) if exit.timed_out => died(&exit),
        Ok(exit) => format!("{}, between two calls", died(&exit)),
        Err(_) => "the interpreter ended between two calls, and the sandbox does not report how".to_owned(),
    }
}

fn died(exit: &Exit) -> String {
    match (exit.timed_out, exit.killed_by, exit.signal) {
        (true, ..) => "the session reached its maximum lifetime".to_owned(),
        (_, Some(limit), _) => format!("the interpreter was killed at the limit {}", limit_name(limit)),
        (_, _, Some(signal)) => format!("the interpreter was ended by signal {signal}"),
        _ => format!("the interpreter ended, with exit code {}", exit.code),
    }
}

/// A collector of the output of one call.
struct OutputCollector<'a> {
    streams: [Stream; 2],
    retained: [Vec<u8>; 2],
    left: u64,
    received: u64,
    truncated: bool,
    on_output: OnSession<'a>,
}

impl<'a> OutputCollector<'a> {
    fn new(marker: &str, max: ByteSize, on_output: OnSession<'a>) -> Self {
        let streams = [Stream::new(marker), Stream::new(marker)];
        Self { streams, retained: Default::default(), left: max.as_bytes(), received: 0, truncated: false, on_output }
    }

    fn take(&mut self, stream: OutputStream, data: &[u8]) {
        let at = usize::from(stream == OutputStream::Stderr);
        let output = self.streams[at].feed(data);
        if output.is_empty() {
            return;
        }
        self.received += output.len() as u64;
        let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(output.len());
        self.truncated |= length < output.len();
        self.left -= length as u64;
        self.retained[at].extend_from_slice(&output[..length]);
        (self.on_output)(&OutputEvent::Chunk(Chunk { stream, data: output.into() }), length);
    }

    fn lose(&mut self, bytes: u64) {
        self.received += bytes;
        self.truncated = true;
        (self.on_output)(&OutputEvent::Lost { bytes, chunks: 0 }, 0);
    }

    fn ended(&self) -> bool {
        self.streams.iter().all(Stream::ended)
    }

    fn report(&self) -> Option<Report> {
        self.streams[0].report()
    }

    fn answer(self, end: End, begun: Instant, rest: &mut [Vec<u8>; 2]) -> Answer {
        let [stdout, stderr] = self.retained;
        for (rest, stream) in rest.iter_mut().zip(self.streams) {
            *rest = stream.rest();
        }
        Answer {
            end,
            stdout: stdout.into(),
            stderr: stderr.into(),
            truncated: self.truncated,
            output: self.received,
            duration: begun.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::{LimitKind, Usage};

    use super::*;

    #[test]
    fn the_limit_that_ended_an_interpreter_is_named_whenever_it_did() {
        let exit = |killed_by, signal, timed_out| Exit {
            code: -1,
            signal,
            timed_out,
            cancelled: false,
            truncated: false,
            killed_by,
            limits_hit: Vec::new(),
            duration: Duration::ZERO,
            usage: Usage::default(),
        };
        for (exit, why, between) in [
            (exit(Some(LimitKind::Cpu), Some(9), false), "the interpreter was killed at the limit cpu", true),
            (exit(Some(LimitKind::Memory), Some(9), false), "the interpreter was killed at the limit memory", true),
            (exit(None, Some(11), false), "the interpreter was ended by signal 11", true),
            (exit(None, Some(9), true), "the session reached its maximum lifetime", false),
        ] {
            let unasked = ended_unasked(Ok(exit.clone()));
            assert_eq!(unasked, format!("{why}{}", if between { ", between two calls" } else { "" }));
            assert_eq!(lost(&End::Died(exit), Duration::ZERO).as_deref(), Some(why));
        }
        let unknown = ended_unasked(Err(Error::new(ErrorKind::Internal, "exit", "x")));
        assert_eq!(unknown, "the interpreter ended between two calls, and the sandbox does not report how");
    }
}
