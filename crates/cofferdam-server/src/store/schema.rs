//! The tables and their history. A released migration is never changed; another one follows it.

use std::borrow::Cow;

use cofferdam_contract::{Error, ErrorKind, Result};
use sqlx::AnyPool;
use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// The migrations, oldest first. Times are seconds since 1970, days are days since 1970.
const MIGRATIONS: &[(&str, &str)] = &[
    (
        "keys",
        "CREATE TABLE api_keys (
            id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, hash TEXT NOT NULL, scopes TEXT NOT NULL,
            created BIGINT NOT NULL, expires BIGINT, revoked BIGINT)",
    ),
    (
        "usage",
        "CREATE TABLE usage_of_day (
            tenant TEXT NOT NULL, day BIGINT NOT NULL, label TEXT NOT NULL, sandboxes BIGINT NOT NULL,
            execs BIGINT NOT NULL, cpu_us BIGINT NOT NULL, memory_mib_ms BIGINT NOT NULL, egress_bytes BIGINT NOT NULL,
            output_bytes BIGINT NOT NULL, PRIMARY KEY (tenant, day, label))",
    ),
    ("quotas", "CREATE TABLE quotas (tenant TEXT PRIMARY KEY, document TEXT NOT NULL)"),
    (
        "sandboxes",
        "CREATE TABLE sandboxes (
            id TEXT PRIMARY KEY, server TEXT NOT NULL, tenant TEXT NOT NULL, backend TEXT NOT NULL,
            label TEXT NOT NULL, memory_mib BIGINT NOT NULL, created BIGINT NOT NULL, seen BIGINT NOT NULL)",
    ),
    (
        "idempotency",
        "CREATE TABLE idempotency (
            tenant TEXT NOT NULL, name TEXT NOT NULL, fingerprint TEXT NOT NULL, created BIGINT NOT NULL,
            status BIGINT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (tenant, name))",
    ),
    (
        "snapshots",
        "CREATE TABLE snapshots (
            id TEXT PRIMARY KEY, server TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT, backend TEXT NOT NULL,
            created BIGINT NOT NULL, bytes BIGINT NOT NULL, sha256 TEXT NOT NULL, limits TEXT NOT NULL)",
    ),
    ("parents of snapshots", "ALTER TABLE snapshots ADD COLUMN parent TEXT"),
    ("instances", "ALTER TABLE sandboxes ADD COLUMN instance TEXT NOT NULL DEFAULT ''"),
    ("ids of sandboxes", "ALTER TABLE sandboxes ADD COLUMN sandbox TEXT NOT NULL DEFAULT ''"),
    ("names of sandboxes", "ALTER TABLE sandboxes ADD COLUMN name TEXT"),
    (
        "lost sandboxes",
        "CREATE TABLE lost_sandboxes (
            id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT, lost BIGINT NOT NULL, reason TEXT NOT NULL)",
    ),
    ("usage of disk", "ALTER TABLE usage_of_day ADD COLUMN disk_mib_ms BIGINT NOT NULL DEFAULT 0"),
    ("audit bytes", "ALTER TABLE usage_of_day ADD COLUMN audit_bytes BIGINT NOT NULL DEFAULT 0"),
    ("disk of sandboxes", "ALTER TABLE sandboxes ADD COLUMN disk_mib BIGINT NOT NULL DEFAULT 0"),
];

/// Brings the tables up to date.
///
/// # Errors
/// - `Unavailable` if the database fails, or was written by a newer version.
pub async fn migrate(pool: &AnyPool) -> Result<()> {
    let all = MIGRATIONS.iter().zip(1..).map(|((name, statement), version)| {
        let sql = SqlStr::from_static(statement);
        Migration::new(version, Cow::Borrowed(*name), MigrationType::Simple, sql, false)
    });
    Migrator::with_migrations(all.collect()).run(pool).await.map_err(|error| {
        Error::new(ErrorKind::Unavailable, "open database", "cannot bring the tables up to date")
            .with_source(error)
            .with_remedy("use the version of cofferdam that wrote the database last, or another database")
    })
}
