//! Process 1 of a sandbox: starts programs, reaps, tells the host what ended, kills on order.
//!
//! It is a program of its own, without any library, so that an idle sandbox takes next to no memory and a new one copies
//! none of the launcher's. A child of the launcher executes it when its walls are up. It runs behind the same walls as
//! its guests. Guests cannot signal it (the kernel shields process 1 of a pid namespace) nor look into it (it is not
//! dumpable), and it reads nothing that they write but the names of processes in `/proc`. When its owner goes away it
//! ends, and the kernel ends everything else in the sandbox with it.
#![no_std]
#![no_main]
// The memory functions are written out here: the compiler must not make calls to themselves of their loops.
#![no_builtins]

#[expect(dead_code, reason = "each side of the hand-over uses its half")]
mod handover;
#[path = "../../cofferdam-linux/bare/launch.rs"]
mod launch;
#[path = "../../cofferdam-linux/bare/ledger.rs"]
mod ledger;
#[path = "../../cofferdam-linux/bare/notify.rs"]
mod notify;
#[path = "../../cofferdam-linux/bare/plan.rs"]
mod plan;
#[path = "../../cofferdam-linux/bare/quota.rs"]
mod quota;
mod serve;
#[expect(dead_code, reason = "what it shares with another program, which uses more")]
#[path = "../../cofferdam-linux/bare/sys/mod.rs"]
mod sys;
#[path = "../../cofferdam-linux/bare/texts.rs"]
mod texts;
#[path = "../../cofferdam-linux/bare/tree.rs"]
mod tree;
#[path = "../../cofferdam-linux/bare/watch.rs"]
mod watch;
mod wire;

use handover::{Handover, MAX_BYTES};
use serve::{Init, Room};

/// Something in this program is wrong.
const PANICKED: i32 = 70;
/// What was handed over cannot be read, or does not hold.
const REFUSED: i32 = 77;

static ROOM: sys::Once<Room> = sys::Once::new(Room::NEW);
static HANDED_OVER: sys::Once<[u8; MAX_BYTES]> = sys::Once::new([0; MAX_BYTES]);

/// Where the program begins.
extern "C" fn enter() -> ! {
    sys::exit(run().unwrap_or(REFUSED))
}

fn run() -> Option<i32> {
    sys::withdraw().ok()?;
    let bytes = HANDED_OVER.take()?;
    let length = sys::read_all(0, bytes).ok()?;
    // The null device, as 1 and 2 are.
    sys::duplicate_to(1, 0).ok()?;
    let (handover, evidence) = Handover::decode(bytes.get(..length)?)?;
    // The walls are the task's, and executing this program left them as they were: it has neither set-id bits nor file
    // capabilities. What is cheap to read again is read again, all the same.
    let (no_new_privileges, seccomp) = sys::confinement();
    let measured = handover::Measured { capabilities: sys::capabilities().ok()?, no_new_privileges, seccomp };
    if measured != handover.measured {
        return None;
    }
    let room = ROOM.take()?;
    let mut init = Init::new(&handover).ok()?;
    let first = init.start_ordered(room);
    init.report(&handover, evidence, first).ok()?;
    Some(init.serve(room))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(PANICKED)
}
