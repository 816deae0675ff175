//! Ownership and lifetime of sandboxes and snapshots.
//!
//! ```text
//! reserve --> reserved --(created)--> live --(close | idle | session ends | shutdown)--> closing --> released
//!                     \--(failed)---> released
//! ```
//!
//! Each sandbox and snapshot has an owner: a client session, or in protocol revisions without sessions any client that
//! knows its id. A reservation is released only after the sandbox is closed completely. A request for another owner's
//! id gets the same error as one for an unknown id.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, LayeredSandbox, Result, Sandbox, SandboxId, SandboxPath, Snapshot, Spec};
use cofferdam_util::hex;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use crate::config::Bounds;
use crate::http::Client;
use crate::interpreters::Interpreters;
use crate::snapshot_gate::SnapshotGate;

/// Maximum interval between two searches for idle sandboxes.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of remembered ids of closed sandboxes, which are needed to report the reason.
const MAX_REMEMBERED: usize = 256;

/// The owner of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A client session, by its number in this process.
    Session(u64),
    /// Any client that knows the id.
    Anyone,
}

/// An owner, and the address of its client if the server has many clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Account {
    /// The owner.
    pub owner: Owner,
    /// The address of the client.
    pub client: Option<Client>,
}

impl From<Owner> for Account {
    fn from(owner: Owner) -> Self {
        Self { owner, client: None }
    }
}

/// Returns the share of a limit that one address may use: three quarters, so that others get the rest.
pub fn part_of_client(max: usize) -> usize {
    max - max / 4
}

/// A kind of counted resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Sandbox,
    Snapshot,
    Interpreter,
}

/// All sandboxes and snapshots of the server.
#[derive(Debug)]
pub struct Store {
    bounds: Bounds,
    runtime: Handle,
    state: Mutex<State>,
    /// Notified when a reservation is released.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    reserved: HashMap<(Kind, Account), usize>,
    sandboxes: HashMap<String, Live>,
    snapshots: HashMap<String, Stored>,
    /// Ids of sandboxes that were closed because they were idle, oldest first.
    idled: Vec<(String, Owner)>,
    shut: bool,
}

#[derive(Debug, Clone)]
struct Live {
    owner: Owner,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sandbox: Arc<dyn Sandbox>,
    usage: Mutex<Usage>,
    /// Start directory of the next shell line.
    working_dir: Mutex<SandboxPath>,
    interpreters: Interpreters,
    reserved: Mutex<Option<Reserved>>,
}

#[derive(Debug)]
struct Usage {
    calls: usize,
    last: Instant,
}

#[derive(Debug)]
struct Stored {
    owner: Owner,
    frozen: Frozen,
    last: Instant,
    _reserved: Reserved,
}

/// A snapshot of a sandbox.
#[derive(Debug, Clone)]
pub struct Frozen {
    /// Its state.
    pub snapshot: Snapshot,
    /// Its unique name.
    pub name: String,
    /// The backend's id of the original sandbox.
    pub from: SandboxId,
    /// The spec of the original sandbox, which restored sandboxes cannot exceed.
    pub spec: Spec,
    /// Start directory of the next shell line of the original sandbox.
    pub working_dir: SandboxPath,
}

/// A reservation of one counted resource.
pub struct Reserved {
    store: Arc<Store>,
    kind: Kind,
    account: Account,
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("kind", &self.kind).field("account", &self.account).finish_non_exhaustive()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.store.lock();
        if let Some(count) = state.reserved.get_mut(&(self.kind, self.account)) {
            *count -= 1;
            if *count == 0 {
                state.reserved.remove(&(self.kind, self.account));
            }
        }
        drop(state);
        self.store.freed.notify_waiters();
    }
}

/// A sandbox in use by a call. It does not count as idle.
#[derive(Debug)]
pub struct InUse {
    id: String,
    shared: Arc<Shared>,
}

impl InUse {
    fn new(id: String, shared: Arc<Shared>) -> Self {
        shared.usage.lock().calls += 1;
        Self { id, shared }
    }

    /// Returns its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the start directory of the next shell line.
    pub fn working_dir(&self) -> SandboxPath {
        self.shared.working_dir.lock().clone()
    }

    /// Returns its live interpreters.
    pub fn interpreters(&self) -> &Interpreters {
        &self.shared.interpreters
    }

    /// Stores the directory where a shell line ended.
    pub fn set_working_dir(&self, path: SandboxPath) {
        *self.shared.working_dir.lock() = path;
    }
}

impl Deref for InUse {
    type Target = Arc<dyn Sandbox>;

    fn deref(&self) -> &Self::Target {
        &self.shared.sandbox
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut usage = self.shared.usage.lock();
        usage.calls -= 1;
        usage.last = Instant::now();
    }
}

impl Store {
    /// Creates an empty store, and a task that closes idle sandboxes and snapshots. Must be called in a tokio runtime.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        let store =
            Arc::new(Self { bounds, runtime: Handle::current(), state: Mutex::default(), freed: Notify::new() });
        let weak = Arc::downgrade(&store);
        let interval = (store.bounds.idle / 4).clamp(Duration::from_millis(20), IDLE_CHECK_INTERVAL);
        tokio::spawn(async move {
            while let Some(store) = weak.upgrade() {
                if store.close_idle() {
                    return;
                }
                drop(store);
                sleep(interval).await;
            }
        });
        store
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Reserves capacity for a sandbox before it is created.
    pub fn reserve(self: &Arc<Self>, account: impl Into<Account>) -> Result<Reserved> {
        self.take(Kind::Sandbox, account.into(), self.bounds.sandboxes, self.bounds.sandboxes_of_client)
    }

    /// Reserves capacity for a snapshot.
    pub fn reserve_snapshot(self: &Arc<Self>, account: impl Into<Account>) -> Result<Reserved> {
        self.take(Kind::Snapshot, account.into(), self.bounds.snapshots, self.bounds.snapshots_of_client)
    }

    /// Reserves capacity for one of at most `max` live interpreters.
    pub fn reserve_interpreter(self: &Arc<Self>, account: impl Into<Account>, max: usize) -> Result<Reserved> {
        self.take(Kind::Interpreter, account.into(), max, self.bounds.interpreters_of_client)
    }

    fn take(self: &Arc<Self>, kind: Kind, account: Account, max: usize, max_of_client: usize) -> Result<Reserved> {
        let mut state = self.lock();
        if state.shut {
            return Err(ending());
        }
        let count = |of: &dyn Fn(&Account) -> bool| -> usize {
            let counted = state.reserved.iter().filter(|((counted, account), _)| *counted == kind && of(account));
            counted.map(|(_, count)| count).sum()
        };
        if account.owner != Owner::Anyone && count(&|other| other.owner == account.owner) >= max_of_client {
            return Err(full(kind, max_of_client, "this session"));
        }
        let max_of_address = part_of_client(max);
        if account.client.is_some() && count(&|other| other.client == account.client) >= max_of_address {
            return Err(full(kind, max_of_address, "this address"));
        }
        if count(&|_| true) >= max {
            return Err(full(kind, max, "this server"));
        }
        *state.reserved.entry((kind, account)).or_default() += 1;
        drop(state);
        Ok(Reserved { store: Arc::clone(self), kind, account })
    }

    /// Stores a created sandbox under a new id.
    pub async fn put(self: &Arc<Self>, reserved: Reserved, sandbox: Arc<dyn Sandbox>) -> Result<InUse> {
        let id = random_id("sb");
        let owner = reserved.account.owner;
        let shared = Arc::new(Shared {
            sandbox: Arc::new(LayeredSandbox::new(sandbox, SnapshotGate::default())),
            usage: Mutex::new(Usage { calls: 0, last: Instant::now() }),
            working_dir: Mutex::default(),
            interpreters: Interpreters::default(),
            reserved: Mutex::new(Some(reserved)),
        });
        let id = match id {
            Ok(id) => id,
            Err(error) => {
                return Err(error.with_failed_close(shared.close().await));
            }
        };
        let in_use = InUse::new(id.clone(), Arc::clone(&shared));
        let shut = {
            let mut state = self.lock();
            if !state.shut {
                state.sandboxes.insert(id, Live { owner, shared: Arc::clone(&shared) });
            }
            state.shut
        };
        if shut {
            shared.close().await?;
            return Err(ending());
        }
        Ok(in_use)
    }

    /// Stores a snapshot and returns its id.
    pub fn put_snapshot(&self, reserved: Reserved, frozen: Frozen) -> Result<String> {
        let id = random_id("sn")?;
        let mut state = self.lock();
        if state.shut {
            // Dropping a reservation takes the lock.
            drop(state);
            drop(reserved);
            return Err(ending());
        }
        let owner = reserved.account.owner;
        state.snapshots.insert(id.clone(), Stored { owner, frozen, last: Instant::now(), _reserved: reserved });
        Ok(id)
    }

    /// Returns the sandbox with this id, for one call.
    pub fn enter(&self, owner: Owner, id: &str) -> Result<InUse> {
        let state = self.lock();
        match state.sandboxes.get(id) {
            Some(live) if live.owner == owner => Ok(InUse::new(id.to_owned(), Arc::clone(&live.shared))),
            _ if state.idled.iter().any(|(gone, of)| gone == id && *of == owner) => Err(self.idled_out(id)),
            _ => Err(unknown("sandbox", id)),
        }
    }

    /// Returns the snapshot with this id.
    pub fn snapshot(&self, owner: Owner, id: &str) -> Result<Frozen> {
        let mut state = self.lock();
        match state.snapshots.get_mut(id) {
            Some(stored) if stored.owner == owner => {
                stored.last = Instant::now();
                Ok(stored.frozen.clone())
            }
            _ => Err(unknown("snapshot", id)),
        }
    }

    /// Returns the ids of an owner's sandboxes in order. Does not list sandboxes without a session, because their ids
    /// grant access.
    pub fn sandboxes(&self, owner: Owner) -> Vec<String> {
        if owner == Owner::Anyone {
            return Vec::new();
        }
        let state = self.lock();
        let mut ids: Vec<String> =
            state.sandboxes.iter().filter(|(_, live)| live.owner == owner).map(|(id, _)| id.clone()).collect();
        ids.sort();
        ids
    }

    /// Closes a sandbox, and waits until it is closed completely.
    pub async fn close(&self, owner: Owner, id: &str) -> Result<()> {
        let live = {
            let mut state = self.lock();
            match state.sandboxes.get(id) {
                Some(live) if live.owner == owner => state.sandboxes.remove(id),
                _ => None,
            }
        };
        match live {
            Some(live) => live.shared.close().await,
            None => Err(self.enter(owner, id).err().unwrap_or_else(|| unknown("sandbox", id))),
        }
    }

    /// Deletes a snapshot.
    pub fn delete_snapshot(&self, owner: Owner, id: &str) -> Result<()> {
        let stored = {
            let mut state = self.lock();
            match state.snapshots.get(id) {
                Some(stored) if stored.owner == owner => state.snapshots.remove(id),
                _ => None,
            }
        };
        stored.map(drop).ok_or_else(|| unknown("snapshot", id))
    }

    /// Closes the sandbox of a cancelled call in the background.
    pub fn abandon(&self, id: &str) {
        let live = self.lock().sandboxes.remove(id);
        if let Some(live) = live {
            self.runtime.spawn(async move { live.shared.close().await });
        }
    }

    /// Closes all sandboxes and snapshots of a session in the background.
    pub fn end_session(&self, owner: Owner) {
        self.remove(|of, _| of == owner, |of, _| of == owner);
    }

    /// Removes the selected sandboxes and snapshots, and closes them in the background. Returns the removed sandboxes.
    fn remove(
        &self,
        selected: impl Fn(Owner, &Shared) -> bool,
        selected_snapshot: impl Fn(Owner, Instant) -> bool,
    ) -> Vec<(String, Owner)> {
        let mut state = self.lock();
        let ids: Vec<(String, Owner)> = state
            .sandboxes
            .iter()
            .filter(|(_, live)| selected(live.owner, &live.shared))
            .map(|(id, live)| (id.clone(), live.owner))
            .collect();
        let gone: Vec<Live> = ids.iter().filter_map(|(id, _)| state.sandboxes.remove(id)).collect();
        let old: Vec<String> = state
            .snapshots
            .iter()
            .filter(|(_, stored)| selected_snapshot(stored.owner, stored.last))
            .map(|(id, _)| id.clone())
            .collect();
        let snapshots: Vec<Stored> = old.iter().filter_map(|id| state.snapshots.remove(id)).collect();
        drop(state);
        drop(snapshots);
        for live in gone {
            // A failure cannot be reported. Dropping the last reference releases the sandbox's resources.
            self.runtime.spawn(async move { live.shared.close().await });
        }
        ids
    }

    /// Closes idle sandboxes and snapshots. Returns true if the server is shut down.
    fn close_idle(&self) -> bool {
        let now = Instant::now();
        let idle = self.bounds.idle;
        let gone = self.remove(
            |_, shared| {
                let usage = shared.usage.lock();
                usage.calls == 0 && now.saturating_duration_since(usage.last) >= idle
            },
            |_, last| now.saturating_duration_since(last) >= idle,
        );
        let mut state = self.lock();
        state.idled.extend(gone);
        let too_many = state.idled.len().saturating_sub(MAX_REMEMBERED);
        state.idled.drain(..too_many);
        state.shut
    }

    /// Closes all sandboxes and snapshots, including those that are being created, and waits up to `timeout` until all
    /// are closed. Returns the number of those that are left.
    pub async fn shutdown(&self, timeout: Duration) -> usize {
        self.lock().shut = true;
        self.remove(|_, _| true, |_, _| true);
        let deadline = Instant::now() + timeout;
        loop {
            let freed = self.freed.notified();
            let left: usize = self.lock().reserved.values().sum();
            if left == 0 || timeout_at(deadline, freed).await.is_err() {
                return left;
            }
        }
    }

    fn idled_out(&self, id: &str) -> Error {
        let what = format!("no call used the sandbox for {:?}, so it was closed", self.bounds.idle);
        Error::new(ErrorKind::Closed, "sandbox", what)
            .with_context("sandbox", shown(id))
            .with_remedy("create a new one with create_sandbox; its files are deleted")
    }
}

impl Shared {
    /// Closes the sandbox and its interpreters, then releases its reservation.
    async fn close(&self) -> Result<()> {
        let closed = self.sandbox.close().await;
        self.interpreters.close_all().await;
        drop(self.reserved.lock().take());
        closed
    }
}

/// Returns an unguessable id.
fn random_id(prefix: &str) -> Result<String> {
    Ok(format!("{prefix}-{}", random()?))
}

/// Returns 128 random bits of the system in hexadecimal digits.
pub fn random() -> Result<String> {
    hex::random(16)
        .map_err(|error| Error::new(ErrorKind::Io, "create", format!("cannot read random bytes of the host: {error}")))
}

/// Returns an id in a printable form, because clients can send any text.
fn shown(id: &str) -> String {
    id.chars().take(64).flat_map(char::escape_debug).collect()
}

fn unknown(what: &str, id: &str) -> Error {
    Error::new(ErrorKind::NotFound, "find", format!("this client has no {what} with this id"))
        .with_context("id", shown(id))
        .with_remedy(
            "use an id that create_sandbox, fork_sandbox, restore_sandbox or snapshot_sandbox returned in this session",
        )
}

fn ending() -> Error {
    Error::new(ErrorKind::Closed, "create", "the server is shutting down")
}

fn full(kind: Kind, max: usize, owner: &str) -> Error {
    let (what, how) = match kind {
        Kind::Sandbox => ("sandboxes", "close one with close_sandbox"),
        Kind::Snapshot => ("snapshots", "delete one with close_sandbox"),
        Kind::Interpreter => ("live interpreters", "end one by close_sandbox with its session"),
    };
    Error::new(ErrorKind::ResourceExhausted, "create", format!("{owner} has reached its limit of {max} {what}"))
        .with_remedy(format!("{how}, or wait until idle ones are closed"))
}
