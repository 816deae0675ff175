//! Who has which sandbox, and for how long.
//!
//! ```text
//! reserve --> place --(made)--> live --(close | idle | session ends | shutdown)--> closing --> place free
//!                  \-(failed)-> place free
//! ```
//!
//! Everything has an owner: a client session, or nobody where the protocol has no sessions; then the id alone is the
//! right to use it. A place is free only when nothing of its sandbox is left. Who asks for something of another owner
//! learns no more than who asks for what never was.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, Sandbox, SandboxId, SandboxPath, Snapshot, Spec};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use crate::config::Bounds;
use crate::http::Client;
use crate::interpreters::Interpreters;
use crate::steady::Steady;

/// How often idle sandboxes are looked for, at most.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The most ids of closed sandboxes that are remembered, to say why they are gone.
const MAX_REMEMBERED: usize = 256;

/// Whose a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A client session, by its number in this process.
    Session(u64),
    /// Whoever knows the id.
    Anyone,
}

/// An owner, and the address of its client where there are many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Account {
    /// The owner.
    pub owner: Owner,
    /// Where the client is.
    pub client: Option<Client>,
}

impl From<Owner> for Account {
    fn from(owner: Owner) -> Self {
        Self { owner, client: None }
    }
}

/// Returns how much of something one address may have, so that others find some: three quarters.
pub fn part_of_client(most: usize) -> usize {
    most - most / 4
}

/// What is counted.
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
    /// Woken whenever a place becomes free.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    places: HashMap<(Kind, Account), usize>,
    sandboxes: HashMap<String, Live>,
    snapshots: HashMap<String, Kept>,
    /// Closed for want of use, oldest first.
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
    /// Where the next shell line begins.
    working_dir: Mutex<SandboxPath>,
    interpreters: Interpreters,
    place: Mutex<Option<Reserved>>,
}

#[derive(Debug)]
struct Usage {
    calls: usize,
    last: Instant,
}

#[derive(Debug)]
struct Kept {
    owner: Owner,
    frozen: Frozen,
    last: Instant,
    _place: Reserved,
}

/// A sandbox as it was.
#[derive(Debug, Clone)]
pub struct Frozen {
    /// Its state.
    pub snapshot: Snapshot,
    /// What tells it from all others.
    pub name: String,
    /// Which sandbox that was, by the name that its backend gave it.
    pub from: SandboxId,
    /// What that sandbox was made from: what is made from the state gets no more.
    pub spec: Spec,
    /// Where its next shell line would have begun.
    pub working_dir: SandboxPath,
}

/// A place among those that may be taken.
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
        if let Some(count) = state.places.get_mut(&(self.kind, self.account)) {
            *count -= 1;
            if *count == 0 {
                state.places.remove(&(self.kind, self.account));
            }
        }
        drop(state);
        self.store.freed.notify_waiters();
    }
}

/// A sandbox while a call uses it: it is not idle meanwhile.
#[derive(Debug)]
pub struct InUse {
    id: String,
    shared: Arc<Shared>,
}

impl InUse {
    fn new(id: String, shared: Arc<Shared>) -> Self {
        lock(&shared.usage).calls += 1;
        Self { id, shared }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where the next shell line begins.
    pub fn working_dir(&self) -> SandboxPath {
        lock(&self.shared.working_dir).clone()
    }

    /// Its live interpreters.
    pub fn interpreters(&self) -> &Interpreters {
        &self.shared.interpreters
    }

    /// Keeps where a shell line ended.
    pub fn set_working_dir(&self, path: SandboxPath) {
        *lock(&self.shared.working_dir) = path;
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
        let mut usage = lock(&self.shared.usage);
        usage.calls -= 1;
        usage.last = Instant::now();
    }
}

impl Store {
    /// An empty store, and a task that closes what nobody uses. Must be called in a tokio runtime.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        let store =
            Arc::new(Self { bounds, runtime: Handle::current(), state: Mutex::default(), freed: Notify::new() });
        let weak = Arc::downgrade(&store);
        let every = (store.bounds.idle / 4).clamp(Duration::from_millis(20), LOOK_EVERY);
        tokio::spawn(async move {
            while let Some(store) = weak.upgrade() {
                if store.close_idle() {
                    return;
                }
                drop(store);
                sleep(every).await;
            }
        });
        store
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Takes a place for a sandbox that is about to be made.
    pub fn reserve(self: &Arc<Self>, account: impl Into<Account>) -> Result<Reserved> {
        self.take(Kind::Sandbox, account.into(), self.bounds.sandboxes, self.bounds.sandboxes_of_client)
    }

    /// Takes a place for a snapshot.
    pub fn reserve_snapshot(self: &Arc<Self>, account: impl Into<Account>) -> Result<Reserved> {
        self.take(Kind::Snapshot, account.into(), self.bounds.snapshots, self.bounds.snapshots_of_client)
    }

    /// Takes a place for a live interpreter.
    pub fn reserve_interpreter(self: &Arc<Self>, account: impl Into<Account>) -> Result<Reserved> {
        self.take(Kind::Interpreter, account.into(), usize::MAX, self.bounds.interpreters_of_client)
    }

    fn take(self: &Arc<Self>, kind: Kind, account: Account, most: usize, most_of_client: usize) -> Result<Reserved> {
        let mut state = self.lock();
        if state.shut {
            return Err(ending());
        }
        let count = |of: &dyn Fn(&Account) -> bool| -> usize {
            let places = state.places.iter().filter(|((counted, account), _)| *counted == kind && of(account));
            places.map(|(_, count)| count).sum()
        };
        if account.owner != Owner::Anyone && count(&|other| other.owner == account.owner) >= most_of_client {
            return Err(full(kind, most_of_client, "this session has"));
        }
        let most_of_address = part_of_client(most);
        if account.client.is_some() && count(&|other| other.client == account.client) >= most_of_address {
            return Err(full(kind, most_of_address, "this address has"));
        }
        if count(&|_| true) >= most {
            return Err(full(kind, most, "this server has"));
        }
        *state.places.entry((kind, account)).or_default() += 1;
        drop(state);
        Ok(Reserved { store: Arc::clone(self), kind, account })
    }

    /// Puts a sandbox into its place, under a new id.
    pub async fn put(self: &Arc<Self>, place: Reserved, sandbox: Arc<dyn Sandbox>) -> Result<InUse> {
        let id = random_id("sb");
        let owner = place.account.owner;
        let shared = Arc::new(Shared {
            sandbox: Arc::new(Steady::new(sandbox)),
            usage: Mutex::new(Usage { calls: 0, last: Instant::now() }),
            working_dir: Mutex::default(),
            interpreters: Interpreters::default(),
            place: Mutex::new(Some(place)),
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

    /// Keeps a snapshot in its place; gives its id.
    pub fn put_snapshot(&self, place: Reserved, frozen: Frozen) -> Result<String> {
        let id = random_id("sn")?;
        let mut state = self.lock();
        if state.shut {
            // Dropping a place takes the lock.
            drop(state);
            drop(place);
            return Err(ending());
        }
        state
            .snapshots
            .insert(id.clone(), Kept { owner: place.account.owner, frozen, last: Instant::now(), _place: place });
        Ok(id)
    }

    /// The sandbox of this id, for one call.
    pub fn enter(&self, owner: Owner, id: &str) -> Result<InUse> {
        let state = self.lock();
        match state.sandboxes.get(id) {
            Some(live) if live.owner == owner => Ok(InUse::new(id.to_owned(), Arc::clone(&live.shared))),
            _ if state.idled.iter().any(|(gone, of)| gone == id && *of == owner) => Err(self.idled_out(id)),
            _ => Err(unknown("sandbox", id)),
        }
    }

    /// The snapshot of this id.
    pub fn snapshot(&self, owner: Owner, id: &str) -> Result<Frozen> {
        let mut state = self.lock();
        match state.snapshots.get_mut(id) {
            Some(kept) if kept.owner == owner => {
                kept.last = Instant::now();
                Ok(kept.frozen.clone())
            }
            _ => Err(unknown("snapshot", id)),
        }
    }

    /// The ids of an owner's sandboxes, in order. What belongs to anyone is told to nobody: there the id is the right.
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

    /// Closes a sandbox, and waits until nothing of it is left.
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

    /// Forgets a snapshot.
    pub fn forget(&self, owner: Owner, id: &str) -> Result<()> {
        let kept = {
            let mut state = self.lock();
            match state.snapshots.get(id) {
                Some(kept) if kept.owner == owner => state.snapshots.remove(id),
                _ => None,
            }
        };
        kept.map(drop).ok_or_else(|| unknown("snapshot", id))
    }

    /// Closes a sandbox whose call was given up, in the background.
    pub fn abandon(&self, id: &str) {
        let live = self.lock().sandboxes.remove(id);
        if let Some(live) = live {
            self.runtime.spawn(async move { live.shared.close().await });
        }
    }

    /// Closes all that a session has, in the background.
    pub fn end_session(&self, owner: Owner) {
        self.remove(|of, _| of == owner, |of, _| of == owner);
    }

    /// Takes out what is chosen, and closes it in the background; gives which sandboxes that were.
    fn remove(
        &self,
        chosen: impl Fn(Owner, &Shared) -> bool,
        forgotten: impl Fn(Owner, Instant) -> bool,
    ) -> Vec<(String, Owner)> {
        let mut state = self.lock();
        let ids: Vec<(String, Owner)> = state
            .sandboxes
            .iter()
            .filter(|(_, live)| chosen(live.owner, &live.shared))
            .map(|(id, live)| (id.clone(), live.owner))
            .collect();
        let gone: Vec<Live> = ids.iter().filter_map(|(id, _)| state.sandboxes.remove(id)).collect();
        let old: Vec<String> = state
            .snapshots
            .iter()
            .filter(|(_, kept)| forgotten(kept.owner, kept.last))
            .map(|(id, _)| id.clone())
            .collect();
        let snapshots: Vec<Kept> = old.iter().filter_map(|id| state.snapshots.remove(id)).collect();
        drop(state);
        drop(snapshots);
        for live in gone {
            // Nobody is there to be told of a failure; what the sandbox held goes with its last reference.
            self.runtime.spawn(async move { live.shared.close().await });
        }
        ids
    }

    /// Closes what nobody has used for long; gives whether the server is shut.
    fn close_idle(&self) -> bool {
        let now = Instant::now();
        let idle = self.bounds.idle;
        let gone = self.remove(
            |_, shared| {
                let usage = lock(&shared.usage);
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

    /// Closes everything, also what is being made, and waits until nothing is left, at most for `patience`. Gives how
    /// many are left.
    pub async fn shutdown(&self, patience: Duration) -> usize {
        self.lock().shut = true;
        self.remove(|_, _| true, |_, _| true);
        let deadline = Instant::now() + patience;
        loop {
            let freed = self.freed.notified();
            let left: usize = self.lock().places.values().sum();
            if left == 0 || timeout_at(deadline, freed).await.is_err() {
                return left;
            }
        }
    }

    fn idled_out(&self, id: &str) -> Error {
        let what = format!("no call used the sandbox for {:?}, so it was closed", self.bounds.idle);
        Error::new(ErrorKind::Closed, "sandbox", what)
            .with_context("sandbox", shown(id))
            .with_remedy("make a new one with create_sandbox; its files are gone")
    }
}

impl Shared {
    /// Ends what runs in it, and frees its place once nothing of it is left.
    async fn close(&self) -> Result<()> {
        let closed = self.sandbox.close().await;
        self.interpreters.close_all().await;
        drop(lock(&self.place).take());
        closed
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic leaves behind is still consistent: every change is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An id that nobody can guess.
fn random_id(prefix: &str) -> Result<String> {
    Ok(format!("{prefix}-{}", random()?))
}

/// 128 bits of the system's randomness, in hexadecimal digits.
pub fn random() -> Result<String> {
    use std::fmt::Write;
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, "create", format!("the host gives no random bytes: {error}")))?;
    let mut digits = String::new();
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    Ok(digits)
}

/// An id as it may be shown: clients send anything.
fn shown(id: &str) -> String {
    id.chars().take(64).flat_map(char::escape_debug).collect()
}

fn unknown(what: &str, id: &str) -> Error {
    Error::new(ErrorKind::NotFound, "find", format!("there is no {what} of this id for this client"))
        .with_context("id", shown(id))
        .with_remedy(
            "use an id that create_sandbox, fork_sandbox, restore_sandbox or snapshot_sandbox gave in this session",
        )
}

fn ending() -> Error {
    Error::new(ErrorKind::Closed, "create", "the server is ending")
}

fn full(kind: Kind, most: usize, who: &str) -> Error {
    let (what, how) = match kind {
        Kind::Sandbox => ("sandboxes", "close one with close_sandbox"),
        Kind::Snapshot => ("snapshots", "forget one with close_sandbox"),
        Kind::Interpreter => ("live interpreters", "end one with close_sandbox and its session"),
    };
    Error::new(ErrorKind::ResourceExhausted, "create", format!("{who} {most} {what}, and that is the most it may have"))
        .with_remedy(format!("{how}, or wait until idle ones are closed"))
}
