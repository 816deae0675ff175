//! Mounts: host files, host directories, disks and memory at paths of a sandbox.

use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Access, ByteSize, Error, ErrorKind, Result, WORKSPACE_PATH};

/// The most mounts of a sandbox.
pub const MAX_MOUNTS: usize = 32;
/// The most bytes of a target.
const MAX_TARGET: usize = 1024;
/// The most components of a target.
const MAX_TARGET_DEPTH: usize = 32;
/// Directories that every sandbox has for itself, in which nothing can be mounted.
const RESERVED: [&str; 5] = ["/proc", "/sys", "/dev", "/code", "/run"];

/// The path of a mount inside the sandbox: absolute, without `.`, `..` and empty components, and not `/` itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct MountTarget(String);

impl MountTarget {
    /// Parses a target such as `/data`.
    ///
    /// # Errors
    /// - `InvalidInput` for a relative path, one with `..`, `:`, `,` or control characters, one of more than 1024 bytes
    ///   or 32 components, `/`, `/workspace`, and paths in `/proc`, `/sys`, `/dev`, `/code` and `/run`.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let refuse = |message: &str| {
            Err(Error::invalid("create", message.to_owned()).with_context("target", text.escape_debug().to_string()))
        };
        if !text.starts_with('/') {
            return refuse("the target of a mount must be an absolute path in the sandbox");
        }
        if text.len() > MAX_TARGET || text.chars().any(char::is_control) {
            return refuse("the target of a mount must be at most 1024 bytes without control characters");
        }
        // They separate the parts of a mount on command lines and in the options of engines.
        if text.contains([':', ',']) {
            return refuse("the target of a mount must not contain ':' or ','; the access is ro, rw or cow");
        }
        let parts: Vec<_> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if parts.contains(&"..") {
            return refuse("the target of a mount must not contain '..'");
        }
        if parts.is_empty() || parts.len() > MAX_TARGET_DEPTH || parts.iter().any(|part| part.len() > 255) {
            return refuse("the target of a mount must be below '/', with at most 32 components of 255 bytes");
        }
        let target = format!("/{}", parts.join("/"));
        if target == WORKSPACE_PATH {
            return Err(Error::invalid("create", "the workspace is no target of a mount")
                .with_remedy("use --workspace DIR, or a target below /workspace"));
        }
        if RESERVED.iter().any(|reserved| Path::new(&target).starts_with(reserved)) {
            return refuse("every sandbox has its own /proc, /sys, /dev, /code and /run: nothing can be mounted there");
        }
        Ok(Self(target))
    }

    /// Returns the target as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the target as a path.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for MountTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for MountTarget {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<MountTarget> for String {
    fn from(target: MountTarget) -> Self {
        target.0
    }
}

/// The guest's access to a mounted host path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MountAccess {
    /// Every write fails. The default.
    #[default]
    ReadOnly,
    /// Code may create, change and delete files on the host.
    ReadWrite,
    /// Code sees the host's files, and all changes go to a layer of the sandbox's own, which the disk limit bounds. They
    /// are lost when the sandbox ends. For directories only.
    CopyOnWrite,
}

/// A mount in a sandbox, besides its root and its workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// The path inside the sandbox.
    pub target: MountTarget,
    /// The files there.
    pub source: MountSource,
}

/// The files of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum MountSource {
    /// A host directory or a regular file.
    HostPath {
        /// The absolute path on the host.
        path: PathBuf,
        /// The guest's access. Default: read-only.
        #[serde(default)]
        access: MountAccess,
    },
    /// An empty directory in memory, deleted with the sandbox. Its contents count as memory of the sandbox if a control
    /// group limits that, and else are bounded by the size alone.
    Tmpfs {
        /// The most bytes that it stores.
        size: ByteSize,
    },
    /// An ext4 file system in a file of the host. The file system's size is the limit of what it stores.
    Disk {
        /// The absolute path of the file.
        path: PathBuf,
        /// The guest's access. Default: read-write.
        #[serde(default)]
        access: Access,
    },
}

impl MountSource {
    /// Returns the path on the host, if it has one.
    pub fn host_path(&self) -> Option<&Path> {
        match self {
            Self::HostPath { path, .. } | Self::Disk { path, .. } => Some(path),
            Self::Tmpfs { .. } => None,
        }
    }

    /// Returns true if code writes to the host's own files, whose sum nothing limits.
    pub fn is_unlimited(&self) -> bool {
        matches!(self, Self::HostPath { access: MountAccess::ReadWrite, .. })
    }

    /// Makes files and disks of the host read-only. Memory stays writable.
    pub(crate) fn make_read_only(&mut self) {
        match self {
            Self::HostPath { access, .. } => *access = MountAccess::ReadOnly,
            Self::Disk { access, .. } => *access = Access::ReadOnly,
            Self::Tmpfs { .. } => {}
        }
    }

    /// Returns true if every write fails.
    pub fn is_read_only(&self) -> bool {
        matches!(
            self,
            Self::HostPath { access: MountAccess::ReadOnly, .. } | Self::Disk { access: Access::ReadOnly, .. }
        )
    }
}

/// Checks the mounts of a spec, of which each may be valid alone.
///
/// # Errors
/// - `InvalidInput` for more than [`MAX_MOUNTS`], two with one target, a relative host path, and a tmpfs without bytes.
pub fn validate_mounts(mounts: &[Mount]) -> Result<()> {
    if mounts.len() > MAX_MOUNTS {
        return Err(Error::invalid("create", format!("a sandbox may have at most {MAX_MOUNTS} mounts")));
    }
    for (index, mount) in mounts.iter().enumerate() {
        let refuse = |message: &str| {
            Err(Error::invalid("create", message.to_owned()).with_context("target", mount.target.to_string()))
        };
        if mounts[..index].iter().any(|other| other.target == mount.target) {
            return refuse("two mounts have the same target");
        }
        match &mount.source {
            MountSource::Tmpfs { size } if size.as_bytes() == 0 => return refuse("a tmpfs needs a size"),
            source if source.host_path().is_some_and(|path| !path.is_absolute()) => {
                return refuse("the host path of a mount must be absolute");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the error of a backend that has no mounts, or none of this kind.
pub fn unsupported_mount(mount: &Mount, reason: &str) -> Error {
    Error::new(ErrorKind::Unsupported, "create", reason.to_owned()).with_context("target", mount.target.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tmpfs(target: &str) -> Mount {
        Mount {
            target: MountTarget::new(target).unwrap(),
            source: MountSource::Tmpfs { size: ByteSize::from_bytes(1) },
        }
    }

    /// Promise (Contract): A mount can have any target that the sandbox does not need for itself.
    #[test]
    fn targets_are_normalized_or_refused() {
        let normal = |text: &str| MountTarget::new(text).map(String::from).ok();
        assert_eq!(normal("/data//x/./y/"), Some("/data/x/y".to_owned()));
        assert_eq!(normal("/workspace/cache"), Some("/workspace/cache".to_owned()));
        assert_eq!(normal("/devices"), Some("/devices".to_owned()));
        for bad in [
            "",
            "data",
            "/",
            "//.",
            "/a/../b",
            "/workspace",
            "/workspace/.",
            "/proc",
            "/sys/x",
            "/dev/shm",
            "/run/x",
            "/a:cwo",
            "/a,b",
        ] {
            assert_eq!(normal(bad), None, "{bad}");
        }
        for bad in
            [format!("/{}", "x".repeat(256)), "/a\nb".to_owned(), "/x".repeat(33), format!("/{}", "x/".repeat(600))]
        {
            assert_eq!(normal(&bad), None, "{bad:?}");
        }
        assert!(serde_json::from_str::<MountTarget>("\"/a/../b\"").is_err());
    }

    #[test]
    fn contradicting_mounts_are_refused() {
        assert!(validate_mounts(&[tmpfs("/a"), tmpfs("/a/b")]).is_ok());
        assert!(validate_mounts(&[tmpfs("/a"), tmpfs("/a/")]).is_err());
        let many: Vec<_> = (0..=MAX_MOUNTS).map(|number| tmpfs(&format!("/{number}"))).collect();
        assert!(validate_mounts(&many[1..]).is_ok() && validate_mounts(&many).is_err());
        let source = MountSource::HostPath { path: "x".into(), access: MountAccess::ReadOnly };
        assert!(validate_mounts(&[Mount { source, ..tmpfs("/a") }]).is_err());
        assert!(
            validate_mounts(&[Mount { source: MountSource::Tmpfs { size: ByteSize::from_bytes(0) }, ..tmpfs("/a") }])
                .is_err()
        );
    }

    #[test]
    fn a_mount_round_trips_through_json() {
        let text = r#"{"target":"/d","source":{"kind":"host-path","path":"/srv/d"}}"#;
        let mount: Mount = serde_json::from_str(text).unwrap();
        assert!(mount.source.is_read_only() && !mount.source.is_unlimited());
        let again: Mount = serde_json::from_str(&serde_json::to_string(&mount).unwrap()).unwrap();
        assert_eq!(mount, again);
    }
}
