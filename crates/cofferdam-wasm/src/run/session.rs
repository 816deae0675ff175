//! A live guest that is called repeatedly, and keeps its state between the calls.
//!
//! ```text
//! idle --start--> busy --(returns)--> idle
//!                  |
//!                  '--(exits | traps | limit | time | cancel)--> ended
//! idle --snapshot--> idle          anything --close--> ended
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{
    Command, Completed, Error, ErrorKind, ExecHandle, ExecId, ExecRequest, Exit, OutputStream, Result, Sandbox, Script,
    Spec, Usage, collect,
};
use cofferdam_wasm_runtimes::Language;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::OwnedSemaphorePermit;

use super::command;
use super::snapshot::{InitialState, Kind, SessionSnapshot};
use super::thread::{input, no_slot, no_thread, stack_size};
use crate::directories::refuse_named;
use crate::engine::{Ticking, WasmEngine};
use crate::environment::plain_environment;
use crate::guest::{self, Guest};
use crate::guest_control::{ExecHandleControl, GuestControl};
use crate::languages::{self, Mode, PreparedInterpreter};
use crate::limiter::Limiter;
use crate::output::Output;
use crate::policy::Policy;
use crate::program::{Entry, Frozen, Program};
use crate::state::{Common, ExecRegistration, Shared, memory_account};
use crate::termination::Termination;
use crate::wasi::{Host, HostParts, Run};

/// Reseeds the generator that was seeded before the snapshot: two guests of one snapshot must not draw the same
/// numbers.
const RESEED_PYTHON: &str = "(lambda random: random and random._inst.seed())(__import__('sys').modules.get('random'))";
const RESEED_TIMEOUT: Duration = Duration::from_secs(10);

/// The kind of guest of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionKind {
    /// An interpreter that runs pieces of source text. Later pieces see the definitions of earlier ones.
    Language(Language),
    /// A library module, whose exported functions are called by name.
    Module(Bytes),
}

/// A live guest in its own sandbox. Dropping the session ends the guest.
#[derive(Debug)]
pub struct Session {
    sandbox: SessionSandbox,
    inner: Arc<Inner>,
}

/// Creates the sandbox that owns a state. Dropping it ends the guests.
pub(crate) type CreateSandbox = fn(Arc<Shared>) -> Arc<dyn Sandbox>;

/// The sandbox of a session, and the state that it owns.
#[derive(Debug)]
struct SessionSandbox {
    handle: Arc<dyn Sandbox>,
    shared: Arc<Shared>,
    create: CreateSandbox,
}

impl SessionSandbox {
    fn new(shared: Arc<Shared>, create: CreateSandbox) -> Self {
        Self { handle: create(Arc::clone(&shared)), shared, create }
    }
}

struct Inner {
    shared: Arc<Shared>,
    kind: Kind,
    engine: Arc<WasmEngine>,
    program: Arc<Program>,
    initial: Frozen,
    entry: Entry,
    live: Mutex<Live>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The state of the guest.
enum Live {
    Idle(Box<Guest>),
    Busy,
    Ended(&'static str),
}

/// The input of a call on a guest's thread.
struct SessionCall {
    inner: Arc<Inner>,
    guest: Box<Guest>,
    run: Run,
    entry: Entry,
    registration: ExecRegistration,
    ticking: Ticking,
    slot: OwnedSemaphorePermit,
    started: Instant,
}

impl Session {
    fn of_language(sandbox: SessionSandbox, language: Language, prepared: &PreparedInterpreter) -> Result<Self> {
        let random = guest::random(sandbox.shared.policy);
        let initial =
            InitialState { frozen: prepared.initial.clone(), descriptors: None, passed: prepared.passed, random };
        Self::new(
            sandbox,
            Kind::of(language, prepared),
            (&prepared.engine, &prepared.program),
            &prepared.entry,
            initial,
        )
    }

    /// Creates a session of a library, and runs its initialization.
    async fn of_module(
        sandbox: SessionSandbox,
        module: Bytes,
        engine: &Arc<WasmEngine>,
        program: &Arc<Program>,
    ) -> Result<Self> {
        let frozen = program.initial().clone();
        let random = guest::random(sandbox.shared.policy);
        let initial = InitialState { frozen, descriptors: None, passed: 0, random };
        let session = Self::new(sandbox, Kind::Module(module), (engine, program), &Entry::Start, initial)?;
        let exit = session.begin(&ExecRequest::builder(Command::Argv(vec!["_initialize".to_owned()])).build()?)?;
        let exit = exit.exit().await?;
        if exit.success() {
            return Ok(session);
        }
        Err(Error::new(ErrorKind::NotExecutable, "open_session", "the initialization of the module failed")
            .with_context("exit", format!("{exit:?}")))
    }

    /// Creates a session. Every call enters by `entry`; a call of a library enters by the function's name instead.
    fn new(
        sandbox: SessionSandbox,
        kind: Kind,
        (engine, program): (&Arc<WasmEngine>, &Arc<Program>),
        entry: &Entry,
        initial: InitialState,
    ) -> Result<Self> {
        let shared = Arc::clone(&sandbox.shared);
        let host = first_host(&shared, &initial)?;
        let guest = Box::new(Guest::new(engine, program, host));
        let inner = Inner {
            shared,
            kind,
            engine: Arc::clone(engine),
            program: Arc::clone(program),
            initial: initial.frozen,
            entry: entry.clone(),
            live: Mutex::new(Live::Idle(guest)),
        };
        Ok(Self { sandbox, inner: Arc::new(inner) })
    }

    /// Returns the guest's sandbox, for its files, limits and usage.
    pub fn sandbox(&self) -> Arc<dyn Sandbox> {
        Arc::clone(&self.sandbox.handle)
    }

    /// Calls the guest: a script for an interpreter, an `argv` that starts with an exported function for a library.
    ///
    /// # Behavior
    /// - The state of earlier calls persists: variables, open files, the workspace.
    /// - A call that ends the guest (exit, trap, limit, timeout, cancel) ends this session and no other. Every later
    ///   call returns an error.
    /// - An exception in a script is its exit code and ends nothing.
    ///
    /// # Errors
    ///
    /// `Conflict` while another call runs; `Closed` after the end; `ResourceExhausted` while the maximum number of
    /// guests run.
    pub fn start(&self, request: &ExecRequest) -> Result<ExecHandle> {
        self.begin(request)
    }

    /// Calls the guest, and waits until the call ends.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn exec(&self, request: &ExecRequest) -> Result<Completed> {
        let request = request.to_builder().output_buffer(request.max_output()).build()?;
        collect(self.start(&request)?).await
    }

    /// Runs a piece of source text in an interpreter, and waits until it ends.
    ///
    /// # Errors
    ///
    /// As [`Self::start`]; `InvalidInput` for a library.
    pub async fn execute(&self, source: impl Into<Bytes>) -> Result<Completed> {
        let Kind::Language { language, .. } = &self.inner.kind else {
            return Err(Error::invalid("execute", "this session runs a library; call its functions by name"));
        };
        self.exec(&piece(*language, source.into()).build()?).await
    }

    /// Calls an exported function of a library, and waits until it ends.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn call(&self, function: &str, stdin: impl Into<Bytes>) -> Result<Completed> {
        let request = ExecRequest::builder(Command::Argv(vec![function.to_owned()]));
        self.exec(&request.stdin(cofferdam_contract::Stdin::Bytes(stdin.into())).build()?).await
    }

    /// Returns a snapshot of the guest's state and its files, taken between two calls.
    ///
    /// # Errors
    ///
    /// As [`Self::start`]; `Unsupported` for a module that cannot be frozen.
    pub fn snapshot(&self) -> Result<SessionSnapshot> {
        let mut live = self.inner.lock();
        let Live::Idle(guest) = &mut *live else { return Err(live.unavailable("snapshot")) };
        SessionSnapshot::of(&self.inner.kind, &self.inner.shared, &self.inner.initial, guest)
    }

    /// Opens another session with a copy of this one's state and files. From then on both are independent, and draw
    /// different random numbers unless the spec makes them deterministic.
    ///
    /// # Errors
    ///
    /// As [`Self::snapshot`].
    pub async fn fork(&self) -> Result<Self> {
        let shared = &self.inner.shared;
        restore_session(&shared.common, &self.snapshot()?, shared.spec.clone(), self.sandbox.create).await
    }

    /// Returns true if calls are possible, and false once the guest has ended.
    pub fn is_alive(&self) -> bool {
        !matches!(*self.inner.lock(), Live::Ended(_))
    }

    /// Ends the guest, and frees its resources. Idempotent.
    ///
    /// # Errors
    ///
    /// None so far.
    pub async fn close(&self) -> Result<()> {
        self.sandbox.handle.close().await?;
        *self.inner.lock() = Live::Ended("it was closed");
        Ok(())
    }

    fn begin(&self, request: &ExecRequest) -> Result<ExecHandle> {
        let shared = &self.inner.shared;
        shared.check_open("start")?;
        let (entry, text) = self.inner.entry(request)?;
        self.inner.check_idle()?;
        let slot = Arc::clone(&shared.common.slots).try_acquire_owned().map_err(|_| no_slot(&shared.common))?;
        let allowed = request.timeout().unwrap_or(shared.spec.limits().wall_time);
        let control = Arc::new(GuestControl::default());
        let registration = shared.enter(&control)?;
        let ticking = self.inner.engine.tick().map_err(no_thread)?;
        let (input, writer) = input(request, &control);
        let exec_control = Arc::new(ExecHandleControl(Arc::clone(&control)));
        let guest = self.inner.take()?;
        let (handle, driver) = ExecHandle::new(ExecId(registration.id), request, writer, exec_control);
        let started = Instant::now();
        let run = Run {
            control,
            input,
            output: Output::new(driver),
            deadline: started + allowed,
            cpu_limit: shared.spec.limits().cpu_time,
            request: text,
        };
        let call =
            SessionCall { inner: Arc::clone(&self.inner), guest, run, entry, registration, ticking, slot, started };
        let thread = std::thread::Builder::new().name("wasm-session".to_owned());
        let thread = thread.stack_size(stack_size(&shared.common));
        thread.spawn(move || call.run()).map_err(|error| {
            *self.inner.lock() = Live::Ended("its thread could not be started");
            no_thread(error)
        })?;
        Ok(handle)
    }

    /// Reseeds the guest's random numbers, so that they differ from those of its siblings.
    async fn reseed(&self) -> Result<()> {
        let Kind::Language { language: Language::Python, .. } = &self.inner.kind else { return Ok(()) };
        if self.inner.shared.policy.seed.is_some() {
            return Ok(());
        }
        let request = piece(Language::Python, RESEED_PYTHON.into()).timeout(RESEED_TIMEOUT).build()?;
        let exit: Exit = self.start(&request)?.exit().await?;
        if exit.success() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Internal, "restore", "cannot reseed the restored interpreter"))
    }
}

/// Opens a session in a new sandbox.
pub(crate) async fn open_session(
    common: &Arc<Common>,
    kind: SessionKind,
    spec: Spec,
    create: CreateSandbox,
) -> Result<Session> {
    refuse_named(&spec)?;
    let sandbox = SessionSandbox::new(Shared::with_workspace(common, spec).await?, create);
    let (metered, allowed) = (sandbox.shared.policy.is_metered(), sandbox.shared.spec.limits().wall_time);
    match kind {
        SessionKind::Language(language) => {
            let prepared = common.loader.interpreter(language, metered, allowed).await?;
            Session::of_language(sandbox, language, &prepared)
        }
        SessionKind::Module(module) => {
            let tenant = sandbox.shared.spec.tenant().clone();
            let (program, engine) = common.loader.program(module.clone(), &tenant, metered, allowed).await?;
            refuse_component(&program, "open_session")?;
            Session::of_module(sandbox, module, &engine, &program).await
        }
    }
}

/// Opens a session that resumes from a snapshot.
pub(crate) async fn restore_session(
    common: &Arc<Common>,
    snapshot: &SessionSnapshot,
    spec: Spec,
    create: CreateSandbox,
) -> Result<Session> {
    refuse_named(&spec)?;
    let policy = Policy::of(&spec)?;
    spec.check_tenant(snapshot.tenant())?;
    let account = memory_account(&spec);
    let (files, initial) = snapshot.thaw(&spec, policy, &account)?;
    let shared = Shared::with_files(common, spec, policy, account, files)?;
    let sandbox = SessionSandbox::new(Arc::new(shared), create);
    let (metered, allowed) = (sandbox.shared.policy.is_metered(), sandbox.shared.spec.limits().wall_time);
    snapshot.check_metered(metered)?;
    let kind = snapshot.kind.clone();
    let session = match &snapshot.kind {
        Kind::Language { language, .. } => {
            let prepared = common.loader.interpreter(*language, metered, allowed).await?;
            kind.check(&prepared)?;
            Session::new(sandbox, kind, (&prepared.engine, &prepared.program), &prepared.entry, initial)?
        }
        Kind::Module(module) => {
            let tenant = sandbox.shared.spec.tenant().clone();
            let (program, engine) = common.loader.program(module.clone(), &tenant, metered, allowed).await?;
            refuse_component(&program, "restore")?;
            Session::new(sandbox, kind, (&engine, &program), &Entry::Start, initial)?
        }
    };
    session.inner.instantiate()?;
    session.reseed().await?;
    Ok(session)
}

fn refuse_component(program: &Program, operation: &'static str) -> Result<()> {
    if program.component().is_none() {
        return Ok(());
    }
    Err(Error::unsupported(operation, "sessions do not support components")
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
        self.live.lock()
    }

    fn check_idle(&self) -> Result<()> {
        match &*self.lock() {
            Live::Idle(_) => Ok(()),
            other => Err(other.unavailable("start")),
        }
    }

    fn take(&self) -> Result<Box<Guest>> {
        let mut live = self.lock();
        match std::mem::replace(&mut *live, Live::Busy) {
            Live::Idle(guest) => Ok(guest),
            other => {
                let error = other.unavailable("start");
                *live = other;
                Err(error)
            }
        }
    }

    /// Returns the entry of a request, and the encoded request of an interpreter.
    fn entry(&self, request: &ExecRequest) -> Result<(Entry, Option<Bytes>)> {
        let context = command::check(&self.shared, request)?;
        match (&self.kind, request.command()) {
            (Kind::Language { language, .. }, Command::Script(script)) => {
                if command::language(&script.interpreter)? != Some(*language) {
                    return Err(Error::invalid("start", "this session runs another language"));
                }
                let args: Vec<String> = [script.name.clone()].into_iter().chain(script.args.iter().cloned()).collect();
                let text = languages::request(Mode::Session, &context.cwd, &args, &context.env, &script.contents);
                Ok((self.entry.clone(), Some(text)))
            }
            (Kind::Module(_), Command::Argv(argv)) => match argv.first() {
                Some(name) if name == "_initialize" => Ok((Entry::Start, None)),
                Some(name) if self.program.has(name) => Ok((Entry::Export(name.clone()), None)),
                _ => Err(Error::new(ErrorKind::NotFound, "start", "the module does not export this function")
                    .with_remedy("export a function without arguments and results, and use the standard streams")),
            },
            (Kind::Language { .. }, _) => {
                Err(Error::invalid("start", "a session of an interpreter accepts scripts only")
                    .with_remedy("use Command::Script"))
            }
            (Kind::Module(_), _) => Err(Error::invalid("start", "a session of a library accepts function names only")
                .with_remedy("use Command::Argv")),
        }
    }
}

impl Live {
    fn unavailable(&self, operation: &'static str) -> Error {
        match self {
            Self::Ended(reason) => Error::new(ErrorKind::Closed, operation, format!("the session has ended: {reason}")),
            _ => Error::new(ErrorKind::Conflict, operation, "the session is running another call"),
        }
    }
}

impl SessionCall {
    /// Runs one call, on the guest's thread.
    fn run(self) {
        let Self { inner, mut guest, run, entry, registration, ticking, slot, started } = self;
        guest.store.data_mut().start_run(run);
        let running = || guest.run(inner.shared.policy, &inner.initial, &entry);
        let termination = catch_unwind(AssertUnwindSafe(running));
        let termination = termination
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "exit", "the host panicked while the guest ran")));
        let host = guest.store.data_mut();
        if let Some(message) = guest::trap_message(&termination) {
            host.output.write(OutputStream::Stderr, &message);
        }
        let driver = host.output.finish();
        let (cpu, limits_hit, status) = (host.cpu(), host.limits_hit(), host.status.take());
        let usage = Usage {
            cpu_seconds: cpu.as_secs_f64(),
            peak_memory_bytes: Some(inner.shared.account.peak()),
            output_bytes: 0,
        };
        inner.shared.add_cpu(cpu);
        let termination = termination.map(|termination| match (termination, status) {
            (Termination::Returned, Some(status)) => (Termination::Exit(status), true),
            (Termination::Returned, None) => (Termination::Returned, true),
            (other, _) => (other, false),
        });
        inner.end_call(guest, termination.as_ref().is_ok_and(|(_, lives)| *lives));
        drop((ticking, slot, registration));
        if let Some(driver) = driver {
            driver.finish(termination.map(|(termination, _)| guest::exit(termination, limits_hit, started, usage)));
        }
    }
}

impl Inner {
    /// Instantiates the guest before its first call, so that an invalid snapshot is detected now.
    fn instantiate(&self) -> Result<()> {
        match &mut *self.lock() {
            Live::Idle(guest) => guest.instantiate_snapshot(&self.initial),
            other => Err(other.unavailable("restore")),
        }
    }

    /// Stores the guest for the next call, or ends the session.
    fn end_call(&self, guest: Box<Guest>, lives: bool) {
        let mut live = self.lock();
        if !matches!(*live, Live::Busy) {
            return;
        }
        *live = if lives { Live::Idle(guest) } else { Live::Ended("its last call ended the guest") };
    }
}

fn first_host(shared: &Arc<Shared>, initial: &InitialState) -> Result<Host> {
    let files = shared.all_files();
    let policy = shared.policy;
    let parts = HostParts {
        args: Vec::new(),
        env: plain_environment(),
        preopens: files.preopens(shared.spec.workspace().access(), files.workspace),
        files: files.tree,
        clock: guest::clock(policy, initial.passed),
        random: initial.random,
        limiter: Limiter::new(Arc::clone(&shared.account)),
        run: Run::idle(),
    };
    let mut host = Host::new(parts).map_err(|error| error.into_error("start", "/workspace"))?;
    if let Some(descriptors) = &initial.descriptors {
        host.replace_descriptors(descriptors.clone());
    }
    Ok(host)
}
