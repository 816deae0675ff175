//! The calling process, its children, and others of the sandbox.

use super::{EINVAL, Fd, Res, call, checked, clone, number, retried};

pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;
pub const SIGSTOP: i32 = 19;
pub const SIGCONT: i32 = 18;
const SIGPIPE: usize = 13;
const SIGCHLD: usize = 17;
const RLIMIT_RTTIME: usize = 15;
/// The kernel's size of a set of signals.
const SIGNALS: usize = 8;

/// The calling process, and its user and group.
pub fn identity() -> (i32, u32, u32) {
    // SAFETY: the calls take nothing and cannot fail.
    let id = |number| unsafe { call(number, [0; 6]) };
    (id(number::GETPID) as i32, id(number::GETUID) as u32, id(number::GETGID) as u32)
}

fn prctl(option: usize, argument: usize) -> Res<usize> {
    // SAFETY: the options used here take numbers, or a name that ends with a NUL.
    unsafe { checked(call(number::PRCTL, [option, argument, 0, 0, 0, 0])) }
}

/// Hides this process's memory and files from others of the same user, and dies with the parent.
pub fn withdraw() -> Res<()> {
    const PR_SET_PDEATHSIG: usize = 1;
    const PR_SET_DUMPABLE: usize = 4;
    const PR_SET_NAME: usize = 15;
    prctl(PR_SET_DUMPABLE, 0)?;
    prctl(PR_SET_PDEATHSIG, SIGKILL as usize)?;
    prctl(PR_SET_NAME, c"cofferdam-init".as_ptr() as usize).map(drop)
}

/// Gives up gaining privileges by executing, for good, and hides this process's memory.
pub fn renounce(name: &core::ffi::CStr) -> Res<()> {
    const PR_SET_DUMPABLE: usize = 4;
    const PR_SET_NAME: usize = 15;
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    prctl(PR_SET_NO_NEW_PRIVS, 1)?;
    prctl(PR_SET_DUMPABLE, 0)?;
    prctl(PR_SET_NAME, name.as_ptr() as usize).map(drop)
}

/// Whether privileges cannot be gained by executing, and whether a filter of system calls is on.
pub fn confinement() -> (bool, bool) {
    const PR_GET_SECCOMP: usize = 21;
    const PR_GET_NO_NEW_PRIVS: usize = 39;
    (prctl(PR_GET_NO_NEW_PRIVS, 0) == Ok(1), prctl(PR_GET_SECCOMP, 0) == Ok(2))
}

/// Effective, permitted and inheritable capabilities.
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

/// Blocks SIGCHLD and SIGPIPE, and nothing else, and gives a non-blocking descriptor that becomes readable when a child ends.
pub fn child_signal() -> Res<Fd> {
    const CLOEXEC_NONBLOCK: usize = 0o2_004_000;
    let mask = 1u64 << (SIGCHLD - 1);
    set_signal_mask(mask | 1 << (SIGPIPE - 1))?;
    let arguments = [usize::MAX, &raw const mask as usize, SIGNALS, CLOEXEC_NONBLOCK, 0, 0];
    // SAFETY: a set of signals of the size that is passed.
    unsafe { checked(call(number::SIGNALFD4, arguments)) }.map(|fd| Fd::own(fd as i32))
}

/// Microseconds of a clock that never goes back.
pub fn now_micros() -> u64 {
    const CLOCK_MONOTONIC: usize = 1;
    let mut time = [0u64; 2];
    // SAFETY: the structure is the kernel's.
    unsafe { call(number::CLOCK_GETTIME, [CLOCK_MONOTONIC, time.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    time[0] * 1_000_000 + time[1] / 1000
}

/// Processors that this process may use; 0 when it cannot be told.
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
    /// The largest resident size of it and its reaped children, in bytes.
    pub peak_bytes: u64,
    /// CPU microseconds of it and its reaped children.
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

/// Waits until a child ends, and gives its raw wait status; `None` where there is no child any more.
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

/// Whether there is any child, ended ones included.
pub fn has_children() -> bool {
    const P_ALL: usize = 0;
    // SAFETY: nothing is written without a structure; the child stays as it is.
    unsafe { checked(call(number::WAITID, [P_ALL, 0, 0, WEXITED | WNOHANG | WNOWAIT | WALL, 0, 0])) }.is_ok()
}

/// CPU microseconds of all children that were reaped.
pub fn reaped_cpu_micros() -> u64 {
    let mut usage = Usage::default();
    // SAFETY: the structure is the kernel's.
    unsafe { call(number::GETRUSAGE, [ANY, &raw mut usage as usize, 0, 0, 0, 0]) };
    usage.micros()
}

/// Signals a process, or with -1 everything in the sandbox but this process.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: plain numbers. One that has gone meanwhile is as good as signalled.
    unsafe { call(number::KILL, [pid as usize, signal as usize, 0, 0, 0, 0]) };
}

/// The mark of a process.
pub fn mark_of(pid: i32) -> Option<u64> {
    let mut limit = [0u64; 2];
    let arguments = [pid as usize, RLIMIT_RTTIME, 0, limit.as_mut_ptr() as usize, 0, 0];
    // SAFETY: the structure is the kernel's.
    unsafe { checked(call(number::PRLIMIT64, arguments)) }.ok().map(|_| limit[0])
}

/// Marks the calling process, by the two arguments that only this program knows.
pub fn set_mark((process, resource): (u64, u64), mark: u64) -> Res<()> {
    let limit = [mark; 2];
    let arguments = [process as usize, resource as usize, limit.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the structure is the kernel's, which writes to no memory.
    unsafe { checked(call(number::PRLIMIT64, arguments)) }.map(drop)
}

/// Bounds the descriptors that this process, and what it starts, may have open.
///
/// The kernel also takes this limit for the descriptors that a user's processes have sent and nobody has received yet:
/// what a program may send is to leave room for what an init of the same user has to send.
pub fn set_open_files(most: u64) -> Res<()> {
    const RLIMIT_NOFILE: usize = 7;
    let limit = [most; 2];
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

/// Blocks no signal.
pub fn unblock_signals() -> Res<()> {
    set_signal_mask(0)
}

/// Enters the directory whose name, with a NUL at its end, is at an address that [`super::super::plan`] made.
pub fn enter_directory(name: usize) -> Res<()> {
    // SAFETY: the area that holds the name outlives its use.
    unsafe { checked(call(number::CHDIR, [name, 0, 0, 0, 0, 0])) }.map(drop)
}

/// Executes a file with the lists at these addresses, which [`super::super::plan`] made. Gives why it could not.
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

/// Room for the few frames between `clone` and `execve`.
#[repr(C, align(16))]
pub struct Stack([u8; 8192]);

impl Stack {
    pub const NEW: Self = Self([0; 8192]);
}

/// Returns the key in one piece, which lets calls of this process's own through the filter, of the parts that set a mark.
pub const fn whole_key((process, resource): (u64, u64)) -> u64 {
    process | resource >> 32
}

/// Runs `body` in a new process that borrows this one's memory, while this one waits for it to execute a program or to
/// end. If `body` returns, the process ends. Where the filter limits processes, it lets this call through with the key, which
/// the kernel does not read.
pub fn spawn<F: FnMut()>(stack: &mut Stack, key: u64, body: &mut F) -> Res<i32> {
    const CLONE_VM: usize = 0x100;
    const CLONE_VFORK: usize = 0x4000;
    extern "C" fn run<F: FnMut()>(body: usize) -> ! {
        // SAFETY: `spawn` passes the address of a closure that nobody touches meanwhile.
        unsafe { (*(body as *mut F))() };
        exit(127)
    }
    let top = stack.0.as_mut_ptr_range().end as usize;
    let flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
    // SAFETY: with CLONE_VFORK this process waits, so that stack and closure outlive the child's use of them, and are
    // used by nobody else; `run` does not return.
    let result = unsafe { clone([flags, key as usize], top, run::<F>, &raw mut *body as usize) };
    checked(result).map(|pid| pid as i32)
}

/// Runs `body` in a new process with a copy of this one's memory, as process 1 of a new pid namespace. If `body` returns,
/// the process ends.
pub fn spawn_apart<F: FnMut()>(stack: &mut [Stack], body: &mut F) -> Res<i32> {
    const CLONE_NEWPID: usize = 0x2000_0000;
    extern "C" fn run<F: FnMut()>(body: usize) -> ! {
        // SAFETY: `spawn_apart` passes the address of a closure, of which this process has a copy of its own.
        unsafe { (*(body as *mut F))() };
        exit(127)
    }
    let top = stack.as_mut_ptr_range().end as usize;
    // SAFETY: the child has a copy of all memory, stack and closure included; `run` does not return.
    let result = unsafe { clone([CLONE_NEWPID | SIGCHLD, 0], top, run::<F>, &raw mut *body as usize) };
    checked(result).map(|pid| pid as i32)
}
