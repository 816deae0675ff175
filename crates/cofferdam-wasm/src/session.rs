//! A live guest that is called again and again, and keeps what it knows between the calls.
//!
//! ```text
//! idle --start--> busy --(returns)--> idle
//!                  |
//!                  '--(ends itself | traps | limit | time | cancel)--> ended
//! idle --snapshot--> idle          anything --close--> ended
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{
    Command, Completed, Error, ErrorKind, ExecHandle, ExecId, ExecRequest, Exit, OutputStream, Result, Sandbox, Script,
    Spec, Usage, collect,
};
use cofferdam_wasm_supply::Language;
use tokio::sync::OwnedSemaphorePermit;

use crate::command;
use crate::ending::Ending;
use crate::engine::{Machine, Ticking};
use crate::exec::{HOST_STACK, input, no_place, no_thread};
use crate::guest::{self, Guest};
use crate::languages::{self, Mode, Warm};
use crate::leash::{Control, Leash};
use crate::limiter::Limiter;
use crate::output::Output;
use crate::preopens::refuse_named;
use crate::program::{Entry, Frozen, Program};
use crate::sandbox::WasmSandbox;
use crate::snapshot::{Kind, SessionSnapshot};
use crate::state::{Common, Seat, Shared};
use crate::time::Random;
use crate::wasi::{Descriptors, Host, HostParts, Run};

/// Seeds what was seeded before the snapshot was made: two guests of it must not draw the same numbers.
const RESEED_PYTHON: &str = "(lambda random: random and random._inst.seed())(__import__('sys').modules.get('random'))";
const RESEED_TIME: Duration = Duration::from_secs(10);

/// What a session is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionKind {
    /// An interpreter, which is given pieces of source text. What one defines is there for the next.
    Language(Language),
    /// A module that is a library, whose exported functions are called by name.
    Module(Bytes),
}

/// A live guest with a sandbox around it. Dropping it ends the guest.
#[derive(Debug)]
pub struct Session {
    sandbox: Arc<WasmSandbox>,
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    kind: Kind,
    machine: Arc<Machine>,
    program: Arc<Program>,
    beginning: Frozen,
    entry: Entry,
    live: Mutex<Live>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Where the guest is.
enum Live {
    Idle(Box<Guest>),
    Busy,
    Ended(&'static str),
}

/// What a session begins with besides its program.
pub(crate) struct Beginnings {
    pub(crate) frozen: Frozen,
    pub(crate) descriptors: Option<Descriptors>,
    pub(crate) passed: u64,
    pub(crate) random: Random,
}

/// What a call on a guest's thread is given.
struct Turn {
    inner: Arc<Inner>,
    guest: Box<Guest>,
    run: Run,
    entry: Entry,
    seat: Seat,
    ticking: Ticking,
    place: OwnedSemaphorePermit,
    started: Instant,
}

impl Session {
    pub(crate) fn of_language(sandbox: Arc<WasmSandbox>, language: Language, warm: &Warm) -> Result<Self> {
        let random = guest::random(sandbox.0.policy);
        let beginnings = Beginnings { frozen: warm.beginning.clone(), descriptors: None, passed: warm.passed, random };
        Self::new(sandbox, Kind::of(language, warm), (&warm.machine, &warm.program), &warm.entry, beginnings)
    }

    /// The library has begun already.
    pub(crate) async fn of_module(
        sandbox: Arc<WasmSandbox>,
        module: Bytes,
        machine: &Arc<Machine>,
        program: &Arc<Program>,
    ) -> Result<Self> {
        let frozen = program.beginning().clone();
        let random = guest::random(sandbox.0.policy);
        let beginnings = Beginnings { frozen, descriptors: None, passed: 0, random };
        let session = Self::new(sandbox, Kind::Module(module), (machine, program), &Entry::Start, beginnings)?;
        let exit = session.begin(&ExecRequest::builder(Command::Argv(vec!["_initialize".to_owned()])).build()?)?;
        let exit = exit.exit().await?;
        if exit.success() {
            return Ok(session);
        }
        Err(Error::new(ErrorKind::NotExecutable, "open_session", "the module failed in what it runs first")
            .with_context("exit", format!("{exit:?}")))
    }

    /// `entry` is what every call enters by; a library's is the function's name instead.
    pub(crate) fn new(
        sandbox: Arc<WasmSandbox>,
        kind: Kind,
        (machine, program): (&Arc<Machine>, &Arc<Program>),
        entry: &Entry,
        beginnings: Beginnings,
    ) -> Result<Self> {
        let shared = Arc::clone(&sandbox.0);
        let host = first_host(&shared, &beginnings)?;
        let guest = Box::new(Guest::new(machine, program, host));
        let inner = Inner {
            shared,
            kind,
            machine: Arc::clone(machine),
            program: Arc::clone(program),
            beginning: beginnings.frozen,
            entry: entry.clone(),
            live: Mutex::new(Live::Idle(guest)),
        };
        Ok(Self { sandbox, inner: Arc::new(inner) })
    }

    /// The sandbox that the guest lives in: its files, its limits, its use of them.
    pub fn sandbox(&self) -> Arc<dyn Sandbox> {
        Arc::clone(&self.sandbox) as Arc<dyn Sandbox>
    }

    /// Calls the guest: a script for an interpreter, an `argv` whose first word is an exported function for a library.
    ///
    /// # Behavior
    /// - What earlier calls left is there: variables, open files, the workspace.
    /// - A call that ends the guest (a trap, a limit, its time, a cancel, its own wish) ends this session and no other;
    ///   every later call says so.
    /// - An exception in a script is its exit code, and ends nothing.
    ///
    /// # Errors
    ///
    /// `Conflict` while another call runs; `Closed` after the end; `ResourceExhausted` while as many guests run as may.
    pub fn start(&self, request: &ExecRequest) -> Result<ExecHandle> {
        self.begin(request)
    }

    /// Calls the guest and waits for the end of the call.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn exec(&self, request: &ExecRequest) -> Result<Completed> {
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        collect(self.start(&request)?).await
    }

    /// Gives an interpreter a piece of source text, and waits until it was run.
    ///
    /// # Errors
    ///
    /// As [`Self::start`]; `InvalidInput` for a library.
    pub async fn execute(&self, source: impl Into<Bytes>) -> Result<Completed> {
        let Kind::Language { language, .. } = &self.inner.kind else {
            return Err(Error::invalid("execute", "this session is of a library, whose functions are called by name"));
        };
        self.exec(&piece(*language, source.into()).build()?).await
    }

    /// Calls an exported function of a library, and waits for its end.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn call(&self, function: &str, stdin: impl Into<Bytes>) -> Result<Completed> {
        let request = ExecRequest::builder(Command::Argv(vec![function.to_owned()]));
        self.exec(&request.stdin(cofferdam_contract::Stdin::Bytes(stdin.into())).build()?).await
    }

    /// The guest with everything that it knows and its files, as it is between two calls.
    ///
    /// # Errors
    ///
    /// As [`Self::start`]; `Unsupported` for a module that cannot be frozen.
    pub fn snapshot(&self) -> Result<SessionSnapshot> {
        let mut live = self.inner.lock();
        let Live::Idle(guest) = &mut *live else { return Err(live.why("snapshot")) };
        SessionSnapshot::of(&self.inner.kind, &self.inner.shared, &self.inner.beginning, guest)
    }

    /// Another session that begins as this one is now, with a copy of its files. What one does from then on the other
    /// does not see, and they draw different random numbers, unless the spec makes randomness up.
    ///
    /// # Errors
    ///
    /// As [`Self::snapshot`].
    pub async fn fork(&self) -> Result<Self> {
        let shared = &self.inner.shared;
        restore(&shared.common, &self.snapshot()?, shared.spec.clone()).await
    }

    /// Whether calls are possible: `false` once the guest has ended.
    pub fn is_alive(&self) -> bool {
        !matches!(*self.inner.lock(), Live::Ended(_))
    }

    /// Ends the guest, and frees what it held. Idempotent.
    ///
    /// # Errors
    ///
    /// None so far.
    pub async fn close(&self) -> Result<()> {
        self.sandbox.close().await?;
        *self.inner.lock() = Live::Ended("it was closed");
        Ok(())
    }

    fn begin(&self, request: &ExecRequest) -> Result<ExecHandle> {
        let shared = &self.inner.shared;
        shared.check_open("start")?;
        let (entry, text) = self.inner.entry(request)?;
        self.inner.check_idle()?;
        let place = Arc::clone(&shared.common.places).try_acquire_owned().map_err(|_| no_place(&shared.common))?;
        let allowed = request.timeout().unwrap_or(shared.spec.limits().wall_time);
        let leash = Arc::new(Leash::default());
        let seat = shared.enter(&leash)?;
        let ticking = self.inner.machine.tick().map_err(no_thread)?;
        let (input, writer) = input(request, &leash);
        let control = Arc::new(Control(Arc::clone(&leash)));
        let guest = self.inner.take()?;
        let (handle, driver) = ExecHandle::new(ExecId(seat.id), request, writer, control);
        let started = Instant::now();
        let run = Run {
            leash,
            input,
            output: Output::new(driver),
            deadline: started + allowed,
            cpu_limit: shared.spec.limits().cpu_time,
            request: text,
        };
        let turn = Turn { inner: Arc::clone(&self.inner), guest, run, entry, seat, ticking, place, started };
        let stack = shared.common.config.stack.as_bytes() + HOST_STACK;
        let thread = std::thread::Builder::new().name("wasm-session".to_owned());
        let thread = thread.stack_size(usize::try_from(stack).unwrap_or(usize::MAX));
        thread.spawn(move || turn.take()).map_err(|error| {
            *self.inner.lock() = Live::Ended("there was no thread for it");
            no_thread(error)
        })?;
        Ok(handle)
    }

    /// Has the guest draw other numbers than its siblings.
    pub(crate) async fn reseed(&self) -> Result<()> {
        let Kind::Language { language: Language::Python, .. } = &self.inner.kind else { return Ok(()) };
        if self.inner.shared.policy.seed.is_some() {
            return Ok(());
        }
        let request = piece(Language::Python, RESEED_PYTHON.into()).timeout(RESEED_TIME).build()?;
        let exit: Exit = self.start(&request)?.exit().await?;
        if exit.success() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Internal, "restore", "the restored interpreter could not be given new randomness"))
    }
}

/// Opens a session in a new sandbox.
pub(crate) async fn open(common: &Arc<Common>, kind: SessionKind, spec: Spec) -> Result<Session> {
    refuse_named(&spec)?;
    let sandbox = Arc::new(WasmSandbox(Shared::filled(common, spec).await?));
    let (metered, allowed) = (sandbox.0.policy.is_metered(), sandbox.0.spec.limits().wall_time);
    match kind {
        SessionKind::Language(language) => {
            let warm = common.engines.interpreter(language, metered, allowed).await?;
            Session::of_language(sandbox, language, &warm)
        }
        SessionKind::Module(module) => {
            let tenant = sandbox.0.spec.tenant().clone();
            let (program, machine) = common.engines.program(module.clone(), &tenant, metered, allowed).await?;
            refuse_component(&program, "open_session")?;
            Session::of_module(sandbox, module, &machine, &program).await
        }
    }
}

/// Opens a session that goes on where a snapshot was made.
pub(crate) async fn restore(common: &Arc<Common>, snapshot: &SessionSnapshot, spec: Spec) -> Result<Session> {
    refuse_named(&spec)?;
    let (shared, beginnings) = Shared::restored(common, spec, snapshot)?;
    let sandbox = Arc::new(WasmSandbox(Arc::new(shared)));
    let (metered, allowed) = (sandbox.0.policy.is_metered(), sandbox.0.spec.limits().wall_time);
    snapshot.check_metered(metered)?;
    let kind = snapshot.kind.clone();
    let session = match &snapshot.kind {
        Kind::Language { language, .. } => {
            let warm = common.engines.interpreter(*language, metered, allowed).await?;
            kind.check(&warm)?;
            Session::new(sandbox, kind, (&warm.machine, &warm.program), &warm.entry, beginnings)?
        }
        Kind::Module(module) => {
            let tenant = sandbox.0.spec.tenant().clone();
            let (program, machine) = common.engines.program(module.clone(), &tenant, metered, allowed).await?;
            refuse_component(&program, "restore")?;
            Session::new(sandbox, kind, (&machine, &program), &Entry::Start, beginnings)?
        }
    };
    session.inner.make()?;
    session.reseed().await?;
    Ok(session)
}

fn refuse_component(program: &Program, operation: &'static str) -> Result<()> {
    if program.component().is_none() {
        return Ok(());
    }
    Err(Error::unsupported(operation, "a component is a program, not a library of functions")
        .with_remedy("build a module that exports functions without arguments and results"))
}

fn piece(language: Language, source: Bytes) -> cofferdam_contract::ExecRequestBuilder {
    let (interpreter, name) = match language {
        Language::Python => ("python3", "<session>"),
        Language::JavaScript => ("javascript", "<session>"),
    };
    ExecRequest::builder(Command::Script(Script {
        interpreter: vec![interpreter.to_owned()],
        name: name.to_owned(),
        contents: source,
        args: Vec::new(),
    }))
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_idle(&self) -> Result<()> {
        match &*self.lock() {
            Live::Idle(_) => Ok(()),
            other => Err(other.why("start")),
        }
    }

    fn take(&self) -> Result<Box<Guest>> {
        let mut live = self.lock();
        match std::mem::replace(&mut *live, Live::Busy) {
            Live::Idle(guest) => Ok(guest),
            other => {
                let error = other.why("start");
                *live = other;
                Err(error)
            }
        }
    }

    /// Where a request enters the guest, and what an interpreter is told.
    fn entry(&self, request: &ExecRequest) -> Result<(Entry, Option<Bytes>)> {
        let asked = command::check(&self.shared, request)?;
        match (&self.kind, request.command()) {
            (Kind::Language { language, .. }, Command::Script(script)) => {
                if command::language(&script.interpreter)? != Some(*language) {
                    return Err(Error::invalid("start", "this session speaks another language"));
                }
                let args: Vec<String> = [script.name.clone()].into_iter().chain(script.args.iter().cloned()).collect();
                let text = languages::request(Mode::Session, &asked.cwd, &args, &asked.env, &script.contents);
                Ok((self.entry.clone(), Some(text)))
            }
            (Kind::Module(_), Command::Argv(argv)) => match argv.first() {
                Some(name) if name == "_initialize" => Ok((Entry::Start, None)),
                Some(name) if self.program.has(name) => Ok((Entry::Export(name.clone()), None)),
                _ => Err(Error::new(ErrorKind::NotFound, "start", "the module exports no such function")
                    .with_remedy("a function that is called has neither arguments nor results: use the streams")),
            },
            (Kind::Language { .. }, _) => {
                Err(Error::invalid("start", "a session of an interpreter takes scripts")
                    .with_remedy("use Command::Script"))
            }
            (Kind::Module(_), _) => Err(Error::invalid("start", "a session of a library takes names of functions")
                .with_remedy("use Command::Argv")),
        }
    }
}

impl Live {
    fn why(&self, operation: &'static str) -> Error {
        match self {
            Self::Ended(why) => Error::new(ErrorKind::Closed, operation, format!("the session has ended: {why}")),
            _ => Error::new(ErrorKind::Conflict, operation, "the session runs another call"),
        }
    }
}

impl Turn {
    /// One call, on the guest's thread.
    fn take(self) {
        let Self { inner, mut guest, run, entry, seat, ticking, place, started } = self;
        guest.store.data_mut().renew(run);
        let running = || guest.run(inner.shared.policy, &inner.beginning, &entry);
        let ending = catch_unwind(AssertUnwindSafe(running));
        let ending =
            ending.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "exit", "the host of the guest failed")));
        let host = guest.store.data_mut();
        if let Some(words) = guest::last_words(&ending) {
            host.output.write(OutputStream::Stderr, &words);
        }
        let driver = host.output.finish();
        let (cpu, limits_hit, status) = (host.cpu(), host.limits_hit(), host.status.take());
        let usage = Usage {
            cpu_seconds: cpu.as_secs_f64(),
            peak_memory_bytes: Some(inner.shared.account.peak()),
            output_bytes: 0,
        };
        inner.shared.add_cpu(cpu);
        let ending = ending.map(|ending| match (ending, status) {
            (Ending::Returned, Some(status)) => (Ending::Exit(status), true),
            (Ending::Returned, None) => (Ending::Returned, true),
            (other, _) => (other, false),
        });
        inner.settle(guest, ending.as_ref().is_ok_and(|(_, lives)| *lives));
        drop((ticking, place, seat));
        if let Some(driver) = driver {
            driver.finish(ending.map(|(ending, _)| guest::exit(ending, limits_hit, started, usage)));
        }
    }
}

impl Inner {
    /// Makes the guest before its first call, so that what it cannot go on from is found now.
    fn make(&self) -> Result<()> {
        match &mut *self.lock() {
            Live::Idle(guest) => guest.make_from_snapshot(&self.beginning),
            other => Err(other.why("restore")),
        }
    }

    fn settle(&self, guest: Box<Guest>, lives: bool) {
        let mut live = self.lock();
        if !matches!(*live, Live::Busy) {
            return;
        }
        *live = if lives { Live::Idle(guest) } else { Live::Ended("its last call did not come back") };
    }
}

fn first_host(shared: &Arc<Shared>, beginnings: &Beginnings) -> Result<Host> {
    let files = shared.all_files();
    let policy = shared.policy;
    let parts = HostParts {
        args: Vec::new(),
        env: command::plain_environment(),
        preopens: files.preopens(shared.spec.workspace().access(), files.workspace),
        files: files.tree,
        clock: guest::clock(policy, beginnings.passed),
        random: beginnings.random,
        limiter: Limiter::new(Arc::clone(&shared.account)),
        run: Run::none(),
    };
    let mut host = Host::new(parts).map_err(|error| error.into_error("start", "/workspace"))?;
    if let Some(descriptors) = &beginnings.descriptors {
        host.replace_descriptors(descriptors.clone());
    }
    Ok(host)
}
