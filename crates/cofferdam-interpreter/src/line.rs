//! A started interpreter on the other end of an exec, ready to receive its request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use cofferdam_contract::{
    Chunk, ExecHandle, ExecRequest, OutputEvent, OutputStream, OutputSubscription, Result, Sandbox, SandboxPath, Stdin,
    StdinWriter,
};
use tokio::io::AsyncWriteExt;

use crate::error::StartError;
use crate::frame;
use crate::plan::Plan;
use crate::run::{Control, Run};

/// Timeout for the interpreter to accept its request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The answer of the interpreter before the code of a request runs.
const ANSWER: &[u8] = b"+";
/// The most bytes of an answer to a request.
const MAX_ANSWER: usize = 100;

/// A started interpreter that is waiting for its request.
#[derive(Debug)]
pub struct Line {
    pub inner: ExecHandle,
    pub stdin: StdinWriter,
    pub output: OutputSubscription,
    /// CPU seconds of start and warm-up, which the exit of the inner exec includes.
    pub warm_cpu: f64,
    /// Number of bytes written before the interpreter was ready.
    pub before: u64,
}

/// The start time and the deadline of a request.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    begun: Instant,
    deadline: Instant,
}

impl Times {
    /// Returns the times of a request that begins now, on an interpreter whose lifetime ends at `expires`.
    pub fn of(request: &ExecRequest, sandbox: &dyn Sandbox, expires: Instant) -> Result<Self, StartError> {
        let begun = Instant::now();
        let timeout = request.timeout().unwrap_or(sandbox.spec().limits().wall_time);
        let deadline = begun.checked_add(timeout).filter(|deadline| *deadline <= expires);
        Ok(Self { begun, deadline: deadline.ok_or(StartError::TooOld)? })
    }
}

impl Line {
    /// Sends the request to the interpreter. Returns when the code is about to run.
    pub async fn begin(
        mut self,
        request: &ExecRequest,
        plan: &Plan<'_>,
        times: Times,
        sandbox: Arc<dyn Sandbox>,
    ) -> Result<ExecHandle> {
        let frame = frame::encode(plan);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.send_request(&frame, request.working_dir())).await;
        let first = answer.unwrap_or(Err(StartError::Unresponsive))?;
        let stdin = feed(self.stdin, request.stdin());
        let inner = Arc::new(self.inner);
        let control = Arc::new(Control(Arc::clone(&inner)));
        let (handle, driver) = ExecHandle::new(inner.id(), request, stdin, control);
        let (output, warm_cpu, before) = (self.output, self.warm_cpu, self.before + ANSWER.len() as u64);
        let Times { begun, deadline } = times;
        tokio::spawn(Run { inner, output, begun, deadline, warm_cpu, before, sandbox }.drive(driver, first));
        Ok(handle)
    }

    /// Sends the request and waits for the answer. Returns output that arrived with it.
    async fn send_request(&mut self, frame: &[u8], directory: &SandboxPath) -> Result<Vec<Chunk>, StartError> {
        self.stdin.write_all(frame).await.map_err(|_| StartError::Gone)?;
        let (mut answer, mut first) = (BytesMut::new(), Vec::new());
        loop {
            match self.output.next().await {
                Some(OutputEvent::Chunk(Chunk { stream: OutputStream::Stdout, data })) => answer.extend(data),
                // Output of the code on standard error can arrive before the answer.
                Some(OutputEvent::Chunk(chunk)) => {
                    first.push(chunk);
                    continue;
                }
                Some(OutputEvent::Lost { .. }) | None => return Err(StartError::Gone),
            }
            match answer.first() {
                Some(b'+') => {
                    answer.advance(ANSWER.len());
                    first.push(Chunk { stream: OutputStream::Stdout, data: answer.freeze() });
                    return Ok(first);
                }
                Some(b'-') if answer.ends_with(b"\n") => return Err(failure(&answer[1..], directory)),
                Some(b'-') if answer.len() < MAX_ANSWER => {}
                _ => return Err(StartError::Unresponsive),
            }
        }
    }
}

/// Parses an answer such as `-2 directory`.
fn failure(answer: &[u8], directory: &SandboxPath) -> StartError {
    let text = String::from_utf8_lossy(answer);
    let mut words = text.split_whitespace();
    let errno = words.next().and_then(|errno| errno.parse().ok()).unwrap_or_default();
    match words.next() {
        Some("directory") => StartError::Directory { path: directory.inside(), errno },
        _ => StartError::Store { errno },
    }
}

/// Sends the code its standard input, which follows the request on the same stream.
fn feed(mut writer: StdinWriter, stdin: &Stdin) -> Option<StdinWriter> {
    match stdin {
        Stdin::Stream => return Some(writer),
        Stdin::Empty => drop(writer),
        Stdin::Bytes(data) => {
            let mut data = data.clone();
            tokio::spawn(async move {
                // Code that does not read its input is no error. The end of the code ends this loop.
                while data.has_remaining() && writer.write_buf(&mut data).await.is_ok_and(|count| count > 0) {}
                let _ = writer.close().await;
            });
        }
    }
    None
}
