//! Portable VM snapshots: one archive with the complete state of a VM except its image.
//!
//! ```text
//! save: VmSnapshot --machine (JSON), devices, memory, workspace--> cofferdam_archive::Writer --> stream
//! load: stream --> document alone: compatible here? --> Reader::restore --> own files --all verified--> VmSnapshot
//! ```
//!
//! The root file system is not in the archive: the document names the image by its key and its disk by a hash. The
//! archive is untrusted input: its metadata is checked against its parts and against this host before its memory is
//! read.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use cofferdam_archive::{
    ArchiveError, Base, Digest, Document, Key, Kind, Limits, Part, Progress, ReadOptions, Reader, WriteOptions, Writer,
    Written,
};
use cofferdam_contract::{ByteSize, Cpus, Limits as SandboxLimits, Result as ContractResult};
use cofferdam_image::{IMAGE_DOCUMENT, SNAPSHOT_DOCUMENT};
use cofferdam_util::private;
use cofferdam_util::text::excerpt;
use serde::{Deserialize, Serialize};

use crate::backend::VmBackend;
use crate::budget::Lease;
use crate::error::{Result, VmError, io};
use crate::plan::Plan;
use crate::snapshot::{SnapshotManifest, VmSnapshot, check_agent, check_format};
use crate::sparse;
use crate::state::BackendState;
use crate::task::blocking;
use crate::vmm::{MAX_DEVICES, VmState};

const DEVICES: &str = "devices";
const MEMORY: &str = "memory";
const WORKSPACE: &str = "workspace";

/// Options for writing a snapshot.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// Encryption key, if the archive is to be encrypted.
    pub key: Option<Arc<Key>>,
    /// Compression level, from 1 (fast) to 19 (small).
    pub level: i32,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self { key: None, level: WriteOptions::default().level }
    }
}

/// Options for reading an archive.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Decryption key. With a key, only an encrypted archive is accepted.
    pub key: Option<Arc<Key>>,
    /// Size limits of the archive. [`VmConfig::snapshots`](crate::VmConfig) bounds its memory in addition.
    pub limits: Limits,
    /// Maximum limits of the archive's sandbox. An archive with a larger limit, or without one, is refused before any
    /// memory is read. The spec that restores it sets CPU time and wall time.
    pub ceiling: SandboxLimits,
}

/// An archive's description of its VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotDocument {
    manifest: SnapshotManifest,
    /// SHA-256 of the disk with the VM's root file system.
    root: String,
}

/// The manifest member of the document.
#[derive(Deserialize)]
struct WithManifest<T> {
    manifest: T,
}

/// The member that all versions of the document have.
#[derive(Deserialize)]
struct Format {
    format: u64,
}

/// The member that all versions of the agent's record have.
#[derive(Deserialize)]
struct Guest {
    guest: Agent,
}

#[derive(Deserialize)]
struct Agent {
    version: u64,
}

impl SnapshotDocument {
    /// Parses the documents of an archive.
    ///
    /// # Errors
    ///
    /// [`VmError::InvalidSnapshot`] if the documents are not those of a VM snapshot, or have another format version.
    /// `Unsupported` if the VM's agent speaks another protocol version.
    pub fn read(documents: &[Document]) -> Result<Self> {
        let bad = |what: String| VmError::InvalidSnapshot { what };
        let [document] = documents else {
            return Err(bad(format!("its archive has {} documents, expected one", documents.len())));
        };
        if document.part.name.as_str() == IMAGE_DOCUMENT {
            return Err(bad("the file holds an image; import it with `cofferdam vm import-image`".to_owned()));
        }
        if document.part.name.as_str() != SNAPSHOT_DOCUMENT {
            return Err(bad(format!("its archive has no document '{SNAPSHOT_DOCUMENT}'")));
        }
        let invalid = |error| bad(format!("cannot parse the archive's description of the VM: {error}"));
        // The format is read first and alone: another format may have other fields, which would be reported as
        // malformed.
        let WithManifest { manifest: Format { format } } = serde_json::from_slice(&document.bytes).map_err(invalid)?;
        check_format(format)?;
        let WithManifest { manifest: Guest { guest } } = serde_json::from_slice(&document.bytes).map_err(invalid)?;
        check_agent(guest.version)?;
        serde_json::from_slice(&document.bytes).map_err(invalid)
    }

    /// Returns the snapshot's manifest.
    pub fn manifest(&self) -> &SnapshotManifest {
        &self.manifest
    }

    /// Returns the SHA-256 of the disk with the VM's root file system.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Refuses parts that are not those of this VM.
    fn check_parts(&self, parts: &[Part]) -> Result<()> {
        let memory = (MEMORY, Kind::Memory, Some(self.manifest.memory().as_bytes()));
        let disk = self.manifest.disk().map(|size| (WORKSPACE, Kind::Disk, Some(size.as_bytes())));
        let wanted =
            [(SNAPSHOT_DOCUMENT, Kind::Json, None), (DEVICES, Kind::State, None), memory].into_iter().chain(disk);
        let wanted: Vec<_> = wanted.collect();
        let bad = |what: String| Err(VmError::InvalidSnapshot { what });
        if parts.len() != wanted.len() {
            return bad(format!("its archive has {} parts, expected {}", parts.len(), wanted.len()));
        }
        for (part, (name, kind, size)) in parts.iter().zip(wanted) {
            if part.name.as_str() != name || part.kind != kind || part.base.is_some() {
                return bad(format!(
                    "its archive has part '{}' ({}), expected '{name}' ({kind})",
                    part.name, part.kind
                ));
            }
            if kind == Kind::State && part.size > MAX_DEVICES {
                return bad(format!("part '{name}' has {} bytes, at most {MAX_DEVICES} are accepted", part.size));
            }
            if let Some(size) = size.filter(|size| *size != part.size) {
                return bad(format!("part '{name}' has {} bytes, expected {size}", part.size));
            }
        }
        Ok(())
    }

    /// Refuses a VM with larger limits than the caller allows.
    fn check_ceiling(&self, ceiling: &SandboxLimits) -> Result<()> {
        let SandboxLimits { cpu_time: _, memory, disk, wall_time: _, pids, processes, cpus } = self.manifest.limits();
        let size = |size: Option<ByteSize>| size.map(|size| (size.as_bytes(), size.to_string()));
        let count = |count: Option<u32>| count.map(|count| (count.into(), count.to_string()));
        let share = |cpus: Option<Cpus>| cpus.map(|cpus| (u64::from(cpus.as_millis()), cpus.to_string()));
        let pairs = [
            ("memory", size(*memory), size(ceiling.memory)),
            ("disk", size(*disk), size(ceiling.disk)),
            ("pids", count(*pids), count(ceiling.pids)),
            ("processes", count(*processes), count(ceiling.processes)),
            ("cpus", share(*cpus), share(ceiling.cpus)),
        ];
        for (what, found, max) in pairs {
            if let Some((max, shown)) = max
                && found.as_ref().is_none_or(|(found, _)| *found > max)
            {
                let found = found.map_or_else(|| "none".to_owned(), |(_, shown)| shown);
                return Err(VmError::ExceedsCeiling { what, found, max: shown });
            }
        }
        Ok(())
    }

    /// Refuses a VM that this host cannot resume, whatever the spec asks for.
    fn check_plan(&self, backend: &BackendState) -> Result<()> {
        let invalid = |error: cofferdam_contract::Error| VmError::InvalidSnapshot { what: error.to_string() };
        let spec = self.manifest.spec(cofferdam_contract::RootFs::Default).build().map_err(invalid)?;
        let plan = Plan::of(&spec, &backend.config).map_err(invalid)?;
        self.manifest.check_spec(&plan, &spec)
    }
}

impl VmSnapshot {
    /// Writes the complete snapshot to a stream, except its image. If it fails, the output is not a valid archive, and
    /// the caller discards it.
    ///
    /// `watch` receives the progress and cancels with `Break`.
    ///
    /// # Behavior
    /// - VMs that are created from the snapshot meanwhile do not change the output.
    /// - Fails with `ResourceExhausted` if there is no space, with `Closed` if `watch` cancelled.
    pub async fn save(
        &self,
        out: impl Write + Send + 'static,
        options: SaveOptions,
        mut watch: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> ContractResult<Written> {
        let snapshot = self.clone();
        let saved = blocking(move || snapshot.write(out, &options, &mut watch)).await;
        saved.map_err(|error| error.into_error("save"))
    }

    fn write(
        &self,
        out: impl Write,
        options: &SaveOptions,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Written> {
        let Some((_, root)) = self.root() else {
            let what = "the disk of its root file system is unknown".to_owned();
            return Err(VmError::InvalidSnapshot { what });
        };
        let root = hash_of(root)?.to_string();
        let document = SnapshotDocument { manifest: self.manifest().clone(), root };
        let invalid = |error: serde_json::Error| VmError::InvalidSnapshot { what: error.to_string() };
        let document = serde_json::to_vec(&document).map_err(invalid)?;
        let key = options.key.as_deref();
        let mut writer = Writer::new(WriteOptions { level: options.level, key, ..WriteOptions::default() })?;
        writer.json(SNAPSHOT_DOCUMENT, &document)?.state(DEVICES, self.state().devices())?;
        writer.memory(MEMORY, self.state().memory())?;
        if let Some(disk) = self.disk() {
            writer.disk(WORKSPACE, disk, None)?;
        }
        Ok(writer.write(out, watch)?)
    }
}

/// Returns the hash of a disk's contents, independent of its cursor.
fn hash_of(disk: &File) -> Result<Digest> {
    let disk = disk.try_clone().map_err(io("copy a descriptor of", "a disk"))?;
    Ok(Base::hashed(disk)?.id())
}

impl VmBackend {
    /// Reads a snapshot from an archive. It is used like any other: [`restore`](cofferdam_contract::Backend::restore)
    /// creates VMs from it, with a spec that starts as [`VmSnapshot::spec`].
    ///
    /// `watch` receives the progress and cancels with `Break`.
    ///
    /// # Behavior
    /// - The origin is checked first. Nothing more is read if the VM cannot resume here: another VMM, version, VM type,
    ///   processor or accelerator, an agent of another version, a missing image, inconsistent sizes.
    /// - All of it is verified before any of it is used. It is stored in unnamed files; nothing remains after a
    ///   failure.
    /// - Fails with `InvalidInput` if the input is no archive, is damaged, was tampered with or does not match the key,
    ///   with `NotFound` if the image is missing, with `Unsupported` for an agent of another version, with
    ///   `ResourceExhausted` if there is no space.
    pub async fn load(
        &self,
        input: impl Read + Send + 'static,
        options: LoadOptions,
        watch: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> ContractResult<VmSnapshot> {
        load(&self.state, input, options, watch).await.map_err(|error| error.into_error("load"))
    }
}

async fn load(
    backend: &Arc<BackendState>,
    input: impl Read + Send + 'static,
    options: LoadOptions,
    mut watch: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
) -> Result<VmSnapshot> {
    let opened = blocking(move || {
        let reader = Reader::open(input, &ReadOptions { key: options.key.as_deref(), limits: options.limits })?;
        let document = SnapshotDocument::read(reader.documents())?;
        document.check_parts(reader.parts())?;
        document.check_ceiling(&options.ceiling)?;
        Ok((reader, document))
    });
    let (reader, document) = opened.await?;
    document.manifest.check_origin(&backend.vmm().origin().await?)?;
    document.check_plan(backend)?;
    let (root, image) = backend.image_with(document.manifest.image()).await?;
    let backend = Arc::clone(backend);
    blocking(move || {
        let disk = File::open(&image.root).map_err(io("open", &image.root))?;
        let current = hash_of(&disk)?.to_string();
        if current != document.root {
            let found = excerpt(&document.root);
            return Err(VmError::OriginMismatch { what: "the image's disk with the SHA-256", found, current });
        }
        let (state, workspace, lease, digest) = files(&backend, reader, &mut watch)?;
        let snapshot = VmSnapshot::new(document.manifest, state, workspace, Some((root, Arc::new(disk))), lease)?;
        Ok(snapshot.read_from(digest))
    })
    .await
}

/// Restores the parts into own files, within the space limits. Also returns the archive's digest.
fn files<R: Read>(
    backend: &BackendState,
    reader: Reader<R>,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(VmState, Option<File>, Lease, String)> {
    let (mut lease, mut refused) = (backend.open_lease()?, None);
    // The files in the host's memory.
    let taken: RefCell<Vec<File>> = RefCell::default();
    let mut create = |part: &Part| {
        if part.kind == Kind::Disk {
            return blank_disk(&backend.config.disks);
        }
        let file = sparse::blank(0)?;
        taken.borrow_mut().push(file.try_clone()?);
        Ok(file)
    };
    // Checked after each MiB, so that no archive takes more of the host's memory than snapshots may.
    let mut charge = |progress: Progress| {
        let bytes: std::io::Result<u64> = taken.borrow().iter().map(sparse::allocated).sum();
        match bytes.map_err(io("inspect", "a snapshot")).and_then(|bytes| lease.grow(bytes)) {
            Ok(()) => watch(progress),
            Err(error) => {
                refused = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    let restored = reader.restore(&[], &mut create, &mut charge);
    if let Some(error) = refused {
        return Err(error);
    }
    let (mut state, mut memory, mut workspace) = (None, None, None);
    let restored = restored?;
    let digest = restored.digest.to_string();
    for (part, file) in restored.files {
        let slot = match part.kind {
            Kind::State => &mut state,
            Kind::Memory => &mut memory,
            Kind::Disk => &mut workspace,
            Kind::Json => continue,
        };
        *slot = Some(file);
    }
    let (Some(memory), Some(state)) = (memory, state) else {
        return Err(ArchiveError::Damaged { what: "parts" }.into());
    };
    Ok((VmState::new(memory, state)?, workspace, lease, digest))
}

/// Creates an empty unnamed file.
fn blank_disk(directory: &Path) -> std::io::Result<File> {
    private::create_directory(directory)?;
    tempfile::tempfile_in(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_archive::Name;
    use cofferdam_guest::PROTOCOL;

    fn snapshot_document(disk: Option<u64>) -> SnapshotDocument {
        let text = serde_json::json!({
            "manifest": {
                "format": 1,
                "origin": {
                    "monitor": "qemu", "version": "7.2.22", "machine": "microvm x86_64", "accelerator": "tcg",
                    "processor": "Nehalem-v1", "host": null, "ticks_per_millisecond": null
                },
                "image": "key",
                "plan": {
                    "memory": 1 << 20, "processors": 1,
                    "shares": { "disk": disk, "workspace": 4096, "tmp": 4096, "shm": 4096 },
                    "bound": null, "tasks": null, "quota": null
                },
                "access": "read-write", "limits": {},
                "guest": { "version": PROTOCOL, "last": 0, "execs": [] }
            },
            "root": "x"
        });
        serde_json::from_value(text).unwrap()
    }

    fn part(name: &str, kind: Kind, size: u64) -> Part {
        Part { name: Name::new(name).unwrap(), kind, size, base: None }
    }

    fn document(name: &str, bytes: Vec<u8>) -> Document {
        Document { part: part(name, Kind::Json, bytes.len() as u64), bytes }
    }

    /// Promise (Virtual machines): An archive with parts that do not belong to a VM is refused.
    #[test]
    fn archive_with_other_parts_is_refused() {
        let parts = || {
            vec![
                part(SNAPSHOT_DOCUMENT, Kind::Json, 9),
                part(DEVICES, Kind::State, 9),
                part(MEMORY, Kind::Memory, 1 << 20),
            ]
        };
        let disk = part(WORKSPACE, Kind::Disk, 8192);
        snapshot_document(None).check_parts(&parts()).unwrap();
        let with_disk: Vec<_> = parts().into_iter().chain([disk.clone()]).collect();
        snapshot_document(Some(8192)).check_parts(&with_disk).unwrap();
        let changed = |at: usize, to: Part| {
            let mut parts = with_disk.clone();
            parts[at] = to;
            parts
        };
        let base = Part { base: Some(Digest::from_bytes([1; 32])), ..disk.clone() };
        snapshot_document(Some(8192)).check_parts(&changed(1, part(DEVICES, Kind::State, MAX_DEVICES))).unwrap();
        for (bad, why) in [
            (parts(), "too few"),
            (with_disk.iter().cloned().chain([part("more", Kind::State, 1)]).collect(), "too many"),
            (changed(1, part(DEVICES, Kind::Memory, 9)), "kind"),
            (changed(1, part(DEVICES, Kind::State, MAX_DEVICES + 1)), "devices' size"),
            (changed(1, part("devicez", Kind::State, 9)), "name"),
            (changed(2, part(MEMORY, Kind::Memory, 4096)), "memory's size"),
            (changed(3, part(WORKSPACE, Kind::Disk, 4096)), "disk's size"),
            (changed(3, base), "a base"),
            (changed(3, parts().remove(1)), "order"),
        ] {
            let error = snapshot_document(Some(8192)).check_parts(&bad).unwrap_err();
            assert!(matches!(error, VmError::InvalidSnapshot { .. }), "{why}: {error}");
        }
        assert!(snapshot_document(None).check_parts(&with_disk).is_err());
    }

    #[test]
    fn an_archive_that_may_use_more_than_the_caller_is_refused() {
        let mut archive = snapshot_document(None);
        archive.check_ceiling(&SandboxLimits::default()).unwrap();
        let unbounded = SandboxLimits { memory: None, disk: None, pids: None, ..SandboxLimits::default() };
        let mebibytes = |count| Some(ByteSize::from_mebibytes(count));
        for (what, limits) in [
            ("memory", SandboxLimits { memory: mebibytes(513), ..Default::default() }),
            ("memory", SandboxLimits { memory: None, ..Default::default() }),
            ("disk", SandboxLimits { disk: mebibytes(1025), ..Default::default() }),
            ("disk", SandboxLimits { disk: None, ..Default::default() }),
            ("pids", SandboxLimits { pids: Some(u32::MAX), ..Default::default() }),
            ("pids", SandboxLimits { pids: None, ..Default::default() }),
        ] {
            archive.manifest.set_limits(limits);
            let error = archive.check_ceiling(&SandboxLimits::default()).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
            archive.check_ceiling(&unbounded).unwrap();
        }
        let one = SandboxLimits { cpus: Some("1".parse().unwrap()), ..Default::default() };
        archive.manifest.set_limits(SandboxLimits::default());
        assert!(archive.check_ceiling(&one).is_err(), "an archive without a bound on processors");
        archive.manifest.set_limits(SandboxLimits { cpus: Some("0.5".parse().unwrap()), ..Default::default() });
        archive.check_ceiling(&one).unwrap();
    }

    /// Promise (Virtual machines): An archive whose document does not describe a VM is refused.
    #[test]
    fn documents_of_other_kinds_are_refused() {
        let good = serde_json::to_vec(&snapshot_document(None)).unwrap();
        assert_eq!(
            SnapshotDocument::read(&[document(SNAPSHOT_DOCUMENT, good.clone())]).unwrap(),
            snapshot_document(None)
        );
        let text = String::from_utf8(good.clone()).unwrap();
        for bad in [
            vec![],
            vec![document(SNAPSHOT_DOCUMENT, good.clone()), document("more", b"{}".to_vec())],
            vec![document("other", good)],
            vec![document(SNAPSHOT_DOCUMENT, b"{".to_vec())],
            vec![document(SNAPSHOT_DOCUMENT, text.replace("\"format\":1", "\"format\":2").into_bytes())],
            vec![document(SNAPSHOT_DOCUMENT, text.replacen('{', "{\"more\":1,", 1).into_bytes())],
        ] {
            assert!(matches!(SnapshotDocument::read(&bad), Err(VmError::InvalidSnapshot { .. })), "{bad:?}");
        }
    }

    #[test]
    fn document_of_another_format_is_refused_by_its_number() {
        let newer = serde_json::json!({ "manifest": { "format": 7, "devices": ["new"] }, "signed_by": "x" });
        let error = SnapshotDocument::read(&[document(SNAPSHOT_DOCUMENT, newer.to_string().into_bytes())])
            .unwrap_err()
            .to_string();
        assert!(error.contains("format is 7") && error.contains("knows 1"), "{error}");
    }

    /// Such a snapshot cannot resume here, and its record may have other fields.
    ///
    /// Promise (Virtual machines): An archive whose guest agent has another version is refused.
    #[test]
    fn archive_with_another_agent_version_is_refused() {
        for found in [0, PROTOCOL - 1, PROTOCOL + 1, u32::MAX] {
            let mut document_of = serde_json::to_value(snapshot_document(None)).unwrap();
            document_of["manifest"]["guest"] = serde_json::json!({ "version": found, "more": "of it" });
            let error = SnapshotDocument::read(&[document(SNAPSHOT_DOCUMENT, document_of.to_string().into_bytes())])
                .unwrap_err();
            let error = error.into_contract("restore");
            let (text, remedy) = (error.to_string(), error.remedy().unwrap_or_default().to_owned());
            assert!(
                text.contains(&format!("version {found} ")) && text.contains(&format!("speaks {PROTOCOL}")),
                "{text}"
            );
            assert!(remedy.contains("the release that"), "{remedy}");
            assert_eq!(error.kind(), cofferdam_contract::ErrorKind::Unsupported);
        }
    }

    /// Promise (Virtual machines): An archive never takes more of the host's memory than the limit for snapshots.
    #[test]
    fn a_lease_grows_as_far_as_there_is_room() {
        let budget = crate::budget::Budget::new(cofferdam_contract::ByteSize::from_bytes(100));
        let mut lease = budget.take(0).unwrap();
        for (bytes, left) in [(40, 60), (30, 60), (100, 0)] {
            lease.grow(bytes).unwrap();
            assert_eq!(budget.left(), left);
        }
        assert!(matches!(lease.grow(101), Err(VmError::SnapshotMemoryExhausted { left: 0 })));
        drop(lease);
        assert_eq!(budget.left(), 100);
    }
}
