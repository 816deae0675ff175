//! The index of a package: the text of the manifest, and every file with its digest.

use std::collections::HashMap;

use cofferdam_util::sha256;
use serde::{Deserialize, Serialize};

use super::error::{Result, Verdict, refused};
use super::{MANIFEST_NAMES, MAX_FILES, MAX_SIZE, PACKAGE_FORMAT};
use crate::{Format, MAX_MANIFEST, Manifest, check};

/// The maximum size of an index.
pub(crate) const MAX_INDEX: usize = 16 << 20;
/// The maximum length of a path. The header of a tar with `files/` before the path has no more room.
const MAX_PATH: usize = 240;
/// The maximum length of a name and of a link's target.
const MAX_NAME: usize = 100;

/// The index of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// The version of the format.
    pub format: u32,
    /// The manifest.
    pub manifest: ManifestFile,
    /// The files, directories and links. A directory precedes its contents.
    pub entries: Vec<Entry>,
}

/// The file of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Its name: `plugin.toml` or `plugin.json`.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A file, directory or link of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The path, relative and with `/`.
    pub path: String,
    /// The contents.
    #[serde(flatten)]
    pub contents: Contents,
}

/// The contents of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Contents {
    /// A directory.
    Directory,
    /// A file.
    File {
        /// The size in bytes.
        size: u64,
        /// The SHA-256 of the contents.
        sha256: String,
        /// True if the owner may execute it.
        executable: bool,
    },
    /// A symbolic link.
    Link {
        /// The target, relative to the link's directory.
        target: String,
    },
}

impl Index {
    /// Reads an index, and checks everything in it.
    ///
    /// # Errors
    /// [`PackageError::Refused`](super::PackageError::Refused).
    pub(crate) fn read(bytes: &[u8]) -> Result<(Self, Manifest)> {
        let bad = |_| refused(Verdict::BadIndex, "the index is not one of this format");
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let Version { format } = serde_json::from_slice(bytes).map_err(bad)?;
        if format != PACKAGE_FORMAT {
            let reason = format!("the format has version {format}, and this program reads {PACKAGE_FORMAT}");
            return Err(refused(Verdict::UnknownFormat, reason));
        }
        let index: Self = serde_json::from_slice(bytes).map_err(bad)?;
        check_entries(&index.entries)?;
        let manifest = index.check_manifest()?;
        Ok((index, manifest))
    }

    /// Returns the manifest, whose text must be that of its file.
    fn check_manifest(&self) -> Result<Manifest> {
        let ManifestFile { name, text } = &self.manifest;
        let digest = sha256::of(text);
        let is_its_file = |entry: &Entry| {
            entry.path == *name && matches!(&entry.contents, Contents::File { sha256, .. } if *sha256 == digest)
        };
        if !MANIFEST_NAMES.contains(&name.as_str()) || !self.entries.iter().any(is_its_file) {
            return Err(refused(Verdict::BadManifest, "the manifest of the index is not that of the files"));
        }
        read_manifest(name, text).map_err(|reason| refused(Verdict::BadManifest, reason))
    }
}

/// Returns the manifest, or its first problem.
pub(crate) fn read_manifest(name: &str, text: &str) -> std::result::Result<Manifest, String> {
    if text.len() > MAX_MANIFEST {
        return Err(format!("{name} is larger than {MAX_MANIFEST} bytes"));
    }
    match check(text, Format::of(name.as_ref())) {
        Ok((manifest, _)) => Ok(manifest),
        Err(problems) => Err(problems.first().map_or_else(String::new, |problem| {
            format!("{name}:{}:{}: {}", problem.line, problem.column, problem.message)
        })),
    }
}

/// Checks the number, the sizes and the paths of entries.
pub(crate) fn check_entries(entries: &[Entry]) -> Result<()> {
    if entries.len() > MAX_FILES {
        let reason = format!("it has {} files, and {MAX_FILES} are allowed", entries.len());
        return Err(refused(Verdict::TooLarge, reason));
    }
    let mut directories = HashMap::from([("", true)]);
    let mut left = MAX_SIZE;
    for Entry { path, contents } in entries {
        check_path(path).map_err(|reason| refused(Verdict::UnsafePath, format!("'{path}' {reason}")))?;
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        if directories.get(above) != Some(&true) {
            return Err(refused(Verdict::UnsafePath, format!("'{path}' is in no directory of the package")));
        }
        if directories.insert(path, *contents == Contents::Directory).is_some() {
            return Err(refused(Verdict::UnsafePath, format!("two files have the path '{path}'")));
        }
        match contents {
            Contents::Directory => {}
            Contents::File { size, sha256, .. } => {
                if !sha256::is_digest(sha256) {
                    return Err(refused(Verdict::BadIndex, format!("'{path}' has no digest")));
                }
                left = left.checked_sub(*size).ok_or_else(|| {
                    refused(Verdict::TooLarge, format!("its files have more than {} MiB", MAX_SIZE >> 20))
                })?;
            }
            Contents::Link { target } => check_target(path, target)
                .map_err(|reason| refused(Verdict::UnsafePath, format!("the link '{path}' {reason}")))?,
        }
    }
    Ok(())
}

/// Checks the path of an entry. Returns the reason why it is refused.
pub(crate) fn check_path(path: &str) -> std::result::Result<(), &'static str> {
    if path.len() > MAX_PATH {
        return Err("has a path of more than 240 bytes");
    }
    if path.chars().any(char::is_control) {
        return Err("has control characters in its path");
    }
    for name in path.split('/') {
        match name {
            "" => return Err("has an absolute path or an empty name"),
            "." | ".." => return Err("has '.' or '..' in its path"),
            _ if name.len() > MAX_NAME => return Err("has a name of more than 100 bytes"),
            _ => {}
        }
    }
    // The header divides a path into a prefix of 155 bytes and a name of 100.
    match super::archive::is_valid_path(path) {
        true => Ok(()),
        false => Err("has a path that does not fit into an archive"),
    }
}

/// Checks the target of a link. It may climb at its beginning only, so that no other link changes where `..` leads.
pub(crate) fn check_target(path: &str, target: &str) -> std::result::Result<(), &'static str> {
    if target.is_empty() || target.len() > MAX_NAME || target.chars().any(char::is_control) {
        return Err("has a target that is empty, too long or not printable");
    }
    if target.starts_with('/') {
        return Err("has an absolute target");
    }
    let depth = path.matches('/').count();
    let names: Vec<&str> = target.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    let climbs = names.iter().take_while(|name| **name == "..").count();
    if climbs > depth {
        return Err("leads out of the package");
    }
    match names[climbs..].contains(&"..") {
        true => Err("has '..' after a name in its target"),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for good in ["a", "a/b.py", "weird name/ü", ".hidden", "..a/b"] {
            assert_eq!(check_path(good), Ok(()), "{good}");
        }
        let long = "d/".repeat(200) + "f";
        let name = "n".repeat(101);
        for bad in [
            "",
            "/",
            "/etc/passwd",
            "a//b",
            "a/",
            "./a",
            "a/./b",
            "..",
            "../a",
            "a/../b",
            "a\nb",
            "\u{1b}[0m",
            &long,
            &name,
        ] {
            assert!(check_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn links_stay_in_the_package() {
        for (path, target) in [("a", "b"), ("a", "./b/c"), ("d/a", "../b"), ("d/e/a", "../../b/c"), ("d/a", "..")] {
            assert_eq!(check_target(path, target), Ok(()), "{path} {target}");
        }
        for (path, target) in [
            ("a", ""),
            ("a", "/b"),
            ("a", ".."),
            ("a", "../b"),
            ("d/a", "../../b"),
            ("d/a", "b/../../.."),
            ("d/a", "b/.."),
        ] {
            assert!(check_target(path, target).is_err(), "{path} {target}");
        }
    }

    #[test]
    fn entries_are_unique_and_in_directories_of_the_package() {
        let entry = |path: &str, contents| Entry { path: path.to_owned(), contents };
        let directory = |path: &str| entry(path, Contents::Directory);
        let file = |path, size| entry(path, Contents::File { size, sha256: sha256::of(""), executable: false });
        let link = |path, target: &str| entry(path, Contents::Link { target: target.to_owned() });
        let verdict = |entries: &[Entry]| match check_entries(entries) {
            Ok(()) => None,
            Err(super::super::PackageError::Refused { verdict, .. }) => Some(verdict),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(verdict(&[directory("d"), file("d/f", 1), link("d/l", "../d/f")]), None);
        assert_eq!(verdict(&[file("d/f", 1), directory("d")]), Some(Verdict::UnsafePath));
        assert_eq!(verdict(&[link("d", "e"), directory("e"), file("d/f", 1)]), Some(Verdict::UnsafePath));
        assert_eq!(verdict(&[file("f", 1), file("f", 1)]), Some(Verdict::UnsafePath));
        assert_eq!(verdict(&[file("f", MAX_SIZE)]), None);
        assert_eq!(verdict(&[file("f", MAX_SIZE), file("g", 1)]), Some(Verdict::TooLarge));
        assert_eq!(verdict(&[file("f", u64::MAX), file("g", u64::MAX)]), Some(Verdict::TooLarge));
        let many: Vec<Entry> = (0..=MAX_FILES).map(|at| directory(&format!("d{at}"))).collect();
        assert_eq!(verdict(&many), Some(Verdict::TooLarge));
        assert_eq!(verdict(&many[1..]), None);
    }
}
