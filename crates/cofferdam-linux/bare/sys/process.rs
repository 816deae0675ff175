//! The calling process, its children, and other processes of the sandbox.

use super::{EINVAL, Fd, Res, call, checked, clone, number, retried};

pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;
pub const SIGSTOP: i32 = 19;
pub const SIGCONT: i32 = 18;
const SIGPIPE: usize = 13;
const SIGCHLD: usize = 17;
const RLIMIT_RTTIME: usize = 15;
/// The size of the kernel's signal set.
const SIGNALS: usize = 8;

/// Returns the calling process's id, user and group.
pub fn identity() -> (i32, u32, u32) {
    // SAFETY: the calls take nothing and cannot fail.
    let id = |number| unsafe { call(number, [0; 6]) };
    (id(number::GETPID) as i32, id(number::GETUID) as u32, id(number::GETGID) as u32)
}

fn prctl(option: usize, argument: usize) -> Res<usize> {
    // SAFETY: the options used here take numbers, or a name that ends with a NUL.
    unsafe { checked(call(number::PRCTL, [option, argument, 0, 0, 0, 0])) }
}

/// Hides this process's memory and files from other processes of the same user, and requests a kill at the end of its
/// parent.
pub fn withdraw() -> Res<()> {
    const PR_SET_PDEATHSIG: usize = 1;
    const PR_SET_DUMPABLE: usize = 4;
    const PR_SET_NAME: usize = 15;
    prctl(PR_SET_DUMPABLE, 0)?;
    prctl(PR_SET_PDEATHSIG, SIGKILL as usize)?;
    prctl(PR_SET_NAME, c"cofferdam-init".as_ptr() as usize).map(drop)
}

/// Sets no_new_privs, which is irreversible, and hides this process's memory.
pub fn renounce(name: &core::ffi::CStr) -> Res<()> {
    const PR_SET_DUMPABLE: usize = 4;
    const PR_SET_NAME: usize = 15;
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    prctl(PR_SET_NO_NEW_PRIVS, 1)?;
    prctl(PR_SET_DUMPABLE, 0)?;
    prctl(PR_SET_NAME, name.as_ptr() as usize).map(drop)
}

/// Returns whether no_new_privs is set, and whether a seccomp filter is installed.
pub fn confinement() -> (bool, bool) {
    const PR_GET_SECCOMP: usize = 21;
    const PR_GET_NO_NEW_PRIVS: usize = 39;
    (prctl(PR_GET_NO_NEW_PRIVS, 0) == Ok(1), prctl(PR_GET_SECCOMP, 0) == Ok(2))
}

/// Returns the effective, permitted and inheritable capabilities.
pub fn capabilities() -> Res<[u64; 3]> {
    let header = [0x2008_0522u32, 0];
    let mut data = [[0u32; 3]; 2];
    // SAFETY: both structures are the kernel's, for its third version.
    unsafe { checked(call(number::CAPGET, [header.as_ptr() as usize, data.as_mut_ptr() as usize, 0, 0, 0, 0])) }?;
    let [low, high] = data;
    let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    Ok([join(low[0], high[0]), join(low[1], high[1]), join(low[2], high[2])])
}

/// Ends the process.
pub fn exit(code: i32) -> ! {
    loop {
        // SAFETY: it does not return.
        unsafe { call(number::EXIT_GROUP, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

fn set_signal_mask(mask: u64) -> Res<()> {
    const SIG_SETMASK: usize = 2;
    let arguments = [SIG_SETMASK, &raw const mask as usize, 0, SIGNALS, 0, 0];
    // SAFETY: a set of signals of the size that is passed.
    unsafe { checked(call(number::RT_SIGPROCMASK, arguments)) }.map(drop)
}

/// Blocks exactly SIGCHLD and SIGPIPE. Returns a non-blocking descriptor that becomes readable when a child ends.
pub fn child_signal() -> Res<Fd> {
    const CLOEXEC_NONBLOCK: usize = 0o2_004_000;
    let mask = 1u64 << (SIGCHLD - 1);
    set_signal_mask(mask | 1 << (SIGPIPE - 1))?;
    let arguments = [usize::MAX, &raw const mask as usize, SIGNALS, CLOEXEC_NONBLOCK, 0, 0];
    // SAFETY: a set of signals of the size that is passed.
    unsafe { checked(call(number::SIGNALFD4, arguments)) }.map(|fd| Fd::own(fd as i32))
}

/// Returns the microseconds of a monotonic clock.
pub fn now_micros() -> u64 {
    const CLOCK_MONOTONIC: usize = 1;
    let mut time = [0u64; 2];
    // SAFETY: the structure is the kernel's.
    unsafe { call(number::CLOCK_GETTIME, [CLOCK_MONOTONIC, time.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    time[0] * 1_000_000 + time[1] / 1000
}

/// Returns the number of processors that this process may use, or 0 if it is unknown.
pub fn processors() -> u64 {
    let mut set = [0u64; 16];
    let arguments = [0, size_of_val(&set), set.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the buffer has the length that is passed.
    match unsafe { checked(call(number::SCHED_GETAFFINITY, arguments)) } {
        Ok(_) => set.iter().map(|word| u64::from(word.count_ones())).sum(),
        Err(_) => 0,
    }
}

/// The kernel's `rusage`.
#[repr(C)]
#[derive(Default)]
struct Usage {
    user: [u64; 2],
    system: [u64; 2],
    peak_kibibytes: u64,
    rest: [u64; 13],
}

impl Usage {
    fn micros(&self) -> u64 {
        (self.user[0] + self.system[0]) * 1_000_000 + self.user[1] + self.system[1]
    }
}

/// A child that has ended.
pub struct Reaped {
    pub pid: i32,
    /// The raw wait status.
    pub status: i32,
    /// The largest resident size of the child and its reaped children, in bytes.
    pub peak_bytes: u64,
    /// The CPU time of the child and its reaped children, in microseconds.
    pub cpu_micros: u64,
}

const ANY: usize = -1isize as usize;
const WNOHANG: usize = 1;
const WEXITED: usize = 4;
const WNOWAIT: usize = 0x0100_0000;
const WALL: usize = 0x4000_0000;

/// Reaps one child that has ended, if any.
pub fn reap() -> Option<Reaped> {
    let mut status = 0i32;
    let mut usage = Usage::default();
    let arguments = [ANY, &raw mut status as usize, WNOHANG | WALL, &raw mut usage as usize, 0, 0];
    // SAFETY: both structures are the kernel's.
    let pid = unsafe { checked(call(number::WAIT4, arguments)) }.ok().filter(|&pid| pid > 0)?;
    let (peak_bytes, cpu_micros) = (usage.peak_kibibytes * 1024, usage.micros());
    Some(Reaped { pid: pid as i32, status, peak_bytes, cpu_micros })
}

/// Waits until a child ends. Returns its raw wait status, or `None` if there are no children.
pub fn wait_for_any() -> Option<i32> {
    let mut status = 0i32;
    // SAFETY: the status is the kernel's to write.
    let waited = retried(|| unsafe { checked(call(number::WAIT4, [ANY, &raw mut status as usize, WALL, 0, 0, 0])) });
    waited.ok().map(|_| status)
}

/// Reaps a child that is known to have ended.
pub fn reap_ended(pid: i32) {
    // SAFETY: nothing is written without structures.
    unsafe { call(number::WAIT4, [pid as usize, 0, WALL, 0, 0, 0]) };
}

/// Returns true if there is any child, including ended ones.
pub fn has_children() -> bool {
    const P_ALL: usize = 0;
    // SAFETY: nothing is written without a structure; the child stays as it is.
    unsafe { checked(call(number::WAITID, [P_ALL, 0, 0, WEXITED | WNOHANG | WNOWAIT | WALL, 0, 0])) }.is_ok()
}

/// Returns the CPU time of all reaped children in microseconds.
pub fn reaped_cpu_micros() -> u64 {
    let mut usage = Usage::default();
    // SAFETY: the structure is the kernel's.
    unsafe { call(number::GETRUSAGE, [ANY, &raw mut usage as usize, 0, 0, 0, 0]) };
    usage.micros()
}

/// Signals a process, or with -1 all processes of the sandbox except this one.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: plain numbers. A process that has ended needs no signal.
    unsafe { call(number::KILL, [pid as usize, signal as usize, 0, 0, 0, 0]) };
}

/// Returns the exec tag of a process.
pub fn exec_tag_of(pid: i32) -> Option<u64> {
    let mut limit = [0u64; 2];
    let arguments = [pid as usize, RLIMIT_RTTIME, 0, limit.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the structure is the kernel's.
    unsafe { checked(call(number::PRLIMIT64, arguments)) }.ok().map(|_| limit[0])
}

/// Sets the exec tag of the calling process, by the two arguments that only this program knows.
pub fn set_exec_tag((process, resource): (u64, u64), tag: u64) -> Res<()> {
    let limit = [tag; 2];
    let arguments = [process as usize, resource as usize, limit.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the structure is the kernel's, which writes to no memory.
    unsafe { checked(call(number::PRLIMIT64, arguments)) }.map(drop)
}

/// Limits the open descriptors of this process and its children.
///
///
/// The kernel also applies this limit to descriptors in flight of all processes of a user. So programs get a limit that
/// leaves space for descriptors that an init of the same user sends.
pub fn set_open_files(max: u64) -> Res<()> {
    const RLIMIT_NOFILE: usize = 7;
    let limit = [max; 2];
    // SAFETY: the structure is the kernel's, which writes to no memory.
    unsafe { checked(call(number::PRLIMIT64, [0, RLIMIT_NOFILE, limit.as_ptr() as usize, 0, 0, 0])) }.map(drop)
}

/// Starts a session, with the usual mask for new files.
pub fn lead_session() -> Res<()> {
    // SAFETY: plain numbers.
    unsafe {
        checked(call(number::SETSID, [0; 6]))?;
        call(number::UMASK, [0o022, 0, 0, 0, 0, 0]);
    }
    Ok(())
}

/// Unblocks all signals.
pub fn unblock_signals() -> Res<()> {
    set_signal_mask(0)
}

/// Enters the directory with the NUL-terminated name at an address that [`super::super::plan`] returned.
pub fn enter_directory(name: usize) -> Res<()> {
    // SAFETY: the area that holds the name outlives its use.
    unsafe { checked(call(number::CHDIR, [name, 0, 0, 0, 0, 0])) }.map(drop)
}

/// Executes a file with the lists at these addresses, which [`super::super::plan`] returned. Returns the error number
/// if it fails.
pub fn execute(file: &[u8], argv: usize, env: usize) -> i32 {
    if !file.contains(&0) {
        return EINVAL;
    }
    // SAFETY: the file's name ends with a NUL; the lists end with null and outlive the call.
    match unsafe { checked(call(number::EXECVE, [file.as_ptr() as usize, argv, env, 0, 0, 0])) } {
        Err(errno) => errno,
        Ok(_) => EINVAL,
    }
}

/// A stack for the few frames between `clone` and `execve`.
#[repr(C, align(16))]
pub struct Stack([u8; 8192]);

impl Stack {
    pub const NEW: Self = Self([0; 8192]);
}

/// Returns the key for the filter of system calls in one piece, from the parts that set a tag.
pub const fn joined_key((process, resource): (u64, u64)) -> u64 {
    process | resource >> 32
}

/// Runs `body` in a new process that borrows this one's memory, while this one waits until it executes a program or
/// ends. If `body` returns, the process ends. If the filter limits processes, it allows this call with the key, which
/// the kernel ignores.
pub fn spawn<F: FnMut()>(stack: &mut Stack, key: u64, body: &mut F) -> Res<i32> {
    const CLONE_VM: usize = 0x100;
    const CLONE_VFORK: usize = 0x4000;
    extern "C" fn run<F: FnMut()>(body: usize) -> ! {
        // SAFETY: `spawn` passes the address of a closure that is not used elsewhere meanwhile.
        unsafe { (*(body as *mut F))() };
        exit(127)
    }
    let top = stack.0.as_mut_ptr_range().end as usize;
    let flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    // SAFETY: with CLONE_VFORK this process waits, so that stack and closure outlive the child's use of them and have
    // no other user; `run` does not return.
    let result = unsafe { clone([flags, key as usize], top, run::<F>, &raw mut *body as usize) };
    checked(result).map(|pid| pid as i32)
}

/// Runs `body` in a new process with a copy of this one's memory, as process 1 of a new pid namespace. If `body`
/// returns, the process ends.
pub fn spawn_apart<F: FnMut()>(stack: &mut [Stack], body: &mut F) -> Res<i32> {
    const CLONE_NEWPID: usize = 0x2000_0000;
    extern "C" fn run<F: FnMut()>(body: usize) -> ! {
        // SAFETY: `spawn_apart` passes the address of a closure, of which this process has its own copy.
        unsafe { (*(body as *mut F))() };
        exit(127)
    }
    let top = stack.as_mut_ptr_range().end as usize;
    // SAFETY: the child has a copy of all memory, stack and closure included; `run` does not return.
    let result = unsafe { clone([CLONE_NEWPID | SIGCHLD, 0], top, run::<F>, &raw mut *body as usize) };
    checked(result).map(|pid| pid as i32)
}
