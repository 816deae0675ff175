//! Workspace snapshots: an uncompressed tar of one layer, as in OCI images, and its SHA-256.
//!
//! A snapshot contains the workspace, but neither the memory of programs nor `/tmp`. All programs in the sandbox are
//! frozen while it is taken. The tar is in a file without a name, and can be saved to a named file and loaded from
//! there. The digest detects damage, but is not a signature. A file is untrusted: a restored workspace is inside the
//! same isolation boundary as any other.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use cofferdam_contract::{Error, ErrorKind, Fault, Result, Snapshot, TenantId};
use cofferdam_linux::named;
use cofferdam_util::hex;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::NAME;
use crate::error;
use crate::stream::CHUNK;

/// The size of the buffer between the file and the sandbox.
const WAITING: usize = 4 * CHUNK;

/// A workspace snapshot. Cheap to clone; any number of sandboxes can be restored from it.
#[derive(Clone)]
pub struct ContainerSnapshot {
    file: Arc<File>,
    size: u64,
    digest: String,
    tenant: Option<TenantId>,
}

impl ContainerSnapshot {
    /// Returns the payload of a snapshot of this backend.
    pub fn of(snapshot: &Snapshot) -> Option<&Self> {
        (snapshot.backend() == NAME).then(|| snapshot.payload())?
    }

    /// Returns `sha256:` and the digest of the tar, as in OCI.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Sets the tenant whose work the snapshot contains, which is the only one that can restore it. A snapshot that was
    /// loaded from a file has none, and every tenant can restore it.
    #[must_use]
    pub fn with_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = Some(tenant);
        self
    }

    /// Returns the tenant whose work the snapshot contains, if it is known.
    pub fn tenant(&self) -> Option<&TenantId> {
        self.tenant.as_ref()
    }

    /// Returns the length of the tar in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Saves the snapshot to a file, atomically, and readable by this user only. The file does not contain the tenant.
    pub async fn save(&self, path: &Path) -> Result<()> {
        let (snapshot, path) = (self.clone(), path.to_owned());
        let failed = error_at(&path);
        let saved = tokio::task::spawn_blocking(move || snapshot.write_to(&path)).await;
        saved
            .unwrap_or_else(|_| Err(io::Error::other("interrupted")))
            .map_err(|error| failed("cannot save the snapshot", error))
    }

    fn write_to(&self, path: &Path) -> io::Result<()> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        let mut chunk = vec![0; CHUNK];
        let mut at = 0;
        loop {
            let count = self.file.read_at(&mut chunk, at)?;
            if count == 0 {
                break;
            }
            file.write_all(&chunk[..count])?;
            at += count as u64;
        }
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|error| error.error)
    }

    /// Loads a snapshot from a file, without a tenant. With `digest`, fails if the file has another one.
    pub async fn load(path: &Path, digest: Option<&str>) -> Result<Self> {
        let (from, failed) = (path.to_owned(), error_at(path));
        let loaded = tokio::task::spawn_blocking(move || {
            let mut from = named::read(&from)?;
            let mut writer = SnapshotWriter::new(u64::MAX)?;
            // Copied, since the file may change later.
            io::copy(&mut from, &mut writer)?;
            writer.finish()
        });
        let loaded = loaded.await.unwrap_or_else(|_| Err(io::Error::other("interrupted")));
        let loaded = loaded.map_err(|error| failed("cannot load the snapshot", error))?;
        match digest {
            Some(digest) if digest != loaded.digest => {
                Err(Error::invalid("load", "the digest of the snapshot does not match")
                    .with_context("expected", digest.escape_debug().to_string())
                    .with_context("found", loaded.digest))
            }
            _ => Ok(loaded),
        }
    }

    /// Returns a reader of the tar from its beginning.
    pub(crate) fn reader(&self) -> impl AsyncRead + Send + Unpin + use<> {
        let (reader, mut writer) = tokio::io::duplex(WAITING);
        let file = Arc::clone(&self.file);
        tokio::spawn(async move {
            let mut at = 0;
            loop {
                let file = Arc::clone(&file);
                let read = tokio::task::spawn_blocking(move || {
                    let mut chunk = vec![0; CHUNK];
                    file.read_at(&mut chunk, at).map(|count| {
                        chunk.truncate(count);
                        chunk
                    })
                });
                // After a failed read, the import reports a truncated tar.
                let Ok(Ok(chunk)) = read.await else { return };
                if chunk.is_empty() || writer.write_all(&chunk).await.is_err() {
                    return;
                }
                at += chunk.len() as u64;
            }
        });
        reader
    }
}

impl From<ContainerSnapshot> for Snapshot {
    fn from(snapshot: ContainerSnapshot) -> Self {
        let digest = snapshot.digest.strip_prefix("sha256:").unwrap_or(&snapshot.digest).to_owned();
        let tenant = snapshot.tenant.clone();
        let snapshot = Self::new(NAME, snapshot).with_digest(digest);
        match tenant {
            Some(tenant) => snapshot.with_tenant(tenant),
            None => snapshot,
        }
    }
}

impl fmt::Debug for ContainerSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSnapshot")
            .field("digest", &self.digest)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

fn error_at(path: &Path) -> impl FnOnce(&str, io::Error) -> Error + use<> {
    let path = path.display().to_string();
    move |what, error| error::os("snapshot", what, error).with_context("path", path)
}

/// A writer of a snapshot's tar with a maximum length, since the guest controls the contents.
pub(crate) struct SnapshotWriter {
    file: File,
    hash: Sha256,
    size: u64,
    max: u64,
}

impl SnapshotWriter {
    /// Creates a file without a name in the directory for temporary files.
    pub(crate) fn new(max: u64) -> io::Result<Self> {
        Ok(Self { file: tempfile::tempfile()?, hash: Sha256::new(), size: 0, max })
    }

    pub(crate) fn finish(self) -> io::Result<ContainerSnapshot> {
        let digest = format!("sha256:{}", hex::encode(self.hash.finalize()));
        Ok(ContainerSnapshot { file: Arc::new(self.file), size: self.size, digest, tenant: None })
    }
}

impl Write for SnapshotWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() as u64 > self.max - self.size {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the workspace is larger than its disk limit"));
        }
        self.file.write_all(data)?;
        self.hash.update(data);
        self.size += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Writing = tokio::task::JoinHandle<(SnapshotWriter, io::Result<()>)>;

/// An asynchronous [`SnapshotWriter`]. Another thread writes the chunks, one at a time.
pub(crate) struct AsyncSnapshotWriter {
    idle: Option<SnapshotWriter>,
    writing: Option<Writing>,
    chunk: Vec<u8>,
}

impl AsyncSnapshotWriter {
    pub(crate) fn new(max: u64) -> Result<Self> {
        let writer = SnapshotWriter::new(max).map_err(|error| {
            error::os("snapshot", "cannot create a file for the snapshot", error)
                .with_remedy("check the free space of the directory for temporary files (TMPDIR)")
        })?;
        Ok(Self { idle: Some(writer), writing: None, chunk: Vec::new() })
    }

    pub(crate) async fn finish(mut self) -> Result<ContainerSnapshot> {
        let finished = async {
            self.shutdown().await?;
            self.idle.take().ok_or_else(|| io::Error::other("interrupted"))?.finish()
        };
        finished.await.map_err(failed)
    }

    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(writing) = &mut self.writing else { return Poll::Ready(Ok(())) };
        let (writer, outcome) = ready!(Pin::new(writing).poll(context)).map_err(io::Error::other)?;
        (self.writing, self.idle) = (None, Some(writer));
        Poll::Ready(outcome)
    }

    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_idle(context))?;
        if self.chunk.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut writer = self.idle.take().ok_or_else(|| io::Error::other("interrupted"))?;
        let chunk = std::mem::take(&mut self.chunk);
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let outcome = writer.write_all(&chunk);
            (writer, outcome)
        }));
        self.poll_idle(context)
    }
}

/// Converts a failure of writing a snapshot.
pub(crate) fn failed(error: io::Error) -> Error {
    let (kind, fault) = match error.kind() {
        io::ErrorKind::FileTooLarge => (ErrorKind::ResourceExhausted, Fault::Guest),
        io::ErrorKind::StorageFull => (ErrorKind::ResourceExhausted, Fault::Host),
        _ => (ErrorKind::Io, Fault::Host),
    };
    Error::new(kind, "snapshot", "cannot store the snapshot").with_fault(fault).with_source(error)
}

impl AsyncWrite for AsyncSnapshotWriter {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.chunk.len() >= CHUNK {
            ready!(self.poll_written(context))?;
        }
        let count = data.len().min(CHUNK);
        self.chunk.extend_from_slice(&data[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(context)
    }
}

impl ContainerSnapshot {
    /// Returns the tar as a blocking reader, for exporting it to a registry's layout.
    pub fn bytes(&self) -> impl Read + use<> {
        Bytes { file: Arc::clone(&self.file), at: 0 }
    }
}

struct Bytes {
    file: Arc<File>,
    at: u64,
}

impl Read for Bytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_util::sha256;
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn written(data: &[u8], max: u64) -> Result<ContainerSnapshot> {
        let mut writer = AsyncSnapshotWriter::new(max)?;
        writer.write_all(data).await.map_err(failed)?;
        writer.finish().await
    }

    #[tokio::test]
    async fn snapshot_is_read_back_and_hashed() {
        let data: Vec<u8> = (0..3 * CHUNK + 5).map(|n| (n * 7) as u8).collect();
        let snapshot = written(&data, 1 << 20).await.unwrap();
        assert_eq!(snapshot.digest(), format!("sha256:{}", sha256::of(&data)));
        assert_eq!(snapshot.size(), data.len() as u64);
        for _ in 0..2 {
            let mut seen = Vec::new();
            snapshot.reader().read_to_end(&mut seen).await.unwrap();
            assert!(seen == data);
        }
    }

    #[tokio::test]
    async fn larger_snapshot_than_the_maximum_is_refused() {
        for length in [CHUNK * 4, CHUNK + 1] {
            let error = written(&vec![0; length], CHUNK as u64).await.unwrap_err();
            assert_eq!((error.kind(), error.fault()), (ErrorKind::ResourceExhausted, Fault::Guest));
        }
        assert!(written(&vec![0; CHUNK], CHUNK as u64).await.is_ok());
    }

    #[tokio::test]
    async fn a_snapshot_is_the_same_after_a_way_as_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("layer.tar");
        let snapshot = written(b"some tar", 100).await.unwrap();
        snapshot.save(&path).await.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"some tar");
        let loaded = ContainerSnapshot::load(&path, Some(snapshot.digest())).await.unwrap();
        assert_eq!(loaded.digest(), snapshot.digest());
        // Later changes of the file have no effect.
        std::fs::write(&path, "another").unwrap();
        let mut seen = String::new();
        loaded.reader().read_to_string(&mut seen).await.unwrap();
        assert_eq!(seen, "some tar");
        let error = ContainerSnapshot::load(&path, Some(snapshot.digest())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let missing = ContainerSnapshot::load(&directory.path().join("none"), None).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_snapshot_keeps_its_tenant_until_it_is_saved() {
        let snapshot = written(b"some tar", 100).await.unwrap();
        assert_eq!(Snapshot::from(snapshot.clone()).tenant(), None);
        let tenant = TenantId::new("acme").unwrap();
        let outer = Snapshot::from(snapshot.with_tenant(tenant.clone()));
        assert_eq!(outer.tenant(), Some(&tenant));
        let inner = ContainerSnapshot::of(&outer).unwrap().clone();
        assert_eq!(Snapshot::from(inner).tenant(), Some(&tenant));
    }

    #[test]
    fn only_our_own_snapshots_are_taken() {
        assert!(ContainerSnapshot::of(&Snapshot::new(NAME, "another")).is_none());
        assert!(ContainerSnapshot::of(&Snapshot::new("wasm", ())).is_none());
    }
}
