//! Access to files below a directory, one step at a time, never through a link.

use super::{EINVAL, Fd, Res, call, checked, number, retried};

pub const O_RDONLY: usize = 0;
pub const O_WRONLY: usize = 1;
pub const O_CREAT: usize = 0o100;
pub const O_EXCL: usize = 0o200;
const O_NOCTTY: usize = 0o400;
pub const O_NONBLOCK: usize = 0o4000;
const O_CLOEXEC: usize = 0o2_000_000;
pub const O_PATH: usize = 0o10_000_000;
#[cfg(target_arch = "x86_64")]
pub const O_NOFOLLOW: usize = 0o400_000;
#[cfg(target_arch = "aarch64")]
pub const O_NOFOLLOW: usize = 0o100_000;

const AT_SYMLINK_NOFOLLOW: usize = 0x100;
const AT_REMOVEDIR: usize = 0x200;
const AT_EMPTY_PATH: usize = 0x1000;

/// The bits of a mode that contain the file type.
pub const S_IFMT: u32 = 0o170_000;
pub const S_IFSOCK: u32 = 0o140_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFLNK: u32 = 0o120_000;

/// Returns the address of a NUL-terminated name, as every call here needs.
fn named(name: &[u8]) -> Res<usize> {
    if name.last() == Some(&0) { Ok(name.as_ptr() as usize) } else { Err(EINVAL) }
}

/// Opens a name in a directory. A terminal never becomes this process's controlling terminal.
pub fn open_at(directory: i32, name: &[u8], flags: usize, mode: u32) -> Res<Fd> {
    let flags = flags | O_CLOEXEC | O_NOCTTY;
    let arguments = [directory as usize, named(name)?, flags, mode as usize, 0, 0];
    // SAFETY: the name ends with a NUL.
    retried(|| unsafe { checked(call(number::OPENAT, arguments)) }).map(|fd| Fd::own(fd as i32))
}

/// The metadata of a file.
#[derive(Clone, Copy, Default)]
pub struct Stat {
    pub mode: u32,
    pub links: u32,
    pub inode: u64,
    pub size: u64,
    pub seconds: i64,
    pub nanoseconds: u32,
    /// The major and minor number of the device that contains the file.
    pub device: (u32, u32),
}

/// Reads the metadata of a name in a directory, or with an empty name that of the descriptor itself. Links are not
/// followed.
pub fn stat_at(directory: i32, name: &[u8]) -> Res<Stat> {
    const BASIC: usize = 0x7ff;
    let mut found = [0u64; 32];
    let flags = AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH;
    let arguments = [directory as usize, named(name)?, flags, BASIC, found.as_mut_ptr() as usize, 0];
    // SAFETY: the name ends with a NUL; the structure has 256 bytes, as the kernel's.
    unsafe { checked(call(number::STATX, arguments)) }?;
    // By eight bytes: mask, block size; attributes; links, user; group, mode; inode; size; blocks; mask; then the
    // times, of two words each: access, birth, change, modification.
    let low = |at: usize| found.get(at).map_or(0, |word| *word as u32);
    Ok(Stat {
        links: low(2),
        mode: (found[3] >> 32) as u32 & 0xffff,
        inode: found[4],
        size: found[5],
        seconds: found[14] as i64,
        nanoseconds: low(15),
        device: (low(17), (found[17] >> 32) as u32),
    })
}

/// Reads the target of a link, as much as fits.
pub fn read_link<'a>(directory: i32, name: &[u8], into: &'a mut [u8]) -> Res<&'a [u8]> {
    let arguments = [directory as usize, named(name)?, into.as_mut_ptr() as usize, into.len(), 0, 0];
    // SAFETY: the name ends with a NUL, the buffer has the length that is passed.
    let length = unsafe { checked(call(number::READLINKAT, arguments)) }?;
    Ok(into.get(..length).unwrap_or_default())
}

/// Creates a directory.
pub fn make_directory(directory: i32, name: &[u8], mode: u32) -> Res<()> {
    // SAFETY: the name ends with a NUL.
    unsafe { checked(call(number::MKDIRAT, [directory as usize, named(name)?, mode as usize, 0, 0, 0])) }.map(drop)
}

/// Creates a symbolic link.
pub fn make_symlink(target: &[u8], directory: i32, name: &[u8]) -> Res<()> {
    // SAFETY: both names end with a NUL.
    unsafe { checked(call(number::SYMLINKAT, [named(target)?, directory as usize, named(name)?, 0, 0, 0])) }.map(drop)
}

/// Creates a hard link. Links are not followed.
pub fn make_link(from: i32, old: &[u8], to: i32, new: &[u8]) -> Res<()> {
    let arguments = [from as usize, named(old)?, to as usize, named(new)?, 0, 0];
    // SAFETY: both names end with a NUL.
    unsafe { checked(call(number::LINKAT, arguments)) }.map(drop)
}

/// Renames a file and replaces a file with the new name.
pub fn rename(from: i32, old: &[u8], to: i32, new: &[u8]) -> Res<()> {
    let arguments = [from as usize, named(old)?, to as usize, named(new)?, 0, 0];
    // SAFETY: both names end with a NUL.
    unsafe { checked(call(number::RENAMEAT2, arguments)) }.map(drop)
}

/// Removes a name that is not a directory.
pub fn unlink(directory: i32, name: &[u8]) -> Res<()> {
    // SAFETY: the name ends with a NUL.
    unsafe { checked(call(number::UNLINKAT, [directory as usize, named(name)?, 0, 0, 0, 0])) }.map(drop)
}

/// Removes an empty directory.
pub fn remove_directory(directory: i32, name: &[u8]) -> Res<()> {
    // SAFETY: the name ends with a NUL.
    unsafe { checked(call(number::UNLINKAT, [directory as usize, named(name)?, AT_REMOVEDIR, 0, 0, 0])) }.map(drop)
}

/// Sets an open file's permissions.
pub fn set_mode(file: &Fd, mode: u32) -> Res<()> {
    // SAFETY: plain numbers.
    unsafe { checked(call(number::FCHMOD, [file.raw(), mode as usize, 0, 0, 0, 0])) }.map(drop)
}

/// Sets the permissions of a name. Links are followed.
pub fn set_mode_at(directory: i32, name: &[u8], mode: u32) -> Res<()> {
    // SAFETY: the name ends with a NUL.
    unsafe { checked(call(number::FCHMODAT, [directory as usize, named(name)?, mode as usize, 0, 0, 0])) }.map(drop)
}

/// Sets the time of the last change. Links are not followed.
pub fn set_time_at(directory: i32, name: &[u8], seconds: i64, nanoseconds: u32) -> Res<()> {
    let (s, ns) = (seconds as u64, u64::from(nanoseconds));
    let times = [s, ns, s, ns];
    let arguments = [directory as usize, named(name)?, times.as_ptr() as usize, AT_SYMLINK_NOFOLLOW, 0, 0];
    // SAFETY: the name ends with a NUL, the structure is the kernel's.
    unsafe { checked(call(number::UTIMENSAT, arguments)) }.map(drop)
}

/// Writes once.
pub fn write(fd: i32, bytes: &[u8]) -> Res<usize> {
    let arguments = [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
    // SAFETY: the buffer has the length that is passed.
    retried(|| unsafe { checked(call(number::WRITE, arguments)) })
}

/// Seeks to an offset in a file, or in a directory to an offset that its entries contain.
pub fn seek(file: &Fd, offset: u64) -> Res<()> {
    const SEEK_SET: usize = 0;
    // SAFETY: plain numbers.
    unsafe { checked(call(number::LSEEK, [file.raw(), offset as usize, SEEK_SET, 0, 0, 0])) }.map(drop)
}

/// Creates a pipe. Returns the end for reading and the end for writing.
pub fn pipe() -> Res<(Fd, Fd)> {
    let mut fds = [0i32; 2];
    // SAFETY: the kernel writes two descriptors.
    unsafe { checked(call(number::PIPE2, [fds.as_mut_ptr() as usize, O_CLOEXEC, 0, 0, 0, 0])) }?;
    Ok((Fd::own(fds[0]), Fd::own(fds[1])))
}

/// Makes a descriptor non-blocking: reads and writes return EAGAIN rather than wait.
pub fn set_nonblocking(fd: i32) -> Res<()> {
    const F_GETFL: usize = 3;
    const F_SETFL: usize = 4;
    // SAFETY: plain numbers.
    unsafe {
        let flags = checked(call(number::FCNTL, [fd as usize, F_GETFL, 0, 0, 0, 0]))?;
        checked(call(number::FCNTL, [fd as usize, F_SETFL, flags | O_NONBLOCK, 0, 0, 0])).map(drop)
    }
}

/// The capacity of a file system: its type, and the total and free bytes and files.
#[derive(Clone, Copy, Default)]
pub struct Room {
    pub kind: u64,
    pub bytes: u64,
    pub free: u64,
    pub files: u64,
    pub files_free: u64,
}

/// Reads the capacity of the file system at a NUL-terminated path.
pub fn room(path: &[u8]) -> Res<Room> {
    let mut found = [0u64; 16];
    let arguments = [named(path)?, found.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the path ends with a NUL, the structure is at least as large as the kernel's.
    unsafe { checked(call(number::STATFS, arguments)) }?;
    let [kind, block, blocks, free, _, files, files_free, _, _, fragment, ..] = found;
    let size = if fragment > 0 { fragment } else { block };
    let bytes = blocks.saturating_mul(size);
    Ok(Room { kind, bytes, free: free.saturating_mul(size), files, files_free })
}

/// Creates a non-blocking inotify instance.
pub fn inotify() -> Res<Fd> {
    // SAFETY: plain numbers.
    unsafe { checked(call(number::INOTIFY_INIT1, [O_CLOEXEC | O_NONBLOCK, 0, 0, 0, 0, 0])) }.map(|fd| Fd::own(fd as i32))
}

/// Watches the file at a NUL-terminated path. Returns the number of the watch.
pub fn inotify_add(instance: &Fd, path: &[u8], mask: u32) -> Res<i32> {
    let arguments = [instance.raw(), named(path)?, mask as usize, 0, 0, 0];
    // SAFETY: the path ends with a NUL.
    unsafe { checked(call(number::INOTIFY_ADD_WATCH, arguments)) }.map(|wd| wd as i32)
}

/// Ends a watch. It may have ended already.
pub fn inotify_remove(instance: &Fd, wd: i32) {
    // SAFETY: plain numbers.
    let _ = unsafe { checked(call(number::INOTIFY_RM_WATCH, [instance.raw(), wd as usize, 0, 0, 0, 0])) };
}
