//! Creation of processes by a small single-threaded one: plain forks into new namespaces, and children that borrow
//! their parent's memory until they execute a program.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::process::exit_now;
use crate::sys::check;

/// A page of memory that a parent and its forks share, with a process id.
///
///
/// The kernel writes the child's id there before the child runs, so that a child in a new pid namespace knows its id in
/// the parent's namespace.
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

    /// Returns the id that was stored last.
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

/// The side of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The new process.
    Child,
    /// The parent, with the child's process id.
    Parent(i32),
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks into new namespaces of these kinds, and into a version 2 control group if given. The caller must have a single
/// thread, or the child must take no locks and allocate nothing: it could find locks that are never released.
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

/// The actions of a child until it executes a program that was opened before.
///
///
/// It may run in its parent's memory: values that it creates there must be dropped when `prepare` returns, or they leak
/// in the parent.
pub trait Child {
    /// Prepares the process. Returns the program's descriptor, or an exit code.
    fn prepare(&mut self) -> Result<RawFd, i32>;

    /// Handles a failed execution. Returns an exit code.
    fn refused(&mut self, error: io::Error) -> i32;
}

/// Runs a child to its end: prepares and executes its program, or exits. A panic ends only the child.
pub fn live(child: &mut dyn Child, argv0: &CStr) -> ! {
    exit_now(run(child, argv0, &AtomicBool::new(true)))
}

/// Prepares and executes. Returns an exit code if the execution failed.
fn run(child: &mut dyn Child, argv0: &CStr, consistent: &AtomicBool) -> i32 {
    let panicked = 70;
    match guarded(consistent, || child.prepare()) {
        Some(Ok(program)) => {
            let error = execute(program, argv0);
            guarded(consistent, || child.refused(error)).unwrap_or(panicked)
        }
        Some(Err(code)) => code,
        None => panicked,
    }
}

/// Runs a part during which memory may be inconsistent. Returns `None` if it panicked.
fn guarded<T>(consistent: &AtomicBool, part: impl FnOnce() -> T) -> Option<T> {
    consistent.store(false, Ordering::SeqCst);
    // The payload of a panic is dropped here, because it is never read.
    let result = catch_unwind(AssertUnwindSafe(part)).ok();
    consistent.store(true, Ordering::SeqCst);
    result
}

/// Executes the program of a descriptor, with only a name and no environment. Returns the error if it fails.
fn execute(program: RawFd, argv0: &CStr) -> io::Error {
    let argv = [argv0.as_ptr(), ptr::null()];
    let env = [ptr::null::<libc::c_char>()];
    // SAFETY: the texts end with a NUL and the lists with null; all live through the call.
    unsafe {
        libc::syscall(libc::SYS_execveat, program, c"".as_ptr(), argv.as_ptr(), env.as_ptr(), libc::AT_EMPTY_PATH)
    };
    io::Error::last_os_error()
}

/// A stack for children that borrow their parent's memory, one after the other. There is an inaccessible page below it:
/// a stack overflow kills the child and does no other harm.
#[derive(Debug)]
pub struct Stack {
    base: ptr::NonNull<u8>,
}

impl Stack {
    /// The maximum that is needed here. Only touched pages use memory.
    const SIZE: usize = 512 * 1024;
    /// The largest page size of all supported machines.
    const GUARD: usize = 64 * 1024;

    /// Maps a new stack.
    pub fn new() -> io::Result<Self> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice. Its lowest part is then made inaccessible.
        unsafe {
            let base = libc::mmap(
                ptr::null_mut(),
                Self::SIZE + Self::GUARD,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            );
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let base = ptr::NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at null"))?;
            let stack = Self { base };
            check(libc::mprotect(base.as_ptr().cast(), Self::GUARD, libc::PROT_NONE).into())?;
            Ok(stack)
        }
    }

    fn top(&mut self) -> *mut libc::c_void {
        // SAFETY: the end of the mapping, which is aligned to a page.
        unsafe { self.base.as_ptr().add(Self::SIZE + Self::GUARD).cast() }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, and no child uses it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Self::SIZE + Self::GUARD) };
    }
}

struct Borrower<'a> {
    child: &'a mut dyn Child,
    argv0: &'a CStr,
    consistent: AtomicBool,
}

/// Creates a child in new namespaces of these kinds that borrows this process's memory, and waits until it has executed
/// its program or has ended. Nothing is copied, so the cost does not depend on the size of this process.
///
///
/// Returns the child's process id, and true if this process's memory is consistent. It may be inconsistent if the child
/// was killed before it ended by itself, because it may have been changing anything. The caller must have a single
/// thread.
///
/// The kernel's out-of-memory killer kills all processes that share its victim's memory. It skips children that still
/// borrow.
pub fn borrow(
    stack: &mut Stack,
    namespaces: u64,
    pid: &SharedPid,
    child: &mut dyn Child,
    argv0: &CStr,
) -> io::Result<(i32, bool)> {
    let borrower = Borrower { child, argv0, consistent: AtomicBool::new(true) };
    let borrowing = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
    // SAFETY: with CLONE_VFORK this thread waits until the child has executed or ended, so that the stack and
    // `borrower` outlive its use of them and have no other user meanwhile. The kernel writes to the shared page.
    let number = unsafe {
        libc::clone(
            run_borrower,
            stack.top(),
            borrowing | namespaces as libc::c_int,
            ptr::from_ref(&borrower).cast_mut().cast(),
            pid.page.as_ptr().cast::<libc::pid_t>(),
            ptr::null_mut::<libc::c_void>(),
            ptr::null_mut::<libc::pid_t>(),
        )
    };
    check(number.into())?;
    Ok((number, borrower.consistent.load(Ordering::SeqCst)))
}

extern "C" fn run_borrower(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `borrow` passes a `Borrower` that outlives this function, and does not touch it meanwhile.
    let borrower = unsafe { &mut *argument.cast::<Borrower<'_>>() };
    exit_now(run(borrower.child, borrower.argv0, &borrower.consistent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, OwnedFd};

    struct Prepared {
        program: Result<RawFd, i32>,
        seen: Vec<u8>,
        refused: i32,
    }

    impl Child for Prepared {
        fn prepare(&mut self) -> Result<RawFd, i32> {
            assert_ne!(self.program, Err(255), "a child that panics");
            if self.program == Err(254) {
                let _ = crate::process::kill(std::process::id() as i32, libc::SIGKILL);
            }
            self.seen.push(1);
            self.program
        }

        fn refused(&mut self, error: io::Error) -> i32 {
            self.refused = error.raw_os_error().unwrap_or(0);
            9
        }
    }

    fn wait(pid: i32) -> i32 {
        let mut status = 0;
        // SAFETY: the status lives through the call.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
    }

    fn open(path: &str) -> OwnedFd {
        std::fs::File::open(path).unwrap().into()
    }

    /// Returns the exit code, whether memory is consistent, the number of bytes written to it, and the reason of a
    /// failed execution.
    fn borrowed(program: Result<RawFd, i32>) -> (i32, bool, usize, i32) {
        let (mut stack, shared) = (Stack::new().unwrap(), SharedPid::new().unwrap());
        let mut child = Prepared { program, seen: Vec::new(), refused: 0 };
        let (pid, consistent) = borrow(&mut stack, 0, &shared, &mut child, c"true").unwrap();
        assert_eq!(shared.get(), pid);
        (wait(pid), consistent, child.seen.len(), child.refused)
    }

    /// Promise (Process isolation): A child that borrows the launcher's memory executes its program or reports its
    /// error.
    #[test]
    fn a_child_that_borrows_memory_executes_or_reports_its_error() {
        std::panic::set_hook(Box::new(|_| {}));
        let (program, no_program) = (open("/bin/true"), open("/etc/passwd"));
        assert_eq!(borrowed(Ok(program.as_raw_fd())), (0, true, 1, 0));
        assert_eq!(borrowed(Ok(no_program.as_raw_fd())), (9, true, 1, libc::EACCES));
        assert_eq!(borrowed(Err(7)), (7, true, 1, 0));
        assert_eq!(borrowed(Err(255)), (70, true, 0, 0), "a panic ends the child alone");
        assert_eq!(borrowed(Err(254)), (-libc::SIGKILL, false, 0, 0), "killed while memory was inconsistent");
    }

    #[test]
    fn a_forked_child_lives_the_same_life() {
        let program = open("/bin/true");
        let forked = |program| match fork(0, None, None).unwrap() {
            Fork::Child => live(&mut Prepared { program, seen: Vec::new(), refused: 0 }, c"true"),
            Fork::Parent(pid) => wait(pid),
        };
        assert_eq!(forked(Ok(program.as_raw_fd())), 0);
        assert_eq!(forked(Err(7)), 7);
    }
}
