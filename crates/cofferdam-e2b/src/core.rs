//! The part of a sandbox that its execs and tasks share: the requests, and the state.
//!
//! ```text
//! running --pause--> paused --resume--> running, with the next number
//!    |                  |
//!    '------close-------'--> closed        E2B has it no more --> gone
//! ```

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use hyper::Method;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::client::{Agent, Client, parsed};
use crate::error::{Failure, gone};
use crate::guest::script;
use crate::wire::{Detail, ProcessConfig, ProcessMessage, StartRequest, Timeout};

/// Time for a script, which moves, lists or ends things.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(120);

/// The state of a sandbox. A number distinguishes one period of running from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Running(u64),
    Paused(u64),
    Closed,
    Gone,
}

/// A sandbox, as its execs know it.
#[derive(Debug)]
pub(crate) struct Core {
    pub client: Client,
    pub id: String,
    agent: RwLock<Agent>,
    phase: watch::Sender<Phase>,
    /// The base environment of programs.
    pub path: String,
    pub home: String,
    pub read_only: bool,
    /// Held while one script or request may change the state.
    pub changing: tokio::sync::Mutex<()>,
    is_deleted: Mutex<bool>,
}

/// The result of a script.
#[derive(Debug)]
pub(crate) struct Output {
    pub code: i32,
    pub stdout: Vec<u8>,
}

impl Core {
    pub fn new(client: Client, id: String, agent: Agent, read_only: bool) -> Self {
        let (phase, _) = watch::channel(Phase::Running(0));
        Self {
            client,
            id,
            agent: RwLock::new(agent),
            phase,
            path: String::new(),
            home: String::new(),
            read_only,
            changing: tokio::sync::Mutex::new(()),
            is_deleted: Mutex::new(false),
        }
    }

    /// Returns the path of the sandbox in the API.
    pub fn url(&self, rest: &str) -> String {
        format!("/sandboxes/{}{rest}", self.id)
    }

    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub fn agent(&self) -> Agent {
        self.agent.read().clone()
    }

    pub fn set_agent(&self, agent: Agent) {
        *self.agent.write() = agent;
    }

    /// Enters a state, unless the sandbox has ended.
    pub fn enter(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let changes = !matches!(phase, Phase::Closed | Phase::Gone) && *phase != next;
            if changes {
                *phase = next;
            }
            changes
        });
    }

    /// Returns the agent of a running sandbox.
    pub fn open(&self, operation: &'static str) -> Result<Agent> {
        match self.phase() {
            Phase::Running(_) => Ok(self.agent()),
            Phase::Paused(_) => {
                Err(Error::new(ErrorKind::Conflict, operation, "the sandbox is paused").with_remedy("resume it first"))
            }
            Phase::Closed => Err(Error::closed(operation)),
            Phase::Gone => Err(gone(operation)),
        }
    }

    /// Returns the error of a failure, and notices when the sandbox is gone.
    pub fn failed(&self, operation: &'static str, failure: Failure) -> Error {
        if failure.is_gone() {
            // E2B answers the same for a sandbox that is paused.
            match self.phase() {
                Phase::Running(_) => self.enter(Phase::Gone),
                Phase::Closed => return Error::closed(operation),
                Phase::Paused(_) | Phase::Gone => {}
            }
        }
        failure.into_error(operation)
    }

    /// Runs a script to its end. Its output is at most `max` bytes.
    pub async fn run(&self, operation: &'static str, user: &str, process: ProcessConfig, max: usize) -> Result<Output> {
        let agent = self.open(operation)?;
        let ran = tokio::time::timeout(SCRIPT_TIMEOUT, collected(&agent, user, process, max)).await;
        let late = || Failure::Cut(format!("a script took more than {} s", SCRIPT_TIMEOUT.as_secs()));
        ran.unwrap_or_else(|_| Err(late())).map_err(|failure| self.failed(operation, failure))
    }

    /// Ends the processes of an exec: with the signal `TERM` and some grace, or at once.
    pub async fn end(&self, exec_tag: &str, grace: Option<Duration>) -> Result<()> {
        let ticks = grace.unwrap_or_default().as_millis().div_ceil(50).min(72_000);
        let signal = if grace.is_some() { "TERM" } else { "KILL" };
        let arguments = vec![exec_tag.to_owned(), signal.to_owned(), ticks.to_string()];
        let timeout = SCRIPT_TIMEOUT + grace.unwrap_or_default();
        let agent = self.open("cancel")?;
        let process = script(crate::guest::END, arguments, true);
        let ran = tokio::time::timeout(timeout, collected(&agent, crate::client::ROOT, process, 4096)).await;
        let late = || Failure::Cut("the script that ends processes timed out".to_owned());
        let output = ran.unwrap_or_else(|_| Err(late())).map_err(|failure| self.failed("cancel", failure))?;
        match output.code {
            0 => Ok(()),
            code => {
                Err(Error::new(ErrorKind::Io, "cancel", format!("a script cannot end the processes: exit code {code}")))
            }
        }
    }

    /// Returns E2B's description of the sandbox.
    pub async fn detail(&self) -> std::result::Result<Detail, Failure> {
        parsed(&self.client.call(Method::GET, &self.url(""), None::<&()>, true).await?)
    }

    /// Moves the end of the sandbox's time.
    pub async fn extend(&self) -> std::result::Result<(), Failure> {
        let timeout = Timeout { timeout: self.client.config().lifetime.as_secs() };
        self.client.call(Method::POST, &self.url("/timeout"), Some(&timeout), true).await.map(drop)
    }

    /// Deletes the sandbox at E2B.
    pub async fn delete(&self) -> Result<()> {
        self.enter(Phase::Closed);
        if *self.is_deleted.lock() {
            return Ok(());
        }
        delete(&self.client, &self.id).await?;
        *self.is_deleted.lock() = true;
        Ok(())
    }

    /// Deletes the sandbox in the background, if there is a runtime for that. Otherwise its time ends it.
    pub fn abandon(self: &Arc<Self>) {
        self.enter(Phase::Closed);
        if let (false, Ok(runtime)) = (*self.is_deleted.lock(), tokio::runtime::Handle::try_current()) {
            let this = Arc::clone(self);
            runtime.spawn(async move { this.delete().await.map(drop) });
        }
    }
}

/// Deletes a sandbox at E2B. Succeeds if there is none: its time may have been over.
pub(crate) async fn delete(client: &Client, id: &str) -> Result<()> {
    match client.call(Method::DELETE, &format!("/sandboxes/{id}"), None::<&()>, true).await {
        Err(failure) if !failure.is_gone() => Err(failure.into_error("close")),
        _ => Ok(()),
    }
}

/// Extends the time of a sandbox while it exists here and runs.
pub(crate) async fn keep_alive(core: std::sync::Weak<Core>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(core) = core.upgrade() else { return };
        match core.phase() {
            Phase::Running(_) => {}
            Phase::Paused(_) => continue,
            Phase::Closed | Phase::Gone => return,
        }
        if let Err(failure) = core.extend().await
            && failure.is_gone()
            && matches!(core.phase(), Phase::Running(_))
        {
            core.enter(Phase::Gone);
        }
    }
}

async fn collected(
    agent: &Agent,
    user: &str,
    process: ProcessConfig,
    max: usize,
) -> std::result::Result<Output, Failure> {
    let request = StartRequest { process, pty: None, tag: format!("cofferdam-{}", random()), stdin: false };
    let mut events = agent.stream::<ProcessMessage>("Start", user, &request).await?;
    let mut stdout = Vec::new();
    while let Some(ProcessMessage { event }) = events.next().await? {
        if let Some(data) = event.data.and_then(|data| data.stdout) {
            if stdout.len() + data.0.len() > max {
                return Err(Failure::Foreign(format!("a script printed more than {max} bytes")));
            }
            stdout.extend_from_slice(&data.0);
        }
        if let Some(end) = event.end {
            return Ok(Output { code: end.outcome().unwrap_or(-1), stdout });
        }
    }
    Err(Failure::Cut("the stream ended before the exit of a script".to_owned()))
}

/// Returns 32 random hexadecimal digits.
pub(crate) fn random() -> String {
    let mut bytes = [0; 16];
    // Without the kernel's random numbers nothing else works either.
    getrandom::fill(&mut bytes).expect("the kernel has random numbers");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
