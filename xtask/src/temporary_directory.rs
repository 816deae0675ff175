//! Directories of one run of this program, named after its process.
//!
//! A killed run leaves its directory, and process ids are reused. So directories of dead processes are removed before a
//! new one is created, also one with this process's own id.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory of this run that is removed on drop.
#[derive(Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// Creates `parent/prefixPID` for this user, as [`make`] does.
    pub fn create(parent: &Path, prefix: &str, mode: u32) -> Result<Self> {
        let me = Path::new("/proc/self").metadata()?.uid();
        Ok(Self(make(parent, prefix, mode, &[me])?))
    }

    /// Returns the directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            println!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Creates `parent/prefixPID`. Existing directories with such names are removed only if one of `owners` owns them.
pub fn make(parent: &Path, prefix: &str, mode: u32, owners: &[u32]) -> Result<PathBuf> {
    remove_left(parent, prefix, owners);
    let path = parent.join(format!("{prefix}{}", std::process::id()));
    fs::DirBuilder::new().mode(mode).create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// Removes the directories of killed runs.
fn remove_left(parent: &Path, prefix: &str, owners: &[u32]) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let run = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        let ours = entry.metadata().is_ok_and(|meta| meta.is_dir() && owners.contains(&meta.uid()));
        let ended = |run| run == std::process::id() || !Path::new(&format!("/proc/{run}")).exists();
        if ours && run.is_some_and(ended) {
            // A directory that cannot be removed is harmless, or the creation of the new one reports it.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn leftovers_of_ended_runs_are_removed_and_others_kept() {
        let me = Path::new("/proc/self").metadata().unwrap().uid();
        let parent = make(&std::env::temp_dir(), "xtask-test-", 0o700, &[me]).unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let mut runs = Command::new("sleep").arg("60").spawn().unwrap();
        let own = std::process::id();
        for name in [format!("x-{own}"), format!("x-{}", ended.id()), format!("x-{}", runs.id()), "x-other".to_owned()]
        {
            fs::create_dir_all(parent.join(name).join("tmp")).unwrap();
        }
        assert!(make(&parent, "x-", 0o755, &[]).is_err(), "another user's directory was taken");
        let created = make(&parent, "x-", 0o755, &[me]).unwrap();
        assert_eq!(fs::read_dir(&created).unwrap().count(), 0, "it is not new");
        let mut left: Vec<_> =
            fs::read_dir(&parent).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let mut expected = vec![format!("x-{own}"), format!("x-{}", runs.id()), "x-other".to_owned()];
        expected.sort();
        runs.kill().unwrap();
        runs.wait().unwrap();
        fs::remove_dir_all(&parent).unwrap();
        assert_eq!(left, expected);
    }
}
