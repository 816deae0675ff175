//! Secrets, encrypted with XChaCha20-Poly1305. The associated data binds a value to its plugin, tenant and name, so that
//! a record that was moved in the database does not open.
//!
//! Values leave the module only as the result of `secrets.get`. Buffers of the module are zeroed on drop; the JSON text
//! of a request or result is the host's.

use std::path::Path;
use std::sync::Arc;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use cofferdam_contract::{Error, ErrorKind as Kind, Result};
use cofferdam_util::{hex, private};
use redb::TableDefinition;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::{CallError, ErrorKind};

use super::store::{Change, Records, Store, charge, internal};
use super::{Caller, Inner, check_text};

pub(super) const SECRETS: Records = Records::new("secrets");
/// A sealed text without contents, by which a wrong key is recognised.
pub(super) const CHECK: TableDefinition<&str, &[u8]> = TableDefinition::new("secrets-check");

const KEY_FILE: &str = "secrets.key";
const KEY_LENGTH: usize = 32;
const NONCE: usize = 24;
const MAX_NAME: usize = 64;
const MAX_VALUE: usize = 64 << 10;

/// A log of accesses to secrets, which the host implements.
pub trait AccessLog: Send + Sync {
    /// Records an access, before its result reaches the plugin. Called on a thread that may block.
    fn secret_accessed(&self, access: &SecretAccess);
}

/// An access to a secret. It never has the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretAccess {
    /// The plugin.
    pub plugin: String,
    /// The tenant.
    pub tenant: Option<String>,
    /// The correlation identifier of the request.
    pub correlation: String,
    /// The name of the secret.
    pub name: String,
    /// The action.
    pub action: SecretAction,
    /// The kind of the error, or `None` if the access succeeded.
    pub error: Option<ErrorKind>,
}

/// An action on a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretAction {
    /// The value was read.
    Get,
    /// The value was set.
    Set,
    /// The secret was deleted.
    Delete,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    name: String,
    value: String,
}

/// The cipher of secrets and the log of accesses.
pub(super) struct Secrets {
    cipher: XChaCha20Poly1305,
    log: Arc<dyn AccessLog>,
}

impl Secrets {
    /// Reads the key, or creates a key file where no secret has been sealed yet.
    pub(super) fn open(store: &Store, directory: &Path, source: Option<&str>, log: Arc<dyn AccessLog>) -> Result<Self> {
        let failed = |error: CallError| Error::new(Kind::Io, "open", error.message);
        let check = store
            .read(|transaction| Ok(transaction.open_table(CHECK)?.get("check")?.map(|check| check.value().to_vec())));
        let check = check.map_err(failed)?;
        let key = read_key(directory, source, check.is_none())?;
        let secrets = Self { cipher: XChaCha20Poly1305::new((&*key).into()), log };
        match check {
            Some(check) => {
                secrets.unseal(&check, b"check").ok_or_else(wrong_key)?;
            }
            None => {
                let check = secrets.seal(b"", b"check").map_err(failed)?;
                let insert = store.write(|transaction| {
                    transaction.open_table(CHECK)?.insert("check", check.as_slice())?;
                    Ok(())
                });
                insert.map_err(failed)?;
            }
        }
        Ok(secrets)
    }

    /// Encrypts a text. The nonce is before the result.
    fn seal(&self, text: &[u8], context: &[u8]) -> std::result::Result<Vec<u8>, CallError> {
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(internal)?;
        let sealed = self.cipher.encrypt(&XNonce::from(nonce), Payload { msg: text, aad: context });
        let sealed = sealed.map_err(|_| internal("the secret cannot be encrypted"))?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// Decrypts a text. Returns `None` if it was sealed with another key or context, or was changed.
    fn unseal(&self, sealed: &[u8], context: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, text) = sealed.split_first_chunk::<NONCE>()?;
        self.cipher.decrypt(&XNonce::from(*nonce), Payload { msg: text, aad: context }).ok().map(Zeroizing::new)
    }
}

fn wrong_key() -> Error {
    Error::new(Kind::InvalidInput, "open", "the key does not fit the secrets of the state directory")
        .with_remedy("use the key that the secrets were written with")
}

fn read_key(directory: &Path, source: Option<&str>, may_create: bool) -> Result<Zeroizing<[u8; KEY_LENGTH]>> {
    let path = directory.join(KEY_FILE);
    let of_file = format!("file:{}", path.display());
    let value = match source {
        Some(source) => cofferdam_egress::read_source(source)?,
        None => {
            if may_create
                && std::fs::symlink_metadata(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
            {
                create_key(directory)?;
            }
            cofferdam_egress::read_source(&of_file)?
        }
    };
    let mut key = Zeroizing::new([0; KEY_LENGTH]);
    if value.len() == KEY_LENGTH {
        key.copy_from_slice(&value);
    } else if hex::decode(&value, &mut *key).is_none() {
        return Err(Error::invalid("open", "the key of secrets has neither 32 bytes nor 64 hexadecimal digits")
            .with_remedy("create one with 'openssl rand -hex 32'"));
    }
    Ok(key)
}

/// Creates the key file. A kill or a full disk leaves no part of it, which would be refused ever after. The open store
/// excludes other writers.
fn create_key(directory: &Path) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::new(Kind::Io, "open", format!("cannot create the key file of secrets: {error}"))
            .with_context("path", directory.join(KEY_FILE).display().to_string())
    };
    let mut key = Zeroizing::new([0; KEY_LENGTH]);
    getrandom::fill(&mut *key).map_err(|error| failed(std::io::Error::other(error)))?;
    let digits = Zeroizing::new(hex::encode(*key));
    let opened = std::fs::File::open(directory).map_err(failed)?;
    private::replace_file(&opened, KEY_FILE, format!("{KEY_FILE}.new"), digits.as_bytes()).map_err(failed)
}

/// Returns the associated data of a secret. Lengths keep the parts apart.
fn context(caller: &Caller, name: &str) -> Vec<u8> {
    let mut context = b"secret".to_vec();
    for part in [&caller.plugin, &caller.tenant_key(), name] {
        context.extend((part.len() as u64).to_be_bytes());
        context.extend(part.as_bytes());
    }
    context
}

impl Inner {
    pub(super) fn secrets_get(&self, caller: &Caller, params: Value) -> std::result::Result<Value, CallError> {
        let Named { name } = parse(params)?;
        let value = self.read_secret(caller, &name);
        self.log(caller, &name, SecretAction::Get, value.as_ref().err());
        Ok(json!({"value": value?}))
    }

    fn read_secret(&self, caller: &Caller, name: &str) -> std::result::Result<String, CallError> {
        let tenant = caller.tenant_key();
        let sealed = self.store.read(|transaction| {
            let secrets = transaction.open_table(SECRETS)?;
            let found = secrets.get((caller.plugin.as_str(), tenant.as_str(), name))?;
            Ok(found.map(|sealed| sealed.value().to_vec()))
        })?;
        let sealed = sealed.ok_or_else(|| CallError::not_found("the secret is not set"))?;
        let damaged = || CallError::new(ErrorKind::Internal, "the secret was changed on the disk, and cannot be read");
        let value = self.secrets.unseal(&sealed, &context(caller, name)).ok_or_else(damaged)?;
        str::from_utf8(&value).map(str::to_owned).map_err(|_| damaged())
    }

    pub(super) fn secrets_set(&self, caller: &Caller, params: Value) -> std::result::Result<Value, CallError> {
        let Set { name, value } = parse(params)?;
        let value = Zeroizing::new(value);
        let result = self.write_secret(caller, &name, Some(&value));
        self.log(caller, &name, SecretAction::Set, result.as_ref().err());
        result.map(|()| Value::Null)
    }

    pub(super) fn secrets_delete(&self, caller: &Caller, params: Value) -> std::result::Result<Value, CallError> {
        let Named { name } = parse(params)?;
        let result = self.write_secret(caller, &name, None);
        self.log(caller, &name, SecretAction::Delete, result.as_ref().err());
        result.map(|()| Value::Null)
    }

    fn write_secret(&self, caller: &Caller, name: &str, value: Option<&str>) -> std::result::Result<(), CallError> {
        check_text("name", name, MAX_NAME)?;
        if value.is_some_and(|value| value.len() > MAX_VALUE) {
            return Err(CallError::new(ErrorKind::Limit, format!("a secret has at most {MAX_VALUE} bytes")));
        }
        let sealed = value.map(|value| self.secrets.seal(value.as_bytes(), &context(caller, name))).transpose()?;
        let tenant = caller.tenant_key();
        let key = (caller.plugin.as_str(), tenant.as_str(), name);
        let size = |sealed: &[u8]| (name.len() + sealed.len()) as u64;
        self.store.write(|transaction| {
            let mut secrets = transaction.open_table(SECRETS)?;
            let before = match &sealed {
                Some(sealed) => secrets.insert(key, sealed.as_slice())?,
                None => secrets.remove(key)?,
            };
            let change = Change { before: before.map(|old| size(old.value())), after: sealed.as_deref().map(size) };
            charge(transaction, ("secrets", key.0, key.1), self.limits.secrets, change)
        })
    }

    fn log(&self, caller: &Caller, name: &str, action: SecretAction, error: Option<&CallError>) {
        let Caller { plugin, tenant, correlation } = caller.clone();
        let name = name[..name.floor_char_boundary(MAX_NAME)].to_owned();
        let error = error.map(|error| error.kind);
        self.secrets.log.secret_accessed(&SecretAccess { plugin, tenant, correlation, name, action, error });
    }
}

/// Reads the parameters. Errors do not quote them, since they may have a value.
fn parse<T: serde::de::DeserializeOwned>(params: Value) -> std::result::Result<T, CallError> {
    super::parse(params).map_err(|_| CallError::invalid("secrets have a name and, to set one, a value, both texts"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use redb::ReadableTable;

    use super::super::Services;
    use super::super::testing::{Fixture, caller};
    use super::*;

    const VALUE: &str = "correct horse battery staple";

    #[tokio::test]
    async fn a_secret_is_stored_encrypted_and_survives_a_restart() {
        let mut fixture = Fixture::new();
        let a = caller("a", Some("t"));
        assert_eq!(fixture.ok(&a, "secrets.set", json!({"name": "TOKEN", "value": VALUE})).await, Value::Null);
        fixture.reopen();
        assert_eq!(fixture.ok(&a, "secrets.get", json!({"name": "TOKEN"})).await, json!({"value": VALUE}));
        for other in [caller("b", Some("t")), caller("a", None), caller("a", Some("u"))] {
            assert_eq!(fixture.err(&other, "secrets.get", json!({"name": "TOKEN"})).await.kind, ErrorKind::NotFound);
        }
        fixture.services = None;
        for file in std::fs::read_dir(fixture.directory.path().join("state")).unwrap() {
            let path = file.unwrap().path();
            if path.is_file() {
                let bytes = std::fs::read(&path).unwrap();
                let has_value = bytes.windows(VALUE.len()).any(|window| window == VALUE.as_bytes());
                assert!(!has_value, "{path:?}");
                assert_eq!(path.metadata().unwrap().permissions().mode() & 0o077, 0, "{path:?}");
            }
        }
        fixture.reopen();
        fixture.ok(&a, "secrets.delete", json!({"name": "TOKEN"})).await;
        assert_eq!(fixture.err(&a, "secrets.get", json!({"name": "TOKEN"})).await.kind, ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_record_of_another_owner_does_not_open() {
        let fixture = Fixture::new();
        let (a, b) = (caller("a", None), caller("b", None));
        fixture.ok(&a, "secrets.set", json!({"name": "TOKEN", "value": VALUE})).await;
        let moved = fixture.services().inner.store.write(|transaction| {
            let mut secrets = transaction.open_table(SECRETS)?;
            let sealed = secrets.get(("a", "-", "TOKEN"))?.map(|sealed| sealed.value().to_vec()).unwrap_or_default();
            for key in [("b", "-", "TOKEN"), ("a", "-", "OTHER")] {
                secrets.insert(key, sealed.as_slice())?;
            }
            Ok(())
        });
        moved.unwrap();
        for (caller, name) in [(&b, "TOKEN"), (&a, "OTHER")] {
            let error = fixture.err(caller, "secrets.get", json!({"name": name})).await;
            assert_eq!(error.kind, ErrorKind::Internal);
            assert!(!error.message.contains(VALUE));
        }
        fixture.ok(&a, "secrets.get", json!({"name": "TOKEN"})).await;
    }

    #[tokio::test]
    async fn every_access_is_logged_without_its_value() {
        let fixture = Fixture::new();
        let a = caller("a", None);
        fixture.err(&a, "secrets.get", json!({"name": "TOKEN"})).await;
        fixture.ok(&a, "secrets.set", json!({"name": "TOKEN", "value": VALUE})).await;
        fixture.ok(&a, "secrets.get", json!({"name": "TOKEN"})).await;
        fixture.ok(&a, "secrets.delete", json!({"name": "TOKEN"})).await;
        let log = fixture.log.0.lock();
        let seen: Vec<_> = log.iter().map(|access| (access.action, access.error)).collect();
        use SecretAction::{Delete, Get, Set};
        assert_eq!(seen, [(Get, Some(ErrorKind::NotFound)), (Set, None), (Get, None), (Delete, None)]);
        assert!(log.iter().all(|access| access.correlation == "c-1" && access.name == "TOKEN"));
        assert!(!format!("{log:?}").contains(VALUE));
    }

    #[tokio::test]
    async fn errors_quote_no_parameters() {
        let fixture = Fixture::with(|config| config.limits.secrets.count = 1);
        let a = caller("a", None);
        for bad in [json!({"name": "T", "value": 12_345_678}), json!({"name": "T", "value": "x", VALUE: VALUE})] {
            let error = fixture.err(&a, "secrets.set", bad).await;
            assert_eq!(error.kind, ErrorKind::InvalidParams);
            assert!(!error.message.contains("12345678") && !error.message.contains(VALUE), "{error}");
        }
        for bad in ["", "a\nb", &"x".repeat(MAX_NAME + 1)] {
            let error = fixture.err(&a, "secrets.set", json!({"name": bad, "value": "x"})).await;
            assert_eq!(error.kind, ErrorKind::InvalidParams);
        }
        let long = "x".repeat(MAX_VALUE + 1);
        let error = fixture.err(&a, "secrets.set", json!({"name": "T", "value": long})).await;
        assert_eq!(error.kind, ErrorKind::Limit);
        fixture.ok(&a, "secrets.set", json!({"name": "T", "value": "x"})).await;
        let error = fixture.err(&a, "secrets.set", json!({"name": "U", "value": "x"})).await;
        assert_eq!(error.kind, ErrorKind::Limit);
    }

    #[test]
    fn a_start_after_a_killed_one_creates_a_whole_key() {
        let directory = tempfile::tempdir().unwrap();
        let temporary = directory.path().join(format!("{KEY_FILE}.new"));
        std::fs::write(&temporary, "0123").unwrap();
        let created = read_key(directory.path(), None, true).unwrap();
        assert_eq!(*created, *read_key(directory.path(), None, false).unwrap());
        assert!(!temporary.exists());
        // An empty file is another's, and is neither used nor replaced.
        std::fs::write(directory.path().join(KEY_FILE), "").unwrap();
        assert!(read_key(directory.path(), None, true).is_err());
        // A link to a key that is not mounted yet stays, too.
        std::fs::remove_file(directory.path().join(KEY_FILE)).unwrap();
        std::os::unix::fs::symlink("elsewhere", directory.path().join(KEY_FILE)).unwrap();
        assert!(read_key(directory.path(), None, true).is_err());
        assert!(directory.path().join(KEY_FILE).is_symlink());
    }

    #[tokio::test]
    async fn a_wrong_or_missing_key_is_refused() {
        let mut fixture = Fixture::new();
        fixture.services = None;
        let key = fixture.directory.path().join("key");
        for (text, kind) in [("00".repeat(32), Kind::InvalidInput), ("short".to_owned(), Kind::InvalidInput)] {
            std::fs::write(&key, &text).unwrap();
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
            let mut config = fixture.config();
            config.key = Some(format!("file:{}", key.display()));
            let error = Services::open(config).err().expect("the key is refused");
            assert_eq!(error.kind(), kind);
            assert!(!format!("{error} {error:?}").contains(&text), "{error}");
        }
        // A lost key file is not replaced, since its secrets would be lost without a word.
        std::fs::remove_file(fixture.directory.path().join("state").join(KEY_FILE)).unwrap();
        assert!(Services::open(fixture.config()).is_err());
    }
}
