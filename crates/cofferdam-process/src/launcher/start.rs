//! How a launcher begins: what it does before it knows what it is for, what it prepares then, and its greeting.
//!
//! ```text
//! begun --Configure--> template -----------------+--> Hello --> serving
//!   \-- thread: network --Configure--> groups --/
//! ```
//!
//! The thread has ended before anything is forked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use cofferdam_linux::cgroup::{Family, Owner, Share, Version};
use cofferdam_linux::process::Resource;
use cofferdam_linux::{landlock, message, namespace, process};
use rustix::fs::{Mode, OFlags};

use super::cells::{self, Cells, Mould};
use super::template::{Foundation, Template};
use super::{
    Drafts, Filters, Identity, Launcher, Named, Nursery, OOM_SCORE, PATIENCE, Step, USUAL_DISK, enter_namespaces,
    evidence,
};
use crate::protocol::{self, Ask, Configure, Hello, HostFacts};

/// The stack that programs usually have.
const USUAL_STACK: u64 = 8 << 20;
/// Stack of a thread that makes a few system calls.
const THREAD_STACK: usize = 128 * 1024;

/// How the launcher's process came into being.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The program was executed once more.
    Executed,
    /// It is a fork of its owner, which makes a single sandbox with it, and will say later what it is to prepare.
    Forked,
}

/// The launcher's life, from its entry to its exit code.
pub fn main(origin: Origin) -> i32 {
    std::panic::set_hook(Box::new(|_| {}));
    let Some(socket) = set_up_descriptors() else { return 64 };
    let begun = Begun::new(origin, &socket);
    // The owner of a fork may have to look for a while what it wants; should it end, its socket closes.
    let patience = (origin == Origin::Executed).then_some(PATIENCE);
    let configure = match wait_for_message::<Configure>(&socket, patience) {
        Ok(Some((configure, _))) => configure,
        Ok(None) | Err(_) => return 65,
    };
    match begun.and_then(|begun| begun.prepare(&configure)).and_then(|prepared| prepared.finish(&configure)) {
        Ok((prepared, filters, cells)) => prepared.launcher(socket, filters, cells).serve(),
        Err(failure) => {
            let _ = protocol::send(socket.as_fd(), &Hello::Failed(failure), &[], PATIENCE);
            // A request may be on its way; an end that leaves it unread would take the failure's message with it.
            while matches!(wait_for_message::<Ask>(&socket, Some(PATIENCE)), Ok(Some(_))) {}
            1
        }
    }
}

/// Descriptor 0 is the socket; it moves up, and 0, 1 and 2 become the null device.
fn set_up_descriptors() -> Option<OwnedFd> {
    process::close_all_but(&mut [0, 1, 2]);
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).ok()?;
    rustix::net::sockopt::socket_type(&socket).ok()?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).ok()?;
    for target in 0..3 {
        process::duplicate_to(null.as_fd(), target).ok()?;
    }
    Some(socket)
}

fn wait_for_message<T: serde::de::DeserializeOwned>(
    socket: &OwnedFd,
    patience: Option<Duration>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    if !message::wait_readable(socket, patience)? {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    protocol::receive(socket.as_fd())
}

/// A launcher that has its place, and does not know yet what for.
struct Begun {
    origin: Origin,
    children: OwnedFd,
    namespaces: [u64; 7],
    identity: Identity,
    nursery: Nursery,
    ground: Ground,
    side: Option<Side>,
}

/// What the template will stand on.
enum Ground {
    /// Bare: groups are to be looked for while the host's mounts are in sight.
    Bare(OwnedFd, Option<OwnedFd>),
    /// Built on already, as most who fork a launcher want it.
    Begun(Foundation),
}

impl Begun {
    fn new(origin: Origin, socket: &OwnedFd) -> Step<Self> {
        process::set_name(c"cofferdam");
        // What is made for sandboxes has the mode that is asked for.
        rustix::process::umask(Mode::empty());
        std::fs::write("/proc/self/oom_score_adj", OOM_SCORE).step("raise the out-of-memory score")?;
        process::set_dumpable(process::DumpableState::No).step("hide the launcher's memory")?;
        process::schedule_as_ordinary().step("give up real-time scheduling")?;
        // One without a limit would lay out programs' memory the old way, at addresses that are easy to guess.
        let stack = process::limit_of(0, Resource::STACK).step("read the stack's limit")?;
        process::set_soft_limit(Resource::STACK, stack.min(USUAL_STACK)).step("limit the stack")?;
        // For what it sends while guests of the same user send theirs.
        process::set_soft_limit(Resource::OPEN_FILES, u64::MAX).step("raise the limit of open files")?;
        let children = process::child_signal().step("watch for children")?;
        let namespaces = evidence::namespaces("/proc/self/ns").step("read own namespaces (is /proc mounted?)")?;
        let path_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let host_proc = rustix::fs::open("/proc", path_flags, Mode::empty()).step("open /proc")?;
        let outside = match origin {
            Origin::Executed => None,
            Origin::Forked => namespace::open_own(host_proc.as_fd(), "mnt").ok(),
        };
        let identity = enter_namespaces()?;
        let side = match origin {
            Origin::Executed => None,
            // Until the owner waits, the other processor is better left to it.
            Origin::Forked => Side::begin(&host_proc, outside.as_ref(), identity, Share::Single, Some(socket)),
        };
        // A shell has what it starts in the background ignore the keys of a terminal, and so would every guest.
        process::default_signals();
        process::own_session();
        // Kernels without keyrings have nothing to hide.
        let _ = process::new_session_keyring();
        let nursery = Nursery::new().step("prepare for children")?;
        let ground = match &side {
            None => Ground::Bare(host_proc, outside),
            Some(_) => {
                let mut foundation = Foundation::lay(host_proc, outside, identity.is_privileged())?;
                foundation.guess();
                Ground::Begun(foundation)
            }
        };
        Ok(Self { origin, children, namespaces, identity, nursery, ground, side })
    }

    /// Makes what every sandbox of this launcher needs.
    fn prepare(self, configure: &Configure) -> Step<Prepared> {
        let Self { origin, children, namespaces, identity, nursery, ground, side } = self;
        let privileged = identity.is_privileged();
        if let Some(side) = &side {
            let _ = side.configure.send(configure.use_cgroups);
        }
        let (foundation, side, found) = match ground {
            Ground::Begun(foundation) => (Ok(foundation), side, None),
            Ground::Bare(host_proc, outside) => {
                let share = if origin == Origin::Forked { Share::Single } else { Share::Many };
                let side = match configure.prepare_ahead {
                    true => None,
                    false => Side::begin(&host_proc, outside.as_ref(), identity, share, None),
                };
                // While the host's mounts are still to be seen, and as the user that will make the groups.
                let found = match &side {
                    Some(side) => {
                        let _ = side.configure.send(configure.use_cgroups);
                        None
                    }
                    None => Some(find_owner(configure.use_cgroups, share)),
                };
                (Foundation::lay(host_proc, outside, privileged), side, found)
            }
        };
        let landlock_abi = landlock::abi();
        let made = foundation.and_then(|foundation| {
            let template = foundation.finish(configure)?;
            let mould = Mould { template: &template, landlock_abi };
            let furniture = (origin == Origin::Forked).then(|| cells::Furniture::make(mould, USUAL_DISK));
            Ok((template, furniture.transpose().step("furnish the template")?))
        });
        // As it will most likely be; whether it is turns out when the other thread is done.
        let drafts = Drafts::new(configure.use_cgroups);
        let (network, owner) = match (side, found) {
            (Some(side), _) => side.finish(),
            (None, found) => (None, found.unwrap_or_else(|| Err("not looked for".to_owned()))),
        };
        let (owner, cgroup_reason) = match owner {
            Ok(owner) => (Some(owner), String::new()),
            Err(reason) => (None, reason),
        };
        let (template, furniture) = match made {
            Ok(made) => made,
            Err(failure) => {
                owner.into_iter().for_each(Owner::close);
                return Err(failure);
            }
        };
        let facts = HostFacts {
            cgroup_version: owner.as_ref().map_or(0, |owner| match owner.version() {
                Version::V1 => 1,
                Version::V2 => 2,
            }),
            shown: template.sights().shown.clone(),
            hidden: template.sights().hidden.clone(),
            cgroup_layout: owner.as_ref().map(Owner::layout).unwrap_or_default(),
            cgroup_reason,
            cgroup_counts: owner.as_ref().map_or((false, false), |owner| (owner.counts_swap(), owner.counts_cpu())),
            cgroup_cpu: owner.as_ref().is_some_and(Owner::has_cpu),
            landlock_abi,
            privileged,
            namespaces,
        };
        Ok(Prepared { origin, template, owner, identity, children, nursery, network, furniture, drafts, facts })
    }
}

/// A thread that makes a network namespace, and then looks for a place for control groups. Both take long, and a
/// single sandbox has nothing else to wait for. It sees the host's mounts throughout: either the launcher makes itself a
/// namespace that the thread is not in, or the thread goes back to the one that the launcher came from.
struct Side {
    configure: SyncSender<bool>,
    thread: JoinHandle<(Option<cells::Network>, Result<Owner, String>)>,
}

impl Side {
    /// Begins, if a thread can be had; it sets to work once something has come by `start`, or at once.
    fn begin(
        host_proc: &OwnedFd,
        outside: Option<&OwnedFd>,
        identity: Identity,
        share: Share,
        start: Option<&OwnedFd>,
    ) -> Option<Self> {
        let proc = host_proc.try_clone().ok()?;
        let start = start.map(OwnedFd::try_clone).transpose().ok()?;
        let outside = match outside.filter(|_| identity.is_privileged()) {
            Some(outside) => Some(outside.try_clone().ok()?),
            None => None,
        };
        let (configure, configured): (_, Receiver<bool>) = sync_channel(1);
        let run = move || {
            if let Some(start) = &start {
                let _ = message::wait_readable(start, None);
            }
            let network = cells::Network::make(proc.as_fd()).ok();
            let use_cgroups = configured.recv().unwrap_or(false);
            let returned = outside.map_or(Ok(()), |outside| {
                namespace::unshare(namespace::kind::FILE_SYSTEM_VIEW)?;
                namespace::join(outside.as_fd(), namespace::kind::MOUNT)
            });
            let owner = match returned {
                Ok(()) => find_owner(use_cgroups, share),
                Err(error) => Err(format!("the host's mounts cannot be seen: {error}")),
            };
            (network, owner)
        };
        let thread = Builder::new().stack_size(THREAD_STACK).spawn(run).ok()?;
        // Both have work from here on.
        process::keep_thread_elsewhere(&thread);
        Some(Self { configure, thread })
    }

    /// Waits for it. A network that could not be made is tried again when it is wanted, and then says why.
    fn finish(self) -> (Option<cells::Network>, Result<Owner, String>) {
        self.thread.join().unwrap_or_else(|_| (None, Err("looking for them failed".to_owned())))
    }
}

fn find_owner(use_cgroups: bool, share: Share) -> Result<Owner, String> {
    if use_cgroups { Owner::new(share, Family::Parent) } else { Err("switched off".to_owned()) }
}

/// A launcher that could serve.
struct Prepared {
    origin: Origin,
    template: Template,
    owner: Option<Owner>,
    identity: Identity,
    children: OwnedFd,
    nursery: Nursery,
    network: Option<cells::Network>,
    furniture: Option<cells::Furniture>,
    drafts: io::Result<Drafts>,
    facts: HostFacts,
}

impl Prepared {
    /// Puts itself under the filter. A launcher that fails in this leaves nothing behind.
    fn finish(mut self, configure: &Configure) -> Step<(Self, Filters, Cells)> {
        match self.raise_filters().and_then(|filters| Ok((filters, self.make_cells(configure)?))) {
            Ok((filters, cells)) => Ok((self, filters, cells)),
            Err(failure) => {
                self.owner.into_iter().for_each(Owner::close);
                Err(failure)
            }
        }
    }

    fn raise_filters(&mut self) -> Step<Filters> {
        let counted = self.owner.is_some();
        let drafts = std::mem::replace(&mut self.drafts, Err(io::ErrorKind::NotFound.into()));
        let drafts = match drafts {
            Ok(drafts) if drafts.counted == counted => Ok(drafts),
            _ => Drafts::new(counted),
        };
        drafts.and_then(Drafts::raise).step("put the system-call filter on the launcher")
    }

    fn make_cells(&mut self, configure: &Configure) -> Step<Cells> {
        let mould = Mould { template: &self.template, landlock_abi: self.facts.landlock_abi };
        let cells = match (self.origin, configure.prepare_ahead) {
            (Origin::Forked, _) => Ok(Cells::single(self.network.take(), self.furniture.take())),
            (Origin::Executed, false) => Ok(Cells::on_demand(self.network.take())),
            (Origin::Executed, true) => Cells::stock(mould, USUAL_DISK),
        };
        cells.step("start the maker of cells")
    }

    fn launcher(self, socket: OwnedFd, filters: Filters, cells: Cells) -> Launcher {
        Launcher {
            socket,
            greeted: false,
            children: self.children,
            template: self.template,
            owner: self.owner,
            identity: self.identity,
            facts: self.facts,
            filters,
            cells,
            nursery: self.nursery,
            live: Vec::new(),
            single: self.origin == Origin::Forked,
            last_disk: USUAL_DISK,
        }
    }
}
