//! A pid namespace around one program. Its init is killed when the process that requested it ends.
//!
//! ```text
//! this process --ends--> relay is killed --> init is killed --> all processes in the namespace are killed
//! ```
//!
//! A program that changes its user loses its parent-death signal, but it cannot leave the namespace. Relay and init are
//! forks that keep no descriptor and only wait. If a program gets a [`HeldFiles`], the init executes its own program.
//! It keeps these files open and has nothing of this process's memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, openat};

use crate::child::HeldFiles;
use crate::mount::{self, Depth, attr};
use crate::namespace::{self, kind};
use crate::process::{become_user, close_all_but, die_with_parent, exit_now, keep_on_exec};
use crate::sys::{check, check_int};

/// The number of descriptors of the init, besides the held files, until it executes its program.
const FURTHER: usize = 3;

/// Held files and their descriptors, with space for the init's own: nothing is allocated after the fork.
pub(crate) struct OpenedFiles {
    held_files: HeldFiles,
    numbers: Vec<RawFd>,
    space: Vec<RawFd>,
}

impl OpenedFiles {
    pub(crate) fn new(held_files: HeldFiles, numbers: &[RawFd]) -> Self {
        let space = Vec::with_capacity(numbers.len() + FURTHER);
        Self { held_files, numbers: numbers.to_owned(), space }
    }
}

/// Returns in the process that will become the program. The two processes above it stay here. For a fork of a process
/// with many threads, before it executes a program: makes only system calls, and allocates nothing.
///
///
/// The caller becomes the relay. It must have set a parent-death signal already.
pub(crate) fn enter_namespace(opened_files: Option<&mut OpenedFiles>) -> io::Result<()> {
    let (relay_alive, relay_end) = pipe()?;
    // SAFETY: plain numbers; the next child is the namespace's init.
    unsafe { check_int(libc::unshare(libc::CLONE_NEWPID))? };
    if let Some(init) = fork()? {
        close_all_but(&mut [relay_end.as_raw_fd()]);
        relay(init)
    }
    drop(relay_end);
    die_with_parent()?;
    if is_closed(relay_alive.as_raw_fd()) {
        exit_now(1);
    }
    if let Some(opened_files) = opened_files {
        return with_init(&relay_alive, opened_files);
    }
    drop(relay_alive);
    match fork()? {
        Some(program) => {
            close_all_but(&mut []);
            relay(program)
        }
        None => Ok(()),
    }
}

/// Does the same with an init that keeps files open: the program continues once the init runs.
fn with_init(relay_alive: &OwnedFd, opened_files: &mut OpenedFiles) -> io::Result<()> {
    let HeldFiles { tree, at, shown, .. } = &opened_files.held_files;
    namespace::unshare(kind::MOUNT)?;
    // Unmounts of the host take effect here as well.
    mount::set_propagation(mount::SLAVE)?;
    mount::attach(tree.as_fd(), mount::cwd(), at)?;
    let own = openat(mount::cwd(), c"/proc/self", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let (reader, ready) = pipe()?;
    if fork()?.is_some() {
        let error = become_init(relay_alive, &ready, opened_files);
        let code = error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
        // Without this message, the program would take the end of this process for readiness, were it not killed by it.
        let _ = rustix::io::write(&ready, &code);
        exit_now(1)
    }
    drop(ready);
    let mut code = [0; 4];
    match rustix::io::retry_on_intr(|| rustix::io::read(&reader, &mut code))? {
        // Only now do its descriptors, as the kernel shows them, belong to the user that will open them.
        0 => {
            let all = mount::clone_tree(own.as_fd(), c"fd", Depth::Single)?;
            mount::add_attributes(
                all.as_fd(),
                Depth::Single,
                attr::RDONLY | attr::NOSUID | attr::NODEV | attr::NOEXEC,
            )?;
            mount::attach(all.as_fd(), mount::cwd(), shown)
        }
        _ => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code))),
    }
}

/// Executes the init. Returns only if that fails. The kernel closes `ready` when the init runs.
fn become_init(relay_alive: &OwnedFd, ready: &OwnedFd, opened_files: &mut OpenedFiles) -> io::Error {
    let OpenedFiles { held_files, numbers, space } = opened_files;
    space.clear();
    space.extend_from_slice(numbers);
    space.extend([relay_alive.as_raw_fd(), ready.as_raw_fd(), held_files.init.as_raw_fd()]);
    close_all_but(space);
    let prepare = || {
        become_user(held_files.user.0, held_files.user.1)?;
        // The change of the user has cleared it.
        die_with_parent()?;
        if is_closed(relay_alive.as_raw_fd()) {
            exit_now(1);
        }
        numbers.iter().try_for_each(|fd| keep_on_exec(*fd))
    };
    match prepare() {
        Err(error) => error,
        Ok(()) => execute(&held_files.init),
    }
}

/// Executes an open program with only its name as argument. Returns the error if it fails.
fn execute(program: &OwnedFd) -> io::Error {
    let (arguments, none) = ([c"cofferdam-init".as_ptr(), std::ptr::null()], [std::ptr::null::<u8>()]);
    let (number, empty) = (program.as_raw_fd(), c"".as_ptr());
    // SAFETY: both lists end with a null, and all of it lives through the call.
    let failed = unsafe {
        let (arguments, none) = (arguments.as_ptr(), none.as_ptr());
        check(libc::syscall(libc::SYS_execveat, number, empty, arguments, none, libc::AT_EMPTY_PATH))
    };
    failed.err().unwrap_or_else(|| io::ErrorKind::Other.into())
}

/// Returns a descriptor of the init of the namespace with this relay. When the init is killed, all processes in its
/// namespace are killed, and the relay ends after the last of them.
pub(crate) fn init_of(relay: u32) -> Option<OwnedFd> {
    let only = || {
        let children = std::fs::read_to_string(format!("/proc/{relay}/task/{relay}/children")).ok()?;
        children.trim().parse::<i32>().ok()
    };
    let init = only()?;
    let held = crate::process::pidfd(init).ok()?;
    // If the id is still that of its child, it was when the descriptor was created.
    (only() == Some(init)).then_some(held)
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has the two elements that are written; the descriptors are new.
    unsafe {
        check_int(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Returns true if no process has the other end of a pipe open.
fn is_closed(end: RawFd) -> bool {
    let mut poll = libc::pollfd { fd: end, events: 0, revents: 0 };
    // SAFETY: one structure, which lives through the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLHUP != 0 }
}

/// Forks. Returns the child's process id in the parent. This is a raw call, because the C library's fork handlers must
/// not run here.
fn fork() -> io::Result<Option<i32>> {
    // SAFETY: without CLONE_VM the child has its own copy of everything, and like its parent it has one thread.
    let child = unsafe { check(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0))? };
    Ok((child > 0).then_some(child as i32))
}

/// Waits until no child is left, and exits with the status of the first one.
fn relay(first: i32) -> ! {
    let mut code = 1;
    loop {
        let mut status = 0;
        // SAFETY: the status lives through the call.
        let ended = unsafe { libc::waitpid(-1, &mut status, 0) };
        if ended == first {
            code = if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) };
        } else if ended < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            exit_now(code);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::child::{Start, start, start_in_namespace};

    /// A function that starts a program.
    type Starts = fn(Command, Start) -> io::Result<Child>;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    fn starts() -> Vec<Starts> {
        if rustix::process::geteuid().is_root() {
            vec![start, start_in_namespace]
        } else {
            println!("SKIP namespaces: they need root");
            vec![start]
        }
    }

    #[test]
    fn a_program_runs_and_its_end_is_known() {
        for start in starts() {
            let mut child = start(shell("echo hello; exit 7"), Start::default()).unwrap();
            let mut text = String::new();
            child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!((text.as_str(), child.wait().unwrap().code()), ("hello\n", Some(7)));
            let missing = start(Command::new("/nowhere/program"), Start::default());
            assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_program_outlives_the_thread_that_started_it() {
        for start in starts() {
            let started = std::thread::spawn(move || start(shell("sleep 0.2; echo alive"), Start::default()).unwrap());
            let mut child = started.join().unwrap();
            let mut text = String::new();
            child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "alive\n");
            child.wait().unwrap();
        }
    }

    #[test]
    fn killing_the_child_kills_all_of_a_namespace() {
        if starts().len() < 2 {
            return;
        }
        // The grandchild keeps the output open.
        let mut child = start_in_namespace(shell("sleep 3600 & echo ready; wait"), Start::default()).unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        child.kill().unwrap();
        child.wait().unwrap();
        // The output ends only when no process has it open.
        assert_eq!(output.read_to_string(&mut line).unwrap(), 0);
    }

    /// This is the process that is killed in the next test.
    #[test]
    fn starts_programs_and_waits() {
        if std::env::var_os("COFFERDAM_TEST_STARTED").is_none() {
            return;
        }
        // Without a namespace, the program's children would be left.
        let scripts = ["exec sleep 3600", "sleep 3600 & wait"];
        let make = |(start, script): (Starts, &str)| {
            let mut command = shell(script);
            command.stdout(Stdio::inherit());
            start(command, Start::default()).unwrap()
        };
        let children: Vec<_> = starts().into_iter().zip(scripts).map(make).collect();
        println!("STARTED {}", children.len());
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }

    #[test]
    fn programs_die_with_this_process() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "relay::tests::starts_programs_and_waits", "--nocapture"]);
        command.env("COFFERDAM_TEST_STARTED", "1").stdout(Stdio::piped());
        let mut other = command.spawn().unwrap();
        let mut output = BufReader::new(other.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("STARTED") {
            line.clear();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "it starts them");
        }
        other.kill().unwrap();
        other.wait().unwrap();
        // Each program keeps the output open: it ends only when all are gone.
        let mut rest = String::new();
        assert!(output.read_to_string(&mut rest).is_ok());
    }
}
