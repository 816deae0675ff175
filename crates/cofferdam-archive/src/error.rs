//! Errors of the crate, each with its remedy.

use std::io;

use crate::digest::Digest;

/// Result with [`ArchiveError`].
pub type Result<T, E = ArchiveError> = std::result::Result<T, E>;

/// An error from writing or reading an archive. After any of these, every file that was to be restored is empty.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The input does not begin like an archive.
    #[error(
        "not an archive of a snapshot or an image: the magic number does not match. Use a file that `snapshot save` or \
         `vm export-image` wrote"
    )]
    NotAnArchive,
    /// The archive was written by a later version.
    #[error(
        "the archive has format version {found}, and this program reads {known}: use the version that wrote it, or a newer one"
    )]
    NewerVersion {
        /// The format version of the archive.
        found: u32,
        /// The newest supported format version.
        known: u32,
    },
    /// Data does not match its hash or its seal, or is invalid in any archive.
    #[error("the archive is damaged or was tampered with ({what}), nothing was restored: download or save it again")]
    Damaged {
        /// The check that failed.
        what: &'static str,
    },
    /// The archive ends too early.
    #[error("the archive is truncated, nothing was restored: download or save it again, and compare the sizes")]
    Truncated,
    /// There is data after the end of the archive.
    #[error("there is data after the end of the archive, nothing was restored: pass the archive alone")]
    TrailingBytes,
    /// The archive is encrypted and no key was passed.
    #[error("the archive is encrypted, and no key was given: pass the key that it was saved with")]
    KeyMissing,
    /// The archive is encrypted with another key.
    #[error("the key does not match the archive: pass the key that it was saved with")]
    WrongKey,
    /// A key was passed, so the archive should be encrypted.
    #[error(
        "a key was given, but the archive is not encrypted: anyone could have written it. If it is yours all the same, read \
         it without a key"
    )]
    NotEncrypted,
    /// The key is not 32 bytes long.
    #[error("a key must have 32 bytes, got {length}: pass 32 random bytes, such as from /dev/urandom")]
    BadKey {
        /// The length that was passed.
        length: usize,
    },
    /// The key file must not be used.
    #[error("cannot use the key file: {reason}")]
    KeyFile {
        /// The reason and the remedy.
        reason: &'static str,
    },
    /// The text is not 64 hexadecimal digits.
    #[error("'{text}' is not a SHA-256: pass 64 hexadecimal digits, as `sha256sum` prints them")]
    BadDigest {
        /// The beginning of the text.
        text: String,
    },
    /// The compression level does not exist in zstd, or needs too much memory.
    #[error("invalid compression level {level}: pass one from 1 (fast) to 19 (small)")]
    BadLevel {
        /// The level.
        level: i32,
    },
    /// The name of a part is invalid.
    #[error("invalid part name {text:?}: use 1 to 32 of a-z, 0-9 and '-', beginning with a letter")]
    BadName {
        /// The invalid name.
        text: String,
    },
    /// Two parts have the same name.
    #[error("two parts have the name '{name}': use a unique name for each")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The archive has more parts than the limit allows.
    #[error(
        "the archive has {found} parts, but at most {max} are allowed: it is not a snapshot of this VM, or the limit is too low"
    )]
    TooManyParts {
        /// The declared number of parts.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A part is larger than the limit allows.
    #[error(
        "the part '{part}' has {size} bytes, but at most {max} are allowed: raise the limit if you expect a VM of that size"
    )]
    TooLarge {
        /// The part's name.
        part: String,
        /// The part's size, in bytes.
        size: u64,
        /// The limit, in bytes.
        max: u64,
    },
    /// The contents of a part are longer or shorter than declared.
    #[error(
        "the part '{part}' declares {declared} bytes, but its contents are {found}: the archive was made by a broken or \
         hostile program, nothing was restored"
    )]
    SizeLies {
        /// The part's name.
        part: String,
        /// The size that the head declares.
        declared: u64,
        /// Either longer or shorter.
        found: &'static str,
    },
    /// A page is outside of the part, or is copied from a page that does not exist yet.
    #[error(
        "the part '{part}' has pages at an invalid position ({reason}): the archive was made by a broken or hostile program, and \
         nothing was restored"
    )]
    BadExtent {
        /// The part's name.
        part: String,
        /// The reason why the position is invalid.
        reason: &'static str,
    },
    /// A disk needs a base and none was passed.
    #[error(
        "the disk '{part}' is stored as a difference from another file, which is missing: pass the file with the SHA-256 {base}"
    )]
    BaseMissing {
        /// The disk.
        part: String,
        /// The digest of the base that it needs.
        base: Digest,
    },
    /// A disk needs a base and only other files were passed.
    #[error(
        "the disk '{part}' is a difference from the file with the SHA-256 {base}, but the file passed has {passed}: pass \
         the image that the VM was started from"
    )]
    WrongBase {
        /// The disk.
        part: String,
        /// The digest of the base that it needs.
        base: Digest,
        /// The digest of the first file that was passed.
        passed: Digest,
    },
    /// A file changed while it was saved.
    #[error("the file of the part '{part}' changed while it was saved: save it while the VM is paused")]
    SourceChanged {
        /// The part's name.
        part: String,
    },
    /// A file cannot be saved or restored to.
    #[error("cannot use the file for '{part}': {reason}")]
    UnfitFile {
        /// The part or the other purpose of the file.
        part: String,
        /// The reason.
        reason: &'static str,
    },
    /// The disk is full, or a quota or a file size limit is reached.
    #[error(
        "no space left to {operation} (part '{part}'), nothing was written: free some space, or use another directory"
    )]
    NoSpace {
        /// The failed operation.
        operation: &'static str,
        /// The part that the operation was for.
        part: String,
    },
    /// The callback cancelled the operation.
    #[error("cancelled, nothing was written: start again if needed")]
    Cancelled,
    /// The operating system refused an operation.
    #[error("cannot {operation} (part '{part}'): {source}")]
    Io {
        /// The failed operation.
        operation: &'static str,
        /// The part that the operation was for.
        part: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Converts an error of the operating system: `.map_err(io("read", part))`.
pub(crate) fn io<'a>(
    operation: &'static str,
    part: impl AsRef<str> + 'a,
) -> impl FnOnce(io::Error) -> ArchiveError + 'a {
    move |source| {
        let part = part.as_ref().to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                ArchiveError::NoSpace { operation, part }
            }
            _ => ArchiveError::Io { operation, part, source },
        }
    }
}

pub(crate) const fn damaged(what: &'static str) -> ArchiveError {
    ArchiveError::Damaged { what }
}
