//! The mounts that are visible inside.
//!
//! The root file system is read-only. Only the workspace, `/tmp` and `/dev/shm` are writable, each with a size limit.
//! `/dev` contains the few devices that programs expect, and no devices of the VM.

use super::devices;
use super::failure::{Failure, Step};
use super::options::{Options, Room, Store};
use super::sys::{self, MS_BIND, MS_MOVE, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC, MS_REMOUNT};
use super::text::Text;

const PLAIN: usize = MS_NOSUID | MS_NODEV;
const CLOSED: usize = PLAIN | MS_NOEXEC;
const ROOT: &[u8] = b"/root\0";
const HOST_NAME: &[u8] = b"sandbox";

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
    mount(disk.terminated(), ROOT, b"ext4\0", MS_RDONLY | PLAIN, b"")?;
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

/// Mounts the writable directories.
pub fn writable(options: &Options<'_>) -> Result<(), Failure> {
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
    // From here on, only the mounts below are writable.
    mount(b"none\0", b"/root/dev\0", b"none\0", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, b"")
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
    let made = path.push(b"/sys/fs/ext4/").and_then(|path| path.push(name)?.push(b"/reserved_clusters"));
    let step = "release the reserved blocks of";
    made.ok_or_else(|| Failure::new(step, name, 0))?;
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
    let made = data
        .push(b"size=")
        .and_then(|data| data.push_number(room.bytes)?.push(b",nr_inodes=")?.push_number(room.files))
        .and_then(|data| data.push(b",mode=")?.push_octal(mode)?.push(b",uid=")?.push_number(uid.into()))
        .and_then(|data| data.push(b",gid=")?.push_number(gid.into()));
    made.ok_or_else(|| Failure::new("mount", path, 0))?;
    mount(b"tmpfs\0", path, b"tmpfs\0", flags, data.terminated())
}
