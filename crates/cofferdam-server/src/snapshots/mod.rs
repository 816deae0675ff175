//! The snapshots of all tenants: files below the server's state directory, with records in the database. Every look-up
//! is by tenant.
//!
//! ```text
//! reserved --> writing (NAME.part, bytes are reserved as they are written) --> file on the disk --> record --> listed
//! ```
//!
//! A start removes files without a record and records without a file.

mod archive;
mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Limits, Result, Snapshot, TenantId};
use cofferdam_util::{private, sha256};
use parking_lot::Mutex;

pub use archive::{SnapshotArchive, WorkspaceArchive};
use file::{Writing, failed};

use crate::admission::Admission;
use crate::ids::new_id;
use crate::live::check_name;
use crate::refusal::exhausted;
use crate::report;
use crate::store::{SnapshotRecord, Store, now};
use crate::turns::{Turn, Turns, blocking};

/// The start of every id.
const PREFIX: &str = "sn";
/// The time after which a quota of snapshots is checked again.
const LATER: Duration = Duration::from_secs(1);

/// The snapshots of all tenants.
#[derive(Debug)]
pub struct Snapshots {
    directory: PathBuf,
    server: String,
    store: Store,
    admission: Arc<Admission>,
    max_bytes: u64,
    turns: Turns,
    table: Mutex<Table>,
    /// Held while the table follows the database.
    changes: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Table {
    all: BTreeMap<(TenantId, String), Arc<SnapshotRecord>>,
    /// Names of snapshots and of those that are being written.
    names: BTreeSet<(TenantId, String)>,
    used: BTreeMap<TenantId, Used>,
    /// Ids of snapshots that this process is writing.
    writing: BTreeSet<String>,
}

/// The snapshots of a tenant, with those that are being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// The number of snapshots.
    pub snapshots: u32,
    /// The bytes of all together.
    pub bytes: u64,
}

/// Returns the name of a file that no record belongs to.
fn orphan(id: &str) -> String {
    format!("{id}.orphan")
}

/// Removes files of interrupted writers, and gives files without a record another name: the database may be the wrong
/// one.
fn set_aside(directory: &Path, table: &Table) -> Result<()> {
    let ids: BTreeSet<_> = table.all.keys().map(|(_, id)| id.as_str()).collect();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_written = table.writing.contains(name.strip_suffix(".part").unwrap_or(name));
        if is_written
            || ids.contains(name)
            || name.ends_with(".orphan")
            || !entry.file_type().map_err(failed)?.is_file()
        {
            continue;
        }
        if name.ends_with(".part") {
            std::fs::remove_file(entry.path()).map_err(failed)?;
        } else {
            report::warning(&format!("the snapshot file {name} has no record in this database"));
            std::fs::rename(entry.path(), directory.join(orphan(name))).map_err(failed)?;
        }
    }
    Ok(())
}

impl Snapshots {
    /// Opens the snapshots in a directory, which is created if it is missing. `server` is the name in the database.
    /// Files without a record remain until [`Self::take_over`] if another process of the server writes there, too.
    ///
    /// # Errors
    /// - `Denied` for a directory that other users can change.
    pub async fn open(
        directory: PathBuf,
        server: String,
        store: Store,
        admission: Arc<Admission>,
        max_bytes: u64,
        is_shared: bool,
    ) -> Result<Arc<Self>> {
        let found =
            private::create_directory(&directory).and_then(|()| std::fs::metadata(&directory)).map_err(failed)?;
        if let Some(exposure) = private::exposure(&found) {
            return Err(Error::new(
                ErrorKind::Denied,
                "serve",
                format!("the directory of snapshots is not safe: {exposure}"),
            )
            .with_context("directory", directory.display().to_string()));
        }
        let (turns, table, changes) = (Turns::default(), Mutex::default(), tokio::sync::Mutex::default());
        let this = Self { directory, server, store, admission, max_bytes, turns, table, changes };
        match is_shared {
            true => this.refresh().await?,
            false => this.take_over().await?,
        }
        Ok(Arc::new(this))
    }

    /// Adds what another process of this server has stored, and removes what it has deleted.
    ///
    /// # Errors
    /// - `Unavailable` if the database fails.
    pub async fn refresh(&self) -> Result<()> {
        let _changes = self.changes.lock().await;
        let records = self.store.snapshots(&self.server).await?;
        let mut table = self.table.lock();
        let stored: BTreeSet<_> = records.iter().map(|record| record.id.as_str()).collect();
        let deleted: Vec<_> = table.all.keys().filter(|(_, id)| !stored.contains(id.as_str())).cloned().collect();
        for (tenant, id) in deleted {
            table.remove(&tenant, &id);
        }
        for record in records {
            let key = (record.tenant.clone(), record.id.clone());
            if table.writing.contains(&record.id) || table.all.contains_key(&key) {
                continue;
            }
            let path = self.directory.join(&record.id);
            // An earlier start may have had another database.
            let _ = std::fs::rename(self.directory.join(orphan(&record.id)), &path);
            match std::fs::metadata(&path) {
                Ok(found) if found.len() == record.bytes => {
                    let used = table.used.entry(record.tenant.clone()).or_default();
                    used.snapshots += 1;
                    used.bytes += record.bytes;
                    table.insert(Arc::new(record));
                }
                // The directory may be another one, or not be mounted: the record stays.
                _ => report::warning(&format!("the file of the snapshot {} is missing or damaged", record.id)),
            }
        }
        Ok(())
    }

    /// Adds what other processes of this server have stored, and sets aside what they left unfinished. No other one runs.
    ///
    /// # Errors
    /// - `Unavailable` if the database fails, `Io` if the directory does.
    pub async fn take_over(&self) -> Result<()> {
        self.refresh().await?;
        set_aside(&self.directory, &self.table.lock())
    }

    pub(self) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Reserves a snapshot and its name, and starts to write it.
    ///
    /// # Errors
    /// - `ResourceExhausted` if the tenant's quota is used up.
    /// - `Conflict` if the tenant has a snapshot with this name.
    pub fn begin(self: &Arc<Self>, tenant: &TenantId, name: Option<String>) -> Result<NewSnapshot> {
        if let Some(name) = &name {
            check_name(name, PREFIX)?;
        }
        let id = new_id(PREFIX)?;
        let quota = self.admission.state_of(tenant).0;
        {
            let mut table = self.table.lock();
            let Table { names, used, .. } = &mut *table;
            let used = used.entry(tenant.clone()).or_default();
            if quota.snapshots.is_some_and(|max| used.snapshots >= max) {
                return Err(used_up("snapshots"));
            }
            if let Some(name) = &name
                && !names.insert((tenant.clone(), name.clone()))
            {
                let message = format!("there is a snapshot with the name '{name}' already");
                return Err(Error::new(ErrorKind::Conflict, "snapshot", message)
                    .with_remedy("use another name, or delete that snapshot"));
            }
            used.snapshots += 1;
            table.writing.insert(id.clone());
        }
        let of = Arc::clone(self);
        let reserved = Reserved { of, id: id.clone(), tenant: tenant.clone(), name, is_kept: false };
        let path = self.directory.join(format!("{id}.part"));
        let writing = Writing::create(Arc::clone(self), tenant.clone(), path)?;
        Ok(NewSnapshot { id, writing, reserved })
    }

    /// Reserves bytes of a tenant. Returns false if its quota is used up.
    pub(self) fn reserve(&self, tenant: &TenantId, bytes: u64) -> bool {
        let max = self.admission.state_of(tenant).0.snapshot_bytes;
        let mut table = self.table.lock();
        let used = table.used.entry(tenant.clone()).or_default();
        if max.is_some_and(|max| used.bytes + bytes > max.as_bytes()) {
            return false;
        }
        used.bytes += bytes;
        true
    }

    pub(self) fn release(&self, tenant: &TenantId, bytes: u64) {
        if let Some(used) = self.table.lock().used.get_mut(tenant) {
            used.bytes = used.bytes.saturating_sub(bytes);
        }
    }

    /// Returns what a tenant has.
    pub fn used(&self, tenant: &TenantId) -> Used {
        self.table.lock().used.get(tenant).copied().unwrap_or_default()
    }

    /// Finds a tenant's snapshot by id or name.
    ///
    /// # Errors
    /// - `NotFound` if the tenant has none. Snapshots of other tenants are not found either.
    pub fn find(&self, tenant: &TenantId, id_or_name: &str) -> Result<Arc<SnapshotRecord>> {
        let table = self.table.lock();
        let by_name = || {
            let own = table.all.values().filter(|record| record.tenant == *tenant);
            own.into_iter().find(|record| record.name.as_deref() == Some(id_or_name))
        };
        let found = table.all.get(&(tenant.clone(), id_or_name.to_owned())).or_else(by_name).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, "find snapshot", "there is no such snapshot"))
    }

    /// Returns a tenant's snapshots after the id `after`, oldest first, at most `max`.
    pub fn list(&self, tenant: &TenantId, after: Option<&str>, max: usize) -> Vec<Arc<SnapshotRecord>> {
        use std::ops::Bound::{Excluded, Unbounded};
        let table = self.table.lock();
        let from = (tenant.clone(), after.unwrap_or_default().to_owned());
        let own = table.all.range((Excluded(from), Unbounded)).take_while(|((owner, _), _)| owner == tenant);
        own.map(|(_, record)| Arc::clone(record)).take(max).collect()
    }

    /// Deletes a tenant's snapshot. Sandboxes that were created from it remain.
    ///
    /// # Errors
    /// - `NotFound` as in [`Self::find`].
    pub async fn delete(&self, tenant: &TenantId, id_or_name: &str) -> Result<()> {
        let record = self.find(tenant, id_or_name)?;
        let _changes = self.changes.lock().await;
        self.store.remove_snapshot(&record.id).await?;
        if !self.table.lock().remove(tenant, &record.id) {
            return Ok(());
        }
        let path = self.directory.join(&record.id);
        blocking(move || std::fs::remove_file(path).map_err(failed)).await
    }

    /// Opens the file of a snapshot.
    pub async fn open_file(&self, record: &SnapshotRecord) -> Result<File> {
        let path = self.directory.join(&record.id);
        blocking(move || File::open(path).map_err(failed)).await
    }

    /// Waits for the turn of work that reads or writes a snapshot, and needs a sandbox of the server's own for that.
    ///
    /// # Errors
    /// - Those of [`Turns::take`].
    pub async fn turn(&self, tenant: &TenantId) -> Result<Turn<'_>> {
        self.turns.take(tenant).await
    }

    /// Reads a snapshot, after a comparison of its file with its hash.
    ///
    /// # Errors
    /// - `Unavailable` if the file is damaged.
    /// - The errors of [`SnapshotArchive::load`].
    pub async fn load(&self, record: &SnapshotRecord, archive: &dyn SnapshotArchive, max: &Limits) -> Result<Snapshot> {
        let _turn = self.turn(&record.tenant).await?;
        let (path, expected) = (self.directory.join(&record.id), record.sha256.clone());
        let file = blocking(move || {
            let found = sha256::of_reader(File::open(&path).map_err(failed)?).map_err(failed)?;
            if found != expected {
                let message = "the file of the snapshot was changed";
                return Err(Error::new(ErrorKind::Unavailable, "restore", message)
                    .with_remedy("take or upload the snapshot again"));
            }
            File::open(&path).map_err(failed)
        });
        archive.load(file.await?, &record.tenant, max).await
    }
}

impl Table {
    fn insert(&mut self, record: Arc<SnapshotRecord>) {
        if let Some(name) = &record.name {
            self.names.insert((record.tenant.clone(), name.clone()));
        }
        self.all.insert((record.tenant.clone(), record.id.clone()), record);
    }

    /// Removes a snapshot with its name and its use of the quota. Returns false if there is none.
    fn remove(&mut self, tenant: &TenantId, id: &str) -> bool {
        let Some(record) = self.all.remove(&(tenant.clone(), id.to_owned())) else { return false };
        if let Some(name) = &record.name {
            self.names.remove(&(tenant.clone(), name.clone()));
        }
        if let Some(used) = self.used.get_mut(tenant) {
            used.snapshots = used.snapshots.saturating_sub(1);
            used.bytes = used.bytes.saturating_sub(record.bytes);
        }
        true
    }
}

fn used_up(quota: &'static str) -> Error {
    exhausted("snapshot", format!("the tenant's quota '{quota}' is used up"), LATER)
        .with_context("quota", quota)
        .with_remedy("delete a snapshot")
}

/// The reservation of a snapshot and its name.
#[derive(Debug)]
struct Reserved {
    of: Arc<Snapshots>,
    id: String,
    tenant: TenantId,
    name: Option<String>,
    is_kept: bool,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut table = self.of.table.lock();
        table.writing.remove(&self.id);
        if self.is_kept {
            return;
        }
        if let Some(name) = &self.name {
            table.names.remove(&(self.tenant.clone(), name.clone()));
        }
        if let Some(used) = table.used.get_mut(&self.tenant) {
            used.snapshots = used.snapshots.saturating_sub(1);
        }
    }
}

/// A snapshot that is being written. Dropping it leaves nothing.
#[derive(Debug)]
pub struct NewSnapshot {
    id: String,
    writing: Writing,
    reserved: Reserved,
}

impl NewSnapshot {
    /// Returns a writer to its file.
    pub fn writer(&self) -> impl std::io::Write + Send + use<> {
        self.writing.writer()
    }

    /// Returns the error of a failed write: that of the quota or of the server's bound, if it was reached.
    pub fn failure(&self, error: Error) -> Error {
        if self.writing.is_over() { used_up("snapshot_bytes") } else { error }
    }

    /// Opens what was written, for reading.
    pub async fn written(&self) -> Result<File> {
        let path: PathBuf = Path::to_path_buf(self.writing.path());
        blocking(move || File::open(path).map_err(failed)).await
    }

    /// Makes the snapshot durable and lists it. `parent` is the id of its sandbox.
    pub async fn finish(self, backend: &str, limits: &Limits, parent: Option<String>) -> Result<Arc<SnapshotRecord>> {
        let Self { id, writing, mut reserved } = self;
        let (of, tenant) = (Arc::clone(&reserved.of), reserved.tenant.clone());
        let to = of.directory.join(&id);
        let path = to.clone();
        let finished = blocking(move || writing.finish(&to)).await?;
        let record = Arc::new(SnapshotRecord {
            id,
            tenant: tenant.clone(),
            name: reserved.name.clone(),
            backend: backend.to_owned(),
            created: now(),
            bytes: finished.bytes,
            sha256: finished.sha256,
            limits: serde_json::to_string(limits).unwrap_or_default(),
            parent,
        });
        let _changes = of.changes.lock().await;
        if let Err(error) = of.store.add_snapshot(&of.server, &record).await {
            // The next start of the server removes what is left.
            let _ = std::fs::remove_file(path);
            of.release(&tenant, record.bytes);
            return Err(error);
        }
        of.table.lock().insert(Arc::clone(&record));
        reserved.is_kept = true;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::admission::QueueBounds;
    use crate::quota::{Capacity, Quota};

    #[tokio::test]
    async fn snapshots_of_another_process_are_listed_until_they_are_deleted() {
        let (directory, store) = crate::store::tests::fresh().await;
        let open = async || {
            let admission = Admission::new(Quota::default(), Capacity::default(), QueueBounds::default());
            let path = directory.path().join("snapshots");
            Snapshots::open(path, "test".to_owned(), store.clone(), admission, 1 << 20, true).await.unwrap()
        };
        let (first, second, tenant) = (open().await, open().await, TenantId::default());
        let new = first.begin(&tenant, Some("base".to_owned())).unwrap();
        new.writer().write_all(b"state").unwrap();
        let record = new.finish("simulated", &Limits::default(), None).await.unwrap();
        second.refresh().await.unwrap();
        assert_eq!(second.find(&tenant, "base").unwrap(), record);
        assert_eq!(second.used(&tenant), Used { snapshots: 1, bytes: 5 });
        second.delete(&tenant, "base").await.unwrap();
        first.refresh().await.unwrap();
        assert_eq!((first.used(&tenant), first.list(&tenant, None, 9)), (Used::default(), Vec::new()));
        drop(first.begin(&tenant, Some("base".to_owned())).unwrap());
    }
}
