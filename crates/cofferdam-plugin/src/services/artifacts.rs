//! Artifacts: files that are addressed by the SHA-256 digest of their contents.
//!
//! ```text
//! artifacts/TENANT/DIGEST      contents (TENANT: a digest of the tenant's name)
//! database: tenant, name    -> digest, size, media type, metadata, owner
//!           tenant, digest, name
//! ```
//!
//! A name belongs to the plugin that wrote it first. Contents last as long as a name points to them. A file is complete
//! and durable before the database names it, and one that the database does not name is removed at the next start.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cofferdam_contract::{Error, ErrorKind as Kind, Result};
use cofferdam_linux::beneath;
use cofferdam_util::{private, sha256};
use parking_lot::Mutex;
use redb::{ReadableTable, TableDefinition, WriteTransaction};
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{CallError, ErrorKind};

use super::content::{Content, content};
use super::store::{Change, Shared, Store, charge, internal, random_id};
use super::{Caller, Inner, check_text, page, parse};

pub(super) const NAMES: Shared = Shared::new("artifacts");
/// The names of contents: tenant, digest, name.
pub(super) const DIGESTS: TableDefinition<(&str, &str, &str), ()> = TableDefinition::new("artifacts-digests");

const MAX_NAME: usize = 256;
const MAX_MEDIA_TYPE: usize = 128;
const MAX_METADATA: usize = 16 << 10;
const DEFAULT_MEDIA_TYPE: &str = "application/octet-stream";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WriteParams {
    name: String,
    content: Content,
    media_type: Option<String>,
    metadata: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReadParams {
    digest: Option<String>,
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListParams {
    after: Option<String>,
    limit: Option<usize>,
}

/// The record of a name.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    digest: String,
    size: u64,
    media_type: String,
    metadata: Map<String, Value>,
    plugin: String,
}

/// The directory of contents.
pub(super) struct Artifacts {
    directory: OwnedFd,
    /// Held from the writing of a file until the database names it, and while files are removed.
    changes: Mutex<()>,
}

impl Artifacts {
    /// Opens the directory and removes files that the database does not name.
    pub(super) fn open(store: &Store, directory: &Path) -> Result<Self> {
        let path = directory.join("artifacts");
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(Kind::Io, "open", format!("cannot open the artifacts: {error}"))
                .with_context("path", path.display().to_string())
        };
        private::create_directory(&path).map_err(|error| failed(&error))?;
        let opened = File::open(&path).map_err(|error| failed(&error))?;
        let artifacts = Self { directory: opened.into(), changes: Mutex::default() };
        let known = artifacts.known(store).map_err(|error| failed(&error))?;
        sweep(&path, &known).map_err(|error| failed(&error))?;
        Ok(artifacts)
    }

    /// Returns the paths of all contents.
    fn known(&self, store: &Store) -> std::result::Result<HashSet<String>, CallError> {
        store.read(|transaction| {
            let digests = transaction.open_table(DIGESTS)?;
            let found = digests.range::<(&str, &str, &str)>(..)?;
            found.map(|item| Ok(item?.0.value()).map(|(tenant, digest, _)| path_of(tenant, digest))).collect()
        })
    }

    /// Writes a file that is complete and durable once its name exists.
    fn write(&self, tenant: &str, digest: &str, bytes: &[u8]) -> std::io::Result<()> {
        let folder = folder_of(tenant);
        match rustix::fs::mkdirat(&self.directory, &folder, Mode::RWXU) {
            Ok(()) => rustix::fs::fsync(&self.directory)?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW;
        let folder = beneath::open(self.directory.as_fd(), Path::new(&folder), flags, Mode::empty())?;
        let temporary = format!("{}.new", random_id().map_err(std::io::Error::other)?);
        private::replace_file(&folder, digest, temporary, bytes)
    }

    /// Reads a file of a known size.
    fn read(&self, tenant: &str, digest: &str, size: u64) -> std::io::Result<Vec<u8>> {
        let path = path_of(tenant, digest);
        let opened = beneath::open_plain(self.directory.as_fd(), Path::new(&path))?;
        let file = File::from(opened.map_err(|_| std::io::ErrorKind::InvalidData)?);
        let mut bytes = Vec::new();
        file.take(size + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Removes a file. One that stays after a failure is removed at the next start.
    fn remove(&self, tenant: &str, digest: &str) {
        let _ = rustix::fs::unlinkat(&self.directory, path_of(tenant, digest), AtFlags::empty());
    }
}

fn folder_of(tenant: &str) -> String {
    sha256::of(tenant)[..32].to_owned()
}

fn path_of(tenant: &str, digest: &str) -> String {
    format!("{}/{digest}", folder_of(tenant))
}

fn sweep(directory: &Path, known: &HashSet<String>) -> std::io::Result<()> {
    for folder in std::fs::read_dir(directory)? {
        let folder = folder?;
        if !folder.file_type()?.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(folder.path())? {
            let file = file?;
            let path = format!("{}/{}", folder.file_name().display(), file.file_name().display());
            if !known.contains(&path) {
                std::fs::remove_file(file.path())?;
            }
        }
    }
    Ok(())
}

impl Inner {
    pub(super) fn artifacts_write(&self, caller: &Caller, params: Value) -> std::result::Result<Value, CallError> {
        let WriteParams { name, content, media_type, metadata } = parse(params)?;
        check_text("name", &name, MAX_NAME)?;
        let media_type = media_type.unwrap_or_else(|| DEFAULT_MEDIA_TYPE.to_owned());
        check_text("mediaType", &media_type, MAX_MEDIA_TYPE)?;
        let bytes = content.into_bytes()?;
        if bytes.len() > self.limits.artifact {
            let message = format!("the artifact has {} bytes, and may have {}", bytes.len(), self.limits.artifact);
            return Err(CallError::new(ErrorKind::Limit, message));
        }
        let (digest, size) = (sha256::of(&bytes), bytes.len() as u64);
        let metadata = metadata.unwrap_or_default();
        let record = Record { digest, size, media_type, metadata, plugin: caller.plugin.clone() };
        if serde_json::to_vec(&record.metadata)?.len() > MAX_METADATA {
            return Err(CallError::new(ErrorKind::Limit, format!("metadata has at most {MAX_METADATA} bytes")));
        }
        self.store_artifact(caller, &name, &record, &bytes)?;
        Ok(json!({"digest": record.digest, "size": size}))
    }

    fn store_artifact(
        &self,
        caller: &Caller,
        name: &str,
        record: &Record,
        bytes: &[u8],
    ) -> std::result::Result<(), CallError> {
        let tenant = caller.tenant_key();
        let _changes = self.artifacts.changes.lock();
        let mut unused = None;
        let named = self.store.write(|transaction| {
            unused = self.name_artifact(transaction, &tenant, name, record)?;
            // Before the commit: the database never names a file that does not exist.
            self.artifacts.write(&tenant, &record.digest, bytes).map_err(internal)
        });
        if named.is_err() {
            let is_used = self.find_name(&tenant, &record.digest);
            if matches!(is_used, Ok(None)) {
                self.artifacts.remove(&tenant, &record.digest);
            }
        } else if let Some(digest) = unused {
            self.artifacts.remove(&tenant, &digest);
        }
        named
    }

    /// Points a name to new contents. Returns the digest of the old ones if no name points to them any more.
    fn name_artifact(
        &self,
        transaction: &WriteTransaction,
        tenant: &str,
        name: &str,
        record: &Record,
    ) -> std::result::Result<Option<String>, CallError> {
        let mut names = transaction.open_table(NAMES)?;
        let mut digests = transaction.open_table(DIGESTS)?;
        let text = serde_json::to_vec(record)?;
        let before = names.insert((tenant, name), text.as_slice())?.map(|old| old.value().to_vec());
        let parsed = |old: Vec<u8>| Ok::<_, CallError>((serde_json::from_slice::<Record>(&old)?, old.len()));
        let before = before.map(parsed).transpose()?;
        if let Some(owner) = before.as_ref().map(|(old, _)| &old.plugin).filter(|owner| **owner != record.plugin) {
            let message = format!("the name belongs to the plugin {owner}; use another name");
            return Err(CallError::new(ErrorKind::Conflict, message));
        }
        if let Some((old, _)) = &before {
            digests.remove((tenant, old.digest.as_str(), name))?;
        }
        digests.insert((tenant, record.digest.as_str(), name), ())?;
        let size = |record: &Record, text: usize| record.size + (name.len() + text) as u64;
        let change = Change {
            before: before.as_ref().map(|(old, text)| size(old, *text)),
            after: Some(size(record, text.len())),
        };
        charge(transaction, ("artifacts", &record.plugin, tenant), self.limits.artifacts, change)?;
        let Some((old, _)) = before else { return Ok(None) };
        let is_used = first_name(&digests, tenant, &old.digest)?.is_some();
        Ok((!is_used).then_some(old.digest))
    }

    fn find_name(&self, tenant: &str, digest: &str) -> std::result::Result<Option<String>, CallError> {
        self.store.read(|transaction| first_name(&transaction.open_table(DIGESTS)?, tenant, digest))
    }

    pub(super) fn artifacts_read(&self, caller: &Caller, params: Value) -> std::result::Result<Value, CallError> {
        let tenant = caller.tenant_key();
        let missing = || CallError::not_found("the artifact does not exist");
        let name = match parse(params)? {
            ReadParams { name: Some(name), digest: None } => name,
            ReadParams { name: None, digest: Some(digest) } => self.find_name(&tenant, &digest)?.ok_or_else(missing)?,
            _ => return Err(CallError::invalid("name an artifact by either digest or name")),
        };
        let record = self.store.read(|transaction| {
            let names = transaction.open_table(NAMES)?;
            let found = names.get((tenant.as_str(), name.as_str()))?.ok_or_else(missing)?;
            Ok(serde_json::from_slice::<Record>(found.value())?)
        })?;
        let bytes = self.artifacts.read(&tenant, &record.digest, record.size).map_err(internal)?;
        if sha256::of(&bytes) != record.digest {
            let message = "the artifact was changed on the disk, and cannot be read; write it again";
            return Err(CallError::new(ErrorKind::Internal, message));
        }
        let mut result = shown(&name, &record);
        result["metadata"] = Value::Object(record.metadata);
        result["content"] = content(bytes);
        Ok(result)
    }

    pub(super) fn artifacts_list(&self, caller: &Caller, params: Value) -> std::result::Result<Value, CallError> {
        let ListParams { after, limit } = parse(params)?;
        let limit = page(limit)?;
        let tenant = caller.tenant_key();
        self.store.read(|transaction| {
            let names = transaction.open_table(NAMES)?;
            let mut artifacts = Vec::new();
            for item in names.range((tenant.as_str(), after.as_deref().unwrap_or(""))..)? {
                let (key, record) = item?;
                let (of, name) = key.value();
                if of != tenant || artifacts.len() > limit {
                    break;
                }
                if after.as_deref() != Some(name) {
                    artifacts.push(shown(name, &serde_json::from_slice(record.value())?));
                }
            }
            let more = artifacts.len() > limit;
            artifacts.truncate(limit);
            Ok(json!({"artifacts": artifacts, "more": more}))
        })
    }
}

fn shown(name: &str, record: &Record) -> Value {
    json!({"name": name, "digest": record.digest, "size": record.size, "mediaType": record.media_type})
}

fn first_name(
    digests: &impl ReadableTable<(&'static str, &'static str, &'static str), ()>,
    tenant: &str,
    digest: &str,
) -> std::result::Result<Option<String>, CallError> {
    let Some(item) = digests.range((tenant, digest, "")..)?.next() else { return Ok(None) };
    let key = item?.0;
    let (of, found, name) = key.value();
    Ok((of == tenant && found == digest).then(|| name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::testing::{Fixture, caller};
    use super::*;

    fn files(fixture: &Fixture) -> Vec<PathBuf> {
        let folders = std::fs::read_dir(fixture.directory.path().join("state/artifacts")).unwrap();
        folders
            .flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap())
            .map(|f| f.unwrap().path())
            .collect()
    }

    #[tokio::test]
    async fn artifacts_are_found_by_digest_and_name_within_their_tenant() {
        let mut fixture = Fixture::new();
        let (a, b) = (caller("a", Some("t")), caller("b", Some("t")));
        let write =
            json!({"name": "report", "content": {"text": "abc"}, "mediaType": "text/plain", "metadata": {"k": 1}});
        let written = fixture.ok(&a, "artifacts.write", write).await;
        assert_eq!(written, json!({"digest": sha256::of("abc"), "size": 3}));
        fixture.reopen();
        let expected = json!({
            "name": "report", "digest": sha256::of("abc"), "size": 3, "mediaType": "text/plain",
            "metadata": {"k": 1}, "content": {"text": "abc"},
        });
        for by in [json!({"name": "report"}), json!({"digest": sha256::of("abc")})] {
            assert_eq!(fixture.ok(&b, "artifacts.read", by.clone()).await, expected);
            let error = fixture.err(&caller("a", Some("u")), "artifacts.read", by).await;
            assert_eq!(error.kind, ErrorKind::NotFound);
        }
        let listed = fixture.ok(&b, "artifacts.list", json!({})).await;
        assert_eq!((&listed["artifacts"][0]["name"], &listed["more"]), (&json!("report"), &json!(false)));
        assert_eq!(fixture.ok(&caller("a", None), "artifacts.list", json!({})).await["artifacts"], json!([]));
        let error = fixture.err(&b, "artifacts.write", json!({"name": "report", "content": {"text": "x"}})).await;
        assert_eq!(error.kind, ErrorKind::Conflict);
        assert_eq!(files(&fixture).len(), 1, "the refused contents stayed");
    }

    #[tokio::test]
    async fn contents_last_as_long_as_a_name_points_to_them() {
        let fixture = Fixture::with(|config| config.limits.artifacts.count = 2);
        let a = caller("a", None);
        let write = async |name: &str, text: &str| {
            fixture.services().call(&a, "artifacts.write", json!({"name": name, "content": {"text": text}})).await
        };
        write("x", "one").await.unwrap();
        write("y", "one").await.unwrap();
        assert_eq!(write("z", "two").await.unwrap_err().kind, ErrorKind::Limit);
        assert_eq!(files(&fixture).len(), 1);
        write("x", "two").await.unwrap();
        assert_eq!(files(&fixture).len(), 2);
        write("y", "two").await.unwrap();
        assert_eq!(files(&fixture).len(), 1);
        let gone = json!({"digest": sha256::of("one")});
        assert_eq!(fixture.err(&a, "artifacts.read", gone).await.kind, ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn changed_and_leftover_files_are_noticed() {
        let mut fixture = Fixture::new();
        let a = caller("a", None);
        fixture.ok(&a, "artifacts.write", json!({"name": "x", "content": {"base64": "/wA="}})).await;
        let read = fixture.ok(&a, "artifacts.read", json!({"name": "x"})).await;
        assert_eq!(read["content"], json!({"base64": "/wA="}));
        let file = files(&fixture).remove(0);
        std::fs::write(file.with_file_name("left.new"), "half").unwrap();
        fixture.reopen();
        assert_eq!(files(&fixture), std::slice::from_ref(&file));
        for changed in ["ab", "a longer text"] {
            std::fs::write(&file, changed).unwrap();
            assert_eq!(fixture.err(&a, "artifacts.read", json!({"name": "x"})).await.kind, ErrorKind::Internal);
        }
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
        assert_eq!(fixture.err(&a, "artifacts.read", json!({"name": "x"})).await.kind, ErrorKind::Internal);
    }

    #[tokio::test]
    async fn sizes_and_names_are_bounded() {
        let fixture = Fixture::with(|config| {
            config.limits.artifact = 4;
            config.limits.artifacts.bytes = 400;
        });
        let a = caller("a", None);
        for (name, text, kind) in [
            ("", "x", ErrorKind::InvalidParams),
            ("a\nb", "x", ErrorKind::InvalidParams),
            ("x", "12345", ErrorKind::Limit),
        ] {
            let error = fixture.err(&a, "artifacts.write", json!({"name": name, "content": {"text": text}})).await;
            assert_eq!(error.kind, kind, "{name:?}");
        }
        let large = json!({"name": "x", "content": {"text": ""}, "metadata": {"k": "x".repeat(MAX_METADATA)}});
        assert_eq!(fixture.err(&a, "artifacts.write", large).await.kind, ErrorKind::Limit);
        for name in ["x", "y"] {
            fixture.ok(&a, "artifacts.write", json!({"name": name, "content": {"text": "1234"}})).await;
        }
        let error = fixture.err(&a, "artifacts.write", json!({"name": "z", "content": {"text": "1234"}})).await;
        assert_eq!(error.kind, ErrorKind::Limit);
        for bad in [json!({}), json!({"name": "x", "digest": "y"})] {
            assert_eq!(fixture.err(&a, "artifacts.read", bad).await.kind, ErrorKind::InvalidParams);
        }
    }
}
