//! Changes of copy-on-write workspaces that are overlays: the upper layer has them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cofferdam_contract::{ByteSize, COPIED_MODE, Error, ErrorKind, Result, WorkspaceChanges};
use cofferdam_linux::beneath;
use cofferdam_linux::named::Directory;
use cofferdam_linux::walk::{Entry, walk};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, mkdirat, openat};
use rustix::io::Errno;

use super::{blocking, to_error};
use crate::bounds::Bounds;
use crate::capture::capture_overlay;
use crate::header::Header;
use crate::overlay::{self, Marks};
use crate::text;

/// The maximum number of skipped files that are listed.
const MAX_LISTED: usize = 20;

/// The layers of a copy-on-write workspace.
#[derive(Debug)]
pub struct OverlayLayer {
    /// The host directory.
    pub base: Directory,
    /// The directory that takes the changes.
    pub upper: OwnedFd,
    /// The marks of the overlay.
    pub marks: Marks,
    /// The time of the request for the sandbox.
    pub requested: SystemTime,
}

impl OverlayLayer {
    /// Captures the changes so far. The sandbox may have ended. `disk` is its disk limit.
    ///
    /// # Errors
    /// - `ResourceExhausted` if the changes are larger than a change set may be.
    /// - `Io` if they cannot be read or stored.
    pub async fn capture(self: &Arc<Self>, disk: Option<ByteSize>) -> Result<WorkspaceChanges> {
        let layer = Arc::clone(self);
        blocking("changes", move || layer.write(disk)).await
    }

    /// Copies the upper layer to that of a fork, an empty directory that no other process uses yet. All files get this
    /// owner, which differs for each sandbox. Holes and hard links take no more space than in the original. Sockets,
    /// fifos and extended attributes of the guest are not copied.
    ///
    /// # Errors
    ///
    /// Those of the operating system, each with the path.
    pub fn copy_upper(&self, to: BorrowedFd<'_>, owner: (u32, u32)) -> io::Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)));
        // The first copies of files with several names, by inode.
        let mut linked: HashMap<u64, PathBuf> = HashMap::new();
        walk(&self.upper, &mut |path, stat, entry| {
            let mode = Mode::from_raw_mode(stat.st_mode & COPIED_MODE);
            let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let copy = match entry {
                Entry::Directory => {
                    mkdirat(to, path, Mode::RWXU)?;
                    let copy = openat(to, path, flags | OFlags::DIRECTORY, Mode::empty())?;
                    let original = beneath::open_directory(self.upper.as_fd(), path)?;
                    if overlay::is_opaque(original.as_fd(), self.marks) {
                        overlay::make_opaque(&copy, self.marks)?;
                    }
                    copy
                }
                Entry::File(file, length) => {
                    if stat.st_nlink > 1 {
                        if let Some(first) = linked.get(&stat.st_ino) {
                            return Ok(rustix::fs::linkat(to, first, to, path, AtFlags::empty())?);
                        }
                        linked.insert(stat.st_ino, path.to_owned());
                    }
                    let create = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                    let copy = File::from(openat(to, path, create, Mode::RUSR | Mode::WUSR)?);
                    copy_data(&file, &copy, length)?;
                    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ };
                    rustix::fs::futimens(&copy, &Timestamps { last_access: modified, last_modification: modified })?;
                    copy.into()
                }
                Entry::Link(target) => {
                    rustix::fs::symlinkat(target, to, path)?;
                    return Ok(rustix::fs::chownat(to, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?);
                }
                Entry::Other if overlay::is_whiteout_device(stat) => {
                    return Ok(rustix::fs::mknodat(to, path, FileType::CharacterDevice, Mode::empty(), 0)?);
                }
                Entry::Other => return Ok(()),
                Entry::Unreadable(error) => return Err(error),
            };
            rustix::fs::fchown(&copy, uid, gid)?;
            Ok(rustix::fs::fchmod(&copy, mode)?)
        })
    }

    fn write(&self, disk: Option<ByteSize>) -> Result<WorkspaceChanges> {
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Io, "changes", "cannot store the changes of the workspace").with_source(error)
        };
        let not_captured = |error| to_error("changes", &error);
        let mut file = tempfile::tempfile().map_err(failed)?;
        let started = self.requested.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let started = i64::try_from(started).unwrap_or(i64::MAX);
        let header = Header::of(self.base.path(), self.base.as_fd(), started).map_err(not_captured)?;
        // Sparse files may be larger than what the disk limit lets a guest store.
        let disk = disk.map_or(u64::MAX, ByteSize::as_bytes);
        let bounds = Bounds { max_bytes: disk.min(Bounds::default().max_bytes), ..Bounds::default() };
        let summary = capture_overlay(self.upper.as_fd(), self.base.as_fd(), self.marks, &header, &mut file, &bounds);
        let summary = summary.map_err(not_captured)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let listed = summary.skipped.iter().take(MAX_LISTED);
        Ok(WorkspaceChanges {
            layer: Box::new(tokio::fs::File::from_std(file)),
            skipped: listed.map(|skipped| format!("{}: {}", text::path(&skipped.path), skipped.reason)).collect(),
            skipped_count: summary.skipped_count,
        })
    }
}

/// Copies the data of a file and leaves its holes.
fn copy_data(mut from: &File, mut to: &File, length: u64) -> io::Result<()> {
    to.set_len(length)?;
    let mut at = 0;
    while at < length {
        let begin = match rustix::fs::seek(from, rustix::fs::SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            found => found?,
        };
        let end = rustix::fs::seek(from, rustix::fs::SeekFrom::Hole(begin))?.min(length);
        from.seek(SeekFrom::Start(begin))?;
        to.seek(SeekFrom::Start(begin))?;
        io::copy(&mut from.take(end.saturating_sub(begin)), &mut to)?;
        at = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    /// Promise (Files): A fork of an overlay keeps the holes and hard links of the files that its source has written.
    #[test]
    fn copied_layers_keep_holes_and_hard_links() {
        let temp = tempfile::tempdir().unwrap();
        let [upper, to] = ["upper", "to"].map(|name| temp.path().join(name));
        fs::create_dir_all(upper.join("sub")).unwrap();
        fs::create_dir(&to).unwrap();
        let sparse = File::create(upper.join("sparse")).unwrap();
        sparse.write_all_at(b"begin", 0).unwrap();
        sparse.write_all_at(b"middle", 1 << 30).unwrap();
        sparse.set_len(1 << 40).unwrap();
        fs::write(upper.join("first"), "contents").unwrap();
        fs::hard_link(upper.join("first"), upper.join("sub/second")).unwrap();
        let open = |path| OwnedFd::from(File::open(path).unwrap());
        let layer = OverlayLayer {
            base: Directory::open(&temp.path().canonicalize().unwrap()).unwrap(),
            upper: open(&upper),
            marks: Marks::User,
            requested: SystemTime::now(),
        };
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        layer.copy_upper(open(&to).as_fd(), owner).unwrap();
        let copy = File::open(to.join("sparse")).unwrap();
        let found = copy.metadata().unwrap();
        assert_eq!(found.len(), 1 << 40);
        assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
        for (text, at) in [(&b"begin"[..], 0), (b"middle", 1 << 30)] {
            let mut bytes = vec![0; text.len()];
            copy.read_exact_at(&mut bytes, at).unwrap();
            assert_eq!(bytes, text);
        }
        let [first, second] = ["first", "sub/second"].map(|name| fs::metadata(to.join(name)).unwrap());
        assert_eq!((first.ino(), first.nlink()), (second.ino(), 2));
        assert_eq!(fs::read_to_string(to.join("sub/second")).unwrap(), "contents");
    }
}
