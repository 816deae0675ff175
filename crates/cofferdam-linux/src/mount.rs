//! Mount system calls that work on descriptors.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::sys::{check, check_int};

/// Mount attributes (`MOUNT_ATTR_*`).
pub mod attr {
    /// Read-only.
    pub const RDONLY: u64 = 0x1;
    /// Set-uid bits have no effect.
    pub const NOSUID: u64 = 0x2;
    /// Device nodes do not open.
    pub const NODEV: u64 = 0x4;
    /// Files cannot be executed.
    pub const NOEXEC: u64 = 0x8;
    /// The mount translates owners through a user namespace.
    pub const IDMAP: u64 = 0x0010_0000;
}

const AT_RECURSIVE: u32 = 0x8000;
const OPEN_TREE_CLONE: u32 = 1;
const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;
const MOVE_MOUNT_T_EMPTY_PATH: u32 = 0x40;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSCONFIG_CMD_RECONFIGURE: u32 = 7;
const FSPICK_CLOEXEC: u32 = 1;
const FSPICK_EMPTY_PATH: u32 = 8;
/// Private propagation (`MS_PRIVATE`).
pub const PRIVATE: u64 = 1 << 18;
/// Slave propagation (`MS_SLAVE`): the mount receives new mounts of the origin.
pub const SLAVE: u64 = 1 << 19;

/// The scope of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Only the mount itself.
    Single,
    /// All mounts below as well.
    Recursive,
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel just returned this descriptor, which has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// Creates a file system of `kind` with string options; one with an empty value is a flag. Returns a detached mount of it with these attributes.
pub fn new_filesystem(kind: &CStr, options: &[(&CStr, &CStr)], attributes: u64) -> io::Result<OwnedFd> {
    // SAFETY: the string is NUL-terminated, the numbers are plain.
    unsafe {
        let context = owned(check(libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 1u32))?);
        configure(context.as_fd(), options, FSCONFIG_CMD_CREATE)?;
        Ok(owned(check(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1u32, attributes as u32))?))
    }
}

/// Changes string options of the file system of the mount `tree`.
pub fn reconfigure(tree: BorrowedFd<'_>, options: &[(&CStr, &CStr)]) -> io::Result<()> {
    let flags = FSPICK_CLOEXEC | FSPICK_EMPTY_PATH;
    // SAFETY: the path is NUL-terminated.
    let context = unsafe { owned(check(libc::syscall(libc::SYS_fspick, tree.as_raw_fd(), c"".as_ptr(), flags))?) };
    configure(context.as_fd(), options, FSCONFIG_CMD_RECONFIGURE)
}

fn configure(context: BorrowedFd<'_>, options: &[(&CStr, &CStr)], command: u32) -> io::Result<()> {
    let context = context.as_raw_fd();
    // SAFETY: the strings are NUL-terminated and live through the calls.
    unsafe {
        let null = std::ptr::null();
        for (key, value) in options {
            let (set, value) = match value.is_empty() {
                true => (FSCONFIG_SET_FLAG, null),
                false => (FSCONFIG_SET_STRING, value.as_ptr()),
            };
            check(libc::syscall(libc::SYS_fsconfig, context, set, key.as_ptr(), value, 0))?;
        }
        check(libc::syscall(libc::SYS_fsconfig, context, command, null, null, 0)).map(drop)
    }
}

/// Returns a detached copy of the mount at `path` under `dir`, or of the entry at `path` in it. An empty path means
/// `dir` itself. A recursive copy is private: later mounts on the original do not appear in it.
pub fn clone_tree(dir: BorrowedFd<'_>, path: &CStr, depth: Depth) -> io::Result<OwnedFd> {
    let mut flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as u32 | libc::AT_SYMLINK_NOFOLLOW as u32;
    if path.is_empty() {
        flags |= libc::AT_EMPTY_PATH as u32;
    }
    if depth == Depth::Recursive {
        flags |= AT_RECURSIVE;
    }
    // SAFETY: the path is NUL-terminated.
    let tree = unsafe { check(libc::syscall(libc::SYS_open_tree, dir.as_raw_fd(), path.as_ptr(), flags)).map(owned) }?;
    if depth == Depth::Recursive {
        let change = MountAttr { set: 0, clear: 0, propagation: PRIVATE, userns_fd: 0 };
        mount_setattr(tree.as_raw_fd(), c"", Depth::Recursive, &change)?;
    }
    Ok(tree)
}

/// Attaches the detached mount `tree` at `path` under `dir`.
pub fn attach(tree: BorrowedFd<'_>, dir: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    // SAFETY: both paths are NUL-terminated.
    unsafe {
        check(libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            dir.as_raw_fd(),
            path.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        ))
        .map(drop)
    }
}

/// Attaches the detached mount `tree` on the opened file or directory `target`.
pub fn attach_onto(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    let (from, to) = (tree.as_raw_fd(), target.as_raw_fd());
    // SAFETY: both paths are NUL-terminated.
    unsafe { check(libc::syscall(libc::SYS_move_mount, from, c"".as_ptr(), to, c"".as_ptr(), flags)).map(drop) }
}

fn mount_setattr(dir: RawFd, path: &CStr, depth: Depth, attributes: &MountAttr) -> io::Result<()> {
    let mut flags = 0;
    if path.is_empty() {
        flags |= libc::AT_EMPTY_PATH as u32;
    }
    if depth == Depth::Recursive {
        flags |= AT_RECURSIVE;
    }
    // SAFETY: the structure lives through the call and its size is passed.
    unsafe {
        check(libc::syscall(
            libc::SYS_mount_setattr,
            dir,
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            size_of::<MountAttr>(),
        ))
        .map(drop)
    }
}

/// Adds attributes to the mount `tree`.
pub fn add_attributes(tree: BorrowedFd<'_>, depth: Depth, attributes: u64) -> io::Result<()> {
    let change = MountAttr { set: attributes, clear: 0, propagation: 0, userns_fd: 0 };
    mount_setattr(tree.as_raw_fd(), c"", depth, &change)
}

/// Adds attributes to the mount at an absolute path.
pub fn add_attributes_at(path: &CStr, attributes: u64) -> io::Result<()> {
    let change = MountAttr { set: attributes, clear: 0, propagation: 0, userns_fd: 0 };
    mount_setattr(libc::AT_FDCWD, path, Depth::Single, &change)
}

/// Maps owners of a detached mount by a user namespace.
pub fn map_owners(tree: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let userns_fd = user_namespace.as_raw_fd() as u64;
    let change = MountAttr { set: attr::IDMAP, clear: 0, propagation: 0, userns_fd };
    mount_setattr(tree.as_raw_fd(), c"", Depth::Single, &change)
}

/// Sets the propagation ([`PRIVATE`] or [`SLAVE`]) of every mount of this namespace.
pub fn set_propagation(propagation: u64) -> io::Result<()> {
    let change = MountAttr { set: 0, clear: 0, propagation, userns_fd: 0 };
    mount_setattr(libc::AT_FDCWD, c"/", Depth::Recursive, &change)
}

/// Makes `root`, a mount attached in this namespace, the root of the namespace. Drops the old root.
pub fn pivot_into(root: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain calls on a valid descriptor and constant strings.
    unsafe {
        check_int(libc::fchdir(root.as_raw_fd()))?;
        check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        check_int(libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
        check_int(libc::chdir(c"/".as_ptr()))?;
    }
    Ok(())
}

/// Detaches the mount at an absolute path.
pub fn detach(path: &CStr) -> io::Result<()> {
    // SAFETY: the path is NUL-terminated.
    unsafe { check_int(libc::umount2(path.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW)).map(drop) }
}

/// Returns the current directory as a base for relative paths. Absolute paths ignore it.
pub fn cwd() -> BorrowedFd<'static> {
    rustix::fs::CWD.as_fd()
}
