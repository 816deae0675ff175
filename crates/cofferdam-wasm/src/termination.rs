//! Termination of a guest's run.

use cofferdam_contract::LimitKind;
use wasmtime::Trap;

pub(crate) const SIGILL: i32 = 4;
pub(crate) const SIGABRT: i32 = 6;
pub(crate) const SIGFPE: i32 = 8;
pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGSEGV: i32 = 11;
pub(crate) const SIGTERM: i32 = 15;

/// The reason for which a guest ended. It passes through the engine as the error of a host call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Termination {
    #[error("returned")]
    Returned,
    #[error("ended with code {0}")]
    Exit(u8),
    #[error("ended by signal {0}")]
    Raised(i32),
    #[error("cancelled")]
    Cancelled {
        /// The signal that the exit reports.
        signal: i32,
    },
    #[error("wall time ran out")]
    TimedOut,
    #[error("a limit was reached")]
    Limit(LimitKind),
    #[error("trapped")]
    Trapped {
        /// The signal that the exit reports.
        signal: i32,
        /// The description of the trap.
        what: &'static str,
    },
}

/// Converts a trap to the signal that would have killed a native program.
pub(crate) fn termination_of_trap(trap: Trap) -> Termination {
    let (signal, what) = match trap {
        Trap::OutOfFuel => return Termination::Limit(LimitKind::Cpu),
        Trap::UnreachableCodeReached => (SIGABRT, "unreachable code was reached"),
        Trap::StackOverflow => (SIGSEGV, "the call stack is exhausted"),
        Trap::MemoryOutOfBounds => (SIGSEGV, "memory out of bounds"),
        Trap::HeapMisaligned => (SIGSEGV, "memory misaligned"),
        Trap::TableOutOfBounds => (SIGSEGV, "table out of bounds"),
        Trap::IndirectCallToNull => (SIGSEGV, "indirect call to null"),
        Trap::BadSignature => (SIGSEGV, "indirect call with a wrong signature"),
        Trap::NullReference => (SIGSEGV, "a null reference"),
        Trap::IntegerOverflow => (SIGFPE, "integer overflow"),
        Trap::IntegerDivisionByZero => (SIGFPE, "integer division by zero"),
        Trap::BadConversionToInteger => (SIGFPE, "invalid conversion to integer"),
        _ => (SIGILL, "a trap"),
    };
    Termination::Trapped { signal, what }
}
