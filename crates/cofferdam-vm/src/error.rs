//! Errors of VMs, each with a remedy, and their conversion to errors of the contract.

use std::path::PathBuf;

use cofferdam_archive::ArchiveError;
use cofferdam_contract::{Error, ErrorKind, Fault, Retry};
use cofferdam_image::ImageError;
use cofferdam_image::{archive_kind, io_kind, io_remedy};
use cofferdam_linux::trust::Distrust;
use cofferdam_util::sha256;

/// Result with [`VmError`].
pub type Result<T, E = VmError> = std::result::Result<T, E>;

/// Maximum length of console output in a message.
const MAX_CONSOLE: usize = 1000;

/// An error of VMs.
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
    OutdatedTool {
        /// The program.
        tool: &'static str,
        /// Its version.
        found: String,
        /// Oldest supported version.
        needed: &'static str,
    },
    /// An image could not be built, read or found.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A kernel or a VM's description is unusable.
    #[error("{what}")]
    Invalid {
        /// The problem.
        what: String,
    },
    /// A program or a directory above it can be changed by another user.
    #[error("not trusted: {0}")]
    Distrust(#[from] Distrust),
    /// A VMM misbehaved.
    #[error("{vmm}: {what}")]
    Vmm {
        /// The VMM.
        vmm: &'static str,
        /// The problem.
        what: String,
    },
    /// A VMM's error, already as an error of the contract.
    #[error("{}", .0.message())]
    Contract(Box<Error>),
    /// A VMM lacks a feature that was requested.
    #[error("{vmm} {what}")]
    Unsupported {
        /// The VMM.
        vmm: &'static str,
        /// The missing feature, as a predicate.
        what: String,
        /// The alternative.
        remedy: &'static str,
    },
    /// The host cannot confine a VMM as required.
    #[error("cannot confine the VMM on this host: it lacks {boundary}")]
    MissingBoundary {
        /// The missing mechanism.
        boundary: &'static str,
    },
    /// The user that a VMM is to run as may not execute its program.
    #[error("the user that the VMM runs as may not execute {}: {source}", program.display())]
    NotExecutable {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The configuration requires Firecracker's jailer, which cannot be used.
    #[error("the jailer cannot be used: {why}")]
    JailerUnusable {
        /// The reason.
        why: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A snapshot exceeds the memory for snapshots.
    #[error("the snapshot exceeds the memory for snapshots, of which {left} bytes are left")]
    SnapshotMemoryExhausted {
        /// Bytes that were left.
        left: u64,
    },
    /// A snapshot contains another tenant's work.
    #[error("the snapshot belongs to another tenant than '{requested}'")]
    OtherTenant {
        /// The tenant that requested it.
        requested: String,
    },
    /// An archive requests more than its reader allows.
    #[error("the archive's limit on {what} is {found}, and at most {max} is allowed here")]
    ExceedsCeiling {
        /// The limit, by its option's name.
        what: &'static str,
        /// The archive's value.
        found: String,
        /// The reader's maximum.
        max: String,
    },
    /// The host denies reading the memory of own child processes.
    #[error("cannot read the memory of the VMM: {source}")]
    MemoryUnreadable {
        /// The system's error.
        source: std::io::Error,
    },
    /// A snapshot was taken in a different environment.
    #[error("the snapshot was taken with {what} {found}, and would resume here with {current}")]
    OriginMismatch {
        /// The property that differs.
        what: &'static str,
        /// Its value in the snapshot.
        found: String,
        /// Its value here.
        current: String,
    },
    /// A spec differs from a snapshot in a fixed property.
    #[error("the snapshot has {what} {found}, which cannot be changed to {requested}")]
    FixedProperty {
        /// The property.
        what: &'static str,
        /// Its value in the snapshot.
        found: String,
        /// Its value in the spec.
        requested: String,
    },
    /// The directory of a VMM's files is also accessible to other users.
    #[error("the cache {} cannot be used: {reason}", path.display())]
    ExposedDirectory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// The image that a snapshot's VM was created from does not exist on this host.
    #[error("the snapshot needs the image with the key {key}, which is not on this host")]
    MissingImage {
        /// The image's key.
        key: String,
    },
    /// An archive of a snapshot could not be written or read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A snapshot is invalid.
    #[error("the snapshot cannot be used: {what}")]
    InvalidSnapshot {
        /// The problem.
        what: String,
    },
    /// The configuration requires hardware virtualisation, which is not available.
    #[error("kvm is required: {why}")]
    KvmUnavailable {
        /// The finding.
        why: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A VM ended before its agent connected.
    #[error("the VM ended before its agent connected: {reason}{}", console_shown(console))]
    BootFailed {
        /// The reason, as far as the VMM reports it.
        reason: String,
        /// The end of its console output.
        console: String,
    },
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

/// Converts an error of the operating system: `.map_err(io("read", path))`.
pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> VmError {
    let path = path.into();
    move |source| VmError::Io { operation, path, source }
}

/// Returns the steps that copy an image to this host. A key from a hostile archive that is no valid key stays out of
/// commands that people copy.
fn copy_image_steps(key: &str) -> String {
    let key = if sha256::is_digest(key) { key } else { "KEY" };
    format!(
        "copy that image to this host: `cofferdam vm export-image {key} --out image.cofferdam` where the snapshot was \
         saved, then `cofferdam vm import-image image.cofferdam` here; `cofferdam vm images` shows the images that \
         are here"
    )
}

fn console_shown(console: &str) -> String {
    if console.is_empty() { String::new() } else { format!("; its console: {}", excerpt_end(console)) }
}

fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the end of untrusted text, in a printable form.
pub(crate) fn excerpt_end(text: &str) -> String {
    let text = text.trim();
    let begin = text.ceil_char_boundary(text.len().saturating_sub(MAX_CONSOLE));
    let cut = if begin > 0 { "… " } else { "" };
    format!("{cut}{}", clean(&text[begin..]))
}

impl From<Error> for VmError {
    fn from(error: Error) -> Self {
        Self::Contract(Box::new(error))
    }
}

impl VmError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. }
            | Self::OriginMismatch { .. }
            | Self::FixedProperty { .. }
            | Self::InvalidSnapshot { .. } => ErrorKind::InvalidInput,
            Self::ExceedsCeiling { .. } | Self::OtherTenant { .. } => ErrorKind::Denied,
            Self::SnapshotMemoryExhausted { .. } => ErrorKind::ResourceExhausted,
            Self::MissingImage { .. } => ErrorKind::NotFound,
            Self::ExposedDirectory { .. } | Self::Distrust(_) | Self::NotExecutable { .. } => ErrorKind::Denied,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Contract(error) => error.kind(),
            Self::Image(error) => error.kind(),
            Self::Archive(error) => archive_kind(error),
            Self::Io { source, .. } => io_kind(source),
            _ => ErrorKind::Unavailable,
        }
    }

    fn remedy(&self) -> Option<String> {
        let text = match self {
            Self::Distrust(distrust) => return Some(distrust.remedy()),
            Self::Image(error) => return error.remedy(),
            Self::MissingTool { tool } if tool.starts_with("qemu") => {
                "install it: on Debian and Ubuntu `apt-get install --no-install-recommends qemu-system-x86`"
            }
            Self::MissingTool { tool: "firecracker" } => {
                "install it from the releases of github.com/firecracker-microvm/firecracker into a directory of PATH, or \
                 name it: `firecracker` in [vms], or COFFERDAM_VM_FIRECRACKER; or use the driver qemu"
            }
            Self::MissingTool { tool: "jailer" } => {
                "install it beside Firecracker from the same release, or name it: `jailer` in [vms], \
                 or COFFERDAM_VM_JAILER; or disable it there"
            }
            Self::MissingTool { .. } => "install it, or configure its path",
            Self::ExposedDirectory { .. } => "use a directory that only this user may write to",
            Self::OutdatedTool { .. } => "install a newer version",
            Self::KvmUnavailable { remedy, .. }
            | Self::Unsupported { remedy, .. }
            | Self::JailerUnusable { remedy, .. } => remedy,
            Self::NotExecutable { .. } => {
                "make it and the directories above it executable for all users: `chmod a+x`; check that its file \
                 system is not mounted noexec"
            }
            Self::MissingBoundary { .. } => {
                "Landlock needs Linux 5.13 or newer with Landlock enabled; namespaces need root, or user namespaces \
                 for ordinary users (kernel.apparmor_restrict_unprivileged_userns=0, kernel.unprivileged_userns_clone=1)"
            }
            Self::SnapshotMemoryExhausted { .. } => {
                "drop snapshots that are not needed, allow them more memory, or use smaller VMs"
            }
            Self::OtherTenant { .. } => "restore it as its own tenant, with --tenant or the spec's tenant",
            Self::ExceedsCeiling { .. } => {
                "if you trust the archive, allow it with the option of that name, such as --memory, or in [limits] of \
                 the configuration file"
            }
            Self::MemoryUnreadable { .. } => {
                "allow processes to trace their children (kernel.yama.ptrace_scope below 2)"
            }
            Self::OriginMismatch { .. } => "restore it where it was taken, or configure this backend like that one",
            Self::FixedProperty { .. } => {
                "restore it with the original values; only the timeout, CPU time and labels may differ"
            }
            Self::InvalidSnapshot { .. } => "take a new snapshot",
            Self::MissingImage { key } => return Some(copy_image_steps(key)),
            Self::BootFailed { .. } => "read the console output; a kernel needs virtio disks, consoles and ext4",
            Self::Io { source, .. } => io_remedy(source)?,
            _ => return None,
        };
        Some(text.to_owned())
    }

    /// Converts it to an error of the contract, for callers without a backend.
    pub fn into_contract(self, operation: &'static str) -> Error {
        self.into_error(operation)
    }

    /// Converts it to an error of the contract.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        let retry = match self {
            Self::Contract(error) => return *error,
            Self::Image(error) => return error.into_contract(operation),
            Self::BootFailed { .. } => Retry::MayHelp,
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
    fn missing_tool_is_named_with_its_package() {
        let error = VmError::MissingTool { tool: "qemu-system-x86_64" }.into_error("create");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("qemu-system-x86")), "{error:?}");
    }

    #[test]
    fn a_vmm_that_cannot_be_confined_is_refused() {
        let error = VmError::MissingBoundary { boundary: "Landlock" }.into_error("create");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("user namespaces")), "{error:?}");
    }

    #[test]
    fn console_output_is_truncated_and_sanitized() {
        let console = format!("{}\u{1b}[2Jend é", "x".repeat(5000));
        let text = VmError::BootFailed { reason: "it restarted".to_owned(), console }.to_string();
        assert!(text.len() < 1300 && text.chars().all(|c| !c.is_control()) && text.ends_with("end é"), "{text}");
    }
}
