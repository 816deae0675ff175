//! The agent: process 1 of a container or a VM. It reads requests from descriptor 0 and writes answers to descriptor 1.
//!
//! It is a separate program without any library, so that it runs in any image and needs little memory. It has one
//! thread, blocks only in [`sys::poll`], and all its buffers have a fixed size. It needs no privilege and runs as an
//! ordinary user. It has the same user as its guests, which cannot signal it (the kernel protects process 1 of a pid
//! namespace) or inspect it (it is not dumpable). It exits when the host closes the connection or is silent for too
//! long. The kernel then ends all other processes.
#![no_std]
#![no_main]
// The memory functions are loops, which the compiler must not replace by calls of themselves.
#![no_builtins]

#[path = "../../cofferdam-linux/bare/partner.rs"]
#[expect(dead_code, reason = "each side uses its half")]
mod asks;
mod buffers;
#[expect(dead_code, reason = "shared with other programs, which use other parts")]
#[path = "../../cofferdam-linux/bare/connection_attempts.rs"]
mod connection_attempts;
mod connections;
mod count;
mod execs;
mod jobs;
#[path = "../../cofferdam-linux/bare/launch.rs"]
mod launch;
#[path = "../../cofferdam-linux/bare/cpu_charges.rs"]
mod cpu_charges;
mod line;
mod partner;
#[path = "../../cofferdam-linux/bare/notify.rs"]
mod notify;
#[path = "../../cofferdam-linux/bare/plan.rs"]
mod plan;
mod probe;
#[path = "../../cofferdam-linux/bare/quota.rs"]
mod quota;
mod remove;
mod serve;
#[expect(dead_code, reason = "shared with another program, which uses other parts")]
#[path = "../../cofferdam-linux/bare/sys/mod.rs"]
mod sys;
#[path = "../../cofferdam-linux/bare/texts.rs"]
mod texts;
#[path = "../../cofferdam-linux/bare/tree.rs"]
mod tree;
mod walk;
#[path = "../../cofferdam-linux/bare/watch.rs"]
mod watch;
#[expect(dead_code, reason = "each side uses its half")]
mod wire;

/// The exit code after a bug in this program.
const PANICKED: i32 = 70;

static BUFFERS: sys::Once<serve::Buffers> = sys::Once::new(serve::Buffers::NEW);

/// Runs the agent. The entry point of the program.
extern "C" fn enter() -> ! {
    sys::exit(BUFFERS.take().map_or(PANICKED, serve::run))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(PANICKED)
}
