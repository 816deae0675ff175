//! The state that a sandbox's execs and its callers share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cofferdam_contract::{Access, Error, ErrorKind, Posture, Result, SandboxId, Spec, WORKSPACE_PATH, Workspace};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, watch};

use crate::WasmConfig;
use crate::account::Account;
use crate::ending::{SIGKILL, Termination};
use crate::engine::{Engines, on_thread};
use crate::fs::{Base, FrozenTree, Ino, ROOT, Tree};
use crate::guest_control::GuestControl;
use crate::import::{self, Times, import};
use crate::policy::{NAME, Policy};
use crate::posture::posture;
use crate::session::InitialState;
use crate::snapshot::{SessionSnapshot, refuse_shared};
use crate::time::since_1970;
use crate::wasi::Preopen;

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
    pub(crate) engines: Engines,
    /// The slots for running guests.
    pub(crate) slots: Arc<Semaphore>,
    /// The number of sandboxes created so far.
    pub(crate) created: AtomicU64,
}

/// The files of a sandbox, and its two fixed directories.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) tree: Arc<Mutex<Tree>>,
    pub(crate) workspace: Ino,
    pub(crate) temporary: Ino,
}

impl Files {
    pub(crate) fn new(spec: &Spec, policy: Policy, account: &Arc<Account>) -> Result<Self> {
        let mut tree = Tree::new(spec.limits().disk.map(|limit| limit.as_bytes()), Arc::clone(account));
        let now = if policy.seed.is_some() { 0 } else { since_1970() };
        let top = Base { ino: ROOT, name: None };
        let mut make =
            |name: &str| tree.make_directory(top, name, now).map_err(|error| error.into_error("create", name));
        let (workspace, temporary) = (make("workspace")?, make("tmp")?);
        Ok(Self { tree: Arc::new(Mutex::new(tree)), workspace, temporary })
    }

    /// Returns the preopened directories of an exec. A snapshot has the same ones, since C libraries remember them.
    pub(crate) fn preopens(&self, access: Access, working_dir: Ino) -> Vec<Preopen> {
        let open = |name: &str, ino, absolute: Option<&str>, access| Preopen {
            name: name.to_owned(),
            ino,
            absolute: absolute.map(str::to_owned),
            access,
        };
        let here = (working_dir == self.workspace).then_some(WORKSPACE_PATH);
        vec![
            open(WORKSPACE_PATH, self.workspace, Some(WORKSPACE_PATH), access),
            open("/tmp", self.temporary, Some("/tmp"), Access::ReadWrite),
            open(".", working_dir, here, access),
        ]
    }
}

/// A frozen copy of a sandbox's files.
#[derive(Debug, Clone)]
pub(crate) struct FrozenFiles {
    tree: FrozenTree,
    workspace: Ino,
    temporary: Ino,
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

/// Returns the account that files are charged to: their own if there is a disk limit, else that of the memory limit.
fn files_account(spec: &Spec, memory: &Arc<Account>) -> Arc<Account> {
    if spec.limits().disk.is_some() { Arc::new(Account::new(None)) } else { Arc::clone(memory) }
}

impl Shared {
    /// Creates a sandbox, or fails if its posture is weaker than the spec demands.
    pub(crate) fn new(common: &Arc<Common>, spec: Spec) -> Result<Self> {
        let policy = Policy::of(&spec)?;
        let account = Arc::new(Account::new(spec.limits().memory.map(|limit| limit.as_bytes())));
        let files = Files::new(&spec, policy, &files_account(&spec, &account))?;
        Self::with(common, spec, policy, account, files)
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

    /// Creates a sandbox with the files of a session snapshot.
    pub(crate) fn restored(
        common: &Arc<Common>,
        spec: Spec,
        snapshot: &SessionSnapshot,
    ) -> Result<(Self, InitialState)> {
        let policy = Policy::of(&spec)?;
        let account = Arc::new(Account::new(spec.limits().memory.map(|limit| limit.as_bytes())));
        let disk = spec.limits().disk.map(|limit| limit.as_bytes());
        let (files, initial) =
            snapshot.thaw(disk, &files_account(&spec, &account), (policy, spec.workspace().access()))?;
        Ok((Self::with(common, spec, policy, account, files)?, initial))
    }

    /// Creates a sandbox with a copy of another sandbox's files.
    pub(crate) fn copied(common: &Arc<Common>, spec: Spec, copy: &FrozenFiles) -> Result<Self> {
        let policy = Policy::of(&spec)?;
        let account = Arc::new(Account::new(spec.limits().memory.map(|limit| limit.as_bytes())));
        let disk = spec.limits().disk.map(|limit| limit.as_bytes());
        let failed = |error: crate::fs::FsError| error.into_error("restore", "/workspace");
        let (mut tree, renumbered) = copy.tree.thaw(disk, files_account(&spec, &account)).map_err(failed)?;
        // No guest runs in the copy, so no descriptors refer to them.
        renumbered.nameless.iter().for_each(|ino| tree.release(*ino));
        let workspace = renumbered.of(copy.workspace.0).map_err(failed)?;
        let temporary = renumbered.of(copy.temporary.0).map_err(failed)?;
        refuse_shared(&tree, workspace, temporary, spec.workspace().access())?;
        let files = Files { tree: Arc::new(Mutex::new(tree)), workspace, temporary };
        Self::with(common, spec, policy, account, files)
    }

    fn with(common: &Arc<Common>, spec: Spec, policy: Policy, account: Arc<Account>, files: Files) -> Result<Self> {
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
        let tree = self.tree(operation)?.freeze();
        Ok(FrozenFiles { tree, workspace: self.workspace, temporary: self.temporary })
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
