//! The root of an image: its layers below one with files of the sandbox's own, merged by overlayfs.

use std::ffi::{CString, OsStr};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use cofferdam_linux::mount::{self, Depth, attr};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::host_mounts::open_same;
use super::{Build, READ_ONLY, c_path};
use crate::launcher::{Named, Step};
use crate::protocol::{Failure, LayerPlan, MountPoint};

/// The directory of the template in which layers are mounted, while the root is built.
const SCRATCH: &str = ".image";

impl Build {
    /// Mounts the top level of an image. Missing mount points and the network's files of `/etc` are in a layer above.
    pub fn image_root(&mut self, layers: &[LayerPlan], points: &[MountPoint]) -> Step<()> {
        self.directory(Path::new(SCRATCH))?;
        let scratch = open_directory(self.root.as_fd(), OsStr::new(SCRATCH)).step("open the scratch directory")?;
        for (index, layer) in layers.iter().enumerate() {
            let opened = open_same("layer of the image", &layer.path, (layer.device, layer.inode), None)?;
            let tree = mount::clone_tree(opened.as_fd(), c"", Depth::Single).step("copy the mount of a layer")?;
            mount::add_attributes(tree.as_fd(), Depth::Single, READ_ONLY).step("restrict a layer")?;
            let name = index.to_string();
            rustix::fs::mkdirat(&scratch, &name, Mode::from_raw_mode(0o755)).step("create a mount point of a layer")?;
            mount::attach(tree.as_fd(), scratch.as_fd(), &c_path(Path::new(&name))).step("attach a layer")?;
        }
        for name in ["own", "merged"] {
            rustix::fs::mkdirat(&scratch, name, Mode::from_raw_mode(0o755)).step("create the image's own layer")?;
        }
        let options = [(c"size", c"1m"), (c"nr_inodes", c"4096"), (c"mode", c"0755")];
        let own = mount::new_filesystem(c"tmpfs", &options, attr::NOSUID | attr::NODEV)
            .step("create a tmpfs for the image's own layer")?;
        mount::attach(own.as_fd(), scratch.as_fd(), c"own").step("attach the image's own layer")?;
        write_network_files(&own)?;
        if !points.is_empty() {
            let merged = merge(&scratch, layers.len())?;
            for point in points {
                add_mount_point(&own, &merged, point)?;
            }
        }
        let merged = merge(&scratch, layers.len())?;
        mount::attach(merged.as_fd(), scratch.as_fd(), c"merged").step("attach the image")?;
        self.top_levels(merged.as_fd(), Path::new("of the image"))?;
        // The entries keep the overlay, and the overlay its layers.
        let names = (0..layers.len()).map(|index| index.to_string()).chain(["own", "merged"].map(str::to_owned));
        for name in names {
            let path = Path::new(super::BUILD_MOUNT_POINT).join(SCRATCH).join(&name);
            mount::detach(&c_path(&path)).step("detach a layer")?;
            rustix::fs::unlinkat(&scratch, &name, AtFlags::REMOVEDIR).step("remove a mount point of a layer")?;
        }
        rustix::fs::unlinkat(&self.root, SCRATCH, AtFlags::REMOVEDIR).step("remove the scratch directory")
    }
}

/// Merges the layers. Returns a detached mount.
fn merge(scratch: &OwnedFd, count: usize) -> Step<OwnedFd> {
    // The names are relative, because the kernel takes at most 255 bytes.
    let here = rustix::fs::open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let here = here.step("keep the working directory")?;
    rustix::process::fchdir(scratch).step("enter the scratch directory")?;
    let names: Vec<_> = ["own".to_owned()].into_iter().chain((0..count).rev().map(|index| index.to_string())).collect();
    let merged = CString::new(names.join(":")).step("name the layers").and_then(|names| {
        let options = [(c"lowerdir", names.as_c_str()), (c"userxattr", c"")];
        mount::new_filesystem(c"overlay", &options, READ_ONLY)
            .step("merge the layers of the image (overlayfs; as an ordinary user it needs Linux 5.11)")
    });
    rustix::process::fchdir(&here).step("leave the scratch directory")?;
    merged
}

/// Writes the files of `/etc` that lead look-ups to the sandbox's own resolver.
fn write_network_files(own: &OwnedFd) -> Step<()> {
    rustix::fs::mkdirat(own, "etc", Mode::from_raw_mode(0o755)).step("create /etc")?;
    let resolver = format!("nameserver {}\n", cofferdam_egress::RESOLVER);
    for (name, contents) in [
        ("etc/resolv.conf", resolver.as_str()),
        ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
        ("etc/hostname", "sandbox\n"),
    ] {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(own, name, flags, Mode::from_raw_mode(0o444)).step("create a file of /etc")?;
        std::fs::File::from(file).write_all(contents.as_bytes()).step("write a file of /etc")?;
    }
    Ok(())
}

/// Creates what is missing of a mount point in the layer of the sandbox's own. Follows no link of the image.
fn add_mount_point(own: &OwnedFd, merged: &OwnedFd, point: &MountPoint) -> Step<()> {
    let step = |what: &str| format!("{what} the mount target {}", point.target.display());
    let names: Vec<_> = point.target.components().filter_map(normal).collect();
    let mut path = PathBuf::new();
    for (index, name) in names.iter().enumerate() {
        let is_file = index + 1 == names.len() && !point.is_directory;
        path.push(name);
        match kind(merged.as_fd(), &path) {
            Ok(FileType::Directory) if !is_file => continue,
            Ok(FileType::RegularFile) if is_file => return Ok(()),
            Ok(FileType::Symlink) => return Err(Failure { step: step("use"), errno: libc::ELOOP }),
            Ok(FileType::Directory) => return Err(Failure { step: step("use"), errno: libc::EISDIR }),
            Ok(_) => return Err(Failure { step: step("use"), errno: libc::ENOTDIR }),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(Failure { step: step("inspect"), errno: error.raw_os_error() }),
        }
        let parents = path.parent().into_iter().flat_map(Path::components).filter_map(normal);
        let mut parent = PathBuf::new();
        for name in parents {
            parent.push(name);
            create(own, &parent, FileType::Directory).step(&step("create"))?;
        }
        create(own, &path, if is_file { FileType::RegularFile } else { FileType::Directory }).step(&step("create"))?;
    }
    Ok(())
}

fn normal(part: Component<'_>) -> Option<&OsStr> {
    match part {
        Component::Normal(name) => Some(name),
        _ => None,
    }
}

/// Returns the type of a file of the image, whose parents are no links.
fn kind(merged: BorrowedFd<'_>, path: &Path) -> Result<FileType, Errno> {
    let stat = rustix::fs::statat(merged, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

fn create(own: &OwnedFd, path: &Path, kind: FileType) -> Result<(), Errno> {
    let created = match kind {
        FileType::RegularFile => rustix::fs::mknodat(own, path, kind, Mode::from_raw_mode(0o444), 0),
        _ => rustix::fs::mkdirat(own, path, Mode::from_raw_mode(0o755)),
    };
    match created {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

fn open_directory(above: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(above, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
