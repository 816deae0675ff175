//! The first program of a virtual machine: makes of a bare kernel the place where the agent runs, and starts the agent.
//!
//! ```text
//! initramfs: modules --> disks --> mounts --> port --> serves its child until that ends --> power off
//!                                               '--> control group, new root, ordinary user: the child becomes the agent
//! ```
//!
//! The agent is process 1 of a pid namespace of its own, in which nobody sees the kernel's threads, nor this program.
//!
//! It is a program of its own, without any library. What it is to do stands on the kernel's command line, in the words of
//! [`options`]. Whatever fails is told on the console, and ends the machine: there is no sandbox that is half made. It
//! runs before anything of a guest's, and while the agent runs it does what the agent has no right to: it stops guests, and
//! makes a copy of a machine another machine ([`serve`]).
#![no_std]
#![no_main]
// The memory functions are written out: the compiler must not make calls to themselves of their loops.
#![no_builtins]

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
mod renew;
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

/// Longer than any command line that a kernel takes.
const COMMAND_LINE: usize = 4096;
/// The agent, in the initramfs.
const AGENT: &[u8] = b"/agent\0";
/// Above all descriptors that the agent inherits.
const FIRST_FREE: usize = 16;
/// Descriptors of each process.
const DESCRIPTORS: u64 = 4096;

/// The child's, of which it uses a part.
static STACK: sys::Once<[sys::Stack; 8]> = sys::Once::new([sys::Stack::NEW; 8]);

/// Where the program begins.
extern "C" fn enter() -> ! {
    if sys::identity().0 != 1 {
        failure::tell(&Failure::new("run", b"as what is not the first process of a machine", 0));
        sys::exit(1);
    }
    // Until it is known which machine this is: all monitors take it for the end, and some know nothing else.
    let mut end: fn() = sys::restart;
    let Err(failure) = run(&mut end);
    failure::tell(&failure);
    end();
    sys::exit(1)
}

/// `end` becomes what ends a machine of this kind.
fn run(end: &mut fn()) -> Result<core::convert::Infallible, Failure> {
    mounts::first()?;
    let mut line = [0; COMMAND_LINE];
    let line = sys::read_file(b"/proc/cmdline\0", &mut line);
    let options = Options::parse(line).map_err(|word| Failure::new("understand the command line at", word, 0))?;
    if let Port::Name(_) = options.port {
        // Monitors with vsocks have no power switch, and the kernel would stand still.
        *end = sys::power_off;
    }
    modules::load(matches!(options.port, Port::Vsock(_)))?;
    let agent = sys::open(AGENT, 0).step("open", AGENT)?;
    mounts::root(&options)?;
    mounts::writable(&options)?;
    let group = groups::make(&options)?;
    modules::forbid()?;
    let identity = renew::Identity::prepare()?;
    let (own, theirs) = sys::socket_pair().step("make", b"a socket for the agent")?;
    let stack = STACK.take().ok_or_else(|| Failure::new("start", AGENT, 0))?;
    let mut child = || {
        let Err(failure) = become_agent(&options, &identity, &agent, &theirs);
        failure::tell(&failure);
    };
    let pid = sys::spawn_apart(stack, &mut child).step("start", AGENT)?;
    // Only the agent has it now, so that its end shows.
    drop(theirs);
    let served = serve::serve(&own, pid, &group, identity);
    // Nobody is left to be served.
    drop(own);
    served?;
    sys::reap_ended(pid);
    Err(Failure::new("go on:", b"the agent has ended", 0))
}

fn become_agent(
    options: &Options<'_>,
    identity: &renew::Identity,
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
    sys::set_limit(sys::RLIMIT_CORE, 0).step("bound", b"core files")?;
    sys::set_limit(sys::RLIMIT_NOFILE, DESCRIPTORS).step("bound", b"open files")?;
    // Where the socket is to be, there may be something else.
    let [agent, partner] = [agent, partner].map(|fd| sys::duplicate_above(fd, FIRST_FREE));
    let (agent, partner) = (agent.step("keep", AGENT)?, partner.step("keep", b"the agent's socket")?);
    let console = sys::duplicate_above(&console, FIRST_FREE).step("keep", b"the console")?;
    // A place below those that the agent inherits may be anything's by now.
    let port = sys::duplicate_above(&port, FIRST_FREE).step("keep", b"the agent's port")?;
    let null = sys::duplicate_above(&null, FIRST_FREE).step("keep", NULL)?;
    let inherited = match options.port {
        Port::Name(_) => [(port.number(), 0), (port.number(), 1)],
        // The agent takes its connections itself.
        Port::Vsock(_) => [(null.number(), 0), (null.number(), 1)],
    };
    let always = [(null.number(), 2), (partner.number(), partner::DESCRIPTOR)];
    let listener = matches!(options.port, Port::Vsock(_)).then_some((port.number(), partner::LISTENER));
    for (from, to) in inherited.into_iter().chain(always).chain(listener) {
        sys::duplicate_to(from, to).step("connect", b"the agent")?;
    }
    let become_it = || {
        let (uid, gid) = options.user;
        sys::become_user(uid, gid).step("become", b"an ordinary user")?;
        Err(Failure::new("execute", AGENT, sys::execute_file(&agent, c"cofferdam-agent")))
    };
    let failed = become_it();
    // The console is told by the descriptor that it always had.
    let _ = sys::duplicate_to(console.number(), 1);
    failed
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    failure::tell(&Failure::new("go on:", b"something in this program is wrong", 0));
    sys::restart();
    sys::exit(1)
}
