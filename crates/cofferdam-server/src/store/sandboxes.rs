//! The table of the live sandboxes that clients know by an id, to report their end after the server was killed.

use cofferdam_contract::Result;
use sqlx::any::AnyRow;
use sqlx::{Row, query};

use super::usage::{UsageRow, add};
use super::{Store, failed};

/// A live sandbox as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRecord {
    /// The id of the record.
    pub id: String,
    /// The name of the server.
    pub server: String,
    /// The process of the server that has it.
    pub instance: String,
    /// The id that clients use; empty for a run.
    pub sandbox: String,
    /// The name.
    pub name: Option<String>,
    /// The tenant.
    pub tenant: String,
    /// The backend.
    pub backend: String,
    /// The value of the label that usage is counted by.
    pub label: String,
    /// The memory that it reserves, in mebibytes.
    pub memory_mib: i64,
    /// The disk that it reserves, in mebibytes.
    pub disk_mib: i64,
    /// The time of creation.
    pub created: i64,
    /// The last time at which it lived.
    pub seen: i64,
}

impl SandboxRecord {
    fn read(row: &AnyRow) -> sqlx::Result<Self> {
        Ok(Self {
            id: row.try_get("id")?,
            server: row.try_get("server")?,
            instance: row.try_get("instance")?,
            sandbox: row.try_get("sandbox")?,
            name: row.try_get("name")?,
            tenant: row.try_get("tenant")?,
            backend: row.try_get("backend")?,
            label: row.try_get("label")?,
            memory_mib: row.try_get("memory_mib")?,
            disk_mib: row.try_get("disk_mib")?,
            created: row.try_get("created")?,
            seen: row.try_get("seen")?,
        })
    }
}

impl Store {
    /// Adds a sandbox and its usage, in one transaction.
    pub async fn add_sandbox(&self, record: &SandboxRecord, usage: &UsageRow) -> Result<()> {
        let insert = "INSERT INTO sandboxes
            (id, server, tenant, backend, label, memory_mib, created, seen, instance, sandbox, name, disk_mib)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
        let insert = query(insert)
            .bind(&record.id)
            .bind(&record.server)
            .bind(&record.tenant)
            .bind(&record.backend)
            .bind(&record.label)
            .bind(record.memory_mib)
            .bind(record.created)
            .bind(record.seen)
            .bind(&record.instance)
            .bind(&record.sandbox)
            .bind(&record.name)
            .bind(record.disk_mib);
        self.write("record sandbox", async |transaction| {
            insert.execute(&mut *transaction).await?;
            add(transaction, usage).await
        })
        .await
    }

    /// Records that all sandboxes of a process live at this time.
    pub async fn see_sandboxes(&self, instance: &str, now: i64) -> Result<()> {
        let update = "UPDATE sandboxes SET seen = $1 WHERE instance = $2";
        let done = query(update).bind(now).bind(instance).execute(&self.pool).await;
        done.map(drop).map_err(|error| failed("record sandboxes", error))
    }

    /// Returns all sandboxes of a server, of all its processes.
    pub async fn sandboxes(&self, server: &str) -> Result<Vec<SandboxRecord>> {
        let select = "SELECT id, server, tenant, backend, label, memory_mib, created, seen, instance, sandbox, name,
            disk_mib FROM sandboxes WHERE server = $1 ORDER BY created, id";
        let rows = query(select).bind(server).fetch_all(&self.pool).await;
        let rows = rows.and_then(|rows| rows.iter().map(SandboxRecord::read).collect());
        rows.map_err(|error| failed("read sandboxes", error))
    }
}
