//! Merges packages into one tar while reading them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};

use tar::{EntryType, Header};

use super::error::{Result, bad_package, io};
use super::package::Package;
use super::path::GuestPath;
use super::progress::Progress;
use super::reader::{self, Entry, Kind};
use super::tree::{Inserted, Origin, Tree};
use super::{finish, skeleton};

/// 1 January 2020: the time of everything that this crate creates, and the maximum time of package files.
const EPOCH: u64 = 1_577_836_800;
/// Version of the output. It changes when the same packages produce other bytes.
pub(crate) const FORMAT: u32 = 1;
/// The maximum size of the certificates held in memory, in bytes.
const MAX_CERTIFICATES: usize = 16 << 20;
const BLOCK: usize = 512;

/// Writes the root file system of these packages.
pub(crate) fn merge(packages: &[(&Package, File)], out: impl Write, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    let total = packages.iter().map(|(package, _)| package.size).sum();
    let mut merger = Merger { out, tree: Tree::default(), certificates: BTreeMap::new(), certificate_bytes: 0 };
    let mut status = String::new();
    let mut done = 0;
    merger.begin()?;
    for (number, (package, file)) in packages.iter().enumerate() {
        progress(Progress::Writing { package: package.name.clone(), done, total });
        status.push_str(&stanza(package, file)?);
        reader::files(&package.name, file, |entry| merger.add(&package.name, Origin::Package(number), entry))?;
        done += package.size;
    }
    merger.end(&status)?;
    if let Some((last, _)) = packages.last() {
        progress(Progress::Writing { package: last.name.clone(), done, total });
    }
    Ok(())
}

fn stanza(package: &Package, file: &File) -> Result<String> {
    let control = reader::control(&package.name, file)?;
    let claims = [("Package", &package.name), ("Version", &package.version), ("Architecture", &package.architecture)];
    for (field, expected) in claims {
        let found = control.field(field).unwrap_or_default();
        if found != expected {
            return Err(bad_package(&package.name, format!("its {field} is '{found}', not '{expected}'")));
        }
    }
    Ok(control.installed())
}

struct Merger<W> {
    out: W,
    tree: Tree,
    certificates: BTreeMap<Vec<u8>, Vec<u8>>,
    certificate_bytes: usize,
}

/// The metadata of a header, without the name.
#[derive(Clone, Copy)]
struct Meta {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: u64,
}

impl Meta {
    fn ours(mode: u32) -> Self {
        Self { mode, uid: 0, gid: 0, mtime: EPOCH }
    }
}

impl<W: Write> Merger<W> {
    fn begin(&mut self) -> Result<()> {
        for (path, mode) in skeleton::DIRECTORIES {
            self.our_directory(path, *mode)?;
        }
        for (path, target) in skeleton::LINKS {
            self.our_link(path, target)?;
        }
        for (path, text) in skeleton::FILES {
            self.our_file(path, text.as_bytes())?;
        }
        Ok(())
    }

    fn end(&mut self, status: &str) -> Result<()> {
        self.our_file("var/lib/dpkg/status", status.as_bytes())?;
        let has_certificates = !self.certificates.is_empty() && !self.tree.has(finish::BUNDLE);
        for (path, target) in finish::links(&self.tree, has_certificates) {
            self.our_link(&path, &target)?;
        }
        if has_certificates {
            let bundle = finish::bundle(&self.certificates);
            self.our_file(finish::BUNDLE, &bundle)?;
        }
        self.write_all(&[0; 2 * BLOCK])?;
        self.out.flush().map_err(io("write", OUTPUT))
    }

    fn our_directory(&mut self, path: &str, mode: u32) -> Result<()> {
        let path = GuestPath::ours(path);
        let inserted = self.tree.directory(&path).map_err(|reason| bad_package(OURS, reason))?;
        self.parents(&inserted)?;
        self.header(&path, EntryType::Directory, Meta::ours(mode), None, 0)
    }

    fn our_link(&mut self, path: &str, target: &str) -> Result<()> {
        let path = GuestPath::ours(path);
        let inserted = self.tree.symlink(&path, target.as_bytes(), Origin::Ours);
        self.parents(&inserted.map_err(|reason| bad_package(OURS, reason))?)?;
        self.header(&path, EntryType::Symlink, Meta::ours(0o777), Some(target.as_bytes()), 0)
    }

    fn our_file(&mut self, path: &str, contents: &[u8]) -> Result<()> {
        let path = GuestPath::ours(path);
        let inserted = self.tree.file(&path, Origin::Ours).map_err(|reason| bad_package(OURS, reason))?;
        self.parents(&inserted)?;
        self.header(&path, EntryType::Regular, Meta::ours(0o644), None, contents.len() as u64)?;
        self.data(OURS, contents.len() as u64, &mut &*contents)
    }

    fn parents(&mut self, inserted: &Inserted) -> Result<()> {
        let Inserted::New(missing) = inserted else { return Ok(()) };
        missing.iter().try_for_each(|path| self.header(path, EntryType::Directory, Meta::ours(0o755), None, 0))
    }

    fn add(&mut self, package: &str, origin: Origin, entry: Entry<'_, impl Read>) -> Result<()> {
        let Entry { path, kind, mode, uid, gid, mtime, size, data } = entry;
        let is_directory = kind == Kind::Directory;
        if path.is_left_out(is_directory, matches!(kind, Kind::Symlink(_))) {
            return Ok(());
        }
        let refuse = |reason: String| bad_package(package, reason);
        if !is_directory && skeleton::EMPTY.iter().any(|directory| path.is_within(directory)) {
            return Err(refuse(format!("{path} is in a directory where only directories are allowed")));
        }
        let inserted = match &kind {
            Kind::Directory => self.tree.directory(&path),
            Kind::File => self.tree.file(&path, origin),
            Kind::Symlink(target) => self.tree.symlink(&path, target, origin),
            Kind::HardLink(to) => self.tree.hard_link(&path, to, origin),
        };
        let inserted = inserted.map_err(refuse)?;
        if inserted == Inserted::Existing {
            return Ok(());
        }
        self.parents(&inserted)?;
        // Drop setuid and setgid. Keep the sticky bit only where it has an effect.
        let mode = mode & if is_directory { 0o1777 } else { 0o777 };
        let meta = Meta { mode, uid, gid, mtime: mtime.min(EPOCH) };
        match &kind {
            Kind::Directory => self.header(&path, EntryType::Directory, meta, None, 0),
            Kind::Symlink(target) => self.header(&path, EntryType::Symlink, meta, Some(target), 0),
            Kind::HardLink(to) => self.header(&path, EntryType::Link, meta, Some(to.as_bytes()), 0),
            Kind::File if path.is_within(finish::CERTIFICATES) && path.as_bytes().ends_with(b".crt") => {
                let certificate = self.certificate(package, size, data)?;
                self.header(&path, EntryType::Regular, meta, None, size)?;
                self.data(package, size, &mut &*certificate)?;
                self.certificates.insert(path.as_bytes().to_vec(), certificate);
                Ok(())
            }
            Kind::File => {
                self.header(&path, EntryType::Regular, meta, None, size)?;
                self.data(package, size, data)
            }
        }
    }

    fn certificate(&mut self, package: &str, size: u64, data: &mut impl Read) -> Result<Vec<u8>> {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        self.certificate_bytes = self.certificate_bytes.saturating_add(size);
        if self.certificate_bytes > MAX_CERTIFICATES {
            return Err(bad_package(package, "it has too many certificates"));
        }
        let mut certificate = Vec::new();
        data.read_to_end(&mut certificate).map_err(|error| bad_package(package, error.to_string()))?;
        Ok(certificate)
    }

    fn header(&mut self, path: &GuestPath, kind: EntryType, meta: Meta, link: Option<&[u8]>, size: u64) -> Result<()> {
        let mut name = path.as_bytes().to_vec();
        if kind == EntryType::Directory {
            name.push(b'/');
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(meta.mode);
        header.set_uid(meta.uid.into());
        header.set_gid(meta.gid.into());
        header.set_mtime(meta.mtime);
        header.set_size(size);
        self.long(&name, EntryType::GNULongName)?;
        self.long(link.unwrap_or_default(), EntryType::GNULongLink)?;
        if let Some(fields) = header.as_gnu_mut() {
            fill(&mut fields.name, &name);
            fill(&mut fields.linkname, link.unwrap_or_default());
        }
        header.set_cksum();
        self.write_all(header.as_bytes())
    }

    /// Writes an entry with a name that does not fit into a header.
    fn long(&mut self, name: &[u8], kind: EntryType) -> Result<()> {
        if name.len() <= 100 {
            return Ok(());
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(name.len() as u64 + 1);
        if let Some(fields) = header.as_gnu_mut() {
            fill(&mut fields.name, b"././@LongLink");
        }
        header.set_cksum();
        self.write_all(header.as_bytes())?;
        let name = [name, b"\0"].concat();
        self.data(OURS, name.len() as u64, &mut &*name)
    }

    /// Copies exactly `size` bytes and pads the last block.
    fn data(&mut self, package: &str, size: u64, from: &mut impl Read) -> Result<()> {
        let mut piece = [0; 1 << 16];
        let mut left = size;
        while left > 0 {
            let max = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            let read = from.read(&mut piece[..max]).map_err(|error| bad_package(package, error.to_string()))?;
            if read == 0 {
                return Err(bad_package(package, "it is truncated"));
            }
            self.write_all(&piece[..read])?;
            left -= read as u64;
        }
        let over = usize::try_from(size % BLOCK as u64).unwrap_or_default();
        self.write_all(&[0; BLOCK][..(BLOCK - over) % BLOCK])
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(io("write", OUTPUT))
    }
}

/// Stands for a package in errors about files that this crate adds.
const OURS: &str = "(added by Cofferdam)";
const OUTPUT: &str = "the root file system's tar";

fn fill(field: &mut [u8; 100], bytes: &[u8]) {
    let length = bytes.len().min(100);
    field[..length].copy_from_slice(&bytes[..length]);
}
