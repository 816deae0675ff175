//! Fuzz target for VM archives: each is verified and restored, and both results must agree. The hashes match and the
//! archive may be sealed with the right key, because an attacker can do both.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail, ensure};
use cofferdam_archive::forge::{Forged, ForgedPart, block, packed, record};
use cofferdam_archive::{
    ArchiveError, Base, Key, Limits, PAGE, Part, Progress, ReadOptions, Reader, Restored, WriteOptions, Writer, inspect,
};
use fastrand::Rng;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::cases::damaged;
use crate::drive::Outcome;
use crate::watch;

/// Maximum sizes of an archive.
const MAX_PART: u64 = 4 << 20;
const LIMITS: Limits =
    Limits { parts: 8, json: 64 << 10, state: MAX_PART, memory: MAX_PART, disk: MAX_PART, total: 2 * MAX_PART };
/// Maximum pages of one record in a generated case.
const RUN: u32 = 20;

/// A reader of archives that checks the properties of every case.
#[derive(Debug)]
pub struct Archives {
    base: Vec<u8>,
    id: [u8; 32],
    key: Key,
}

impl Archives {
    /// Creates a target with a base and a key that cases may use.
    pub fn new() -> Result<Self> {
        watch::keep_panics();
        let base: Vec<u8> =
            (0..10 * PAGE).map(|at| if (at / PAGE).is_multiple_of(3) { 0 } else { (at / PAGE) as u8 }).collect();
        let id = *Base::hashed(file_of(&base)?)?.id().as_bytes();
        Ok(Self { base, id, key: Key::new(&[9; 32])? })
    }

    /// Generates the case of a seed and reads it.
    pub fn case(&mut self, seed: u64) -> Result<Outcome> {
        let mut rng = Rng::with_seed(seed);
        let forged = self.forged(&mut rng);
        let key = rng.bool().then_some(&self.key);
        let mut bytes = forged.bytes(key)?;
        if rng.u8(..8) == 0 {
            bytes = damaged(&mut rng, bytes);
        }
        self.read(&bytes, key).with_context(|| format!("an archive of {} bytes", bytes.len()))
    }

    /// Reads bytes from the fuzzer: as an archive, and as the packed content of an archive with matching hashes. An
    /// error is a finding.
    pub fn check(&mut self, bytes: &[u8]) -> Result<Outcome> {
        self.read(bytes, None)?;
        let Some((shape, contents)) = bytes.split_first_chunk::<4>() else { return Ok(Outcome::Refused) };
        let size =
            u64::from(u16::from_le_bytes([shape[2], shape[3]])) * if shape[1] & 1 == 0 { PAGE as u64 } else { 1 };
        let mut part = ForgedPart::new("part", shape[0] % 5, size, contents.to_vec());
        if shape[1] & 2 != 0 {
            (part.based, part.base) = (1, self.id);
        }
        if shape[1] & 4 != 0 {
            (part.contents, part.blocks) = (Vec::new(), contents.to_vec());
        }
        self.read(&Forged::new(vec![part]).bytes(None)?, None)
    }

    fn forged(&self, rng: &mut Rng) -> Forged {
        let names = ["manifest", "devices", "memory", "disk"];
        let mut parts = Vec::new();
        for (kind, name) in (1..).zip(names) {
            if rng.u8(..4) > 0 {
                parts.push(self.part(rng, kind, name));
            }
        }
        let mut forged = Forged::new(parts);
        match rng.u8(..40) {
            0 => forged.version = rng.u32(..4),
            1 => forged.flags = 1 << rng.u32(..32),
            2 => forged.count = Some(rng.u32(..70)),
            3 => forged.zero = rng.u32(..),
            4 => rng.shuffle(&mut forged.parts),
            5 => rng.fill(&mut forged.salt),
            _ => {}
        }
        forged
    }

    fn part(&self, rng: &mut Rng, kind: u8, name: &str) -> ForgedPart {
        let based = kind == 4 && rng.bool();
        let (contents, size) = if kind < 3 { plain(rng) } else { paged(rng, based) };
        let mut part = ForgedPart::new(name, kind, size, contents);
        if based {
            (part.based, part.base) = (1, self.id);
        }
        match rng.u8(..60) {
            0 => part.kind = rng.u8(..),
            1 => part.size = rng.u64(..) >> rng.u32(..64),
            2 => part.size = part.size.wrapping_add(rng.u64(..3)).wrapping_sub(1),
            3 => part.base[rng.usize(..32)] ^= 1,
            4 => part.based ^= 1,
            5 => part.name[rng.usize(..32)] = rng.u8(..),
            6 => part.zero[rng.usize(..6)] = 1,
            7 | 8 => part.contents = damaged(rng, std::mem::take(&mut part.contents)),
            9 => part.blocks = blocks(rng),
            _ => {}
        }
        part
    }

    fn bases(&self) -> Result<Vec<Base>> {
        Ok(vec![Base::known(cofferdam_archive::Digest::from_bytes(self.id), file_of(&self.base)?)?])
    }

    fn read(&self, bytes: &[u8], key: Option<&Key>) -> Result<Outcome> {
        let options = ReadOptions { key, limits: LIMITS };
        let shown = inspect(bytes, &options).is_ok();
        let verified = Reader::open(bytes, &options).and_then(|reader| reader.verify(&mut on));
        let mut files = Vec::new();
        let mut targets = |_: &Part| {
            let file = blank()?;
            files.push(file.try_clone()?);
            Ok(file)
        };
        let bases = self.bases()?;
        let restored = Reader::open(bytes, &options).and_then(|reader| reader.restore(&bases, &mut targets, &mut on));
        let panics = watch::panics();
        ensure!(panics.is_empty(), "panicked: {}", panics.join("; "));
        match (verified, restored) {
            (Ok(_), Ok(restored)) => {
                ensure!(shown, "an archive that can be restored could not be inspected");
                self.again(&restored)?;
                Ok(Outcome::Ended)
            }
            // Without restoring, a missing base is not an error.
            (verified, Err(error)) => {
                let wants_base = matches!(error, ArchiveError::BaseMissing { .. } | ArchiveError::WrongBase { .. });
                ensure!(verified.is_err() || wants_base, "verified, but not restored: {error}");
                for file in files {
                    ensure!(file.metadata()?.len() == 0, "a refused file is not empty");
                }
                refused(&error)
            }
            (Err(error), Ok(_)) => bail!("restored, but not verified: {error}"),
        }
    }

    /// Checks that the restored parts have the declared sizes, and are unchanged after a second archive.
    fn again(&self, restored: &Restored) -> Result<()> {
        let bases = self.bases()?;
        let mut writer = Writer::new(WriteOptions::default())?;
        for (part, file) in &restored.files {
            ensure!(file.metadata()?.len() == part.size, "the size differs from the declared one");
            let base = bases.iter().find(|base| Some(base.id()) == part.base);
            writer.disk(part.name.as_str(), file, base)?;
        }
        let mut bytes = Vec::new();
        writer.write(&mut bytes, &mut on)?;
        let reader = Reader::open(&bytes[..], &ReadOptions { key: None, limits: LIMITS })?;
        let twice = reader.restore(&bases, &mut |_| blank(), &mut on)?;
        for ((_, one), (part, other)) in restored.files.iter().zip(&twice.files) {
            ensure!(contents(one)? == contents(other)?, "{} differs after a second round trip", part.name);
        }
        Ok(())
    }
}

fn on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn blank() -> std::io::Result<File> {
    Ok(memfd_create(c"archive", MemfdFlags::CLOEXEC)?.into())
}

fn file_of(bytes: &[u8]) -> Result<File> {
    let file = blank()?;
    file.write_all_at(bytes, 0)?;
    Ok(file)
}

fn contents(file: &File) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len())?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Generates the contents of a document or a device state, and their size.
fn plain(rng: &mut Rng) -> (Vec<u8>, u64) {
    let mut bytes = vec![0; rng.usize(..3000)];
    rng.fill(&mut bytes);
    let size = bytes.len() as u64;
    (bytes, size)
}

/// Generates records of consecutive pages, mostly valid, and the size that they cover.
fn paged(rng: &mut Rng, based: bool) -> (Vec<u8>, u64) {
    let (mut bytes, mut pages) = (Vec::new(), 0u64);
    for _ in 0..rng.u32(..12) {
        let kind = match rng.u8(..7) {
            // Each of these is invalid in some positions, to test these cases too.
            0 if !based && rng.u8(..16) > 0 => 1,
            4.. if pages == 0 && rng.u8(..16) > 0 => 3,
            0 => 2,
            1 | 2 => 1,
            3 | 4 => 3,
            _ => 4,
        };
        let mut count = rng.u32(1..RUN);
        let mut from = 0;
        if kind == 4 {
            from = rng.u64(..pages.max(1));
            count = count.min(u32::try_from(pages - from.min(pages)).unwrap_or(1)).max(1);
        }
        bytes.extend(record(kind, count, from));
        if kind == 3 {
            (0..count).for_each(|_| bytes.extend(vec![rng.u8(..4); PAGE]));
        }
        pages += u64::from(count);
    }
    let short = if rng.u8(..4) == 0 { rng.u64(..PAGE as u64) } else { 0 };
    // A short last page is one page more. It may only be unchanged or follow in full.
    if short > 0 {
        bytes.extend(record(1, 1, 0));
    }
    (bytes, pages * PAGE as u64 + short)
}

/// Generates blocks with correct or wrong sizes.
fn blocks(rng: &mut Rng) -> Vec<u8> {
    let bytes = vec![rng.u8(..); rng.usize(1..5000)];
    let small = packed(&bytes).unwrap_or_default();
    let say = |rng: &mut Rng, right: usize| if rng.bool() { right as u32 } else { rng.u32(..) >> rng.u32(..32) };
    block(say(rng, bytes.len()), say(rng, small.len()), &small)
}

/// Checks that an error is an expected one. Any other is a finding.
fn refused(error: &ArchiveError) -> Result<Outcome> {
    match error {
        ArchiveError::Io { .. } | ArchiveError::NoSpace { .. } | ArchiveError::Cancelled => {
            bail!("refused for a reason that does not apply: {error}")
        }
        ArchiveError::UnfitFile { .. } | ArchiveError::SourceChanged { .. } | ArchiveError::BadLevel { .. } => {
            bail!("refused with the error of another operation: {error}")
        }
        _ => Ok(Outcome::Refused),
    }
}
