//! Errors that calls return to a component.

use std::io::{self, ErrorKind};

use wasmtime::component::ResourceTableError;

use super::bindings::filesystem::types::ErrorCode as FileError;
use super::bindings::io::streams::StreamError;
use super::bindings::sockets::network::ErrorCode as SocketError;
use crate::fs::FsError;
use crate::termination::{SIGABRT, Termination};

/// An error of a host call.
#[derive(Debug)]
pub(crate) enum Fail<E> {
    /// An error code that is returned to the guest.
    Code(E),
    /// An error that ends the guest.
    Fatal(wasmtime::Error),
}

pub(crate) type FileFail = Fail<FileError>;
pub(crate) type StreamFail = Fail<StreamError>;
pub(crate) type SocketFail = Fail<SocketError>;

impl<E> Fail<E> {
    /// Returns the error for the guest or, as an error, the one for the engine.
    pub(crate) fn into_code(self) -> wasmtime::Result<E> {
        match self {
            Self::Code(error) => Ok(error),
            Self::Fatal(error) => Err(error),
        }
    }
}

impl<E> From<Termination> for Fail<E> {
    fn from(termination: Termination) -> Self {
        Self::Fatal(wasmtime::Error::new(termination))
    }
}

impl<E> From<wasmtime::Error> for Fail<E> {
    fn from(error: wasmtime::Error) -> Self {
        Self::Fatal(error)
    }
}

impl<E> From<ResourceTableError> for Fail<E> {
    fn from(error: ResourceTableError) -> Self {
        Self::Fatal(misuse(error))
    }
}

impl From<FileError> for FileFail {
    fn from(error: FileError) -> Self {
        Self::Code(error)
    }
}

impl From<SocketError> for SocketFail {
    fn from(error: SocketError) -> Self {
        Self::Code(error)
    }
}

impl From<io::Error> for SocketFail {
    fn from(error: io::Error) -> Self {
        Self::Code(socket_code(&error))
    }
}

impl From<FsError> for FileFail {
    fn from(error: FsError) -> Self {
        Self::Code(code(error))
    }
}

/// Returns the trap for a guest that breaks the interface's rules.
pub(crate) fn trap(what: &'static str) -> wasmtime::Error {
    wasmtime::Error::new(Termination::Trapped { signal: SIGABRT, what })
}

/// Returns the trap for an invalid handle, or for one too many.
pub(crate) fn misuse(error: ResourceTableError) -> wasmtime::Error {
    match error {
        ResourceTableError::Full => trap("too many host resources"),
        _ => trap("an invalid resource handle"),
    }
}

/// Converts an error of a host socket to the interface's error code.
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
        // No port for outgoing connections is free.
        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable => SocketError::AddressInUse,
        ErrorKind::NotConnected => SocketError::InvalidState,
        ErrorKind::OutOfMemory => SocketError::OutOfMemory,
        _ => SocketError::Unknown,
    }
}

/// Converts a file system error to the interface's error code.
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
