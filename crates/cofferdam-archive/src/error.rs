//! What can go wrong, each with what to do about it.

use std::io;

use crate::digest::Digest;

/// Result with [`ArchiveError`].
pub type Result<T, E = ArchiveError> = std::result::Result<T, E>;

/// Why an archive was not written or not used. After any of these, no file that was to be restored has anything in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// Other bytes.
    #[error(
        "this is no archive of a snapshot or an image: it does not begin like one. Give the file that `snapshot save` or \
         `vm export-image` wrote"
    )]
    NotAnArchive,
    /// Written by a later version.
    #[error(
        "the archive has format version {found}, and this program reads {known}: use the version that wrote it, or a newer one"
    )]
    NewerVersion {
        /// Of the archive.
        found: u32,
        /// The one that is known here.
        known: u32,
    },
    /// Something is not what its hash or its seal says, or cannot be in any archive.
    #[error("the archive is damaged or was tampered with ({what}), and nothing of it was used: fetch or save it again")]
    Damaged {
        /// Where it was noticed.
        what: &'static str,
    },
    /// It ends too early.
    #[error("the archive is cut off, and nothing of it was used: fetch or save it again, and compare the sizes")]
    Truncated,
    /// There is more after its end.
    #[error("there are bytes after the archive's end, and nothing of it was used: give the archive alone")]
    TrailingBytes,
    /// It is encrypted.
    #[error("the archive is encrypted, and no key was given: give the key that it was saved with")]
    KeyMissing,
    /// It is encrypted with another key.
    #[error("the key does not fit the archive: give the key that it was saved with")]
    WrongKey,
    /// A key was given, so it should have been encrypted.
    #[error(
        "a key was given, and the archive is not encrypted: anyone could have written it. If it is yours all the same, read \
         it without a key"
    )]
    NotEncrypted,
    /// Not 32 bytes.
    #[error("a key has 32 bytes, not {length}: give 32 random bytes, such as of /dev/urandom")]
    BadKey {
        /// What it has.
        length: usize,
    },
    /// The file of a key that should not be used.
    #[error("the file of the key cannot be used: {reason}")]
    KeyFile {
        /// Why, and what to do.
        reason: &'static str,
    },
    /// Not 64 hexadecimal digits.
    #[error("'{text}' is no SHA-256: give 64 hexadecimal digits, as `sha256sum` prints them")]
    BadDigest {
        /// The beginning of what was given.
        text: String,
    },
    /// A level that zstd does not have, or that needs too much memory.
    #[error("{level} is no level of compression: give one from 1 (fast) to 19 (small)")]
    BadLevel {
        /// The level.
        level: i32,
    },
    /// A part's name is not one.
    #[error("a part has a name that is none ({text:?}): 1 to 32 of a-z, 0-9 and '-', beginning with a letter")]
    BadName {
        /// What stands there.
        text: String,
    },
    /// Two parts have the same name.
    #[error("two parts have the name '{name}': give each its own")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// More parts than are allowed.
    #[error(
        "the archive has {found} parts, and {most} are the most: it is no archive of this machine, or the limit is too low"
    )]
    TooManyParts {
        /// As many as it says.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// A part is larger than is allowed.
    #[error(
        "the part '{part}' has {size} bytes, and {most} are the most: raise the limit if you expect a machine of that size"
    )]
    TooLarge {
        /// Its name.
        part: String,
        /// Its size, in bytes.
        size: u64,
        /// The limit, in bytes.
        most: u64,
    },
    /// What comes is more or less than was declared.
    #[error(
        "the part '{part}' says that it has {declared} bytes, and its contents are {found}: the archive was made by a broken or \
         hostile program, and nothing of it was used"
    )]
    SizeLies {
        /// Its name.
        part: String,
        /// What its head says.
        declared: u64,
        /// In which direction it lies.
        found: &'static str,
    },
    /// Pages outside of the part, or copied from where nothing is yet.
    #[error(
        "the part '{part}' has pages where none can be ({reason}): the archive was made by a broken or hostile program, and \
         nothing of it was used"
    )]
    BadExtent {
        /// Its name.
        part: String,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// A disk needs a base, and none was given.
    #[error(
        "the disk '{part}' is only what differs from another file, and that was not given: give the file with the SHA-256 {base}"
    )]
    BaseMissing {
        /// The disk.
        part: String,
        /// What it needs.
        base: Digest,
    },
    /// A disk needs a base, and only others were given.
    #[error(
        "the disk '{part}' is what differs from the file with the SHA-256 {base}, and the one that was given has {given}: give \
         the image that the machine was started with"
    )]
    WrongBase {
        /// The disk.
        part: String,
        /// What it needs.
        base: Digest,
        /// The first of those that were given.
        given: Digest,
    },
    /// A file changed while it was saved.
    #[error("the file of the part '{part}' changed while it was saved: save it while the machine is frozen")]
    SourceChanged {
        /// Its name.
        part: String,
    },
    /// A file is none that can be saved or restored to.
    #[error("the file for '{part}' cannot be used: {reason}")]
    UnfitFile {
        /// The part, or what else it is for.
        part: String,
        /// Why.
        reason: &'static str,
    },
    /// The disk is full, or a quota or a limit of sizes is reached.
    #[error("no space left to {operation} (part '{part}'), and nothing was kept: make room, or use another directory")]
    NoSpace {
        /// What was done.
        operation: &'static str,
        /// The part that it was done for.
        part: String,
    },
    /// The callback said so.
    #[error("cancelled, and nothing was kept: start again when you want to")]
    Cancelled,
    /// The operating system refused something.
    #[error("cannot {operation} (part '{part}'): {source}")]
    Io {
        /// What was done.
        operation: &'static str,
        /// The part that it was done for.
        part: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Makes an error of the operating system into one of ours: `.map_err(io("read", part))`.
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
