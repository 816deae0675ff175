//! The agent: process 1 of a container or a virtual machine. Takes orders on descriptor 0, answers on descriptor 1.
//!
//! It is a program of its own, without any library, so that it runs in any image and takes next to no memory. It has one
//! thread, waits for nothing but [`sys::poll`], and every buffer that it has is of a fixed size. It needs no right: it
//! works as an ordinary user. It shares its user with its guests, who cannot signal it (the kernel shields process 1 of
//! a pid namespace) nor look into it (it is not dumpable). When the host goes away, or is silent for too long, it ends,
//! and the kernel ends everything else with it.
#![no_std]
#![no_main]
// The memory functions are written out: the compiler must not make calls to themselves of their loops.
#![no_builtins]

#[path = "../../cofferdam-linux/bare/partner.rs"]
#[expect(dead_code, reason = "each side uses its half")]
mod asks;
mod boxes;
mod count;
mod execs;
mod jobs;
#[path = "../../cofferdam-linux/bare/launch.rs"]
mod launch;
#[path = "../../cofferdam-linux/bare/ledger.rs"]
mod ledger;
mod line;
mod marks;
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
#[expect(dead_code, reason = "what it shares with another program, which uses other parts")]
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

/// Something in this program is wrong.
const PANICKED: i32 = 70;

static ROOM: sys::Once<serve::Room> = sys::Once::new(serve::Room::NEW);

/// Where the program begins.
extern "C" fn enter() -> ! {
    sys::exit(ROOM.take().map_or(PANICKED, serve::run))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(PANICKED)
}
