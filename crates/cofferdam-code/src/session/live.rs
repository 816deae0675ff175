//! The interpreter of a session, and one call of it.

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
use super::wire::{Said, Stream, frame};
use crate::bootstrap::{self, Told};
use crate::executor::MAX_OUTPUT;
use crate::result::{limit_name, random_id};
use crate::{Language, error};

/// Output that waits for being read.
const BUFFER: ByteSize = ByteSize::from_mebibytes(8);
/// How long to wait for the end of an interpreter that said that it ends.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Called with all output of a call as it comes, and how many of a chunk's bytes the result keeps.
pub type OnSession<'a> = &'a (dyn Fn(&OutputEvent, usize) + Send + Sync);

/// An interpreter that waits for calls. Dropping it kills it.
pub struct Live {
    handle: Arc<ExecHandle>,
    stdin: StdinWriter,
    output: OutputSubscription,
    /// Its pid inside, as it says.
    pid: Option<i32>,
    /// What came after the end of the last call.
    rest: [Vec<u8>; 2],
    /// Its place among the sessions that may be open, and whatever else is held for it.
    _held: Held,
}

/// What is dropped when nothing of an interpreter is left.
pub type Held = (OwnedSemaphorePermit, Box<dyn Any + Send>);

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// How a call ended.
#[derive(Debug)]
pub enum End {
    /// The interpreter waits for the next call.
    Served(Said),
    /// It ended, as the backend says.
    Died(Exit),
    /// It did not end in time.
    TimedOut,
    /// It said what no interpreter of ours says.
    Nonsense,
}

/// What came of a call.
#[derive(Debug)]
pub struct Answer {
    pub end: End,
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub truncated: bool,
    /// Bytes of output, those that were dropped included.
    pub output: u64,
    pub duration: Duration,
}

impl Live {
    /// Starts an interpreter, and waits until it serves.
    pub async fn start(
        sandbox: &dyn Sandbox,
        name: &str,
        language: &Language,
        bounds: &SessionBounds,
        most_results: ByteSize,
        held: Held,
    ) -> Result<Self> {
        let file = language.file_name();
        let told = Told { code: "", name: &file, place: None, most: most_results.as_bytes(), session: true };
        let (contents, file) = bootstrap::around(language.results(), told)
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
        let stdin = handle
            .stdin()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "open a session", "the interpreter has no input"))?;
        let mut live =
            Self { handle: Arc::new(handle), stdin, output, pid: None, rest: Default::default(), _held: held };
        let until = Instant::now() + bounds.start_timeout;
        let answer = live.call(None, "", until, ByteSize::from_bytes(4096), &|_, _| {}).await?;
        match answer.end {
            End::Served(Said::Done(pid)) => {
                live.pid = (pid > 1).then_some(pid);
                Ok(live)
            }
            end => {
                let said = String::from_utf8_lossy(&answer.stderr).chars().take(300).collect::<String>();
                let why = lost(&end, answer.duration).unwrap_or_default();
                let message = format!("{name} does not serve a session: {why} {}", said.escape_debug());
                Err(Error::new(ErrorKind::Unavailable, "open a session", message.trim().to_owned()).with_remedy(
                    "look at what it says; a session needs memory and processes within the sandbox's limits",
                ))
            }
        }
    }

    /// The process, for whoever ends it while a call has the rest.
    pub fn process(&self) -> Weak<ExecHandle> {
        Arc::downgrade(&self.handle)
    }

    /// The pid that the interpreter says it has inside.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Tells of the end of the process.
    pub fn end(&self) -> ExitWatch {
        self.handle.exit_watch()
    }

    /// Sends code, and takes what comes until its end.
    pub async fn call(
        &mut self,
        place: Option<&str>,
        code: &str,
        until: Instant,
        most: ByteSize,
        on_output: OnSession<'_>,
    ) -> Result<Answer> {
        let mark = random_id()?;
        let begun = Instant::now();
        let mut taking = Taking::new(&mark, most, on_output);
        for (stream, rest) in [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(&mut self.rest) {
            taking.take(stream, &std::mem::take(rest));
        }
        let request = frame(&mark, place, code);
        let (stdin, output) = (&mut self.stdin, &mut self.output);
        let send = async {
            // If it is gone, its end says so.
            let _ = stdin.write_all(&request).await;
            let _ = stdin.flush().await;
            std::future::pending::<()>().await;
        };
        let receive = async {
            while !taking.ended() {
                match output.next().await {
                    Some(OutputEvent::Chunk(Chunk { stream, data })) => taking.take(stream, &data),
                    Some(OutputEvent::Lost { bytes, .. }) => taking.lose(bytes),
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
                    return Ok(taking.answer(End::Died(exit), begun, &mut self.rest));
                }
                Err(_) => return Ok(taking.answer(End::TimedOut, begun, &mut self.rest)),
            },
        };
        let said = if came { taking.said() } else { None };
        let end = said.map_or(End::Nonsense, End::Served);
        Ok(taking.answer(end, begun, &mut self.rest))
    }

    /// Ends it, and waits for that; at once, or a moment after it said that it ends.
    pub async fn close(self, said: bool) {
        if said {
            let _ = tokio::time::timeout(LAST_WORDS, self.handle.exit()).await;
        }
        // A failure is the sandbox's, whose owner will see it.
        let _ = self.handle.close().await;
    }
}

/// Why a session is gone after a call that ended so; `None` if it is not.
pub fn lost(end: &End, duration: Duration) -> Option<String> {
    match end {
        End::Served(Said::Done(_) | Said::Failed) => None,
        End::Served(Said::Exited(code)) => Some(format!("the code ended the interpreter, with exit code {code}")),
        End::Nonsense => Some("the interpreter said what makes no sense; code may have written between".to_owned()),
        End::TimedOut => {
            Some(format!("a call did not end within {:.1} s, so the interpreter was killed", duration.as_secs_f64()))
        }
        End::Died(exit) => Some(died(exit)),
    }
}

/// Why a session is gone whose interpreter ended while no call went on.
pub fn ended_unasked(exit: Result<Exit>) -> String {
    match exit {
        Ok(exit) if exit.timed_out => died(&exit),
        Ok(exit) => format!("{}, between two calls", died(&exit)),
        Err(_) => "the interpreter ended between two calls, and the sandbox does not say how".to_owned(),
    }
}

fn died(exit: &Exit) -> String {
    match (exit.timed_out, exit.killed_by, exit.signal) {
        (true, ..) => "the session was as old as it may become".to_owned(),
        (_, Some(limit), _) => format!("the interpreter was killed at the limit {}", limit_name(limit)),
        (_, _, Some(signal)) => format!("the interpreter was ended by signal {signal}"),
        _ => format!("the interpreter ended, with exit code {}", exit.code),
    }
}

/// Output of one call as it is taken.
struct Taking<'a> {
    streams: [Stream; 2],
    kept: [Vec<u8>; 2],
    left: u64,
    came: u64,
    truncated: bool,
    on_output: OnSession<'a>,
}

impl<'a> Taking<'a> {
    fn new(mark: &str, most: ByteSize, on_output: OnSession<'a>) -> Self {
        let streams = [Stream::new(mark), Stream::new(mark)];
        Self { streams, kept: Default::default(), left: most.as_bytes(), came: 0, truncated: false, on_output }
    }

    fn take(&mut self, stream: OutputStream, data: &[u8]) {
        let at = usize::from(stream == OutputStream::Stderr);
        let output = self.streams[at].feed(data);
        if output.is_empty() {
            return;
        }
        self.came += output.len() as u64;
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(output.len());
        self.truncated |= most < output.len();
        self.left -= most as u64;
        self.kept[at].extend_from_slice(&output[..most]);
        (self.on_output)(&OutputEvent::Chunk(Chunk { stream, data: output.into() }), most);
    }

    fn lose(&mut self, bytes: u64) {
        self.came += bytes;
        self.truncated = true;
        (self.on_output)(&OutputEvent::Lost { bytes, chunks: 0 }, 0);
    }

    fn ended(&self) -> bool {
        self.streams.iter().all(Stream::ended)
    }

    fn said(&self) -> Option<Said> {
        self.streams[0].said()
    }

    fn answer(self, end: End, begun: Instant, rest: &mut [Vec<u8>; 2]) -> Answer {
        let [stdout, stderr] = self.kept;
        for (rest, stream) in rest.iter_mut().zip(self.streams) {
            *rest = stream.rest();
        }
        Answer {
            end,
            stdout: stdout.into(),
            stderr: stderr.into(),
            truncated: self.truncated,
            output: self.came,
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
            (exit(None, Some(9), true), "the session was as old as it may become", false),
        ] {
            let unasked = ended_unasked(Ok(exit.clone()));
            assert_eq!(unasked, format!("{why}{}", if between { ", between two calls" } else { "" }));
            assert_eq!(lost(&End::Died(exit), Duration::ZERO).as_deref(), Some(why));
        }
        let unknown = ended_unasked(Err(Error::new(ErrorKind::Internal, "exit", "x")));
        assert_eq!(unknown, "the interpreter ended between two calls, and the sandbox does not say how");
    }
}
