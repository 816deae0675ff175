//! Directories and files of this user that no other user can change.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Creates a directory that only this user can enter, and the missing directories above it. An existing directory is
/// left as it is.
pub fn create_directory(path: impl AsRef<Path>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
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
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn created_directories_are_private_and_existing_ones_stay() {
        let place = tempfile::tempdir().unwrap();
        let (outer, inner) = (place.path().join("outer"), place.path().join("outer/inner"));
        create_directory(&inner).unwrap();
        for directory in [&outer, &inner] {
            assert_eq!(fs::metadata(directory).unwrap().mode() & 0o777, 0o700);
        }
        fs::set_permissions(&inner, Permissions::from_mode(0o750)).unwrap();
        create_directory(&inner).unwrap();
        assert_eq!(fs::metadata(&inner).unwrap().mode() & 0o777, 0o750);
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
