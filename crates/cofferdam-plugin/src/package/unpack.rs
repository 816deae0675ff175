//! Unpacks a verified package into a new directory.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cofferdam_linux::beneath;
use rustix::fs::{AtFlags, Mode, OFlags, chmodat, fchmod, mkdirat, symlinkat};

use super::archive::{FILES, INDEX, Package, Receiver, SIGNATURE};
use super::error::{Result, io};
use super::index::{Contents, Entry};

const NEW: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW);

/// Unpacks a package into an empty directory that only this process uses, and writes it to the disk. Files become
/// read-only.
pub(crate) fn unpack(package: &Package, into: &Path) -> Result<()> {
    for (name, bytes) in [INDEX, SIGNATURE].iter().zip(&package.head) {
        write_new(&into.join(name), bytes)?;
    }
    let files = into.join(FILES);
    fs::create_dir(&files).map_err(io("create", &files))?;
    let root = OwnedFd::from(File::open(&files).map_err(io("open", &files))?);
    chmodat(&root, ".", Mode::from_raw_mode(0o755), AtFlags::empty()).map_err(io("create", &files))?;
    package.read(&mut Unpack { root: &root, file: None, path: String::new() })?;
    rustix::fs::syncfs(&root).map_err(io("write", &files))
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(path);
    file.and_then(|mut file| file.write_all(bytes)).map_err(io("write", path))
}

struct Unpack<'a> {
    root: &'a OwnedFd,
    file: Option<File>,
    path: String,
}

impl Receiver for Unpack<'_> {
    fn begin(&mut self, entry: &Entry) -> Result<()> {
        self.path.clone_from(&entry.path);
        let path = self.path.as_str();
        let done = match &entry.contents {
            Contents::Directory => mkdirat(self.root, path, Mode::RWXU)
                .and_then(|()| chmodat(self.root, path, Mode::from_raw_mode(0o755), AtFlags::empty())),
            Contents::Link { target } => symlinkat(target, self.root, path),
            Contents::File { executable, .. } => {
                let file =
                    beneath::open(self.root.as_fd(), path.as_ref(), NEW, Mode::WUSR).map_err(io("create", path))?;
                let mode = Mode::from_raw_mode(if *executable { 0o555 } else { 0o444 });
                let done = fchmod(&file, mode);
                self.file = Some(file.into());
                done
            }
        };
        done.map_err(io("create", path))
    }

    fn piece(&mut self, piece: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(piece).map_err(io("write", &self.path))
    }
}
