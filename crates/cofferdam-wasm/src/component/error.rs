//! What a call of a component answers when it does not do what was asked.

use std::io::{self, ErrorKind};

use wasmtime::component::ResourceTableError;

use super::bindings::filesystem::types::ErrorCode as FileError;
use super::bindings::io::streams::StreamError;
use super::bindings::sockets::network::ErrorCode as SocketError;
use crate::ending::{Ending, SIGABRT};
use crate::fs::FsError;

/// Why a call did not do what was asked.
#[derive(Debug)]
pub(crate) enum Fail<E> {
    /// The guest is told.
    Told(E),
    /// The guest goes no further.
    Ended(wasmtime::Error),
}

pub(crate) type FileFail = Fail<FileError>;
pub(crate) type StreamFail = Fail<StreamError>;
pub(crate) type SocketFail = Fail<SocketError>;

impl<E> Fail<E> {
    /// For the guest or, as an error, for the engine.
    pub(crate) fn told(self) -> wasmtime::Result<E> {
        match self {
            Self::Told(error) => Ok(error),
            Self::Ended(error) => Err(error),
        }
    }
}

impl<E> From<Ending> for Fail<E> {
    fn from(ending: Ending) -> Self {
        Self::Ended(wasmtime::Error::new(ending))
    }
}

impl<E> From<wasmtime::Error> for Fail<E> {
    fn from(error: wasmtime::Error) -> Self {
        Self::Ended(error)
    }
}

impl<E> From<ResourceTableError> for Fail<E> {
    fn from(error: ResourceTableError) -> Self {
        Self::Ended(misuse(error))
    }
}

impl From<FileError> for FileFail {
    fn from(error: FileError) -> Self {
        Self::Told(error)
    }
}

impl From<SocketError> for SocketFail {
    fn from(error: SocketError) -> Self {
        Self::Told(error)
    }
}

impl From<io::Error> for SocketFail {
    fn from(error: io::Error) -> Self {
        Self::Told(socket_code(&error))
    }
}

impl From<FsError> for FileFail {
    fn from(error: FsError) -> Self {
        Self::Told(code(error))
    }
}

/// An end of a guest that asks for what no correct one would.
pub(crate) fn trap(what: &'static str) -> wasmtime::Error {
    wasmtime::Error::new(Ending::Trapped { signal: SIGABRT, what })
}

/// A handle that leads to nothing, or one too many.
pub(crate) fn misuse(error: ResourceTableError) -> wasmtime::Error {
    match error {
        ResourceTableError::Full => trap("too many resources of the host"),
        _ => trap("a handle of no such resource"),
    }
}

/// An error of the host's sockets as the interface has it.
pub(crate) fn socket_code(error: &io::Error) -> SocketError {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => return SocketError::NewSocketLimit,
        Some(Errno::AFNOSUPPORT) => return SocketError::NotSupported,
        Some(Errno::NOBUFS) => return SocketError::OutOfMemory,
        _ => {}
    }
    match error.kind() {
        ErrorKind::PermissionDenied => SocketError::AccessDenied,
        ErrorKind::ConnectionRefused => SocketError::ConnectionRefused,
        ErrorKind::ConnectionReset => SocketError::ConnectionReset,
        ErrorKind::ConnectionAborted => SocketError::ConnectionAborted,
        ErrorKind::TimedOut => SocketError::Timeout,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => {
            SocketError::RemoteUnreachable
        }
        // Of the ports for connections there is none left.
        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable => SocketError::AddressInUse,
        ErrorKind::NotConnected => SocketError::InvalidState,
        ErrorKind::OutOfMemory => SocketError::OutOfMemory,
        _ => SocketError::Unknown,
    }
}

/// An error of the files as the interface has it.
pub(crate) fn code(error: FsError) -> FileError {
    match error {
        FsError::NotFound => FileError::NoEntry,
        FsError::NotADirectory => FileError::NotDirectory,
        FsError::IsADirectory => FileError::IsDirectory,
        FsError::NotEmpty => FileError::NotEmpty,
        FsError::Exists => FileError::Exist,
        FsError::Escape | FsError::NotPermitted => FileError::NotPermitted,
        FsError::TooManyLinks => FileError::Loop,
        FsError::NameTooLong => FileError::NameTooLong,
        FsError::Full | FsError::TooManyFiles => FileError::InsufficientSpace,
        FsError::NoMemory => FileError::InsufficientMemory,
        FsError::TooLarge => FileError::FileTooLarge,
        FsError::Invalid => FileError::Invalid,
    }
}
