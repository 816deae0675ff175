//! This crate's failures, and what they are in the contract's words.

use std::time::Duration;

use cofferdam_contract::{ByteSize, Error, ErrorKind, Fault, Retry};
use thiserror::Error as ThisError;

/// Why a configuration is refused.
#[derive(Debug, ThisError)]
pub enum ConfigError {
    #[error("the interpreter's command is empty")]
    NoCommand,
    #[error("at most {most} modules can be imported beforehand")]
    TooManyModules { most: usize },
    #[error("'{}' is not the name of a module", name.escape_debug())]
    BadModule { name: String },
    #[error("the warm limit must be above 0, and the lifetime longer than it and at most {most:?}")]
    BadTime { most: Duration },
    #[error("most_output is at most {most}")]
    TooMuchOutput { most: ByteSize },
}

/// Why an interpreter did not become warm.
#[derive(Debug, ThisError)]
pub enum WarmError {
    #[error("{reason}")]
    Missing { reason: String },
    #[error("{reason}")]
    Failed { reason: String },
    #[error("{reason}")]
    NoWall { reason: String },
    #[error("the interpreter ended before it was ready ({how})")]
    Ended { how: String },
    #[error("the interpreter was not ready in time")]
    TooSlow,
    #[error("what the modules print while they are imported is more than {most}")]
    TooLoud { most: ByteSize },
    #[error("the backend gave no standard input for the interpreter")]
    NoStdin,
}

/// Why a request has to start cold.
#[derive(Debug, ThisError)]
pub enum Mismatch {
    #[error("the request is not for the interpreter that waits")]
    OtherCommand,
    #[error("options between the interpreter and its file are decided when the interpreter starts")]
    Options,
    #[error("a waiting interpreter has no terminal")]
    Terminal,
    #[error("the variable '{}' counts when an interpreter starts, and this one has started", name.escape_debug())]
    StartupVariable { name: String },
    #[error("the request's maximum of output is more than the {most} that the interpreter was started with")]
    Output { most: ByteSize },
    #[error("this kind of file is run from cold only")]
    FileKind,
}

/// Why a request was not started.
#[derive(Debug, ThisError)]
pub enum StartError {
    #[error("the waiting interpreter is gone")]
    Gone,
    #[error("the waiting interpreter does not answer")]
    Silent,
    #[error("the waiting interpreter's lifetime ends before the request's time-out")]
    TooOld,
    #[error("cannot enter the working directory '{}'", path.escape_debug())]
    Directory { path: String, errno: i32 },
    #[error("the script cannot be stored in the sandbox")]
    Store { errno: i32 },
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::invalid("warm", error.to_string())
    }
}

impl WarmError {
    /// The contract's error, with the end of what the interpreter printed.
    pub fn into_error(self, printed: &str) -> Error {
        let message = self.to_string();
        let error = match self {
            Self::Failed { .. } => Error::invalid("warm", message),
            Self::Missing { .. } => Error::new(ErrorKind::NotFound, "warm", message)
                .with_remedy("install the module where the sandbox sees it, or take it off the list"),
            Self::TooLoud { .. } => Error::new(ErrorKind::ResourceExhausted, "warm", message).with_fault(Fault::Caller),
            Self::Ended { .. } | Self::TooSlow => Error::new(ErrorKind::Unavailable, "warm", message)
                .with_remedy("are the sandbox's limits wide enough for the interpreter and its modules?"),
            Self::NoStdin => Error::unsupported("warm", message),
            Self::NoWall { .. } => Error::unsupported("warm", message)
                .with_remedy("use a WaitingInterpreter: each has a sandbox of its own"),
        };
        if printed.is_empty() { error } else { error.with_context("printed", printed.escape_debug().to_string()) }
    }
}

impl From<Mismatch> for Error {
    fn from(error: Mismatch) -> Self {
        Self::unsupported("start", error.to_string()).with_remedy("start it cold: Sandbox::start takes every request")
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Self {
        let message = error.to_string();
        match error {
            StartError::Gone | StartError::Silent | StartError::TooOld => {
                Self::new(ErrorKind::Unavailable, "start", message)
                    .with_retry(Retry::MayHelp)
                    .with_remedy("warm another one, or start the request cold")
            }
            StartError::Directory { errno, .. } => {
                Self::invalid("start", message).with_source(std::io::Error::from_raw_os_error(errno))
            }
            StartError::Store { errno } => {
                let kind = if errno == NO_SPACE { ErrorKind::ResourceExhausted } else { ErrorKind::Io };
                Self::new(kind, "start", message).with_source(std::io::Error::from_raw_os_error(errno))
            }
        }
    }
}

const NO_SPACE: i32 = 28;
