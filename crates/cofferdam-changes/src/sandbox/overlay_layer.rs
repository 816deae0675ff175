//! Changes of copy-on-write workspaces that are overlays: the upper layer has them.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cofferdam_contract::{ByteSize, COPIED_MODE, Error, ErrorKind, Result, WorkspaceChanges};
use cofferdam_linux::beneath;
use cofferdam_linux::named::Directory;
use cofferdam_linux::walk::{Entry, walk};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, mkdirat, openat};

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
    /// owner, which differs for each sandbox. Sockets, fifos and extended attributes of the guest are not copied.
    ///
    /// # Errors
    ///
    /// Those of the operating system, each with the path.
    pub fn copy_upper(&self, to: BorrowedFd<'_>, owner: (u32, u32)) -> io::Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)));
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
                Entry::File(mut file, _) => {
                    let create = flags | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                    let mut copy = File::from(openat(to, path, create, Mode::RUSR | Mode::WUSR)?);
                    io::copy(&mut file, &mut copy)?;
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
