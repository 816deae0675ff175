//! A waiting interpreter: started, warmed, given one request, never used again.
//!
//! ```text
//! warm --(ready on both streams)--> waiting --start--> request sent --(answer)--> running
//!   |  refused, ended, too slow        |  dropped           |  no answer
//!   '----------------> killed <--------'--------------------'
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use cofferdam_contract::{
    ByteSize, Chunk, Command, Completed, ExecHandle, ExecRequest, OutputEvent, OutputStream, OutputSubscription,
    Result, Sandbox, SandboxPath, Script, Stdin, StdinWriter, collect,
};
use tokio::io::AsyncWriteExt;

use crate::config::{InterpreterConfig, Runtime};
use crate::error::{StartError, WarmError};
use crate::frame;
use crate::marker::{Marker, TooLoud, token};
use crate::plan::Plan;
use crate::run::{Control, Run};

/// Processes that a waiting interpreter can need besides itself: make its sandbox with that many more than the code is
/// to have. See `docs/interpreters.md`, "The anchor".
pub const EXTRA_PROCESSES: u32 = 1;
/// What modules may print while they are imported, on each stream.
const MOST_NOISE: ByteSize = ByteSize::from_mebibytes(1);
/// Time in which an interpreter takes its request over.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The answer before a request's code runs.
const ANSWER: &[u8] = b"+";
/// The longest answer to a request.
const MOST_ANSWER: usize = 100;
const PYTHON: &str = concat!(
    include_str!("bootstrap/python/script.py"),
    include_str!("bootstrap/python/waiting.py"),
    include_str!("bootstrap/python/serve.py"),
);
const NODE: &str = include_str!("bootstrap/node.cjs");

/// An interpreter that waits for its one request. Dropping it ends it.
#[derive(Debug)]
pub struct WaitingInterpreter {
    sandbox: Arc<dyn Sandbox>,
    config: InterpreterConfig,
    inner: ExecHandle,
    stdin: StdinWriter,
    output: OutputSubscription,
    warm_cpu: f64,
    /// Bytes that it wrote until it was ready.
    before: u64,
    expires: Instant,
}

impl WaitingInterpreter {
    /// Starts an interpreter in `sandbox` and waits until it is warm. The sandbox must be fresh and for this one
    /// interpreter; its backend needs several execs, streaming input and Unix programs.
    ///
    /// # Behavior
    /// - Fails with `NotFound` when the interpreter or one of its modules is missing, and says which.
    /// - Fails with `Unavailable` when it ends or is not ready within the warm limit.
    /// - What the modules print is not passed on to anybody; errors quote its end.
    pub async fn warm(sandbox: Arc<dyn Sandbox>, config: InterpreterConfig) -> Result<Self> {
        config.validate()?;
        let token = token();
        let expires = Instant::now() + config.lifetime;
        // Where no control group counts memory, memory that two processes share counts twice: then no anchor.
        let anchored = sandbox.usage().await.is_ok_and(|usage| usage.memory_bytes.is_some());
        let inner = sandbox.start(wait_request(&config, &token, anchored)?).await?;
        let stdin = inner.stdin().ok_or_else(|| WarmError::NoStdin.into_error(""))?;
        let mut ready = Ready::new(&token);
        let mut output = inner.output();
        let result = tokio::time::timeout(config.warm_limit, ready.wait(&mut output, &inner)).await;
        let result = result.unwrap_or(Err(WarmError::TooSlow));
        let warm_cpu = result.map_err(|error| error.into_error(&ready.noise()))?;
        Ok(Self { sandbox, config, inner, stdin, output, warm_cpu, before: ready.bytes, expires })
    }

    /// The sandbox that it waits in.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// When its lifetime ends. A request whose time-out lies behind this is refused.
    pub fn expires(&self) -> Instant {
        self.expires
    }

    /// Whether it waits still. One that was killed, for want of memory say, does not.
    pub fn is_alive(&self) -> bool {
        self.inner.try_exit().is_none()
    }

    /// Gives the interpreter its request and returns when the code is about to run.
    ///
    /// # Behavior
    /// - Answers `Unsupported` for what [`InterpreterConfig::accepts`] does not accept; the interpreter is gone then.
    /// - Answers `InvalidInput` when the working directory cannot be entered, and `Unavailable` when the interpreter is gone.
    /// - The handle is as one of [`Sandbox::start`]. Time and CPU seconds of warming are not counted in its exit.
    /// - Holds the sandbox until the request has ended; whoever wants it longer keeps a reference.
    pub async fn start(mut self, request: ExecRequest) -> Result<ExecHandle> {
        let begun = Instant::now();
        request.validate()?;
        let plan = Plan::new(&self.config, &request)?;
        let timeout = request.timeout().unwrap_or(self.sandbox.spec().limits().wall_time);
        let deadline = begun.checked_add(timeout).filter(|deadline| *deadline <= self.expires);
        let deadline = deadline.ok_or(StartError::TooOld)?;
        let frame = frame::encode(&plan);
        let answer = tokio::time::timeout(ANSWER_LIMIT, self.ask(&frame, request.working_dir())).await;
        let first = answer.unwrap_or(Err(StartError::Silent))?;
        let stdin = feed(self.stdin, request.stdin());
        let inner = Arc::new(self.inner);
        let control = Arc::new(Control(Arc::clone(&inner)));
        let (handle, driver) = ExecHandle::new(inner.id(), &request, stdin, control);
        let (output, warm_cpu, sandbox) = (self.output, self.warm_cpu, self.sandbox);
        let before = self.before + ANSWER.len() as u64;
        tokio::spawn(Run { inner, output, begun, deadline, warm_cpu, before, sandbox }.drive(driver, first));
        Ok(handle)
    }

    /// Runs a request, collects its output, closes the sandbox.
    pub async fn run(self, request: ExecRequest) -> Result<Completed> {
        let sandbox = Arc::clone(&self.sandbox);
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        let result = match self.start(request).await {
            Ok(handle) => collect(handle).await,
            Err(error) => Err(error),
        };
        sandbox.close().await?;
        result
    }

    /// Sends the request and waits for the answer; gives what was printed beside it.
    async fn ask(&mut self, frame: &[u8], directory: &SandboxPath) -> Result<Vec<Chunk>, StartError> {
        self.stdin.write_all(frame).await.map_err(|_| StartError::Gone)?;
        let (mut answer, mut first) = (BytesMut::new(), Vec::new());
        loop {
            match self.output.next().await {
                Some(OutputEvent::Chunk(Chunk { stream: OutputStream::Stdout, data })) => answer.extend(data),
                // What the code writes to the other stream can overtake the answer.
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
                Some(b'-') if answer.len() < MOST_ANSWER => {}
                _ => return Err(StartError::Silent),
            }
        }
    }
}

/// An answer such as `-2 directory`.
fn failure(answer: &[u8], directory: &SandboxPath) -> StartError {
    let text = String::from_utf8_lossy(answer);
    let mut words = text.split_whitespace();
    let errno = words.next().and_then(|errno| errno.parse().ok()).unwrap_or_default();
    match words.next() {
        Some("directory") => StartError::Directory { path: directory.inside(), errno },
        _ => StartError::Store { errno },
    }
}

/// What starts the interpreter that will wait.
fn wait_request(config: &InterpreterConfig, token: &str, anchored: bool) -> Result<ExecRequest> {
    let mut interpreter = config.command.clone();
    let ending = if anchored { "anchored" } else { "plain" };
    let mut args = vec![token.to_owned(), ending.to_owned(), config.warm_up.clone()];
    args.extend(config.modules.iter().cloned());
    let (name, contents) = match config.runtime {
        Runtime::Python => ("waiting.py", PYTHON),
        Runtime::Node => {
            // The file is loaded ahead of a main script, whose place is taken by the request's.
            interpreter.push("--require".to_owned());
            args.insert(0, "main.js".to_owned());
            ("waiting.cjs", NODE)
        }
    };
    // As much is passed on as is kept, so that nothing can be lost between this exec and the request's handle.
    let room = ByteSize::from_bytes(config.most_output.as_bytes() + 2 * MOST_NOISE.as_bytes());
    let contents = Bytes::from_static(contents.as_bytes());
    ExecRequest::builder(Command::Script(Script { interpreter, name: name.to_owned(), contents, args }))
        .stdin(Stdin::Stream)
        .timeout(config.lifetime)
        .max_output(room)
        .output_buffer(room)
        .build()
}

/// Gives the code its standard input: what follows the request on the same stream.
fn feed(mut writer: StdinWriter, stdin: &Stdin) -> Option<StdinWriter> {
    match stdin {
        Stdin::Stream => return Some(writer),
        Stdin::Empty => drop(writer),
        Stdin::Bytes(data) => {
            let mut data = data.clone();
            tokio::spawn(async move {
                // Code that does not read its input is no error; its end ends this.
                while data.has_remaining() && writer.write_buf(&mut data).await.is_ok_and(|count| count > 0) {}
                let _ = writer.close().await;
            });
        }
    }
    None
}

/// Waits until an interpreter says on both streams that it is warm.
struct Ready {
    stdout: Marker,
    stderr: Marker,
    bytes: u64,
}

impl Ready {
    fn new(token: &str) -> Self {
        let marker = || Marker::new(token, MOST_NOISE.as_bytes() as usize);
        Self { stdout: marker(), stderr: marker(), bytes: 0 }
    }

    /// Gives the CPU seconds that starting and warming took.
    async fn wait(&mut self, output: &mut OutputSubscription, inner: &ExecHandle) -> Result<f64, WarmError> {
        let (mut told, mut errors_told) = (None, false);
        loop {
            let event = output.next().await;
            if let Some(OutputEvent::Chunk(chunk)) = &event {
                self.bytes += chunk.data.len() as u64;
            }
            match event {
                Some(OutputEvent::Chunk(Chunk { stream: OutputStream::Stdout, data })) => {
                    told = told.or(self.stdout.push(&data)?);
                }
                Some(OutputEvent::Chunk(Chunk { stream: OutputStream::Stderr, data })) => {
                    errors_told = errors_told || self.stderr.push(&data)?.is_some();
                }
                Some(OutputEvent::Lost { .. }) => return Err(TooLoud.into()),
                None => return Err(ended(inner).await),
            }
            match told.as_deref().map(|line| line.split_once(' ').unwrap_or((line, ""))) {
                Some(("ready", micros)) if errors_told => {
                    return Ok(micros.parse::<u32>().map_or(0.0, |micros| f64::from(micros) / 1e6));
                }
                Some(("ready", _)) | None => {}
                Some(("missing", reason)) => return Err(WarmError::Missing { reason: reason.to_owned() }),
                Some((_, reason)) => return Err(WarmError::Failed { reason: reason.to_owned() }),
            }
        }
    }

    fn noise(&self) -> String {
        [self.stdout.noise(), self.stderr.noise()].join("\n").trim().to_owned()
    }
}

impl From<TooLoud> for WarmError {
    fn from(_: TooLoud) -> Self {
        Self::TooLoud { most: MOST_NOISE }
    }
}

async fn ended(inner: &ExecHandle) -> WarmError {
    let how = match inner.exit().await {
        Ok(exit) if exit.killed_by.is_some() => "a limit killed it".to_owned(),
        Ok(exit) => exit.signal.map_or(format!("exit code {}", exit.code), |signal| format!("signal {signal}")),
        Err(error) => error.to_string(),
    };
    WarmError::Ended { how }
}
