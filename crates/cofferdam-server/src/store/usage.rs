//! The table of usage by tenant, day and label. Records are only ever added to it.

use std::fmt;
use std::str::FromStr;

use cofferdam_contract::{Error, Result, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Connection as _, Row, query};

use super::{Store, failed};

/// The most rows of a complete list.
const MAX_ROWS: usize = 100_000;

/// An amount of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Sandboxes that were created.
    pub sandboxes: i64,
    /// Execs that were started.
    pub execs: i64,
    /// CPU time, in microseconds.
    pub cpu_us: i64,
    /// Memory that was reserved, in mebibytes times milliseconds.
    pub memory_mib_ms: i64,
    /// Bytes that were sent and received.
    pub egress_bytes: i64,
    /// Bytes of output.
    pub output_bytes: i64,
    /// Disk of sandboxes by their limits, in mebibytes times milliseconds.
    #[serde(default)]
    pub disk_mib_ms: i64,
    /// Bytes of audit records.
    #[serde(default)]
    pub audit_bytes: i64,
}

impl Usage {
    /// Adds another usage.
    pub fn add(&mut self, other: &Self) {
        self.each(other, i64::saturating_add);
    }

    /// Returns what was used in addition to an earlier usage.
    pub fn since(mut self, earlier: &Self) -> Self {
        self.each(earlier, |all, known| all.saturating_sub(known).max(0));
        self
    }

    fn each(&mut self, other: &Self, merge: fn(i64, i64) -> i64) {
        let Self { sandboxes, execs, cpu_us, memory_mib_ms, egress_bytes, output_bytes, disk_mib_ms, audit_bytes } =
            other;
        for (sum, more) in [
            (&mut self.sandboxes, sandboxes),
            (&mut self.execs, execs),
            (&mut self.cpu_us, cpu_us),
            (&mut self.memory_mib_ms, memory_mib_ms),
            (&mut self.egress_bytes, egress_bytes),
            (&mut self.output_bytes, output_bytes),
            (&mut self.disk_mib_ms, disk_mib_ms),
            (&mut self.audit_bytes, audit_bytes),
        ] {
            *sum = merge(*sum, *more);
        }
    }
}

/// The usage of a tenant on a day under a label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UsageRow {
    /// The tenant.
    pub tenant: String,
    /// Days since 1970.
    pub day: i64,
    /// The value of the label that usage is counted by; empty without one.
    pub label: String,
    /// The amount.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The position of a row in the order of lists. Its text has the day, the tenant and the label, with commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsagePosition {
    day: i64,
    tenant: String,
    label: String,
}

impl UsagePosition {
    /// The position before all rows.
    pub const START: Self = Self { day: i64::MIN, tenant: String::new(), label: String::new() };
}

impl fmt::Display for UsagePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { day, tenant, label } = self;
        write!(f, "{day},{tenant},{label}")
    }
}

impl FromStr for UsagePosition {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        // A label may have commas; a tenant has none.
        let mut parts = text.splitn(3, ',');
        let mut part = || parts.next().ok_or(());
        let day = part()?.parse().map_err(drop)?;
        Ok(Self { day, tenant: part()?.to_owned(), label: part()?.to_owned() })
    }
}

impl UsageRow {
    /// Returns the position of the row in the order of lists.
    pub fn position(&self) -> UsagePosition {
        UsagePosition { day: self.day, tenant: self.tenant.clone(), label: self.label.clone() }
    }

    fn read(row: &AnyRow) -> sqlx::Result<Self> {
        Ok(Self {
            tenant: row.try_get("tenant")?,
            day: row.try_get("day")?,
            label: row.try_get("label")?,
            usage: Usage {
                sandboxes: row.try_get("sandboxes")?,
                execs: row.try_get("execs")?,
                cpu_us: row.try_get("cpu_us")?,
                memory_mib_ms: row.try_get("memory_mib_ms")?,
                egress_bytes: row.try_get("egress_bytes")?,
                output_bytes: row.try_get("output_bytes")?,
                disk_mib_ms: row.try_get("disk_mib_ms")?,
                audit_bytes: row.try_get("audit_bytes")?,
            },
        })
    }
}

/// Adds the usage of a row.
pub(super) async fn add(connection: &mut AnyConnection, row: &UsageRow) -> sqlx::Result<()> {
    let upsert = "INSERT INTO usage_of_day AS u (tenant, day, label, sandboxes, execs, cpu_us, memory_mib_ms,
            egress_bytes, output_bytes, disk_mib_ms, audit_bytes)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        ON CONFLICT (tenant, day, label) DO UPDATE SET sandboxes = u.sandboxes + excluded.sandboxes,
            execs = u.execs + excluded.execs, cpu_us = u.cpu_us + excluded.cpu_us,
            memory_mib_ms = u.memory_mib_ms + excluded.memory_mib_ms,
            egress_bytes = u.egress_bytes + excluded.egress_bytes,
            output_bytes = u.output_bytes + excluded.output_bytes,
            disk_mib_ms = u.disk_mib_ms + excluded.disk_mib_ms,
            audit_bytes = u.audit_bytes + excluded.audit_bytes";
    let UsageRow { tenant, day, label, usage } = row;
    query(upsert)
        .bind(tenant)
        .bind(day)
        .bind(label)
        .bind(usage.sandboxes)
        .bind(usage.execs)
        .bind(usage.cpu_us)
        .bind(usage.memory_mib_ms)
        .bind(usage.egress_bytes)
        .bind(usage.output_bytes)
        .bind(usage.disk_mib_ms)
        .bind(usage.audit_bytes)
        .execute(connection)
        .await
        .map(drop)
}

impl Store {
    /// Adds usage and removes the records of sandboxes that ended with it, in one transaction.
    ///
    /// # Errors
    /// - `Unavailable` if the database fails.
    pub async fn settle(&self, rows: &[UsageRow], ended: &[String]) -> Result<()> {
        if let ([row], []) = (rows, ended) {
            // One statement is a transaction of its own.
            let added = async { add(&mut *self.pool.acquire().await?, row).await };
            return added.await.map_err(|error| failed("record usage", error));
        }
        self.write("record usage", async |transaction| {
            for row in rows {
                add(transaction, row).await?;
            }
            for id in ended {
                query("DELETE FROM sandboxes WHERE id = $1").bind(id).execute(&mut *transaction).await?;
            }
            Ok(())
        })
        .await
    }

    /// Writes in one transaction.
    pub(super) async fn write(
        &self,
        operation: &'static str,
        work: impl AsyncFnOnce(&mut AnyConnection) -> sqlx::Result<()>,
    ) -> Result<()> {
        let write = async {
            let mut connection = self.pool.acquire().await?;
            let written = async {
                let mut transaction = connection.begin().await?;
                work(&mut transaction).await?;
                transaction.commit().await
            };
            let written = written.await;
            if written.is_err() {
                // SQLite ends a transaction itself when the disk is full. The driver does not notice, and would keep the
                // next transaction of this connection open, with the lock of writers.
                connection.close_on_drop();
            }
            written
        };
        write.await.map_err(|error| failed(operation, error))
    }

    /// Returns the usage of the days `from` to `to`, both included, of one tenant or of all.
    ///
    /// # Errors
    /// - `InvalidInput` for more than 100,000 rows.
    /// - `Unavailable` if the database fails.
    pub async fn usage(&self, tenant: Option<&TenantId>, from: i64, to: i64) -> Result<Vec<UsageRow>> {
        self.usage_rows(tenant, from, to, MAX_ROWS).await
    }

    async fn usage_rows(&self, tenant: Option<&TenantId>, from: i64, to: i64, max: usize) -> Result<Vec<UsageRow>> {
        let rows = self.usage_after(tenant, from, to, &UsagePosition::START, max + 1).await?;
        if rows.len() > max {
            return Err(Error::invalid("read usage", format!("the usage of these days has more than {max} rows"))
                .with_remedy("ask for fewer days, or for JSON, which has pages"));
        }
        Ok(rows)
    }

    /// Returns at most `limit` rows after a position, like [`Self::usage`].
    ///
    /// # Errors
    /// - `Unavailable` if the database fails.
    pub async fn usage_after(
        &self,
        tenant: Option<&TenantId>,
        from: i64,
        to: i64,
        after: &UsagePosition,
        limit: usize,
    ) -> Result<Vec<UsageRow>> {
        let select = "SELECT tenant, day, label, sandboxes, execs, cpu_us, memory_mib_ms, egress_bytes, output_bytes,
            disk_mib_ms, audit_bytes FROM usage_of_day WHERE day >= $1 AND day <= $2 AND ($3 = '' OR tenant = $3)
            AND (day, tenant, label) > ($4, $5, $6) ORDER BY day, tenant, label LIMIT $7";
        let rows = query(select)
            .bind(from)
            .bind(to)
            .bind(tenant.map_or("", TenantId::as_str))
            .bind(after.day)
            .bind(&after.tenant)
            .bind(&after.label)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&self.pool)
            .await;
        let rows = rows.and_then(|rows| rows.iter().map(UsageRow::read).collect());
        rows.map_err(|error| failed("read usage", error))
    }

    /// Returns the usage of each tenant on a day, all labels together. The label of the rows is empty.
    ///
    /// # Errors
    /// - `Unavailable` if the database fails.
    pub async fn usage_of_tenants(&self, day: i64) -> Result<Vec<UsageRow>> {
        // PostgreSQL adds up to another type.
        let select = "SELECT tenant, day, '' AS label, CAST(SUM(sandboxes) AS BIGINT) AS sandboxes,
            CAST(SUM(execs) AS BIGINT) AS execs, CAST(SUM(cpu_us) AS BIGINT) AS cpu_us,
            CAST(SUM(memory_mib_ms) AS BIGINT) AS memory_mib_ms, CAST(SUM(egress_bytes) AS BIGINT) AS egress_bytes,
            CAST(SUM(output_bytes) AS BIGINT) AS output_bytes, CAST(SUM(disk_mib_ms) AS BIGINT) AS disk_mib_ms,
            CAST(SUM(audit_bytes) AS BIGINT) AS audit_bytes
            FROM usage_of_day WHERE day = $1 GROUP BY tenant, day ORDER BY tenant";
        let rows = query(select).bind(day).fetch_all(&self.pool).await;
        let rows = rows.and_then(|rows| rows.iter().map(UsageRow::read).collect());
        rows.map_err(|error| failed("read usage", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn usage_adds_up_by_tenant_day_and_label() {
        let (_directory, store) = crate::store::tests::fresh().await;
        let row = |tenant: &str, day, cpu_us| UsageRow {
            tenant: tenant.to_owned(),
            day,
            label: String::new(),
            usage: Usage { execs: 1, cpu_us, ..Usage::default() },
        };
        store.settle(&[row("a", 5, 10), row("a", 5, 7), row("b", 5, 1)], &[]).await.unwrap();
        store.settle(&[row("a", 6, 3), row("a", 5, 1)], &[]).await.unwrap();
        let a = TenantId::new("a").unwrap();
        let own = store.usage(Some(&a), 5, 5).await.unwrap();
        assert_eq!((own.len(), own[0].usage.cpu_us, own[0].usage.execs), (1, 18, 3));
        assert_eq!(store.usage(None, 0, 9).await.unwrap().len(), 3);
    }

    #[test]
    fn a_position_is_read_from_its_text() {
        for position in [
            UsagePosition { day: 20_600, tenant: "a".to_owned(), label: "x,y".to_owned() },
            UsagePosition { day: -1, tenant: "a.b".to_owned(), label: String::new() },
            UsagePosition::START,
        ] {
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        for bad in ["", "1", "1,a", "x,a,l", "99999999999999999999,a,l"] {
            assert!(bad.parse::<UsagePosition>().is_err(), "{bad}");
        }
    }

    /// Promise (Server): A list of usage is complete or refused, and the usage of a day counts after a restart with all
    /// its labels.
    #[tokio::test]
    async fn usage_is_never_cut() {
        let (_directory, store) = crate::store::tests::fresh().await;
        let row = |tenant: &str, day, label: usize| UsageRow {
            tenant: tenant.to_owned(),
            day,
            label: label.to_string(),
            usage: Usage { cpu_us: 10, ..Usage::default() },
        };
        let rows: Vec<_> = (0..5).map(|label| row("a", 5, label)).chain([row("b", 5, 0), row("b", 6, 0)]).collect();
        store.settle(&rows, &[]).await.unwrap();
        assert_eq!(store.usage_rows(None, 5, 6, 7).await.unwrap().len(), 7);
        let error = store.usage_rows(None, 5, 6, 6).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.remedy()),
            (cofferdam_contract::ErrorKind::InvalidInput, Some("ask for fewer days, or for JSON, which has pages"))
        );
        let sums = store.usage_of_tenants(5).await.unwrap();
        let sums: Vec<_> = sums.iter().map(|row| (&*row.tenant, &*row.label, row.usage.cpu_us)).collect();
        assert_eq!(sums, [("a", "", 50), ("b", "", 10)]);
    }
}
