//! The protocol by which an interpreter is started once in advance, and called later from a copy of its memory.
//!
//! ```text
//! once:      _start with `args`, until the guest calls proc_exit(0) --> its memory and globals are saved
//! each run:  a copy of them --> one call of `entry` --> the guest reads its request and serves it
//! ```
//!
//! **Once.** The guest writes one decimal number to standard output, the argument of the entry (0 if it takes none).
//! With fixed clocks and seeded randomness it produces the same memory each time. No WebAssembly frame is needed after
//! it exits, so memory and globals, the stack pointer among them, are its complete state. It opens [`REQUEST_PATH`]
//! once, which must return [`REQUEST_DESCRIPTOR`]; at no other time is that name special.
//!
//! **Each run.** The guest reads [`REQUEST_DESCRIPTOR`] to the end: fields that each end with NUL, then the source
//! text. The fields are `mode`, `cwd`, `argc`, each argument, `envc`, each `NAME=value`.
//!
//! - `script` ends with proc_exit, which carries the exit status. The copy cannot be used again.
//! - `session` ends with one write of the decimal status to [`REQUEST_DESCRIPTOR`], and a return from the entry. The
//!   entry can be called again and sees earlier definitions. A Python entry that returns 0 has failed, and its copy
//!   with it.
//!
//! Differences from a cold start: string hashes and addresses are those of the saved memory. Variables that Python
//! reads only at startup (`PYTHONHASHSEED` and the like) have no effect; `PYTHONPATH` has. Random number generators are
//! seeded in each run.

/// The path that an interpreter opens once while its memory is prepared.
pub const REQUEST_PATH: &str = "/tmp/.cofferdam-request";
/// The descriptor that the guest reads requests from.
pub const REQUEST_DESCRIPTOR: u32 = 2047;

/// The entry points of an interpreter that is started in advance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preparation {
    /// The arguments with which `_start` prepares the interpreter and exits.
    pub args: Vec<String>,
    /// The function that each run calls.
    pub entry: Entry,
    /// A replacement for the module's own stack, if that is too small for runs.
    pub stack: Option<Stack>,
    /// The recipe's name. It changes with every input of the saved memory, so memory of other files is not used.
    pub recipe: String,
}

/// A stack in an extra part of the memory, behind all other data. It grows downwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stack {
    /// The size, a multiple of 64 KiB.
    pub bytes: usize,
    /// The index of the stack pointer among the mutable globals. Valid only for the module's hash.
    pub pointer: usize,
}

/// A function of the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A function by its index, imports counted, from one `i32` to one `i32`. Valid only for the module's hash.
    Function {
        /// The index.
        index: u32,
    },
    /// An exported function without parameters and results.
    Export {
        /// The name.
        name: &'static str,
    },
}
