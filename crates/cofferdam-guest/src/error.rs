//! Conversion of failures to errors of the contract.

use std::io;

use cofferdam_contract::{Error, ErrorKind, Fault, Retry};

use crate::settings::Termination;
use crate::wire::{NotStarted, Step};

/// Linux error numbers that have a message of their own.
mod errno {
    pub const PERM: i32 = 1;
    pub const NOENT: i32 = 2;
    pub const AGAIN: i32 = 11;
    pub const ACCES: i32 = 13;
    pub const BUSY: i32 = 16;
    pub const EXIST: i32 = 17;
    pub const XDEV: i32 = 18;
    pub const NOTDIR: i32 = 20;
    pub const ISDIR: i32 = 21;
    pub const INVAL: i32 = 22;
    pub const MFILE: i32 = 24;
    pub const FBIG: i32 = 27;
    pub const NOSPC: i32 = 28;
    pub const ROFS: i32 = 30;
    pub const NAMETOOLONG: i32 = 36;
    pub const NOTEMPTY: i32 = 39;
    pub const LOOP: i32 = 40;
    pub const NOTUNIQ: i32 = 76;
    pub const DQUOT: i32 = 122;
}

const S_IFMT: u32 = 0o170_000;

/// Creates the error for an operation after the connection has ended.
pub fn ended(operation: &'static str, termination: Option<&Termination>) -> Error {
    let Some(termination) = termination else { return Error::closed(operation) };
    Error::new(ErrorKind::Closed, operation, format!("the sandbox ended by itself: {}", termination.why))
        .with_fault(Fault::Host)
        .with_retry(Retry::MayHelp)
        .with_remedy(termination.remedy.clone().unwrap_or_else(|| "create another sandbox".to_owned()))
}

/// Creates the error for an agent that does not answer in time.
pub fn silent(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the agent in the sandbox did not answer in time")
        .with_remedy("the host may be overloaded, or another program may have stopped the sandbox")
}

/// Creates the error for an operation on a paused sandbox.
pub fn paused(operation: &'static str) -> Error {
    Error::new(ErrorKind::Conflict, operation, "the sandbox is paused").with_remedy("resume it first")
}

/// Creates the error for a failed request about files.
pub fn file(operation: &'static str, path: impl Into<String>, number: i32, kind: u32) -> Error {
    if kind != 0 {
        return not_plain(operation, path, kind);
    }
    let (kind, message) = match number {
        errno::NOTUNIQ => (ErrorKind::Conflict, "the target is in another file system"),
        errno::INVAL if operation == "rename" => (ErrorKind::InvalidInput, "a directory cannot be moved into itself"),
        errno::XDEV | errno::LOOP => (ErrorKind::PathEscape, "the path leads outside the workspace or in a circle"),
        errno::NOENT => (ErrorKind::NotFound, "there is no such file or directory"),
        errno::NOTDIR => (ErrorKind::Conflict, "a part of the path is not a directory"),
        errno::ISDIR => (ErrorKind::Conflict, "it is a directory"),
        errno::NOTEMPTY | errno::EXIST | errno::AGAIN | errno::BUSY => {
            (ErrorKind::Conflict, "it is being changed at the same time")
        }
        errno::NOSPC | errno::DQUOT | errno::FBIG => (ErrorKind::ResourceExhausted, "the disk limit is reached"),
        errno::MFILE => (ErrorKind::ResourceExhausted, "too many files are open at the same time"),
        errno::ACCES | errno::PERM => (ErrorKind::Denied, "permission denied"),
        errno::ROFS => (ErrorKind::Denied, "it is read-only"),
        errno::NAMETOOLONG => (ErrorKind::InvalidInput, "a name or the path is too long"),
        _ => (ErrorKind::Io, "the file system refused"),
    };
    Error::new(kind, operation, message).with_context("path", path).with_source(io::Error::from_raw_os_error(number))
}

fn not_plain(operation: &'static str, path: impl Into<String>, kind: u32) -> Error {
    let what = match kind & S_IFMT {
        0o040_000 => "a directory",
        0o010_000 => "a fifo",
        0o140_000 => "a socket",
        0o020_000 | 0o060_000 => "a device",
        _ => "not a plain file",
    };
    Error::new(ErrorKind::Conflict, operation, format!("it is {what}, not a plain file")).with_context("path", path)
}

/// Creates the error for a program that could not be started.
pub fn not_started(failure: NotStarted, program: &str, directory: &str) -> Error {
    let program = program.escape_debug().to_string();
    let source = io::Error::from_raw_os_error(failure.errno);
    match (failure.step, failure.errno) {
        (Step::Execute, errno::NOENT) => {
            Error::new(ErrorKind::NotFound, "start", format!("'{program}' was not found in the sandbox")).with_remedy(
                "only the sandbox's own file system counts: see its image, its workspace and the PATH inside",
            )
        }
        (Step::Execute, _) => {
            Error::new(ErrorKind::NotExecutable, "start", format!("'{program}' cannot be executed")).with_source(source)
        }
        (Step::Directory, _) => Error::new(
            ErrorKind::InvalidInput,
            "start",
            format!("cannot enter the working directory '{}'", directory.escape_debug()),
        )
        .with_source(source),
        (Step::Fork, _) => {
            Error::new(ErrorKind::ResourceExhausted, "start", "no further process may be made in the sandbox")
                .with_remedy("end a process, or raise the limit with --pids")
                .with_source(source)
        }
        (Step::Prepare, _) => {
            Error::new(ErrorKind::Io, "start", "cannot prepare the program's descriptors").with_source(source)
        }
    }
}
