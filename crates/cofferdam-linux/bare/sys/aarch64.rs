//! Entry and system calls of aarch64.

use core::arch::{asm, global_asm};

global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, xzr",
    "mov x30, xzr",
    "bl {enter}",
    "brk 1",
    enter = sym crate::enter,
);

/// Makes a system call. Negative results are error numbers.
///
/// # Safety
///
/// Memory that the arguments point to must be as the call expects it.
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the caller's promise; the kernel changes nothing but the register named.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// Calls `clone` with a stack for the child, on which it runs `body(argument)`. Only the filter of system calls reads the key.
///
/// # Safety
///
/// `top` ends a stack that nothing else uses while the child does; `body` does not return; memory may only be shared
/// (CLONE_VM) while the caller waits (CLONE_VFORK).
pub unsafe fn clone([flags, key]: [usize; 2], top: usize, body: extern "C" fn(usize) -> !, argument: usize) -> isize {
    let result;
    // SAFETY: the child leaves this block by the call only, on its own stack; in the parent it is a plain system call.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, {argument}",
            "blr {body}",
            "brk 1",
            "2:",
            body = in(reg) body,
            argument = in(reg) argument,
            in("x8") number::CLONE,
            inlateout("x0") flags as isize => result,
            in("x1") top & !15, in("x2") 0, in("x3") 0, in("x4") 0, in("x5") key,
            out("x30") _,
        );
    }
    result
}

/// System call numbers.
pub mod number {
    pub const DUP3: usize = 24;
    pub const FCNTL: usize = 25;
    pub const IOCTL: usize = 29;
    pub const MKNODAT: usize = 33;
    pub const MKDIRAT: usize = 34;
    pub const UNLINKAT: usize = 35;
    pub const SYMLINKAT: usize = 36;
    pub const LINKAT: usize = 37;
    pub const UMOUNT2: usize = 39;
    pub const SYNC: usize = 81;
    pub const MOUNT: usize = 40;
    pub const STATFS: usize = 43;
    pub const CHDIR: usize = 49;
    pub const FCHDIR: usize = 50;
    pub const CHROOT: usize = 51;
    pub const FCHMOD: usize = 52;
    pub const INOTIFY_INIT1: usize = 26;
    pub const INOTIFY_ADD_WATCH: usize = 27;
    pub const INOTIFY_RM_WATCH: usize = 28;
    pub const FCHMODAT: usize = 53;
    pub const FCHOWNAT: usize = 54;
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const PIPE2: usize = 59;
    pub const GETDENTS64: usize = 61;
    pub const LSEEK: usize = 62;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const PPOLL: usize = 73;
    pub const SIGNALFD4: usize = 74;
    pub const READLINKAT: usize = 78;
    pub const UTIMENSAT: usize = 88;
    pub const CAPGET: usize = 90;
    pub const EXIT_GROUP: usize = 94;
    pub const WAITID: usize = 95;
    pub const UNSHARE: usize = 97;
    pub const CLOCK_SETTIME: usize = 112;
    pub const CLOCK_GETTIME: usize = 113;
    pub const SCHED_GETAFFINITY: usize = 123;
    pub const KILL: usize = 129;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const REBOOT: usize = 142;
    pub const SETRESUID: usize = 147;
    pub const SETRESGID: usize = 149;
    pub const SETSID: usize = 157;
    pub const SETGROUPS: usize = 159;
    pub const SETHOSTNAME: usize = 161;
    pub const GETRUSAGE: usize = 165;
    pub const UMASK: usize = 166;
    pub const PRCTL: usize = 167;
    pub const GETPID: usize = 172;
    pub const GETUID: usize = 174;
    pub const GETGID: usize = 176;
    pub const SOCKET: usize = 198;
    pub const SOCKETPAIR: usize = 199;
    pub const BIND: usize = 200;
    pub const LISTEN: usize = 201;
    pub const CONNECT: usize = 203;
    pub const GETSOCKNAME: usize = 204;
    pub const SENDTO: usize = 206;
    pub const RECVFROM: usize = 207;
    pub const SETSOCKOPT: usize = 208;
    pub const SHUTDOWN: usize = 210;
    pub const SENDMSG: usize = 211;
    pub const RECVMSG: usize = 212;
    pub const MUNMAP: usize = 215;
    pub const CLONE: usize = 220;
    pub const EXECVE: usize = 221;
    pub const MMAP: usize = 222;
    pub const ACCEPT4: usize = 242;
    pub const WAIT4: usize = 260;
    pub const PRLIMIT64: usize = 261;
    pub const FINIT_MODULE: usize = 273;
    pub const RENAMEAT2: usize = 276;
    pub const SECCOMP: usize = 277;
    pub const EXECVEAT: usize = 281;
    pub const STATX: usize = 291;
    pub const PIDFD_OPEN: usize = 434;
    pub const CLOSE_RANGE: usize = 436;
    pub const PIDFD_GETFD: usize = 438;
    pub const LANDLOCK_CREATE_RULESET: usize = 444;
    pub const LANDLOCK_ADD_RULE: usize = 445;
    pub const LANDLOCK_RESTRICT_SELF: usize = 446;
}

/// The `open` flag for a directory.
pub const O_DIRECTORY: usize = 0o40_000;
