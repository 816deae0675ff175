//! The first program of a VM: prepares a bare kernel for the agent, and starts the agent.
//!
//! ```text
//! initramfs: modules --> disks --> mounts --> port --> serves its child until it ends --> power off
//!                                               '--> control group, new root, ordinary user: becomes the agent
//! ```
//!
//! The agent is process 1 of its own PID namespace, in which neither the kernel's threads nor this program are visible.
//!
//! It is a program of its own, without any library. Its options are on the kernel's command line, in the format of
//! [`options`]. Any failure is reported on the console, and ends the VM: there is no partially prepared sandbox. It
//! runs before any code of a guest. While the agent runs, it does the tasks for which the agent lacks privileges: it
//! freezes guests, gives a copy of a VM its own identity, and routes addresses to the loopback interface ([`serve`]).
#![no_std]
#![no_main]
// The memory functions are written out: the compiler must not turn their loops into calls to themselves.
#![no_builtins]

#[expect(dead_code, reason = "shared with other programs, which use other parts")]
#[path = "../../cofferdam-linux/bare/connection_attempts.rs"]
mod connection_attempts;
mod devices;
mod failure;
mod groups;
mod modules;
mod mounts;
#[expect(dead_code, reason = "each side uses its half")]
mod options;
#[path = "../../cofferdam-linux/bare/partner.rs"]
#[expect(dead_code, reason = "each side uses its half")]
mod partner;
mod reseed;
mod serve;
#[expect(dead_code, reason = "what it shares with other programs, which use other parts")]
#[path = "../../cofferdam-linux/bare/sys/mod.rs"]
mod sys;
mod text;
#[expect(dead_code, reason = "what it shares with other programs, which use other parts")]
#[path = "../../cofferdam-linux/bare/texts.rs"]
mod texts;

use failure::{Failure, Step};
use options::{Options, Port};

/// Longer than any kernel command line.
const COMMAND_LINE: usize = 4096;
/// The agent, in the initramfs.
const AGENT: &[u8] = b"/agent\0";
/// Lowest number above the descriptors that the agent inherits.
const FIRST_FREE: usize = 16;
/// Maximum number of descriptors of each process.
const DESCRIPTORS: u64 = 4096;

/// The child's stack, of which it uses a part.
static STACK: sys::Once<[sys::Stack; 8]> = sys::Once::new([sys::Stack::NEW; 8]);

/// Entry point of the program.
extern "C" fn enter() -> ! {
    if sys::identity().0 != 1 {
        failure::report(&Failure::new("run", b"without being the first process of a VM", 0));
        sys::exit(1);
    }
    // Until the VMM is known: all VMMs treat a restart as the end, and some support nothing else.
    let mut end: fn() = sys::restart;
    let Err(failure) = run(&mut end);
    failure::report(&failure);
    end();
    sys::exit(1)
}

/// Prepares and serves the VM. Sets `end` to the function that ends a VM of this VMM.
fn run(end: &mut fn()) -> Result<core::convert::Infallible, Failure> {
    mounts::first()?;
    let mut line = [0; COMMAND_LINE];
    let line = sys::read_file(b"/proc/cmdline\0", &mut line);
    let options = Options::parse(line).map_err(|word| Failure::new("parse the command line at", word, 0))?;
    if let Port::Name(_) = options.port {
        // VMMs with vsocks have no power switch, and the kernel would hang.
        *end = sys::power_off;
    }
    modules::load(matches!(options.port, Port::Vsock(_)), mounts::need_overlay(&options))?;
    let agent = sys::open(AGENT, 0).step("open", AGENT)?;
    mounts::root(&options)?;
    let disks = mounts::writable(&options)?;
    let group = groups::make(&options)?;
    modules::harden()?;
    let identity = reseed::Identity::prepare()?;
    let (own, theirs) = sys::socket_pair().step("create", b"a socket for the agent")?;
    let stack = STACK.take().ok_or_else(|| Failure::new("start", AGENT, 0))?;
    let mut child = || {
        let Err(failure) = become_agent(&options, &identity, &agent, &theirs);
        failure::report(&failure);
    };
    let pid = sys::spawn_apart(stack, &mut child).step("start", AGENT)?;
    // Only the agent has it now, so that its end is seen.
    drop(theirs);
    let served = serve::serve(&own, pid, &group, identity);
    // The agent has ended.
    drop(own);
    served?;
    sys::reap_ended(pid);
    disks.finish()?;
    Err(Failure::new("continue:", b"the agent has ended", 0))
}

fn become_agent(
    options: &Options<'_>,
    identity: &reseed::Identity,
    agent: &sys::Fd,
    partner: &sys::Fd,
) -> Result<core::convert::Infallible, Failure> {
    const NULL: &[u8] = b"/dev/null\0";
    let port = devices::port(options.port)?;
    groups::join()?;
    mounts::processes()?;
    identity.begin()?;
    mounts::enter()?;
    let null = sys::open_at(sys::AT_FDCWD, NULL, sys::O_WRONLY, 0).step("open", NULL)?;
    let console = sys::duplicate_number(2).step("keep", b"the console")?;
    sys::set_limit(sys::RLIMIT_CORE, 0).step("limit", b"core files")?;
    sys::set_limit(sys::RLIMIT_NOFILE, DESCRIPTORS).step("limit", b"open files")?;
    // The numbers of the inherited descriptors may be in use.
    let [agent, partner] = [agent, partner].map(|fd| sys::duplicate_above(fd, FIRST_FREE));
    let (agent, partner) = (agent.step("keep", AGENT)?, partner.step("keep", b"the agent's socket")?);
    let console = sys::duplicate_above(&console, FIRST_FREE).step("keep", b"the console")?;
    // The numbers of the inherited descriptors may be in use.
    let port = sys::duplicate_above(&port, FIRST_FREE).step("keep", b"the agent's port")?;
    let null = sys::duplicate_above(&null, FIRST_FREE).step("keep", NULL)?;
    let inherited = match options.port {
        Port::Name(_) => [(port.number(), 0), (port.number(), 1)],
        // The agent accepts its connections itself.
        Port::Vsock(_) => [(null.number(), 0), (null.number(), 1)],
    };
    let always = [(null.number(), 2), (partner.number(), partner::DESCRIPTOR)];
    // A kernel may lack raw sockets. Then refused connections are not reported.
    let socket = sys::raw_tcp(&connection_attempts::FILTER).and_then(|raw| sys::duplicate_above(&raw, FIRST_FREE)).ok();
    let attempts = socket.as_ref().map(|raw| (raw.number(), connection_attempts::DESCRIPTOR));
    let listener = matches!(options.port, Port::Vsock(_)).then_some((port.number(), partner::LISTENER));
    for (from, to) in inherited.into_iter().chain(always).chain(listener).chain(attempts) {
        sys::duplicate_to(from, to).step("connect", b"the agent")?;
    }
    let become_it = || {
        let (uid, gid) = options.user;
        sys::become_user(uid, gid).step("become", b"an ordinary user")?;
        Err(Failure::new("execute", AGENT, sys::execute_file(&agent, c"cofferdam-agent")))
    };
    let failed = become_it();
    // Failures are reported through the original descriptor of the console.
    let _ = sys::duplicate_to(console.number(), 1);
    failed
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    failure::report(&Failure::new("continue:", b"internal error", 0));
    sys::restart();
    sys::exit(1)
}
