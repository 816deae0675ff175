//! The program that every sandbox's first process executes: carried inside this one, written to a file in memory once.
//!
//! Its sources are in the crate's `init` directory; the build compiles them apart from everything else, because they
//! use no library. What both sides of the hand-over must agree on is compiled into both.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use cofferdam_linux::landlock::{Ruleset, access};
use cofferdam_linux::mount;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

#[cfg_attr(not(test), expect(dead_code, reason = "each side of the hand-over uses its half"))]
#[path = "../../init/handover.rs"]
pub mod handover;

/// What the kernel shows of its command line.
pub const NAME: &std::ffi::CStr = c"cofferdam-init";

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-init"));
/// Nobody may read it. Its contents are no secret: but the kernel hides the memory of who executes what he may not
/// read, so that an init is not dumpable from its first instruction on.
const EXECUTE_ONLY: Mode = Mode::from_raw_mode(0o111);

/// The program, ready to be executed.
#[derive(Debug)]
pub struct InitProgram {
    file: OwnedFd,
    /// Whether Landlock judges it. Files in memory belong to no file system that it knows of.
    on_a_mount: bool,
}

impl InitProgram {
    /// Writes it: to a file in memory, or where the machine forbids to execute those, to a file on a file system of
    /// its own, which is attached nowhere. To be called before a filter forbids files in memory.
    pub fn new() -> io::Result<Self> {
        match in_memory() {
            Ok(file) => Ok(Self { file, on_a_mount: false }),
            Err(_) => Ok(Self { file: on_a_mount()?, on_a_mount: true }),
        }
    }

    /// For execution.
    pub fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Allows its execution, where that needs a rule. Nothing in a sandbox has a name for it.
    pub fn allow_in(&self, rules: &Ruleset) -> io::Result<()> {
        // To execute counts as reading, too.
        let rights = access::EXECUTE | access::READ_FILE;
        if self.on_a_mount { rules.allow(self.file.as_fd(), rights) } else { Ok(()) }
    }
}

fn in_memory() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag, and all their files in memory can be executed.
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
    // What somebody can write to cannot be executed: opened once more, and closed.
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
