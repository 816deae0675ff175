//! Sessions: interpreters that live between calls, so that definitions of one call are available to the next.
//!
//! ```text
//! idle --call--> busy --end of the call--> idle
//!                  '--timeout | crash | exit | invalid report | dropped call--> gone: later calls report the reason
//! idle --idle timeout | lifetime | close--> gone
//! ```
//!
//! An interpreter reads calls from its standard input, and marks the end of each call in both of its outputs with a
//! random marker that the host chose for that call. Code can forge that marker. Its own session then returns forged
//! results, but no other session is affected. The backend's report about the process cannot be forged.

mod admitted;
mod config;
mod live;
mod wire;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cofferdam_contract::{
    Capability, Chunk, Error, ErrorKind, ExecHandle, ExecRequest, Exit, ExitWatch, NetworkDenial, OutputEvent, Result,
    Retry, Sandbox, Usage,
};
use parking_lot::Mutex;
use tokio::sync::{MutexGuard as Guard, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use crate::executor::{self, Channel, OnOutput};
use crate::head_tail::HeadTail;
use crate::line::HeadTailCollector;
use crate::result::random_id;
use crate::{BackendProfile, CodeRequest, CodeResult, Executor, Results, SessionState, Want, files, rich, runtime};

use admitted::Admitted;
pub use config::SessionBounds;
use live::{Answer, End, Live, OnSession};
use wire::Report;

/// The first version of Node that strips types from texts, not only from files.
const MIN_NODE_STRIPPING_TEXT: &str = "22.13";
/// Timeout for sending an interrupt.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);
/// The most ended sessions whose reason is remembered.
const MAX_GONE: usize = 256;

/// The sessions of an executor. Dropping it ends them all.
#[derive(Debug)]
pub struct Sessions {
    executor: Executor,
    slots: Arc<Semaphore>,
    registry: Arc<Mutex<Registry>>,
}

/// The open sessions, and the reasons why others have ended.
#[derive(Debug, Default)]
struct Registry {
    open: BTreeMap<String, Arc<CodeSession>>,
    gone: VecDeque<(String, String)>,
}

/// An interpreter that lives between calls. It serves one call at a time. Dropping the last reference ends it.
#[derive(Debug)]
pub struct CodeSession {
    id: String,
    language: String,
    executor: Executor,
    profile: BackendProfile,
    sandbox: Arc<dyn Sandbox>,
    version: Option<String>,
    registry: Weak<Mutex<Registry>>,
    /// The interpreter; `None` during a call and after the session has ended.
    live: tokio::sync::Mutex<Option<Live>>,
    /// The interpreter's process, which can be ended during a call.
    process: Weak<ExecHandle>,
    /// The interpreter's pid in the sandbox, as it reports it. It is only passed to a program in the sandbox.
    pid: Option<i32>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last_use: Instant,
    calls: u64,
    /// The reason why the session is gone, or would be if the current call were dropped.
    gone: Option<String>,
    /// True if the session has ended and no further call may start.
    closed: bool,
}

/// The exclusive turn of a call. Dropping it releases an interpreter whose session was closed meanwhile.
struct Turn<'a> {
    session: &'a CodeSession,
    guard: Option<Guard<'a, Option<Live>>>,
}

impl Turn<'_> {
    fn take(&mut self) -> Option<Live> {
        self.guard.as_mut().and_then(|guard| guard.take())
    }

    /// Returns the interpreter for the next call, unless the session was closed meanwhile.
    fn put_back(&mut self, live: Live) {
        let mut state = self.session.state.lock();
        if let (Some(guard), false) = (&mut self.guard, state.closed) {
            **guard = Some(live);
            state.gone = None;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.guard.as_ref().is_some_and(|guard| guard.is_none()) {
            // Dropped within a call: `gone` has the reason.
            self.session.state.lock().closed = true;
        }
        drop(self.guard.take());
        self.session.clear();
    }
}

impl Sessions {
    /// Creates an empty set of sessions.
    pub fn new(executor: Executor) -> Self {
        let slots = Arc::new(Semaphore::new(executor.0.config.sessions.max_open));
        Self { executor, slots, registry: Arc::default() }
    }

    /// Returns the executor that runs the calls.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Starts an interpreter in a sandbox. Must be called in a tokio runtime with time enabled.
    ///
    /// # Behavior
    /// - The session ends after the idle timeout without a call, at the end of its lifetime, and with its sandbox.
    ///
    /// # Errors
    /// - `Unsupported` if the language has no sessions, or the backend has no streaming standard input.
    /// - `ResourceExhausted` if the maximum number of sessions is open.
    /// - `Unavailable` if the interpreter does not start in time or is too old.
    pub async fn open(
        &self,
        profile: &BackendProfile,
        sandbox: &Arc<dyn Sandbox>,
        language: &str,
    ) -> Result<Arc<CodeSession>> {
        self.open_holding(profile, sandbox, language, Box::new(())).await
    }

    /// Starts an interpreter like [`Self::open`]. `held` is dropped when nothing of the session is left, or on failure.
    pub async fn open_holding(
        &self,
        profile: &BackendProfile,
        sandbox: &Arc<dyn Sandbox>,
        language: &str,
        held: Box<dyn Any + Send>,
    ) -> Result<Arc<CodeSession>> {
        let config = &self.executor.0.config;
        let known = config.languages.by_name(language)?;
        if known.results() == Results::None {
            return Err(Error::unsupported("open a session", format!("{language} has no sessions"))
                .with_remedy("use python or javascript, or run each call by itself"));
        }
        if !profile.capabilities.contains(&Capability::StreamingStdin) {
            let message = format!("the backend '{}' does not support sessions", profile.backend);
            return Err(Error::unsupported("open a session", message)
                .with_remedy("use level wasm, process, container or vm for sessions"));
        }
        let permit = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| {
            let max = config.sessions.max_open;
            Error::new(ErrorKind::ResourceExhausted, "open a session", format!("all {max} sessions are in use"))
                .with_remedy("close one, or raise max_open in the table [sessions] of the configuration")
        })?;
        let version = self.executor.0.versions.ask(profile, &**sandbox, language, known).await?;
        if let (Results::TypeScript, Some(version)) = (known.results(), &version) {
            runtime::at_least(MIN_NODE_STRIPPING_TEXT, version, ("open a session", language, known))?;
        }
        let max_results = config.bounds.max_results;
        let live = Live::start(&**sandbox, language, known, &config.sessions, max_results, (permit, held)).await?;
        let (end, process, pid) = (live.end(), live.process(), live.pid());
        let session = Arc::new(CodeSession {
            id: random_id()?,
            language: language.to_owned(),
            executor: self.executor.clone(),
            profile: profile.clone(),
            sandbox: Arc::clone(sandbox),
            version: version.map(|version| version.to_string()),
            registry: Arc::downgrade(&self.registry),
            live: tokio::sync::Mutex::new(Some(live)),
            process,
            pid,
            state: Mutex::new(State { last_use: Instant::now(), calls: 0, gone: None, closed: false }),
        });
        self.registry.lock().open.insert(session.id.clone(), Arc::clone(&session));
        tokio::spawn(watch(Arc::downgrade(&session), end, config.sessions.clone()));
        Ok(session)
    }

    /// Returns the session with this id.
    ///
    /// # Errors
    /// - `Closed` for a session that has ended, with the reason.
    /// - `NotFound` for an unknown id.
    pub fn find(&self, id: &str) -> Result<Arc<CodeSession>> {
        let registry = self.registry.lock();
        if let Some(session) = registry.open.get(id) {
            return Ok(Arc::clone(session));
        }
        if let Some((_, why)) = registry.gone.iter().find(|(gone, _)| gone == id) {
            return Err(closed(id, why));
        }
        let shown: String = id.chars().take(40).collect();
        Err(Error::new(ErrorKind::NotFound, "find a session", "there is no such session")
            .with_context("session", shown.escape_debug().to_string())
            .with_remedy("open a session and use its id"))
    }

    /// Returns the ids of the open sessions.
    pub fn ids(&self) -> Vec<String> {
        self.registry.lock().open.keys().cloned().collect()
    }

    /// Ends all sessions and waits until their interpreters have exited.
    pub async fn shutdown(&self) {
        let all: Vec<_> = self.registry.lock().open.values().cloned().collect();
        for session in all {
            session.close().await;
        }
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        // Dropping the last reference to a session kills its interpreter.
        self.registry.lock().open.clear();
    }
}

impl CodeSession {
    /// Returns the session's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the session's language.
    pub fn language(&self) -> &str {
        &self.language
    }

    /// Runs code in the session. The request must have no arguments, environment, secrets, input or working directory;
    /// its language is ignored.
    ///
    /// # Behavior
    /// - Apart from that, behaves as [`Executor::execute`].
    /// - Fails with `Conflict` during another call, and with `Closed` after the session has ended.
    /// - If a call times out, crashes or ends the interpreter, or the session is closed during it, the call returns a
    ///   result that reports the end of the session.
    /// - Dropping the future ends the session.
    pub async fn call(&self, request: CodeRequest) -> Result<CodeResult> {
        self.call_live(request, &|_| {}).await
    }

    /// Runs code like [`Self::call`], and calls `on_output` for output as it arrives.
    pub async fn call_live(&self, mut request: CodeRequest, on_output: OnOutput<'_>) -> Result<CodeResult> {
        check(&request)?;
        let turn = self.turn()?;
        request.language.clone_from(&self.language);
        let (profile, version) = (&self.profile, self.version.as_deref());
        let admitted = self.executor.admit(profile, self.sandbox.spec(), request, version).await?;
        self.run(turn, admitted, &within(on_output)).await
    }

    /// Runs code like [`Self::call_live`], and keeps `keep` bytes of the beginning and of the end of standard output
    /// and standard error, whatever their length.
    pub async fn call_head_tail(
        &self,
        mut request: CodeRequest,
        keep: usize,
        on_output: OnOutput<'_>,
    ) -> Result<(CodeResult, [HeadTail; 2])> {
        check(&request)?;
        let turn = self.turn()?;
        request.language.clone_from(&self.language);
        let (profile, version) = (&self.profile, self.version.as_deref());
        let admitted = self.executor.admit(profile, self.sandbox.spec(), request, version).await?;
        self.run_head_tail(turn, admitted, keep, on_output).await
    }

    /// Runs code like [`Self::call_head_tail`], for a call that was admitted before the session was opened.
    async fn call_admitted(
        &self,
        admitted: Admitted,
        keep: usize,
        on_output: OnOutput<'_>,
    ) -> Result<(CodeResult, [HeadTail; 2])> {
        match self.turn() {
            Ok(turn) if admitted.request.language == self.language => {
                self.run_head_tail(turn, admitted, keep, on_output).await
            }
            Ok(_) => Err(admitted.not_started(Error::invalid("execute", "the session is in another language")).await),
            Err(error) => Err(admitted.not_started(error).await),
        }
    }

    /// Interrupts the current call, as Ctrl-C does: its code gets a KeyboardInterrupt, and the session continues.
    ///
    /// # Errors
    /// - `Unsupported` if the language has no such interrupt.
    /// - Errors of the sandbox if the interrupt cannot be sent.
    pub async fn interrupt(&self) -> Result<()> {
        let refused = || Error::unsupported("interrupt", "this session cannot be interrupted");
        let pid = self.pid.ok_or_else(refused)?.to_string();
        let kill = ["sh", "-c", "kill -INT \"$1\"", "sh", &pid];
        let request = ExecRequest::argv(kill).timeout(INTERRUPT_TIMEOUT).build()?;
        match self.sandbox.exec(request).await?.exit.code {
            0 => Ok(()),
            _ => Err(refused()),
        }
    }

    /// Returns the reason why the session has ended, if it has.
    pub fn lost(&self) -> Option<String> {
        self.closed_why()
    }

    /// Returns the turn of a call. Fails during another call and after the session has ended.
    fn turn(&self) -> Result<Turn<'_>> {
        let guard = self.live.try_lock().map_err(|_| busy())?;
        if guard.is_none() || self.is_closed() {
            return Err(self.closed_error());
        }
        Ok(Turn { session: self, guard: Some(guard) })
    }

    async fn run_head_tail(
        &self,
        turn: Turn<'_>,
        admitted: Admitted,
        keep: usize,
        on_output: OnOutput<'_>,
    ) -> Result<(CodeResult, [HeadTail; 2])> {
        let collector = HeadTailCollector::new(keep);
        let shown = within(on_output);
        let on_session = |event: &OutputEvent, length: usize| {
            shown(event, length);
            collector.take(event);
        };
        let result = self.run(turn, admitted, &on_session).await?;
        Ok((result, collector.head_tail()))
    }

    async fn run(&self, mut turn: Turn<'_>, admitted: Admitted, on_output: OnSession<'_>) -> Result<CodeResult> {
        let Admitted { id, request, entry, screened, timeout, max_output } = admitted;
        let sandbox = &*self.sandbox;
        let executor = &self.executor;
        let config = &executor.0.config;
        let language = config.languages.by_name(&self.language)?;
        let channel = match request.results {
            Want::Yes => Channel::choose(&self.profile, sandbox.spec(), &executor.0.own_files)?,
            Want::No => None,
        };
        let before = match request.files {
            Want::Yes => Some(files::scan(sandbox, &config.bounds, &executor.0.own_files).await),
            Want::No => None,
        };
        let denied = sandbox.network_denials();
        // From here on, dropping this future drops the interpreter as well.
        let (Some(calls), Some(mut live)) = (self.begin(), turn.take()) else {
            if let Some(entry) = entry {
                entry.never_started("not started: the session was closed".to_owned()).await?;
            }
            return Err(self.closed_error());
        };
        let inside = channel.as_ref().map(Channel::inside);
        let answer = live.call(inside.as_deref(), &request.code, Instant::now() + timeout, max_output, on_output).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(entry) = entry {
                    entry.failed(error.kind()).await;
                }
                self.end("the sandbox failed");
                drop(live);
                self.unregister();
                return Err(error);
            }
        };
        let exited = matches!(answer.end, End::Served(Report::Exited(_)));
        let lost = self.closed_why().or_else(|| live::lost(&answer.end, answer.duration));
        let taken = match &channel {
            // Results are read even if the session ended, because code may have written them before.
            Some(channel) => channel.take(sandbox, config.bounds.max_results).await,
            None => rich::Taken::default(),
        };
        match &lost {
            None => turn.put_back(live),
            Some(why) => {
                live.close(exited).await;
                self.end(why);
                self.unregister();
            }
        }
        let own = (&*executor.0.own_files, channel.as_ref().and_then(Channel::path));
        let files = files::compare(sandbox, &config.bounds, before, request.contents, own).await;
        let meta = executor::meta(&self.profile, sandbox, language, self.version.clone(), timeout, max_output);
        let output = answer.output;
        let (exit, stdout, stderr) = exit(answer);
        let result = CodeResult {
            id,
            language: self.language.clone(),
            usage: None,
            results: taken.results,
            results_dropped: taken.dropped,
            files,
            network_denials: NetworkDenial::since(sandbox.network_denials(), &denied),
            screening: screened,
            session: Some(SessionState { id: self.id.clone(), calls, lost, exited }),
            ..executor::result(exit, stdout, stderr, meta)
        };
        self.state.lock().last_use = Instant::now();
        if let Some(entry) = entry {
            entry.ended(&result, Some(output)).await?;
        }
        Ok(result)
    }

    /// Ends the session and waits until its interpreter has exited. A current call ends too, and its result reports
    /// that.
    pub async fn close(&self) {
        self.end("it was closed");
        if let Some(process) = self.process.upgrade() {
            // A failure belongs to the sandbox, whose owner sees it.
            let _ = process.close().await;
        }
        self.clear();
        self.unregister();
    }

    /// Drops the interpreter of a closed session. The close and each ending call do this; the one that gets the lock
    /// drops it.
    fn clear(&self) {
        if self.is_closed()
            && let Ok(mut guard) = self.live.try_lock()
        {
            drop(guard.take());
        }
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    fn closed_why(&self) -> Option<String> {
        let state = self.state.lock();
        state.gone.clone().filter(|_| state.closed)
    }

    /// Counts a call that starts now. Returns `None` if the session has ended.
    fn begin(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        state.calls += 1;
        state.last_use = Instant::now();
        state.gone = Some("a call was cancelled".to_owned());
        Some(state.calls)
    }

    /// Records the reason why the session has ended, once. No call may start after it.
    fn end(&self, why: &str) {
        let mut state = self.state.lock();
        if !state.closed {
            (state.gone, state.closed) = (Some(why.to_owned()), true);
        }
    }

    /// Removes the session from the registry after nothing of it is left, which frees its slot.
    fn unregister(&self) {
        let why = self.closed_why().unwrap_or_default();
        let Some(registry) = self.registry.upgrade() else { return };
        let mut registry = registry.lock();
        if registry.open.remove(&self.id).is_some() {
            registry.gone.push_back((self.id.clone(), why));
            if registry.gone.len() > MAX_GONE {
                registry.gone.pop_front();
            }
        }
    }

    fn closed_error(&self) -> Error {
        closed(&self.id, self.state.lock().gone.as_deref().unwrap_or("it was closed"))
    }
}

/// Returns a callback that passes on only the output that the result keeps.
fn within(on_output: OnOutput<'_>) -> impl Fn(&OutputEvent, usize) + Send + Sync {
    move |event, length| {
        if let OutputEvent::Chunk(chunk) = event
            && length > 0
        {
            on_output(&Chunk { stream: chunk.stream, data: chunk.data.slice(..length) });
        }
    }
}

fn busy() -> Error {
    Error::new(ErrorKind::Conflict, "execute", "the session is busy with another call")
        .with_retry(Retry::MayHelp)
        .with_remedy("wait for its end, or open another session")
}

fn closed(id: &str, why: &str) -> Error {
    Error::new(ErrorKind::Closed, "execute", format!("the session has ended: {why}"))
        .with_context("session", id.to_owned())
        .with_remedy("open another session; its definitions have to be repeated")
}

/// Rejects settings that a running interpreter cannot receive.
pub(crate) fn check(request: &CodeRequest) -> Result<()> {
    let has_options = !request.args.is_empty()
        || !request.env.is_empty()
        || !request.secrets.is_empty()
        || !request.stdin.is_empty()
        || !request.working_dir.is_workspace();
    if has_options {
        let message =
            "a call of a session cannot have its own arguments, environment, secrets, input or working directory";
        return Err(
            Error::invalid("execute", message).with_remedy("set them in the code, or run the code without a session")
        );
    }
    Ok(())
}

/// Converts the end of a call to the exit of an exec.
fn exit(answer: Answer) -> (Exit, bytes::Bytes, bytes::Bytes) {
    let plain = Exit {
        code: 0,
        signal: None,
        timed_out: false,
        cancelled: false,
        truncated: answer.truncated,
        killed_by: None,
        limits_hit: Vec::new(),
        duration: answer.duration,
        usage: Usage::default(),
    };
    let exit = match answer.end {
        End::Served(Report::Done(_)) => plain,
        End::Served(Report::Failed) => Exit { code: 1, ..plain },
        End::Served(Report::Exited(code)) => Exit { code, ..plain },
        End::TimedOut => Exit { code: -1, timed_out: true, ..plain },
        End::Invalid => Exit { code: -1, cancelled: true, ..plain },
        End::Died(exit) => Exit { truncated: plain.truncated, duration: plain.duration, ..exit },
    };
    (exit, answer.stdout, answer.stderr)
}

/// Ends a session that is idle for too long, too old, or whose interpreter is gone.
async fn watch(session: Weak<CodeSession>, end: ExitWatch, bounds: SessionBounds) {
    let oldest = Instant::now() + bounds.lifetime;
    loop {
        let Some(until) = session.upgrade().map(|session| session.state.lock().last_use + bounds.idle_timeout) else {
            return;
        };
        let over = tokio::select! {
            exit = end.exit() => Some(live::ended_unasked(exit)),
            () = sleep_until(until.min(oldest)) => None,
        };
        let Some(session) = session.upgrade() else { return };
        // During a call the session is in use, and the call itself notices the end of the interpreter.
        let Ok(mut guard) = session.live.try_lock() else {
            drop(session);
            sleep(bounds.idle_timeout.min(Duration::from_secs(1))).await;
            continue;
        };
        let cancelled = session.state.lock().gone.clone();
        let idle = Instant::now() >= session.state.lock().last_use + bounds.idle_timeout;
        let why = match (over, idle, Instant::now() >= oldest) {
            (Some(how), ..) => cancelled.unwrap_or(how),
            (_, true, _) => format!("it was idle for {} s", bounds.idle_timeout.as_secs_f64()),
            (_, _, true) => "it reached its maximum lifetime".to_owned(),
            _ => continue,
        };
        session.end(&why);
        let live = guard.take();
        drop(guard);
        if let Some(live) = live {
            live.close(false).await;
        }
        session.unregister();
        return;
    }
}
