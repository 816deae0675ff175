//! The table of snapshots. Their contents are files of the server that took them.

use cofferdam_contract::{Result, TenantId};
use sqlx::any::AnyRow;
use sqlx::{Row, query};

use super::{Store, failed};

/// A snapshot as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRecord {
    /// The id.
    pub id: String,
    /// The tenant.
    pub tenant: TenantId,
    /// The name, unique for the tenant on this server.
    pub name: Option<String>,
    /// The backend by the name that it is served with.
    pub backend: String,
    /// The time of creation.
    pub created: i64,
    /// The length of the file.
    pub bytes: u64,
    /// The SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// The limits of the sandbox, as JSON.
    pub limits: String,
    /// The id of the sandbox that it was taken of. `None` for an upload.
    pub parent: Option<String>,
}

impl SnapshotRecord {
    fn read(row: &AnyRow) -> Result<Self> {
        let text = |column| row.try_get::<String, _>(column).map_err(|error| failed("read snapshots", error));
        let number = |column| row.try_get::<i64, _>(column).map_err(|error| failed("read snapshots", error));
        let optional =
            |column| row.try_get::<Option<String>, _>(column).map_err(|error| failed("read snapshots", error));
        Ok(Self {
            id: text("id")?,
            tenant: TenantId::new(text("tenant")?)?,
            name: optional("name")?,
            backend: text("backend")?,
            created: number("created")?,
            bytes: u64::try_from(number("bytes")?).unwrap_or(0),
            sha256: text("sha256")?,
            limits: text("limits")?,
            parent: optional("parent")?,
        })
    }
}

impl Store {
    /// Adds a snapshot of a server.
    pub async fn add_snapshot(&self, server: &str, record: &SnapshotRecord) -> Result<()> {
        let insert = "INSERT INTO snapshots (id, server, tenant, name, backend, created, bytes, sha256, limits, parent)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        query(insert)
            .bind(&record.id)
            .bind(server)
            .bind(record.tenant.as_str())
            .bind(&record.name)
            .bind(&record.backend)
            .bind(record.created)
            .bind(i64::try_from(record.bytes).unwrap_or(i64::MAX))
            .bind(&record.sha256)
            .bind(&record.limits)
            .bind(&record.parent)
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(|error| failed("record snapshot", error))
    }

    /// Removes a snapshot.
    pub async fn remove_snapshot(&self, id: &str) -> Result<()> {
        let done = query("DELETE FROM snapshots WHERE id = $1").bind(id).execute(&self.pool).await;
        done.map(drop).map_err(|error| failed("remove snapshot", error))
    }

    /// Returns all snapshots of a server.
    pub async fn snapshots(&self, server: &str) -> Result<Vec<SnapshotRecord>> {
        let select = "SELECT id, tenant, name, backend, created, bytes, sha256, limits, parent FROM snapshots
            WHERE server = $1 ORDER BY id";
        let rows = query(select).bind(server).fetch_all(&self.pool).await;
        rows.map_err(|error| failed("read snapshots", error))?.iter().map(SnapshotRecord::read).collect()
    }
}
