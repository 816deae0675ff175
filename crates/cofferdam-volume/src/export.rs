//! Export of a volume as a tar: directories, files, symbolic links and hard links, with modes and times.
//!
//! Extended attributes are left out, and all files belong to root. What is in the volume is untrusted, so the number and
//! the size of its files are bounded, and no path of the tar leads out of it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self as std_io, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_linux::loop_device::Access;
use rustix::fs::OFlags;
use tar::{EntryType, Header};

use crate::bounds::{Bounds, Counter};
use crate::error::{Result, VolumeError, io, too_large};
use crate::name::Name;
use crate::open::{Request, Through};
use crate::store::{Found, Store};
use crate::{directory, disk, files};

const BUFFER: usize = 128 << 10;

/// The result of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// Number of files, directories and links.
    pub files: u64,
    /// Size of all files, in bytes.
    pub bytes: u64,
    /// Number of files that no tar of a volume contains: sockets, fifos and devices.
    pub skipped: u64,
}

/// Properties of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Properties {
    pub mode: u32,
    /// Seconds since 1970.
    pub modified: u64,
}

/// A file of a volume.
pub(crate) enum Entry<'a> {
    Directory,
    File {
        size: u64,
        content: &'a mut dyn Read,
        /// Device and inode of a file that may have other names.
        identity: Option<(u64, u64)>,
    },
    Link(OsString),
    /// A socket, a fifo or a device.
    Other,
}

/// A consumer of the files of a volume. A directory precedes its contents.
pub(crate) type Visit<'a> = dyn FnMut(&Path, Properties, Entry<'_>) -> Result<()> + 'a;

impl Store {
    /// Writes the files of a volume as a tar. `progress` gets the bytes so far.
    ///
    /// # Errors
    ///
    /// [`VolumeError::NotFound`], [`VolumeError::InUse`] by a writer, [`VolumeError::Damaged`],
    /// [`VolumeError::TooLarge`], [`VolumeError::Stream`], and those of the operating system. After an error, the tar
    /// has no end.
    pub fn export(
        &self,
        name: &Name,
        out: impl Write,
        bounds: &Bounds,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Exported> {
        let request = Request { access: Access::ReadOnly, through: Through::Export, purpose: "export" };
        let volume = self.open_volume(name, &request)?;
        let exported = self.export_opened(name, out, bounds, progress);
        volume.close()?;
        exported
    }

    /// Writes the files of a volume that this process has opened.
    pub(crate) fn export_opened(
        &self,
        name: &Name,
        out: impl Write,
        bounds: &Bounds,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Exported> {
        let Found { directory, record, .. } = self.find(name)?;
        let failed = || io("open", self.path().join(name.as_str()));
        let mut writer = TarWriter::new(out, *bounds, progress);
        let mut visit = |path: &Path, properties, entry: Entry<'_>| writer.add(path, properties, entry);
        match record.size {
            Some(size) => {
                let image = files::open(&directory, files::DISK, OFlags::RDONLY).map_err(failed())?;
                disk::read(image, size, &mut visit).map_err(|problem| problem.of(name))?;
            }
            None => {
                let tree = files::directory(&directory, files::FILES).map_err(failed())?;
                directory::read(tree.as_fd(), self.path(), &mut visit)?;
            }
        }
        writer.finish()
    }
}

struct TarWriter<'a, W: Write> {
    tar: tar::Builder<BufWriter<W>>,
    counter: Counter,
    skipped: u64,
    /// First names of files with several names.
    names: HashMap<(u64, u64), PathBuf>,
    progress: &'a mut dyn FnMut(u64),
}

fn stream(source: std_io::Error) -> VolumeError {
    VolumeError::Stream { operation: "write", source }
}

impl<'a, W: Write> TarWriter<'a, W> {
    fn new(out: W, bounds: Bounds, progress: &'a mut dyn FnMut(u64)) -> Self {
        let tar = tar::Builder::new(BufWriter::with_capacity(BUFFER, out));
        Self { tar, counter: Counter::new(bounds), skipped: 0, names: HashMap::new(), progress }
    }

    fn add(&mut self, path: &Path, properties: Properties, entry: Entry<'_>) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_mode(properties.mode & 0o1777);
        header.set_mtime(properties.modified);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        let written = match entry {
            Entry::Directory => {
                self.counter.add(0).map_err(too_large)?;
                header.set_entry_type(EntryType::Directory);
                self.tar.append_data(&mut header, path, std_io::empty())
            }
            Entry::Link(target) => {
                self.counter.add(0).map_err(too_large)?;
                header.set_entry_type(EntryType::Symlink);
                self.tar.append_link(&mut header, path, target)
            }
            Entry::File { size, content, identity } => {
                let first = identity.and_then(|identity| self.names.get(&identity));
                if let Some(first) = first {
                    self.counter.add(0).map_err(too_large)?;
                    header.set_entry_type(EntryType::Link);
                    self.tar.append_link(&mut header, path, first)
                } else {
                    self.counter.add(size).map_err(too_large)?;
                    if let Some(identity) = identity {
                        self.names.insert(identity, path.to_owned());
                    }
                    header.set_entry_type(EntryType::Regular);
                    header.set_size(size);
                    let before = self.counter.bytes - size;
                    let progress = &mut *self.progress;
                    let mut content = Exact { content, size, at: 0, failure: None, before, progress };
                    let written = self.tar.append_data(&mut header, path, &mut content);
                    if let Some(failure) = content.failure {
                        return Err(io("read", path)(failure));
                    }
                    written
                }
            }
            Entry::Other => {
                self.counter.add(0).map_err(too_large)?;
                self.skipped += 1;
                Ok(())
            }
        };
        written.map_err(stream)
    }

    fn finish(self) -> Result<Exported> {
        let out = self.tar.into_inner().map_err(stream)?;
        out.into_inner().map_err(|error| stream(error.into_error()))?.flush().map_err(stream)?;
        Ok(Exported { files: self.counter.files, bytes: self.counter.bytes, skipped: self.skipped })
    }
}

/// Exactly so many bytes of a file, which may have become shorter or longer meanwhile.
struct Exact<'a> {
    content: &'a mut dyn Read,
    size: u64,
    at: u64,
    /// An error of the file, unlike one of the tar.
    failure: Option<std_io::Error>,
    before: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Read for Exact<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std_io::Result<usize> {
        let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
        let max = left.min(buffer.len());
        let buffer = &mut buffer[..max];
        if buffer.is_empty() {
            return Ok(0);
        }
        let length = match self.content.read(buffer) {
            Ok(0) => {
                buffer.fill(0);
                buffer.len()
            }
            Ok(length) => length,
            Err(error) if error.kind() == std_io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                let kind = error.kind();
                self.failure = Some(error);
                return Err(kind.into());
            }
        };
        self.at += length as u64;
        (self.progress)(self.before + self.at);
        Ok(length)
    }
}
