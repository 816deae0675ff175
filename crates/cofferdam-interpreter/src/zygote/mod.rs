//! Forks of one interpreter that is warm, for requests that may share a sandbox: those of one tenant.
//!
//! ```text
//! warm --(as many ready as asked)--> taking requests --(max_forks | max_age)--> retired --(last one ended)--> closed
//!   |  refused, ended, too slow        |  its exec ends, nonsense, a fork that does not end
//!   '----------> killed <--------------'  all that run are told so
//! ```
//!
//! Everything runs in one exec of the sandbox: a relay that carries frames (`wire`), the zygote that has the modules and
//! forks, and for each fork a guard and the process that runs the request. The forks are walled off from each other and
//! from all of those by Landlock; `docs/interpreters.md` says what they share nevertheless.

mod carry;
mod config;
mod forks;
mod window;
mod wire;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cofferdam_contract::{ByteSize, Command, ExecHandle, ExecRequest, Result, Sandbox, Script, Stdin};
use tokio::sync::mpsc;

use crate::error::ZygoteError;
use crate::line::{Line, Times};
use crate::marker::token;
use crate::plan::Plan;
use crate::ready::{MOST_NOISE, warm_up};

pub use config::{Temporary, ZygoteConfig};

use forks::Forks;
use window::WINDOW;

const PYTHON: &str = concat!(
    include_str!("../bootstrap/python/script.py"),
    include_str!("../bootstrap/python/wall.py"),
    include_str!("../bootstrap/python/relay.py"),
    include_str!("../bootstrap/python/zygote.py"),
    include_str!("../bootstrap/python/serve.py"),
);
/// Output of one exec that serves many requests: no bound, for each request has its own.
const ANY_OUTPUT: ByteSize = ByteSize::from_bytes(u64::MAX >> 1);

/// An interpreter that is forked for each request. Dropping it lets what runs come to its end, and then closes the
/// sandbox.
#[derive(Debug)]
pub struct Zygote {
    forks: Arc<Forks>,
}

impl Zygote {
    /// Starts a zygote in `sandbox` and waits until its first forks are ready. The sandbox must be fresh and for one
    /// tenant; its backend needs several execs, streaming input and Unix programs.
    ///
    /// # Behavior
    /// - Answers `Unsupported` for an interpreter that cannot be forked, and where the forks cannot be walled off from each
    ///   other: without Landlock's scopes, `no_new_privs` or Python's `ctypes`.
    /// - Answers `InvalidInput` where the modules hold what forks would have in common: threads, processes, open
    ///   descriptors, memory shared for writing.
    /// - Fails with `NotFound` and `Unavailable` as [`crate::WaitingInterpreter::warm`] does.
    pub async fn warm(sandbox: Arc<dyn Sandbox>, config: ZygoteConfig) -> Result<Self> {
        config.validate()?;
        let (token, born) = (token(), Instant::now());
        let request = zygote_request(&config, &token)?;
        let Line { inner, stdin, output, .. } =
            warm_up(&*sandbox, request, &token, config.interpreter.warm_limit).await?;
        let (orders, on_order) = mpsc::unbounded_channel();
        let forks = Arc::new(Forks::new(sandbox, config, born, orders));
        tokio::spawn(carry::write(stdin, on_order));
        tokio::spawn(carry::read(Arc::clone(&forks), inner, output));
        Ok(Self { forks })
    }

    /// The sandbox that all forks are in.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.forks.sandbox
    }

    /// Whether it would take a request, were there room for one: it is alive, and neither too old nor used up.
    pub fn is_open(&self) -> bool {
        self.forks.is_open()
    }

    /// Forks that run a request.
    pub fn running(&self) -> usize {
        self.forks.running()
    }

    /// Gives a fork its request and returns when the code is about to run.
    ///
    /// # Behavior
    /// - Answers `Unsupported` for what [`ZygoteConfig::accepts`] does not accept.
    /// - Answers `ResourceExhausted` while as many run as may, `Unavailable` once it is retired or has died, `InvalidInput`
    ///   when the working directory cannot be entered.
    /// - An error of the operation `fork` came before any of the request was sent: another zygote may be asked.
    /// - The handle is as one of [`Sandbox::start`]; its time, output, input and end are this request's alone. When the
    ///   main process ends, everything that it left is ended, before the exit is told.
    /// - The exit has no `limits_hit` and names no memory limit, which are the sandbox's and not known for one fork.
    /// - Fails with `Unavailable` at the exit when the zygote dies under it.
    pub async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        let plan = Plan::new(&self.forks.config.interpreter, &request)?;
        let times = Times::of(&request, &*self.forks.sandbox, self.forks.expires)?;
        let line = self.forks.open()?;
        line.begin(&request, &plan, times, Arc::clone(&self.forks.sandbox)).await
    }

    /// Ends everything at once; those who await an exit are told.
    pub async fn close(&self) -> Result<()> {
        self.forks.end(ZygoteError::Closed.into());
        self.forks.sandbox.close().await
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        self.forks.release();
    }
}

/// What starts the relay, which starts the zygote.
fn zygote_request(config: &ZygoteConfig, token: &str) -> Result<ExecRequest> {
    let ZygoteConfig { interpreter, after_fork, temporary, ready, most_running, cpu_time, max_forks: _, max_age: _ } =
        config;
    let seconds = cpu_time.map_or(0, |time| time.as_secs() + u64::from(time.subsec_nanos() > 0));
    let temporary = match temporary {
        Temporary::Shared => "shared",
        Temporary::Own => "own",
    };
    let mut args = vec![token.to_owned(), ready.to_string(), seconds.to_string(), temporary.to_owned()];
    args.extend([after_fork.clone(), interpreter.warm_up.clone()]);
    args.extend(interpreter.modules.iter().cloned());
    // Output of all windows at once, twice for the chunks that it comes in, and what comes before the first.
    let windows = 2 * u64::from(WINDOW) * u64::from(*most_running);
    let buffer = ByteSize::from_bytes(windows + 2 * MOST_NOISE.as_bytes());
    let script = Script {
        interpreter: interpreter.command.clone(),
        name: "zygote.py".to_owned(),
        contents: Bytes::from_static(PYTHON.as_bytes()),
        args,
    };
    ExecRequest::builder(Command::Script(script))
        .stdin(Stdin::Stream)
        .timeout(interpreter.lifetime)
        .max_output(ANY_OUTPUT)
        .output_buffer(buffer)
        .build()
}
