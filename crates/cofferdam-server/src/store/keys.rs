//! The table of keys. It has hashes, never a key.

use std::collections::BTreeSet;

use cofferdam_contract::{Result, TenantId};
use sqlx::any::AnyRow;
use sqlx::{Row, query};

use super::{Store, failed};
use crate::caller::Scope;

/// A key as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The public part.
    pub id: String,
    /// The tenant.
    pub tenant: TenantId,
    /// A name for people.
    pub name: String,
    /// The SHA-256 of the secret part, in hexadecimal.
    pub hash: String,
    /// The permissions.
    pub scopes: BTreeSet<Scope>,
    /// The time of creation.
    pub created: i64,
    /// The time from which it is not valid.
    pub expires: Option<i64>,
    /// The time of its revocation.
    pub revoked: Option<i64>,
}

impl KeyRecord {
    fn read(row: &AnyRow) -> sqlx::Result<Self> {
        let scopes: String = row.try_get("scopes")?;
        let tenant: String = row.try_get("tenant")?;
        Ok(Self {
            id: row.try_get("id")?,
            tenant: TenantId::new(tenant).map_err(|error| sqlx::Error::Decode(error.into()))?,
            name: row.try_get("name")?,
            hash: row.try_get("hash")?,
            // A scope of a newer version grants nothing here.
            scopes: scopes.split(' ').filter_map(|scope| scope.parse().ok()).collect(),
            created: row.try_get("created")?,
            expires: row.try_get("expires")?,
            revoked: row.try_get("revoked")?,
        })
    }

    /// Returns true if the key is valid at this time.
    pub fn is_valid(&self, now: i64) -> bool {
        self.revoked.is_none() && self.expires.is_none_or(|expires| now < expires)
    }
}

const COLUMNS: &str = "SELECT id, tenant, name, hash, scopes, created, expires, revoked FROM api_keys WHERE id = $1";
const ALL: &str = "SELECT id, tenant, name, hash, scopes, created, expires, revoked FROM api_keys ORDER BY created, id";

impl Store {
    /// Adds a key.
    pub async fn add_key(&self, key: &KeyRecord) -> Result<()> {
        let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.as_str()).collect();
        let insert = "INSERT INTO api_keys (id, tenant, name, hash, scopes, created, expires, revoked)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        query(insert)
            .bind(&key.id)
            .bind(key.tenant.as_str())
            .bind(&key.name)
            .bind(&key.hash)
            .bind(scopes.join(" "))
            .bind(key.created)
            .bind(key.expires)
            .bind(key.revoked)
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(|error| failed("add key", error))
    }

    /// Finds a key by its public part.
    pub async fn key(&self, id: &str) -> Result<Option<KeyRecord>> {
        let row = query(COLUMNS).bind(id).fetch_optional(&self.pool).await;
        let found = row.and_then(|row| row.as_ref().map(KeyRecord::read).transpose());
        found.map_err(|error| failed("find key", error))
    }

    /// Returns all keys, oldest first.
    pub async fn keys(&self) -> Result<Vec<KeyRecord>> {
        let rows = query(ALL).fetch_all(&self.pool).await;
        let all = rows.and_then(|rows| rows.iter().map(KeyRecord::read).collect());
        all.map_err(|error| failed("list keys", error))
    }

    /// Revokes a key. Returns false if there is no such key, or if it was revoked before.
    pub async fn revoke_key(&self, id: &str, now: i64) -> Result<bool> {
        let update = "UPDATE api_keys SET revoked = $1 WHERE id = $2 AND revoked IS NULL";
        let done = query(update).bind(now).bind(id).execute(&self.pool).await;
        done.map(|done| done.rows_affected() > 0).map_err(|error| failed("revoke key", error))
    }

    /// Sets the end of a key, unless it ends before.
    pub async fn expire_key(&self, id: &str, expires: i64) -> Result<()> {
        let update = "UPDATE api_keys SET expires = $1 WHERE id = $2 AND (expires IS NULL OR expires > $1)";
        let done = query(update).bind(expires).bind(id).execute(&self.pool).await;
        done.map(drop).map_err(|error| failed("rotate key", error))
    }
}
