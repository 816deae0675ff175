//! The errors of this crate, and their conversion to errors of the contract.

use std::time::Duration;

use cofferdam_contract::{ByteSize, Error, ErrorKind, Fault, Retry};
use thiserror::Error as ThisError;

/// An invalid configuration.
#[derive(Debug, ThisError)]
pub enum ConfigError {
    #[error("the interpreter's command is empty")]
    NoCommand,
    #[error("at most {max} modules can be imported in advance")]
    TooManyModules { max: usize },
    #[error("'{}' is not a module name", name.escape_debug())]
    BadModule { name: String },
    #[error("the warm limit must be greater than 0, and the lifetime must be longer than it and at most {max:?}")]
    BadTime { max: Duration },
    #[error("max_output must be at most {max}")]
    TooMuchOutput { max: ByteSize },
}

/// A failure of the warm-up.
#[derive(Debug, ThisError)]
pub enum WarmError {
    #[error("{reason}")]
    Missing { reason: String },
    #[error("{reason}")]
    Failed { reason: String },
    #[error("{reason}")]
    NoIsolation { reason: String },
    #[error("the interpreter ended before it was ready ({how})")]
    Ended { how: String },
    #[error("the interpreter was not ready in time")]
    TimedOut,
    #[error("the modules print more than {max} while they are imported")]
    OutputTooLarge { max: ByteSize },
    #[error("the backend provides no standard input for the interpreter")]
    NoStdin,
}

/// A reason why a request needs a cold start.
#[derive(Debug, ThisError)]
pub enum Mismatch {
    #[error("the request is for a different interpreter")]
    OtherCommand,
    #[error("options between the interpreter and its file cannot change after the interpreter has started")]
    Options,
    #[error("a prepared interpreter has no terminal")]
    Terminal,
    #[error("the variable '{}' is only read when an interpreter starts", name.escape_debug())]
    StartupVariable { name: String },
    #[error("the request's max_output is more than the {max} of the prepared interpreter")]
    Output { max: ByteSize },
    #[error("this type of file needs a cold start")]
    FileKind,
}

/// A failure to start a request.
#[derive(Debug, ThisError)]
pub enum StartError {
    #[error("the prepared interpreter has exited")]
    Gone,
    #[error("the prepared interpreter does not answer")]
    Unresponsive,
    #[error("the lifetime of the prepared interpreter ends before the request's timeout")]
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
    /// Converts the error, and adds the end of the interpreter's output as context.
    pub fn into_error(self, printed: &str) -> Error {
        let message = self.to_string();
        let error = match self {
            Self::Failed { .. } => Error::invalid("warm", message),
            Self::Missing { .. } => Error::new(ErrorKind::NotFound, "warm", message)
                .with_remedy("install the module inside the sandbox, or remove it from the list"),
            Self::OutputTooLarge { .. } => {
                Error::new(ErrorKind::ResourceExhausted, "warm", message).with_fault(Fault::Caller)
            }
            Self::Ended { .. } | Self::TimedOut => Error::new(ErrorKind::Unavailable, "warm", message)
                .with_remedy("check that the sandbox's limits suffice for the interpreter and its modules"),
            Self::NoStdin => Error::unsupported("warm", message),
            Self::NoIsolation { .. } => {
                Error::unsupported("warm", message).with_remedy("use a WarmInterpreter; each has a sandbox of its own")
            }
        };
        if printed.is_empty() { error } else { error.with_context("printed", printed.escape_debug().to_string()) }
    }
}

impl From<Mismatch> for Error {
    fn from(error: Mismatch) -> Self {
        Self::unsupported("start", error.to_string())
            .with_remedy("use a cold start with Sandbox::start, which accepts every request")
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Self {
        let message = error.to_string();
        match error {
            StartError::Gone | StartError::Unresponsive | StartError::TooOld => {
                Self::new(ErrorKind::Unavailable, "start", message)
                    .with_retry(Retry::MayHelp)
                    .with_remedy("prepare another interpreter, or use a cold start")
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
