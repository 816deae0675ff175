//! What the host keeps for one exec, and what ends it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{Access, LimitKind};
use wasmtime::Memory as WasmMemory;

use super::descriptors::{Descriptor, Descriptors, OpenDirectory};
use super::memory::Memory;
use crate::account::Account;
use crate::component::Resources;
use crate::ending::Ending;
use crate::fs::{Base, FsError, FsResult, Ino, Tree};
use crate::leash::{Input, Leash};
use crate::limiter::Limiter;
use crate::network::{Connection, Egress, Interest, Waker, await_any};
use crate::output::Output;
use crate::time::{Clock, Random, thread_cpu};

/// A directory that a guest begins with.
#[derive(Debug)]
pub(crate) struct Preopen {
    pub(crate) name: String,
    pub(crate) ino: Ino,
    pub(crate) absolute: Option<String>,
    pub(crate) access: Access,
}

/// What an exec begins with.
#[derive(Debug)]
pub(crate) struct HostParts {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<String>,
    pub(crate) preopens: Vec<Preopen>,
    pub(crate) files: Arc<Mutex<Tree>>,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) limiter: Limiter,
    pub(crate) run: Run,
}

/// What one run has for itself: an exec is one, a session many.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) leash: Arc<Leash>,
    pub(crate) input: Input,
    pub(crate) output: Output,
    pub(crate) deadline: Instant,
    pub(crate) cpu_limit: Option<Duration>,
    /// What a warm interpreter is to do.
    pub(crate) request: Option<Bytes>,
}

impl Run {
    /// Nothing, until there is something to run.
    pub(crate) fn none() -> Self {
        Self {
            leash: Arc::default(),
            input: Input::Given(Bytes::new()),
            output: Output::nowhere(),
            deadline: Instant::now(),
            cpu_limit: None,
            request: None,
        }
    }
}

/// What the host keeps for one exec.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<String>,
    pub(super) files: Arc<Mutex<Tree>>,
    pub(crate) descriptors: Descriptors,
    pub(super) leash: Arc<Leash>,
    pub(super) input: Input,
    pub(crate) output: Output,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) limiter: Limiter,
    pub(super) request: Option<Bytes>,
    /// What a warm interpreter answered.
    pub(crate) status: Option<u8>,
    /// Whether the guest is an interpreter that is made ready, and may ask for the descriptor of requests.
    pub(super) warming: bool,
    deadline: Instant,
    cpu_limit: Option<Duration>,
    cpu_before: Duration,
    limits_hit: BTreeSet<LimitKind>,
    pub(crate) memory: Option<WasmMemory>,
    /// What a component holds of the host.
    pub(crate) resources: Resources,
    /// What a component reaches of the network.
    pub(crate) egress: Option<Egress>,
}

impl Host {
    /// Must be called on the thread that the guest will run on, whose processor time is the guest's.
    pub(crate) fn new(parts: HostParts) -> FsResult<Self> {
        let HostParts { args, env, preopens, files, clock, random, limiter, run } = parts;
        let Run { leash, input, output, deadline, cpu_limit, request } = run;
        let mut host = Self {
            args,
            env,
            files,
            descriptors: Descriptors::new(),
            leash,
            input,
            output,
            clock,
            random,
            limiter,
            request,
            status: None,
            warming: false,
            deadline,
            cpu_limit,
            cpu_before: thread_cpu(),
            limits_hit: BTreeSet::new(),
            memory: None,
            resources: Resources::default(),
            egress: None,
        };
        for Preopen { name, ino, absolute, access } in preopens {
            lock(&host.files).hold(ino)?;
            let directory =
                OpenDirectory { ino, preopen: Some(name), name: absolute, writable: access == Access::ReadWrite };
            // There are a few, and room for many.
            let _ = host.descriptors.add(Descriptor::Directory(directory));
        }
        Ok(host)
    }

    /// For a guest that nobody runs.
    pub(crate) fn nobody(no_files: &Arc<Mutex<Tree>>) -> Self {
        let Run { leash, input, output, deadline, cpu_limit, request } = Run::none();
        Self {
            args: Vec::new(),
            env: Vec::new(),
            files: Arc::clone(no_files),
            descriptors: Descriptors::none(),
            leash,
            input,
            output,
            clock: Clock::made_up(0),
            random: Random::Seeded(0),
            limiter: Limiter::new(Arc::new(Account::new(Some(0)))),
            request,
            status: None,
            warming: false,
            deadline,
            cpu_limit,
            cpu_before: Duration::ZERO,
            limits_hit: BTreeSet::new(),
            memory: None,
            resources: Resources::default(),
            egress: None,
        }
    }

    /// For an interpreter that is made ready.
    pub(crate) fn for_warming(mut self) -> Self {
        self.warming = true;
        self
    }

    /// Takes these for its descriptors, which hold their nodes already.
    pub(crate) fn replace_descriptors(&mut self, descriptors: Descriptors) {
        let before = std::mem::replace(&mut self.descriptors, descriptors);
        let mut tree = lock(&self.files);
        before.all().iter().flatten().filter_map(Descriptor::ino).for_each(|ino| tree.let_go(ino));
    }

    /// Begins another run, on the thread that the guest will run on.
    pub(crate) fn renew(&mut self, run: Run) {
        let Run { leash, input, output, deadline, cpu_limit, request } = run;
        self.leash.stop_reading();
        (self.leash, self.input, self.output) = (leash, input, output);
        (self.deadline, self.cpu_limit, self.request) = (deadline, cpu_limit, request);
        self.status = None;
        self.cpu_before = thread_cpu();
        self.limits_hit.clear();
        self.limiter.renew();
    }

    /// Processor time used so far.
    pub(crate) fn cpu(&self) -> Duration {
        thread_cpu().saturating_sub(self.cpu_before)
    }

    /// Asked again and again: whether the guest may go on.
    pub(crate) fn check(&mut self) -> Result<(), Ending> {
        let now = Instant::now();
        if self.output.due().is_some_and(|due| due <= now) {
            self.output.flush();
        }
        if let Some(ending) = self.leash.ordered() {
            return Err(ending);
        }
        if now >= self.deadline {
            return Err(Ending::TimedOut);
        }
        match self.cpu_limit {
            Some(limit) if self.cpu() >= limit => Err(Ending::Limit(LimitKind::Cpu)),
            _ => Ok(()),
        }
    }

    /// Waits until `until` or, if that is wanted, until there is input.
    pub(super) fn wait(&mut self, until: Option<Instant>, input: bool) -> Result<(), Ending> {
        let until = until.map_or(self.deadline, |until| until.min(self.deadline));
        if let Some(due) = self.output.due() {
            self.leash.wait(due.min(until), input);
            if due <= Instant::now() {
                self.output.flush();
            }
        }
        self.leash.wait(until, input);
        self.check()
    }

    /// The same for connections, and for what the waker is told of.
    pub(crate) fn wait_for_connections(
        &mut self,
        waker: &Waker,
        until: Option<Instant>,
        wanted: &[(&Connection, Interest)],
    ) -> Result<(), Ending> {
        let until = until.into_iter().chain(self.output.due()).fold(self.deadline, Instant::min);
        await_any(waker, wanted, until);
        self.check()
    }

    /// Notes a limit that was in the way.
    pub(super) fn note<T>(&mut self, result: FsResult<T>) -> FsResult<T> {
        match result {
            Err(FsError::Full) => drop(self.limits_hit.insert(LimitKind::Disk)),
            Err(FsError::NoMemory) => drop(self.limits_hit.insert(LimitKind::Memory)),
            _ => {}
        }
        result
    }

    /// Limits at which something was refused.
    pub(crate) fn limits_hit(&self) -> Vec<LimitKind> {
        let mut hit = self.limits_hit.clone();
        if self.limiter.refused() {
            hit.insert(LimitKind::Memory);
        }
        hit.into_iter().collect()
    }

    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.files)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.leash.stop_reading();
        let mut tree = lock(&self.files);
        for ino in self.descriptors.drain().filter_map(|descriptor| descriptor.ino()) {
            tree.let_go(ino);
        }
    }
}

/// A panic while the lock is held would leave a tree that is only out of step with what it charges.
pub(crate) fn lock(files: &Mutex<Tree>) -> MutexGuard<'_, Tree> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One call of a guest.
pub(crate) struct Call<'a> {
    pub(super) host: &'a mut Host,
    pub(super) memory: Memory<'a>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(host: &'a mut Host, memory: &'a mut [u8]) -> Self {
        Self { host, memory: Memory(memory) }
    }
}

impl OpenDirectory {
    pub(crate) fn base(&self) -> Base<'_> {
        Base { ino: self.ino, name: self.name.as_deref() }
    }
}
