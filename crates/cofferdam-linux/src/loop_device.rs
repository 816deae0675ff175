//! File systems in files, mounted through loop devices that disappear with their last use.
//!
//! A mount is detached: it belongs to no mount namespace until its holder attaches it. The kernel keeps the loop device
//! as long as the file system is mounted anywhere, and removes it afterwards, also if this process was killed. So
//! nothing has to be cleaned up.
//!
//! The kernel parses the file system. A file that a guest could write directly must not be mounted: the parser is not
//! made for hostile metadata.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::mount::{self, attr};
use crate::sys::check_int;

const CONTROL: &str = "/dev/loop-control";
const GET_FREE: libc::Ioctl = 0x4c82;
const CONFIGURE: libc::Ioctl = 0x4c0a;
const READ_ONLY: u32 = 1;
/// The device is released when its last user closes it.
const AUTOCLEAR: u32 = 4;
/// `F_SETSIG`, which libc does not define.
const SET_SIGNAL: i32 = 10;
/// The major number of loop devices.
const MAJOR: u32 = 7;
/// The number of attempts to get a device that other processes also want.
const RACE_TRIES: usize = 128;

/// The use of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing is written, not even the journal.
    ReadOnly,
    /// Files can be changed.
    ReadWrite,
}

/// A reason why a file was not mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoopError {
    /// The caller may not mount.
    #[error("only root can mount a file system from a file: {0}")]
    Denied(io::Error),
    /// The host has no usable loop devices.
    #[error("the host has no loop devices for this process: cannot {operation}: {source}")]
    Unavailable {
        /// The operation that failed.
        operation: String,
        /// The reason.
        source: io::Error,
    },
    /// The kernel refused the file system.
    #[error("the kernel does not mount the file system: {0}")]
    Refused(io::Error),
}

impl LoopError {
    /// Returns the error of the operating system.
    #[must_use]
    pub fn source_error(&self) -> &io::Error {
        match self {
            Self::Denied(source) | Self::Refused(source) | Self::Unavailable { source, .. } => source,
        }
    }
}

/// `struct loop_info64` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    numbers: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 128],
    key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

/// Mounts the ext4 file system in a file, without set-uid bits and devices. Returns a detached mount. The file must be
/// open for the access. Requires root.
///
/// # Errors
///
/// See [`LoopError`]. A file system that was not unmounted cannot be mounted read-only: its journal must be written.
pub fn mount_ext4(image: BorrowedFd<'_>, access: Access) -> Result<OwnedFd, LoopError> {
    let device = configure(image, access)?;
    let source = CString::new(format!("/proc/self/fd/{}", device.as_raw_fd())).unwrap_or_default();
    let mut options = vec![(c"source", &*source), (c"errors", c"remount-ro")];
    let attributes = match access {
        Access::ReadOnly => {
            options.push((c"ro", c""));
            attr::NOSUID | attr::NODEV | attr::RDONLY
        }
        // Blocks of deleted files become holes of the file.
        Access::ReadWrite => {
            options.push((c"discard", c""));
            attr::NOSUID | attr::NODEV
        }
    };
    // From here on, the mount keeps the device.
    mount::new_filesystem(c"ext4", &options, attributes).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => LoopError::Denied(error),
        _ => LoopError::Refused(error),
    })
}

/// Returns the reason why no file can be mounted, without mounting one.
///
/// # Errors
///
/// See [`LoopError`].
pub fn probe() -> Result<(), LoopError> {
    open_control().map(drop)
}

fn unavailable(operation: impl Into<String>) -> impl FnOnce(Errno) -> LoopError {
    let operation = operation.into();
    move |errno| match errno {
        Errno::PERM | Errno::ACCESS if !rustix::process::geteuid().is_root() => LoopError::Denied(errno.into()),
        _ => LoopError::Unavailable { operation, source: errno.into() },
    }
}

fn open_control() -> Result<OwnedFd, LoopError> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(CONTROL, flags, Mode::empty()).map_err(unavailable(format!("open {CONTROL}")))
}

/// Connects a free loop device with a file.
fn configure(image: BorrowedFd<'_>, access: Access) -> Result<OwnedFd, LoopError> {
    let control = open_control()?;
    let read_only = if access == Access::ReadOnly { READ_ONLY } else { 0 };
    let config = Config {
        fd: u32::try_from(image.as_raw_fd()).unwrap_or(u32::MAX),
        block_size: 0,
        info: Info {
            numbers: [0; 5],
            number: 0,
            encryption: [0; 2],
            flags: AUTOCLEAR | read_only,
            names: [0; 128],
            key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    for _ in 0..RACE_TRIES {
        // SAFETY: the call takes no argument and returns a number.
        let number = unsafe { check_int(libc::ioctl(control.as_raw_fd(), GET_FREE)) }
            .map_err(|error| unavailable("find a free loop device")(errno(error)))?;
        let path = format!("/dev/loop{number}");
        let flags = match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let device = rustix::fs::open(&path, flags, Mode::empty()).map_err(unavailable(format!("open {path}")))?;
        let stat = rustix::fs::fstat(&device).map_err(unavailable(format!("inspect {path}")))?;
        let is_loop =
            FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice && rustix::fs::major(stat.st_rdev) == MAJOR;
        if !is_loop {
            return Err(unavailable(format!("use {path}"))(Errno::NOTBLK));
        }
        // SAFETY: the kernel reads the structure, which lives through the call and has the kernel's layout.
        match unsafe { check_int(libc::ioctl(device.as_raw_fd(), CONFIGURE, std::ptr::from_ref(&config))) } {
            Ok(_) => return Ok(device),
            // Another process was faster.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(unavailable(format!("configure {path}"))(errno(error))),
        }
    }
    Err(unavailable("find a free loop device")(Errno::BUSY))
}

/// Returns true if no other open file of any process leads to the same file: for a file that is open for reading only,
/// if no other is open for writing. Loop devices count. The file must belong to this user.
///
/// # Errors
///
/// Those of the operating system, such as one for a file system that does not support leases.
pub fn is_sole_user(file: &File) -> io::Result<bool> {
    let fd = file.as_raw_fd();
    let is_writable = rustix::fs::fcntl_getfl(file)?.intersects(OFlags::WRONLY | OFlags::RDWR);
    let lease = if is_writable { libc::F_WRLCK } else { libc::F_RDLCK };
    // SAFETY: plain calls on a valid descriptor. The kernel reports the end of a lease with a signal whose default is to
    // be ignored, rather than with one that ends the process.
    unsafe {
        check_int(libc::fcntl(fd, SET_SIGNAL, libc::SIGURG))?;
        match check_int(libc::fcntl(fd, libc::F_SETLEASE, lease)) {
            Ok(_) => check_int(libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK)).map(|_| true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_of_a_file_are_noticed() {
        let own = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let write = || File::options().read(true).write(true).open(&own).unwrap();
        let (writer, reader) = (write(), File::open(&own).unwrap());
        assert!(!is_sole_user(&writer).unwrap() && !is_sole_user(&reader).unwrap());
        drop(writer);
        assert!(is_sole_user(&reader).unwrap(), "readers do not disturb a reader");
        let writer = write();
        assert!(!is_sole_user(&writer).unwrap());
        drop(reader);
        assert!(is_sole_user(&writer).unwrap());
        let copy = writer.try_clone().unwrap();
        assert!(is_sole_user(&writer).unwrap(), "a copy of the descriptor is the same open file");
        drop(copy);
    }
}
