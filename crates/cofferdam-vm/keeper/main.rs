//! The first process of the namespace in which a jailer runs: has descriptors open, which a jailed monitor opens once more by
//! its numbers of them, waits until nobody is left, and ends as the last one did.
//!
//! It is a program of its own, without any library, because it runs as the monitor's user: nothing of the supervisor's memory
//! may be in it. It reads nothing and is told nothing.
#![no_std]
#![no_main]
// The memory functions are written out: the compiler must not make calls to themselves of their loops.
#![no_builtins]

#[expect(dead_code, reason = "what it shares with other programs, which use other parts")]
#[path = "../../cofferdam-linux/bare/sys/mod.rs"]
mod sys;

/// Something in this program is wrong.
const PANICKED: i32 = 70;
/// Nobody was ever there.
const ALONE: i32 = 71;

/// Where the program begins.
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
