//! What can go wrong with images and machines, each with what to do about it; and the same as errors of the contract.

use std::path::PathBuf;
use std::time::Duration;

use cofferdam_archive::ArchiveError;
use cofferdam_contract::{Error, ErrorKind, Fault, Retry};
use cofferdam_debian::DebianError;
use cofferdam_linux::named::UntrustedLink;
use cofferdam_linux::trust::Distrust;

/// Result with [`VmError`].
pub type Result<T, E = VmError> = std::result::Result<T, E>;

/// The longest text of another program that is passed on.
const MAX_WORDS: usize = 1000;

/// Why there is no image or no machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmError {
    /// A program of the host is missing.
    #[error("{tool} is not installed")]
    MissingTool {
        /// The program.
        tool: &'static str,
    },
    /// A program of the host is too old.
    #[error("{tool} {found} is too old: {needed} or newer is needed")]
    OldTool {
        /// The program.
        tool: &'static str,
        /// Its version.
        found: String,
        /// The oldest that will do.
        needed: &'static str,
    },
    /// A program of the host failed.
    #[error("{tool} failed ({status}): {}", shown(said))]
    ToolFailed {
        /// The program.
        tool: &'static str,
        /// How it ended.
        status: String,
        /// What it said.
        said: String,
    },
    /// Packages could not be had.
    #[error(transparent)]
    Debian(#[from] DebianError),
    /// What a kernel or a root file system is made of will not do.
    #[error("{what}")]
    BadSource {
        /// What is wrong with it.
        what: String,
    },
    /// A directory is not the one that the caller named any more.
    #[error("the directory {} is not the one that was named any more", path.display())]
    OtherDirectory {
        /// Where it is.
        path: PathBuf,
    },
    /// An image would be larger than allowed.
    #[error("the root file system takes {bytes} bytes, and {most} are allowed")]
    TooLarge {
        /// Bytes of the image.
        bytes: u64,
        /// Bytes that are allowed.
        most: u64,
    },
    /// A program, a cache or something that leads to it can be changed by others.
    #[error("not trusted: {0}")]
    Distrust(#[from] Distrust),
    /// The cache is not this user's alone.
    #[error("the cache {} cannot be used: {reason}", path.display())]
    BadCache {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// Another process did not give the cache free.
    #[error("another process used {} for {limit:?}", path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
        /// How long was waited.
        limit: Duration,
    },
    /// There is no image, and none is to be made.
    #[error("there is no image of this kernel and root file system")]
    NoImage,
    /// The monitor does not do what it should.
    #[error("{monitor}: {what}")]
    Monitor {
        /// Which monitor.
        monitor: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A monitor said or did something else than it should, in the contract's words.
    #[error("{}", .0.message())]
    Api(Box<Error>),
    /// A monitor cannot do what is asked for.
    #[error("{monitor} {what}")]
    Lacks {
        /// Which monitor.
        monitor: &'static str,
        /// What it cannot, as a predicate.
        what: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// The host cannot confine a monitor as it is to be.
    #[error("the machine's monitor cannot be confined here: there is no {wall}")]
    NoWall {
        /// What is missing.
        wall: &'static str,
    },
    /// A monitor's program may not be executed by whom it is to run as.
    #[error("{} may not be executed by the user that the machine's monitor runs as: {source}", program.display())]
    Forbidden {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A monitor's own jailer was asked for, and cannot be used.
    #[error("the jailer cannot be used: {why}")]
    NoJailer {
        /// What is in its way.
        why: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Snapshots would take more memory than allowed.
    #[error("snapshots may take {most} bytes more of the host's memory, and this one takes more")]
    NoRoom {
        /// Bytes that were left.
        most: u64,
    },
    /// A snapshot holds another tenant's work.
    #[error("the snapshot belongs to another tenant than '{asked}'")]
    OtherTenant {
        /// The tenant that asked for it.
        asked: String,
    },
    /// An image with the same key and other contents is here.
    #[error("an image with the key {key} is here, and its contents differ from those of the file")]
    OtherContents {
        /// The key of both.
        key: String,
    },
    /// Another image has the name.
    #[error("the image {name:?} is there, made from {about}, and would be replaced by one of {asked}")]
    NameTaken {
        /// The name.
        name: String,
        /// What that image was made from.
        about: String,
        /// What the new one is made from.
        asked: String,
    },
    /// An archive asks for more than its reader allows.
    #[error("the archive's limit on {what} is {found}, and at most {most} is allowed here")]
    AboveLimit {
        /// The limit, by its option's name.
        what: &'static str,
        /// The archive's.
        found: String,
        /// The reader's.
        most: String,
    },
    /// The host keeps the memory of our own processes from us.
    #[error("the memory of the machine's monitor cannot be read: {source}")]
    NoSight {
        /// What the system said.
        source: std::io::Error,
    },
    /// A snapshot was taken where something is different.
    #[error("the snapshot was taken with {what} {found}, and here it would go on with {here}")]
    Elsewhere {
        /// What is different.
        what: &'static str,
        /// How it was there.
        found: String,
        /// How it is here.
        here: String,
    },
    /// A spec asks for something else in what is fixed in a snapshot.
    #[error("the snapshot has {what} {found}, which cannot be changed to {asked}")]
    Fixed {
        /// What is fixed.
        what: &'static str,
        /// How it is.
        found: String,
        /// How it was asked for.
        asked: String,
    },
    /// The image that a snapshot's machine started from is not here.
    #[error("the snapshot's machine started from the image with the key {key}, which is not here")]
    NoBase {
        /// The image's key.
        key: String,
    },
    /// An archive of a snapshot was not written or not used.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A snapshot is not in order.
    #[error("the snapshot cannot be used: {what}")]
    BadSnapshot {
        /// What is wrong with it.
        what: String,
    },
    /// Hardware virtualisation was asked for, and is not to be had.
    #[error("kvm was asked for: {why}")]
    NoKvm {
        /// What was found.
        why: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// No image has this name.
    #[error("there is no image {name:?}")]
    NoSuchImage {
        /// The name.
        name: String,
    },
    /// An image was made by a version of this program whose agent this one does not understand.
    #[error("the image {name:?} was made by another version of Cofferdam, and its agent speaks otherwise")]
    OldImage {
        /// The name.
        name: String,
    },
    /// A machine ended before its agent could be greeted.
    #[error("the machine ended before its agent greeted: {reason}{}", console_shown(console))]
    NotBooted {
        /// Why, as far as its monitor tells.
        reason: String,
        /// The end of what it said on its console.
        console: String,
    },
    /// The operating system refused something.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was done.
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Makes an error of the operating system into one of ours: `.map_err(io("read", path))`.
pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> VmError {
    let path = path.into();
    move |source| VmError::Io { operation, path, source }
}

/// Returns how an image gets here. What is no key comes from a hostile archive, and stays out of commands that people copy.
fn bring(key: &str) -> String {
    let key = if crate::image::is_key(key) { key } else { "KEY" };
    format!(
        "bring that image here: `cofferdam vm export-image {key} --out image.cofferdam` where the snapshot was saved, then \
         `cofferdam vm import-image image.cofferdam` here; `cofferdam vm images` shows the images that are here"
    )
}

fn console_shown(console: &str) -> String {
    if console.is_empty() { String::new() } else { format!("; its console says: {}", shown_end(console)) }
}

fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The beginning of text from outside, in a form that can be printed.
pub(crate) fn shown(text: &str) -> String {
    let text = text.trim();
    let end = text.floor_char_boundary(MAX_WORDS);
    let cut = if end < text.len() { " …" } else { "" };
    format!("{}{cut}", clean(&text[..end]))
}

/// The end of it.
pub(crate) fn shown_end(text: &str) -> String {
    let text = text.trim();
    let begin = text.ceil_char_boundary(text.len().saturating_sub(MAX_WORDS));
    let cut = if begin > 0 { "… " } else { "" };
    format!("{cut}{}", clean(&text[begin..]))
}

impl From<Error> for VmError {
    fn from(error: Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl VmError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::BadSource { .. }
            | Self::TooLarge { .. }
            | Self::Elsewhere { .. }
            | Self::Fixed { .. }
            | Self::BadSnapshot { .. } => ErrorKind::InvalidInput,
            Self::NameTaken { .. } | Self::OtherContents { .. } => ErrorKind::Conflict,
            Self::AboveLimit { .. } | Self::OtherTenant { .. } => ErrorKind::Denied,
            Self::Archive(ArchiveError::NoSpace { .. }) | Self::NoRoom { .. } => ErrorKind::ResourceExhausted,
            Self::Archive(ArchiveError::Io { .. }) => ErrorKind::Io,
            Self::Archive(ArchiveError::Cancelled) => ErrorKind::Closed,
            Self::Archive(_) => ErrorKind::InvalidInput,
            Self::NoBase { .. }
            | Self::NoImage
            | Self::NoSuchImage { .. }
            | Self::OldImage { .. }
            | Self::OtherDirectory { .. } => ErrorKind::NotFound,
            Self::BadCache { .. } | Self::Distrust(_) | Self::Forbidden { .. } => ErrorKind::Denied,
            Self::Api(error) => error.kind(),
            Self::Lacks { .. } => ErrorKind::Unsupported,
            Self::Debian(DebianError::NoSpace { .. }) => ErrorKind::ResourceExhausted,
            Self::Debian(DebianError::UntrustedTool { .. }) => ErrorKind::Denied,
            Self::Io { source, .. } if UntrustedLink::of(source).is_some() => ErrorKind::PathEscape,
            Self::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::ResourceExhausted,
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::NotADirectory => ErrorKind::InvalidInput,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Io,
            },
            _ => ErrorKind::Unavailable,
        }
    }

    fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Distrust(distrust) => return Some(distrust.remedy()),
            Self::MissingTool { tool } if tool.starts_with("qemu") => {
                "install it: on Debian and Ubuntu `apt-get install --no-install-recommends qemu-system-x86`"
            }
            Self::MissingTool { tool } if tool.starts_with("mkfs") => {
                "install it: on Debian and Ubuntu `apt-get install e2fsprogs`"
            }
            Self::MissingTool { tool: "firecracker" } => {
                "install it from the releases of github.com/firecracker-microvm/firecracker into a directory of PATH, or name it: \
                 `firecracker` in [machines], or COFFERDAM_VM_FIRECRACKER; or use the driver qemu"
            }
            Self::MissingTool { tool: "jailer" } => {
                "take it from the release that Firecracker came from and put it beside that, or name it: `jailer` in [machines], \
                 or COFFERDAM_VM_JAILER; or switch it off there"
            }
            Self::MissingTool { .. } => "install it, or name where it is",
            Self::OldTool { .. } => "install a newer one",
            Self::TooLarge { .. } => "use a smaller root file system, or allow larger images",
            Self::BadCache { .. } => "use a directory that only this user may write to",
            Self::Busy { .. } => "end that process, or use another cache",
            Self::NoImage => {
                "make it once, with a network: `cofferdam vm build-image`, or VmBackend::make_image from the library"
            }
            Self::OldImage { .. } => "make it anew: `cofferdam vm build-image --name NAME`, from what it was made of",
            Self::NoSuchImage { .. } => "see `cofferdam vm images`, or make it: `cofferdam vm build-image --name NAME`",
            Self::NoKvm { remedy, .. } | Self::Lacks { remedy, .. } | Self::NoJailer { remedy, .. } => remedy,
            Self::Forbidden { .. } => {
                "let everybody execute it, and enter the directories above it: `chmod a+x`; is its file system mounted noexec?"
            }
            Self::NoWall { .. } => {
                "Landlock needs a kernel from 5.13 on that has it switched on; namespaces need root, or user namespaces for \
                 ordinary users (kernel.apparmor_restrict_unprivileged_userns=0, kernel.unprivileged_userns_clone=1)"
            }
            Self::NoRoom { .. } => {
                "drop snapshots that are not needed, allow them more memory, or use smaller machines"
            }
            Self::NameTaken { .. } => "give the new one another name with --name, or replace the old one with --force",
            Self::OtherTenant { .. } => {
                "restore it as the tenant that it was taken of, with --tenant or a spec's tenant"
            }
            Self::AboveLimit { .. } => {
                "if you trust the archive, allow it with the option of that name, such as --memory, or in [limits] of the configuration file"
            }
            Self::NoSight { .. } => {
                "processes may have to be allowed to look at their children (kernel.yama.ptrace_scope below 2)"
            }
            Self::Elsewhere { .. } => "restore it where it was taken, or set this backend up as that one was",
            Self::Fixed { .. } => "restore it with what it was taken with; wall time, CPU time and labels may differ",
            Self::BadSnapshot { .. } => "take it again",
            Self::OtherContents { .. } => {
                "one of the two is not what it says: remove the image that is here with `cofferdam vm prune --name NAME`, or do not \
                 import the file"
            }
            Self::NoBase { key } => return Some(bring(key)),
            Self::NotBooted { .. } => "look at what the console says; a kernel needs virtio disks, consoles and ext4",
            Self::OtherDirectory { .. } => "it was replaced in the meantime: name it again, if that was you",
            Self::Io { source, .. } if UntrustedLink::of(source).is_some() => UntrustedLink::REMEDY,
            Self::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => "make room on the disk",
            _ => return None,
        };
        Some(text.to_owned())
    }

    /// As an error of the contract, for those who make images without a backend.
    pub fn into_contract(self, operation: &'static str) -> Error {
        self.into_error(operation)
    }

    /// As an error of the contract.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        if let Self::Api(error) = self {
            return *error;
        }
        let retry = match self {
            Self::Busy { .. } | Self::NotBooted { .. } => Retry::MayHelp,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_package() {
        let error = VmError::MissingTool { tool: "qemu-system-x86_64" }.into_error("create");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("qemu-system-x86")), "{error:?}");
    }

    #[test]
    fn a_monitor_without_its_walls_is_refused() {
        let error = VmError::NoWall { wall: "Landlock" }.into_error("create");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("user namespaces")), "{error:?}");
    }

    #[test]
    fn what_a_console_says_is_cut_and_cleaned() {
        let console = format!("{}\u{1b}[2Jend é", "x".repeat(5000));
        let text = VmError::NotBooted { reason: "it restarted".to_owned(), console }.to_string();
        assert!(text.len() < 1300 && text.chars().all(|c| !c.is_control()) && text.ends_with("end é"), "{text}");
    }
}
