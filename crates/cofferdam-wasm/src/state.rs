//! The state that a sandbox's execs and its callers share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Posture, Result, SandboxId, Spec, Workspace};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, watch};

use crate::NAME;
use crate::account::Account;
use crate::config::WasmConfig;
use crate::engine::on_thread;
use crate::files::{Files, FrozenFiles, files_account};
use crate::fs::{Ino, Tree};
use crate::guest_control::GuestControl;
use crate::import::{self, Times, import};
use crate::loader::Loader;
use crate::policy::Policy;
use crate::posture::posture;
use crate::termination::{SIGKILL, Termination};

#[derive(Debug, Default)]
struct State {
    closed: bool,
    next_exec: u64,
    execs: BTreeMap<u64, Arc<GuestControl>>,
    cpu: Duration,
}

/// The state that all sandboxes of a backend share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) config: WasmConfig,
    pub(crate) loader: Loader,
    /// The slots for running guests.
    pub(crate) slots: Arc<Semaphore>,
    /// The number of sandboxes created so far.
    pub(crate) created: AtomicU64,
}

/// One sandbox, as its execs see it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: SandboxId,
    pub(crate) spec: Spec,
    pub(crate) policy: Policy,
    pub(crate) posture: Posture,
    pub(crate) common: Arc<Common>,
    pub(crate) account: Arc<Account>,
    pub(crate) files: Arc<Mutex<Tree>>,
    pub(crate) workspace: Ino,
    pub(crate) temporary: Ino,
    state: Mutex<State>,
    /// The number of execs alive.
    alive: watch::Sender<usize>,
}

/// Creates the account of a sandbox's memory limit.
pub(crate) fn memory_account(spec: &Spec) -> Arc<Account> {
    Arc::new(Account::new(spec.limits().memory.map(|limit| limit.as_bytes())))
}

impl Shared {
    /// Creates a sandbox, or fails if its posture is weaker than the spec demands.
    pub(crate) fn new(common: &Arc<Common>, spec: Spec) -> Result<Self> {
        let policy = Policy::of(&spec)?;
        let account = memory_account(&spec);
        let files = Files::new(&spec, policy, &files_account(&spec, &account))?;
        Self::with_files(common, spec, policy, account, files)
    }

    /// Creates a sandbox as [`Self::new`] does. If the spec mounts a host directory, it is copied on a separate thread.
    pub(crate) async fn with_workspace(common: &Arc<Common>, spec: Spec) -> Result<Arc<Self>> {
        let shared = Arc::new(Self::new(common, spec)?);
        let Workspace::HostDir { path, .. } = shared.spec.workspace() else { return Ok(shared) };
        let (directory, target) = (import::open(&shared.spec, path)?, Arc::clone(&shared));
        let times = if shared.policy.seed.is_some() { Times::Zeroed } else { Times::Preserved };
        on_thread(move || import(&directory, &mut target.files.lock(), target.workspace, times)).await?;
        Ok(shared)
    }

    /// Creates a sandbox with a copy of another sandbox's files.
    pub(crate) fn copied(common: &Arc<Common>, spec: Spec, copy: &FrozenFiles) -> Result<Self> {
        let policy = Policy::of(&spec)?;
        let account = memory_account(&spec);
        let files = copy.thaw(&spec, &account)?;
        Self::with_files(common, spec, policy, account, files)
    }

    /// Creates a sandbox with these files, or fails if its posture is weaker than the spec demands. `account` is that
    /// of [`memory_account`].
    pub(crate) fn with_files(
        common: &Arc<Common>,
        spec: Spec,
        policy: Policy,
        account: Arc<Account>,
        files: Files,
    ) -> Result<Self> {
        let posture = posture(&spec);
        posture.require(spec.allow_weaker())?;
        let number = common.created.fetch_add(1, Ordering::Relaxed) + 1;
        let Files { tree, workspace, temporary } = files;
        Ok(Self {
            id: SandboxId::new(format!("{NAME}-{number}")),
            spec,
            policy,
            posture,
            common: Arc::clone(common),
            account,
            files: tree,
            workspace,
            temporary,
            state: Mutex::default(),
            alive: watch::Sender::new(0),
        })
    }

    /// Freezes the current files.
    pub(crate) fn freeze_files(&self, operation: &'static str) -> Result<FrozenFiles> {
        self.check_open(operation)?;
        Ok(self.all_files().freeze())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn check_open(&self, operation: &'static str) -> Result<()> {
        if self.lock().closed { Err(Error::closed(operation)) } else { Ok(()) }
    }

    pub(crate) fn all_files(&self) -> Files {
        Files { tree: Arc::clone(&self.files), workspace: self.workspace, temporary: self.temporary }
    }

    /// Returns the files of a sandbox that is open.
    pub(crate) fn tree(&self, operation: &'static str) -> Result<MutexGuard<'_, Tree>> {
        self.check_open(operation)?;
        Ok(self.files.lock())
    }

    /// Registers an exec, which counts as a process.
    pub(crate) fn enter(self: &Arc<Self>, control: &Arc<GuestControl>) -> Result<ExecRegistration> {
        let mut state = self.lock();
        if state.closed {
            return Err(Error::closed("start"));
        }
        if self.spec.limits().single_threaded_processes().is_some_and(|limit| state.execs.len() >= limit as usize) {
            return Err(Error::new(ErrorKind::ResourceExhausted, "start", "the process limit is reached"));
        }
        state.next_exec += 1;
        let id = state.next_exec;
        state.execs.insert(id, Arc::clone(control));
        self.alive.send_modify(|count| *count += 1);
        Ok(ExecRegistration { shared: Arc::clone(self), id })
    }

    pub(crate) fn add_cpu(&self, time: Duration) {
        self.lock().cpu += time;
    }

    pub(crate) fn cpu(&self) -> Duration {
        self.lock().cpu
    }

    pub(crate) fn running(&self) -> usize {
        self.lock().execs.len()
    }

    /// Closes the sandbox and ends its execs.
    pub(crate) fn shut_down(&self) {
        let mut state = self.lock();
        state.closed = true;
        for control in state.execs.values() {
            control.request(Termination::Cancelled { signal: SIGKILL });
        }
    }

    /// Waits until no exec is alive, and frees the files.
    pub(crate) async fn wait_and_clear(&self) {
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = self.alive.subscribe().wait_for(|count| *count == 0).await;
        *self.files.lock() = Tree::new(None, Arc::new(Account::new(None)));
    }
}

/// The registration of an exec in its sandbox.
#[derive(Debug)]
pub(crate) struct ExecRegistration {
    shared: Arc<Shared>,
    pub(crate) id: u64,
}

impl Drop for ExecRegistration {
    fn drop(&mut self) {
        self.shared.lock().execs.remove(&self.id);
        self.shared.alive.send_modify(|count| *count -= 1);
    }
}
