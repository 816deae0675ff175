//! How an interpreter is started ahead of time, and called later.
//!
//! ```text
//! once:      _start with `args`, until the guest leaves by proc_exit(0) --> its memory and globals are kept
//! each run:  a copy of them --> one call of `entry` --> the guest reads its request and serves it
//! ```
//!
//! **Once.** The guest writes one decimal number to standard output, the argument of the entry (0 where it takes none).
//! With fixed clocks and seeded randomness it leaves the same memory each time. It ends with no WebAssembly frame that is
//! still needed, so memory and globals, the stack pointer among them, are all there is of it. It opens
//! [`REQUEST_PATH`] once, which must give [`REQUEST_DESCRIPTOR`]; at no other time is that name special.
//!
//! **Each run.** The guest reads [`REQUEST_DESCRIPTOR`] until there is nothing more: fields that each end with NUL, then
//! the source text. The fields are `mode`, `cwd`, `argc`, each argument, `envc`, each `NAME=value`.
//!
//! - `script` ends with proc_exit, which carries the exit status. The copy is of no use afterwards.
//! - `session` ends with one write of the decimal status to [`REQUEST_DESCRIPTOR`], and a return from the entry, which may
//!   be called again: what was defined is still there. A Python entry that returns 0 has failed, and its copy with it.
//!
//! What differs from a cold start: the seed of string hashes is that of the kept memory, as are addresses, and variables
//! that Python reads only when it starts (`PYTHONHASHSEED` and its like) come too late; `PYTHONPATH` does not. Generators
//! of random numbers are seeded in each run.

/// The name that an interpreter opens once while its memory is made.
pub const REQUEST_PATH: &str = "/tmp/.cofferdam-request";
/// The descriptor that requests are read from.
pub const REQUEST_DESCRIPTOR: u32 = 2047;

/// How an interpreter is started ahead of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warm {
    /// The arguments of `_start` that make it ready and end it.
    pub args: Vec<String>,
    /// What each run calls.
    pub entry: Entry,
    /// Where the module's own stack is too small: the one that runs get instead.
    pub stack: Option<Stack>,
    /// Changes with everything that the kept memory is made from, so that memory made by older files is not used.
    pub recipe: String,
}

/// A stack in a part of the memory that is added behind all else. It grows downwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stack {
    /// How large it is; a multiple of 64 KiB.
    pub bytes: usize,
    /// Which of the globals that can change points to it. Valid for the module's hash alone.
    pub pointer: usize,
}

/// A function of the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A function by its number, imports counted, from one `i32` to one `i32`. Valid for the module's hash alone.
    Function {
        /// Its number.
        index: u32,
    },
    /// An exported function that takes and gives nothing.
    Export {
        /// Its name.
        name: &'static str,
    },
}
