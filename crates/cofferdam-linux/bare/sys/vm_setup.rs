//! System calls of a program that sets up a whole VM: mounts, modules, devices, users, power off.

use super::{Fd, Res, call, checked, number};

pub const MS_RDONLY: usize = 1;
pub const MS_NOSUID: usize = 2;
pub const MS_NODEV: usize = 4;
pub const MS_NOEXEC: usize = 8;
pub const MS_REMOUNT: usize = 32;
pub const MS_BIND: usize = 4096;
pub const MS_MOVE: usize = 8192;
pub const MS_PRIVATE: usize = 1 << 18;
pub const MS_REC: usize = 16384;

pub const S_IFCHR: u32 = 0o020_000;
/// The limit on core files.
pub const RLIMIT_CORE: usize = 4;
/// The limit on open descriptors.
pub const RLIMIT_NOFILE: usize = 7;

/// Returns the address of a NUL-terminated text.
fn text(text: &[u8]) -> Res<usize> {
    if text.last() == Some(&0) { Ok(text.as_ptr() as usize) } else { Err(super::EINVAL) }
}

/// Mounts a file system. All texts end with a NUL; `data` may be empty.
pub fn mount(source: &[u8], target: &[u8], kind: &[u8], flags: usize, data: &[u8]) -> Res<()> {
    let data = if data.is_empty() { 0 } else { text(data)? };
    let arguments = [text(source)?, text(target)?, text(kind)?, flags, data, 0];
    // SAFETY: the texts end with a NUL, or there is none.
    unsafe { checked(call(number::MOUNT, arguments)) }.map(drop)
}

/// Detaches a mount: at once for new users, and for others when the last one is done.
pub fn unmount(target: &[u8]) -> Res<()> {
    const MNT_DETACH: usize = 2;
    // SAFETY: the text ends with a NUL.
    unsafe { checked(call(number::UMOUNT2, [text(target)?, MNT_DETACH, 0, 0, 0, 0])) }.map(drop)
}

/// Writes all cached data to disks, and waits for it.
pub fn write_out() {
    // SAFETY: it takes no argument, and does not fail.
    let _ = unsafe { call(number::SYNC, [0; 6]) };
}

/// Makes a directory the root of this process.
pub fn change_root(directory: &[u8]) -> Res<()> {
    // SAFETY: the text ends with a NUL.
    unsafe { checked(call(number::CHROOT, [text(directory)?, 0, 0, 0, 0, 0])) }.map(drop)
}

/// Makes a directory the working directory of this process.
pub fn change_directory(directory: &[u8]) -> Res<()> {
    // SAFETY: the text ends with a NUL.
    unsafe { checked(call(number::CHDIR, [text(directory)?, 0, 0, 0, 0, 0])) }.map(drop)
}

/// Creates a character device.
pub fn make_device(path: &[u8], mode: u32, major: u32, minor: u32) -> Res<()> {
    let device = (major << 8 | minor) as usize;
    let arguments = [super::AT_FDCWD as usize, text(path)?, (S_IFCHR | mode) as usize, device, 0, 0];
    // SAFETY: the text ends with a NUL.
    unsafe { checked(call(number::MKNODAT, arguments)) }.map(drop)
}

/// Changes the owner and group of a path.
pub fn give_to(path: &[u8], uid: u32, gid: u32) -> Res<()> {
    let arguments = [super::AT_FDCWD as usize, text(path)?, uid as usize, gid as usize, 0, 0];
    // SAFETY: the text ends with a NUL.
    unsafe { checked(call(number::FCHOWNAT, arguments)) }.map(drop)
}

/// Loads a kernel module. If it is `packed`, the kernel decompresses it.
pub fn load_module(file: &Fd, packed: bool) -> Res<()> {
    const PACKED: usize = 4;
    let arguments = [file.raw(), c"".as_ptr() as usize, if packed { PACKED } else { 0 }, 0, 0, 0];
    // SAFETY: the parameters are a text that ends with a NUL.
    unsafe { checked(call(number::FINIT_MODULE, arguments)) }.map(drop)
}

/// Sets the host name.
pub fn set_host_name(name: &[u8]) -> Res<()> {
    // SAFETY: the buffer has the length that is passed.
    unsafe { checked(call(number::SETHOSTNAME, [name.as_ptr() as usize, name.len(), 0, 0, 0, 0])) }.map(drop)
}

/// Sets the time of day.
pub fn set_clock((seconds, nanoseconds): (u64, u32)) -> Res<()> {
    const CLOCK_REALTIME: usize = 0;
    let time = [seconds, nanoseconds.into()];
    // SAFETY: the structure is the kernel's.
    unsafe { checked(call(number::CLOCK_SETTIME, [CLOCK_REALTIME, time.as_ptr() as usize, 0, 0, 0, 0])) }.map(drop)
}

/// Adds bytes to the kernel's random number generator, credits their entropy and reseeds all derived generators.
/// `device` is one of the kernel's random devices.
pub fn reseed_randomness(device: &Fd, bytes: &[u8; 64]) -> Res<()> {
    #[repr(C)]
    struct Pool {
        bits: i32,
        size: i32,
        bytes: [u8; 64],
    }
    const RNDADDENTROPY: usize = 0x4008_5203;
    const RNDRESEEDCRNG: usize = 0x5207;
    let mut pool = Pool { bits: 512, size: 64, bytes: *bytes };
    let added = super::ioctl(device.number(), RNDADDENTROPY, &raw const pool as usize);
    pool.bytes = [0; 64];
    // Keep the compiler from removing the overwrite.
    core::hint::black_box(&pool);
    added?;
    super::ioctl(device.number(), RNDRESEEDCRNG, 0).map(drop)
}

/// Creates a pair of sockets for whole messages. Executed programs inherit neither.
pub fn socket_pair() -> Res<(Fd, Fd)> {
    const AF_UNIX: usize = 1;
    const SOCK_SEQPACKET: usize = 5;
    const SOCK_CLOEXEC: usize = 0o2_000_000;
    let mut fds = [0i32; 2];
    let arguments = [AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the kernel writes two descriptors.
    unsafe { checked(call(number::SOCKETPAIR, arguments)) }?;
    Ok((Fd::own(fds[0]), Fd::own(fds[1])))
}

/// Makes an open directory the working directory of this process.
pub fn enter_open(directory: &Fd) -> Res<()> {
    // SAFETY: plain numbers.
    unsafe { checked(call(number::FCHDIR, [directory.raw(), 0, 0, 0, 0, 0])) }.map(drop)
}

/// Creates a cgroup namespace for this process. Its root is the process's current group.
pub fn unshare_groups() -> Res<()> {
    const CLONE_NEWCGROUP: usize = 0x0200_0000;
    // SAFETY: plain numbers.
    unsafe { checked(call(number::UNSHARE, [CLONE_NEWCGROUP, 0, 0, 0, 0, 0])) }.map(drop)
}

/// Sets a resource limit for this process and its children.
pub fn set_limit(resource: usize, max: u64) -> Res<()> {
    let limit = [max; 2];
    // SAFETY: the structure is the kernel's, which writes to no memory.
    unsafe { checked(call(number::PRLIMIT64, [0, resource, limit.as_ptr() as usize, 0, 0, 0])) }.map(drop)
}

/// Becomes an ordinary user without further groups or privileges. This is irreversible.
pub fn become_user(uid: u32, gid: u32) -> Res<()> {
    const PR_CAPBSET_DROP: usize = 24;
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    const CAPABILITIES: usize = 64;
    for capability in 0..CAPABILITIES {
        // SAFETY: plain numbers.
        match unsafe { checked(call(number::PRCTL, [PR_CAPBSET_DROP, capability, 0, 0, 0, 0])) } {
            Ok(_) => {}
            // The kernel has no further capabilities.
            Err(super::EINVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    let (uid, gid) = (uid as usize, gid as usize);
    // SAFETY: no group is listed; the rest are plain numbers.
    unsafe {
        checked(call(number::SETGROUPS, [0; 6]))?;
        checked(call(number::SETRESGID, [gid, gid, gid, 0, 0, 0]))?;
        // The change of the user drops all capabilities.
        checked(call(number::SETRESUID, [uid, uid, uid, 0, 0, 0]))?;
        checked(call(number::PRCTL, [PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0])).map(drop)
    }
}

/// Executes an open file, with its name as the only argument and an empty environment. Returns the error number if it
/// fails.
pub fn execute_file(file: &Fd, name: &core::ffi::CStr) -> i32 {
    const AT_EMPTY_PATH: usize = 0x1000;
    let (argv, env) = ([name.as_ptr(), core::ptr::null()], [core::ptr::null::<u8>()]);
    let lists = [argv.as_ptr() as usize, env.as_ptr() as usize];
    let arguments = [file.raw(), c"".as_ptr() as usize, lists[0], lists[1], AT_EMPTY_PATH, 0];
    // SAFETY: the name and both lists are terminated correctly and live through the call.
    match unsafe { checked(call(number::EXECVEAT, arguments)) } {
        Err(errno) => errno,
        Ok(_) => super::EINVAL,
    }
}

const POWER_OFF: usize = 0x4321_fedc;
const RESTART: usize = 0x0123_4567;

/// Ends the VM: powers it off, or restarts it if power off is not supported. The VMM treats a restart as the end.
pub fn power_off() {
    reboot(POWER_OFF);
    reboot(RESTART);
}

/// Ends the VM by a restart: for VMMs without a power switch, where the kernel would halt for ever.
pub fn restart() {
    reboot(RESTART);
}

fn reboot(what: usize) {
    const MAGIC: [usize; 2] = [0xfee1_dead, 672_274_793];
    // SAFETY: plain numbers; these commands take no argument.
    unsafe { call(number::REBOOT, [MAGIC[0], MAGIC[1], what, 0, 0, 0]) };
}
