//! The constants of WASI preview 1, as its witx files define them.

use crate::fs::{FsError, Kind};
use crate::termination::Termination;

/// The error code of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Errno {
    Badf = 8,
    Exist = 20,
    Fault = 21,
    Fbig = 22,
    Ilseq = 25,
    Inval = 28,
    Io = 29,
    Isdir = 31,
    Loop = 32,
    Mfile = 33,
    Nametoolong = 37,
    Noent = 44,
    Nomem = 48,
    Nospc = 51,
    Notdir = 54,
    Notempty = 55,
    Notsock = 57,
    Notsup = 58,
    Overflow = 61,
    Perm = 63,
    Rofs = 69,
    Spipe = 70,
}

impl From<FsError> for Errno {
    fn from(error: FsError) -> Self {
        match error {
            FsError::NotFound => Self::Noent,
            FsError::NotADirectory => Self::Notdir,
            FsError::IsADirectory => Self::Isdir,
            FsError::NotEmpty => Self::Notempty,
            FsError::Exists => Self::Exist,
            FsError::Escape | FsError::NotPermitted => Self::Perm,
            FsError::TooManyLinks => Self::Loop,
            FsError::NameTooLong => Self::Nametoolong,
            FsError::Full | FsError::TooManyFiles => Self::Nospc,
            FsError::NoMemory => Self::Nomem,
            FsError::TooLarge => Self::Fbig,
            FsError::Invalid => Self::Inval,
        }
    }
}

/// The reason for which a call failed.
#[derive(Debug)]
pub(crate) enum Stop {
    /// An error code that is returned to the guest.
    Errno(Errno),
    /// The termination of the guest.
    End(Termination),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Self {
        Self::Errno(error.into())
    }
}

impl From<Termination> for Stop {
    fn from(termination: Termination) -> Self {
        Self::End(termination)
    }
}

pub(crate) type Answer<T = ()> = Result<T, Stop>;

pub(crate) const UNKNOWN: u8 = 0;
pub(crate) const DIRECTORY: u8 = 3;
pub(crate) const REGULAR_FILE: u8 = 4;
pub(crate) const SYMBOLIC_LINK: u8 = 7;

pub(crate) fn filetype(kind: Kind) -> u8 {
    match kind {
        Kind::File => REGULAR_FILE,
        Kind::Directory => DIRECTORY,
        Kind::Symlink => SYMBOLIC_LINK,
    }
}

pub(crate) mod rights {
    pub(crate) const FD_READ: u64 = 1 << 1;
    pub(crate) const FD_SEEK: u64 = 1 << 2;
    pub(crate) const FD_FDSTAT_SET_FLAGS: u64 = 1 << 3;
    pub(crate) const FD_TELL: u64 = 1 << 5;
    pub(crate) const FD_WRITE: u64 = 1 << 6;
    pub(crate) const FD_ALLOCATE: u64 = 1 << 8;
    pub(crate) const FD_FILESTAT_GET: u64 = 1 << 21;
    pub(crate) const FD_FILESTAT_SET_SIZE: u64 = 1 << 22;
    pub(crate) const POLL_FD_READWRITE: u64 = 1 << 27;
    /// All rights of a file.
    pub(crate) const FILE: u64 = 0x08E0_01FF;
    /// All rights of a directory, without the right to set sizes by path: programs that request it then try to drop it.
    /// A file can be truncated when it is opened in any case.
    pub(crate) const DIRECTORY: u64 = 0x0FB7_FE18;
}

pub(crate) mod oflags {
    pub(crate) const CREAT: u32 = 1;
    pub(crate) const DIRECTORY: u32 = 2;
    pub(crate) const EXCL: u32 = 4;
    pub(crate) const TRUNC: u32 = 8;
    pub(crate) const ALL: u32 = 15;
}

pub(crate) mod fdflags {
    pub(crate) const APPEND: u32 = 1;
    pub(crate) const ALL: u32 = 31;
}

pub(crate) mod fstflags {
    pub(crate) const ATIM: u32 = 1;
    pub(crate) const ATIM_NOW: u32 = 2;
    pub(crate) const MTIM: u32 = 4;
    pub(crate) const MTIM_NOW: u32 = 8;
}

pub(crate) const SYMLINK_FOLLOW: u32 = 1;
pub(crate) const CLOCK_REALTIME: u32 = 0;
pub(crate) const CLOCK_MONOTONIC: u32 = 1;
pub(crate) const CLOCK_PROCESS_CPU: u32 = 2;
pub(crate) const CLOCK_THREAD_CPU: u32 = 3;
