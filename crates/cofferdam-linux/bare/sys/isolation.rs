//! Isolation that a process applies to itself and its children, and calls that test it.

use super::{EINVAL, Fd, Res, call, checked, number};

#[repr(C)]
struct Program {
    length: u16,
    instructions: usize,
}


/// Installs a seccomp filter on this process, which is irreversible. The instructions are in the kernel's format, of 8
/// bytes each.
pub fn install_filter(instructions: &[u8]) -> Res<()> {
    install(instructions, 0).map(drop)
}

/// Installs a filter and returns the listener for its notifications.
pub fn install_filter_with_listener(instructions: &[u8]) -> Res<Fd> {
    const NEW_LISTENER: usize = 8;
    /// Signals with a handler wait until a received call is answered. Available since Linux 5.19.
    const WAIT_KILLABLE_RECV: usize = 1 << 5;
    match install(instructions, NEW_LISTENER | WAIT_KILLABLE_RECV) {
        Err(EINVAL) => install(instructions, NEW_LISTENER),
        other => other,
    }
    .map(|fd| Fd::own(fd as i32))
}

fn install(instructions: &[u8], flags: usize) -> Res<usize> {
    const SET_MODE_FILTER: usize = 1;
    let length = u16::try_from(instructions.len() / 8).map_err(|_| EINVAL)?;
    let program = Program { length, instructions: instructions.as_ptr() as usize };
    // SAFETY: the structure is the kernel's and contains the number of instructions; the kernel copies them.
    unsafe { checked(call(number::SECCOMP, [SET_MODE_FILTER, flags, &raw const program as usize, 0, 0, 0])) }
}

/// Returns the kernel's version of Landlock, or 0 for none.
pub fn landlock_abi() -> u32 {
    const VERSION: usize = 1;
    // SAFETY: the query takes no structure.
    unsafe { checked(call(number::LANDLOCK_CREATE_RULESET, [0, 0, VERSION, 0, 0, 0])) }.unwrap_or(0) as u32
}

/// Creates a ruleset that governs these rights, for a kernel of this version.
pub fn landlock_rules(abi: u32, rights: u64, scopes: u64) -> Res<Fd> {
    let attributes = [rights, 0, scopes];
    let size = match abi {
        0..=3 => 8,
        4 | 5 => 16,
        _ => 24,
    };
    let arguments = [attributes.as_ptr() as usize, size, 0, 0, 0, 0];
    // SAFETY: the structure has at least the size that is passed.
    unsafe { checked(call(number::LANDLOCK_CREATE_RULESET, arguments)) }.map(|fd| Fd::own(fd as i32))
}

/// Allows these rights below a directory, or on a file.
pub fn landlock_allow(rules: &Fd, target: &Fd, rights: u64) -> Res<()> {
    #[repr(C, packed)]
    struct Beneath {
        rights: u64,
        target: i32,
    }
    const PATH_BENEATH: usize = 1;
    let rule = Beneath { rights, target: target.number() };
    let arguments = [rules.raw(), PATH_BENEATH, &raw const rule as usize, 0, 0, 0];
    // SAFETY: the structure is the kernel's.
    unsafe { checked(call(number::LANDLOCK_ADD_RULE, arguments)) }.map(drop)
}

/// Enforces the rules on this process and its children, which is irreversible.
pub fn landlock_restrict(rules: i32) -> Res<()> {
    // SAFETY: plain numbers.
    unsafe { checked(call(number::LANDLOCK_RESTRICT_SELF, [rules as usize, 0, 0, 0, 0, 0])) }.map(drop)
}

/// Tries a call that isolation should refuse. The calling process must end right after it.
pub fn attempt(number: usize, arguments: [usize; 6]) -> Res<usize> {
    // SAFETY: the requester of the test chooses calls and arguments that can only fail or change nothing: they contain
    // no pointer to memory of this process. The calling process ends at once.
    unsafe { checked(call(number, arguments)) }
}
