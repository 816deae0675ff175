//! The host's state of one exec, and the checks that end it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{Access, LimitKind};
use parking_lot::{Mutex, MutexGuard};
use wasmtime::Memory as WasmMemory;

use super::descriptors::{Descriptor, Descriptors, OpenDirectory};
use super::memory::Memory;
use super::resources::Resources;
use crate::account::Account;
use crate::fs::{Base, FsError, FsResult, Ino, Tree};
use crate::guest_control::{GuestControl, Input};
use crate::limiter::Limiter;
use crate::network::{Connection, Egress, Interest, Waker, await_any};
use crate::output::Output;
use crate::termination::Termination;
use crate::time::{Clock, Random, thread_cpu};

/// A directory that is opened before a guest starts.
#[derive(Debug)]
pub(crate) struct Preopen {
    pub(crate) name: String,
    pub(crate) ino: Ino,
    pub(crate) absolute: Option<String>,
    pub(crate) access: Access,
}

/// The initial state of an exec.
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

/// The state of one run: an exec has one, a session many.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) control: Arc<GuestControl>,
    pub(crate) input: Input,
    pub(crate) output: Output,
    pub(crate) deadline: Instant,
    pub(crate) cpu_limit: Option<Duration>,
    /// The request for a prepared interpreter.
    pub(crate) request: Option<Bytes>,
}

impl Run {
    /// Returns the state while nothing runs.
    pub(crate) fn idle() -> Self {
        Self {
            control: Arc::default(),
            input: Input::Given(Bytes::new()),
            output: Output::discarded(),
            deadline: Instant::now(),
            cpu_limit: None,
            request: None,
        }
    }
}

/// The host's state of one exec.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<String>,
    pub(super) files: Arc<Mutex<Tree>>,
    pub(crate) descriptors: Descriptors,
    pub(super) control: Arc<GuestControl>,
    pub(super) input: Input,
    pub(crate) output: Output,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) limiter: Limiter,
    pub(super) request: Option<Bytes>,
    /// The status that a prepared interpreter reported.
    pub(crate) status: Option<u8>,
    /// True while an interpreter is being prepared, and may open the request descriptor.
    pub(super) preparing: bool,
    deadline: Instant,
    cpu_limit: Option<Duration>,
    cpu_before: Duration,
    limits_hit: BTreeSet<LimitKind>,
    pub(crate) memory: Option<WasmMemory>,
    /// The host resources of a component.
    pub(crate) resources: Resources,
    /// The network access of a component.
    pub(crate) egress: Option<Egress>,
}

impl Host {
    /// Creates a host. Must be called on the guest's thread, whose processor time counts as the guest's.
    pub(crate) fn new(parts: HostParts) -> FsResult<Self> {
        let HostParts { args, env, preopens, files, clock, random, limiter, run } = parts;
        let Run { control, input, output, deadline, cpu_limit, request } = run;
        let mut host = Self {
            args,
            env,
            files,
            descriptors: Descriptors::new(),
            control,
            input,
            output,
            clock,
            random,
            limiter,
            request,
            status: None,
            preparing: false,
            deadline,
            cpu_limit,
            cpu_before: thread_cpu(),
            limits_hit: BTreeSet::new(),
            memory: None,
            resources: Resources::default(),
            egress: None,
        };
        for Preopen { name, ino, absolute, access } in preopens {
            host.files.lock().acquire(ino)?;
            let directory =
                OpenDirectory { ino, preopen: Some(name), name: absolute, writable: access == Access::ReadWrite };
            // There are only a few, so this cannot fail.
            let _ = host.descriptors.add(Descriptor::Directory(directory));
        }
        Ok(host)
    }

    /// Creates the host of an idle guest.
    pub(crate) fn idle(no_files: &Arc<Mutex<Tree>>) -> Self {
        let Run { control, input, output, deadline, cpu_limit, request } = Run::idle();
        Self {
            args: Vec::new(),
            env: Vec::new(),
            files: Arc::clone(no_files),
            descriptors: Descriptors::none(),
            control,
            input,
            output,
            clock: Clock::deterministic(0),
            random: Random::Seeded(0),
            limiter: Limiter::new(Arc::new(Account::new(Some(0)))),
            request,
            status: None,
            preparing: false,
            deadline,
            cpu_limit,
            cpu_before: Duration::ZERO,
            limits_hit: BTreeSet::new(),
            memory: None,
            resources: Resources::default(),
            egress: None,
        }
    }

    /// Marks the guest as an interpreter that is being prepared.
    pub(crate) fn for_preparation(mut self) -> Self {
        self.preparing = true;
        self
    }

    /// Replaces the descriptors. The new ones have already acquired their nodes.
    pub(crate) fn replace_descriptors(&mut self, descriptors: Descriptors) {
        let before = std::mem::replace(&mut self.descriptors, descriptors);
        let mut tree = self.files.lock();
        before.all().iter().flatten().filter_map(Descriptor::ino).for_each(|ino| tree.release(ino));
    }

    /// Starts another run, on the guest's thread.
    pub(crate) fn start_run(&mut self, run: Run) {
        let Run { control, input, output, deadline, cpu_limit, request } = run;
        self.control.stop_reading();
        (self.control, self.input, self.output) = (control, input, output);
        (self.deadline, self.cpu_limit, self.request) = (deadline, cpu_limit, request);
        self.status = None;
        self.cpu_before = thread_cpu();
        self.limits_hit.clear();
        self.limiter.reset();
    }

    /// Returns the processor time used so far.
    pub(crate) fn cpu(&self) -> Duration {
        thread_cpu().saturating_sub(self.cpu_before)
    }

    /// Checks periodically that the guest may continue.
    pub(crate) fn check(&mut self) -> Result<(), Termination> {
        let now = Instant::now();
        if self.output.flush_time().is_some_and(|time| time <= now) {
            self.output.flush();
        }
        if let Some(termination) = self.control.requested() {
            return Err(termination);
        }
        if now >= self.deadline {
            return Err(Termination::TimedOut);
        }
        match self.cpu_limit {
            Some(limit) if self.cpu() >= limit => Err(Termination::Limit(LimitKind::Cpu)),
            _ => Ok(()),
        }
    }

    /// Waits until `until` or, if `input` is set, until input is available.
    pub(super) fn wait(&mut self, until: Option<Instant>, input: bool) -> Result<(), Termination> {
        let until = until.map_or(self.deadline, |until| until.min(self.deadline));
        if let Some(flush_time) = self.output.flush_time() {
            self.control.wait(flush_time.min(until), input);
            if flush_time <= Instant::now() {
                self.output.flush();
            }
        }
        self.control.wait(until, input);
        self.check()
    }

    /// Waits for connections and for the waker.
    pub(crate) fn wait_for_connections(
        &mut self,
        waker: &Waker,
        until: Option<Instant>,
        wanted: &[(&Connection, Interest)],
    ) -> Result<(), Termination> {
        let until = until.into_iter().chain(self.output.flush_time()).fold(self.deadline, Instant::min);
        await_any(waker, wanted, until);
        self.check()
    }

    /// Records a limit that was reached.
    pub(super) fn note<T>(&mut self, result: FsResult<T>) -> FsResult<T> {
        match result {
            Err(FsError::Full) => drop(self.limits_hit.insert(LimitKind::Disk)),
            Err(FsError::NoMemory) => drop(self.limits_hit.insert(LimitKind::Memory)),
            _ => {}
        }
        result
    }

    /// Returns the limits at which an operation failed.
    pub(crate) fn limits_hit(&self) -> Vec<LimitKind> {
        let mut hit = self.limits_hit.clone();
        if self.limiter.refused() {
            hit.insert(LimitKind::Memory);
        }
        hit.into_iter().collect()
    }

    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.files.lock()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.control.stop_reading();
        let mut tree = self.files.lock();
        for ino in self.descriptors.drain().filter_map(|descriptor| descriptor.ino()) {
            tree.release(ino);
        }
    }
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
