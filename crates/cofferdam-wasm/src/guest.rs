//! A guest in its store: made, run, and asked how it ended.

use std::sync::Arc;

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, Exit, LimitKind, Result, Usage};
use std::time::Instant;
use wasmtime::{Instance, Store, Trap, UpdateDeadline};

use crate::component;
use crate::ending::{Ending, SIGKILL, of_trap};
use crate::engine::Machine;
use crate::policy::Policy;
use crate::program::{Entry, Frozen, Known, Made, Program, Value};
use crate::time::{Clock, Random};
use crate::wasi::Host;

/// A guest that runs now, or can go on.
pub(crate) struct Guest {
    pub(crate) store: Store<Host>,
    program: Arc<Program>,
    made: Option<Made>,
    /// What can be used again after this run: what it was before it.
    before: Option<Before>,
    /// What it is entered by, if it is used again.
    known: Option<Known>,
}

/// An instance before anything of it ran.
struct Before {
    globals: Vec<Value>,
    /// Bytes that were charged for it.
    charged: u64,
}

impl Guest {
    /// A store for a guest of `program`, which is not made yet.
    pub(crate) fn new(machine: &Machine, program: &Arc<Program>, host: Host) -> Self {
        let mut store = Store::new(&machine.engine, host);
        store.limiter(|host| &mut host.limiter);
        store.epoch_deadline_callback(|mut context| match context.data_mut().check() {
            Ok(()) => Ok(UpdateDeadline::Continue(1)),
            Err(ending) => Err(wasmtime::Error::new(ending)),
        });
        Self { store, program: Arc::clone(program), made: None, before: None, known: None }
    }

    /// Makes the guest as it is in `from` if it is not made yet, and runs it from `entry` until it ends or returns.
    pub(crate) fn run(&mut self, policy: Policy, from: &Frozen, entry: &Entry) -> Result<Ending> {
        self.store.set_epoch_deadline(1);
        if policy.is_metered() {
            let internal = |error: wasmtime::Error| Error::new(ErrorKind::Internal, "exit", error.to_string());
            self.store.set_fuel(policy.fuel.unwrap_or(u64::MAX)).map_err(internal)?;
        }
        let program = Arc::clone(&self.program);
        let outcome = match program.component() {
            Some(component) => component::run(&mut self.store, component),
            None => match &self.known {
                Some(known) => known.call(&mut self.store),
                None => self.make(from).and_then(|instance| program.call(&mut self.store, &instance, entry)),
            },
        };
        match outcome {
            // An interpreter that served its request has said so, or has ended itself.
            Ok(()) if matches!(entry, Entry::Warm(_)) && self.store.data().status.is_none() => Ok(Ending::Exit(1)),
            Ok(()) => Ok(Ending::Returned),
            Err(error) => self.ending(&error),
        }
    }

    /// The guest, made now if it was not before. Nothing of it has run where it begins anew.
    fn make(&mut self, from: &Frozen) -> wasmtime::Result<Instance> {
        match &self.made {
            Some(made) => Ok(made.instance),
            None => {
                let made = self.program.instantiate(&mut self.store, from)?;
                Ok(self.made.insert(made).instance)
            }
        }
    }

    /// Makes the guest as a snapshot says, whoever wrote that.
    pub(crate) fn make_from_snapshot(&mut self, from: &Frozen) -> Result<()> {
        let Err(error) = self.make(from) else { return Ok(()) };
        if self.store.data().limiter.refused() {
            let what = "the guest of the snapshot does not fit into the memory limit";
            return Err(Error::new(ErrorKind::ResourceExhausted, "restore", what)
                .with_remedy("give the spec as much memory as the guest had"));
        }
        let reason = error.to_string().escape_debug().to_string();
        Err(Error::invalid("restore", "the snapshot was damaged or changed: its guest cannot go on")
            .with_context("reason", reason))
    }

    /// Makes the guest so that it can be used again; call it before anything runs.
    /// It is always entered by `entry` then.
    pub(crate) fn make_to_last(&mut self, from: &Frozen, entry: &Entry) -> wasmtime::Result<()> {
        if self.program.component().is_some() {
            return Ok(());
        }
        self.make(from)?;
        if let Some(made) = self.made.as_ref().filter(|_| self.program.can_be_restored()) {
            let charged = self.store.data().limiter.charged();
            let globals = self.program.values(&mut self.store, made);
            self.before = globals.map(|globals| Before { globals, charged });
            self.known = self.program.known(&mut self.store, &made.instance, entry);
        }
        Ok(())
    }

    /// Makes the guest as it was before anything of it ran, for whoever comes next: memory and globals, which is all that
    /// it can change. `None` if that cannot be done; then it must not be used again.
    ///
    /// What the last run's host knew is gone when this returns.
    pub(crate) fn renewed(mut self, nobody: Host) -> (Host, Option<Self>) {
        let last = std::mem::replace(self.store.data_mut(), nobody);
        let restored = match (&self.before, &self.made) {
            (Some(before), Some(made)) => self.program.restore(&mut self.store, made, &before.globals),
            _ => false,
        };
        (last, restored.then_some(self))
    }

    /// Gives a guest that was renewed a host for its next run. `false` if what it holds does not fit under the limits.
    pub(crate) fn adopt(&mut self, mut host: Host) -> bool {
        let charged = self.before.as_ref().map_or(0, |before| before.charged);
        let fits = host.limiter.charge(charged);
        host.memory = self.made.as_ref().and_then(|made| made.memory);
        *self.store.data_mut() = host;
        fits
    }

    fn ending(&self, error: &wasmtime::Error) -> Result<Ending> {
        let refused = self.store.data().limiter.refused();
        if let Some(ending) = error.downcast_ref::<Ending>() {
            return Ok(*ending);
        }
        match error.downcast_ref::<Trap>() {
            // What a program does when it was refused memory.
            Some(Trap::UnreachableCodeReached) if refused => Ok(Ending::Limit(LimitKind::Memory)),
            Some(trap) => Ok(of_trap(*trap)),
            // The memory or table that it begins with did not fit.
            None if refused => Ok(Ending::Limit(LimitKind::Memory)),
            None => Err(Error::new(ErrorKind::ResourceExhausted, "exit", "the module could not be set up")
                .with_context("reason", error.to_string().escape_debug().to_string())),
        }
    }

    /// The guest as it is now, while nothing of it runs. `None` if it has not begun.
    pub(crate) fn freeze(&mut self) -> Result<Option<Frozen>> {
        self.made.as_ref().map(|made| self.program.freeze(&mut self.store, &made.instance)).transpose()
    }
}

/// The clock of a guest that has seen `passed` nanoseconds go by.
pub(crate) fn clock(policy: Policy, passed: u64) -> Clock {
    if policy.seed.is_some() { Clock::made_up(passed) } else { Clock::real(passed) }
}

pub(crate) fn random(policy: Policy) -> Random {
    policy.seed.map_or(Random::Real, Random::Seeded)
}

/// What is told of a guest that trapped.
pub(crate) fn last_words(ending: &Result<Ending>) -> Option<Bytes> {
    match ending {
        Ok(Ending::Trapped { what, .. }) => Some(format!("wasm trap: {what}\n").into()),
        _ => None,
    }
}

/// How a run ended, as the contract says it.
pub(crate) fn exit(ending: Ending, limits_hit: Vec<LimitKind>, started: Instant, usage: Usage) -> Exit {
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
    match ending {
        Ending::Returned => Exit { code: 0, ..plain },
        Ending::Exit(code) => Exit { code: code.into(), ..plain },
        Ending::Raised(signal) | Ending::Trapped { signal, .. } => Exit { signal: Some(signal), ..plain },
        Ending::Cancelled { signal } => Exit { signal: Some(signal), cancelled: true, ..plain },
        Ending::TimedOut => Exit { signal: Some(SIGKILL), timed_out: true, ..plain },
        Ending::Limit(limit) => Exit { signal: Some(SIGKILL), killed_by: Some(limit), ..plain },
    }
}
