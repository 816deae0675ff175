//! The table of quotas, one JSON document for each tenant that differs from the default.

use cofferdam_contract::{Result, TenantId};
use sqlx::{Row, query};

use super::{Store, failed};

impl Store {
    /// Returns the documents of all tenants.
    pub async fn quotas(&self) -> Result<Vec<(TenantId, String)>> {
        let rows = query("SELECT tenant, document FROM quotas ORDER BY tenant").fetch_all(&self.pool).await;
        let rows = rows.map_err(|error| failed("read quotas", error))?;
        rows.iter()
            .map(|row| {
                let read = |column| row.try_get::<String, _>(column).map_err(|error| failed("read quotas", error));
                Ok((TenantId::new(read("tenant")?)?, read("document")?))
            })
            .collect()
    }

    /// Sets the document of a tenant. `None` removes it.
    pub async fn set_quota(&self, tenant: &TenantId, document: Option<&str>) -> Result<()> {
        let done = match document {
            Some(document) => {
                let upsert = "INSERT INTO quotas (tenant, document) VALUES ($1, $2)
                    ON CONFLICT (tenant) DO UPDATE SET document = excluded.document";
                query(upsert).bind(tenant.as_str()).bind(document).execute(&self.pool).await
            }
            None => query("DELETE FROM quotas WHERE tenant = $1").bind(tenant.as_str()).execute(&self.pool).await,
        };
        done.map(drop).map_err(|error| failed("set quota", error))
    }
}
