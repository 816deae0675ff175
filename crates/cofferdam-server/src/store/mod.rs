//! The state that outlives the server, in SQLite or PostgreSQL: keys, quotas, usage, idempotency and sandboxes.
//!
//! Each module has the statements of one table. Both databases take the same statements. What a function has returned
//! is on the disk.

mod idempotency;
mod keys;
mod lost;
#[cfg(test)]
#[path = "../../tests/suite/postgres.rs"]
mod postgres;
mod quotas;
mod sandboxes;
mod schema;
mod snapshots;
mod usage;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_util::private;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{AnyPool, Executor};

pub use idempotency::StoredAnswer;
pub use keys::KeyRecord;
pub use sandboxes::SandboxRecord;
pub use snapshots::SnapshotRecord;
pub use usage::{Usage, UsagePosition, UsageRow};

/// Time to wait for a connection, and for other writers.
const WAIT: Duration = Duration::from_secs(5);
/// Connections to the database.
const CONNECTIONS: u32 = 8;

/// The location of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// A SQLite file, in a directory of this user.
    File(PathBuf),
    /// A PostgreSQL database by its URL, which may have a password.
    Url(String),
}

/// The state that outlives the server.
#[derive(Debug, Clone)]
pub struct Store {
    pool: AnyPool,
}

impl Store {
    /// Opens the state, and brings its tables up to date.
    ///
    /// # Errors
    /// - `InvalidInput` for another kind of database.
    /// - `Denied` for a directory that other users can change.
    /// - `Unavailable` for a database that cannot be used.
    pub async fn open(database: &Database) -> Result<Self> {
        install_default_drivers();
        let options = AnyPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(WAIT);
        let (options, url) = match database {
            Database::File(path) => {
                // A connection to a file is not lost while it is idle.
                let options = options.test_before_acquire(false);
                (options.after_connect(|connection, _| Box::pin(pragmas(connection))), file(path)?)
            }
            Database::Url(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                (options, url.clone())
            }
            Database::Url(_) => {
                return Err(Error::invalid("open database", "the URL is not that of a PostgreSQL database")
                    .with_remedy("use postgres://USER@HOST/NAME, or no URL for a SQLite file"));
            }
        };
        let pool = options.connect(&url).await.map_err(|error| failed("open database", error))?;
        schema::migrate(&pool).await?;
        Ok(Self { pool })
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Returns the URL of a SQLite file in a directory that no other user can change.
fn file(path: &Path) -> Result<String> {
    let unusable = |message: String| {
        Error::new(ErrorKind::Denied, "open database", message).with_context("file", path.display().to_string())
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = private::create_directory(directory).and_then(|()| std::fs::metadata(directory));
    let found = found.map_err(|error| unusable(format!("cannot use the directory: {error}")))?;
    if let Some(exposure) = private::exposure(&found) {
        return Err(unusable(format!("the directory of the database is not safe: {exposure}")));
    }
    let text = path.to_str().ok_or_else(|| unusable("the path is not UTF-8".to_owned()))?;
    let encoded: Vec<_> = text.split('/').map(|part| utf8_percent_encode(part, NON_ALPHANUMERIC).to_string()).collect();
    Ok(format!("sqlite://{}?mode=rwc", encoded.join("/")))
}

/// Makes each commit durable, and lets readers work beside a writer.
async fn pragmas(connection: &mut sqlx::AnyConnection) -> sqlx::Result<()> {
    connection.execute("PRAGMA busy_timeout = 5000").await?;
    connection.execute("PRAGMA journal_mode = WAL").await?;
    connection.execute("PRAGMA synchronous = FULL").await?;
    Ok(())
}

/// Returns the contract's error of a database. It has no text of statements and no URL.
fn failed(operation: &'static str, error: sqlx::Error) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the database failed")
        .with_source(error)
        .with_remedy("check the database, its disk and its address; cofferdam serve --check does")
}

/// Returns seconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::postgres::Postgres;
    use super::*;

    /// Opens a new SQLite file, which is removed with the directory.
    pub(crate) async fn fresh() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&Database::File(directory.path().join("a b%.db"))).await.unwrap();
        (directory, store)
    }

    #[tokio::test]
    async fn files_are_reopened_and_unsafe_ones_refused() {
        let (directory, store) = fresh().await;
        store.close().await;
        let path = directory.path().join("a b%.db");
        assert!(path.exists());
        Store::open(&Database::File(path.clone())).await.unwrap().close().await;
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open).unwrap();
        assert_eq!(Store::open(&Database::File(path)).await.unwrap_err().kind(), ErrorKind::Denied);
        let error = Store::open(&Database::Url("mysql://root:secret@x/y".to_owned())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }

    /// Promise (Server): SQLite and PostgreSQL hold the same state.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_statement_works_on_both_databases() {
        let (_directory, store) = fresh().await;
        use_all(&store).await;
        store.close().await;
        let Some(postgres) = Postgres::start() else {
            return;
        };
        let store = Store::open(&Database::Url(postgres.url.clone())).await.unwrap();
        use_all(&store).await;
        store.close().await;
        // The tables stay, and are not made again.
        let store = Store::open(&Database::Url(postgres.url.clone())).await.unwrap();
        assert_eq!(store.keys().await.unwrap().len(), 1);
        store.close().await;
    }

    async fn use_all(store: &Store) {
        use crate::caller::Scope;
        use crate::identity::keys;
        let tenant = cofferdam_contract::TenantId::new("acme").unwrap();
        let scopes = Scope::of_tenants();
        let new = keys::NewKey { tenant: tenant.clone(), name: "ci".to_owned(), scopes, life: Some(WAIT) };
        let (key, record) = keys::create(store, new).await.unwrap();
        assert_eq!(keys::recognise(store, key.reveal()).await.unwrap().unwrap().tenant, tenant);
        store.expire_key(&record.id, now() + 1).await.unwrap();
        keys::revoke(store, &record.id).await.unwrap();
        assert_eq!(keys::recognise(store, key.reveal()).await.unwrap(), None);

        store.set_quota(&tenant, Some("{}")).await.unwrap();
        store.set_quota(&tenant, Some(r#"{"weight":2}"#)).await.unwrap();
        assert_eq!(store.quotas().await.unwrap(), [(tenant.clone(), r#"{"weight":2}"#.to_owned())]);
        store.set_quota(&tenant, None).await.unwrap();
        assert!(store.quotas().await.unwrap().is_empty());

        let row = UsageRow {
            tenant: "acme".to_owned(),
            day: 5,
            label: "x".to_owned(),
            usage: Usage { cpu_us: 1 << 40, execs: 1, disk_mib_ms: 3, audit_bytes: 5, ..Usage::default() },
        };
        let sandbox = |id: &str, server: &str| SandboxRecord {
            id: id.to_owned(),
            server: server.to_owned(),
            instance: format!("{server}-1"),
            sandbox: format!("sb-{id}"),
            name: Some(id.to_owned()),
            tenant: "acme".to_owned(),
            backend: "process".to_owned(),
            label: String::new(),
            memory_mib: 64,
            disk_mib: 32,
            created: 100,
            seen: 100,
        };
        for (id, server) in [("a", "one"), ("b", "one"), ("c", "two")] {
            let counted = UsageRow { usage: Usage { sandboxes: 1, ..Usage::default() }, ..row.clone() };
            store.add_sandbox(&sandbox(id, server), &counted).await.unwrap();
            assert!(store.add_sandbox(&sandbox(id, server), &counted).await.is_err(), "a record of this id exists");
        }
        store.see_sandboxes("one-1", 160).await.unwrap();
        store.settle(&[row.clone(), row.clone()], &["a".to_owned()]).await.unwrap();
        let usage = store.usage(Some(&tenant), 0, 9).await.unwrap();
        assert_eq!((usage.len(), usage[0].usage.cpu_us, usage[0].usage.execs), (1, 1 << 41, 2));
        assert_eq!(store.usage_of_tenants(5).await.unwrap()[0].usage, usage[0].usage);
        assert_eq!(store.sandboxes("one").await.unwrap().len(), 1);
        assert_eq!(crate::layers::quota::recover(store, "one", |_| true).await.unwrap(), 0, "its process lives");
        assert_eq!(crate::layers::quota::recover(store, "one", |_| false).await.unwrap(), 1);
        assert_eq!(crate::layers::quota::recover(store, "one", |_| false).await.unwrap(), 0);
        for (lost, name) in [(true, "b"), (true, "sb-b"), (false, "a"), (false, "c")] {
            assert_eq!(store.lost_sandbox(&tenant, name).await.unwrap().is_some(), lost, "{name}");
        }
        store.rename_sandbox("sb-c", Some("d")).await.unwrap();
        store.lose_sandboxes("two-1", 70, "stopped").await.unwrap();
        assert_eq!(store.lost_sandbox(&tenant, "d").await.unwrap().as_deref(), Some("stopped"));
        store.forget_lost(71).await.unwrap();
        assert_eq!(store.lost_sandbox(&tenant, "d").await.unwrap(), None);
        let all = store.usage(None, 0, i64::MAX / 2).await.unwrap();
        let memory: i64 = all.iter().map(|row| row.usage.memory_mib_ms).sum();
        // A sandbox is counted with its record and charged at intervals, so that its end charges nothing twice.
        let counted: i64 = all.iter().map(|row| row.usage.sandboxes).sum();
        assert_eq!((memory, counted, store.sandboxes("two").await.unwrap().len()), (0, 3, 1));

        let answer = StoredAnswer { fingerprint: "f".to_owned(), created: 50, status: 201, body: "{}".to_owned() };
        store.add_answer(&tenant, "k", &answer).await.unwrap();
        let newer = StoredAnswer { created: 60, ..answer };
        store.add_answer(&tenant, "k", &newer).await.unwrap();
        assert_eq!(store.answer(&tenant, "k").await.unwrap(), Some(newer));
        store.forget_answers(61).await.unwrap();
        assert_eq!(store.answer(&tenant, "k").await.unwrap(), None);
    }

    #[tokio::test]
    async fn an_error_names_no_password() {
        let url = "postgres://user:hunter2@127.0.0.1:1/x".to_owned();
        let error = Store::open(&Database::Url(url)).await.unwrap_err();
        assert!(!format!("{error:?} {error}").contains("hunter2"), "{error}");
    }
}
