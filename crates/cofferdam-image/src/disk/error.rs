//! Errors of images, each with a remedy, and their conversion to errors of the contract.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_archive::ArchiveError;
use cofferdam_contract::{Error, ErrorKind, Fault, Retry};
use cofferdam_linux::named::UntrustedLink;
use cofferdam_linux::trust::Distrust;

use crate::debian::DebianError;
use crate::layer::LayerError;
use crate::store::StoreError;
use cofferdam_tree::TreeError;
use cofferdam_tree::tool::excerpt;

/// Result with [`ImageError`].
pub(crate) type Result<T, E = ImageError> = std::result::Result<T, E>;

/// An error of images.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A program of the host is missing.
    #[error("{tool} is not installed")]
    MissingTool {
        /// The program.
        tool: &'static str,
    },
    /// A program of the host failed.
    #[error("{tool} failed ({status}): {}", excerpt(output))]
    ToolFailed {
        /// The program.
        tool: &'static str,
        /// Its exit status.
        status: String,
        /// Its output.
        output: String,
    },
    /// Packages could not be downloaded or unpacked.
    #[error(transparent)]
    Debian(#[from] DebianError),
    /// The source of a kernel or of a root file system is unusable.
    #[error("{what}")]
    InvalidSource {
        /// The problem.
        what: String,
    },
    /// The caller named a directory that was replaced in the meantime.
    #[error("the directory {} is not the one that was named any more", path.display())]
    DirectoryReplaced {
        /// Its path.
        path: PathBuf,
    },
    /// An image would be larger than allowed.
    #[error("the root file system takes {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// Bytes of the image.
        bytes: u64,
        /// Maximum.
        max: u64,
    },
    /// A program, a cache or a directory above it can be changed by another user.
    #[error("not trusted: {0}")]
    Distrust(#[from] Distrust),
    /// The cache is also accessible to other users.
    #[error("the cache {} cannot be used: {reason}", path.display())]
    ExposedStore {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// Another process held the lock of the cache for too long.
    #[error("cannot lock {}: another process held it for {limit:?}", path.display())]
    LockTimeout {
        /// The lock.
        path: PathBuf,
        /// Time waited.
        limit: Duration,
    },
    /// The image is not built yet, and the caller did not ask to build it.
    #[error("no image of this kernel and root file system is built")]
    NotBuilt,
    /// No image has this name.
    #[error("there is no image {name:?}")]
    UnknownName {
        /// The name.
        name: String,
    },
    /// Another version of this program built the image, and its agent speaks another protocol version.
    #[error("another version of Cofferdam built the image {name:?}, and its agent speaks another protocol version")]
    Incompatible {
        /// The name.
        name: String,
    },
    /// An image with the same key and other contents exists.
    #[error("an image with the key {key} exists with other contents than the file's")]
    ContentsMismatch {
        /// The key of both.
        key: String,
    },
    /// Another image has the name.
    #[error("the image {name:?} exists, built from {about}, and would be replaced by one of {requested}")]
    NameTaken {
        /// The name.
        name: String,
        /// Source of the existing image.
        about: String,
        /// Source of the new image.
        requested: String,
    },
    /// An archive of an image could not be written or read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The store of container images failed.
    #[error(transparent)]
    Store(Box<StoreError>),
    /// The operating system refused an operation.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl From<TreeError> for ImageError {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::MissingTool { tool } => Self::MissingTool { tool },
            TreeError::ToolFailed { tool, status, output } => Self::ToolFailed { tool, status, output },
            TreeError::Distrust(distrust) => Self::Distrust(distrust),
            TreeError::TooLarge { bytes, max } => Self::TooLarge { bytes, max },
            TreeError::Io { operation, path, source } => Self::Io { operation, path, source },
            other => Self::InvalidSource { what: other.to_string() },
        }
    }
}

/// Converts an error of the operating system: `.map_err(io("read", path))`.
pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> ImageError {
    let path = path.into();
    move |source| ImageError::Io { operation, path, source }
}

impl From<StoreError> for ImageError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Layer(error) => error.into(),
            other => Self::Store(Box::new(other)),
        }
    }
}

impl From<LayerError> for ImageError {
    fn from(error: LayerError) -> Self {
        match error {
            LayerError::Invalid { what } => Self::InvalidSource { what },
            LayerError::TooLarge { bytes, max } => Self::TooLarge { bytes, max },
            LayerError::Io { operation, path, source } => Self::Io { operation, path, source },
        }
    }
}

/// Returns the kind of an error of the operating system, for an error of the contract.
pub fn io_kind(error: &std::io::Error) -> ErrorKind {
    match error.kind() {
        _ if UntrustedLink::of(error).is_some() => ErrorKind::PathEscape,
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::ResourceExhausted,
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::NotADirectory => ErrorKind::InvalidInput,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::Io,
    }
}

/// Returns the remedy for an error of the operating system, if there is one.
pub fn io_remedy(error: &std::io::Error) -> Option<&'static str> {
    match error.kind() {
        _ if UntrustedLink::of(error).is_some() => Some(UntrustedLink::REMEDY),
        std::io::ErrorKind::StorageFull => Some("free space on the disk"),
        _ => None,
    }
}

/// Returns the kind of an error of an archive, for an error of the contract.
pub fn archive_kind(error: &ArchiveError) -> ErrorKind {
    match error {
        ArchiveError::NoSpace { .. } => ErrorKind::ResourceExhausted,
        ArchiveError::Io { .. } => ErrorKind::Io,
        ArchiveError::Cancelled => ErrorKind::Closed,
        _ => ErrorKind::InvalidInput,
    }
}

impl ImageError {
    /// Returns its kind as an error of the contract.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidSource { .. } | Self::TooLarge { .. } => ErrorKind::InvalidInput,
            Self::NameTaken { .. } | Self::ContentsMismatch { .. } => ErrorKind::Conflict,
            Self::NotBuilt | Self::UnknownName { .. } | Self::Incompatible { .. } | Self::DirectoryReplaced { .. } => {
                ErrorKind::NotFound
            }
            Self::ExposedStore { .. } | Self::Distrust(_) => ErrorKind::Denied,
            Self::Debian(DebianError::NoSpace { .. }) => ErrorKind::ResourceExhausted,
            Self::Debian(DebianError::UntrustedTool { .. }) => ErrorKind::Denied,
            Self::Archive(error) => archive_kind(error),
            Self::Store(error) => error.kind(),
            Self::Io { source, .. } => io_kind(source),
            Self::MissingTool { .. } | Self::ToolFailed { .. } | Self::Debian(_) | Self::LockTimeout { .. } => {
                ErrorKind::Unavailable
            }
        }
    }

    /// Returns the remedy, if there is one.
    pub fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Distrust(distrust) => return Some(distrust.remedy()),
            Self::Store(error) => return error.remedy(),
            Self::MissingTool { tool } if tool.starts_with("mkfs") => {
                "install it: on Debian and Ubuntu `apt-get install e2fsprogs`"
            }
            Self::MissingTool { .. } => "install it, or configure its path",
            Self::TooLarge { .. } => "use a smaller root file system, or allow larger images",
            Self::ExposedStore { .. } => "use a directory that only this user may write to",
            Self::LockTimeout { .. } => "end that process, or use another cache",
            Self::NotBuilt => {
                "build it once, with a network connection: `cofferdam vm build-image`, or Images::make from the library"
            }
            Self::Incompatible { .. } => "rebuild it from its source: `cofferdam vm build-image --name NAME`",
            Self::UnknownName { .. } => {
                "see `cofferdam vm images`, or build it: `cofferdam vm build-image --name NAME`"
            }
            Self::NameTaken { .. } => "give the new one another name with --name, or replace the old one with --force",
            Self::ContentsMismatch { .. } => {
                "one of the two is corrupt: remove the existing image with `cofferdam vm prune --name NAME`, or do not \
                 import the file"
            }
            Self::DirectoryReplaced { .. } => "it was replaced in the meantime: name it again, if that was you",
            Self::Io { source, .. } => io_remedy(source)?,
            Self::ToolFailed { .. } | Self::Debian(_) | Self::InvalidSource { .. } | Self::Archive(_) => return None,
        };
        Some(text.to_owned())
    }

    /// Converts it to an error of the contract.
    pub fn into_contract(self, operation: &'static str) -> Error {
        let retry = match self {
            Self::LockTimeout { .. } => Retry::MayHelp,
            _ => Retry::Never,
        };
        let remedy = self.remedy();
        let error = Error::new(self.kind(), operation, self.to_string()).with_fault(Fault::Host).with_retry(retry);
        match remedy {
            Some(remedy) => error.with_remedy(remedy),
            None => error,
        }
    }
}
