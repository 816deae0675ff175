//! Keys: creation, recognition, rotation, revocation.
//!
//! A key is `cfd_ID_SECRET`. Its id is public. Only the SHA-256 of its secret, which has 256 random bits, is stored.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, TenantId};
use cofferdam_util::{hex, sha256};

use crate::caller::{Caller, Proof, Scope};
use crate::ids::random;
use crate::store::{KeyRecord, Store, now};

/// The start of every key.
const PREFIX: &str = "cfd_";
/// The most bytes of a key's name.
const MAX_NAME: usize = 100;
/// The digits of an id and of a secret.
const ID_DIGITS: usize = 16;
const SECRET_DIGITS: usize = 64;

/// The settings of a new key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// The tenant.
    pub tenant: TenantId,
    /// A name for people.
    pub name: String,
    /// The permissions.
    pub scopes: BTreeSet<Scope>,
    /// The time for which it is valid. Default: no end.
    pub life: Option<Duration>,
}

/// A key with its secret. It is shown once, when it is created.
pub struct Key(String);

impl Key {
    /// Returns the text that a client sends.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Creates a key.
///
/// # Errors
/// - `InvalidInput` for a key without scopes or with a name that is too long.
/// - `Unavailable` if the database fails.
pub async fn create(store: &Store, new: NewKey) -> Result<(Key, KeyRecord)> {
    if new.scopes.is_empty() || new.name.len() > MAX_NAME || new.name.chars().any(char::is_control) {
        return Err(Error::invalid("create key", "a key needs a scope, and a name of at most 100 printable bytes"));
    }
    let (id, secret) = (hex::encode(random::<{ ID_DIGITS / 2 }>()?), hex::encode(random::<{ SECRET_DIGITS / 2 }>()?));
    let created = now();
    let record = KeyRecord {
        hash: sha256::of(&secret),
        tenant: new.tenant,
        name: new.name,
        scopes: new.scopes,
        created,
        expires: new.life.map(|life| created.saturating_add(seconds(life))),
        revoked: None,
        id,
    };
    store.add_key(&record).await?;
    Ok((Key(format!("{PREFIX}{}_{secret}", record.id)), record))
}

/// Creates a key with the settings of another one, which ends after `grace`.
///
/// # Errors
/// - `NotFound` for a key that is not valid.
pub async fn rotate(store: &Store, id: &str, grace: Duration) -> Result<(Key, KeyRecord)> {
    let old = store.key(id).await?.filter(|key| key.is_valid(now()));
    let old = old.ok_or_else(|| missing("rotate key"))?;
    let life = old.expires.map(|expires| Duration::from_secs(expires.saturating_sub(now()).unsigned_abs()));
    let new = NewKey { tenant: old.tenant, name: old.name, scopes: old.scopes, life };
    let created = create(store, new).await?;
    if grace.is_zero() {
        store.revoke_key(id, now()).await?;
    } else {
        store.expire_key(id, now().saturating_add(seconds(grace))).await?;
    }
    Ok(created)
}

/// Revokes a key at once.
///
/// # Errors
/// - `NotFound` for a key that does not exist or was revoked before.
pub async fn revoke(store: &Store, id: &str) -> Result<()> {
    if store.revoke_key(id, now()).await? { Ok(()) } else { Err(missing("revoke key")) }
}

fn missing(operation: &'static str) -> Error {
    Error::new(ErrorKind::NotFound, operation, "there is no such valid key").with_remedy("cofferdam keys ls lists them")
}

/// Returns the public part of the key in a header `Authorization`, if it has the form of one.
pub(crate) fn public_part(header: &str) -> Option<&str> {
    let (_, text) = header.split_once(' ')?;
    let (id, _) = text.trim().strip_prefix(PREFIX)?.split_once('_')?;
    (id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// Returns the caller behind the text of a key, or `None` if it is not valid.
///
/// # Errors
/// - `Unavailable` if the database fails.
pub async fn recognise(store: &Store, text: &str) -> Result<Option<Caller>> {
    let Some((id, secret)) = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_')) else { return Ok(None) };
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !digits(id, ID_DIGITS) || !digits(secret, SECRET_DIGITS) {
        return Ok(None);
    }
    // The database is asked each time, so that a revocation counts at once.
    let Some(key) = store.key(id).await? else { return Ok(None) };
    if !equal(&sha256::of(secret), &key.hash) || !key.is_valid(now()) {
        return Ok(None);
    }
    Ok(Some(Caller {
        tenant: key.tenant,
        scopes: key.scopes,
        key: key.id,
        is_operator: false,
        proof: Proof::Key,
        certificate: None,
    }))
}

/// Compares two texts in a time that depends on their lengths only.
fn equal(one: &str, other: &str) -> bool {
    let differences = one.bytes().zip(other.bytes()).fold(0, |all, (one, other)| all | (one ^ other));
    one.len() == other.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(life: Option<Duration>) -> NewKey {
        let scopes = BTreeSet::from([Scope::Runs, Scope::FilesRead]);
        NewKey { tenant: TenantId::new("acme").unwrap(), name: "ci".to_owned(), scopes, life }
    }

    /// Promise (Server): A key is recognised by its secret only, and not after its end or revocation.
    #[tokio::test]
    async fn keys_are_recognised_until_they_end() {
        let (_directory, store) = crate::store::tests::fresh().await;
        let (key, record) = create(&store, new(None)).await.unwrap();
        assert!(!record.hash.contains(&key.reveal()[21..]) && format!("{key:?}") == "Key(…)");
        let caller = recognise(&store, key.reveal()).await.unwrap().unwrap();
        assert_eq!((caller.tenant.as_str(), caller.key.as_str()), ("acme", &*record.id));
        assert!(caller.may(Scope::Runs) && !caller.may(Scope::FilesWrite) && !caller.may(Scope::Admin));
        let other = key.reveal().replace(&key.reveal()[80..], &"0".repeat(5));
        for wrong in ["", "cfd_", "cfd__", &record.id, &other, &key.reveal().to_uppercase(), &record.hash] {
            assert_eq!(recognise(&store, wrong).await.unwrap(), None, "{wrong}");
        }
        let (short, _) = create(&store, new(Some(Duration::ZERO))).await.unwrap();
        assert_eq!(recognise(&store, short.reveal()).await.unwrap(), None);
        revoke(&store, &record.id).await.unwrap();
        assert_eq!(recognise(&store, key.reveal()).await.unwrap(), None);
        assert_eq!(revoke(&store, &record.id).await.unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// Promise (Server): A rotated key has the same rights, and the old one ends after its grace.
    #[tokio::test]
    async fn a_rotated_key_replaces_the_old_one() {
        let (_directory, store) = crate::store::tests::fresh().await;
        let (old, record) = create(&store, new(Some(Duration::from_secs(1000)))).await.unwrap();
        let (new, next) = rotate(&store, &record.id, Duration::from_secs(60)).await.unwrap();
        let [a, b] = [
            recognise(&store, old.reveal()).await.unwrap().unwrap(),
            recognise(&store, new.reveal()).await.unwrap().unwrap(),
        ];
        assert_eq!((a.tenant, a.scopes), (b.tenant, b.scopes));
        let left = store.key(&record.id).await.unwrap().unwrap().expires.unwrap() - now();
        assert!((0..=60).contains(&left), "{left}");
        rotate(&store, &next.id, Duration::ZERO).await.unwrap();
        assert_eq!(recognise(&store, new.reveal()).await.unwrap(), None);
        assert_eq!(store.keys().await.unwrap().len(), 3);
        assert!(rotate(&store, &next.id, Duration::ZERO).await.is_err());
    }
}
