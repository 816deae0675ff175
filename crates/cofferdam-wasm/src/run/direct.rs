//! Direct runs without a sandbox: one call on the caller's own thread, with files that exist only during the call.
//!
//! For plugins and snippets at a high rate: a run creates no thread and passes nothing between threads. The limits are
//! those of a spec, and are enforced as for execs.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{
    ByteSize, Completed, Error, ErrorKind, Posture, Result, Spec, Usage, WORKSPACE_PATH, Workspace,
};
use cofferdam_wasm_runtimes::Language;
use parking_lot::Mutex;

use super::command::check_command;
use crate::account::Account;
use crate::directories::refuse_named;
use crate::engine::WasmEngine;
use crate::environment::plain_environment;
use crate::files::Files;
use crate::fs::Tree;
use crate::guest::{self, Guest};
use crate::guest_control::{GuestControl, Input};
use crate::languages::{self, Mode};
use crate::limiter::Limiter;
use crate::network::{Egress, Rules};
use crate::output::{Collected, Output};
use crate::policy::Policy;
use crate::program::{Entry, Frozen, Program};
use crate::state::{Common, memory_account};
use crate::termination::Termination;
use crate::wasi::{Host, HostParts, Run};

/// Stack for the host's part of a runner's thread, and for the caller's work on it.
const CALLER_STACK: usize = 1 << 20;

/// The input of one run.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// Arguments, the program's name first.
    pub args: Vec<String>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// Standard input.
    pub stdin: Bytes,
    /// The source that an interpreter runs. Modules ignore it.
    pub source: Bytes,
    /// The wall time limit of the run. `None` is the spec's.
    pub timeout: Option<Duration>,
    /// The maximum output that is kept, in bytes of both streams together. `None` is 1 MiB.
    pub max_output: Option<ByteSize>,
}

/// The spec of a program's runs, with its policy and posture.
struct CheckedSpec {
    policy: Policy,
    spec: Spec,
    posture: Posture,
}

impl CheckedSpec {
    /// Checks a spec. Fails if the posture is weaker than the spec demands.
    fn new(spec: Spec) -> Result<Self> {
        let policy = Policy::of(&spec)?;
        refuse_named(&spec)?;
        if matches!(spec.workspace(), Workspace::HostDir { .. }) {
            return Err(Error::unsupported("load", "a direct run cannot start with the files of a host directory")
                .with_remedy("use a sandbox or a session, or pass the data on standard input"));
        }
        let posture = crate::posture::posture(&spec);
        posture.require(spec.allow_weaker())?;
        Ok(Self { policy, spec, posture })
    }
}

/// A program that is loaded once and run many times, each time in a new instance from the same initial state.
pub struct Loaded {
    engine: Arc<WasmEngine>,
    program: Arc<Program>,
    initial: Frozen,
    entry: Entry,
    /// The nanoseconds that an interpreter's clock has advanced; `None` for a module.
    passed: Option<u64>,
    policy: Policy,
    spec: Spec,
    posture: Posture,
    stack: usize,
    /// Idle guests for reuse, each in its initial state.
    spare: Mutex<Vec<Guest>>,
    /// The empty file system of idle guests.
    no_files: Arc<Mutex<Tree>>,
    /// The encoded request of a call with default arguments and environment.
    default_request: Bytes,
}

/// The maximum number of idle guests. There are seldom more threads that run guests.
const MAX_SPARE: usize = 64;

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Loaded {
    /// Loads a command module or component, starting from its initial state.
    pub(crate) async fn of_module(common: &Common, module: Bytes, spec: Spec) -> Result<Self> {
        let checked = CheckedSpec::new(spec)?;
        let (tenant, allowed) = (checked.spec.tenant().clone(), checked.spec.limits().wall_time);
        let (program, engine) = common.loader.program(module, &tenant, checked.policy.is_metered(), allowed).await?;
        check_command(&program)?;
        let initial = program.initial().clone();
        Ok(Self::new((engine, program), (initial, Entry::Command, None), checked, stack(common)))
    }

    /// Loads an interpreter, starting from its prepared state.
    pub(crate) async fn of_language(common: &Common, language: Language, spec: Spec) -> Result<Self> {
        let checked = CheckedSpec::new(spec)?;
        let allowed = checked.spec.limits().wall_time;
        let prepared = common.loader.interpreter(language, checked.policy.is_metered(), allowed).await?;
        let program = (Arc::clone(&prepared.engine), Arc::clone(&prepared.program));
        let initial = (prepared.initial.clone(), prepared.entry.clone(), Some(prepared.passed));
        Ok(Self::new(program, initial, checked, stack(common)))
    }

    fn new(
        (engine, program): (Arc<WasmEngine>, Arc<Program>),
        (initial, entry, passed): (Frozen, Entry, Option<u64>),
        CheckedSpec { policy, spec, posture }: CheckedSpec,
        stack: usize,
    ) -> Self {
        let no_files = Arc::new(Mutex::new(Tree::new(None, Arc::new(Account::new(None)))));
        let spare = Mutex::default();
        Self {
            engine,
            program,
            initial,
            entry,
            passed,
            policy,
            spec,
            posture,
            stack,
            spare,
            no_files,
            default_request: default_request(),
        }
    }

    /// Returns the posture of each run.
    pub fn posture(&self) -> &Posture {
        &self.posture
    }

    /// Runs `work` on a new thread whose stack is large enough for guests, and waits for it.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if no thread can be started; `Internal` if `work` panics.
    pub fn on_runner<T: Send>(&self, work: impl FnOnce(&Runner<'_>) -> T + Send) -> Result<T> {
        let thread = std::thread::Builder::new().name("wasm-runner".to_owned());
        std::thread::scope(|scope| {
            let run = || {
                let here = 0u8;
                let top = std::ptr::from_ref(&here).addr();
                work(&Runner { loaded: self, top, _here: PhantomData })
            };
            let thread = thread.stack_size(self.stack + CALLER_STACK + CALLER_STACK).spawn_scoped(scope, run);
            let no_thread = |error| {
                Error::new(ErrorKind::ResourceExhausted, "run", "cannot start the guest thread").with_source(error)
            };
            let failed = |_| Error::new(ErrorKind::Internal, "run", "the work on the guest thread panicked");
            thread.map_err(no_thread)?.join().map_err(failed)
        })
    }
}

/// A thread that guests can run on. It cannot be moved to another thread.
#[derive(Debug)]
pub struct Runner<'a> {
    loaded: &'a Loaded,
    /// The approximate address of the base of this thread's stack.
    top: usize,
    _here: PhantomData<*const ()>,
}

impl Runner<'_> {
    /// Runs the program in a new instance until it ends; blocks the thread. Runs see nothing of each other.
    ///
    /// # Errors
    ///
    /// A guest's failure is an exit, not an error. `ResourceExhausted` if the guest could not be set up.
    pub fn run(&self, call: &Call) -> Result<Completed> {
        let here = 0u8;
        if self.top.abs_diff(std::ptr::from_ref(&here).addr()) > CALLER_STACK {
            return Err(Error::invalid("run", "too little of this thread's stack is left for a guest"));
        }
        let Loaded { engine, program, initial, entry, policy, spec, .. } = self.loaded;
        let started = Instant::now();
        let account = memory_account(spec);
        let ticking = engine.tick().map_err(|error| {
            Error::new(ErrorKind::ResourceExhausted, "run", "cannot start the clock thread").with_source(error)
        })?;
        let host = self.loaded.host(call, &account, started)?;
        let mut guest = match self.loaded.take_spare() {
            Some(mut guest) => {
                if !guest.attach(host) {
                    let what = "the guest does not fit into its memory limit";
                    return Err(Error::new(ErrorKind::ResourceExhausted, "run", what));
                }
                guest
            }
            None => {
                let mut guest = Guest::new(engine, program, host);
                // A guest that exceeds the limit fails again, with an error, when it runs.
                let _ = guest.instantiate_reusable(initial, entry);
                guest
            }
        };
        let termination = guest.run(*policy, initial, entry);
        drop(ticking);
        let (host, guest) = guest.reset(Host::idle(&self.loaded.no_files));
        if let Some(guest) = guest {
            self.loaded.return_spare(guest);
        }
        completed(host, termination, started, &account)
    }
}

impl Loaded {
    fn take_spare(&self) -> Option<Guest> {
        self.spare.lock().pop()
    }

    fn return_spare(&self, guest: Guest) {
        let mut spare = self.spare.lock();
        if spare.len() < MAX_SPARE {
            spare.push(guest);
        }
    }

    fn host(&self, call: &Call, account: &Arc<Account>, started: Instant) -> Result<Host> {
        let Self { policy, spec, .. } = self;
        call.check()?;
        let files = Files::new(spec, *policy, account)?;
        let limits = spec.limits();
        let allowed = call.timeout.map_or(limits.wall_time, |timeout| timeout.min(limits.wall_time));
        let (env, request) = match self.passed {
            None => (call.variables().collect(), None),
            Some(_) => (Vec::new(), Some(call.request(&self.default_request))),
        };
        let parts = HostParts {
            args: call.args.clone(),
            env,
            preopens: files.preopens(spec.workspace().access(), files.workspace),
            files: files.tree,
            clock: guest::clock(*policy, self.passed.unwrap_or_default()),
            random: guest::random(*policy),
            limiter: Limiter::new(Arc::clone(account)),
            run: Run {
                control: Arc::new(GuestControl::default()),
                input: Input::Given(call.stdin.clone()),
                output: Output::collected(call.max_output.map_or(1 << 20, ByteSize::as_bytes), started),
                deadline: started + allowed,
                cpu_limit: limits.cpu_time,
                request,
            },
        };
        let mut host = Host::new(parts).map_err(|error| error.into_error("run", "/workspace"))?;
        host.egress = Rules::of(spec.network())?.map(Egress::new);
        Ok(host)
    }
}

fn stack(common: &Common) -> usize {
    usize::try_from(common.config.stack.as_bytes()).unwrap_or(usize::MAX)
}

/// Returns the encoded request of a call with default arguments and environment, without the source.
fn default_request() -> Bytes {
    languages::request(Mode::Script, WORKSPACE_PATH, &["main".to_owned()], &plain_environment(), &[])
}

impl Call {
    /// Encodes the request for an interpreter. Variables of the call follow those of the base environment.
    fn request(&self, default_request: &[u8]) -> Bytes {
        if self.args.is_empty() && self.env.is_empty() {
            return [default_request, &self.source].concat().into();
        }
        let mut env = plain_environment();
        env.extend(self.variables());
        let unnamed = ["main".to_owned()];
        let args = if self.args.is_empty() { &unnamed[..] } else { &self.args[..] };
        languages::request(Mode::Script, WORKSPACE_PATH, args, &env, &self.source)
    }

    /// Rejects NUL, which terminates the fields of a request, and invalid variable names.
    fn check(&self) -> Result<()> {
        let names = self.env.iter().any(|(name, _)| name.is_empty() || name.contains(['=', '\0']));
        if names || self.args.iter().chain(self.env.iter().map(|(_, value)| value)).any(|word| word.contains('\0')) {
            return Err(Error::invalid("run", "an argument or value contains NUL, or a variable name is invalid"));
        }
        Ok(())
    }

    fn variables(&self) -> impl Iterator<Item = String> {
        self.env.iter().map(|(name, value)| format!("{name}={value}"))
    }
}

fn completed(
    mut host: Host,
    termination: Result<Termination>,
    started: Instant,
    account: &Account,
) -> Result<Completed> {
    if let Some(message) = guest::trap_message(&termination) {
        host.output.write(cofferdam_contract::OutputStream::Stderr, &message);
    }
    if let Some(egress) = &host.egress {
        host.output.write(cofferdam_contract::OutputStream::Stderr, egress.refusals().as_bytes());
    }
    let Collected { stdout, stderr, seen, truncated } = host.output.collect();
    let usage =
        Usage { cpu_seconds: host.cpu().as_secs_f64(), peak_memory_bytes: Some(account.peak()), output_bytes: seen };
    let exit = guest::exit(termination?, host.limits_hit(), started, usage);
    Ok(Completed { exit: cofferdam_contract::Exit { truncated, ..exit }, stdout, stderr })
}
