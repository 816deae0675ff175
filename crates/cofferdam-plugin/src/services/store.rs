//! The embedded database: transactions, quotas and identifiers.
//!
//! A transaction is durable once it is committed, and a crash leaves no part of one behind.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cofferdam_contract::{Error, ErrorKind as Kind, Result};
use redb::{Database, DatabaseError, ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use crate::{CallError, ErrorKind};

use super::Caller;

/// Memory for pages. The library's default is 1 GiB.
const CACHE: usize = 16 << 20;
const FILE: &str = "services.redb";

/// A table of records by plugin, tenant and name.
pub(super) type Records = TableDefinition<'static, (&'static str, &'static str, &'static str), &'static [u8]>;
/// A table of records by tenant and name.
pub(super) type Shared = TableDefinition<'static, (&'static str, &'static str), &'static [u8]>;

/// The number and bytes of stored objects, by service, owner and tenant.
const USAGE: TableDefinition<(&str, &str, &str), (u64, u64)> = TableDefinition::new("usage");
/// Numbers that only grow.
const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");

macro_rules! from_errors {
    ($($error:ty),*) => {$(
        impl From<$error> for CallError {
            fn from(error: $error) -> Self {
                internal(error)
            }
        }
    )*};
}
from_errors!(redb::StorageError, redb::TableError, redb::TransactionError, redb::CommitError, serde_json::Error);

/// Returns the error for a failure of the host's own state.
pub(super) fn internal(error: impl std::fmt::Display) -> CallError {
    CallError::new(ErrorKind::Internal, format!("cannot access the state of the services: {error}"))
}

/// Returns a random identifier of 32 hexadecimal digits.
pub(super) fn random_id() -> std::result::Result<String, CallError> {
    cofferdam_util::hex::random(16).map_err(internal)
}

/// The database. A lock of its file refuses a second host.
pub(super) struct Store {
    database: Database,
}

impl Store {
    /// Opens or creates the database of a directory.
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE);
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        file.map_err(|error| failed(&path, error))?;
        let database = redb::Builder::new().set_cache_size(CACHE).create(&path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => Error::new(
                Kind::Unavailable,
                "open",
                "cannot open the state of the services: another plugin host uses it",
            )
            .with_context("path", path.display().to_string())
            .with_remedy("stop the other host, or use another state directory"),
            error => failed(&path, error),
        })?;
        let store = Self { database };
        store.create_tables().map_err(|error| failed(&path, error))?;
        Ok(store)
    }

    fn create_tables(&self) -> std::result::Result<(), CallError> {
        self.write(|transaction| {
            for table in [super::kv::VALUES, super::scheduler::TIMERS, super::secrets::SECRETS] {
                transaction.open_table(table)?;
            }
            for table in [super::calendar::ENTRIES, super::artifacts::NAMES] {
                transaction.open_table(table)?;
            }
            transaction.open_table(super::kv::EXPIRY)?;
            transaction.open_table(super::scheduler::DUE)?;
            transaction.open_table(super::artifacts::DIGESTS)?;
            transaction.open_table(super::secrets::CHECK)?;
            transaction.open_table(USAGE)?;
            transaction.open_table(COUNTERS)?;
            Ok(())
        })
    }

    /// Runs `read` on one consistent state.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> std::result::Result<T, CallError>,
    ) -> std::result::Result<T, CallError> {
        use redb::ReadableDatabase;
        read(&self.database.begin_read()?)
    }

    /// Runs `change` and commits. An error of `change` discards what it changed.
    pub(super) fn write<T>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> std::result::Result<T, CallError>,
    ) -> std::result::Result<T, CallError> {
        let transaction = self.database.begin_write()?;
        let result = change(&transaction);
        match result {
            Ok(_) => transaction.commit()?,
            Err(_) => transaction.abort()?,
        }
        result
    }
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Error {
    Error::new(Kind::Io, "open", format!("cannot open the state of the services: {error}"))
        .with_context("path", path.display().to_string())
        .with_remedy("check the directory's permissions and space; move a damaged file away to start with an empty one")
}

/// Returns the next number of a counter.
pub(super) fn next_number(transaction: &WriteTransaction, counter: &str) -> std::result::Result<u64, CallError> {
    let mut counters = transaction.open_table(COUNTERS)?;
    let next = counters.get(counter)?.map_or(0, |number| number.value()) + 1;
    counters.insert(counter, next)?;
    Ok(next)
}

/// A maximum of stored objects and of their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The number of objects.
    pub count: u64,
    /// The bytes of all objects, with their names.
    pub bytes: u64,
}

/// A change of what is stored: the bytes of an object before and after, where it exists.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    pub(super) before: Option<u64>,
    pub(super) after: Option<u64>,
}

impl Quota {
    /// Returns the usage after a change, or `None` if the change grows it beyond the quota.
    fn after(self, (count, bytes): (u64, u64), change: Change) -> Option<(u64, u64)> {
        let (old, new) = (u64::from(change.before.is_some()), u64::from(change.after.is_some()));
        let after_count = count.saturating_sub(old).saturating_add(new);
        let after_bytes = bytes.saturating_sub(change.before.unwrap_or(0)).saturating_add(change.after.unwrap_or(0));
        let is_within =
            (after_count <= count || after_count <= self.count) && (after_bytes <= bytes || after_bytes <= self.bytes);
        is_within.then_some((after_count, after_bytes))
    }
}

/// Records a change in the usage of a service. Fails if the change grows it beyond the quota.
pub(super) fn charge(
    transaction: &WriteTransaction,
    (service, owner, tenant): (&str, &str, &str),
    quota: Quota,
    change: Change,
) -> std::result::Result<(), CallError> {
    let mut usage = transaction.open_table(USAGE)?;
    let used = usage.get((service, owner, tenant))?.map_or((0, 0), |used| used.value());
    let after = quota.after(used, change).ok_or_else(|| {
        let message = format!(
            "the quota of {service} is used up: {} objects of {} and {} bytes of {}; delete some first",
            used.0, quota.count, used.1, quota.bytes
        );
        CallError::new(ErrorKind::Limit, message)
    })?;
    usage.insert((service, owner, tenant), after)?;
    Ok(())
}

impl Caller {
    /// Returns the tenant as a part of keys. No tenant differs from every tenant.
    pub(super) fn tenant_key(&self) -> String {
        self.tenant.as_ref().map_or_else(|| "-".to_owned(), |tenant| format!("={tenant}"))
    }
}

/// Returns the tenant of a part of a key.
pub(super) fn tenant_of(key: &str) -> Option<String> {
    key.strip_prefix('=').map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_second_host_on_the_same_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let first = Store::open(directory.path()).unwrap();
        let error = Store::open(directory.path()).err().expect("the lock refuses");
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.message().contains("another plugin host"), "{error}");
        drop(first);
        assert!(Store::open(directory.path()).is_ok());
    }

    #[test]
    fn an_error_discards_the_changes() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let failed = store.write(|transaction| {
            next_number(transaction, "x")?;
            Err::<(), _>(CallError::invalid("no"))
        });
        assert_eq!(failed.unwrap_err().message, "no");
        assert_eq!(store.write(|transaction| next_number(transaction, "x")).unwrap(), 1);
        drop(store);
        let store = Store::open(directory.path()).unwrap();
        assert_eq!(store.write(|transaction| next_number(transaction, "x")).unwrap(), 2);
    }

    /// The file as it is on the disk after a commit, without the close of the database, is what a crash leaves.
    #[test]
    fn a_commit_survives_a_crash() {
        let (directory, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = Store::open(directory.path()).unwrap();
        for _ in 0..3 {
            store.write(|transaction| next_number(transaction, "x")).unwrap();
        }
        std::fs::copy(directory.path().join(FILE), after.path().join(FILE)).unwrap();
        let crashed = Store::open(after.path()).unwrap();
        assert_eq!(crashed.write(|transaction| next_number(transaction, "x")).unwrap(), 4);
    }

    #[test]
    fn data_beyond_a_lowered_quota_can_only_shrink() {
        let after = |before, after| Quota { count: 1, bytes: 10 }.after((5, 50), Change { before, after });
        assert_eq!(after(Some(10), Some(9)), Some((5, 49)));
        assert_eq!(after(Some(10), None), Some((4, 40)));
        assert_eq!(after(Some(10), Some(11)), None);
        assert_eq!(after(None, Some(0)), None);
    }

    #[test]
    fn tenants_round_trip_through_keys() {
        for tenant in [None, Some(String::new()), Some("-".to_owned()), Some("=a".to_owned())] {
            let caller = Caller { plugin: "p".into(), tenant: tenant.clone(), correlation: String::new() };
            assert_eq!(tenant_of(&caller.tenant_key()), tenant);
        }
    }

    proptest! {
        /// The usage is the sum of the objects and stays within the quota, after any changes.
        #[test]
        fn usage_is_the_sum_of_objects_within_the_quota(
            changes in proptest::collection::vec((0..6usize, proptest::option::of(0..50u64)), 0..60)
        ) {
            let quota = Quota { count: 4, bytes: 100 };
            let mut objects = [None; 6];
            let mut used = (0, 0);
            for (at, after) in changes {
                if let Some(next) = quota.after(used, Change { before: objects[at], after }) {
                    (used, objects[at]) = (next, after);
                } else {
                    prop_assert!(after.is_some(), "a removal was refused");
                }
                let count = objects.iter().flatten().count() as u64;
                prop_assert_eq!(used, (count, objects.iter().flatten().sum()));
                prop_assert!(used.0 <= quota.count && used.1 <= quota.bytes);
            }
        }
    }
}
