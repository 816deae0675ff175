//! The live sandboxes of all tenants. Every look-up is by tenant.
//!
//! ```text
//! creating --> live --(delete | time is over | server stops)--> closing --> gone
//! ```

mod changes;
mod exec;
mod lease;
mod rings;
mod run;
mod sandbox;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_changes::sandbox::KeptChanges;
use cofferdam_contract::{Backend, Error, ErrorKind, Result, Sandbox, Snapshot, Spec, TenantId};
use cofferdam_volume::sandbox::VolumeMount;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub use changes::Unkept;
pub use exec::LiveExec;
pub use sandbox::{LiveSandbox, Use};

use crate::ids::new_id;
use crate::volumes::Volumes;
use sandbox::{Identity, Origin};

/// The most bytes of a sandbox's name.
const MAX_NAME: usize = 64;
/// The start of every id.
const PREFIX: &str = "sb";

tokio::task_local! {
    /// The id and the name of the sandbox that this task creates, for its record.
    pub static CREATED: (String, Option<String>);
}

/// The settings of a new sandbox.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// The spec, with the tenant.
    pub spec: Spec,
    /// The name, unique for the tenant.
    pub name: Option<String>,
    /// The lifetime.
    pub life: Duration,
    /// The time without use after which it is closed.
    pub idle: Duration,
    /// The snapshot that it starts from.
    pub snapshot: Option<Snapshot>,
    /// The id of that snapshot.
    pub parent: Option<String>,
    /// The volumes of the tenant that it has.
    pub volumes: Vec<VolumeMount>,
}

/// The settings of a copy of a sandbox.
#[derive(Debug, Clone)]
pub struct NewFork {
    /// The name, unique for the tenant.
    pub name: Option<String>,
    /// The lifetime.
    pub life: Duration,
    /// The time without use after which it is closed.
    pub idle: Duration,
}

/// The live sandboxes of all tenants.
#[derive(Debug, Default)]
pub struct Sandboxes {
    /// The store of the changes of sandboxes that end.
    changes: Option<PathBuf>,
    volumes: Option<Arc<Volumes>>,
    table: Mutex<Table>,
    closing: TaskTracker,
    /// True if no create begins any more.
    refusing: AtomicBool,
    /// True if no create ends with a sandbox any more.
    stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    live: BTreeMap<(TenantId, String), Arc<LiveSandbox>>,
    /// Names of live sandboxes and of those that are being created.
    names: BTreeMap<(TenantId, String), String>,
}

impl Sandboxes {
    /// Creates an empty table. `changes` is the directory in which changes of copy-on-write workspaces are kept.
    pub fn new(changes: Option<PathBuf>, volumes: Arc<Volumes>) -> Self {
        Self { changes, volumes: Some(volumes), ..Self::default() }
    }

    /// Returns the volumes of all tenants.
    ///
    /// # Errors
    /// - `Unavailable` if the server has none.
    pub fn volumes(&self) -> Result<&Arc<Volumes>> {
        let missing = || Error::new(ErrorKind::Unavailable, "volume", "the server has no volumes");
        self.volumes.as_ref().ok_or_else(missing)
    }

    /// Creates a sandbox.
    ///
    /// # Errors
    /// - `Conflict` if the tenant has a sandbox with this name.
    /// - `Unavailable` if the server stops.
    /// - The errors of [`Backend::create`].
    pub async fn create(self: &Arc<Self>, backend: &Arc<dyn Backend>, new: NewSandbox) -> Result<Arc<LiveSandbox>> {
        let NewSandbox { spec, name, life, idle, snapshot, parent, volumes } = new;
        let (tenant, level) = (spec.tenant().clone(), backend.level());
        let from = Origin { backend: backend.name().to_owned(), level, parent, volumes: volumes.clone() };
        let created = async {
            match snapshot {
                Some(snapshot) => backend.restore(snapshot, spec).await,
                None => self.with_volumes(spec, volumes, level, async |spec| backend.create(spec).await).await,
            }
        };
        self.add(tenant, from, NewFork { name, life, idle }, created).await
    }

    /// Creates a copy of a tenant's sandbox, which resumes from its state.
    ///
    /// # Errors
    /// - `NotFound` as in [`Self::find`], those of [`Self::create`], and those of
    ///   [`cofferdam_contract::Sandbox::fork`].
    pub async fn fork(self: &Arc<Self>, tenant: &TenantId, id_or_name: &str, new: NewFork) -> Result<Arc<LiveSandbox>> {
        let live = self.find(tenant, id_or_name)?;
        let _use = live.keep();
        let (backend, level, volumes) = (live.backend.clone(), live.level, live.volumes.clone());
        let from = Origin { backend, level, parent: Some(live.id.clone()), volumes };
        self.add(tenant.clone(), from, new, live.used().fork()).await
    }

    async fn add(
        self: &Arc<Self>,
        tenant: TenantId,
        from: Origin,
        new: NewFork,
        created: impl Future<Output = Result<Arc<dyn Sandbox>>>,
    ) -> Result<Arc<LiveSandbox>> {
        if self.is_stopping() {
            return Err(Error::new(ErrorKind::Unavailable, "create", "the server is stopping"));
        }
        let NewFork { name, life, idle } = new;
        let id = new_id(PREFIX)?;
        let name = name.map(|name| NameHold::take(self, &tenant, name, &id)).transpose()?;
        let name_text = name.as_ref().map(|hold| hold.key.1.clone());
        let sandbox = CREATED.scope((id.clone(), name_text.clone()), created).await?;
        let identity = Identity { id: id.clone(), tenant: tenant.clone(), name: name_text, from };
        let live = Arc::new(LiveSandbox::new(identity, sandbox, life, idle));
        self.table.lock().live.insert((tenant, id), Arc::clone(&live));
        if let Some(mut hold) = name {
            hold.is_retained = true;
        }
        if self.stopping.load(Ordering::SeqCst) {
            // The server began to stop meanwhile, and may have closed the others already.
            self.delete(&live.tenant, &live.id, Unkept::Keep).await?;
            return Err(Error::new(ErrorKind::Unavailable, "create", "the server is stopping"));
        }
        Ok(live)
    }

    /// Returns true if no sandbox lives or is being closed. A create has a connection.
    pub fn is_empty(&self) -> bool {
        self.table.lock().live.is_empty() && self.closing.is_empty()
    }

    /// Finds a tenant's sandbox by id or name.
    ///
    /// # Errors
    /// - `NotFound` if the tenant has none. Sandboxes of other tenants are not found either.
    pub fn find(&self, tenant: &TenantId, id_or_name: &str) -> Result<Arc<LiveSandbox>> {
        let table = self.table.lock();
        let key = (tenant.clone(), id_or_name.to_owned());
        let found = table.live.get(&key).or_else(|| {
            let id = table.names.get(&key)?;
            table.live.get(&(tenant.clone(), id.clone()))
        });
        found.cloned().ok_or_else(missing)
    }

    /// Gives a tenant's sandbox another name, or none.
    ///
    /// # Errors
    /// - `NotFound` as in [`Self::find`].
    /// - `Conflict` if another sandbox of the tenant has the name, `InvalidInput` for a malformed one.
    pub fn rename(&self, tenant: &TenantId, id_or_name: &str, name: Option<String>) -> Result<Arc<LiveSandbox>> {
        let live = self.find(tenant, id_or_name)?;
        if name.is_some() && live.name() == name {
            return Ok(live);
        }
        let mut hold = name.map(|name| NameHold::take(self, tenant, name, &live.id)).transpose()?;
        let mut table = self.table.lock();
        // A sandbox that was closed meanwhile must not leave a name behind.
        if !table.live.contains_key(&(tenant.clone(), live.id.clone())) {
            drop(table);
            return Err(missing());
        }
        if let Some(other) = live.set_name(hold.as_ref().map(|hold| hold.key.1.clone())) {
            table.names.remove(&(tenant.clone(), other));
        }
        if let Some(hold) = &mut hold {
            hold.is_retained = true;
        }
        drop(table);
        Ok(live)
    }

    /// Returns a tenant's sandboxes after the id `after`, in the order of their creation, at most `max` that `wanted`
    /// accepts.
    pub fn list(
        &self,
        tenant: &TenantId,
        after: Option<&str>,
        max: usize,
        wanted: impl Fn(&LiveSandbox) -> bool,
    ) -> Vec<Arc<LiveSandbox>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let table = self.table.lock();
        let from = (tenant.clone(), after.unwrap_or_default().to_owned());
        let own = table.live.range((Excluded(from), Unbounded)).take_while(|((owner, _), _)| owner == tenant);
        own.map(|(_, live)| live).filter(|live| wanted(live)).take(max).cloned().collect()
    }

    /// Returns the number of live sandboxes of all tenants.
    pub fn count(&self) -> usize {
        self.table.lock().live.len()
    }

    /// Removes a tenant's sandbox, keeps the changes of a copy-on-write workspace, and closes it. Returns the kept changes
    /// when nothing of it is left. The close continues if the caller no longer waits for it.
    ///
    /// # Errors
    /// - `NotFound` as in [`Self::find`].
    /// - An error of keeping the changes. The sandbox remains, without its execs.
    /// - The errors of [`cofferdam_contract::Sandbox::close`].
    pub async fn delete(
        self: &Arc<Self>,
        tenant: &TenantId,
        id_or_name: &str,
        unkept: Unkept,
    ) -> Result<Option<KeptChanges>> {
        let live = self.find(tenant, id_or_name)?;
        if !self.remove(&live) {
            return Err(missing());
        }
        let all = Arc::clone(self);
        let closed = self.closing.spawn(async move { all.end(live, unkept).await });
        closed.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, "close", "the close of the sandbox ended early").with_source(error))
        })
    }

    fn remove(&self, live: &LiveSandbox) -> bool {
        let mut table = self.table.lock();
        if let Some(name) = live.name() {
            // A second removal finds the name of a newer sandbox.
            let key = (live.tenant.clone(), name);
            if table.names.get(&key) == Some(&live.id) {
                table.names.remove(&key);
            }
        }
        table.live.remove(&(live.tenant.clone(), live.id.clone())).is_some()
    }

    /// Closes the sandboxes whose time is over. Runs until it is dropped.
    pub async fn close_expired(self: Arc<Self>, tick: Duration) {
        let mut interval = tokio::time::interval(tick);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            let now = Instant::now();
            let all: Vec<_> = self.table.lock().live.values().cloned().collect();
            self.close_all_of(all.into_iter().filter(|live| live.is_over(now)));
        }
    }

    /// Refuses new sandboxes, closes all and waits until nothing of them is left.
    pub async fn stop(self: &Arc<Self>) {
        self.refuse_new();
        let all: Vec<_> = self.table.lock().live.values().cloned().collect();
        self.close_all_of(all.into_iter());
        self.closing.close();
        self.closing.wait().await;
    }

    /// Refuses new sandboxes, those that are being created included.
    pub fn refuse_new(&self) {
        self.refuse_further();
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Refuses new sandboxes. Those that are being created live.
    pub fn refuse_further(&self) {
        self.refusing.store(true, Ordering::SeqCst);
    }

    /// Returns true if new sandboxes are refused.
    pub fn is_stopping(&self) -> bool {
        self.refusing.load(Ordering::SeqCst)
    }

    fn close_all_of(self: &Arc<Self>, these: impl Iterator<Item = Arc<LiveSandbox>>) {
        for live in these {
            if self.remove(&live) {
                let all = Arc::clone(self);
                // A failed close is the backend's to report; its layers count and record it.
                self.closing.spawn(async move { all.end(live, Unkept::Report).await });
            }
        }
    }
}

fn missing() -> Error {
    Error::new(ErrorKind::NotFound, "find sandbox", "there is no such sandbox")
}

/// Checks the name of an object whose ids start with `prefix`.
///
/// # Errors
/// - `InvalidInput` for a malformed name, and for one that looks like an id.
pub fn check_name(name: &str, prefix: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_id = name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('-'));
    if name.len() > MAX_NAME || !starts_well || !name.chars().all(plain) || is_id {
        let rule = format!(
            "a name must be 1 to 64 letters, digits, '.', '_' or '-', start with a letter or digit, and not with \
             '{prefix}-'"
        );
        return Err(Error::invalid("create", rule));
    }
    Ok(())
}

/// A name that is taken while its sandbox is being created.
struct NameHold<'a> {
    of: &'a Sandboxes,
    key: (TenantId, String),
    is_retained: bool,
}

impl<'a> NameHold<'a> {
    fn take(of: &'a Sandboxes, tenant: &TenantId, name: String, id: &str) -> Result<Self> {
        check_name(&name, PREFIX)?;
        let key = (tenant.clone(), name);
        let mut table = of.table.lock();
        if table.names.contains_key(&key) {
            let message = format!("there is a sandbox with the name '{}' already", key.1);
            return Err(Error::new(ErrorKind::Conflict, "create", message)
                .with_remedy("use another name, or delete that sandbox"));
        }
        table.names.insert(key.clone(), id.to_owned());
        Ok(Self { of, key, is_retained: false })
    }
}

impl Drop for NameHold<'_> {
    fn drop(&mut self) {
        if !self.is_retained {
            self.of.table.lock().names.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_simulated::SimulatedBackend;

    /// Promise (Server): A late removal of a sandbox leaves the name of a newer one.
    #[tokio::test]
    async fn a_late_removal_leaves_the_name_of_a_newer_sandbox() {
        let sandboxes = Arc::new(Sandboxes::default());
        let backend: Arc<dyn Backend> = Arc::new(SimulatedBackend::default());
        let hour = Duration::from_secs(3600);
        let new = || NewSandbox {
            spec: Spec::default(),
            name: Some("a".to_owned()),
            life: hour,
            idle: hour,
            snapshot: None,
            parent: None,
            volumes: Vec::new(),
        };
        let first = sandboxes.create(&backend, new()).await.unwrap();
        assert!(sandboxes.remove(&first));
        let second = sandboxes.create(&backend, new()).await.unwrap();
        assert!(!sandboxes.remove(&first));
        assert_eq!(sandboxes.find(&second.tenant, "a").unwrap().id, second.id);
        sandboxes.stop().await;
    }
}
