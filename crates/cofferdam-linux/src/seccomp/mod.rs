//! System-call filters: an allowlist as data ([`describe`] prints it), a compiler from it to classic BPF ([`compile`]),
//! and the installation of a filter on the calling thread ([`install`]).
//!
//! The module does not set no_new_privs, and filters do not follow pointers: paths and structures in memory are
//! restricted by the mount namespace and Landlock.
mod arch;
mod assembler;
mod checks;
mod compiler;
mod policy;
mod rule;
mod rules;
mod sys;
#[cfg(test)]
mod tests;

pub use arch::Arch;
pub use assembler::{Instruction, Program};
pub use policy::{Options, TagKey, describe};

use std::io;
use std::os::fd::OwnedFd;

/// Compiles the allowlist for one architecture.
///
///
/// The function is pure and makes no system calls. The program kills the process on a call through a foreign ABI, and
/// returns ENOSYS for numbers that are newer than the allowlist.
#[must_use]
pub fn compile(arch: Arch, options: &Options) -> Program {
    compiler::compile(arch, options)
}

/// Compiles the allowlist in two stages, which together have the same effect as [`compile`].
///
///
/// The first one allows calls that build sandboxes: a launcher installs it on itself once, and all its forks inherit it
/// at no cost. The second one is short and forbids these calls.
#[must_use]
pub fn compile_stages(arch: Arch, options: &Options) -> (Program, Program) {
    (compiler::compile_early(arch, options), compiler::compile_late(arch, options))
}

/// Compiles the allowlist for a program of the host that no pid namespace separates from other processes, such as a
/// VMM. Besides the restrictions of guests, it can send signals only to itself, have none sent in its name, and change
/// no process's priority or processors.
///
///
/// It is for one process: call [`Program::belongs_to`] with its id before the filter is installed.
#[must_use]
pub fn compile_lone(arch: Arch) -> Program {
    compiler::compile_lone(arch)
}

/// Installs `program` on the calling thread and everything that the thread starts afterwards, which is irreversible.
///
///
/// Requires no_new_privs (or CAP_SYS_ADMIN) on the thread. Other threads of the process are not affected. Does not
/// allocate, so that it may run between `clone` and `execve`.
///
/// # Errors
///
/// EINVAL if the program is empty or longer than the kernel accepts (4096 instructions), EACCES without no_new_privs,
/// ENOSYS on a kernel without seccomp filters.
pub fn install(program: &Program) -> io::Result<()> {
    sys::install(&program.instructions, 0).map(drop)
}

/// Installs `program` as [`install`] does. Returns the descriptor on which the kernel reports calls with a
/// notification. Such a call waits until its answer, or fails with ENOSYS once the descriptor is closed.
///
/// # Errors
///
/// The errors of [`install`], and EBUSY if a filter of the thread has a listener already.
pub fn install_with_listener(program: &Program) -> io::Result<OwnedFd> {
    sys::install_with_listener(&program.instructions)
}
