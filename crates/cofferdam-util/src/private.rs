//! Directories and files of this user that no other user can change.

use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// Creates a directory that only this user can enter, and the missing directories above it. An existing directory is
/// left as it is.
pub fn create_directory(path: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Replaces a small file atomically and durably. Only this user can read and write the new file.
///
/// `temporary` is a name in the same directory. A file that a killed writer left there is removed. The caller excludes
/// other writers of that name by a lock, or uses a unique one.
///
/// # Errors
///
/// Those of the operating system. The old file then stays, unless only the directory could not be synchronized.
pub fn replace_file(
    directory: impl AsFd,
    name: impl AsRef<Path>,
    temporary: impl AsRef<Path>,
    contents: &[u8],
) -> io::Result<()> {
    let (directory, name, temporary) = (directory.as_fd(), name.as_ref(), temporary.as_ref());
    let remove = || rustix::fs::unlinkat(directory, temporary, AtFlags::empty());
    match remove() {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(contents).and_then(|()| file.sync_all());
    let renamed = written.and_then(|()| Ok(rustix::fs::renameat(directory, temporary, directory, name)?));
    if renamed.is_err() {
        // The original error is the one to report, and the next writer removes the file.
        let _ = remove();
    }
    renamed.and_then(|()| Ok(rustix::fs::fsync(directory)?))
}

/// Returns the reason why another user could change a file or directory, or `None` if only this user can.
pub fn exposure(found: &Metadata) -> Option<&'static str> {
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Some("it belongs to another user");
    }
    (found.mode() & 0o022 != 0).then_some("other users can write to it; remove that permission with 'chmod go-w'")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn created_directories_are_private_and_existing_ones_stay() {
        let temp = tempfile::tempdir().unwrap();
        let (outer, inner) = (temp.path().join("outer"), temp.path().join("outer/inner"));
        create_directory(&inner).unwrap();
        for directory in [&outer, &inner] {
            assert_eq!(fs::metadata(directory).unwrap().mode() & 0o777, 0o700);
        }
        fs::set_permissions(&inner, Permissions::from_mode(0o750)).unwrap();
        create_directory(&inner).unwrap();
        assert_eq!(fs::metadata(&inner).unwrap().mode() & 0o777, 0o750);
    }

    #[test]
    fn a_file_is_replaced_whatever_a_killed_writer_left() {
        let temp = tempfile::tempdir().unwrap();
        let (outside, file) = (temp.path().join("outside"), temp.path().join("file"));
        let directory = File::open(temp.path()).unwrap();
        fs::write(&outside, "untouched").unwrap();
        let replace = |contents: &str| replace_file(&directory, "file", "file.new", contents.as_bytes());
        replace("first").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        symlink(&outside, temp.path().join("file.new")).unwrap();
        replace("second").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2, "no temporary file stays");
    }

    #[test]
    fn a_failed_replacement_leaves_no_temporary_file() {
        let temp = tempfile::tempdir().unwrap();
        let directory = File::open(temp.path()).unwrap();
        fs::create_dir_all(temp.path().join("file/inner")).unwrap();
        assert!(replace_file(&directory, "file", "file.new", b"text").is_err());
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
        assert!(temp.path().join("file/inner").is_dir());
    }

    #[test]
    fn files_that_others_own_or_can_write_to_are_exposed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, exposed) in [(0o600, false), (0o644, false), (0o755, false), (0o620, true), (0o602, true)] {
            file.as_file().set_permissions(Permissions::from_mode(mode)).unwrap();
            assert_eq!(exposure(&file.as_file().metadata().unwrap()).is_some(), exposed, "{mode:o}");
        }
        if !rustix::process::geteuid().is_root() {
            assert_eq!(exposure(&fs::metadata("/").unwrap()), Some("it belongs to another user"));
        }
    }
}
