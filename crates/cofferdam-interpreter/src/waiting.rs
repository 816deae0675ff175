//! A waiting interpreter: started, warmed, given one request, never used again.
//!
//! ```text
//! warm --(ready on both streams)--> waiting --start--> request sent --(answer)--> running
//!   |  refused, ended, too slow        |  dropped           |  no answer
//!   '----------------> killed <--------'--------------------'
//! ```

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cofferdam_contract::{
    ByteSize, Command, Completed, ExecHandle, ExecRequest, Result, Sandbox, Script, Stdin, after_close, collect,
};

use crate::config::{InterpreterConfig, Runtime};
use crate::line::{Line, Times};
use crate::marker::token;
use crate::plan::Plan;
use crate::ready::{MAX_NOISE, warm_up};

/// Processes that a waiting interpreter can need besides itself: make its sandbox with that many more than the code is
/// to have. See `docs/interpreters.md`, "The anchor".
pub const EXTRA_PROCESSES: u32 = 1;
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
    line: Line,
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
        let line = warm_up(&*sandbox, wait_request(&config, &token, anchored)?, &token, config.warm_limit).await?;
        Ok(Self { sandbox, config, line, expires })
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
        self.line.inner.try_exit().is_none()
    }

    /// Gives the interpreter its request and returns when the code is about to run.
    ///
    /// # Behavior
    /// - Answers `Unsupported` for what [`InterpreterConfig::accepts`] does not accept; the interpreter is gone then.
    /// - Answers `InvalidInput` when the working directory cannot be entered, and `Unavailable` when the interpreter is gone.
    /// - The handle is as one of [`Sandbox::start`]. Time and CPU seconds of warming are not counted in its exit.
    /// - Holds the sandbox until the request has ended; whoever wants it longer keeps a reference.
    pub async fn start(self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        let plan = Plan::new(&self.config, &request)?;
        let times = Times::of(&request, &*self.sandbox, self.expires)?;
        self.line.begin(&request, &plan, times, self.sandbox).await
    }

    /// Runs a request, collects its output, closes the sandbox.
    pub async fn run(self, request: ExecRequest) -> Result<Completed> {
        let sandbox = Arc::clone(&self.sandbox);
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        let result = match self.start(request).await {
            Ok(handle) => collect(handle).await,
            Err(error) => Err(error),
        };
        after_close(result, sandbox.close().await)
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
    let room = ByteSize::from_bytes(config.most_output.as_bytes() + 2 * MAX_NOISE.as_bytes());
    let contents = Bytes::from_static(contents.as_bytes());
    ExecRequest::builder(Command::Script(Script { interpreter, name: name.to_owned(), contents, args }))
        .stdin(Stdin::Stream)
        .timeout(config.lifetime)
        .max_output(room)
        .output_buffer(room)
        .build()
}
