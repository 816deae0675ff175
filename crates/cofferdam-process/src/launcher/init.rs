//! The program of every sandbox's first process: embedded in this one, and written to a file in memory once.
//!
//! Its sources are in the crate's `init` directory. The build compiles them separately, because they use no library.
//! The format of the handoff is compiled into both sides.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use cofferdam_linux::landlock::{Ruleset, access};
use cofferdam_linux::mount;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

#[cfg_attr(not(test), expect(dead_code, reason = "each side of the handoff uses its half"))]
#[path = "../../init/handover.rs"]
pub mod handover;

/// The name that the kernel shows for the process.
pub const NAME: &std::ffi::CStr = c"cofferdam-init";

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-init"));
/// The mode forbids all users to read the file. Its contents are no secret, but the kernel makes a process that
/// executes an unreadable file not dumpable, from its first instruction on.
const EXECUTE_ONLY: Mode = Mode::from_raw_mode(0o111);

/// The program, as an executable file.
#[derive(Debug)]
pub struct InitProgram {
    file: OwnedFd,
    /// True if Landlock applies to the file. It does not know file systems of files in memory.
    on_a_mount: bool,
}

impl InitProgram {
    /// Writes the program to a file in memory. If the host forbids to execute those, writes it to a file on its own
    /// file system, which is attached nowhere. Call this before a filter forbids files in memory.
    pub fn new() -> io::Result<Self> {
        match in_memory() {
            Ok(file) => Ok(Self { file, on_a_mount: false }),
            Err(_) => Ok(Self { file: on_a_mount()?, on_a_mount: true }),
        }
    }

    /// Returns the descriptor to execute.
    pub fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Adds a Landlock rule that allows to execute the program, if that is needed. No path in a sandbox leads to it.
    pub fn allow_in(&self, rules: &Ruleset) -> io::Result<()> {
        // Execution counts as reading as well.
        let rights = access::EXECUTE | access::READ_FILE;
        if self.on_a_mount { rules.allow(self.file.as_fd(), rights) } else { Ok(()) }
    }
}

fn in_memory() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag. There, all files in memory can be executed.
    let file = match rustix::fs::memfd_create(NAME, flags | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(NAME, flags)?,
        other => other?,
    };
    fill(file.as_fd())?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

fn on_a_mount() -> io::Result<OwnedFd> {
    let options = [(c"size", c"256k"), (c"nr_inodes", c"8"), (c"mode", c"0755")];
    let mount = mount::new_filesystem(c"tmpfs", &options, mount::attr::NOSUID | mount::attr::NODEV)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let writable = rustix::fs::openat(&mount, "init", flags, Mode::RUSR)?;
    // A file that is open for writing cannot be executed: open it again for reading and close the first descriptor.
    let file = rustix::fs::openat(&mount, "init", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    fill(writable.as_fd())?;
    drop(writable);
    mount::add_attributes(mount.as_fd(), mount::Depth::Single, mount::attr::RDONLY)?;
    Ok(file)
}

fn fill(file: BorrowedFd<'_>) -> io::Result<()> {
    std::fs::File::from(file.try_clone_to_owned()?).write_all(PROGRAM)?;
    Ok(rustix::fs::fchmod(file, EXECUTE_ONLY)?)
}

#[cfg(test)]
#[path = "init_tests.rs"]
mod tests;
