//! Runs without a sandbox around them: one call, on the caller's own thread, with files that live as long as it.
//!
//! For plugins and snippets that come by the thousand: no thread is made, nothing is handed from one to another. The
//! limits are those of a spec, and hold as they do for execs.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{
    ByteSize, Completed, Error, ErrorKind, Posture, Result, Spec, Usage, WORKSPACE_PATH, Workspace,
};

use crate::account::Account;
use crate::command::plain_environment;
use crate::ending::Ending;
use crate::engine::Machine;
use crate::fs::Tree;
use crate::guest::{self, Guest};
use crate::languages::{self, Mode, Warm};
use crate::leash::{Input, Leash};
use crate::limiter::Limiter;
use crate::network::{Egress, Rules};
use crate::output::{Collected, Output};
use crate::policy::Policy;
use crate::program::{Entry, Frozen, Program};
use crate::state::Files;
use crate::wasi::{Host, HostParts, Run};

/// Stack for the host's part of a runner's thread, and for what its owner does there.
const OWNERS_STACK: usize = 1 << 20;

/// What one run is given.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// Arguments, the program's name first.
    pub args: Vec<String>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// Standard input.
    pub stdin: Bytes,
    /// What an interpreter is to run. Of no use to a module.
    pub source: Bytes,
    /// Real time that it may take; `None` is the spec's.
    pub timeout: Option<Duration>,
    /// The most output that is kept, in bytes of both streams together. `None` is 1 MiB.
    pub max_output: Option<ByteSize>,
}

/// Under which terms a program runs.
pub(crate) struct Terms {
    policy: Policy,
    spec: Spec,
    posture: Posture,
}

impl Terms {
    /// Refused where it would be weaker than asked.
    pub(crate) fn new(spec: Spec) -> Result<Self> {
        let policy = Policy::of(&spec)?;
        crate::preopens::refuse_named(&spec)?;
        if matches!(spec.workspace(), Workspace::HostDir { .. }) {
            return Err(Error::unsupported("load", "a direct run begins with no files")
                .with_remedy("use a sandbox or a session, or give the files as input"));
        }
        let posture = crate::posture::posture(&spec);
        posture.require(spec.allow_weaker())?;
        Ok(Self { policy, spec, posture })
    }

    pub(crate) fn spec(&self) -> &Spec {
        &self.spec
    }

    pub(crate) fn is_metered(&self) -> bool {
        self.policy.is_metered()
    }
}

/// A program that is loaded once and run many times, each time in an instance of its own from the same beginning.
pub struct Loaded {
    machine: Arc<Machine>,
    program: Arc<Program>,
    beginning: Frozen,
    entry: Entry,
    /// Nanoseconds that an interpreter's clock has seen; `None` for a module.
    passed: Option<u64>,
    policy: Policy,
    spec: Spec,
    posture: Posture,
    stack: usize,
    /// Guests that wait to be used again, each as it was before anything of it ran.
    spare: Mutex<Vec<Guest>>,
    /// What guests that wait see.
    no_files: Arc<Mutex<Tree>>,
    /// How a usual request begins.
    usual: Bytes,
}

/// Guests that wait, at most: as many as there are threads to run them is plenty.
const MAX_SPARE: usize = 64;

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Loaded {
    /// A command, from its beginning.
    pub(crate) fn of_module(machine: Arc<Machine>, program: Arc<Program>, terms: Terms, stack: usize) -> Self {
        let beginning = program.beginning().clone();
        Self::new((machine, program), (beginning, Entry::Command, None), terms, stack)
    }

    /// An interpreter, from where it waits.
    pub(crate) fn of_language(warm: &Warm, terms: Terms, stack: usize) -> Self {
        let program = (Arc::clone(&warm.machine), Arc::clone(&warm.program));
        Self::new(program, (warm.beginning.clone(), warm.entry.clone(), Some(warm.passed)), terms, stack)
    }

    fn new(
        (machine, program): (Arc<Machine>, Arc<Program>),
        (beginning, entry, passed): (Frozen, Entry, Option<u64>),
        Terms { policy, spec, posture }: Terms,
        stack: usize,
    ) -> Self {
        let no_files = Arc::new(Mutex::new(Tree::new(None, Arc::new(Account::new(None)))));
        let spare = Mutex::default();
        Self {
            machine,
            program,
            beginning,
            entry,
            passed,
            policy,
            spec,
            posture,
            stack,
            spare,
            no_files,
            usual: usual_request(),
        }
    }

    /// What holds for each run.
    pub fn posture(&self) -> &Posture {
        &self.posture
    }

    /// Has `work` done on a thread whose stack is large enough for guests, and waits for it.
    ///
    /// # Errors
    ///
    /// If there is no thread to be had, or `work` panics.
    pub fn on_runner<T: Send>(&self, work: impl FnOnce(&Runner<'_>) -> T + Send) -> Result<T> {
        let thread = std::thread::Builder::new().name("wasm-runner".to_owned());
        std::thread::scope(|scope| {
            let run = || {
                let here = 0u8;
                let top = std::ptr::from_ref(&here).addr();
                work(&Runner { loaded: self, top, _here: PhantomData })
            };
            let thread = thread.stack_size(self.stack + OWNERS_STACK + OWNERS_STACK).spawn_scoped(scope, run);
            let no_thread =
                |error| Error::new(ErrorKind::ResourceExhausted, "run", "no thread for the guest").with_source(error);
            let failed = |_| Error::new(ErrorKind::Internal, "run", "the work on the guest's thread failed");
            thread.map_err(no_thread)?.join().map_err(failed)
        })
    }
}

/// A thread that guests can run on. It stays where it is.
#[derive(Debug)]
pub struct Runner<'a> {
    loaded: &'a Loaded,
    /// Where this thread's stack began, about.
    top: usize,
    _here: PhantomData<*const ()>,
}

impl Runner<'_> {
    /// Runs the program in a new instance until it ends; blocks the thread. Nothing of another run is visible to it, and
    /// nothing of it to any other.
    ///
    /// # Errors
    ///
    /// What a guest does is an exit, not an error. `ResourceExhausted` if it could not be set up.
    pub fn run(&self, call: &Call) -> Result<Completed> {
        let here = 0u8;
        if self.top.abs_diff(std::ptr::from_ref(&here).addr()) > OWNERS_STACK {
            return Err(Error::invalid("run", "this thread's stack is used too far for a guest"));
        }
        let Loaded { machine, program, beginning, entry, policy, spec, .. } = self.loaded;
        let started = Instant::now();
        let account = Arc::new(Account::new(spec.limits().memory.map(|limit| limit.as_bytes())));
        let ticking = machine.tick().map_err(|error| {
            Error::new(ErrorKind::ResourceExhausted, "run", "no thread for the clock").with_source(error)
        })?;
        let host = self.loaded.host(call, &account, started)?;
        let mut guest = match self.loaded.spare() {
            Some(mut guest) => {
                if !guest.adopt(host) {
                    let what = "the guest does not fit into its memory limit";
                    return Err(Error::new(ErrorKind::ResourceExhausted, "run", what));
                }
                guest
            }
            None => {
                let mut guest = Guest::new(machine, program, host);
                // What does not fit is found again, and told, when it is run.
                let _ = guest.make_to_last(beginning, entry);
                guest
            }
        };
        let ending = guest.run(*policy, beginning, entry);
        drop(ticking);
        let (host, guest) = guest.renewed(Host::nobody(&self.loaded.no_files));
        if let Some(guest) = guest {
            self.loaded.keep(guest);
        }
        completed(host, ending, started, &account)
    }
}

impl Loaded {
    fn spare(&self) -> Option<Guest> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn keep(&self, guest: Guest) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
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
            Some(_) => (Vec::new(), Some(call.request(&self.usual))),
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
                leash: Arc::new(Leash::default()),
                input: Input::Given(call.stdin.clone()),
                output: Output::kept(call.max_output.map_or(1 << 20, ByteSize::as_bytes), started),
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

/// What an interpreter is told by a call that says nothing but the source, without the source.
fn usual_request() -> Bytes {
    languages::request(Mode::Script, WORKSPACE_PATH, &["main".to_owned()], &plain_environment(), &[])
}

impl Call {
    /// What an interpreter is told. Variables of the call come after those that every guest has.
    fn request(&self, usual: &[u8]) -> Bytes {
        if self.args.is_empty() && self.env.is_empty() {
            return [usual, &self.source].concat().into();
        }
        let mut env = plain_environment();
        env.extend(self.variables());
        let unnamed = ["main".to_owned()];
        let args = if self.args.is_empty() { &unnamed[..] } else { &self.args[..] };
        languages::request(Mode::Script, WORKSPACE_PATH, args, &env, &self.source)
    }

    /// What a guest is told ends its words with NUL.
    fn check(&self) -> Result<()> {
        let names = self.env.iter().any(|(name, _)| name.is_empty() || name.contains(['=', '\0']));
        if names || self.args.iter().chain(self.env.iter().map(|(_, value)| value)).any(|word| word.contains('\0')) {
            return Err(Error::invalid("run", "a word has NUL in it, or a variable has no good name"));
        }
        Ok(())
    }

    fn variables(&self) -> impl Iterator<Item = String> {
        self.env.iter().map(|(name, value)| format!("{name}={value}"))
    }
}

fn completed(mut host: Host, ending: Result<Ending>, started: Instant, account: &Account) -> Result<Completed> {
    if let Some(words) = guest::last_words(&ending) {
        host.output.write(cofferdam_contract::OutputStream::Stderr, &words);
    }
    if let Some(egress) = &host.egress {
        host.output.write(cofferdam_contract::OutputStream::Stderr, egress.last_words().as_bytes());
    }
    let Collected { stdout, stderr, seen, truncated } = host.output.collect();
    let usage =
        Usage { cpu_seconds: host.cpu().as_secs_f64(), peak_memory_bytes: Some(account.peak()), output_bytes: seen };
    let exit = guest::exit(ending?, host.limits_hit(), started, usage);
    Ok(Completed { exit: cofferdam_contract::Exit { truncated, ..exit }, stdout, stderr })
}
