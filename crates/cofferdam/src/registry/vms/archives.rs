//! Portable archives of VM snapshots.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam_archive::{ArchiveError, Key, Limits as Bounds, Progress, ReadOptions, Reader, Summary};
use cofferdam_contract::{
    Backend, ByteSize, Error, ErrorKind, ExecHandle, ExecId, Limits, Result, Sandbox, Snapshot, Spec,
};
use cofferdam_linux::trust::{self, Secrecy};
use cofferdam_vm::{
    LoadOptions, SaveOptions, SnapshotDocument, SnapshotManifest, VmBackend, VmError, VmSettings, VmSnapshot,
};
use serde::Serialize;

use crate::registry::{ImageProgress, ImageStep};

/// Size of read and write buffers.
pub(super) const PIECE: usize = 1 << 20;
/// Default maximum size of a restored workspace.
pub const LARGEST_WORKSPACE: ByteSize = ByteSize::from_mebibytes(8192);

/// An encryption key of archives. Its `Debug` output does not contain the key.
#[derive(Debug, Clone)]
pub struct ArchiveKey(Arc<Key>);

impl ArchiveKey {
    pub(super) fn get(&self) -> &Key {
        &self.0
    }

    /// Reads a key from the user's own file: exactly 32 bytes, or 64 hexadecimal digits.
    ///
    /// # Errors
    ///
    /// Returns `InvalidInput` for a file with other contents, or one that other users can read. Errors never include
    /// the contents.
    pub fn read(path: &Path) -> Result<Self> {
        let file = open("read the key", path)?;
        let key = Key::of_file(&file).map_err(|error| failed("read the key", error)).and_then(|key| {
            let checked = trust::check(path, Secrecy::Secret).map(|_| key);
            checked
                .map_err(|distrust| Error::invalid("read the key", distrust.to_string()).with_remedy(distrust.remedy()))
        });
        key.map(|key| Self(Arc::new(key))).map_err(|error| error.with_context("file", path.display().to_string()))
    }
}

/// Progress callback and cancellation flag of long work.
#[derive(Clone)]
pub struct Watch {
    /// Callback for the steps.
    pub progress: ImageProgress,
    /// Set by the caller to cancel the work.
    pub cancelled: Arc<AtomicBool>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) fn report(&self, what: &str, step: Progress) -> ControlFlow<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        (self.progress)(ImageStep { what: what.to_owned(), bytes: Some((step.done, step.total)) });
        ControlFlow::Continue(())
    }
}

/// Description of a VM snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SnapshotInfo {
    /// The key of the VM's image.
    pub image: String,
    /// Further dependencies: VMM, its version, machine type, CPU model.
    pub origin: cofferdam_vm::vmm::Origin,
    /// Size of the VM's memory in bytes.
    pub memory: ByteSize,
    /// Size of the workspace disk in bytes, if there is one.
    pub disk: Option<ByteSize>,
    /// The limits of the sandbox.
    pub limits: Limits,
    /// Running execs, which resume.
    pub running: Vec<ExecId>,
}

impl From<&SnapshotManifest> for SnapshotInfo {
    fn from(manifest: &SnapshotManifest) -> Self {
        Self {
            image: manifest.image().to_owned(),
            origin: manifest.origin().clone(),
            memory: manifest.memory(),
            disk: manifest.disk(),
            limits: manifest.limits().clone(),
            running: manifest.running(),
        }
    }
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SavedArchive {
    /// Its length.
    pub bytes: u64,
    /// The SHA-256 at its end.
    pub sha256: String,
    /// True if it is encrypted.
    pub encrypted: bool,
}

/// A part of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArchivePart {
    /// Its name.
    pub name: String,
    /// Its kind: `json`, `state`, `memory` or `disk`.
    pub kind: String,
    /// Its size in bytes after restoring.
    pub size: u64,
}

/// Description of an archive. It is known to be complete only if `verified` is set, and authenticated only by a key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArchiveInfo {
    /// The version of its format.
    pub version: u32,
    /// True if it is encrypted.
    pub encrypted: bool,
    /// The file's length.
    pub bytes: u64,
    /// Its parts, in order.
    pub parts: Vec<ArchivePart>,
    /// The VM, unless the archive is encrypted and the key is missing, or the description is not understood.
    pub machine: Option<SnapshotInfo>,
    /// The reason why the description of the VM is not understood.
    pub odd: Option<String>,
    /// The SHA-256 at its end, if the whole archive was read and verified.
    pub verified: Option<String>,
}

/// The VM backend, with archives of its snapshots.
#[derive(Debug)]
pub struct VmSnapshots {
    backend: Arc<VmBackend>,
}

impl VmSnapshots {
    /// Creates the backend. Nothing is examined or started before the first use.
    pub fn new(settings: &VmSettings, progress: ImageProgress) -> Result<Self> {
        Ok(Self { backend: Arc::new(super::backend(settings, progress)?) })
    }

    /// Returns the backend of the snapshots.
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as _
    }

    /// Describes a snapshot of this backend.
    pub fn about(snapshot: &Snapshot) -> Result<SnapshotInfo> {
        Ok(of(snapshot)?.manifest().into())
    }

    /// Writes a snapshot to a file, from the file's beginning. After an error, the file contains no valid archive.
    pub async fn save(
        snapshot: &Snapshot,
        file: File,
        key: Option<&ArchiveKey>,
        level: Option<i32>,
        watch: Watch,
    ) -> Result<SavedArchive> {
        let options = SaveOptions { key: key.map(|key| Arc::clone(&key.0)), ..SaveOptions::default() };
        let options = SaveOptions { level: level.unwrap_or(options.level), ..options };
        let out = BufWriter::with_capacity(PIECE, file);
        let on_step = move |step| watch.report("writing the archive", step);
        let written = of(snapshot)?.save(out, options, on_step).await?;
        Ok(SavedArchive { bytes: written.bytes, sha256: written.digest.to_string(), encrypted: key.is_some() })
    }

    /// Writes a snapshot without encryption.
    pub async fn write(snapshot: &Snapshot, out: Box<dyn std::io::Write + Send>) -> Result<()> {
        let out = BufWriter::with_capacity(PIECE, out);
        of(snapshot)?.save(out, SaveOptions::default(), |_| ControlFlow::Continue(())).await.map(drop)
    }

    /// Reads a snapshot that [`Self::write`] has written. Refuses one whose limits exceed `ceiling` before reading its
    /// memory.
    pub async fn read(&self, file: File, ceiling: Limits) -> Result<Snapshot> {
        let disk = ceiling.disk.unwrap_or(LARGEST_WORKSPACE).as_bytes().saturating_mul(2);
        let limits = Bounds { disk, ..Bounds::default() };
        let options = LoadOptions { key: None, limits, ceiling };
        let input = BufReader::with_capacity(PIECE, file);
        self.backend.load(input, options, |_| ControlFlow::Continue(())).await.map(Snapshot::from)
    }

    /// Restores a snapshot with [`VmBackend::restore_attached`]. Returns the sandbox and the execs that run in it.
    pub async fn restore(&self, snapshot: &Snapshot, spec: Spec) -> Result<(Arc<dyn Sandbox>, Vec<ExecHandle>)> {
        self.backend.restore_attached(snapshot, spec).await
    }

    /// Reads a snapshot with [`VmBackend::load`], and returns a spec that it can be restored with. Refuses a snapshot
    /// whose limits exceed `ceiling` before reading its memory.
    pub async fn load(
        &self,
        path: &Path,
        key: Option<&ArchiveKey>,
        workspace: ByteSize,
        ceiling: Limits,
        watch: Watch,
    ) -> Result<(Snapshot, cofferdam_contract::SpecBuilder)> {
        let input = BufReader::with_capacity(PIECE, open("load", path)?);
        let limits = Bounds { disk: workspace.as_bytes(), ..Bounds::default() };
        let options = LoadOptions { key: key.map(|key| Arc::clone(&key.0)), limits, ceiling };
        let on_step = move |step| watch.report("reading the archive", step);
        let loaded = self.backend.load(input, options, on_step).await?;
        let spec = loaded.spec();
        Ok((loaded.into(), spec))
    }
}

fn of(snapshot: &Snapshot) -> Result<&VmSnapshot> {
    VmSnapshot::of(snapshot).ok_or_else(|| Error::invalid("save", "the snapshot does not belong to the vm backend"))
}

/// Describes an archive. With `verify`, reads and verifies all of it. Starts no VM and stores nothing.
///
/// # Errors
///
/// Returns `InvalidInput` for a file that is not an archive, or that is damaged in the part that was read.
pub fn inspect_archive(path: &Path, key: Option<&ArchiveKey>, verify: Option<Watch>) -> Result<ArchiveInfo> {
    let file = open("inspect", path)?;
    let bytes = file.metadata().map(|meta| meta.len()).unwrap_or_default();
    let mut input = BufReader::with_capacity(PIECE, file);
    let failed = |error| failed("inspect", error);
    // The contents are not stored, so their size needs no limit.
    let options = ReadOptions { key: key.map(|key| &*key.0), limits: Bounds { json: 1 << 20, ..Bounds::FORMAT } };
    let Some(watch) = verify else {
        return Ok(info(&cofferdam_archive::inspect(&mut input, &options).map_err(failed)?, bytes, None));
    };
    let reader = Reader::open(input, &options).map_err(failed)?;
    let summary = reader.summary();
    let verified = reader.verify(&mut |step| watch.report("reading the archive", step)).map_err(failed)?;
    Ok(info(&summary, bytes, Some(verified.digest.to_string())))
}

fn info(summary: &Summary, bytes: u64, verified: Option<String>) -> ArchiveInfo {
    let (machine, odd) = match summary.documents.as_deref().map(SnapshotDocument::read) {
        Some(Ok(document)) => (Some(document.manifest().into()), None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => (None, None),
    };
    let part = |part: &cofferdam_archive::Part| ArchivePart {
        name: part.name.to_string(),
        kind: part.kind.to_string(),
        size: part.size,
    };
    let parts = summary.parts.iter().map(part).collect();
    ArchiveInfo { version: summary.version, encrypted: summary.encrypted, bytes, parts, machine, odd, verified }
}

fn failed(operation: &'static str, error: ArchiveError) -> Error {
    VmError::from(error).into_contract(operation)
}

/// Opens a file that may be of any type, without blocking.
pub(super) fn open(operation: &'static str, path: &Path) -> Result<File> {
    let refused = |kind, why: String| {
        Err(Error::new(kind, operation, format!("cannot read '{}': {why}", path.display()))
            .with_remedy("pass a file that exists and that you may read"))
    };
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    match opened.and_then(|file| Ok((file.metadata()?.is_file(), file))) {
        Ok((true, file)) => Ok(file),
        Ok((false, _)) => refused(ErrorKind::InvalidInput, "it is not a regular file".to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            refused(ErrorKind::NotFound, "there is no such file".to_owned())
        }
        Err(error) => refused(ErrorKind::Io, error.to_string()),
    }
}
