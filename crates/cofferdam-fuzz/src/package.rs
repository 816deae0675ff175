//! Fuzz target for packages of plugins: signed ones with any index and members. An accepted one stays in its directory,
//! and the reason of a refusal can be printed.

use anyhow::{Context, Result, bail, ensure};
use cofferdam_plugin::fuzz::{member, open, sealed};
use cofferdam_plugin::package::{Contents, Entry, Package, PackageError};
use fastrand::Rng;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::cases::damaged;
use crate::drive::Outcome;
use crate::watch;

const MANIFEST: &str =
    "manifest = 1\nname = \"hello\"\nversion = \"1.0.0\"\nruntime = \"python\"\nentry = \"main:activate\"\n";
/// The end of an archive.
const END: [u8; 1024] = [0; 1024];
const PATHS: &[&str] = &["a", "d/b", "d/c", "d/e", "é", "d", "../a", "/a", "d/../a", "plugin.toml", "a\n", "d//a"];
const TARGETS: &[&str] = &["a", "d/b", "./a", "../a", "../../a", "/etc", "d/..", "", "plugin.toml"];

/// A reader of packages that checks the properties of every case.
#[derive(Debug, Default)]
pub struct Packages(());

impl Packages {
    /// Creates a target.
    pub fn new() -> Self {
        watch::keep_panics();
        Self(())
    }

    /// Generates the case of a seed and reads it.
    pub fn case(&mut self, seed: u64) -> Result<Outcome> {
        let mut rng = Rng::with_seed(seed);
        let (mut index, mut members) = contents(&mut rng)?;
        match rng.u8(..8) {
            0 => index = damaged(&mut rng, index),
            1 => members = damaged(&mut rng, members),
            _ => {}
        }
        let mut bytes = sealed(&index, &members)?;
        if rng.u8(..8) == 0 {
            bytes = damaged(&mut rng, bytes);
        }
        read(&bytes).with_context(|| format!("the index {}", index.escape_ascii()))
    }

    /// Reads bytes from the fuzzer: as a package, and as the index and the members of a signed one. An error is a finding.
    pub fn check(&mut self, bytes: &[u8]) -> Result<Outcome> {
        read(bytes)?;
        let Some((length, bytes)) = bytes.split_first_chunk::<2>() else { return Ok(Outcome::Refused) };
        let (index, members) = bytes.split_at(usize::from(u16::from_le_bytes(*length)).min(bytes.len()));
        read(&sealed(index, members)?)
    }
}

fn read(bytes: &[u8]) -> Result<Outcome> {
    match open(bytes) {
        Ok(package) => inspect(&package).map(|()| Outcome::Ended),
        Err(PackageError::Refused { reason, .. }) => {
            ensure!(!reason.contains(char::is_control), "the reason {reason:?} cannot be printed");
            Ok(Outcome::Refused)
        }
        Err(error) => bail!("failed for a reason that does not apply: {error}"),
    }
}

/// Checks that no path and no link of a package leads out of it.
fn inspect(package: &Package) -> Result<()> {
    for Entry { path, contents } in &package.index().entries {
        ensure!(stays("", path), "the path {path:?} is accepted");
        if let Contents::Link { target } = contents {
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            ensure!(stays(above, target), "the link {path:?} to {target:?} is accepted");
        }
    }
    Ok(())
}

/// Returns true if a path from a directory never leaves the top.
fn stays(directory: &str, path: &str) -> bool {
    let mut depth = directory.split('/').filter(|name| !name.is_empty()).count();
    !path.starts_with('/')
        && path.split('/').all(|name| {
            let next = match name {
                "" | "." => Some(depth),
                ".." => depth.checked_sub(1),
                _ => Some(depth + 1),
            };
            depth = next.unwrap_or(0);
            next.is_some()
        })
}

/// Generates an index and the members that it lists.
fn contents(rng: &mut Rng) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut entries = vec![file("plugin.toml", MANIFEST.as_bytes()), entry("d", Contents::Directory)];
    let mut members = [member(&entries[0], MANIFEST.as_bytes())?, member(&entries[1], &[])?].concat();
    for _ in 0..rng.usize(..4) {
        let path = rng.choice(PATHS).copied().unwrap_or_default();
        let text = vec![rng.u8(..); rng.usize(..1200)];
        let (entry, text) = match rng.u8(..4) {
            0 => (entry(path, Contents::Directory), &[][..]),
            1 => {
                let target = rng.choice(TARGETS).copied().unwrap_or_default().to_owned();
                (entry(path, Contents::Link { target }), &[][..])
            }
            _ => (file(path, &text), &*text),
        };
        // A path that no header can have is in the index alone.
        members.extend(member(&entry, text).unwrap_or_default());
        entries.push(entry);
    }
    members.extend(END);
    let manifest = json!({"name": "plugin.toml", "text": MANIFEST});
    let index = json!({"format": 1, "manifest": manifest, "entries": entries});
    Ok((serde_json::to_vec(&index)?, members))
}

fn entry(path: &str, contents: Contents) -> Entry {
    Entry { path: path.to_owned(), contents }
}

fn file(path: &str, text: &[u8]) -> Entry {
    let sha256 = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    entry(path, Contents::File { size: text.len() as u64, sha256, executable: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_out_would_be_found() {
        for (directory, path) in [("", "a/b"), ("d", "../a"), ("d/e", "./../../a"), ("", "a/..")] {
            assert!(stays(directory, path), "{directory} {path}");
        }
        for (directory, path) in [("", "../a"), ("d", "../../a"), ("", "/a"), ("", "a/../../a/b")] {
            assert!(!stays(directory, path), "{directory} {path}");
        }
    }
}
