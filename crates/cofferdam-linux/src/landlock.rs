//! Landlock: rules by path and scopes, in addition to the mounts.
//!
//! A rule on a directory that is a mount point does not apply to the file system mounted there. Use the mounted root
//! itself.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::sys::check;

/// File-system rights (`LANDLOCK_ACCESS_FS_*`).
pub mod access {
    /// Execute a file.
    pub const EXECUTE: u64 = 1;
    /// Open a file for writing.
    pub const WRITE_FILE: u64 = 1 << 1;
    /// Open a file for reading.
    pub const READ_FILE: u64 = 1 << 2;
    /// List a directory.
    pub const READ_DIR: u64 = 1 << 3;
    /// Remove an empty directory.
    pub const REMOVE_DIR: u64 = 1 << 4;
    /// Remove a file.
    pub const REMOVE_FILE: u64 = 1 << 5;
    /// Create a directory.
    pub const MAKE_DIR: u64 = 1 << 7;
    /// Create a plain file.
    pub const MAKE_REG: u64 = 1 << 8;
    /// Create a socket.
    pub const MAKE_SOCK: u64 = 1 << 9;
    /// Create a fifo.
    pub const MAKE_FIFO: u64 = 1 << 10;
    /// Create a symbolic link.
    pub const MAKE_SYM: u64 = 1 << 12;
    /// Link or rename between directories.
    pub const REFER: u64 = 1 << 13;
    /// Change a file's length.
    pub const TRUNCATE: u64 = 1 << 14;
    /// ioctl on a device opened here.
    pub const IOCTL_DEV: u64 = 1 << 15;
    /// Read and list.
    pub const READ: u64 = READ_FILE | READ_DIR;
    /// All rights of an ordinary program in its own directory, except device nodes.
    pub const ALL: u64 = READ
        | EXECUTE
        | WRITE_FILE
        | REMOVE_DIR
        | REMOVE_FILE
        | MAKE_DIR
        | MAKE_REG
        | MAKE_SOCK
        | MAKE_FIFO
        | MAKE_SYM
        | REFER
        | TRUNCATE;
}

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;
/// All scopes: abstract sockets and signals.
const SCOPES: u64 = 3;

#[repr(C)]
struct RulesetAttr {
    handled_fs: u64,
    handled_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

/// Returns the running kernel's Landlock version, or 0 if it has none or it is disabled.
pub fn abi() -> u32 {
    // SAFETY: the version query takes no structure.
    let result = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, CREATE_RULESET_VERSION)
    };
    u32::try_from(result).unwrap_or(0)
}

/// Returns the file rights that a kernel of this version can govern.
pub fn handled(abi: u32) -> u64 {
    let rights = match abi {
        0 | 1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    (1 << rights) - 1
}

/// Returns the scopes that a kernel of this version can govern.
pub fn scopes(abi: u32) -> u64 {
    if abi >= 6 { SCOPES } else { 0 }
}

/// A set of rules under construction. Once it is enforced, everything is forbidden that no rule allows.
#[derive(Debug)]
pub struct Ruleset {
    fd: OwnedFd,
    handled: u64,
}

impl Ruleset {
    /// Creates an empty set for a kernel of this version (at least 1): all file rights that it knows, and both scopes
    /// (abstract sockets, signals) from version 6 on.
    pub fn new(abi: u32) -> io::Result<Self> {
        let attr = RulesetAttr { handled_fs: handled(abi), handled_net: 0, scoped: scopes(abi) };
        let size = match abi {
            0..=3 => 8,
            4 | 5 => 16,
            _ => 24,
        };
        // SAFETY: the structure lives through the call; `size` is at most its size.
        let fd = unsafe { check(libc::syscall(libc::SYS_landlock_create_ruleset, &attr, size as usize, 0u32))? };
        // SAFETY: a new descriptor without another owner.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd as RawFd) }, handled: attr.handled_fs })
    }

    /// Wraps the descriptor of a set that was created earlier, for a kernel of this version.
    pub fn from_fd(fd: OwnedFd, abi: u32) -> Self {
        Self { fd, handled: handled(abi) }
    }

    /// Returns the set as a descriptor.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Allows `rights` on `directory` and all below it.
    pub fn allow(&self, directory: BorrowedFd<'_>, rights: u64) -> io::Result<()> {
        let rule = PathBeneath { allowed: rights & self.handled, parent: directory.as_raw_fd() };
        // SAFETY: the structure lives through the call.
        unsafe {
            check(libc::syscall(libc::SYS_landlock_add_rule, self.fd.as_raw_fd(), RULE_PATH_BENEATH, &rule, 0u32))
                .map(drop)
        }
    }

    /// Enforces the rules on the calling thread and its future children, which is irreversible. Requires no_new_privs.
    pub fn enforce(self) -> io::Result<()> {
        // SAFETY: plain numbers.
        unsafe { check(libc::syscall(libc::SYS_landlock_restrict_self, self.fd.as_raw_fd(), 0u32)).map(drop) }
    }
}
