//! Errors of packages, each with its remedy.

use std::io;
use std::path::{Path, PathBuf};

use cofferdam_contract::{Error, ErrorKind};
use cofferdam_linux::named::UntrustedLink;

/// The maximum length of a reason in characters.
const MAX_REASON: usize = 500;

/// A result with [`PackageError`].
pub(crate) type Result<T, E = PackageError> = std::result::Result<T, E>;

/// The reason why a package is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The file is no package.
    NotAPackage,
    /// The format is that of a later version.
    UnknownFormat,
    /// The archive ends too early, or more data follows it.
    BadLength,
    /// The signature does not match.
    BadSignature,
    /// A file does not match the index.
    BadDigest,
    /// A path or link leads out of the package, or is ambiguous.
    UnsafePath,
    /// A member of the archive is not the one that the index demands.
    BadMember,
    /// The index is invalid.
    BadIndex,
    /// The package is larger than any may be.
    TooLarge,
    /// The manifest is invalid.
    BadManifest,
}

impl Verdict {
    /// Returns the name, such as `bad-digest`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAPackage => "not-a-package",
            Self::UnknownFormat => "unknown-format",
            Self::BadLength => "bad-length",
            Self::BadSignature => "bad-signature",
            Self::BadDigest => "bad-digest",
            Self::UnsafePath => "unsafe-path",
            Self::BadMember => "bad-member",
            Self::BadIndex => "bad-index",
            Self::TooLarge => "too-large",
            Self::BadManifest => "bad-manifest",
        }
    }
}

/// An error of packing, installing or finding a plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// The operating system refused an operation.
    #[error("cannot {operation} '{}': {source}", path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The package is hostile, damaged or unfit. Nothing was installed.
    #[error("the package is refused ({}): {reason}", verdict.as_str())]
    Refused {
        /// The kind of reason.
        verdict: Verdict,
        /// The reason. Contains no control characters.
        reason: String,
    },
    /// The directory cannot be packed.
    #[error("cannot pack '{path}': {reason}")]
    Unpackable {
        /// The path in the directory.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The directory has no usable manifest.
    #[error("the manifest cannot be used: {reason}")]
    Manifest {
        /// The first problem.
        reason: String,
    },
    /// A key file cannot be used.
    #[error("cannot use the key file '{}': {reason}", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// The package is signed with a key that is not trusted yet.
    #[error("the package is signed with the unknown key {fingerprint}")]
    UnknownKey {
        /// The fingerprint of the key.
        fingerprint: String,
    },
    /// The installed plugin is signed with another key.
    #[error("the installed plugin '{name}' is signed with the key {installed}, and the package with {found}")]
    OtherKey {
        /// The name of the plugin.
        name: String,
        /// The fingerprint of the installed plugin's key.
        installed: String,
        /// The fingerprint of the package's key.
        found: String,
    },
    /// Another user could change the store.
    #[error("the directory of plugins '{}' is not safe: {reason}", path.display())]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// No plugin of this name is installed.
    #[error("no plugin '{name}' is installed")]
    NotInstalled {
        /// The name.
        name: String,
    },
    /// An installed plugin is damaged.
    #[error("the installed plugin '{name}' is damaged: {reason}")]
    Damaged {
        /// The name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// Another process changed the installed plugin since it was reviewed.
    #[error("another process changed the plugin '{name}' meanwhile")]
    Changed {
        /// The name.
        name: String,
    },
    /// A file exists already.
    #[error("'{}' already exists", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
}

impl PackageError {
    /// Returns what to do next.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Io { source, .. } if UntrustedLink::of(source).is_some() => UntrustedLink::REMEDY,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => "use a path that exists",
            Self::Io { .. } => "use a path with free space where you may read and write",
            Self::Refused { verdict: Verdict::UnknownFormat, .. } => "install a newer version of Cofferdam",
            Self::Refused { verdict: Verdict::BadManifest, .. } => "check the plugin with 'cofferdam plugins validate'",
            Self::Refused { .. } => "get the package again from its author; nothing was installed",
            Self::Unpackable { .. } => "change or remove the file, and pack again",
            Self::Manifest { .. } => "run 'cofferdam plugins validate' on the directory",
            Self::KeyFile { .. } => "pass a file that 'cofferdam plugins keygen' created",
            Self::UnknownKey { .. } => "compare the key with its owner's, and pass --trust PUBLIC_KEY_FILE",
            Self::OtherKey { .. } => "ask the author whether the key changed; --replace-key accepts the new one",
            Self::Exposed { .. } => "make it your own with 'chown', and remove the permissions of others with 'chmod'",
            Self::NotInstalled { .. } => "run 'cofferdam plugins list'",
            Self::Damaged { .. } => "run 'cofferdam plugins uninstall', and install the plugin again",
            Self::Changed { .. } => "run the command again",
            Self::Exists { .. } => "use another path, or remove it",
        }
    }

    /// Returns the error of the contract, for an operation such as `install plugin`.
    pub fn into_error(self, operation: &'static str) -> Error {
        let kind = match &self {
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => ErrorKind::NotFound,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::ResourceExhausted,
                _ => ErrorKind::Io,
            },
            Self::Refused { .. } | Self::Unpackable { .. } | Self::Manifest { .. } | Self::KeyFile { .. } => {
                ErrorKind::InvalidInput
            }
            Self::UnknownKey { .. } | Self::OtherKey { .. } | Self::Exposed { .. } => ErrorKind::Denied,
            Self::NotInstalled { .. } => ErrorKind::NotFound,
            Self::Changed { .. } | Self::Exists { .. } => ErrorKind::Conflict,
            Self::Damaged { .. } => ErrorKind::Io,
        };
        Error::new(kind, operation, self.to_string()).with_remedy(self.remedy())
    }
}

/// Returns a closure that adds the operation and the path to an error.
pub(crate) fn io<E: Into<io::Error>>(
    operation: &'static str,
    path: impl AsRef<Path>,
) -> impl FnOnce(E) -> PackageError {
    move |source| PackageError::Io { operation, path: path.as_ref().to_owned(), source: source.into() }
}

/// Returns the error of a refused package. The reason may quote the package.
pub(crate) fn refused(verdict: Verdict, reason: impl AsRef<str>) -> PackageError {
    PackageError::Refused { verdict, reason: printable(reason.as_ref()) }
}

/// Returns the beginning of a text, with escapes for characters that are not printable.
pub(crate) fn printable(text: &str) -> String {
    let shown = text.chars().take(MAX_REASON).map(|char| match char {
        '\'' | '"' => char.to_string(),
        _ => char.escape_debug().to_string(),
    });
    shown.collect()
}
