//! How a guest's run came to its end.

use cofferdam_contract::LimitKind;
use wasmtime::Trap;

pub(crate) const SIGILL: i32 = 4;
pub(crate) const SIGABRT: i32 = 6;
pub(crate) const SIGFPE: i32 = 8;
pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGSEGV: i32 = 11;
pub(crate) const SIGTERM: i32 = 15;

/// Why a guest goes no further. Travels through the engine as the error of a host call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Ending {
    #[error("returned")]
    Returned,
    #[error("ended with code {0}")]
    Exit(u8),
    #[error("ended by signal {0}")]
    Raised(i32),
    #[error("cancelled")]
    Cancelled {
        /// As which signal it surfaces.
        signal: i32,
    },
    #[error("real time ran out")]
    TimedOut,
    #[error("a limit was reached")]
    Limit(LimitKind),
    #[error("trapped")]
    Trapped {
        /// As which signal it surfaces.
        signal: i32,
        /// What happened.
        what: &'static str,
    },
}

/// A trap as the signal that a native program would have died of.
pub(crate) fn of_trap(trap: Trap) -> Ending {
    let (signal, what) = match trap {
        Trap::OutOfFuel => return Ending::Limit(LimitKind::Cpu),
        Trap::UnreachableCodeReached => (SIGABRT, "unreachable code was reached"),
        Trap::StackOverflow => (SIGSEGV, "the call stack is exhausted"),
        Trap::MemoryOutOfBounds => (SIGSEGV, "memory out of bounds"),
        Trap::HeapMisaligned => (SIGSEGV, "memory misaligned"),
        Trap::TableOutOfBounds => (SIGSEGV, "table out of bounds"),
        Trap::IndirectCallToNull => (SIGSEGV, "an indirect call of nothing"),
        Trap::BadSignature => (SIGSEGV, "an indirect call of another type"),
        Trap::NullReference => (SIGSEGV, "a null reference"),
        Trap::IntegerOverflow => (SIGFPE, "integer overflow"),
        Trap::IntegerDivisionByZero => (SIGFPE, "integer division by zero"),
        Trap::BadConversionToInteger => (SIGFPE, "a number that is no integer"),
        _ => (SIGILL, "a trap"),
    };
    Ending::Trapped { signal, what }
}
