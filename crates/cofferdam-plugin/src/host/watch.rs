//! Changes of the files of a plugin, for development mode. It polls, so that it works on every file system.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The maximum number of files and directories that are watched.
pub const MAX_FILES: usize = 10_000;
/// Names that programs write while a plugin runs.
const IGNORED: [&str; 3] = ["__pycache__", ".git", "node_modules"];

type Files = BTreeMap<PathBuf, (SystemTime, u64)>;

/// The files of a directory, with their times and sizes.
pub struct Watch {
    directory: PathBuf,
    files: Files,
    is_truncated: bool,
}

impl Watch {
    /// Reads the times of the files below a directory.
    pub fn new(directory: &Path) -> Self {
        let (files, is_truncated) = files(directory);
        Self { directory: directory.to_owned(), files, is_truncated }
    }

    /// Returns true if the directory has more files than are watched.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Returns a file that was changed, added or removed since the last look.
    pub fn changed(&mut self) -> Option<PathBuf> {
        let (now, _) = files(&self.directory);
        let before = std::mem::replace(&mut self.files, now);
        let changed = self.files.iter().find(|(path, stamp)| before.get(*path) != Some(*stamp));
        let removed = || before.keys().find(|path| !self.files.contains_key(*path));
        let path = changed.map(|(path, _)| path).or_else(removed)?;
        Some(path.strip_prefix(&self.directory).unwrap_or(path).to_owned())
    }
}

/// Returns the files below a directory, and true if there are too many. Files that cannot be read are left out.
fn files(directory: &Path) -> (Files, bool) {
    let (mut files, mut pending, mut seen) = (Files::new(), vec![directory.to_owned()], 0);
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            seen += 1;
            if seen > MAX_FILES {
                return (files, true);
            }
            if IGNORED.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            // The type is that of a link, so that no link to a directory is followed.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            } else if let Some(found) = entry.path().metadata().ok().filter(Metadata::is_file) {
                files.insert(entry.path(), (found.modified().unwrap_or(SystemTime::UNIX_EPOCH), found.len()));
            }
        }
    }
    (files, false)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn changed_added_and_removed_files_are_found_and_caches_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("lib/__pycache__")).unwrap();
        fs::write(path("main.py"), "1").unwrap();
        let mut watch = Watch::new(directory.path());
        assert_eq!(watch.changed(), None);
        fs::write(path("main.py"), "two").unwrap();
        assert_eq!(watch.changed(), Some("main.py".into()));
        fs::write(path("lib/new.py"), "1").unwrap();
        assert_eq!(watch.changed(), Some("lib/new.py".into()));
        let time = SystemTime::UNIX_EPOCH;
        fs::File::options().write(true).open(path("lib/new.py")).unwrap().set_modified(time).unwrap();
        assert_eq!(watch.changed(), Some("lib/new.py".into()));
        fs::remove_file(path("lib/new.py")).unwrap();
        assert_eq!(watch.changed(), Some("lib/new.py".into()));
        fs::write(path("lib/__pycache__/main.pyc"), "1").unwrap();
        assert_eq!(watch.changed(), None);
    }

    #[test]
    fn no_link_to_a_directory_is_followed_and_the_number_of_files_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", directory.path().join("root")).unwrap();
        assert_eq!(files(directory.path()), (Files::new(), false));
        assert!(!Watch::new(directory.path()).is_truncated());
        for number in 0..MAX_FILES {
            fs::write(directory.path().join(number.to_string()), "").unwrap();
        }
        assert!(Watch::new(directory.path()).is_truncated());
    }
}
