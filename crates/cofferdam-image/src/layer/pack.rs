//! Directories as reproducible tars.

use std::io::{self, Read, Write};
use std::path::Path;

use cofferdam_linux::named::Directory;
use cofferdam_linux::walk::{self, Entry};
use rustix::fs::Stat;
use tar::{EntryType, Header};

use super::{Result, io as io_error};

/// Writes a directory as a sorted tar, so that the result is reproducible. The directory may change during the walk: no
/// link is followed.
pub(crate) fn pack(directory: &Directory, out: impl Write) -> Result<()> {
    let mut tar = tar::Builder::new(out);
    walk::walk(directory, &mut |path, stat, entry| append(&mut tar, path, stat, entry))
        .map_err(io_error("pack", directory.path()))?;
    tar.finish().map_err(io_error("write", "a tar of the root file system"))
}

/// Adds one entry.
fn append(tar: &mut tar::Builder<impl Write>, path: &Path, stat: &Stat, entry: Entry) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(stat.st_mode & 0o1777);
    header.set_size(0);
    match entry {
        Entry::Directory => {
            header.set_entry_type(EntryType::Directory);
            tar.append_data(&mut header, path, io::empty())
        }
        Entry::Link(target) => {
            header.set_entry_type(EntryType::Symlink);
            tar.append_link(&mut header, path, target)
        }
        Entry::File(file, length) => {
            header.set_entry_type(EntryType::Regular);
            header.set_size(length);
            // Exactly the recorded length: if the file was truncated meanwhile, zeros follow.
            tar.append_data(&mut header, path, file.take(length).chain(io::repeat(0)).take(length))
        }
        Entry::Other => Ok(()),
        Entry::Unreadable(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn packing_follows_no_link_that_replaces_a_directory() {
        let temp = tempfile::tempdir().unwrap();
        let (root, outside) = (temp.path().join("root"), temp.path().join("outside"));
        for directory in [root.join("sub"), outside.clone()] {
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("file"), directory.display().to_string()).unwrap();
        }
        let (secret, done) = (outside.display().to_string(), std::sync::atomic::AtomicBool::new(false));
        std::os::unix::fs::symlink(&outside, root.join("swap")).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (one, other, here) = (root.join("sub"), root.join("swap"), rustix::fs::CWD);
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    rustix::fs::renameat_with(here, &one, here, &other, rustix::fs::RenameFlags::EXCHANGE).unwrap();
                }
            });
            for _ in 0..1000 {
                let mut out = Vec::new();
                // A walk may fail when it meets a change.
                let _ = pack(&Directory::open(&root).unwrap(), &mut out);
                let mut archive = tar::Archive::new(&out[..]);
                for mut entry in archive.entries().unwrap().filter_map(std::result::Result::ok) {
                    let mut text = String::new();
                    entry.read_to_string(&mut text).unwrap();
                    assert!(text != secret, "{:?} is a file outside of the directory", entry.path());
                }
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn the_same_directory_gives_the_same_tar() {
        let packed = |names: [&str; 3]| {
            let temp = tempfile::tempdir().unwrap();
            for name in names {
                fs::create_dir_all(temp.path().join(name)).unwrap();
                fs::write(temp.path().join(name).join("f"), name).unwrap();
            }
            std::os::unix::fs::symlink("nowhere", temp.path().join("link")).unwrap();
            let mut out = Vec::new();
            pack(&Directory::open(temp.path()).unwrap(), &mut out).unwrap();
            out
        };
        assert_eq!(packed(["a", "b", "c/d"]), packed(["c/d", "b", "a"]));
    }
}
