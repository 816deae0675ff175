//! Process 1 of a sandbox: starts programs, reaps them, reports their ends to the host, and kills on request.
//!
//! It is a program of its own, without any library, so that an idle sandbox takes little memory and a new one copies
//! none of the launcher's. A child of the launcher executes it once it is isolated, and it stays under the same
//! isolation as its guests. Guests can neither signal it (the kernel shields process 1 of a pid namespace) nor inspect
//! it (it is not dumpable). It reads nothing that they write, except the names of processes in `/proc`. When its owner
//! ends, it ends as well, and the kernel ends everything else in the sandbox.
#![no_std]
#![no_main]
// The memory functions are in this program: the compiler must not replace their loops by calls to them.
#![no_builtins]

#[expect(dead_code, reason = "each side of the handoff uses its half")]
mod handover;
#[path = "../../cofferdam-linux/bare/launch.rs"]
mod launch;
#[path = "../../cofferdam-linux/bare/cpu_charges.rs"]
mod cpu_charges;
#[path = "../../cofferdam-linux/bare/notify.rs"]
mod notify;
#[path = "../../cofferdam-linux/bare/plan.rs"]
mod plan;
#[path = "../../cofferdam-linux/bare/quota.rs"]
mod quota;
mod serve;
#[expect(dead_code, reason = "shared with another program, which uses more of it")]
#[path = "../../cofferdam-linux/bare/sys/mod.rs"]
mod sys;
#[path = "../../cofferdam-linux/bare/texts.rs"]
mod texts;
#[path = "../../cofferdam-linux/bare/tree.rs"]
mod tree;
#[path = "../../cofferdam-linux/bare/watch.rs"]
mod watch;
mod wire;

use handover::{Handoff, MAX_BYTES};
use serve::{Buffers, Init};

/// The exit code after a bug in this program.
const PANICKED: i32 = 70;
/// The exit code if the handoff cannot be read or does not hold.
const REFUSED: i32 = 77;

static BUFFERS: sys::Once<Buffers> = sys::Once::new(Buffers::NEW);
static HANDOFF: sys::Once<[u8; MAX_BYTES]> = sys::Once::new([0; MAX_BYTES]);

/// The entry point of the program.
extern "C" fn enter() -> ! {
    sys::exit(run().unwrap_or(REFUSED))
}

fn run() -> Option<i32> {
    sys::withdraw().ok()?;
    let bytes = HANDOFF.take()?;
    let length = sys::read_all(0, bytes).ok()?;
    // This is the null device, as are 1 and 2.
    sys::duplicate_to(1, 0).ok()?;
    let (handoff, evidence) = Handoff::decode(bytes.get(..length)?)?;
    // Isolation belongs to the task, and execution of this program did not change it: the file has neither set-id bits
    // nor file capabilities. Settings that are cheap to read are checked again.
    let (no_new_privileges, seccomp) = sys::confinement();
    let measured = handover::Measured { capabilities: sys::capabilities().ok()?, no_new_privileges, seccomp };
    if measured != handoff.measured {
        return None;
    }
    let buffers = BUFFERS.take()?;
    let mut init = Init::new(&handoff).ok()?;
    let first = init.start_requested(buffers);
    init.report_ready(&handoff, evidence, first).ok()?;
    Some(init.serve(buffers))
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(PANICKED)
}
