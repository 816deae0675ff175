//! Reads packages through `dpkg-deb`, which supports all formats of the host's packages.

use std::borrow::Cow;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::process::{ChildStdout, Stdio};

use tar::EntryType;

use super::control::{Control, MAX_CONTROL};
use super::error::{DebianError, Result, bad_package, io};
use super::path::GuestPath;
use super::run;

const TOOL: &str = "dpkg-deb";
/// The maximum length of a name that is read before it is checked.
const MAX_NAME: u64 = 4096;
/// The maximum number of entries of one package, and the maximum size of all its files.
const MAX_ENTRIES: usize = 1 << 20;
const MAX_BYTES: u64 = 8 << 30;

/// The kind of an entry. All others are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
    Symlink(Vec<u8>),
    HardLink(GuestPath),
}

/// An entry, with its path in the root file system.
#[derive(Debug)]
pub(crate) struct Entry<'a, R: Read> {
    pub(crate) path: GuestPath,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: u64,
    pub(crate) size: u64,
    pub(crate) data: &'a mut R,
}

/// A part of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Files,
    Control,
}

type Tarred<'a> = tar::Entry<'a, ChildStdout>;

/// Calls `each` with every entry among the package's files, in the package's order.
pub(crate) fn files(
    package: &str,
    file: &File,
    mut each: impl FnMut(Entry<'_, Tarred<'_>>) -> Result<()>,
) -> Result<()> {
    read(package, file, Part::Files, &mut each)
}

/// Reads the package's control file.
pub(crate) fn control(package: &str, file: &File) -> Result<Control> {
    let mut found = None;
    read(package, file, Part::Control, &mut |entry| {
        if entry.kind == Kind::File && entry.path.as_bytes() == b"control" {
            if entry.size > MAX_CONTROL {
                return Err(bad_package(package, "its control file is too long"));
            }
            let mut bytes = Vec::new();
            entry.data.read_to_end(&mut bytes).map_err(|error| bad_package(package, error.to_string()))?;
            found = Some(Control::parse(&bytes, package)?);
        }
        Ok(())
    })?;
    found.ok_or_else(|| bad_package(package, "it has no control file"))
}

fn read(
    package: &str,
    file: &File,
    part: Part,
    each: &mut dyn FnMut(Entry<'_, Tarred<'_>>) -> Result<()>,
) -> Result<()> {
    let option = match part {
        Part::Files => "--fsys-tarfile",
        Part::Control => "--ctrl-tarfile",
    };
    let mut stderr = run::nameless()?;
    let copy = |file: &File| file.try_clone().map_err(io("copy a descriptor for", TOOL));
    let mut command = run::command(TOOL)?;
    // Through the descriptor that was hashed, because another file could get the name.
    command.arg(option).arg("/dev/stdin").stdin(copy(file)?).stdout(Stdio::piped()).stderr(copy(&stderr)?);
    // One thread, because each needs memory for a whole block.
    command.env("LC_ALL", "C").env("DPKG_DEB_THREADS_MAX", "1");
    let mut running = run::start(&mut command, TOOL)?;
    let Some(stdout) = running.child.stdout.take() else { return Err(bad_package(package, "it cannot be read")) };
    let mut archive = tar::Archive::new(stdout);
    let result = entries(package, &mut archive, each);
    let mut rest = archive.into_inner();
    if result.is_ok() {
        // Padding. dpkg-deb reports a failed write in its status.
        let _ = std::io::copy(&mut rest, &mut std::io::sink());
    }
    drop(rest);
    let status = running.child.wait().map_err(io("wait for", TOOL))?;
    match result {
        Err(Stop::Refused(error)) => Err(error),
        // dpkg-deb's message about a damaged package is better than what its output shows.
        _ if !status.success() => {
            let message = run::printed(&mut stderr);
            if message.contains("Cannot allocate memory") {
                // The package is not the cause.
                return Err(io("read, with too little memory, the package", package)(ErrorKind::OutOfMemory.into()));
            }
            Err(bad_package(package, format!("dpkg-deb cannot read it ({status}): {}", message.trim())))
        }
        Err(Stop::Unreadable(reason)) => Err(bad_package(package, reason)),
        Ok(()) => Ok(()),
    }
}

/// A reason to end reading early.
enum Stop {
    /// This crate refused the package.
    Refused(DebianError),
    /// The archive is damaged, or has a format that packages do not have.
    Unreadable(String),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Unreadable(error.to_string())
    }
}

fn entries(
    package: &str,
    archive: &mut tar::Archive<ChildStdout>,
    each: &mut dyn FnMut(Entry<'_, Tarred<'_>>) -> Result<()>,
) -> Result<(), Stop> {
    let (mut long_name, mut long_link) = (None, None);
    let mut bytes = 0_u64;
    // Raw entries, so that a name of a gigabyte is checked before it is read into memory.
    for (number, entry) in archive.entries()?.raw(true).enumerate() {
        let mut entry = entry?;
        match entry.header().entry_type() {
            EntryType::GNULongName => long_name = Some(long(&mut entry)?),
            EntryType::GNULongLink => long_link = Some(long(&mut entry)?),
            _ => {
                let name = long_name.take().unwrap_or_else(|| entry.header().path_bytes().into_owned());
                let link = long_link.take().or_else(|| entry.header().link_name_bytes().map(Cow::into_owned));
                let described = describe(&mut entry, &name, link).map_err(|reason| {
                    let name = name.escape_ascii();
                    Stop::Refused(bad_package(package, format!("{reason} ({name})")))
                })?;
                bytes = bytes.saturating_add(described.size);
                if number > MAX_ENTRIES || bytes > MAX_BYTES {
                    return Err(Stop::Refused(bad_package(package, "it has more entries or bytes than allowed")));
                }
                each(described).map_err(Stop::Refused)?;
            }
        }
    }
    Ok(())
}

/// Reads a name that did not fit into its header.
fn long(entry: &mut Tarred<'_>) -> Result<Vec<u8>, Stop> {
    if entry.size() > MAX_NAME {
        return Err(Stop::Unreadable("a name in it is longer than Linux allows".to_owned()));
    }
    let mut name = Vec::new();
    entry.read_to_end(&mut name)?;
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

fn describe<'a, 'b>(
    entry: &'a mut Tarred<'b>,
    name: &[u8],
    link: Option<Vec<u8>>,
) -> Result<Entry<'a, Tarred<'b>>, String> {
    let mut path = GuestPath::parse(name)?;
    let header = entry.header();
    let unread = |error: std::io::Error| error.to_string();
    let target = || link.clone().filter(|target| !target.is_empty()).ok_or("a link has no target");
    let kind = match header.entry_type() {
        EntryType::Regular => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink(target()?),
        EntryType::Link => Kind::HardLink(GuestPath::parse(&target()?)?.merged()),
        EntryType::Char | EntryType::Block => return Err("it contains a device".to_owned()),
        EntryType::Fifo => return Err("it contains a named pipe".to_owned()),
        other => return Err(format!("it contains an entry of unknown kind {:#x}", other.as_byte())),
    };
    let id = |id: u64| u32::try_from(id).ok().filter(|id| *id <= 0xffff).ok_or("a file has an invalid owner");
    let (uid, gid) = (id(header.uid().map_err(unread)?)?, id(header.gid().map_err(unread)?)?);
    let (mode, mtime) = (header.mode().map_err(unread)?, header.mtime().map_err(unread)?);
    let size = header.size().map_err(unread)?;
    if size != 0 && kind != Kind::File {
        return Err("an entry that is not a file has contents".to_owned());
    }
    if matches!(&kind, Kind::Symlink(target) if target.len() > 4095 || target.contains(&0)) {
        return Err("a link has an invalid target".to_owned());
    }
    match &kind {
        // A package may contain the same link, but not another one.
        Kind::Symlink(target) if path.is_merged() => {
            let plain = target.strip_prefix(b"/").unwrap_or(target);
            if plain.strip_prefix(b"usr/") != Some(path.as_bytes()) {
                return Err("a directory of programs or libraries is a link to elsewhere".to_owned());
            }
            return Ok(Entry { path, kind: Kind::Symlink(plain.to_vec()), mode, uid, gid, mtime, size, data: entry });
        }
        _ => path = path.merged(),
    }
    Ok(Entry { path, kind, mode, uid, gid, mtime, size, data: entry })
}
