//! State that a sandbox's execs and its callers share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Posture, Result, SandboxId, Spec};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, watch};

use crate::host::SimulatedHost;
use crate::tree::Tree;

/// An external event for a running exec.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Signal {
    /// SIGTERM, then SIGKILL.
    Cancel(Duration),
    /// SIGKILL on behalf of the caller.
    Kill,
    /// SIGINT from the terminal.
    Interrupt,
    /// Loss of the sandbox.
    Lose,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) memory: u64,
    pub(crate) peak_memory: u64,
    pub(crate) processes: u32,
    pub(crate) cpu: Duration,
    pub(crate) closed: bool,
    pub(crate) lost: bool,
    pub(crate) next_exec: u64,
    pub(crate) execs: BTreeMap<u64, mpsc::UnboundedSender<Signal>>,
}

/// The state of one sandbox that its execs share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: SandboxId,
    pub(crate) spec: Spec,
    pub(crate) posture: Posture,
    pub(crate) host: Arc<SimulatedHost>,
    state: Mutex<State>,
    /// The number of live execs.
    alive: watch::Sender<usize>,
    /// True while programs are paused.
    paused: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(id: SandboxId, spec: Spec, posture: Posture, tree: Tree, host: Arc<SimulatedHost>) -> Self {
        host.living().insert(id.clone());
        let state = State {
            tree,
            memory: 0,
            peak_memory: 0,
            processes: 0,
            cpu: Duration::ZERO,
            closed: false,
            lost: false,
            next_exec: 1,
            execs: BTreeMap::new(),
        };
        Self {
            id,
            spec,
            posture,
            host,
            state: Mutex::new(state),
            alive: watch::Sender::new(0),
            paused: watch::Sender::new(false),
        }
    }

    /// Applies the spec of the claim. No exec has run in the sandbox, and its workspace is unchanged.
    pub(crate) fn apply_claim(&mut self, posture: Posture, disk: Option<u64>, spec: Spec) {
        let state = self.state.get_mut();
        state.tree = Tree::new(disk);
        (self.spec, self.posture) = (spec, posture);
    }

    /// Returns the state, even of a sandbox that is closed or lost.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the state of a usable sandbox.
    pub(crate) fn open(&self, operation: &'static str) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.closed {
            return Err(Error::closed(operation));
        }
        if state.lost {
            return Err(Error::new(ErrorKind::Unavailable, operation, "the sandbox was lost"));
        }
        Ok(state)
    }

    /// Returns the state of a sandbox that is usable and not paused.
    pub(crate) fn active(&self, operation: &'static str) -> Result<MutexGuard<'_, State>> {
        let state = self.open(operation)?;
        if *self.paused.borrow() {
            return Err(
                Error::new(ErrorKind::Conflict, operation, "the sandbox is paused").with_remedy("resume it first")
            );
        }
        Ok(state)
    }

    /// Pauses or resumes programs.
    pub(crate) fn set_paused(&self, operation: &'static str, paused: bool) -> Result<()> {
        let _state = self.open(operation)?;
        self.paused.send_replace(paused);
        Ok(())
    }

    /// Returns a watch of the paused state.
    pub(crate) fn paused(&self) -> watch::Receiver<bool> {
        self.paused.subscribe()
    }

    /// Registers an exec. It counts as one process.
    pub(crate) fn enter(&self, sender: mpsc::UnboundedSender<Signal>) -> Result<u64> {
        let mut state = self.active("start")?;
        if !self.capable_of_many() && !state.execs.is_empty() {
            return Err(Error::unsupported("start", "this backend runs one exec at a time in a sandbox"));
        }
        if self.spec.limits().single_threaded_processes().is_some_and(|limit| state.processes >= limit) {
            return Err(Error::new(ErrorKind::ResourceExhausted, "start", "the limit on processes is reached"));
        }
        let id = state.next_exec;
        state.next_exec += 1;
        state.processes += 1;
        state.execs.insert(id, sender);
        self.alive.send_modify(|count| *count += 1);
        Ok(id)
    }

    fn capable_of_many(&self) -> bool {
        self.host.config.capabilities.contains(&cofferdam_contract::Capability::MultipleExecs)
    }

    /// Removes an exec that has ended, and releases its resources.
    pub(crate) fn leave(&self, id: u64, memory: u64, processes: u32) {
        let mut state = self.lock();
        if state.execs.remove(&id).is_some() {
            state.memory -= memory;
            state.processes -= processes;
            self.alive.send_modify(|count| *count -= 1);
        }
    }

    /// Sends a signal to every exec.
    pub(crate) fn signal_all(&self, state: &State, signal: Signal) {
        for sender in state.execs.values() {
            // Fails if the exec has just ended, which needs no signal.
            let _ = sender.send(signal);
        }
    }

    /// Makes the sandbox unusable and ends its execs.
    pub(crate) fn shut(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.paused.send_replace(false);
        self.host.living().remove(&self.id);
        self.signal_all(&state, Signal::Kill);
    }

    /// Waits until no exec is alive.
    pub(crate) async fn quiet(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.alive.subscribe().wait_for(|count| *count == 0).await;
    }
}
