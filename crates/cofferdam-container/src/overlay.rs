//! Copy-on-write directories: overlays, mounted for the engine until it has bound them into the container.
//!
//! ```text
//! host directory --read-only, owner mapped--> lower --.
//! tmpfs of the size of the disk limit ------> upper --+--overlay--> /run/cofferdam-disks/NAME --bind--> container
//! ```
//!
//! The container's mount keeps the overlay, and the overlay keeps both layers, so nothing remains mounted on the host
//! once the container is created. The upper layer ends with the container and this process, which reads the changes
//! from it. `disks.rs` removes what a process that was killed during a create has left.
//!
//! Each step may be refused: by the kernel, by the host directory's file system, or since the engine does not see the
//! mounts of this process. The create then fails with `Unsupported`, and a caller may copy the directory instead.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cofferdam_changes::sandbox::OverlayLayer;
use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_linux::mount::{self, Depth, attr};
use cofferdam_linux::named::Directory;
use cofferdam_util::sha256;
use rustix::fs::{Gid, Mode, OFlags, Uid, mkdirat, openat};

use crate::disks::{self, MountPoint, show_owner_as};
use crate::engine::Facts;
use crate::labels::Owner;
use crate::sizes::max_files;

/// Returns true if this process may mount overlays.
pub(crate) fn is_permitted() -> bool {
    rustix::process::geteuid().is_root()
}

/// Creates the error for a refused overlay.
pub(crate) fn refused(why: impl std::fmt::Display) -> Error {
    Error::unsupported("create", format!("no overlay for a copy-on-write directory: {why}")).with_remedy(
        "use an engine of root on this machine, as root, or level process; a workspace can be copied instead",
    )
}

/// Creates the error for an engine that does not see the mounts of this process.
pub(crate) fn not_seen() -> Error {
    refused("the engine does not see the mounts of this process")
}

/// Returns true if an error means that the engine does not see a mount of this process.
pub(crate) fn is_not_seen(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound && error.context().any(|(_, value)| value.contains(disks::DIRECTORY))
}

/// Fails if containers of this engine and runtime cannot have overlays of this process.
pub(crate) fn check(facts: &Facts, runtime: Option<&str>) -> Result<()> {
    let why = match facts {
        _ if !is_permitted() => "only root can mount it for a container",
        Facts { local: false, .. } => "the engine runs on another machine",
        Facts { rootless: true, .. } | Facts { remapped: true, .. } => "the engine is rootless or has remapped users",
        _ if facts.has_own_kernel(runtime) => "the runtime has its own kernel and creates files as root",
        _ => return Ok(()),
    };
    Err(refused(why))
}

/// The upper layers of one sandbox, in a tmpfs of their own.
#[derive(Debug)]
pub(crate) struct Layers {
    files: OwnedFd,
    /// The kernel accepts attached layers only. They are detached once the overlays exist.
    _attached: MountPoint,
    user: (u32, u32),
    owner: Owner,
}

impl Layers {
    /// Creates the tmpfs for a sandbox's user. Without a size, it has the kernel's default.
    pub(crate) fn new(size: Option<u64>, user: (u32, u32), owner: &Owner) -> Result<Self> {
        let failed = |error: io::Error| refused(format_args!("cannot mount the tmpfs of its layer: {error}"));
        let sizes = size.map(|bytes| (number(bytes), number(max_files(bytes))));
        let mut options = vec![(c"mode", c"0700")];
        if let Some((bytes, files)) = &sizes {
            options.extend([(c"size", bytes.as_c_str()), (c"nr_inodes", files.as_c_str())]);
        }
        let files = mount::new_filesystem(c"tmpfs", &options, attr::NOSUID | attr::NODEV).map_err(failed)?;
        let attached = MountPoint::attach(files.as_fd(), owner).map_err(failed)?;
        Ok(Self { files, _attached: attached, user, owner: owner.clone() })
    }

    /// Mounts a layer over a host directory. `target` is its path inside, which differs for each. The layer is empty,
    /// or a copy of another one.
    pub(crate) fn over(&self, lower: &Directory, target: &str, origin: Option<&OverlayLayer>) -> Result<Overlay> {
        let name = &sha256::of(target)[..16];
        let failed = |what: &'static str| move |error: io::Error| refused(format_args!("cannot {what}: {error}"));
        let tree = self.lower(lower, name).map_err(failed("mount the directory below it"))?;
        let upper = self.directory(&format!("{name}-upper")).map_err(failed("create its layer"))?;
        if let Some(origin) = origin {
            origin.copy_upper(upper.as_fd(), self.user).map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull => {
                    Error::new(ErrorKind::ResourceExhausted, "create", "the changes do not fit into the disk limit")
                        .with_source(error)
                        .with_remedy("raise --disk")
                }
                _ => failed("copy its layer")(error),
            })?;
        }
        self.mount(&tree, lower, name, (upper, origin)).map_err(failed("mount it"))
    }

    /// Attaches the host directory, read-only and without mounts below. Its owner appears as the sandbox's user.
    fn lower(&self, lower: &Directory, name: &str) -> io::Result<OwnedFd> {
        let tree = mount::clone_tree(lower.as_fd(), c"", Depth::Single)?;
        mount::add_attributes(tree.as_fd(), Depth::Single, attr::RDONLY | attr::NOSUID | attr::NODEV)?;
        if lower.owner() != self.user {
            show_owner_as(tree.as_fd(), lower.owner(), self.user)
                .map_err(|error| io::Error::other(format!("its file system cannot map owners: {error}")))?;
        }
        let target = self.directory(&format!("{name}-lower"))?;
        mount::attach_onto(tree.as_fd(), target.as_fd())?;
        Ok(tree)
    }

    fn mount(
        &self,
        tree: &OwnedFd,
        lower: &Directory,
        name: &str,
        (upper, origin): (OwnedFd, Option<&OverlayLayer>),
    ) -> io::Result<Overlay> {
        let mode = rustix::fs::fstat(origin.map_or(lower.as_fd(), |origin| origin.upper.as_fd()))?.st_mode & 0o777;
        rustix::fs::fchmod(&upper, Mode::from_raw_mode(mode))?;
        rustix::fs::fchown(&upper, Some(Uid::from_raw(self.user.0)), Some(Gid::from_raw(self.user.1)))?;
        let work = self.directory(&format!("{name}-work"))?;
        let paths = [path(tree.as_fd())?, path(upper.as_fd())?, path(work.as_fd())?];
        // Without references to other files in the upper layer, which the capture of changes does not follow.
        let options: [(&CStr, &CStr); 5] = [
            (c"lowerdir", &paths[0]),
            (c"upperdir", &paths[1]),
            (c"workdir", &paths[2]),
            (c"redirect_dir", c"nofollow"),
            (c"metacopy", c"off"),
        ];
        let layered = mount::new_filesystem(c"overlay", &options, attr::NOSUID | attr::NODEV)?;
        let root = rustix::fs::fstat(&layered)?;
        let point = MountPoint::attach(layered.as_fd(), &self.owner)?;
        Ok(Overlay { point, upper, device: root.st_dev, inode: root.st_ino })
    }

    /// Creates and opens a directory of the tmpfs.
    fn directory(&self, name: &str) -> io::Result<OwnedFd> {
        mkdirat(&self.files, name, Mode::from_raw_mode(0o700))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.files, name, flags, Mode::empty())?)
    }
}

/// A mounted overlay.
#[derive(Debug)]
pub(crate) struct Overlay {
    pub point: MountPoint,
    /// The directory that takes the changes.
    pub upper: OwnedFd,
    pub device: u64,
    pub inode: u64,
}

fn number(value: u64) -> CString {
    CString::new(value.to_string()).unwrap_or_default()
}

/// Returns a path of an open directory, which shows nothing about the host to guests that read the mount's options.
fn path(directory: BorrowedFd<'_>) -> io::Result<CString> {
    CString::new(format!("/proc/self/fd/{}/", directory.as_raw_fd())).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn only_errors_about_mounts_of_this_process_mean_that_the_engine_does_not_see_them() {
        let error = |kind, path: &str| Error::new(kind, "create", "gone").with_context("path", path);
        assert!(is_not_seen(&error(ErrorKind::NotFound, "statfs /run/cofferdam-disks/1-2-3-0: no such file")));
        assert!(!is_not_seen(&error(ErrorKind::NotFound, "statfs /home/user/project: no such file")));
        assert!(!is_not_seen(&error(ErrorKind::Denied, "/run/cofferdam-disks/1-2-3-0")));
    }

    #[test]
    fn a_layer_of_a_fork_that_does_not_fit_is_about_the_disk_limit() {
        if !is_permitted() {
            println!("SKIP a_layer_of_a_fork_that_does_not_fit_is_about_the_disk_limit: only root can mount overlays");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("large"), vec![1; 2 << 20]).unwrap();
        let open = || Directory::open(&directory.path().canonicalize().unwrap()).unwrap();
        let upper = std::fs::File::open(directory.path()).unwrap().into();
        let requested = std::time::SystemTime::now();
        let origin = OverlayLayer { base: open(), upper, marks: cofferdam_changes::Marks::Trusted, requested };
        for (size, expected) in [(1, Err(ErrorKind::ResourceExhausted)), (4, Ok(()))] {
            let layers = Layers::new(Some(size << 20), (0x7100_0000, 0x7100_0000), &Owner::this().unwrap()).unwrap();
            let mounted = layers.over(&open(), "/workspace", Some(&origin));
            assert_eq!(mounted.map(drop).map_err(|error| error.kind()), expected, "{size} MiB");
        }
    }

    /// Promise (Containers): Overlays and layers of a supervisor that was killed during a create are detached by the
    /// next.
    #[test]
    fn mounts_of_a_killed_process_are_swept() {
        if !is_permitted() {
            println!("SKIP mounts_of_a_killed_process_are_swept: only root can mount overlays");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        chown(directory.path(), Some(4711), Some(4711)).unwrap();
        let this = Owner::this().unwrap();
        let killed = Owner { start: this.start + 1, ..this.clone() };
        let lower = Directory::open(&directory.path().canonicalize().unwrap()).unwrap();
        let layers = Layers::new(Some(1 << 20), (0x7100_0000, 0x7100_0000), &killed).unwrap();
        let overlay = layers.over(&lower, "/workspace", None).unwrap();
        let paths = [layers._attached.path().to_owned(), overlay.point.path().to_owned()];
        let mounted = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let is_mounted = |text: &str| paths.iter().filter(|path| text.contains(&*path.to_string_lossy())).count();
        assert_eq!(is_mounted(&mounted()), 2);
        std::mem::forget((layers, overlay));
        disks::sweep(&this);
        assert_eq!(is_mounted(&mounted()), 0);
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
