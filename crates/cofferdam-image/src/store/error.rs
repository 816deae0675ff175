//! Errors of the image store, each with a remedy, and their conversion to errors of the contract.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_contract::{ByteSize, Error, ErrorKind, Fault, Retry};

use crate::layer::LayerError;

/// Result with [`StoreError`].
pub(super) type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Part of the reason if a registry uses a certificate of an authority, such as a self-signed one, as its own.
const SELF_SIGNED: &str = "CaUsedAsEndEntity";

/// An error of the image store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// An image is damaged, forbidden or too large, or the operating system refused an operation.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A text is no name of an image.
    #[error("'{name}' is not a name of an image: {reason}")]
    InvalidReference {
        /// The text.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// The store has no such image.
    #[error("the image store has no image '{name}'")]
    NotFound {
        /// The name.
        name: String,
    },
    /// A prefix of a digest belongs to several images.
    #[error("'{name}' is the start of several images' digests")]
    Ambiguous {
        /// The prefix.
        name: String,
    },
    /// The file has no name for an image, or several images for one name.
    #[error("{what}")]
    NameRequired {
        /// The problem.
        what: String,
    },
    /// A sandbox uses the image.
    #[error("the image '{name}' is used by a sandbox")]
    InUse {
        /// The name.
        name: String,
    },
    /// The store would exceed its limit.
    #[error("the image store would take {}, at most {} are allowed", ByteSize::from_bytes(*bytes), ByteSize::from_bytes(*max))]
    QuotaExceeded {
        /// Bytes that are needed.
        bytes: u64,
        /// Maximum.
        max: u64,
    },
    /// Files of the image are missing in the store.
    #[error("the image '{name}' is damaged: {what}")]
    Damaged {
        /// The name.
        name: String,
        /// The problem.
        what: String,
    },
    /// A registry cannot be reached, or its certificate is not trusted.
    #[error("cannot connect to the registry {registry}: {what}")]
    Unreachable {
        /// The registry.
        registry: String,
        /// The reason.
        what: String,
    },
    /// The connection to a registry broke.
    #[error("the connection to the registry {registry} broke: {what}")]
    Interrupted {
        /// The registry.
        registry: String,
        /// The reason.
        what: String,
    },
    /// A registry failed.
    #[error("the registry {registry} failed: {what}")]
    Registry {
        /// The registry.
        registry: String,
        /// The problem.
        what: String,
    },
    /// A registry has no such image, or hides it.
    #[error("the registry {registry} has no such image in {repository}")]
    NotInRegistry {
        /// The registry.
        registry: String,
        /// The repository.
        repository: String,
    },
    /// A registry denied access.
    #[error("the registry {registry} denies access to {repository}")]
    AccessDenied {
        /// The registry.
        registry: String,
        /// The repository.
        repository: String,
        /// True if the user has credentials for the registry.
        has_credentials: bool,
    },
    /// Credentials or certificates for a registry are unusable.
    #[error("{what}")]
    Credentials {
        /// The problem.
        what: String,
        /// The remedy.
        remedy: String,
    },
    /// Other users could change the store.
    #[error("the image store {} cannot be used: {reason}", path.display())]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// Another process held a lock for too long.
    #[error("cannot lock {}: another process held it for {limit:?}", path.display())]
    LockTimeout {
        /// The lock.
        path: PathBuf,
        /// Time waited.
        limit: Duration,
    },
}

impl StoreError {
    /// Returns its kind as an error of the contract.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Layer(LayerError::Invalid { .. } | LayerError::TooLarge { .. })
            | Self::InvalidReference { .. }
            | Self::Ambiguous { .. }
            | Self::NameRequired { .. } => ErrorKind::InvalidInput,
            Self::Layer(LayerError::Io { source, .. }) => io_kind(source),
            Self::NotFound { .. } | Self::NotInRegistry { .. } => ErrorKind::NotFound,
            Self::InUse { .. } => ErrorKind::Conflict,
            Self::QuotaExceeded { .. } => ErrorKind::ResourceExhausted,
            Self::Damaged { .. }
            | Self::LockTimeout { .. }
            | Self::Unreachable { .. }
            | Self::Interrupted { .. }
            | Self::Registry { .. }
            | Self::Credentials { .. } => ErrorKind::Unavailable,
            Self::Exposed { .. } | Self::AccessDenied { .. } => ErrorKind::Denied,
        }
    }

    /// Returns the remedy, if there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Layer(LayerError::Io { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull => {
                "free space on the disk, for example with `cofferdam image prune`"
            }
            Self::Layer(_) | Self::InvalidReference { .. } | Self::Registry { .. } => return None,
            Self::Credentials { remedy, .. } => remedy,
            Self::Unreachable { what, .. } if what.contains(SELF_SIGNED) => {
                "its certificate is one of an authority, which cannot be that of a server: create an authority and a \
                 certificate that it signs (docs/images.md has the commands), let the registry use that, and put the \
                 authority's certificate into /etc/docker/certs.d/REGISTRY/ca.crt"
            }
            Self::Unreachable { .. } => {
                "check its name and the network; put the certificate of its authority into \
                 /etc/docker/certs.d/REGISTRY/ca.crt"
            }
            Self::Interrupted { .. } => "try again: files that are complete are not downloaded again",
            Self::NotInRegistry { .. } => "check the name, and log in with `docker login` if the image is private",
            Self::AccessDenied { has_credentials: true, .. } => "log in as another user: `docker login REGISTRY`",
            Self::AccessDenied { .. } => "log in: `docker login REGISTRY`",
            Self::NotFound { name } => {
                return Some(format!("see `cofferdam image ls`, or pull it: `cofferdam image pull {name}`"));
            }
            Self::Ambiguous { .. } => "give more digits, or a name",
            Self::NameRequired { .. } => "give a name with --name",
            Self::InUse { .. } => "end its sandboxes first",
            Self::QuotaExceeded { .. } => {
                "remove images with `cofferdam image rm` or `cofferdam image prune`, or raise `max_size` in `[images]` of \
                 the configuration file"
            }
            Self::Damaged { .. } => "pull or load it again",
            Self::Exposed { .. } => "use a directory that only this user may write to",
            Self::LockTimeout { .. } => "end that process, or use another store",
        };
        Some(text.to_owned())
    }

    /// Converts it to an error of the contract.
    #[must_use]
    pub fn into_contract(self, operation: &'static str) -> Error {
        let retry = match self {
            Self::LockTimeout { .. } | Self::InUse { .. } | Self::Unreachable { .. } | Self::Interrupted { .. } => {
                Retry::MayHelp
            }
            _ => Retry::Never,
        };
        let fault = match self {
            Self::InvalidReference { .. } | Self::Ambiguous { .. } | Self::NameRequired { .. } => Fault::Caller,
            _ => Fault::Host,
        };
        let remedy = self.remedy();
        let error = Error::new(self.kind(), operation, self.to_string()).with_fault(fault).with_retry(retry);
        match remedy {
            Some(remedy) => error.with_remedy(remedy),
            None => error,
        }
    }
}

fn io_kind(error: &std::io::Error) -> ErrorKind {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::ResourceExhausted,
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::NotADirectory | std::io::ErrorKind::InvalidInput => ErrorKind::InvalidInput,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::Io,
    }
}

/// Converts an error of the operating system: `.map_err(io("read", path))`.
pub(super) fn io<E: Into<std::io::Error>>(
    operation: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(E) -> StoreError {
    let path = path.into();
    move |source| LayerError::Io { operation, path, source: source.into() }.into()
}
