//! The mounts that are visible inside.
//!
//! The root file system is read-only. Only the workspace, `/tmp` and `/dev/shm` are writable, each with a size limit.
//! `/dev` contains the few devices that programs expect, and no devices of the VM.

use super::devices;
use super::failure::{Failure, Step};
use super::options::{DiskMount, MAX_MOUNTS, Options, Room, Store};
use super::sys::{self, Fd, MS_BIND, MS_MOVE, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT};
use super::text::Text;

const PLAIN: usize = MS_NOSUID | MS_NODEV;
const CLOSED: usize = PLAIN | MS_NOEXEC;
const ROOT: &[u8] = b"/root\0";
const HOST_NAME: &[u8] = b"sandbox";
/// Writable directories of the sandbox's own.
const OWN: [&[u8]; 2] = [b"/workspace/", b"/tmp/"];

/// Devices that all programs may expect.
const DEVICES: [(&[u8], u32, u32); 6] = [
    (b"/root/dev/null\0", 1, 3),
    (b"/root/dev/zero\0", 1, 5),
    (b"/root/dev/full\0", 1, 7),
    (b"/root/dev/random\0", 1, 8),
    (b"/root/dev/urandom\0", 1, 9),
    (b"/root/dev/tty\0", 5, 0),
];
const LINKS: [(&[u8], &[u8]); 5] = [
    (b"/proc/self/fd\0", b"/root/dev/fd\0"),
    (b"/proc/self/fd/0\0", b"/root/dev/stdin\0"),
    (b"/proc/self/fd/1\0", b"/root/dev/stdout\0"),
    (b"/proc/self/fd/2\0", b"/root/dev/stderr\0"),
    (b"pts/ptmx\0", b"/root/dev/ptmx\0"),
];

/// Mounts the file systems that the init needs to find devices.
pub fn first() -> Result<(), Failure> {
    directory(ROOT)?;
    for (kind, target, flags) in [
        (&b"devtmpfs\0"[..], &b"/dev\0"[..], MS_NOSUID | MS_NOEXEC),
        (b"proc\0", b"/proc\0", CLOSED),
        (b"sysfs\0", b"/sys\0", CLOSED),
    ] {
        directory(target)?;
        mount(kind, target, kind, flags, b"")?;
    }
    sys::set_host_name(HOST_NAME).step("set the host name of", b"the VM")
}

/// Mounts the root file system, and the kernel's file systems in it.
pub fn root(options: &Options<'_>) -> Result<(), Failure> {
    let disk = devices::disk(options.root)?;
    if need_overlay(options) {
        root_with_mount_points(&disk, options)?;
    } else {
        mount(disk.terminated(), ROOT, b"ext4\0", MS_RDONLY | PLAIN, b"")?;
    }
    mount(b"sysfs\0", b"/root/sys\0", b"sysfs\0", CLOSED | MS_RDONLY, b"")?;
    mount(b"tmpfs\0", b"/root/dev\0", b"tmpfs\0", MS_NOSUID | MS_NOEXEC, b"size=65536,nr_inodes=64,mode=0755\0")?;
    for (path, major, minor) in DEVICES {
        sys::make_device(path, 0o666, major, minor).step("create", path)?;
        sys::set_mode_at(sys::AT_FDCWD, path, 0o666).step("set the mode of", path)?;
    }
    for (target, path) in LINKS {
        sys::make_symlink(target, sys::AT_FDCWD, path).step("create", path)?;
    }
    directory(b"/root/dev/pts\0")?;
    directory(b"/root/dev/shm\0")?;
    let terminals = b"newinstance,ptmxmode=0666,mode=0600,max=1024\0";
    mount(b"devpts\0", b"/root/dev/pts\0", b"devpts\0", MS_NOSUID | MS_NOEXEC, terminals)
}

/// The writable disks that have paths of their own. The paths are not reachable for this process any more once the
/// agent has entered the root.
pub struct Disks([Option<Fd>; MAX_MOUNTS]);

/// Mounts the writable directories, and disks that have paths of their own.
pub fn writable(options: &Options<'_>) -> Result<Disks, Failure> {
    let (uid, gid) = options.user;
    memory(b"/root/tmp\0", options.tmp, PLAIN, 0o1777, (uid, gid))?;
    memory(b"/root/dev/shm\0", options.shm, CLOSED, 0o1777, (uid, gid))?;
    const WORKSPACE: &[u8] = b"/root/workspace\0";
    match options.workspace {
        Store::Memory(room) => memory(WORKSPACE, room, PLAIN, 0o700, (uid, gid))?,
        Store::Disk(disk) => {
            let disk = devices::disk(disk)?;
            workspace(&disk, WORKSPACE)?;
            let _ = sys::remove_directory(sys::AT_FDCWD, b"/root/workspace/lost+found\0");
            use_whole(&disk)?;
            sys::give_to(WORKSPACE, uid, gid).step("set the owner of", WORKSPACE)?;
            sys::set_mode_at(sys::AT_FDCWD, WORKSPACE, 0o700).step("set the mode of", WORKSPACE)?;
            // Written now, rather than some seconds later in each copy of this VM.
            sys::write_out();
        }
    }
    let disks = disks(options)?;
    // From here on, only the mounts below are writable.
    mount(b"none\0", b"/root/dev\0", b"none\0", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, b"")?;
    Ok(disks)
}

/// Returns true if the root needs mount points that its image may not have.
pub fn need_overlay(options: &Options<'_>) -> bool {
    options.mounts.iter().flatten().any(|mount| !is_in_own_directory(mount))
}

/// Returns true for a path below a writable directory, in which a mount point can be created.
fn is_in_own_directory(mount: &DiskMount<'_>) -> bool {
    OWN.iter().any(|own| mount.target.starts_with(own))
}

/// Mounts the root file system below a layer with the mount points. Neither is writable.
fn root_with_mount_points(disk: &devices::Path, options: &Options<'_>) -> Result<(), Failure> {
    const POINTS: &[u8] = b"/points\0";
    const IMAGE: &[u8] = b"/image\0";
    directory(POINTS)?;
    directory(IMAGE)?;
    mount(b"tmpfs\0", POINTS, b"tmpfs\0", CLOSED, b"size=262144,nr_inodes=192,mode=0755\0")?;
    for mount in options.mounts.iter().flatten().filter(|mount| !is_in_own_directory(mount)) {
        mount_point(b"/points", mount.target, None)?;
    }
    mount(disk.terminated(), IMAGE, b"ext4\0", MS_RDONLY | PLAIN, b"")?;
    mount(b"root\0", ROOT, b"overlay\0", MS_RDONLY | PLAIN, b"lowerdir=/points:/image\0")?;
    // The layers have mounts of their own.
    for path in [POINTS, IMAGE] {
        sys::unmount(path).step("unmount", path)?;
    }
    Ok(())
}

/// Creates a directory and those above it, below an existing one. They belong to `owner`, or to root.
fn mount_point(base: &[u8], target: &[u8], owner: Option<(u32, u32)>) -> Result<(), Failure> {
    const EEXIST: i32 = 17;
    for end in 1..=target.len() {
        if target.get(end).is_some_and(|&byte| byte != b'/') {
            continue;
        }
        let path = below(base, target.get(..end).unwrap_or_default())?;
        match (sys::make_directory(sys::AT_FDCWD, path.terminated(), 0o755), owner) {
            (Ok(()), Some((uid, gid))) => {
                sys::give_to(path.terminated(), uid, gid).step("set the owner of", path.bytes())?;
            }
            (Ok(()) | Err(EEXIST), _) => {}
            (Err(errno), _) => return Err(Failure::new("create", path.bytes(), errno)),
        }
    }
    Ok(())
}

fn below(base: &[u8], target: &[u8]) -> Result<Text<160>, Failure> {
    let mut path = Text::new();
    let created = path.push(base).and_then(|path| path.push(target)).is_some();
    if created { Ok(path) } else { Err(Failure::new("mount", target, 0)) }
}

/// Mounts the disks that have paths of their own.
fn disks(options: &Options<'_>) -> Result<Disks, Failure> {
    let mut disks = Disks([const { None }; MAX_MOUNTS]);
    for (mount, slot) in options.mounts.iter().flatten().zip(&mut disks.0) {
        // In the root, the mount points exist.
        if is_in_own_directory(mount) {
            mount_point(b"/root", mount.target, Some(options.user))?;
        }
        let (disk, path) = (devices::disk(mount.disk)?, below(b"/root", mount.target)?);
        let flags = if mount.read_only { PLAIN | MS_RDONLY } else { PLAIN };
        self::mount(disk.terminated(), path.terminated(), b"ext4\0", flags, b"")?;
        if !mount.read_only {
            *slot = Some(sys::open_directory(path.terminated()).step("open", mount.target)?);
        }
    }
    Ok(disks)
}

impl Disks {
    /// Makes them read-only, which writes everything and leaves clean file systems. No process may use them any more.
    pub fn finish(self) -> Result<(), Failure> {
        const HERE: &[u8] = b".\0";
        for directory in self.0.into_iter().flatten() {
            // The host looks for this message.
            let finished = sys::enter_open(&directory)
                .and_then(|()| sys::mount(b"none\0", HERE, b"none\0", MS_REMOUNT | MS_RDONLY | PLAIN, b""));
            finished.step("finish writing to", b"a disk")?;
        }
        Ok(())
    }
}

/// Mounts procfs of this process's PID namespace.
pub fn processes() -> Result<(), Failure> {
    mount(b"proc\0", b"/root/proc\0", b"proc\0", CLOSED, b"")
}

/// Makes the root file system permanently the root of this process, with its own view of control groups.
pub fn enter() -> Result<(), Failure> {
    mount(b"cgroup2\0", b"/root/sys/fs/cgroup\0", b"cgroup2\0", CLOSED | MS_RDONLY, b"")?;
    for path in [&b"/proc\0"[..], b"/sys\0", b"/dev\0"] {
        sys::unmount(path).step("unmount", path)?;
    }
    for path in [&b"/agent\0"[..], b"/init\0", b"/modules/list\0"] {
        sys::unlink(sys::AT_FDCWD, path).step("remove", path)?;
    }
    sys::change_directory(ROOT).step("enter", ROOT)?;
    mount(b".\0", b"/\0", b"none\0", MS_MOVE, b"")?;
    sys::change_root(b".\0").step("enter", ROOT)?;
    sys::change_directory(b"/\0").step("enter", b"/")?;
    mount(b"none\0", b"/\0", b"none\0", MS_REC | MS_PRIVATE, b"")
}

/// Mounts the workspace's disk, without background work of the kernel: its tables are already zeroed, and bitmaps are
/// read on demand. Older kernels do not know these options, and do the work.
fn workspace(disk: &devices::Path, target: &[u8]) -> Result<(), Failure> {
    const QUIET: &[u8] = b"noinit_itable,no_prefetch_block_bitmaps\0";
    match sys::mount(disk.terminated(), target, b"ext4\0", PLAIN, QUIET) {
        Err(sys::EINVAL) => mount(disk.terminated(), target, b"ext4\0", PLAIN, b""),
        mounted => mounted.step("mount", target),
    }
}

/// Releases the reserved blocks of a disk, so that the whole size is available.
fn use_whole(disk: &devices::Path) -> Result<(), Failure> {
    let name = disk.bytes().strip_prefix(b"/dev/").unwrap_or_default();
    let mut path = Text::<96>::new();
    let created = path.push(b"/sys/fs/ext4/").and_then(|path| path.push(name)?.push(b"/reserved_clusters"));
    let step = "release the reserved blocks of";
    created.ok_or_else(|| Failure::new(step, name, 0))?;
    let file = sys::open_at(sys::AT_FDCWD, path.terminated(), sys::O_WRONLY, 0).step(step, name)?;
    sys::write(file.number(), b"0").map(drop).step(step, name)
}

fn directory(path: &[u8]) -> Result<(), Failure> {
    const EEXIST: i32 = 17;
    match sys::make_directory(sys::AT_FDCWD, path, 0o755) {
        Ok(()) | Err(EEXIST) => Ok(()),
        Err(errno) => Err(Failure::new("create", path, errno)),
    }
}

fn mount(source: &[u8], target: &[u8], kind: &[u8], flags: usize, data: &[u8]) -> Result<(), Failure> {
    sys::mount(source, target, kind, flags, data).step("mount", target)
}

/// Mounts a file system in memory, with a size limit.
fn memory(path: &[u8], room: Room, flags: usize, mode: u64, (uid, gid): (u32, u32)) -> Result<(), Failure> {
    let mut data = Text::<128>::new();
    let created = data
        .push(b"size=")
        .and_then(|data| data.push_number(room.bytes)?.push(b",nr_inodes=")?.push_number(room.files))
        .and_then(|data| data.push(b",mode=")?.push_octal(mode)?.push(b",uid=")?.push_number(uid.into()))
        .and_then(|data| data.push(b",gid=")?.push_number(gid.into()));
    created.ok_or_else(|| Failure::new("mount", path, 0))?;
    mount(b"tmpfs\0", path, b"tmpfs\0", flags, data.terminated())
}
