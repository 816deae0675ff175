//! Mount points in the template: empty directories and files that sandboxes cover.

use std::path::{Component, Path};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::Build;
use crate::launcher::{Named, Step};
use crate::protocol::{Failure, MountPoint};

impl Build {
    /// Creates a mount point, or finds it. Follows no link, and creates nothing outside the template's own file system.
    pub fn mount_point(&self, point: &MountPoint) -> Step<()> {
        let MountPoint { target, is_directory } = point;
        let step = |what: &str| format!("{what} the mount target {}", target.display());
        let device = rustix::fs::fstat(&self.root).step("inspect the template")?.st_dev;
        let mut at = self.root.try_clone().step("keep the template")?;
        let mut names = target.components().filter_map(|part| match part {
            Component::Normal(name) => Some(Path::new(name)),
            _ => None,
        });
        let mut next = names.next();
        while let Some(name) = next {
            next = names.next();
            let is_file = next.is_none() && !is_directory;
            let open = || {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat2(
                    &at,
                    name,
                    flags,
                    Mode::empty(),
                    ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
                )
            };
            let opened = match open() {
                Err(Errno::NOENT) => {
                    if rustix::fs::fstat(&at).step(&step("inspect"))?.st_dev != device {
                        return Err(Failure { step: step("find"), errno: libc::ENOENT });
                    }
                    let (mode, kind) =
                        if is_file { (0o444, FileType::RegularFile) } else { (0o755, FileType::Directory) };
                    match kind {
                        FileType::RegularFile => {
                            rustix::fs::mknodat(&at, name, kind, Mode::from_raw_mode(mode), 0).step(&step("create"))?;
                        }
                        _ => rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(mode)).step(&step("create"))?,
                    }
                    open().step(&step("open"))?
                }
                opened => opened.step(&step("open"))?,
            };
            let stat = rustix::fs::statat(&opened, "", AtFlags::EMPTY_PATH).step(&step("inspect"))?;
            let errno = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => libc::ELOOP,
                FileType::Directory if is_file => libc::EISDIR,
                FileType::Directory => 0,
                FileType::RegularFile if is_file => 0,
                _ => libc::ENOTDIR,
            };
            if errno != 0 {
                return Err(Failure { step: step("use"), errno });
            }
            at = opened;
        }
        Ok(())
    }
}
