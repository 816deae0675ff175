//! The key-value store: JSON values with versions for compare-and-set, and times to live.
//!
//! A version is a number of the whole host that only grows, so a key that was deleted and set again has another one.

use cofferdam_contract::parse_duration;
use redb::{ReadableTable, TableDefinition, WriteTransaction};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{CallError, ErrorKind};

use super::store::{Change, Records, charge, next_number};
use super::{Caller, Inner, page, parse};

pub(super) const VALUES: Records = Records::new("kv");
/// The keys with a time to live: plugin, tenant, expiry, key.
pub(super) const EXPIRY: TableDefinition<(&str, &str, u64, &str), ()> = TableDefinition::new("kv-expiry");

const MAX_KEY: usize = 512;
/// The bytes of a record before its value: version and expiry.
const HEADER: usize = 16;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Get {
    key: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Set {
    key: String,
    value: Value,
    if_version: Option<u64>,
    ttl: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Delete {
    key: String,
    if_version: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct List {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    limit: Option<usize>,
}

/// A stored record: version, expiry in milliseconds (0: never) and the JSON text of the value.
struct Record<'b> {
    version: u64,
    expires: u64,
    value: &'b [u8],
}

impl<'b> Record<'b> {
    fn parse(bytes: &'b [u8]) -> Option<Self> {
        let (header, value) = bytes.split_at_checked(HEADER)?;
        let number = |at: usize| header[at..at + 8].try_into().map(u64::from_be_bytes).ok();
        Some(Self { version: number(0)?, expires: number(8)?, value })
    }

    fn is_live(&self, now: u64) -> bool {
        self.expires == 0 || self.expires > now
    }

    fn to_bytes(&self) -> Vec<u8> {
        [&self.version.to_be_bytes()[..], &self.expires.to_be_bytes(), self.value].concat()
    }
}

impl Inner {
    pub(super) fn kv_get(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Get { key } = parse(params)?;
        let (tenant, now) = (caller.tenant_key(), self.now_ms());
        self.store.read(|transaction| {
            let values = transaction.open_table(VALUES)?;
            let found = values.get((caller.plugin.as_str(), tenant.as_str(), key.as_str()))?;
            match found.as_ref().and_then(|found| Record::parse(found.value())).filter(|record| record.is_live(now)) {
                Some(record) => {
                    Ok(json!({"value": serde_json::from_slice::<Value>(record.value)?, "version": record.version}))
                }
                None => Ok(json!({"value": null, "version": 0})),
            }
        })
    }

    pub(super) fn kv_set(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Set { key, value, if_version, ttl } = parse(params)?;
        check_key(&key)?;
        let text = serde_json::to_vec(&value)?;
        if text.len() > self.limits.kv_value {
            let message = format!("the value has {} bytes, and may have {}", text.len(), self.limits.kv_value);
            return Err(CallError::new(ErrorKind::Limit, message));
        }
        let now = self.now_ms();
        let expires = ttl.map(|ttl| expiry(&ttl, now)).transpose()?.unwrap_or(0);
        self.store.write(|transaction| {
            self.purge(transaction, caller, now)?;
            self.check_version(transaction, caller, &key, if_version)?;
            let version = next_number(transaction, "kv")?;
            self.replace(transaction, caller, &key, Some(Record { version, expires, value: &text }))?;
            Ok(json!({"version": version}))
        })
    }

    pub(super) fn kv_delete(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let Delete { key, if_version } = parse(params)?;
        let now = self.now_ms();
        self.store.write(|transaction| {
            self.purge(transaction, caller, now)?;
            self.check_version(transaction, caller, &key, if_version)?;
            Ok(json!({"deleted": self.replace(transaction, caller, &key, None)?}))
        })
    }

    pub(super) fn kv_list(&self, caller: &Caller, params: Value) -> Result<Value, CallError> {
        let List { prefix, after, limit } = parse(params)?;
        let limit = page(limit)?;
        let (tenant, now) = (caller.tenant_key(), self.now_ms());
        let start = after.as_deref().map_or(prefix.as_str(), |after| after.max(prefix.as_str()));
        self.store.read(|transaction| {
            let values = transaction.open_table(VALUES)?;
            let mut keys = Vec::new();
            for item in values.range((caller.plugin.as_str(), tenant.as_str(), start)..)? {
                let (stored_key, record) = item?;
                let (plugin, of, key) = stored_key.value();
                if plugin != caller.plugin || of != tenant || !key.starts_with(&prefix) {
                    break;
                }
                let is_live = Record::parse(record.value()).is_some_and(|record| record.is_live(now));
                if is_live && after.as_deref() != Some(key) {
                    keys.push(key.to_owned());
                }
                if keys.len() > limit {
                    break;
                }
            }
            let more = keys.len() > limit;
            keys.truncate(limit);
            Ok(json!({"keys": keys, "more": more}))
        })
    }

    /// Removes the caller's expired keys. The quota bounds their number.
    fn purge(&self, transaction: &WriteTransaction, caller: &Caller, now: u64) -> Result<(), CallError> {
        let tenant = caller.tenant_key();
        let expired: Vec<String> = {
            let index = transaction.open_table(EXPIRY)?;
            let (plugin, tenant) = (caller.plugin.as_str(), tenant.as_str());
            let found = index.range((plugin, tenant, 0, "")..(plugin, tenant, now + 1, ""))?;
            found.map(|item| Ok(item?.0.value().3.to_owned())).collect::<Result<_, redb::StorageError>>()?
        };
        for key in expired {
            self.replace(transaction, caller, &key, None)?;
        }
        Ok(())
    }

    fn check_version(
        &self,
        transaction: &WriteTransaction,
        caller: &Caller,
        key: &str,
        wanted: Option<u64>,
    ) -> Result<(), CallError> {
        let Some(wanted) = wanted else { return Ok(()) };
        let values = transaction.open_table(VALUES)?;
        let found = values.get((caller.plugin.as_str(), caller.tenant_key().as_str(), key))?;
        let version = found.and_then(|found| Some(Record::parse(found.value())?.version)).unwrap_or(0);
        if version == wanted {
            return Ok(());
        }
        let message = format!("the key has version {version}, and not {wanted}; read it again");
        Err(CallError::new(ErrorKind::Conflict, message).with("version", version))
    }

    /// Sets or removes a record with its expiry and usage. Returns true if the key existed.
    fn replace(
        &self,
        transaction: &WriteTransaction,
        caller: &Caller,
        key: &str,
        record: Option<Record<'_>>,
    ) -> Result<bool, CallError> {
        let tenant = caller.tenant_key();
        let (plugin, tenant) = (caller.plugin.as_str(), tenant.as_str());
        let mut values = transaction.open_table(VALUES)?;
        let mut index = transaction.open_table(EXPIRY)?;
        let size = |bytes: usize| (key.len() + bytes) as u64;
        let before = values.get((plugin, tenant, key))?.map(|found| found.value().to_vec());
        if let Some(old) = before.as_deref().and_then(Record::parse) {
            index.remove((plugin, tenant, old.expires, key))?;
        }
        let after = record.as_ref().map(Record::to_bytes);
        match (&record, &after) {
            (Some(record), Some(bytes)) => {
                values.insert((plugin, tenant, key), bytes.as_slice())?;
                if record.expires != 0 {
                    index.insert((plugin, tenant, record.expires, key), ())?;
                }
            }
            _ => drop(values.remove((plugin, tenant, key))?),
        }
        let change = Change { before: before.as_ref().map(|b| size(b.len())), after: after.map(|b| size(b.len())) };
        charge(transaction, ("kv", plugin, tenant), self.limits.kv, change)?;
        Ok(before.is_some())
    }
}

fn check_key(key: &str) -> Result<(), CallError> {
    match key.len() {
        1..=MAX_KEY => Ok(()),
        length => Err(CallError::invalid(format!("a key has 1 to {MAX_KEY} bytes, and this one {length}"))),
    }
}

fn expiry(ttl: &str, now: u64) -> Result<u64, CallError> {
    let ttl = parse_duration(ttl).map_err(CallError::invalid)?;
    if ttl.is_zero() {
        return Err(CallError::invalid("the ttl is zero; use kv.delete to remove a key"));
    }
    Ok(now.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{Fixture, caller};
    use super::*;

    #[tokio::test]
    async fn values_have_versions_for_compare_and_set() {
        let fixture = Fixture::new();
        let a = caller("a", None);
        assert_eq!(fixture.ok(&a, "kv.get", json!({"key": "k"})).await, json!({"value": null, "version": 0}));
        let first = fixture.ok(&a, "kv.set", json!({"key": "k", "value": {"x": 1}, "ifVersion": 0})).await;
        let found = fixture.ok(&a, "kv.get", json!({"key": "k"})).await;
        assert_eq!(found, json!({"value": {"x": 1}, "version": first["version"]}));
        let stale = json!({"key": "k", "value": 2, "ifVersion": 0});
        let error = fixture.err(&a, "kv.set", stale).await;
        assert_eq!((error.kind, &error.data["version"]), (ErrorKind::Conflict, &first["version"]));
        assert_eq!(
            fixture.ok(&a, "kv.delete", json!({"key": "k", "ifVersion": first["version"]})).await,
            json!({"deleted": true})
        );
        // The same value again has another version.
        let again = fixture.ok(&a, "kv.set", json!({"key": "k", "value": {"x": 1}})).await;
        assert_ne!(again["version"], first["version"]);
    }

    #[tokio::test]
    async fn namespaces_of_plugins_and_tenants_are_separate() {
        let fixture = Fixture::new();
        let callers = [caller("a", None), caller("a", Some("t")), caller("a", Some("")), caller("b", None)];
        for (number, caller) in callers.iter().enumerate() {
            fixture.ok(caller, "kv.set", json!({"key": "k", "value": number})).await;
        }
        for (number, caller) in callers.iter().enumerate() {
            assert_eq!(fixture.ok(caller, "kv.get", json!({"key": "k"})).await["value"], number);
            assert_eq!(fixture.ok(caller, "kv.list", json!({})).await, json!({"keys": ["k"], "more": false}));
        }
    }

    #[tokio::test]
    async fn keys_are_listed_by_prefix_in_pages() {
        let fixture = Fixture::new();
        let a = caller("a", None);
        for key in ["a", "b/1", "b/2", "b/3", "c"] {
            fixture.ok(&a, "kv.set", json!({"key": key, "value": 1})).await;
        }
        let list = async |params| fixture.ok(&a, "kv.list", params).await;
        assert_eq!(list(json!({"prefix": "b/", "limit": 2})).await, json!({"keys": ["b/1", "b/2"], "more": true}));
        let rest = list(json!({"prefix": "b/", "limit": 2, "after": "b/2"})).await;
        assert_eq!(rest, json!({"keys": ["b/3"], "more": false}));
        assert_eq!(list(json!({"prefix": "b/", "after": "a"})).await["keys"].as_array().unwrap().len(), 3);
        for bad in [json!({"limit": 0}), json!({"limit": 1001}), json!({"prefx": ""})] {
            assert_eq!(fixture.err(&a, "kv.list", bad).await.kind, ErrorKind::InvalidParams);
        }
    }

    #[tokio::test]
    async fn expired_keys_are_gone_and_free_their_quota() {
        let mut fixture = Fixture::with(|config| config.limits.kv.count = 2);
        let a = caller("a", None);
        for key in ["x", "y"] {
            fixture.ok(&a, "kv.set", json!({"key": key, "value": 1, "ttl": "1m"})).await;
        }
        assert_eq!(fixture.err(&a, "kv.set", json!({"key": "z", "value": 1})).await.kind, ErrorKind::Limit);
        // Setting a key again removes its time to live.
        fixture.ok(&a, "kv.set", json!({"key": "y", "value": 2})).await;
        fixture.advance_seconds(60);
        assert_eq!(fixture.ok(&a, "kv.get", json!({"key": "x"})).await["version"], 0);
        assert_eq!(fixture.ok(&a, "kv.list", json!({})).await["keys"], json!(["y"]));
        fixture.ok(&a, "kv.set", json!({"key": "z", "value": 1, "ifVersion": 0})).await;
        assert_eq!(fixture.err(&a, "kv.set", json!({"key": "w", "value": 1})).await.kind, ErrorKind::Limit);
        fixture.reopen();
        assert_eq!(fixture.ok(&a, "kv.list", json!({})).await["keys"], json!(["y", "z"]));
    }

    #[tokio::test]
    async fn keys_values_and_times_are_bounded() {
        let fixture = Fixture::with(|config| config.limits.kv_value = 10);
        let a = caller("a", None);
        let long = "x".repeat(MAX_KEY + 1);
        for bad in [
            json!({"key": "", "value": 1}),
            json!({"key": long, "value": 1}),
            json!({"key": "k"}),
            json!({"key": "k", "value": 1, "ttl": "0s"}),
            json!({"key": "k", "value": 1, "ttl": "soon"}),
            json!([]),
        ] {
            assert_eq!(fixture.err(&a, "kv.set", bad.clone()).await.kind, ErrorKind::InvalidParams, "{bad}");
        }
        let large = json!({"key": "k", "value": "123456789"});
        assert_eq!(fixture.err(&a, "kv.set", large).await.kind, ErrorKind::Limit);
        fixture.ok(&a, "kv.set", json!({"key": "k", "value": "12345678"})).await;
    }
}
