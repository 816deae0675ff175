//! System-call filters of the process sandbox: an allowlist kept as data ([`describe`] prints it), a compiler that
//! turns it into classic BPF ([`compile`]), and the call that puts a filter on the calling thread ([`install`]).
//!
//! It does not set no_new_privs, and it does not follow pointers: what a path or a structure in memory says is for
//! the mount namespace and Landlock to judge.
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
pub use policy::{MarkKey, Options, describe};

use std::io;
use std::os::fd::OwnedFd;

/// Compiles the allowlist for one architecture.
///
/// Pure and without system calls; the same arguments give the same program. The program kills the process on a call
/// through a foreign ABI, and answers ENOSYS for numbers that the allowlist's authors never heard of.
#[must_use]
pub fn compile(arch: Arch, options: &Options) -> Program {
    compiler::compile(arch, options)
}

/// The allowlist in two stages, which together judge every call as [`compile`] does.
///
/// The first one allows what is used to build sandboxes: a launcher puts it on itself once, and everything that it forks
/// has it from the start, at no cost. The second one is short, and takes back what the first allowed.
#[must_use]
pub fn compile_stages(arch: Arch, options: &Options) -> (Program, Program) {
    (compiler::compile_early(arch, options), compiler::compile_late(arch, options))
}

/// The allowlist for a program of the host's that no process namespace keeps from other processes, such as the monitor of a
/// machine: besides what guests may not do, it can send signals to nobody but itself, have none sent in its name, and change no
/// process's priority or processors.
///
/// It is for one process: [`Program::belongs_to`] has to name that before the filter is installed.
#[must_use]
pub fn compile_lone(arch: Arch) -> Program {
    compiler::compile_lone(arch)
}

/// Puts `program` on the calling thread, for good, and on everything that the thread starts from then on.
///
/// Requires no_new_privs (or CAP_SYS_ADMIN) on the thread. Other threads of the process stay as they are. Does not
/// allocate, so that it may run between `clone` and `execve`.
///
/// # Errors
///
/// EINVAL when the program is empty or longer than the kernel takes (4096 instructions), EACCES without no_new_privs,
/// ENOSYS on a kernel without seccomp filters.
pub fn install(program: &Program) -> io::Result<()> {
    sys::install(&program.instructions, 0).map(drop)
}

/// Installs `program` as [`install`] does, and returns the descriptor on which the kernel asks about the calls that the
/// program has notifications for. Such a call waits until its answer, or fails with ENOSYS once the descriptor is closed.
///
/// # Errors
///
/// As [`install`]; EBUSY when a filter of the thread has a listener already.
pub fn install_with_listener(program: &Program) -> io::Result<OwnedFd> {
    sys::install_with_listener(&program.instructions)
}
