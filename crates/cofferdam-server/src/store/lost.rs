//! The table of sandboxes that ended with a process of the server, so that their clients learn the reason.

use cofferdam_contract::{Result, TenantId};
use sqlx::{Row, query};

use super::{Store, failed};

impl Store {
    /// Keeps the reason for the end of all sandboxes of a process, before they are settled.
    pub async fn lose_sandboxes(&self, instance: &str, now: i64, reason: &str) -> Result<()> {
        let insert = "INSERT INTO lost_sandboxes (id, tenant, name, lost, reason)
            SELECT sandbox, tenant, name, $2, $3 FROM sandboxes WHERE instance = $1 AND sandbox <> ''
            ON CONFLICT (id) DO NOTHING";
        let done = query(insert).bind(instance).bind(now).bind(reason).execute(&self.pool).await;
        done.map(drop).map_err(|error| failed("record sandboxes", error))
    }

    /// Returns the reason for the end of a tenant's sandbox, by its id or its last name.
    pub async fn lost_sandbox(&self, tenant: &TenantId, id_or_name: &str) -> Result<Option<String>> {
        let select = "SELECT reason FROM lost_sandboxes WHERE tenant = $1 AND (id = $2 OR name = $2)
            ORDER BY lost DESC LIMIT 1";
        let row = query(select).bind(tenant.as_str()).bind(id_or_name).fetch_optional(&self.pool).await;
        let reason = row.and_then(|row| row.map(|row| row.try_get("reason")).transpose());
        reason.map_err(|error| failed("find sandbox", error))
    }

    /// Removes the reasons from before this time.
    pub async fn forget_lost(&self, before: i64) -> Result<()> {
        let done = query("DELETE FROM lost_sandboxes WHERE lost < $1").bind(before).execute(&self.pool).await;
        done.map(drop).map_err(|error| failed("forget sandboxes", error))
    }

    /// Changes the name of a sandbox.
    pub async fn rename_sandbox(&self, sandbox: &str, name: Option<&str>) -> Result<()> {
        let update = "UPDATE sandboxes SET name = $1 WHERE sandbox = $2";
        let done = query(update).bind(name).bind(sandbox).execute(&self.pool).await;
        done.map(drop).map_err(|error| failed("rename", error))
    }
}
