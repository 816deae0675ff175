//! One running process of a plugin.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cofferdam_contract::{Error, ExecHandle, Exit, Sandbox};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::log::{Log, Severity, Tail};
use super::permission::shown;
use crate::Manifest;
use crate::wire::{CallError, ErrorKind, MAX_MESSAGE, Peer, Served, Step};

/// The version of the protocol.
const PROTOCOL_VERSION: u32 = 1;
/// The number of bytes of the last output that a report of a crash quotes.
pub const TAIL: usize = 64 << 10;
/// The number of bytes of the tail in an error.
const QUOTED: usize = 2048;
/// The interval at which the number of running calls is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The end of a plugin's process.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The reason.
    pub reason: String,
    /// The last output.
    pub tail: String,
    /// True if the host asked for the end.
    pub planned: bool,
}

impl Ended {
    /// Returns the error of a call that was in flight.
    pub fn to_error(&self) -> CallError {
        CallError::new(ErrorKind::Unavailable, format!("the plugin ended: {}", self.reason))
            .with("reason", self.reason.clone())
            .with("lastOutput", quoted(&self.tail))
    }
}

/// Returns the end of the last output, for an error.
pub fn quoted(tail: &str) -> &str {
    &tail[tail.ceil_char_boundary(tail.len().saturating_sub(QUOTED))..]
}

/// The running process, its sandbox and its connection.
pub struct Instance {
    /// The connection.
    pub peer: Peer,
    exec: ExecHandle,
    sandbox: Option<Arc<dyn Sandbox>>,
    calls: AtomicUsize,
    last_call: Mutex<Instant>,
    /// The reason why the host ends the process, and whether that is planned.
    ending: Mutex<Option<(String, bool)>>,
    ended: watch::Sender<Option<Ended>>,
}

/// The parts of a new process.
pub struct Start {
    /// The running program.
    pub exec: ExecHandle,
    /// Its sandbox. `None` in the strategies without isolation.
    pub sandbox: Option<Arc<dyn Sandbox>>,
    /// The host's side of the plugin's requests.
    pub served: Arc<dyn Served>,
    /// The last output of the plugin.
    pub tail: Arc<Mutex<Tail>>,
    /// The log.
    pub log: Log,
    /// The removal of what the process left, before its end is reported.
    pub clean_up: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Instance {
    /// Begins to serve a program that was started.
    ///
    /// # Errors
    /// `Internal` if the program has no standard input.
    pub fn serve(start: Start) -> Result<Arc<Self>, Error> {
        let Start { exec, sandbox, served, tail, log, clean_up } = start;
        let no_input =
            || Error::new(cofferdam_contract::ErrorKind::Internal, "start plugin", "it has no standard input");
        let (peer, writer) = Peer::new(exec.stdin().ok_or_else(no_input)?);
        let output = exec.output();
        let instance = Arc::new(Self {
            peer: peer.clone(),
            exec,
            sandbox,
            calls: AtomicUsize::new(0),
            last_call: Mutex::new(Instant::now()),
            ending: Mutex::default(),
            ended: watch::Sender::new(None),
        });
        let running = Arc::clone(&instance);
        tokio::spawn(async move {
            let violation = peer.serve(output, served).await;
            writer.abort();
            if let Some(violation) = violation {
                let fields = json!({"rule": violation.as_str(), "reason": violation.to_string()});
                log.write(Severity::Error, "plugin.protocol-violation", None, fields);
                running.kill(format!("it broke the protocol ({}): {violation}", violation.as_str()));
            }
            let exit = running.exec.exit().await;
            if let Some(sandbox) = &running.sandbox
                && let Err(error) = sandbox.close().await
            {
                log.write(Severity::Error, "plugin.close-failed", None, json!({"reason": error.to_string()}));
            }
            let (reason, planned) = match running.ending.lock().take() {
                Some(ending) => ending,
                None => (describe(&exit), false),
            };
            clean_up.await;
            log.write(Severity::Info, "plugin.ended", None, json!({"reason": reason, "planned": planned}));
            let ended = Ended { reason, tail: tail.lock().text(), planned };
            running.ended.send_replace(Some(ended));
        });
        Ok(instance)
    }

    /// Introduces host and plugin to each other.
    ///
    /// # Errors
    /// The plugin's answer, a missing method, or the end of the plugin.
    pub async fn initialize(&self, manifest: &Manifest, config: &Value, mode: &str) -> Result<Value, CallError> {
        let params = json!({
            "protocolVersion": PROTOCOL_VERSION,
            "plugin": {"name": manifest.name, "version": manifest.version},
            "entry": manifest.entry,
            "methods": manifest.methods.keys().collect::<Vec<_>>(),
            "permissions": manifest.permissions,
            "config": config,
            "mode": mode,
            "maxMessage": MAX_MESSAGE,
        });
        let result = self.ask("initialize", &params, "start").await?;
        if result.get("protocolVersion").and_then(Value::as_u64) != Some(PROTOCOL_VERSION.into()) {
            let message = format!("the plugin does not speak version {PROTOCOL_VERSION} of the protocol");
            return Err(CallError::new(ErrorKind::PluginFailed, message));
        }
        let has = |method: &str| {
            let methods = result.get("methods").and_then(Value::as_array);
            methods.is_some_and(|methods| methods.iter().any(|name| name.as_str() == Some(method)))
        };
        if let Some(missing) = manifest.methods.keys().find(|method| !has(method)) {
            let message = format!("the plugin does not implement the method '{missing}' of its manifest");
            return Err(CallError::new(ErrorKind::PluginFailed, message));
        }
        Ok(result)
    }

    /// Sends a request and waits for its answer.
    pub async fn ask(&self, method: &str, params: &Value, correlation: &str) -> Result<Value, CallError> {
        match self.peer.request(method, params, correlation, None).await?.step().await {
            Step::Answer(answer) => answer,
            _ => Err(self.ended().await.to_error()),
        }
    }

    /// Waits until the process has ended and its sandbox is closed.
    pub async fn ended(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        let found = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
        found.unwrap_or_else(|| Ended { reason: "unknown".to_owned(), tail: String::new(), planned: false })
    }

    /// Kills the process. The first reason is reported.
    pub fn kill(&self, reason: String) {
        self.ending.lock().get_or_insert((reason, false));
        self.exec.request_cancel(Duration::ZERO);
    }

    /// Ends the process with SIGTERM, and SIGKILL after `grace`. The first reason is reported.
    pub fn terminate(&self, reason: String, grace: Duration) {
        self.ending.lock().get_or_insert((reason, false));
        self.exec.request_cancel(grace);
    }

    /// Asks the plugin to shut down, and ends it if it does not within `within`.
    pub async fn shut_down(&self, reason: &str, within: Duration, grace: Duration) {
        self.ending.lock().get_or_insert((reason.to_owned(), true));
        let polite = async {
            self.ask("shutdown", &Value::Null, "shutdown").await?;
            self.peer.notify("exit", &Value::Null, "shutdown").await?;
            self.ended().await;
            Ok::<_, CallError>(())
        };
        if !matches!(tokio::time::timeout(within, polite).await, Ok(Ok(()))) {
            self.exec.request_cancel(grace);
        }
        self.ended().await;
    }

    /// Counts a call as running. Returns `None` if the process ends.
    pub fn begin_call(self: &Arc<Self>) -> Option<Running> {
        let ending = self.ending.lock();
        if ending.is_some() || !self.peer.is_open() {
            return None;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        Some(Running(Arc::clone(self)))
    }

    /// Waits until no call runs, takes no further one, and shuts the plugin down.
    pub async fn shut_down_after_calls(&self, reason: &str, grace: Duration) {
        while !self.end_without_calls(reason) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.shut_down(reason, grace, grace).await;
    }

    /// Takes no further call, if none runs. Returns true if the process ends.
    pub fn end_without_calls(&self, reason: &str) -> bool {
        let mut ending = self.ending.lock();
        if self.calls() == 0 {
            ending.get_or_insert_with(|| (reason.to_owned(), true));
        }
        ending.is_some() || !self.peer.is_open()
    }

    /// Returns the number of running calls.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the time since the last call ended. Zero while one runs.
    pub fn idle(&self) -> Duration {
        if self.calls() > 0 { Duration::ZERO } else { self.last_call.lock().elapsed() }
    }

    /// Returns the CPU seconds that the plugin has used, if they are counted.
    pub async fn cpu_seconds(&self) -> Option<f64> {
        self.sandbox.as_ref()?.usage().await.ok()?.cpu_seconds
    }

    /// Returns the sandbox.
    pub fn sandbox(&self) -> Option<&Arc<dyn Sandbox>> {
        self.sandbox.as_ref()
    }
}

/// A call that runs.
pub struct Running(Arc<Instance>);

impl Running {
    /// Returns the process that runs it.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.last_call.lock() = Instant::now();
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Describes the end of a program.
fn describe(exit: &Result<Exit, Error>) -> String {
    match exit {
        Ok(exit) => match (exit.killed_by, exit.signal) {
            (Some(limit), _) => format!("the limit on {} killed it", limit.as_str()),
            (None, Some(signal)) => format!("signal {signal} ended it"),
            (None, None) => format!("it exited with status {}", exit.code),
        },
        Err(error) => shown(&error.to_string()),
    }
}
