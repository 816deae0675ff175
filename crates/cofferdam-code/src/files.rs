//! Changes of the workspace, found by scans before and after a call through the contract's file API.
//!
//! The guest chooses names, types and contents, and may change them during a scan. Entries, bytes read and time are
//! therefore bounded, and symlinks are never followed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{Access, EntryKind, Error, ErrorKind, Result, Sandbox, SandboxPath};
use cofferdam_util::hex;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use crate::{Bounds, Contents, Data, FileChange, Files, Touched};

/// Timeout of one scan.
const SCAN_TIMEOUT: Duration = Duration::from_secs(5);
/// The greatest depth of nested directories.
const MAX_DEPTH: usize = 32;
/// The prefix of names of internal files.
const OWN_PREFIX: &str = ".cofferdam-";

/// Internal files of running calls in workspaces. Any other file with such a name belongs to the guest.
#[derive(Debug, Default)]
pub struct OwnFiles(Mutex<BTreeSet<String>>);

impl OwnFiles {
    fn names(&self) -> BTreeSet<String> {
        self.0.lock().clone()
    }
}

/// An internal file at the top of a workspace, registered for the duration of its call.
#[derive(Debug)]
pub struct OwnFile {
    path: SandboxPath,
    of: Arc<OwnFiles>,
}

impl OwnFile {
    /// Registers a file that does not exist yet.
    pub fn new(id: &str, of: &Arc<OwnFiles>) -> Result<Self> {
        let path = SandboxPath::new(format!("{OWN_PREFIX}{id}"))?;
        of.0.lock().insert(path.as_str().to_owned());
        Ok(Self { path, of: Arc::clone(of) })
    }

    /// Returns the file's path.
    pub fn path(&self) -> &SandboxPath {
        &self.path
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        self.of.0.lock().remove(self.path.as_str());
    }
}

/// Returns the changes of a workspace that was not scanned.
pub fn unseen() -> Files {
    Files { changes: Vec::new(), total: 0, complete: false }
}

/// A file at the time of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    kind: EntryKind,
    size: u64,
    sha256: Option<[u8; 32]>,
}

/// A workspace at the time of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    files: BTreeMap<String, Seen>,
    /// True if every entry was listed.
    whole: bool,
    /// True if every regular file was read.
    read: bool,
}

impl Scan {
    /// Returns the scan of a workspace that could not be listed.
    fn blind() -> Self {
        Self { files: BTreeMap::new(), whole: false, read: false }
    }
}

/// Scans a workspace. A read-only workspace is not scanned, because code cannot change it.
pub async fn scan(sandbox: &dyn Sandbox, bounds: &Bounds, own: &OwnFiles) -> Scan {
    if sandbox.spec().workspace().access() == Access::ReadOnly {
        return Scan { files: BTreeMap::new(), whole: true, read: true };
    }
    walk(sandbox, bounds, None, &own.names()).await
}

/// Scans the workspace again and returns the differences. A file left at the path of `results` belongs to the guest.
pub async fn compare(
    sandbox: &dyn Sandbox,
    bounds: &Bounds,
    before: Option<Scan>,
    contents: Contents,
    (own, results): (&OwnFiles, Option<&SandboxPath>),
) -> Files {
    let Some(before) = before else { return unseen() };
    if sandbox.spec().workspace().access() == Access::ReadOnly {
        return Files { complete: true, ..unseen() };
    }
    let mut skipped = own.names();
    if let Some(path) = results {
        skipped.remove(path.as_str());
    }
    let after = walk(sandbox, bounds, Some(&before), &skipped).await;
    let complete = before.whole && after.whole && before.read && after.read && !may_differ(&before, &after);
    let mut found = differences(&before, &after);
    let total = found.len() as u64;
    found.truncate(bounds.max_named_files);
    if contents == Contents::Carry {
        add_contents(sandbox, bounds, &mut found).await;
    }
    let complete = complete && total == found.len() as u64;
    Files { changes: found, total, complete }
}

fn differences(before: &Scan, after: &Scan) -> Vec<FileChange> {
    let change = |name: &str, seen: &Seen, change| FileChange {
        name: name.to_owned(),
        change,
        kind: seen.kind,
        size: seen.size,
        sha256: seen.sha256.map(hex::encode),
        contents: None,
    };
    let mut found = Vec::new();
    for (name, seen) in &after.files {
        match before.files.get(name) {
            Some(old) if differs(old, seen) => found.push(change(name, seen, Touched::Changed)),
            Some(_) => {}
            // A file that the first scan did not list may have existed.
            None if before.whole => found.push(change(name, seen, Touched::Created)),
            None => {}
        }
    }
    if after.whole {
        let gone = before.files.iter().filter(|(name, _)| !after.files.contains_key(*name));
        found.extend(gone.map(|(name, seen)| FileChange { sha256: None, ..change(name, seen, Touched::Removed) }));
        found.sort_by(|one, other| one.name.cmp(&other.name));
    }
    found
}

/// Returns true if files may differ that cannot be compared. The target of a symlink is not read.
fn may_differ(before: &Scan, after: &Scan) -> bool {
    let link = |seen: &Seen| seen.kind == EntryKind::Symlink;
    after.files.iter().any(|(name, seen)| link(seen) && before.files.get(name).is_some_and(link))
}

fn differs(old: &Seen, new: &Seen) -> bool {
    let hashes = old.sha256.is_some() && new.sha256.is_some() && old.sha256 != new.sha256;
    old.kind != new.kind || old.size != new.size || hashes
}

/// The remaining bounds of a scan.
struct Budget {
    entries: usize,
    bytes: u64,
    until: Instant,
}

async fn walk(sandbox: &dyn Sandbox, bounds: &Bounds, before: Option<&Scan>, skipped: &BTreeSet<String>) -> Scan {
    let until = Instant::now() + SCAN_TIMEOUT;
    let mut budget = Budget { entries: bounds.max_files, bytes: bounds.max_hashed.as_bytes(), until };
    let mut scan = Scan { files: BTreeMap::new(), whole: true, read: true };
    // The order is fixed, so that two incomplete scans end at the same entry.
    let mut waiting = vec![(String::new(), 0)];
    while let Some((directory, depth)) = waiting.pop() {
        let Ok(path) = SandboxPath::new(&directory) else {
            scan.whole = false;
            continue;
        };
        let listed = tokio::time::timeout_at(until, sandbox.list_dir(&path)).await;
        let Ok(Ok(entries)) = listed else {
            // The workspace itself can always be listed, unless it has too many entries.
            if directory.is_empty() {
                return Scan::blind();
            }
            scan.whole = false;
            continue;
        };
        for entry in entries {
            if directory.is_empty() && entry.kind == EntryKind::File && skipped.contains(&entry.name) {
                continue;
            }
            if budget.entries == 0 || Instant::now() >= budget.until {
                scan.whole = false;
                return scan;
            }
            budget.entries -= 1;
            let name = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
            if entry.kind == EntryKind::Directory {
                match depth < MAX_DEPTH {
                    true => waiting.push((name, depth + 1)),
                    false => scan.whole = false,
                }
                continue;
            }
            let mut seen = Seen { kind: entry.kind, size: entry.size, sha256: None };
            // A new file needs no hash for the comparison. It is hashed only if the result may list it.
            let worth = before.is_none_or(|before| before.files.contains_key(&name))
                || scan.files.len() <= bounds.max_named_files;
            if entry.kind == EntryKind::File && worth {
                seen.sha256 = hash(sandbox, &name, &mut budget, &mut seen.size).await;
                scan.read &= seen.sha256.is_some();
            }
            scan.files.insert(name, seen);
        }
    }
    scan
}

/// Hashes a file within the budget. If the file grew meanwhile, `size` becomes the number of bytes read.
async fn hash(sandbox: &dyn Sandbox, name: &str, budget: &mut Budget, size: &mut u64) -> Option<[u8; 32]> {
    if *size > budget.bytes {
        return None;
    }
    let path = SandboxPath::new(name).ok()?;
    let max = budget.bytes;
    let work = async {
        let mut reader = sandbox.read_file(&path).await.ok()?.take(max);
        let (mut hasher, mut buffer, mut length) = (Sha256::new(), vec![0; 64 * 1024], 0);
        loop {
            let count = reader.read(&mut buffer).await.ok()?;
            if count == 0 {
                return (length < max || length == *size).then(|| (hasher.finalize().into(), length));
            }
            hasher.update(&buffer[..count]);
            length += count as u64;
        }
    };
    let (hash, length) = tokio::time::timeout_at(budget.until, work).await.ok()??;
    budget.bytes = budget.bytes.saturating_sub(length);
    *size = length;
    Some(hash)
}

/// Reads a whole file of at most `max` bytes.
pub async fn read(sandbox: &dyn Sandbox, path: &SandboxPath, max: u64) -> Result<Vec<u8>> {
    let mut reader = sandbox.read_file(path).await?.take(max.saturating_add(1));
    let mut contents = Vec::new();
    reader.read_to_end(&mut contents).await.map_err(|error| {
        Error::new(ErrorKind::Io, "execute", "cannot read a file in the workspace").with_source(error)
    })?;
    if contents.len() as u64 > max {
        return Err(Error::new(ErrorKind::ResourceExhausted, "execute", "a file in the workspace is too large"));
    }
    Ok(contents)
}

/// Adds file contents until the bound is reached.
async fn add_contents(sandbox: &dyn Sandbox, bounds: &Bounds, changes: &mut [FileChange]) {
    let until = Instant::now() + SCAN_TIMEOUT;
    let mut left = bounds.max_contents.as_bytes();
    for change in changes.iter_mut().filter(|change| change.change != Touched::Removed) {
        if change.kind != EntryKind::File || change.size > left {
            continue;
        }
        let Ok(path) = SandboxPath::new(&change.name) else { continue };
        let Ok(Ok(contents)) = tokio::time::timeout_at(until, read(sandbox, &path, left)).await else { continue };
        left -= contents.len() as u64;
        change.contents = Some(Data::from(Bytes::from(contents)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(files: &[(&str, u64, Option<u8>)], whole: bool) -> Scan {
        let seen = |size, hash: Option<u8>| Seen { kind: EntryKind::File, size, sha256: hash.map(|byte| [byte; 32]) };
        let files = files.iter().map(|(name, size, hash)| ((*name).to_owned(), seen(*size, *hash))).collect();
        Scan { files, whole, read: true }
    }

    fn changes(before: &Scan, after: &Scan) -> Vec<(String, Touched)> {
        differences(before, after).into_iter().map(|change| (change.name, change.change)).collect()
    }

    #[test]
    fn file_differences_are_reported() {
        let before = scan(&[("a", 1, Some(1)), ("b", 1, Some(1)), ("c", 1, None), ("d", 1, None)], true);
        let after = scan(&[("a", 1, Some(1)), ("b", 1, Some(2)), ("c", 2, None), ("e", 0, None)], true);
        let expected =
            [("b", Touched::Changed), ("c", Touched::Changed), ("d", Touched::Removed), ("e", Touched::Created)];
        assert_eq!(changes(&before, &after), expected.map(|(name, change)| (name.to_owned(), change)));
    }

    #[test]
    fn incomplete_scans_report_no_changes() {
        let (part, all) = (scan(&[("a", 1, None)], false), scan(&[("a", 1, None), ("b", 1, None)], true));
        assert_eq!(changes(&part, &all), [], "b may have been there");
        assert_eq!(changes(&all, &part), [], "b may be there still");
    }
}
