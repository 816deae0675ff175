//! Snapshots of machines that travel as files.

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
use cofferdam_vm::{LoadOptions, SaveOptions, SnapshotManifest, Travelled, VmBackend, VmError, VmSnapshot};
use serde::Serialize;

use super::Machines;
use crate::registry::{ImageProgress, ImageStep};

/// Bytes that are read or written at once.
pub(super) const PIECE: usize = 1 << 20;
/// The largest workspace that is restored unless told otherwise.
pub const LARGEST_WORKSPACE: ByteSize = ByteSize::from_mebibytes(8192);

/// What an archive is encrypted with. Nobody is shown it.
#[derive(Debug, Clone)]
pub struct ArchiveKey(Arc<Key>);

impl ArchiveKey {
    pub(super) fn get(&self) -> &Key {
        &self.0
    }

    /// The key in a file of the user's own: exactly 32 bytes, or 64 hexadecimal digits.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a file with anything else in it, or one that others can read; never with its contents.
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

/// How far something is, and whether it is to end.
#[derive(Clone)]
pub struct Watch {
    /// Told of the steps.
    pub progress: ImageProgress,
    /// Set by whoever wants it to end.
    pub cancelled: Arc<AtomicBool>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}

impl Watch {
    pub(super) fn tell(&self, what: &str, step: Progress) -> ControlFlow<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        (self.progress)(ImageStep { what: what.to_owned(), bytes: Some((step.done, step.total)) });
        ControlFlow::Continue(())
    }
}

/// What a snapshot of a machine is, as far as people and programs want to know.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SnapshotInfo {
    /// The key of the image that the machine started from.
    pub image: String,
    /// What it depends on besides: monitor, version, machine, processor.
    pub origin: cofferdam_vm::vmm::Origin,
    /// All of the machine's memory, in bytes.
    pub memory: ByteSize,
    /// The size of its workspace's disk, in bytes, if it has one.
    pub disk: Option<ByteSize>,
    /// The limits of the sandbox.
    pub limits: Limits,
    /// Execs that ran and go on.
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
    /// The SHA-256 that it ends with.
    pub sha256: String,
    /// Whether it is encrypted.
    pub encrypted: bool,
}

/// A part of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArchivePart {
    /// Its name.
    pub name: String,
    /// What it is: `json`, `state`, `memory`, `disk`.
    pub kind: String,
    /// Bytes when it is restored.
    pub size: u64,
}

/// What an archive says of itself. Only after `verified` is it whole, and only a key shows who wrote it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ArchiveInfo {
    /// The version of its format.
    pub version: u32,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// The file's length.
    pub bytes: u64,
    /// Its parts, in order.
    pub parts: Vec<ArchivePart>,
    /// The machine; none of an encrypted archive without its key, or where it is not understood.
    pub machine: Option<SnapshotInfo>,
    /// Why the machine is not understood.
    pub odd: Option<String>,
    /// The SHA-256 that it ends with, where all of it was read and compared.
    pub verified: Option<String>,
}

/// The backend of machines, with the files that their snapshots are kept in.
#[derive(Debug)]
pub struct MachineSnapshots {
    backend: Arc<VmBackend>,
}

impl MachineSnapshots {
    /// Nothing is looked at or started before the first use.
    pub fn new(machines: &Machines, progress: ImageProgress) -> Result<Self> {
        Ok(Self { backend: Arc::new(super::backend(machines, progress)?) })
    }

    /// The backend, whose snapshots these are.
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend) as _
    }

    /// What a snapshot of this backend is.
    pub fn about(snapshot: &Snapshot) -> Result<SnapshotInfo> {
        Ok(of(snapshot)?.manifest().into())
    }

    /// Writes one to a file, from the file's beginning. After an error, what is in the file is none.
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
        let told = move |step| watch.tell("writing the archive", step);
        let written = of(snapshot)?.save(out, options, told).await?;
        Ok(SavedArchive { bytes: written.bytes, sha256: written.digest.to_string(), encrypted: key.is_some() })
    }

    /// Restores one, and returns the execs that were running in it: as [`VmBackend::restore_attached`].
    pub async fn restore(&self, snapshot: &Snapshot, spec: Spec) -> Result<(Arc<dyn Sandbox>, Vec<ExecHandle>)> {
        self.backend.restore_attached(snapshot, spec).await
    }

    /// Reads one, with a spec that it can be restored with: as [`VmBackend::load`]. One that may use more than `ceiling` is
    /// refused before its memory is read.
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
        let told = move |step| watch.tell("reading the archive", step);
        let loaded = self.backend.load(input, options, told).await?;
        let spec = loaded.spec();
        Ok((loaded.into(), spec))
    }
}

fn of(snapshot: &Snapshot) -> Result<&VmSnapshot> {
    VmSnapshot::of(snapshot).ok_or_else(|| Error::invalid("save", "this is no snapshot of the vm backend"))
}

/// Says what an archive is; with `verify`, after reading all of it. Needs no machine, and keeps nothing.
///
/// # Errors
///
/// `InvalidInput` for what is no archive, or is damaged as far as it was read.
pub fn inspect_archive(path: &Path, key: Option<&ArchiveKey>, verify: Option<Watch>) -> Result<ArchiveInfo> {
    let file = open("inspect", path)?;
    let bytes = file.metadata().map(|meta| meta.len()).unwrap_or_default();
    let mut input = BufReader::with_capacity(PIECE, file);
    let failed = |error| failed("inspect", error);
    // Nothing is kept, whatever its size.
    let options = ReadOptions { key: key.map(|key| &*key.0), limits: Bounds { json: 1 << 20, ..Bounds::FORMAT } };
    let Some(watch) = verify else {
        return Ok(info(&cofferdam_archive::inspect(&mut input, &options).map_err(failed)?, bytes, None));
    };
    let reader = Reader::open(input, &options).map_err(failed)?;
    let summary = reader.summary();
    let verified = reader.verify(&mut |step| watch.tell("reading the archive", step)).map_err(failed)?;
    Ok(info(&summary, bytes, Some(verified.digest.to_string())))
}

fn info(summary: &Summary, bytes: u64, verified: Option<String>) -> ArchiveInfo {
    let (machine, odd) = match summary.documents.as_deref().map(Travelled::read) {
        Some(Ok(travelled)) => (Some(travelled.manifest().into()), None),
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

/// Opens a file that may be anything, and waits for nobody.
pub(super) fn open(operation: &'static str, path: &Path) -> Result<File> {
    let refused = |kind, why: String| {
        Err(Error::new(kind, operation, format!("'{}' cannot be read: {why}", path.display()))
            .with_remedy("name a file that exists and that you may read"))
    };
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    match opened.and_then(|file| Ok((file.metadata()?.is_file(), file))) {
        Ok((true, file)) => Ok(file),
        Ok((false, _)) => refused(ErrorKind::InvalidInput, "it is no regular file".to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            refused(ErrorKind::NotFound, "there is no such file".to_owned())
        }
        Err(error) => refused(ErrorKind::Io, error.to_string()),
    }
}
