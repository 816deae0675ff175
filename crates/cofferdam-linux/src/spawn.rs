//! Making processes from a small single-threaded one: plain forks into new namespaces, and vforks that execute.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::seccomp::MarkKey;
use crate::sys::check;

/// One page of memory that a parent and its forks share, holding a process number.
///
/// The kernel writes the child's number there before the child runs, so that a child in a new pid namespace can know
/// the number that its parent sees.
#[derive(Debug)]
pub struct SharedPid {
    page: ptr::NonNull<AtomicI32>,
}

impl SharedPid {
    /// Maps a new page.
    pub fn new() -> io::Result<Self> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = ptr::NonNull::new(page.cast()).ok_or_else(|| io::Error::other("mapped at null"))?;
        Ok(Self { page })
    }

    /// The number stored last.
    pub fn get(&self) -> i32 {
        // SAFETY: the page is mapped as long as self lives, zeroed at first, and accessed atomically.
        unsafe { self.page.as_ref().load(Ordering::Relaxed) }
    }
}

impl Drop for SharedPid {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, and no reference outlives self.
        unsafe { libc::munmap(self.page.as_ptr().cast(), 4096) };
    }
}

#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Which side of a fork this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The new process.
    Child,
    /// The old one, with the child's number.
    Parent(i32),
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks into new namespaces of these kinds, and into a version 2 control group if given. The caller must have a
/// single thread, else the child could find locks held for ever: more threads are refused.
pub fn fork(namespaces: u64, cgroup: Option<BorrowedFd<'_>>, pid: Option<&SharedPid>) -> io::Result<Fork> {
    let mut args = CloneArgs { flags: namespaces, exit_signal: libc::SIGCHLD as u64, ..CloneArgs::default() };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    if let Some(pid) = pid {
        args.flags |= libc::CLONE_PARENT_SETTID as u64;
        args.parent_tid = pid.page.as_ptr() as u64;
    }
    // SAFETY: without CLONE_VM the child has its own copy of everything; the structure is as the kernel expects.
    let result = unsafe { check(libc::syscall(libc::SYS_clone3, &args, size_of::<CloneArgs>()))? };
    Ok(if result == 0 { Fork::Child } else { Fork::Parent(result as i32) })
}

/// What a new process is to execute, made ready so that the child only makes system calls.
#[derive(Debug)]
pub struct ExecPlan {
    /// Files to try in turn: the program, or the program in each directory of PATH.
    pub programs: Vec<CString>,
    /// Arguments, the first being the program's name.
    pub argv: Vec<CString>,
    /// Environment.
    pub env: Vec<CString>,
    /// Where to start.
    pub directory: CString,
    /// A mark to set on it, and the key to do so with.
    pub mark: Option<(MarkKey, u64)>,
    /// What becomes descriptors 0, 1 and 2.
    pub stdio: [RawFd; 3],
    /// Whether descriptor 0 is a terminal to control.
    pub terminal: bool,
}

/// Which step of starting a program failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecStep {
    /// No process could be made.
    Fork,
    /// The starting directory could not be entered.
    Directory,
    /// Descriptors, limits or the terminal could not be set.
    Prepare,
    /// The program could not be executed.
    Execute,
}

struct Child<'a> {
    plan: &'a ExecPlan,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    step: ExecStep,
    errno: i32,
}

/// Room for the few frames between `clone` and `execve`.
const STACK: usize = 32 * 1024;

/// Starts a program without copying this process: the child borrows its memory until it executes or fails.
///
/// The child leads a new session, has the usual mask for new files (022), blocks no signals, and has nothing open but the three descriptors of the plan.
pub fn spawn(plan: &ExecPlan) -> Result<i32, (ExecStep, io::Error)> {
    let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
    let mut child =
        Child { plan, argv: pointers(&plan.argv), env: pointers(&plan.env), step: ExecStep::Fork, errno: 0 };
    let mut stack: Vec<u8> = Vec::with_capacity(STACK);
    // SAFETY: with CLONE_VFORK this thread waits until the child has executed or ended, so that the stack and `child`
    // outlive its use of them; `run_child` only makes system calls. The stack's end is aligned to 16 bytes.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(STACK);
        let top = top.sub(top as usize % 16);
        libc::clone(
            run_child,
            top.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            ptr::from_mut(&mut child).cast(),
        )
    };
    if pid < 0 {
        return Err((ExecStep::Fork, io::Error::last_os_error()));
    }
    // SAFETY: the child is done with it; read it as the child left it.
    let (step, errno) = unsafe { (ptr::read_volatile(&child.step), ptr::read_volatile(&child.errno)) };
    if errno != 0 { Err((step, io::Error::from_raw_os_error(errno))) } else { Ok(pid) }
}

extern "C" fn run_child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn` passes a `Child` that outlives this function, and does not touch it meanwhile.
    let child = unsafe { &mut *argument.cast::<Child<'_>>() };
    child.errno = match prepare(child) {
        Ok(()) => execute(child),
        Err(errno) => errno,
    };
    crate::process::exit_now(127)
}

fn errno() -> i32 {
    // SAFETY: the thread's own errno, which it shares with the waiting parent.
    unsafe { *libc::__errno_location() }
}

fn prepare(child: &mut Child<'_>) -> Result<(), i32> {
    let plan = child.plan;
    child.step = ExecStep::Prepare;
    // SAFETY: system calls with numbers and with memory that lives through them; the set is initialised before use.
    unsafe {
        let check = |result: libc::c_int| if result < 0 { Err(errno()) } else { Ok(()) };
        check(libc::setsid())?;
        libc::umask(0o022);
        for (target, &fd) in plan.stdio.iter().enumerate() {
            check(libc::dup2(fd, target as i32))?;
        }
        if plan.terminal {
            check(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
        }
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32);
        if let Some((key, value)) = plan.mark
            && crate::process::set_mark(key, value).is_err()
        {
            return Err(errno());
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        check(libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut()))?;
        child.step = ExecStep::Directory;
        check(libc::chdir(plan.directory.as_ptr()))
    }
}

fn execute(child: &mut Child<'_>) -> i32 {
    child.step = ExecStep::Execute;
    let mut result = libc::ENOENT;
    for program in &child.plan.programs {
        // SAFETY: all strings are NUL-terminated and both lists end with a null pointer.
        unsafe { libc::execve(program.as_ptr(), child.argv.as_ptr(), child.env.as_ptr()) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            // A later directory of PATH may hold one that can be executed.
            libc::EACCES => result = libc::EACCES,
            other => return other,
        }
    }
    result
}

/// The files that a program's name may mean: itself if it has a slash, else one in each directory of `path`.
pub fn candidates(program: &CStr, path: &str) -> Vec<CString> {
    if program.to_bytes().contains(&b'/') {
        return vec![program.to_owned()];
    }
    path.split(':')
        .filter(|directory| directory.starts_with('/'))
        .filter_map(|directory| {
            let mut full = directory.as_bytes().to_vec();
            full.push(b'/');
            full.extend_from_slice(program.to_bytes());
            CString::new(full).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(argv: &[&str], directory: &str) -> ExecPlan {
        let text = |text: &str| CString::new(text).unwrap();
        ExecPlan {
            programs: candidates(&text(argv[0]), "/usr/bin:/bin"),
            argv: argv.iter().map(|word| text(word)).collect(),
            env: vec![text("A=b")],
            directory: text(directory),
            mark: None,
            stdio: [0, 1, 2],
            terminal: false,
        }
    }

    fn wait(pid: i32) -> i32 {
        let mut status = 0;
        // SAFETY: the status lives through the call.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn programs_start_and_failures_name_the_step() {
        assert_eq!(wait(spawn(&plan(&["sh", "-c", "test $A = b && exit 7"], "/")).unwrap()), 7);
        let failed = |plan: &ExecPlan| {
            let (step, error) = spawn(plan).unwrap_err();
            (step, error.raw_os_error())
        };
        assert_eq!(failed(&plan(&["no-such-program"], "/")), (ExecStep::Execute, Some(libc::ENOENT)));
        assert_eq!(failed(&plan(&["/etc/passwd"], "/")), (ExecStep::Execute, Some(libc::EACCES)));
        assert_eq!(failed(&plan(&["true"], "/no/such")), (ExecStep::Directory, Some(libc::ENOENT)));
    }
}
