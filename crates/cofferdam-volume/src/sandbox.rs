//! Volumes as mounts of sandboxes.
//!
//! ```text
//! VolumeMount --Volumes::open--> Volumes --add_to--> mounts of a spec --create--> sandbox --keep_for--> sandbox
//! ```
//!
//! The lock of a volume lives as long as [`Volumes`], and so as long as the sandbox that keeps it.

use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Access, DirectoryId, Error, ErrorKind, Fault, LayeredSandbox, Level, Mount, MountAccess, MountSource, MountTarget,
    Result, Retry, Sandbox, SandboxLayer, Snapshot, SpecBuilder,
};
use cofferdam_linux::loop_device::LoopError;
use cofferdam_tree::TreeError;
use parking_lot::Mutex;

use crate::error::io;
use crate::{Access as VolumeAccess, Contents, Name, OpenVolume, Request, Store, Through, VolumeError};

/// A volume at a path of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeMount {
    /// The volume.
    pub name: Name,
    /// The path inside the sandbox.
    pub target: MountTarget,
    /// The guest's access. A writer has the volume for itself.
    pub access: Access,
}

impl FromStr for VolumeMount {
    type Err = Error;

    /// Parses `NAME:GUEST`, `NAME:GUEST:rw` or `NAME:GUEST:ro`.
    fn from_str(text: &str) -> Result<Self> {
        let (rest, access) = match text.rsplit_once(':') {
            Some((rest, "ro")) => (rest, Access::ReadOnly),
            Some((rest, "rw")) => (rest, Access::ReadWrite),
            _ => (text, Access::ReadWrite),
        };
        let Some((name, target)) = rest.split_once(':') else {
            return Err(Error::invalid("volume", format!("'{}' names no path inside", text.escape_debug()))
                .with_remedy("write NAME:GUEST or NAME:GUEST:ro, such as cache:/cache"));
        };
        Ok(Self { name: name.parse().map_err(failed)?, target: MountTarget::new(target)?, access })
    }
}

/// Volumes that a sandbox uses. They are released when the sandbox closes, or when this is dropped.
#[derive(Debug)]
pub struct Volumes {
    mounts: Vec<(Mount, Option<DirectoryId>)>,
    open: Mutex<Vec<OpenVolume>>,
    to_error: fn(VolumeError) -> Error,
}

impl Volumes {
    /// Locks volumes for a sandbox of an isolation level. `purpose` is shown to other users of the volumes. Blocks while
    /// a file system that was a disk of a VM is created again.
    ///
    /// # Errors
    /// Those of [`Store::open_volume`].
    pub fn open(
        store: &Store,
        wanted: &[VolumeMount],
        level: Level,
        purpose: &str,
    ) -> std::result::Result<Self, VolumeError> {
        let mut volumes = Self { mounts: Vec::new(), open: Mutex::default(), to_error: failed };
        for wanted in wanted {
            if let Err(error) = volumes.open_one(store, wanted, level, purpose) {
                // A disk that no VM has written to is none again. The first error counts.
                for opened in volumes.open.into_inner() {
                    let _ = opened.close();
                }
                return Err(error);
            }
        }
        Ok(volumes)
    }

    fn open_one(
        &mut self,
        store: &Store,
        wanted: &VolumeMount,
        level: Level,
        purpose: &str,
    ) -> std::result::Result<(), VolumeError> {
        let VolumeMount { name, target, access } = wanted;
        let (volume_access, mount_access) = match access {
            Access::ReadOnly => (VolumeAccess::ReadOnly, MountAccess::ReadOnly),
            Access::ReadWrite => (VolumeAccess::ReadWrite, MountAccess::ReadWrite),
        };
        let through = if level == Level::Vm { Through::Disk } else { Through::Mount };
        let opened = store.open_volume(name, &Request { access: volume_access, through, purpose })?;
        let (source, path) = match opened.contents() {
            Contents::Directory(path) => (MountSource::HostPath { path: path.clone(), access: mount_access }, path),
            Contents::Disk(path) => (MountSource::Disk { path: path.clone(), access: *access }, path),
        };
        let found = path.symlink_metadata().map_err(io("inspect", path))?;
        let id = found.is_dir().then(|| DirectoryId { device: found.dev(), inode: found.ino() });
        self.open.get_mut().push(opened);
        self.mounts.push((Mount { target: target.clone(), source }, id));
        Ok(())
    }

    /// Converts the errors of a release by this function instead of [`failed`].
    #[must_use]
    pub fn with_errors(self, to_error: fn(VolumeError) -> Error) -> Self {
        Self { to_error, ..self }
    }

    /// Adds the mounts to a spec.
    pub fn add_to(&self, builder: SpecBuilder) -> SpecBuilder {
        self.mounts.iter().fold(builder, |builder, (mount, id)| {
            let builder = match (mount.source.host_path(), id) {
                (Some(path), Some(id)) => builder.directory(path, *id),
                _ => builder,
            };
            builder.mount(mount.clone())
        })
    }

    /// Releases the volumes when the sandbox closes. Such a sandbox cannot be forked: two writers would share a file
    /// system.
    pub fn keep_for(self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        if self.mounts.is_empty() { sandbox } else { Arc::new(LayeredSandbox::new(sandbox, self)) }
    }

    /// Writes everything to the disk and releases the volumes, after their sandbox has closed.
    ///
    /// # Errors
    /// - Those of the operating system. The volumes are released in any case.
    pub async fn release(&self) -> Result<()> {
        let volumes = std::mem::take(&mut *self.open.lock());
        let closing = tokio::task::spawn_blocking(move || {
            // Each one is closed, also after an error.
            let closed: Vec<_> = volumes.into_iter().map(OpenVolume::close).collect();
            closed.into_iter().collect::<std::result::Result<(), VolumeError>>()
        });
        let ended = |error| Error::new(ErrorKind::Internal, "volume", "a volume was not closed").with_source(error);
        closing.await.map_err(ended)?.map_err(self.to_error)
    }
}

/// Returns the error for snapshots of sandboxes with volumes: a snapshot lacks the files of a volume, which change.
#[must_use]
pub fn without_snapshots(operation: &'static str) -> Error {
    Error::unsupported(operation, "a sandbox with volumes has no snapshots: the files of its volumes change without it")
        .with_remedy("leave out --volume")
}

#[async_trait]
impl SandboxLayer for Volumes {
    async fn snapshot(&self, _inner: &dyn Sandbox) -> Result<Snapshot> {
        Err(without_snapshots("snapshot"))
    }

    async fn fork(&self, _inner: &Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        Err(Error::unsupported("fork", "a sandbox with volumes cannot be forked: both would use one file system"))
    }

    async fn close(&self, inner: &dyn Sandbox) -> Result<()> {
        // A sandbox that was not closed may still write.
        inner.close().await?;
        self.release().await
    }
}

/// Converts an error of volumes to one of the contract.
#[must_use]
pub fn failed(error: VolumeError) -> Error {
    let (kind, remedy) = kind_and_remedy(&error);
    let retry = if matches!(error, VolumeError::InUse { .. }) { Retry::MayHelp } else { Retry::Never };
    let converted = Error::new(kind, "volume", error.to_string()).with_retry(retry);
    let converted = match error {
        VolumeError::Tree(_) | VolumeError::Mount { .. } => converted.with_fault(Fault::Host),
        _ => converted,
    };
    match remedy {
        Some(remedy) => converted.with_remedy(remedy),
        None => converted,
    }
}

fn kind_and_remedy(error: &VolumeError) -> (ErrorKind, Option<String>) {
    let (kind, remedy) = match error {
        VolumeError::InvalidName { .. } => (ErrorKind::InvalidInput, None),
        VolumeError::InvalidSize { .. } => (ErrorKind::InvalidInput, Some("use a size such as 64M, 1G or none")),
        VolumeError::NotFound { .. } => {
            (ErrorKind::NotFound, Some("see `cofferdam volume ls`, or create it: `cofferdam volume create NAME`"))
        }
        VolumeError::Exists { .. } => {
            (ErrorKind::Conflict, Some("use another name, or delete it: `cofferdam volume rm NAME`"))
        }
        VolumeError::InUse { .. } => {
            (ErrorKind::Conflict, Some("wait until it ends; only readers (:ro) share a volume"))
        }
        VolumeError::TooMany { .. } => (ErrorKind::ResourceExhausted, Some("delete some: `cofferdam volume rm NAME`")),
        VolumeError::Exposed { .. } => {
            (ErrorKind::Denied, Some("use a directory of this user that no other user can write to"))
        }
        VolumeError::Damaged { .. } => {
            (ErrorKind::Io, Some("delete it: `cofferdam volume rm NAME`; a VM may still be able to read its disk"))
        }
        VolumeError::Unclean { .. } => {
            (ErrorKind::Conflict, Some("use the volume once without :ro, which writes the journal"))
        }
        VolumeError::Malformed { .. } => (ErrorKind::InvalidInput, None),
        VolumeError::TooLarge { .. } => (ErrorKind::ResourceExhausted, Some("raise the limit with --max-size")),
        VolumeError::DoesNotFit { .. } => (ErrorKind::ResourceExhausted, Some("use a larger --size")),
        VolumeError::Stream { source, .. } => (io_kind(source), None),
        VolumeError::Mount { source, .. } => match source {
            LoopError::Denied(_) => (
                ErrorKind::Unavailable,
                Some(
                    "run as root, use level vm, or a volume without a size: `cofferdam volume create NAME --size none`",
                ),
            ),
            LoopError::Unavailable { .. } => (
                ErrorKind::Unavailable,
                Some("load the kernel module: `modprobe loop`; in a container, add /dev/loop-control and /dev/loop*"),
            ),
            _ => (ErrorKind::Io, None),
        },
        VolumeError::Tree(TreeError::MissingTool { .. }) => (
            ErrorKind::Unavailable,
            Some(
                "install it: on Debian and Ubuntu `apt-get install e2fsprogs`; a volume with `--size none` does not need \
                 it",
            ),
        ),
        VolumeError::Tree(TreeError::Distrust(distrust)) => return (ErrorKind::Denied, Some(distrust.remedy())),
        VolumeError::Tree(TreeError::Io { source, .. }) | VolumeError::Io { source, .. } => (io_kind(source), None),
        VolumeError::Tree(TreeError::ToolFailed { output, .. }) if output.contains("No space left") => {
            (ErrorKind::ResourceExhausted, Some("free space on the disk"))
        }
        VolumeError::Tree(_) => (ErrorKind::Unavailable, None),
    };
    (kind, remedy.map(str::to_owned))
}

fn io_kind(error: &std::io::Error) -> ErrorKind {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::ResourceExhausted,
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidData => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_named_with_its_path_and_access() {
        let read = |text: &str| text.parse::<VolumeMount>().ok().map(|it| (it.name.to_string(), it.target, it.access));
        let expect =
            |name: &str, target: &str, access| Some((name.to_owned(), MountTarget::new(target).unwrap(), access));
        assert_eq!(read("cache:/c"), expect("cache", "/c", Access::ReadWrite));
        assert_eq!(read("cache:/c/d:ro"), expect("cache", "/c/d", Access::ReadOnly));
        assert_eq!(read("a.b:/ro:rw"), expect("a.b", "/ro", Access::ReadWrite));
        for bad in ["", "cache", "cache:", ":/c", "cache:c", "../x:/c", "cache:/c:cow", "cache:/proc"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_remedy_fits_its_error() {
        let in_use = failed(VolumeError::InUse { name: "v".into(), by: "process 1".into() });
        assert_eq!((in_use.kind(), in_use.retry()), (ErrorKind::Conflict, Retry::MayHelp));
        let missing = failed(VolumeError::Tree(TreeError::MissingTool { tool: "mkfs.ext4" }));
        assert!(missing.remedy().is_some_and(|remedy| remedy.contains("e2fsprogs")));
    }
}
