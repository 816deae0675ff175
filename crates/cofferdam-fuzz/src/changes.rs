//! Fuzz target for change sets of copy-on-write workspaces: layers with any members. What is accepted is shown without
//! control characters, and its application stays in the directory.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path};

use anyhow::{Context, Result, bail, ensure};
use cofferdam_changes::{
    ApplyOptions, Bounds, ChangeSet, ChangesError, Existing, Header, LayerWriter, RenderOptions, Workspace, apply,
    document, render,
};
use fastrand::Rng;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::cases::damaged;
use crate::drive::Outcome;
use crate::watch;

/// The size of a block of a tar.
const BLOCK: usize = 512;
const PATHS: &[&str] = &[
    "a",
    "d",
    "d/b",
    "d/c",
    "d/e/f",
    "link",
    "link/x",
    "é",
    "../a",
    "/a",
    "d/../a",
    "d//a",
    "a\n",
    "\u{1b}[2J",
    ".wh.a",
    "d/.wh.b",
    "d/.wh..wh..opq",
    ".git/hooks/x",
    ".envrc",
    ".",
];
const TARGETS: &[&str] = &["a", "d/b", "./a", "../a", "../../a", "/etc", "d/..", "", "link/x", "\u{1b}[31m"];
const BOUNDS: Bounds = Bounds { max_entries: 100, max_bytes: 1 << 20 };

/// A reader of change sets that checks the properties of every case.
#[derive(Debug, Default)]
pub struct Changes(());

impl Changes {
    /// Creates a target.
    pub fn new() -> Self {
        watch::keep_panics();
        Self(())
    }

    /// Generates the case of a seed, reads it and applies it.
    pub fn case(&mut self, seed: u64) -> Result<Outcome> {
        let mut rng = Rng::with_seed(seed);
        let mut layer = layer(&mut rng)?;
        for _ in 0..rng.usize(..3) {
            forge(&mut rng, &mut layer);
        }
        if rng.u8(..10) == 0 {
            layer = damaged(&mut rng, layer);
        }
        self.check(&layer)
    }

    /// Reads bytes from the fuzzer as a change set. An error is a finding.
    pub fn check(&mut self, bytes: &[u8]) -> Result<Outcome> {
        let mut file = File::from(memfd_create(c"changes", MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        file.rewind()?;
        match ChangeSet::read(file, &BOUNDS) {
            Ok(set) => stays_inside(&set).map(|()| Outcome::Ended),
            Err(error @ (ChangesError::Malformed { .. } | ChangesError::TooLarge { .. })) => {
                ensure!(!error.to_string().contains(char::is_control), "the reason {error:?} cannot be printed");
                Ok(Outcome::Refused)
            }
            Err(error) => bail!("failed for a reason that does not apply: {error}"),
        }
    }
}

/// Shows a change set, applies it to a small directory, and checks that nothing outside is changed.
fn stays_inside(set: &ChangeSet) -> Result<()> {
    let above = tempfile::tempdir()?;
    let (inside, outside) = (above.path().join("inside"), above.path().join("outside"));
    fs::create_dir_all(inside.join("d/e"))?;
    fs::create_dir(&outside)?;
    fs::write(outside.join("x"), "outside")?;
    fs::write(inside.join("a"), "a\n")?;
    fs::write(inside.join("d/b"), "b\n")?;
    symlink("../outside", inside.join("link"))?;
    let directory = File::open(&inside)?;
    let mut shown = Vec::new();
    render(set, directory.as_fd(), &RenderOptions::default(), &mut shown).context("shown")?;
    let shown = String::from_utf8_lossy(&shown);
    let hidden = shown.chars().find(|letter| letter.is_control() && !['\n', '\t'].contains(letter));
    ensure!(hidden.is_none(), "the control character {hidden:?} is shown");
    document(set, directory.as_fd()).context("described")?;
    // As the changes of a workspace, and as a copy out of a sandbox, which replaces files.
    for existing in [Existing::Keep, Existing::Replace] {
        let options = ApplyOptions { workspace: Workspace::Any, existing, ..ApplyOptions::default() };
        apply(set, directory.as_fd(), &options).context("applied")?;
    }
    ensure!(fs::read_to_string(outside.join("x"))? == "outside", "a file outside was changed");
    ensure!(fs::read_dir(&outside)?.count() == 1 && fs::read_dir(above.path())?.count() == 2, "a file is outside");
    harmless(&inside, 0)
}

/// Checks that no file has set-id bits, is a device, or leads out, except for the link of the host.
fn harmless(directory: &Path, depth: usize) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let found = fs::symlink_metadata(&path)?;
        let kind = found.file_type();
        ensure!(found.permissions().mode() & 0o6000 == 0 || found.is_dir(), "{path:?} has set-id bits");
        ensure!(kind.is_file() || kind.is_dir() || kind.is_symlink(), "{path:?} is a special file");
        ensure!(found.nlink() == 1 || kind.is_dir(), "{path:?} has another name");
        if kind.is_dir() {
            harmless(&path, depth + 1)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path)?;
            let ups = target.components().filter(|part| *part == Component::ParentDir).count();
            let is_hosts = target == Path::new("../outside");
            ensure!(is_hosts || (!target.is_absolute() && ups <= depth), "{path:?} leads to {target:?}");
        }
    }
    Ok(())
}

/// Generates a layer. Members that the writer refuses are left out.
fn layer(rng: &mut Rng) -> Result<Vec<u8>> {
    let header = Header { workspace: "/work".into(), started: 1, device: 1, inode: 1 };
    let mut writer = LayerWriter::new(Vec::new(), &header)?;
    for _ in 0..rng.usize(..8) {
        let path = Path::new(rng.choice(PATHS).copied().unwrap_or_default());
        let mode = rng.u32(..0o10000);
        let _ = match rng.u8(..6) {
            0 => writer.directory(path, mode, None),
            1 => writer.symlink(path, rng.choice(TARGETS).copied().unwrap_or_default().as_ref(), None),
            2 => writer.whiteout(path, None),
            3 => writer.opaque(path),
            _ => {
                let text = vec![rng.u8(..); rng.usize(..1200)];
                writer.file(path, mode, text.len() as u64, &*text, None).map(drop)
            }
        };
    }
    Ok(writer.finish()?)
}

/// Changes a field of a header, and corrects its checksum.
fn forge(rng: &mut Rng, layer: &mut [u8]) {
    let count = layer.len() / BLOCK;
    if count == 0 {
        return;
    }
    let at = rng.usize(..count) * BLOCK;
    let Some(header) = layer.get_mut(at..at + BLOCK) else { return };
    match rng.u8(..7) {
        0 => {
            let name = rng.choice(PATHS).copied().unwrap_or_default().as_bytes();
            header[..100].fill(0);
            header[..name.len()].copy_from_slice(name);
        }
        1 => {
            let target = rng.choice(TARGETS).copied().unwrap_or_default().as_bytes();
            header[157..257].fill(0);
            header[157..157 + target.len()].copy_from_slice(target);
        }
        2 => header[156] = rng.choice(b"0123456757xgLKSDVM\0").copied().unwrap_or_default(),
        3 => header[100..107].copy_from_slice(format!("{:07o}", rng.u32(..0o10000)).as_bytes()),
        4 => header[124..135].copy_from_slice(format!("{:011o}", rng.u64(..) >> rng.u32(31..64)).as_bytes()),
        5 => header[124] = 0x80,
        _ => header[rng.usize(..BLOCK)] = rng.u8(..),
    }
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unharmed_layer_is_read_and_a_trap_would_be_found() {
        let header = Header { workspace: "/work".into(), started: 1, device: 1, inode: 1 };
        let mut writer = LayerWriter::new(Vec::new(), &header).unwrap();
        writer.file(Path::new("a"), 0o644, 1, &b"x"[..], None).unwrap();
        let bytes = writer.finish().unwrap();
        assert_eq!(Changes::new().check(&bytes).unwrap(), Outcome::Ended);
        let directory = tempfile::tempdir().unwrap();
        symlink("/etc", directory.path().join("l")).unwrap();
        assert!(harmless(directory.path(), 0).is_err());
    }
}
