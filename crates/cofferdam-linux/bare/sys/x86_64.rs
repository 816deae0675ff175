//! Entry and system calls of x86_64.

use core::arch::{asm, global_asm};

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {enter}",
    "ud2",
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
    // SAFETY: the caller's promise; the kernel changes nothing but the registers named.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
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
    // Registers that the call changes are no late outputs: the child still needs what is in the others.
    // SAFETY: the child leaves this block by the call only, on its own stack; in the parent it is a plain system call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {argument}",
            "call {body}",
            "ud2",
            "2:",
            body = in(reg) body,
            argument = in(reg) argument,
            inlateout("rax") number::CLONE as isize => result,
            in("rdi") flags, in("rsi") top & !15, in("rdx") 0, in("r10") 0, in("r8") 0, in("r9") key,
            out("rcx") _, out("r11") _,
        );
    }
    result
}

/// System call numbers.
pub mod number {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const LSEEK: usize = 8;
    pub const MMAP: usize = 9;
    pub const MUNMAP: usize = 11;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const IOCTL: usize = 16;
    pub const GETPID: usize = 39;
    pub const SOCKET: usize = 41;
    pub const CONNECT: usize = 42;
    pub const SENDTO: usize = 44;
    pub const RECVFROM: usize = 45;
    pub const SENDMSG: usize = 46;
    pub const RECVMSG: usize = 47;
    pub const SHUTDOWN: usize = 48;
    pub const BIND: usize = 49;
    pub const LISTEN: usize = 50;
    pub const GETSOCKNAME: usize = 51;
    pub const SOCKETPAIR: usize = 53;
    pub const SETSOCKOPT: usize = 54;
    pub const CLONE: usize = 56;
    pub const EXECVE: usize = 59;
    pub const WAIT4: usize = 61;
    pub const KILL: usize = 62;
    pub const FCNTL: usize = 72;
    pub const CHDIR: usize = 80;
    pub const FCHDIR: usize = 81;
    pub const FCHMOD: usize = 91;
    pub const UMASK: usize = 95;
    pub const GETRUSAGE: usize = 98;
    pub const GETUID: usize = 102;
    pub const GETGID: usize = 104;
    pub const SETSID: usize = 112;
    pub const SETGROUPS: usize = 116;
    pub const SETRESUID: usize = 117;
    pub const SETRESGID: usize = 119;
    pub const CAPGET: usize = 125;
    pub const STATFS: usize = 137;
    pub const PRCTL: usize = 157;
    pub const CHROOT: usize = 161;
    pub const SYNC: usize = 162;
    pub const MOUNT: usize = 165;
    pub const UMOUNT2: usize = 166;
    pub const REBOOT: usize = 169;
    pub const SETHOSTNAME: usize = 170;
    pub const SCHED_GETAFFINITY: usize = 204;
    pub const GETDENTS64: usize = 217;
    pub const CLOCK_SETTIME: usize = 227;
    pub const CLOCK_GETTIME: usize = 228;
    pub const EXIT_GROUP: usize = 231;
    pub const WAITID: usize = 247;
    pub const OPENAT: usize = 257;
    pub const MKDIRAT: usize = 258;
    pub const MKNODAT: usize = 259;
    pub const FCHOWNAT: usize = 260;
    pub const UNLINKAT: usize = 263;
    pub const LINKAT: usize = 265;
    pub const SYMLINKAT: usize = 266;
    pub const READLINKAT: usize = 267;
    pub const INOTIFY_ADD_WATCH: usize = 254;
    pub const INOTIFY_RM_WATCH: usize = 255;
    pub const FCHMODAT: usize = 268;
    pub const INOTIFY_INIT1: usize = 294;
    pub const PPOLL: usize = 271;
    pub const UNSHARE: usize = 272;
    pub const UTIMENSAT: usize = 280;
    pub const ACCEPT4: usize = 288;
    pub const SIGNALFD4: usize = 289;
    pub const DUP3: usize = 292;
    pub const PIPE2: usize = 293;
    pub const PRLIMIT64: usize = 302;
    pub const FINIT_MODULE: usize = 313;
    pub const RENAMEAT2: usize = 316;
    pub const SECCOMP: usize = 317;
    pub const EXECVEAT: usize = 322;
    pub const STATX: usize = 332;
    pub const PIDFD_OPEN: usize = 434;
    pub const CLOSE_RANGE: usize = 436;
    pub const PIDFD_GETFD: usize = 438;
    pub const LANDLOCK_CREATE_RULESET: usize = 444;
    pub const LANDLOCK_ADD_RULE: usize = 445;
    pub const LANDLOCK_RESTRICT_SELF: usize = 446;
}

/// The `open` flag for a directory.
pub const O_DIRECTORY: usize = 0o200_000;
