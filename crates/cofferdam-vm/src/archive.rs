//! Snapshots that travel: one file for all that a machine was, but its image.
//!
//! ```text
//! save: VmSnapshot --machine (JSON), devices, memory, workspace--> cofferdam_archive::Writer --> stream
//! load: stream --> the document alone: fits it here? --> Reader::restore --> files of ours --all verified--> VmSnapshot
//! ```
//!
//! The root file system stays behind: the document names the image by its key and its disk by a hash. Nothing that an archive
//! says is believed: what it says of itself is held against its parts, and against this host, before its memory is read.

use std::cell::RefCell;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use cofferdam_archive::{
    ArchiveError, Base, Digest, Document, Key, Kind, Limits, Part, Progress, ReadOptions, Reader, WriteOptions, Writer,
    Written,
};
use cofferdam_contract::{ByteSize, Cpus, Limits as SandboxLimits, Result as ContractResult};
use serde::{Deserialize, Serialize};

use crate::backend::VmBackend;
use crate::budget::Lease;
use crate::error::{Result, VmError, io};
use crate::make::{Host, blocking};
use crate::plan::Plan;
use crate::qemu::MAX_DEVICES;
use crate::snapshot::{SnapshotManifest, VmSnapshot, check_agent, check_format};
use crate::sparse;
use crate::vmm::MachineState;

pub(crate) const MACHINE: &str = "machine";
/// The document in the archive of an image.
pub(crate) const IMAGE: &str = "image";
const DEVICES: &str = "devices";
const MEMORY: &str = "memory";
const WORKSPACE: &str = "workspace";

/// How a snapshot is written.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// What it is encrypted with, if it is.
    pub key: Option<Arc<Key>>,
    /// Level of compression, from 1 (fast) to 19 (small).
    pub level: i32,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self { key: None, level: WriteOptions::default().level }
    }
}

/// How an archive is read.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// What it is encrypted with. With a key, only an encrypted archive is taken.
    pub key: Option<Arc<Key>>,
    /// What it may come to. What its memory may take is bounded by [`VmConfig::snapshots`](crate::VmConfig) besides.
    pub limits: Limits,
    /// The most that the archive's sandbox may be allowed. An archive with a larger limit, or without one, is refused before
    /// any memory is read; CPU time and wall time are left to the spec that restores it.
    pub ceiling: SandboxLimits,
}

/// What an archive says of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Travelled {
    manifest: SnapshotManifest,
    /// The SHA-256 of the disk that the machine's root file system is on.
    root: String,
}

/// A part of the document.
#[derive(Deserialize)]
struct Of<T> {
    manifest: T,
}

/// What every version of the document has.
#[derive(Deserialize)]
struct Format {
    format: u64,
}

/// What every version of the agent's record has.
#[derive(Deserialize)]
struct Guest {
    guest: Agent,
}

#[derive(Deserialize)]
struct Agent {
    version: u64,
}

impl Travelled {
    /// What the documents of an archive say.
    ///
    /// # Errors
    ///
    /// [`VmError::BadSnapshot`] for other documents than one of a machine, and for one of another version; `Unsupported` for a
    /// machine whose agent is of another version.
    pub fn read(documents: &[Document]) -> Result<Self> {
        let bad = |what: String| VmError::BadSnapshot { what };
        let [document] = documents else {
            return Err(bad(format!("its archive has {} documents, and that of a machine has one", documents.len())));
        };
        if document.part.name.as_str() == IMAGE {
            return Err(bad("the file holds an image; `cofferdam vm import-image` takes that".to_owned()));
        }
        if document.part.name.as_str() != MACHINE {
            return Err(bad(format!("its archive has no document '{MACHINE}'")));
        }
        let odd = |error| bad(format!("what its archive says of the machine is not understood: {error}"));
        // First alone: one of another format may have other fields, which would be told as if something were wrong with it.
        let Of { manifest: Format { format } } = serde_json::from_slice(&document.bytes).map_err(odd)?;
        check_format(format)?;
        let Of { manifest: Guest { guest } } = serde_json::from_slice(&document.bytes).map_err(odd)?;
        check_agent(guest.version)?;
        serde_json::from_slice(&document.bytes).map_err(odd)
    }

    /// What has to be known of the snapshot besides its files.
    pub fn manifest(&self) -> &SnapshotManifest {
        &self.manifest
    }

    /// The SHA-256 of the disk that the machine's root file system is on.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Refuses parts that are not those of this machine.
    fn check_parts(&self, parts: &[Part]) -> Result<()> {
        let memory = (MEMORY, Kind::Memory, Some(self.manifest.memory().as_bytes()));
        let disk = self.manifest.disk().map(|size| (WORKSPACE, Kind::Disk, Some(size.as_bytes())));
        let wanted = [(MACHINE, Kind::Json, None), (DEVICES, Kind::State, None), memory].into_iter().chain(disk);
        let wanted: Vec<_> = wanted.collect();
        let bad = |what: String| Err(VmError::BadSnapshot { what });
        if parts.len() != wanted.len() {
            return bad(format!("its archive has {} parts, and its machine has {}", parts.len(), wanted.len()));
        }
        for (part, (name, kind, size)) in parts.iter().zip(wanted) {
            if part.name.as_str() != name || part.kind != kind || part.base.is_some() {
                return bad(format!("its archive has '{}' ({}) where '{name}' ({kind}) belongs", part.name, part.kind));
            }
            if kind == Kind::State && part.size > MAX_DEVICES {
                return bad(format!("'{name}' has {} bytes, and at most {MAX_DEVICES} are taken", part.size));
            }
            if let Some(size) = size.filter(|size| *size != part.size) {
                return bad(format!("'{name}' has {} bytes, and its machine has {size}", part.size));
            }
        }
        Ok(())
    }

    /// Refuses a machine that may use more than the caller allows.
    fn check_ceiling(&self, most: &SandboxLimits) -> Result<()> {
        let SandboxLimits { cpu_time: _, memory, disk, wall_time: _, pids, processes, cpus } = self.manifest.limits();
        let size = |size: Option<ByteSize>| size.map(|size| (size.as_bytes(), size.to_string()));
        let count = |count: Option<u32>| count.map(|count| (count.into(), count.to_string()));
        let share = |cpus: Option<Cpus>| cpus.map(|cpus| (u64::from(cpus.as_millis()), cpus.to_string()));
        let pairs = [
            ("memory", size(*memory), size(most.memory)),
            ("disk", size(*disk), size(most.disk)),
            ("pids", count(*pids), count(most.pids)),
            ("processes", count(*processes), count(most.processes)),
            ("cpus", share(*cpus), share(most.cpus)),
        ];
        for (what, found, most) in pairs {
            if let Some((most, shown)) = most
                && found.as_ref().is_none_or(|(found, _)| *found > most)
            {
                let found = found.map_or_else(|| "none".to_owned(), |(_, shown)| shown);
                return Err(VmError::AboveLimit { what, found, most: shown });
            }
        }
        Ok(())
    }

    /// Refuses a machine that nobody could go on with here, whatever spec asks for it.
    fn check_plan(&self, host: &Host) -> Result<()> {
        let odd = |error: cofferdam_contract::Error| VmError::BadSnapshot { what: error.to_string() };
        let spec = self.manifest.spec(cofferdam_contract::RootFs::Default).build().map_err(odd)?;
        let plan = Plan::of(&spec, &host.config).map_err(odd)?;
        self.manifest.check_spec(&plan, &spec)
    }
}

impl VmSnapshot {
    /// Writes all of it to a stream, but its image. What was written is no archive if this fails: the caller throws it away.
    ///
    /// `watch` is told how far it is, and ends it by `Break`.
    ///
    /// # Behavior
    /// - Machines that are made from it meanwhile change nothing in what is written.
    /// - Fails with `ResourceExhausted` where there is no room, with `Closed` when `watch` ended it.
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
            let what = "the disk that its machine had its root file system on is not known".to_owned();
            return Err(VmError::BadSnapshot { what });
        };
        let root = hash_of(root)?.to_string();
        let travelled = Travelled { manifest: self.manifest().clone(), root };
        let odd = |error: serde_json::Error| VmError::BadSnapshot { what: error.to_string() };
        let document = serde_json::to_vec(&travelled).map_err(odd)?;
        let key = options.key.as_deref();
        let mut writer = Writer::new(WriteOptions { level: options.level, key, ..WriteOptions::default() })?;
        writer.json(MACHINE, &document)?.state(DEVICES, self.state().devices())?;
        writer.memory(MEMORY, self.state().memory())?;
        if let Some(disk) = self.disk() {
            writer.disk(WORKSPACE, disk, None)?;
        }
        Ok(writer.write(out, watch)?)
    }
}

/// The hash of a disk's contents, wherever its cursor is.
fn hash_of(disk: &File) -> Result<Digest> {
    let disk = disk.try_clone().map_err(io("copy a descriptor of", "a disk"))?;
    Ok(Base::hashed(disk)?.id())
}

impl VmBackend {
    /// Reads a snapshot that travelled. It is one as any other then: machines are made from it by
    /// [`restore`](cofferdam_contract::Backend::restore), with a spec such as [`VmSnapshot::spec`] begins.
    ///
    /// `watch` is told how far it is, and ends it by `Break`.
    ///
    /// # Behavior
    /// - What it was taken with is looked at first, and nothing more is read where it cannot go on here: another monitor,
    ///   version, machine, processor or accelerator, an agent of another version, an image that is not here, sizes that do not fit
    ///   each other.
    /// - All of it is verified before any of it is used. It lies in files without names, of which nothing is left when this
    ///   fails.
    /// - Fails with `InvalidInput` for what is no archive, is damaged, was tampered with or does not fit the key, with
    ///   `NotFound` for a missing image, with `Unsupported` for an agent of another version, with `ResourceExhausted` where there
    ///   is no room.
    pub async fn load(
        &self,
        input: impl Read + Send + 'static,
        options: LoadOptions,
        watch: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
    ) -> ContractResult<VmSnapshot> {
        load(&self.host, input, options, watch).await.map_err(|error| error.into_error("load"))
    }
}

async fn load(
    host: &Arc<Host>,
    input: impl Read + Send + 'static,
    options: LoadOptions,
    mut watch: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
) -> Result<VmSnapshot> {
    let opened = blocking(move || {
        let reader = Reader::open(input, &ReadOptions { key: options.key.as_deref(), limits: options.limits })?;
        let travelled = Travelled::read(reader.documents())?;
        travelled.check_parts(reader.parts())?;
        travelled.check_ceiling(&options.ceiling)?;
        Ok((reader, travelled))
    });
    let (reader, travelled) = opened.await?;
    travelled.manifest.check_origin(&host.vmm().origin().await?)?;
    travelled.check_plan(host)?;
    let (root, image) = host.image_with(travelled.manifest.image()).await?;
    let host = Arc::clone(host);
    blocking(move || {
        let disk = File::open(&image.root).map_err(io("open", &image.root))?;
        let here = hash_of(&disk)?.to_string();
        if here != travelled.root {
            let found = crate::error::shown(&travelled.root);
            return Err(VmError::Elsewhere { what: "the image's disk with the SHA-256", found, here });
        }
        let (state, workspace, lease, digest) = files(&host, reader, &mut watch)?;
        let snapshot = VmSnapshot::new(travelled.manifest, state, workspace, Some((root, Arc::new(disk))), lease)?;
        Ok(snapshot.read_from(digest))
    })
    .await
}

/// Restores the parts into files of ours, as far as there is room for them; gives the archive's digest as well.
fn files<R: Read>(
    host: &Host,
    reader: Reader<R>,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(MachineState, Option<File>, Lease, String)> {
    let (mut lease, mut refused) = (host.open_lease()?, None);
    // Of the host's memory.
    let taken: RefCell<Vec<File>> = RefCell::default();
    let mut places = |part: &Part| {
        if part.kind == Kind::Disk {
            return blank_disk(&host.config.disks);
        }
        let file = sparse::blank(0)?;
        taken.borrow_mut().push(file.try_clone()?);
        Ok(file)
    };
    // Looked at after each MiB, so that no archive takes more of the host's memory than snapshots may.
    let mut paid = |progress: Progress| {
        let bytes: std::io::Result<u64> = taken.borrow().iter().map(sparse::allocated).sum();
        match bytes.map_err(io("look at", "a snapshot")).and_then(|bytes| lease.grow(bytes)) {
            Ok(()) => watch(progress),
            Err(error) => {
                refused = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    let restored = reader.restore(&[], &mut places, &mut paid);
    if let Some(error) = refused {
        return Err(error);
    }
    let (mut state, mut memory, mut workspace) = (None, None, None);
    let restored = restored?;
    let digest = restored.digest.to_string();
    for (part, file) in restored.files {
        let place = match part.kind {
            Kind::State => &mut state,
            Kind::Memory => &mut memory,
            Kind::Disk => &mut workspace,
            Kind::Json => continue,
        };
        *place = Some(file);
    }
    let (Some(memory), Some(state)) = (memory, state) else {
        return Err(ArchiveError::Damaged { what: "parts" }.into());
    };
    Ok((MachineState::new(memory, state)?, workspace, lease, digest))
}

/// An empty file without a name.
fn blank_disk(directory: &Path) -> std::io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    tempfile::tempfile_in(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_archive::Name;
    use cofferdam_guest::PROTOCOL;

    fn travelled(disk: Option<u64>) -> Travelled {
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

    #[test]
    fn only_the_parts_of_the_machine_are_taken() {
        let parts =
            || vec![part(MACHINE, Kind::Json, 9), part(DEVICES, Kind::State, 9), part(MEMORY, Kind::Memory, 1 << 20)];
        let disk = part(WORKSPACE, Kind::Disk, 8192);
        travelled(None).check_parts(&parts()).unwrap();
        let with_disk: Vec<_> = parts().into_iter().chain([disk.clone()]).collect();
        travelled(Some(8192)).check_parts(&with_disk).unwrap();
        let changed = |at: usize, to: Part| {
            let mut parts = with_disk.clone();
            parts[at] = to;
            parts
        };
        let base = Part { base: Some(Digest::from_bytes([1; 32])), ..disk.clone() };
        travelled(Some(8192)).check_parts(&changed(1, part(DEVICES, Kind::State, MAX_DEVICES))).unwrap();
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
            let error = travelled(Some(8192)).check_parts(&bad).unwrap_err();
            assert!(matches!(error, VmError::BadSnapshot { .. }), "{why}: {error}");
        }
        assert!(travelled(None).check_parts(&with_disk).is_err());
    }

    #[test]
    fn an_archive_that_may_use_more_than_the_caller_is_refused() {
        let mut archive = travelled(None);
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

    #[test]
    fn documents_that_are_not_a_machines_are_refused() {
        let good = serde_json::to_vec(&travelled(None)).unwrap();
        assert_eq!(Travelled::read(&[document(MACHINE, good.clone())]).unwrap(), travelled(None));
        let text = String::from_utf8(good.clone()).unwrap();
        for bad in [
            vec![],
            vec![document(MACHINE, good.clone()), document("more", b"{}".to_vec())],
            vec![document("other", good)],
            vec![document(MACHINE, b"{".to_vec())],
            vec![document(MACHINE, text.replace("\"format\":1", "\"format\":2").into_bytes())],
            vec![document(MACHINE, text.replacen('{', "{\"more\":1,", 1).into_bytes())],
        ] {
            assert!(matches!(Travelled::read(&bad), Err(VmError::BadSnapshot { .. })), "{bad:?}");
        }
    }

    #[test]
    fn one_of_another_format_is_told_by_its_number_whatever_else_it_says() {
        let newer = serde_json::json!({ "manifest": { "format": 7, "devices": ["new"] }, "signed_by": "somebody" });
        let error = Travelled::read(&[document(MACHINE, newer.to_string().into_bytes())]).unwrap_err().to_string();
        assert!(error.contains("format is 7") && error.contains("knows 1"), "{error}");
    }

    /// Nobody can go on with it, and its record may have other fields.
    #[test]
    fn one_whose_agent_is_of_another_version_is_refused_by_its_document() {
        for found in [0, PROTOCOL - 1, PROTOCOL + 1, u32::MAX] {
            let mut document_of = serde_json::to_value(travelled(None)).unwrap();
            document_of["manifest"]["guest"] = serde_json::json!({ "version": found, "more": "of it" });
            let error = Travelled::read(&[document(MACHINE, document_of.to_string().into_bytes())]).unwrap_err();
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

    #[test]
    fn a_lease_grows_as_far_as_there_is_room() {
        let budget = crate::budget::Budget::new(cofferdam_contract::ByteSize::from_bytes(100));
        let mut lease = budget.take(0).unwrap();
        for (bytes, left) in [(40, 60), (30, 60), (100, 0)] {
            lease.grow(bytes).unwrap();
            assert_eq!(budget.left(), left);
        }
        assert!(matches!(lease.grow(101), Err(VmError::NoRoom { most: 0 })));
        drop(lease);
        assert_eq!(budget.left(), 100);
    }
}
