//! Making processes from a small single-threaded one: plain forks into new namespaces, and children that borrow their
//! parent's memory until they execute a program.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::process::exit_now;
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

/// What a child does until it executes a program that was opened beforehand.
///
/// It may live in its parent's memory: whatever it makes there must be dropped again by the time `prepare` returns, or
/// the parent keeps it for ever.
pub trait Child {
    /// Makes everything ready and gives the program's descriptor, or an exit code.
    fn prepare(&mut self) -> Result<RawFd, i32>;

    /// The program could not be executed. Gives an exit code.
    fn refused(&mut self, error: io::Error) -> i32;
}

/// The rest of a child's life: prepares, executes, or ends. A panic ends the child, and only the child.
pub fn live(child: &mut dyn Child, argv0: &CStr) -> ! {
    exit_now(follow(child, argv0, &AtomicBool::new(true)))
}

/// Gives an exit code if nothing was executed.
fn follow(child: &mut dyn Child, argv0: &CStr, orderly: &AtomicBool) -> i32 {
    let panicked = 70;
    match guarded(orderly, || child.prepare()) {
        Some(Ok(program)) => {
            let error = execute(program, argv0);
            guarded(orderly, || child.refused(error)).unwrap_or(panicked)
        }
        Some(Err(code)) => code,
        None => panicked,
    }
}

/// Runs a part in the middle of which memory may not be in order; `None` when it panicked.
fn guarded<T>(orderly: &AtomicBool, part: impl FnOnce() -> T) -> Option<T> {
    orderly.store(false, Ordering::SeqCst);
    // What a panic carries is dropped here: nobody reads it.
    let result = catch_unwind(AssertUnwindSafe(part)).ok();
    orderly.store(true, Ordering::SeqCst);
    result
}

/// Executes the program that a descriptor stands for, with only a name and no environment. Comes back with the reason
/// if it cannot.
fn execute(program: RawFd, argv0: &CStr) -> io::Error {
    let argv = [argv0.as_ptr(), ptr::null()];
    let env = [ptr::null::<libc::c_char>()];
    // SAFETY: the texts end with a NUL and the lists with null; all live through the call.
    unsafe {
        libc::syscall(libc::SYS_execveat, program, c"".as_ptr(), argv.as_ptr(), env.as_ptr(), libc::AT_EMPTY_PATH)
    };
    io::Error::last_os_error()
}

/// A stack for children that borrow their parent's memory, one after the other. Below it is a page that nobody may
/// touch: a child that runs out of it dies of that, and harms nothing.
#[derive(Debug)]
pub struct Stack {
    base: ptr::NonNull<u8>,
}

impl Stack {
    /// As much as a program's usual stack may need here; only what was touched takes memory.
    const SIZE: usize = 512 * 1024;
    /// The largest page of any machine that this runs on.
    const GUARD: usize = 64 * 1024;

    /// Maps a new one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice, the lowest part of which is then closed.
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
    orderly: AtomicBool,
}

/// Makes a child in new namespaces of these kinds that borrows this process's memory, and waits until it has executed
/// its program or has ended. Nothing is copied, so that it costs little however large this process is.
///
/// Gives the child's number, and whether this process's memory is in order: it is not where something killed the child
/// before it came to an end of its own, because it may have been changing anything. The caller must have a single thread.
///
/// The kernel's out-of-memory killer, which kills everything that shares its victim's memory, passes over children
/// that still borrow.
pub fn borrow(
    stack: &mut Stack,
    namespaces: u64,
    pid: &SharedPid,
    child: &mut dyn Child,
    argv0: &CStr,
) -> io::Result<(i32, bool)> {
    let borrower = Borrower { child, argv0, orderly: AtomicBool::new(true) };
    let borrowing = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
    // SAFETY: with CLONE_VFORK this thread waits until the child has executed or ended, so that the stack and
    // `borrower` outlive its use of them, and nobody else uses them meanwhile. The kernel writes to the shared page.
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
    Ok((number, borrower.orderly.load(Ordering::SeqCst)))
}

extern "C" fn run_borrower(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `borrow` passes a `Borrower` that outlives this function, and does not touch it meanwhile.
    let borrower = unsafe { &mut *argument.cast::<Borrower<'_>>() };
    exit_now(follow(borrower.child, borrower.argv0, &borrower.orderly))
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

    /// Exit code, whether memory is in order, what was written to it, why the program was refused.
    fn borrowed(program: Result<RawFd, i32>) -> (i32, bool, usize, i32) {
        let (mut stack, shared) = (Stack::new().unwrap(), SharedPid::new().unwrap());
        let mut child = Prepared { program, seen: Vec::new(), refused: 0 };
        let (pid, orderly) = borrow(&mut stack, 0, &shared, &mut child, c"true").unwrap();
        assert_eq!(shared.get(), pid);
        (wait(pid), orderly, child.seen.len(), child.refused)
    }

    /// Promise (Process isolation): A child that borrows the launcher's memory executes its program or reports its
    /// error.
    #[test]
    fn a_child_that_borrows_executes_or_says_why_not() {
        std::panic::set_hook(Box::new(|_| {}));
        let (program, no_program) = (open("/bin/true"), open("/etc/passwd"));
        assert_eq!(borrowed(Ok(program.as_raw_fd())), (0, true, 1, 0));
        assert_eq!(borrowed(Ok(no_program.as_raw_fd())), (9, true, 1, libc::EACCES));
        assert_eq!(borrowed(Err(7)), (7, true, 1, 0));
        assert_eq!(borrowed(Err(255)), (70, true, 0, 0), "a panic ends the child alone");
        assert_eq!(borrowed(Err(254)), (-libc::SIGKILL, false, 0, 0), "killed in the middle of something");
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
