//! A copy of the sources that every user can read, for builds that several users run.
//!
//! Later runs reuse it, so that only changes are built again.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::repository::Repository;

/// The directory of copies. It survives a restart, and every user can enter it.
const PARENT: &str = "/var/tmp";

/// Updates the copy.
pub fn copy(repository: &Repository) -> Result<Repository> {
    let mut hasher = DefaultHasher::new();
    repository.root().hash(&mut hasher);
    let copy = Path::new(PARENT).join(format!("cofferdam-test-{:016x}", hasher.finish()));
    claim(&copy)?;
    println!("== copy the sources to {}, which every user can read", copy.display());
    let files: BTreeSet<PathBuf> = repository.files()?.into_iter().collect();
    for file in &files {
        update(&repository.root().join(file), &copy, file)
            .with_context(|| format!("cannot copy {}", file.display()))?;
    }
    remove_others(&copy, &copy, &files)?;
    Ok(Repository::at(copy))
}

/// Creates the directory or checks that this user owns it, because any user can create one with this name.
fn claim(copy: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(copy) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        other => other.with_context(|| format!("cannot create {}", copy.display()))?,
    }
    let meta = copy.symlink_metadata()?;
    if !meta.is_dir() || meta.uid() != Path::new("/proc/self").metadata()?.uid() {
        bail!("{} belongs to another user: remove it", copy.display());
    }
    fs::set_permissions(copy, Permissions::from_mode(0o755))?;
    Ok(())
}

/// Writes a file only if it differs, because its modification time decides what is built again.
fn update(from: &Path, copy: &Path, file: &Path) -> Result<()> {
    let to = copy.join(file);
    let meta = from.symlink_metadata()?;
    for parent in file.ancestors().skip(1).filter(|parent| *parent != Path::new("")).collect::<Vec<_>>().iter().rev() {
        let directory = copy.join(parent);
        if !directory.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            let _ = fs::remove_file(&directory);
            fs::create_dir(&directory)?;
        }
        fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
    }
    if to.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        fs::remove_dir_all(&to)?;
    }
    if meta.is_symlink() {
        let target = fs::read_link(from)?;
        if fs::read_link(&to).ok().as_ref() != Some(&target) {
            let _ = fs::remove_file(&to);
            std::os::unix::fs::symlink(target, &to)?;
        }
        return Ok(());
    }
    let contents = fs::read(from)?;
    if to.is_symlink() || fs::read(&to).ok().as_deref() != Some(&contents) {
        let _ = fs::remove_file(&to);
        fs::write(&to, contents)?;
    }
    let mode = if meta.mode() & 0o100 == 0 { 0o644 } else { 0o755 };
    fs::set_permissions(&to, Permissions::from_mode(mode))?;
    Ok(())
}

/// Removes files that are no longer sources, except for the build directory.
fn remove_others(copy: &Path, directory: &Path, files: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in directory.read_dir()? {
        let path = entry?.path();
        let name = path.strip_prefix(copy).unwrap_or(&path);
        if name == Path::new("target") || files.contains(name) {
            continue;
        }
        let real_directory = path.symlink_metadata()?.is_dir();
        if real_directory && files.range(name.to_owned()..).next().is_some_and(|next| next.starts_with(name)) {
            remove_others(copy, &path, files)?;
        } else if real_directory {
            fs::remove_dir_all(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_follows_its_sources() {
        let base = std::env::temp_dir().join(format!("xtask-shared-{}", std::process::id()));
        let (from, copy) = (base.join("from"), base.join("copy"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::create_dir_all(copy.join("target")).unwrap();
        fs::create_dir_all(copy.join("gone/deep")).unwrap();
        fs::write(from.join("a/b/c"), "1").unwrap();
        fs::write(copy.join("old"), "x").unwrap();
        let files = BTreeSet::from([PathBuf::from("a/b/c")]);
        for contents in ["1", "2"] {
            fs::write(from.join("a/b/c"), contents).unwrap();
            update(&from.join("a/b/c"), &copy, Path::new("a/b/c")).unwrap();
            remove_others(&copy, &copy, &files).unwrap();
            assert_eq!(fs::read_to_string(copy.join("a/b/c")).unwrap(), contents);
        }
        assert_eq!(fs::metadata(copy.join("a/b/c")).unwrap().mode() & 0o777, 0o644);
        let mut left: Vec<_> = copy.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["a", "target"]);
        fs::remove_dir_all(base).unwrap();
    }
}
