//! The first process of the namespace in which a jailer runs. It has descriptors open, which a jailed VMM reopens by
//! their numbers. It waits until all other processes have ended, and exits with the status of the last one.
//!
//! It is a program of its own, without any library, because it runs as the VMM's user: it must not contain any of the
//! supervisor's memory. It reads no input.
#![no_std]
#![no_main]
// The memory functions are written out: the compiler must not turn their loops into calls to themselves.
#![no_builtins]

#[expect(dead_code, reason = "what it shares with other programs, which use other parts")]
#[path = "../../cofferdam-linux/bare/sys/mod.rs"]
mod sys;

/// Exit status after a panic.
const PANICKED: i32 = 70;
/// Exit status if there was no other process.
const ALONE: i32 = 71;

/// Entry point of the program.
extern "C" fn enter() -> ! {
    let mut code = ALONE;
    while let Some(status) = sys::wait_for_any() {
        code = match status & 0x7f {
            0 => status >> 8 & 0xff,
            signal => 128 + signal,
        };
    }
    sys::exit(code)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(PANICKED)
}
