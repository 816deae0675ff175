//! The table of answers that are repeated for the same `Idempotency-Key`.

use cofferdam_contract::{Result, TenantId};
use sqlx::{Row, query};

use super::{Store, failed};

/// An answer as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The digest of the request.
    pub fingerprint: String,
    /// The time of the request.
    pub created: i64,
    /// The HTTP status.
    pub status: i64,
    /// The document.
    pub body: String,
}

impl Store {
    /// Keeps an answer.
    pub async fn add_answer(&self, tenant: &TenantId, name: &str, answer: &StoredAnswer) -> Result<()> {
        let upsert = "INSERT INTO idempotency (tenant, name, fingerprint, created, status, body)
            VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, name) DO UPDATE SET
            fingerprint = excluded.fingerprint, created = excluded.created, status = excluded.status,
            body = excluded.body";
        query(upsert)
            .bind(tenant.as_str())
            .bind(name)
            .bind(&answer.fingerprint)
            .bind(answer.created)
            .bind(answer.status)
            .bind(&answer.body)
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(|error| failed("keep answer", error))
    }

    /// Finds an answer.
    pub async fn answer(&self, tenant: &TenantId, name: &str) -> Result<Option<StoredAnswer>> {
        let select = "SELECT fingerprint, created, status, body FROM idempotency WHERE tenant = $1 AND name = $2";
        let row = query(select).bind(tenant.as_str()).bind(name).fetch_optional(&self.pool).await;
        let found = row.and_then(|row| {
            let Some(row) = row else { return Ok(None) };
            Ok(Some(StoredAnswer {
                fingerprint: row.try_get("fingerprint")?,
                created: row.try_get("created")?,
                status: row.try_get("status")?,
                body: row.try_get("body")?,
            }))
        });
        found.map_err(|error| failed("find answer", error))
    }

    /// Removes the answers from before this time.
    pub async fn forget_answers(&self, before: i64) -> Result<()> {
        let done = query("DELETE FROM idempotency WHERE created < $1").bind(before).execute(&self.pool).await;
        done.map(drop).map_err(|error| failed("forget answers", error))
    }
}
