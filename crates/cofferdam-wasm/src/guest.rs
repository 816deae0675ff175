//! A guest in its store: instantiation, runs, and termination.

use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, Exit, LimitKind, Result, Usage};
use std::time::Instant;
use wasmtime::{Instance, Store, Trap, UpdateDeadline};

use crate::component;
use crate::engine::WasmEngine;
use crate::policy::Policy;
use crate::program::{Entry, Frozen, Instantiated, Program, ResolvedEntry, Value};
use crate::termination::{SIGKILL, Termination, termination_of_trap};
use crate::time::{Clock, Random};
use crate::wasi::Host;

/// A guest that is running or can continue.
pub(crate) struct Guest {
    pub(crate) store: Store<Host>,
    program: Arc<Program>,
    instantiated: Option<Instantiated>,
    /// The initial state, if the guest can be reset after this run.
    baseline: Option<Baseline>,
    /// The resolved entry, if the guest can be reset.
    resolved_entry: Option<ResolvedEntry>,
}

/// The state of an instance before it ran.
struct Baseline {
    globals: Vec<Value>,
    /// Bytes that were charged for it.
    charged: u64,
}

impl Guest {
    /// Creates a store for a guest of `program`. The guest is instantiated later.
    pub(crate) fn new(engine: &WasmEngine, program: &Arc<Program>, host: Host) -> Self {
        let mut store = Store::new(&engine.inner, host);
        store.limiter(|host| &mut host.limiter);
        store.epoch_deadline_callback(|mut context| match context.data_mut().check() {
            Ok(()) => Ok(UpdateDeadline::Continue(1)),
            Err(termination) => Err(wasmtime::Error::new(termination)),
        });
        Self { store, program: Arc::clone(program), instantiated: None, baseline: None, resolved_entry: None }
    }

    /// Instantiates the guest from `from` if necessary, and runs it from `entry` until it ends or returns.
    pub(crate) fn run(&mut self, policy: Policy, from: &Frozen, entry: &Entry) -> Result<Termination> {
        self.store.set_epoch_deadline(1);
        if policy.is_metered() {
            let internal = |error: wasmtime::Error| Error::new(ErrorKind::Internal, "exit", error.to_string());
            self.store.set_fuel(policy.fuel.unwrap_or(u64::MAX)).map_err(internal)?;
        }
        let program = Arc::clone(&self.program);
        let outcome = match program.component() {
            Some(component) => component::run(&mut self.store, component),
            None => match &self.resolved_entry {
                Some(resolved_entry) => resolved_entry.call(&mut self.store),
                None => self.instance(from).and_then(|instance| program.call(&mut self.store, &instance, entry)),
            },
        };
        match outcome {
            // An interpreter that served its request has reported a status or has exited.
            Ok(()) if matches!(entry, Entry::Prepared(_)) && self.store.data().status.is_none() => {
                Ok(Termination::Exit(1))
            }
            Ok(()) => Ok(Termination::Returned),
            Err(error) => self.termination(&error),
        }
    }

    /// Returns the guest's instance, and creates it if necessary. A new instance has run no code.
    fn instance(&mut self, from: &Frozen) -> wasmtime::Result<Instance> {
        match &self.instantiated {
            Some(instantiated) => Ok(instantiated.instance),
            None => {
                let instantiated = self.program.instantiate(&mut self.store, from)?;
                Ok(self.instantiated.insert(instantiated).instance)
            }
        }
    }

    /// Instantiates the guest from an untrusted snapshot.
    pub(crate) fn instantiate_snapshot(&mut self, from: &Frozen) -> Result<()> {
        let Err(error) = self.instance(from) else { return Ok(()) };
        if self.store.data().limiter.refused() {
            let what = "the guest of the snapshot exceeds the memory limit";
            return Err(Error::new(ErrorKind::ResourceExhausted, "restore", what)
                .with_remedy("give the spec as much memory as the guest had"));
        }
        let reason = error.to_string().escape_debug().to_string();
        Err(Error::invalid("restore", "cannot resume the guest: the snapshot is damaged or was changed")
            .with_context("reason", reason))
    }

    /// Instantiates the guest so that it can be reset later. Must be called before anything runs. From then on the
    /// guest is always entered by `entry`.
    pub(crate) fn instantiate_reusable(&mut self, from: &Frozen, entry: &Entry) -> wasmtime::Result<()> {
        if self.program.component().is_some() {
            return Ok(());
        }
        self.instance(from)?;
        if let Some(instantiated) = self.instantiated.as_ref().filter(|_| self.program.can_be_restored()) {
            let charged = self.store.data().limiter.charged();
            let globals = self.program.values(&mut self.store, instantiated);
            self.baseline = globals.map(|globals| Baseline { globals, charged });
            self.resolved_entry = self.program.resolve_entry(&mut self.store, &instantiated.instance, entry);
        }
        Ok(())
    }

    /// Resets the guest to its initial state: memory and globals, which are all that it can change. Returns `None` if
    /// the guest cannot be reset; then it must not be used again.
    ///
    /// The last run's host is removed from the guest when this returns.
    pub(crate) fn reset(mut self, idle_host: Host) -> (Host, Option<Self>) {
        let last = std::mem::replace(self.store.data_mut(), idle_host);
        let restored = match (&self.baseline, &self.instantiated) {
            (Some(baseline), Some(instantiated)) => {
                self.program.restore(&mut self.store, instantiated, &baseline.globals)
            }
            _ => false,
        };
        (last, restored.then_some(self))
    }

    /// Attaches a host to a guest that was reset, for its next run. Returns `false` if the guest exceeds the limits.
    pub(crate) fn attach(&mut self, mut host: Host) -> bool {
        let charged = self.baseline.as_ref().map_or(0, |baseline| baseline.charged);
        let within_limits = host.limiter.charge(charged);
        host.memory = self.instantiated.as_ref().and_then(|instantiated| instantiated.memory);
        *self.store.data_mut() = host;
        within_limits
    }

    fn termination(&self, error: &wasmtime::Error) -> Result<Termination> {
        let refused = self.store.data().limiter.refused();
        if let Some(termination) = error.downcast_ref::<Termination>() {
            return Ok(*termination);
        }
        match error.downcast_ref::<Trap>() {
            // Programs usually trap in this way if an allocation fails.
            Some(Trap::UnreachableCodeReached) if refused => Ok(Termination::Limit(LimitKind::Memory)),
            Some(trap) => Ok(termination_of_trap(*trap)),
            // The initial memory or table exceeded the limit.
            None if refused => Ok(Termination::Limit(LimitKind::Memory)),
            None => Err(Error::new(ErrorKind::ResourceExhausted, "exit", "cannot instantiate the module")
                .with_context("reason", error.to_string().escape_debug().to_string())),
        }
    }

    /// Freezes the guest while it is not running. Returns `None` if it was not instantiated.
    pub(crate) fn freeze(&mut self) -> Result<Option<Frozen>> {
        self.instantiated
            .as_ref()
            .map(|instantiated| self.program.freeze(&mut self.store, &instantiated.instance))
            .transpose()
    }
}

/// Creates the clock of a guest for which `passed` nanoseconds have elapsed.
pub(crate) fn clock(policy: Policy, passed: u64) -> Clock {
    if policy.seed.is_some() { Clock::deterministic(passed) } else { Clock::real(passed) }
}

pub(crate) fn random(policy: Policy) -> Random {
    policy.seed.map_or(Random::Real, Random::Seeded)
}

/// Returns the message about a trap, for standard error.
pub(crate) fn trap_message(termination: &Result<Termination>) -> Option<Bytes> {
    match termination {
        Ok(Termination::Trapped { what, .. }) => Some(format!("wasm trap: {what}\n").into()),
        _ => None,
    }
}

/// Converts a termination to the contract's exit.
pub(crate) fn exit(termination: Termination, limits_hit: Vec<LimitKind>, started: Instant, usage: Usage) -> Exit {
    let plain = Exit {
        code: -1,
        signal: None,
        timed_out: false,
        cancelled: false,
        truncated: false,
        killed_by: None,
        limits_hit,
        duration: started.elapsed(),
        usage,
    };
    match termination {
        Termination::Returned => Exit { code: 0, ..plain },
        Termination::Exit(code) => Exit { code: code.into(), ..plain },
        Termination::Raised(signal) | Termination::Trapped { signal, .. } => Exit { signal: Some(signal), ..plain },
        Termination::Cancelled { signal } => Exit { signal: Some(signal), cancelled: true, ..plain },
        Termination::TimedOut => Exit { signal: Some(SIGKILL), timed_out: true, ..plain },
        Termination::Limit(limit) => Exit { signal: Some(SIGKILL), killed_by: Some(limit), ..plain },
    }
}
