//! A prepared interpreter: started, warmed up, used for one request.
//!
//! ```text
//! warm-up --(ready on both streams)--> warm --start--> request sent --(answer)--> running
//!   |  error, exit, timeout               |  dropped           |  no answer
//!   '-------------------> killed <--------'--------------------'
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
use crate::ready::{MAX_STARTUP_OUTPUT, warm_up};

/// Number of processes that a prepared interpreter can need in addition to the code. The limit of its sandbox must be
/// higher by this number. See `docs/interpreters.md`, "The anchor".
pub const EXTRA_PROCESSES: u32 = 1;
const PYTHON: &str = concat!(
    include_str!("bootstrap/python/script.py"),
    include_str!("bootstrap/python/warm.py"),
    include_str!("bootstrap/python/serve.py"),
);
const NODE: &str = include_str!("bootstrap/node.cjs");

/// A prepared interpreter that serves one request. Dropping it ends it.
#[derive(Debug)]
pub struct WarmInterpreter {
    sandbox: Arc<dyn Sandbox>,
    config: InterpreterConfig,
    line: Line,
    expires: Instant,
}

impl WarmInterpreter {
    /// Starts an interpreter in `sandbox` and waits until it is ready. The sandbox must be new and used only for this
    /// interpreter. Its backend needs several execs, streaming standard input and Unix programs.
    ///
    /// Output of the modules is discarded; errors contain its end.
    ///
    /// # Errors
    /// - `NotFound` if the interpreter or one of its modules is missing; the message names it.
    /// - `Unavailable` if the interpreter exits or is not ready within the warm limit.
    pub async fn prepare(sandbox: Arc<dyn Sandbox>, config: InterpreterConfig) -> Result<Self> {
        config.validate()?;
        let token = token();
        let expires = Instant::now() + config.lifetime;
        // If no cgroup counts memory, memory shared by two processes counts twice. In that case there is no anchor.
        let anchored = sandbox.usage().await.is_ok_and(|usage| usage.memory_bytes.is_some());
        let line = warm_up(&*sandbox, start_request(&config, &token, anchored)?, &token, config.warm_limit).await?;
        Ok(Self { sandbox, config, line, expires })
    }

    /// Returns the sandbox of the interpreter.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// Returns the end of the interpreter's lifetime. A request whose timeout would be later is rejected.
    pub fn expires(&self) -> Instant {
        self.expires
    }

    /// Returns true if the interpreter can still be used, and false if it was killed, for example because of memory.
    pub fn is_alive(&self) -> bool {
        self.line.inner.try_exit().is_none()
    }

    /// Sends the request to the interpreter. Returns when the code is about to run.
    ///
    /// # Behavior
    /// - The handle behaves as one of [`Sandbox::start`]. Its exit does not include time and CPU seconds of the
    ///   warm-up.
    /// - The sandbox is kept alive until the request has ended. A caller that needs it longer keeps a reference.
    ///
    /// # Errors
    /// - `Unsupported` for a request that [`InterpreterConfig::accepts`] rejects. The interpreter is gone then.
    /// - `InvalidInput` if the working directory cannot be entered.
    /// - `Unavailable` if the interpreter has exited.
    pub async fn start(self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        let plan = Plan::new(&self.config, &request)?;
        let times = Times::of(&request, &*self.sandbox, self.expires)?;
        self.line.begin(&request, &plan, times, self.sandbox).await
    }

    /// Runs a request, collects its output and closes the sandbox.
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

/// Returns the exec request that starts the interpreter.
fn start_request(config: &InterpreterConfig, token: &str, anchored: bool) -> Result<ExecRequest> {
    let mut interpreter = config.command.clone();
    let kind = if anchored { "anchored" } else { "plain" };
    let mut args = vec![token.to_owned(), kind.to_owned(), config.warm_up.clone()];
    args.extend(config.modules.iter().cloned());
    let (name, contents) = match config.runtime {
        Runtime::Python => ("waiting.py", PYTHON),
        Runtime::Node => {
            // The file is loaded before a main script, which the request's script replaces.
            interpreter.push("--require".to_owned());
            args.insert(0, "main.js".to_owned());
            ("waiting.cjs", NODE)
        }
    };
    // The output limit equals the buffer size, so that no output can be lost between this exec and the request's
    // handle.
    let room = ByteSize::from_bytes(config.max_output.as_bytes() + 2 * MAX_STARTUP_OUTPUT.as_bytes());
    let contents = Bytes::from_static(contents.as_bytes());
    ExecRequest::builder(Command::Script(Script { interpreter, name: name.to_owned(), contents, args }))
        .stdin(Stdin::Stream)
        .timeout(config.lifetime)
        .max_output(room)
        .output_buffer(room)
        .build()
}
