//! Properties of a whole change set, in the global extended header of its tar.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::bounds::MAX_PATH;
use crate::error::{Result, io, malformed};
use crate::pax;

/// Version of the format.
pub const FORMAT: u32 = 1;
const KEY_FORMAT: &str = "COFFERDAM.format";
const KEY_WORKSPACE: &str = "COFFERDAM.workspace";
const KEY_STARTED: &str = "COFFERDAM.started";
const KEY_DEVICE: &str = "COFFERDAM.device";
const KEY_INODE: &str = "COFFERDAM.inode";

/// Properties of a whole change set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Absolute path of the workspace on the host.
    pub workspace: PathBuf,
    /// Time at which the sandbox began, in nanoseconds since the epoch. A file of the workspace that changed at or
    /// after this time is a conflict. Take it from a file's ctime, or some milliseconds early: the clock of file
    /// systems is late by up to a tick.
    pub started: i64,
    /// Device of the workspace.
    pub device: u64,
    /// Inode of the workspace.
    pub inode: u64,
}

impl Header {
    /// Creates the header for an opened workspace.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn of(workspace: &Path, directory: BorrowedFd<'_>, started: i64) -> Result<Self> {
        let stat = rustix::fs::fstat(directory).map_err(io("inspect", workspace))?;
        Ok(Self { workspace: workspace.to_owned(), started, device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns true if an opened directory is the workspace.
    ///
    /// # Errors
    ///
    /// Those of the operating system.
    pub fn is_of(&self, directory: BorrowedFd<'_>) -> Result<bool> {
        let stat = rustix::fs::fstat(directory).map_err(io("inspect", &self.workspace))?;
        Ok((stat.st_dev, stat.st_ino) == (self.device, self.inode))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        pax::push(&mut bytes, KEY_FORMAT, FORMAT.to_string().as_bytes());
        pax::push(&mut bytes, KEY_WORKSPACE, self.workspace.as_os_str().as_bytes());
        pax::push(&mut bytes, KEY_STARTED, self.started.to_string().as_bytes());
        pax::push(&mut bytes, KEY_DEVICE, self.device.to_string().as_bytes());
        pax::push(&mut bytes, KEY_INODE, self.inode.to_string().as_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong = |reason: &str| malformed(b"global header", reason);
        let records = pax::parse(bytes).map_err(wrong)?;
        let text = |key| records.iter().find(|(found, _)| *found == key).map(|(_, value)| *value);
        if number::<u32>(text(KEY_FORMAT)) != Some(FORMAT) {
            return Err(wrong("it has no known format version; use the version of this program that wrote it"));
        }
        let workspace = text(KEY_WORKSPACE)
            .filter(|path| path.first() == Some(&b'/') && path.len() <= MAX_PATH && !path.contains(&0));
        let found = || {
            Some(Self {
                workspace: PathBuf::from(OsStr::from_bytes(workspace?)),
                started: number(text(KEY_STARTED))?,
                device: number(text(KEY_DEVICE))?,
                inode: number(text(KEY_INODE))?,
            })
        };
        found().ok_or_else(|| wrong("a property of the workspace is missing or invalid"))
    }
}

fn number<T: FromStr>(bytes: Option<&[u8]>) -> Option<T> {
    std::str::from_utf8(bytes?).ok()?.parse().ok()
}
