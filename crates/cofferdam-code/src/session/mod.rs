//! Interpreters that live between calls, so that what one call defines is there for the next.
//!
//! ```text
//! idle --call--> busy --end of the call--> idle
//!                  '--time-out | crash | exit | nonsense | dropped call--> gone: every later call says why
//! idle --nobody called for the idle time | lifetime | close--> gone
//! ```
//!
//! An interpreter reads calls from its standard input, and marks the end of each in both of its outputs with a word that
//! the host made up for that call. Code can forge that word: then its own session answers with what it forged, and no
//! other does. What the backend says of the process cannot be forged.

mod admitted;
mod config;
mod live;
mod wire;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cofferdam_contract::{
    Capability, Chunk, Error, ErrorKind, ExecHandle, ExecRequest, Exit, ExitWatch, OutputEvent, Result, Retry, Sandbox,
    Usage,
};
use tokio::sync::{MutexGuard as Guard, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use crate::ends::Ends;
use crate::executor::{self, Channel, OnOutput};
use crate::line::Keeper;
use crate::result::random_id;
use crate::{CodeRequest, CodeResult, Executor, Place, Results, SessionState, Want, files, rich, runtime};

pub use admitted::Admitted;
pub use config::SessionBounds;
use live::{Answer, End, Live, OnSession};
use wire::Said;

/// Node takes types away from texts since then, and not from files alone.
const TYPES_OF_TEXTS: &str = "22.13";
/// How long it may take to send an interrupt.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Sessions that are gone and whose reason is still known.
const MAX_GONE: usize = 256;

/// The sessions of an executor. Dropping it ends them all.
#[derive(Debug)]
pub struct Sessions {
    executor: Executor,
    places: Arc<Semaphore>,
    book: Arc<Mutex<Book>>,
}

/// Which are open, and why others are not any more.
#[derive(Debug, Default)]
struct Book {
    open: BTreeMap<String, Arc<CodeSession>>,
    gone: VecDeque<(String, String)>,
}

/// One interpreter that lives between calls. One call at a time. Dropping the last reference ends it.
#[derive(Debug)]
pub struct CodeSession {
    id: String,
    language: String,
    executor: Executor,
    place: Place,
    sandbox: Arc<dyn Sandbox>,
    version: Option<String>,
    book: Weak<Mutex<Book>>,
    /// `None` while a call has it, and once it is gone.
    live: tokio::sync::Mutex<Option<Live>>,
    /// The interpreter's process, which can be ended while a call has the rest.
    process: Weak<ExecHandle>,
    /// The interpreter's pid inside, as it says: only ever named to a program inside.
    pid: Option<i32>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last_use: Instant,
    calls: u64,
    /// Why it is gone, or would be if the call that is going on went away.
    gone: Option<String>,
    /// Whether it is gone for good: no call may have it any more.
    closed: bool,
}

/// The turn of a call. Its end lets go of an interpreter that somebody closed meanwhile.
struct Turn<'a> {
    session: &'a CodeSession,
    place: Option<Guard<'a, Option<Live>>>,
}

impl Turn<'_> {
    fn take(&mut self) -> Option<Live> {
        self.place.as_mut().and_then(|place| place.take())
    }

    /// Gives the interpreter to the next call, unless the session was closed meanwhile.
    fn put_back(&mut self, live: Live) {
        let mut state = lock(&self.session.state);
        if let (Some(place), false) = (&mut self.place, state.closed) {
            **place = Some(live);
            state.gone = None;
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.place.take());
        self.session.clear();
    }
}

impl Sessions {
    /// None so far.
    pub fn new(executor: Executor) -> Self {
        let places = Arc::new(Semaphore::new(executor.0.config.sessions.max_open));
        Self { executor, places, book: Arc::default() }
    }

    /// What runs the calls.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Starts an interpreter in a sandbox. Must be called in a tokio runtime with time enabled.
    ///
    /// # Behavior
    /// - Fails with `Unsupported` where the language has no sessions, or the backend keeps no program's input open.
    /// - Fails with `ResourceExhausted` while as many are open as may be.
    /// - It ends when nobody has called it for the idle time, at the end of its lifetime, and with its sandbox.
    pub async fn open(&self, place: &Place, sandbox: &Arc<dyn Sandbox>, language: &str) -> Result<Arc<CodeSession>> {
        self.open_holding(place, sandbox, language, Box::new(())).await
    }

    /// As [`Self::open`]; `held` is dropped when nothing of the session is left, or where it could not be opened.
    pub async fn open_holding(
        &self,
        place: &Place,
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
        let able = [Capability::StreamingStdin, Capability::UnixPrograms];
        if !able.iter().all(|capability| place.capabilities.contains(capability)) {
            let message = format!("the backend '{}' keeps no interpreter alive between calls", place.backend);
            return Err(Error::unsupported("open a session", message)
                .with_remedy("use level process, container or vm for sessions"));
        }
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let most = config.sessions.max_open;
            Error::new(
                ErrorKind::ResourceExhausted,
                "open a session",
                format!("{most} sessions are open, and no more may be"),
            )
            .with_remedy("close one, or raise max_open in the table [sessions] of the configuration")
        })?;
        let version = self.executor.0.versions.ask(place, &**sandbox, language, known).await?;
        if let (Results::TypeScript, Some(version)) = (known.results(), &version) {
            runtime::at_least(TYPES_OF_TEXTS, version, ("open a session", language, known))?;
        }
        let most = config.bounds.max_results;
        let live = Live::start(&**sandbox, language, known, &config.sessions, most, (permit, held)).await?;
        let (end, process, pid) = (live.end(), live.process(), live.pid());
        let session = Arc::new(CodeSession {
            id: random_id()?,
            language: language.to_owned(),
            executor: self.executor.clone(),
            place: place.clone(),
            sandbox: Arc::clone(sandbox),
            version: version.map(|version| version.to_string()),
            book: Arc::downgrade(&self.book),
            live: tokio::sync::Mutex::new(Some(live)),
            process,
            pid,
            state: Mutex::new(State { last_use: Instant::now(), calls: 0, gone: None, closed: false }),
        });
        lock(&self.book).open.insert(session.id.clone(), Arc::clone(&session));
        tokio::spawn(watch(Arc::downgrade(&session), end, config.sessions.clone()));
        Ok(session)
    }

    /// The session of this id.
    ///
    /// # Errors
    /// `Closed` for one that is gone, with the reason; `NotFound` for one that nobody knows of.
    pub fn find(&self, id: &str) -> Result<Arc<CodeSession>> {
        let book = lock(&self.book);
        if let Some(session) = book.open.get(id) {
            return Ok(Arc::clone(session));
        }
        if let Some((_, why)) = book.gone.iter().find(|(gone, _)| gone == id) {
            return Err(closed(id, why));
        }
        let shown: String = id.chars().take(40).collect();
        Err(Error::new(ErrorKind::NotFound, "find a session", "there is no such session")
            .with_context("session", shown.escape_debug().to_string())
            .with_remedy("open one, and use the id that it has"))
    }

    /// The ids of those that are open.
    pub fn ids(&self) -> Vec<String> {
        lock(&self.book).open.keys().cloned().collect()
    }

    /// Ends all of them, and waits until their interpreters have ended.
    pub async fn shutdown(&self) {
        let all: Vec<_> = lock(&self.book).open.values().cloned().collect();
        for session in all {
            session.close().await;
        }
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        // With the last reference each interpreter is killed.
        lock(&self.book).open.clear();
    }
}

impl CodeSession {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its language.
    pub fn language(&self) -> &str {
        &self.language
    }

    /// Runs code in it; of the request, language, arguments, environment, input and working directory are not used.
    ///
    /// # Behavior
    /// - As [`Executor::execute`], but for what is above.
    /// - Fails with `Conflict` while another call goes on, and with `Closed` once the session is gone.
    /// - A call that takes too long, crashes or ends the interpreter, or during which the session is closed, is a result,
    ///   which says that the session is gone.
    /// - Dropping the future ends the session.
    pub async fn call(&self, request: CodeRequest) -> Result<CodeResult> {
        self.call_live(request, &|_| {}).await
    }

    /// As [`Self::call`], and tells of output as it comes.
    pub async fn call_live(&self, mut request: CodeRequest, on_output: OnOutput<'_>) -> Result<CodeResult> {
        check(&request)?;
        let turn = self.turn()?;
        request.language.clone_from(&self.language);
        let (place, version) = (&self.place, self.version.as_deref());
        let admitted = self.executor.admit(place, self.sandbox.spec(), request, version).await?;
        self.run(turn, admitted, &within(on_output)).await
    }

    /// As [`Self::call_live`], and keeps `keep` bytes of the beginning and of the end of standard output and standard
    /// error, however long they are.
    pub async fn call_ends(
        &self,
        mut request: CodeRequest,
        keep: usize,
        on_output: OnOutput<'_>,
    ) -> Result<(CodeResult, [Ends; 2])> {
        check(&request)?;
        let turn = self.turn()?;
        request.language.clone_from(&self.language);
        let (place, version) = (&self.place, self.version.as_deref());
        let admitted = self.executor.admit(place, self.sandbox.spec(), request, version).await?;
        self.run_ends(turn, admitted, keep, on_output).await
    }

    /// As [`Self::call_ends`], for a call that was admitted before the session was opened.
    pub async fn call_admitted(
        &self,
        admitted: Admitted,
        keep: usize,
        on_output: OnOutput<'_>,
    ) -> Result<(CodeResult, [Ends; 2])> {
        match self.turn() {
            Ok(turn) if admitted.request.language == self.language => {
                self.run_ends(turn, admitted, keep, on_output).await
            }
            Ok(_) => Err(admitted.not_started(Error::invalid("execute", "the session is of another language")).await),
            Err(error) => Err(admitted.not_started(error).await),
        }
    }

    /// Interrupts the call that runs, as Ctrl-C does: its code gets a KeyboardInterrupt, and the session stays.
    ///
    /// # Errors
    /// `Unsupported` if the language has no such interrupt; what the sandbox says if it cannot be sent.
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

    /// Why it is gone, if it is.
    pub fn lost(&self) -> Option<String> {
        self.closed_why()
    }

    /// The turn of a call, unless there is another or the session is gone.
    fn turn(&self) -> Result<Turn<'_>> {
        let place = self.live.try_lock().map_err(|_| busy())?;
        if place.is_none() || self.is_closed() {
            return Err(self.why_gone());
        }
        Ok(Turn { session: self, place: Some(place) })
    }

    async fn run_ends(
        &self,
        turn: Turn<'_>,
        admitted: Admitted,
        keep: usize,
        on_output: OnOutput<'_>,
    ) -> Result<(CodeResult, [Ends; 2])> {
        let keeper = Keeper::new(keep);
        let shown = within(on_output);
        let on_session = |event: &OutputEvent, kept: usize| {
            shown(event, kept);
            keeper.take(event);
        };
        let result = self.run(turn, admitted, &on_session).await?;
        Ok((result, keeper.ends()))
    }

    async fn run(&self, mut turn: Turn<'_>, admitted: Admitted, on_output: OnSession<'_>) -> Result<CodeResult> {
        let Admitted { id, request, entry, screened, timeout, most } = admitted;
        let sandbox = &*self.sandbox;
        let executor = &self.executor;
        let config = &executor.0.config;
        let language = config.languages.by_name(&self.language)?;
        let channel = match request.results {
            Want::Yes => Channel::choose(&self.place, sandbox.spec(), &executor.0.own_files)?,
            Want::No => None,
        };
        let before = match request.files {
            Want::Yes => Some(files::look(sandbox, &config.bounds, &executor.0.own_files).await),
            Want::No => None,
        };
        // From here on, whoever drops this future drops the interpreter as well.
        let (Some(calls), Some(mut live)) = (self.begin(), turn.take()) else {
            if let Some(entry) = entry {
                entry.never_started("not started: the session was closed".to_owned()).await?;
            }
            return Err(self.why_gone());
        };
        let inside = channel.as_ref().map(Channel::inside);
        let answer = live.call(inside.as_deref(), &request.code, Instant::now() + timeout, most, on_output).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(entry) = entry {
                    entry.failed(error.kind()).await;
                }
                self.end("the sandbox failed");
                drop(live);
                self.leave();
                return Err(error);
            }
        };
        let exited = matches!(answer.end, End::Served(Said::Exited(_)));
        let lost = self.closed_why().or_else(|| live::lost(&answer.end, answer.duration));
        let taken = match &channel {
            // Also after a loss: somebody may have written it all the same.
            Some(channel) => channel.take(sandbox, config.bounds.max_results).await,
            None => rich::Taken::default(),
        };
        match &lost {
            None => turn.put_back(live),
            Some(why) => {
                live.close(exited).await;
                self.end(why);
                self.leave();
            }
        }
        let own = (&*executor.0.own_files, channel.as_ref().and_then(Channel::path));
        let files = files::compare(sandbox, &config.bounds, before, request.contents, own).await;
        let meta = executor::meta(&self.place, sandbox, language, self.version.clone(), timeout, most);
        let output = answer.output;
        let (exit, stdout, stderr) = exit(answer);
        let result = CodeResult {
            id,
            language: self.language.clone(),
            usage: None,
            results: taken.results,
            results_dropped: taken.dropped,
            files,
            screening: screened,
            session: Some(SessionState { id: self.id.clone(), calls, lost, exited }),
            ..executor::result(exit, stdout, stderr, meta)
        };
        lock(&self.state).last_use = Instant::now();
        if let Some(entry) = entry {
            entry.ended(&result, Some(output)).await?;
        }
        Ok(result)
    }

    /// Ends it, and waits until its interpreter has ended. A call that goes on ends with it, and says so.
    pub async fn close(&self) {
        self.end("it was closed");
        if let Some(process) = self.process.upgrade() {
            // A failure is the sandbox's, whose owner will see it.
            let _ = process.close().await;
        }
        self.clear();
        self.leave();
    }

    /// Lets go of an interpreter that no call may have any more. Whoever closes does it, and so does each call at its end:
    /// one of them finds the place free.
    fn clear(&self) {
        if self.is_closed()
            && let Ok(mut place) = self.live.try_lock()
        {
            drop(place.take());
        }
    }

    fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    fn closed_why(&self) -> Option<String> {
        let state = lock(&self.state);
        state.gone.clone().filter(|_| state.closed)
    }

    /// Counts a call that has the interpreter now; `None` if nobody may have it any more.
    fn begin(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        state.calls += 1;
        state.last_use = Instant::now();
        state.gone = Some("a call was cancelled".to_owned());
        Some(state.calls)
    }

    /// Notes why it is gone, once: no call begins any more.
    fn end(&self, why: &str) {
        let mut state = lock(&self.state);
        if !state.closed {
            (state.gone, state.closed) = (Some(why.to_owned()), true);
        }
    }

    /// Leaves the book, once nothing of it is left: then another may have its place.
    fn leave(&self) {
        let why = self.closed_why().unwrap_or_default();
        let Some(book) = self.book.upgrade() else { return };
        let mut book = lock(&book);
        if book.open.remove(&self.id).is_some() {
            book.gone.push_back((self.id.clone(), why));
            if book.gone.len() > MAX_GONE {
                book.gone.pop_front();
            }
        }
    }

    fn why_gone(&self) -> Error {
        closed(&self.id, lock(&self.state).gone.as_deref().unwrap_or("it was closed"))
    }
}

/// Passes on the output that the result keeps.
fn within(on_output: OnOutput<'_>) -> impl Fn(&OutputEvent, usize) + Send + Sync {
    move |event, kept| {
        if let OutputEvent::Chunk(chunk) = event
            && kept > 0
        {
            on_output(&Chunk { stream: chunk.stream, data: chunk.data.slice(..kept) });
        }
    }
}

fn busy() -> Error {
    Error::new(ErrorKind::Conflict, "execute", "the session is busy with another call")
        .with_retry(Retry::MayHelp)
        .with_remedy("wait for its end, or open another session")
}

fn closed(id: &str, why: &str) -> Error {
    Error::new(ErrorKind::Closed, "execute", format!("the session is gone: {why}"))
        .with_context("session", id.to_owned())
        .with_remedy("open another; what was defined in this one has to be defined anew")
}

/// Refuses what a live interpreter cannot be given any more.
pub(crate) fn check(request: &CodeRequest) -> Result<()> {
    let given = !request.args.is_empty()
        || !request.env.is_empty()
        || !request.secrets.is_empty()
        || !request.stdin.is_empty()
        || !request.working_dir.is_workspace();
    if given {
        let message = "a call of a session has no arguments, environment, secrets, input or directory of its own";
        return Err(Error::invalid("execute", message).with_remedy("set them in the code, or run it without a session"));
    }
    Ok(())
}

/// How a call ended, in the form of an exec's end.
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
        End::Served(Said::Done(_)) => plain,
        End::Served(Said::Failed) => Exit { code: 1, ..plain },
        End::Served(Said::Exited(code)) => Exit { code, ..plain },
        End::TimedOut => Exit { code: -1, timed_out: true, ..plain },
        End::Nonsense => Exit { code: -1, cancelled: true, ..plain },
        End::Died(exit) => Exit { truncated: plain.truncated, duration: plain.duration, ..exit },
    };
    (exit, answer.stdout, answer.stderr)
}

/// Ends a session that nobody calls, that is too old, or whose interpreter is gone.
async fn watch(session: Weak<CodeSession>, end: ExitWatch, bounds: SessionBounds) {
    let oldest = Instant::now() + bounds.lifetime;
    loop {
        let Some(until) = session.upgrade().map(|session| lock(&session.state).last_use + bounds.idle_timeout) else {
            return;
        };
        let over = tokio::select! {
            exit = end.exit() => Some(live::ended_unasked(exit)),
            () = sleep_until(until.min(oldest)) => None,
        };
        let Some(session) = session.upgrade() else { return };
        // While a call goes on, its end is a use, and it sees the interpreter's end itself.
        let Ok(mut place) = session.live.try_lock() else {
            drop(session);
            sleep(bounds.idle_timeout.min(Duration::from_secs(1))).await;
            continue;
        };
        let cancelled = lock(&session.state).gone.clone();
        let idle = Instant::now() >= lock(&session.state).last_use + bounds.idle_timeout;
        let why = match (over, idle, Instant::now() >= oldest) {
            (Some(how), ..) => cancelled.unwrap_or(how),
            (_, true, _) => format!("nobody used it for {} s", bounds.idle_timeout.as_secs_f64()),
            (_, _, true) => "it was as old as a session may become".to_owned(),
            _ => continue,
        };
        session.end(&why);
        let live = place.take();
        drop(place);
        if let Some(live) = live {
            live.close(false).await;
        }
        session.leave();
        return;
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
