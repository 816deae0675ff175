//! The start of a launcher: preparations before its configuration is known, preparations after it, and the hello.
//!
//! ```text
//! started --Configure--> template ----------------+--> Hello --> serving
//!    \-- thread: network --Configure--> groups --/
//! ```
//!
//! The thread has ended before any process is forked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use cofferdam_linux::cgroup::{Family, Owner, Share, Version};
use cofferdam_linux::process::Resource;
use cofferdam_linux::{landlock, message, namespace, process};
use rustix::fs::{Mode, OFlags};

use super::namespace_pool::{self, NamespacePool, TemplateView};
use super::template::{Template, TemplateBuilder};
use super::{
    ChildResources, CompiledFilters, DEFAULT_DISK, Filters, Identity, Launcher, Named, OOM_SCORE, SEND_TIMEOUT, Step,
    enter_own_namespaces, evidence,
};
use crate::protocol::{self, Configure, Hello, HostFacts, LauncherRequest};

/// The usual limit of a program's stack.
const DEFAULT_STACK: u64 = 8 << 20;
/// The stack size of a thread that makes a few system calls.
const THREAD_STACK: usize = 128 * 1024;

/// The origin of the launcher's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The program was executed once more.
    Executed,
    /// The launcher is a fork of its owner, which creates a single sandbox with it, and configures it later.
    Forked,
}

/// Runs the launcher. Returns its exit code.
pub fn main(origin: Origin) -> i32 {
    std::panic::set_hook(Box::new(|_| {}));
    let Some(socket) = set_up_descriptors() else { return 64 };
    let started = Started::new(origin, &socket);
    // The owner of a fork may need a while to determine the configuration. If the owner ends, its socket closes.
    let timeout = (origin == Origin::Executed).then_some(SEND_TIMEOUT);
    let configure = match wait_for_message::<Configure>(&socket, timeout) {
        Ok(Some((configure, _))) => configure,
        Ok(None) | Err(_) => return 65,
    };
    match started.and_then(|started| started.prepare(&configure)).and_then(|prepared| prepared.finish(&configure)) {
        Ok((prepared, filters, pool)) => prepared.launcher(socket, filters, pool).serve(),
        Err(failure) => {
            let _ = protocol::send(socket.as_fd(), &Hello::Failed(failure), &[], SEND_TIMEOUT);
            // A request may be on its way. If the launcher ended with an unread request, the failure's message would be
            // lost.
            while matches!(wait_for_message::<LauncherRequest>(&socket, Some(SEND_TIMEOUT)), Ok(Some(_))) {}
            1
        }
    }
}

/// Moves the socket from descriptor 0 to a higher one, and makes 0, 1 and 2 the null device.
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
    timeout: Option<Duration>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    if !message::wait_readable(socket, timeout)? {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    protocol::receive(socket.as_fd())
}

/// A launcher in its own namespaces, which has no configuration yet.
struct Started {
    origin: Origin,
    children: OwnedFd,
    namespaces: [u64; 7],
    identity: Identity,
    child_resources: ChildResources,
    base: TemplateBase,
    background: Option<Background>,
}

/// The state of the template before the configuration arrives.
enum TemplateBase {
    /// Nothing is built: control groups are searched for first, while the host's mounts are visible.
    Empty(OwnedFd, Option<OwnedFd>),
    /// Built for the host's programs, which most owners of a forked launcher want.
    Built(TemplateBuilder),
}

impl Started {
    fn new(origin: Origin, socket: &OwnedFd) -> Step<Self> {
        process::set_name(c"cofferdam");
        // Files for sandboxes get exactly the requested mode.
        rustix::process::umask(Mode::empty());
        std::fs::write("/proc/self/oom_score_adj", OOM_SCORE).step("raise the out-of-memory score")?;
        process::set_dumpable(process::DumpableState::No).step("hide the launcher's memory")?;
        process::schedule_as_ordinary().step("give up real-time scheduling")?;
        // Without a limit, the kernel uses the legacy layout of memory, with addresses that are easy to guess.
        let stack = process::limit_of(0, Resource::STACK).step("read the stack's limit")?;
        process::set_soft_limit(Resource::STACK, stack.min(DEFAULT_STACK)).step("limit the stack")?;
        // The launcher sends descriptors while guests of the same user send theirs.
        process::set_soft_limit(Resource::OPEN_FILES, u64::MAX).step("raise the limit of open files")?;
        let children = process::child_signal().step("watch for children")?;
        let namespaces = evidence::namespaces("/proc/self/ns").step("read own namespaces (is /proc mounted?)")?;
        let path_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let host_proc = rustix::fs::open("/proc", path_flags, Mode::empty()).step("open /proc")?;
        let outside = match origin {
            Origin::Executed => None,
            Origin::Forked => namespace::open_own(host_proc.as_fd(), "mnt").ok(),
        };
        let identity = enter_own_namespaces()?;
        let background = match origin {
            Origin::Executed => None,
            // Until the owner waits, leave the other processor to it.
            Origin::Forked => Background::begin(&host_proc, outside.as_ref(), identity, Share::Single, Some(socket)),
        };
        // A shell lets background programs ignore the keys of a terminal, and every guest would inherit that.
        process::default_signals();
        process::own_session();
        // Kernels without keyrings have nothing to hide.
        let _ = process::new_session_keyring();
        let child_resources = ChildResources::new().step("prepare resources for children")?;
        let base = match &background {
            None => TemplateBase::Empty(host_proc, outside),
            Some(_) => {
                let mut builder = TemplateBuilder::new(host_proc, outside, identity.is_privileged())?;
                builder.build_default();
                TemplateBase::Built(builder)
            }
        };
        Ok(Self { origin, children, namespaces, identity, child_resources, base, background })
    }

    /// Prepares what every sandbox of this launcher needs.
    fn prepare(self, configure: &Configure) -> Step<Prepared> {
        let Self { origin, children, namespaces, identity, child_resources, base, background } = self;
        let privileged = identity.is_privileged();
        if let Some(background) = &background {
            let _ = background.configure.send(configure.use_cgroups);
        }
        let (builder, background, found) = match base {
            TemplateBase::Built(builder) => (Ok(builder), background, None),
            TemplateBase::Empty(host_proc, outside) => {
                let share = if origin == Origin::Forked { Share::Single } else { Share::Many };
                let background = match configure.prepare_ahead {
                    true => None,
                    false => Background::begin(&host_proc, outside.as_ref(), identity, share, None),
                };
                // Search while the host's mounts are visible, and as the user that will create the groups.
                let found = match &background {
                    Some(background) => {
                        let _ = background.configure.send(configure.use_cgroups);
                        None
                    }
                    None => Some(find_owner(configure.use_cgroups, share)),
                };
                (TemplateBuilder::new(host_proc, outside, privileged), background, found)
            }
        };
        let landlock_abi = landlock::abi();
        let built = builder.and_then(|builder| {
            let template = builder.finish(configure)?;
            let view = TemplateView { template: &template, landlock_abi };
            let own_mounts =
                (origin == Origin::Forked).then(|| namespace_pool::SandboxMounts::create(view, DEFAULT_DISK));
            Ok((template, own_mounts.transpose().step("mount the sandbox's own file systems")?))
        });
        // Compile for the likely case. The other thread reports later whether it holds.
        let compiled = CompiledFilters::new(configure.use_cgroups);
        let (network, owner) = match (background, found) {
            (Some(background), _) => background.finish(),
            (None, found) => (None, found.unwrap_or_else(|| Err("not searched for".to_owned()))),
        };
        let (owner, cgroup_reason) = match owner {
            Ok(owner) => (Some(owner), String::new()),
            Err(reason) => (None, reason),
        };
        let (template, own_mounts) = match built {
            Ok(built) => built,
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
            shown: template.host_paths().shown.clone(),
            hidden: template.host_paths().hidden.clone(),
            cgroup_layout: owner.as_ref().map(Owner::layout).unwrap_or_default(),
            cgroup_reason,
            cgroup_counts: owner.as_ref().map_or((false, false), |owner| (owner.counts_swap(), owner.counts_cpu())),
            cgroup_cpu: owner.as_ref().is_some_and(Owner::has_cpu),
            landlock_abi,
            privileged,
            namespaces,
        };
        Ok(Prepared {
            origin,
            template,
            owner,
            identity,
            children,
            child_resources,
            network,
            own_mounts,
            compiled,
            facts,
        })
    }
}

/// A thread that creates a network namespace and then searches for a control group. Both take long, and the creation of
/// a single sandbox waits only for them. The thread sees the host's mounts throughout: either the launcher enters a
/// namespace without the thread, or the thread returns to the launcher's original namespace.
struct Background {
    configure: SyncSender<bool>,
    thread: JoinHandle<(Option<namespace_pool::Network>, Result<Owner, String>)>,
}

impl Background {
    /// Starts the thread, if possible. It begins its work once `start` is readable, or at once.
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
            let network = namespace_pool::Network::create(proc.as_fd()).ok();
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
        // Both threads have work from here on.
        process::keep_thread_elsewhere(&thread);
        Some(Self { configure, thread })
    }

    /// Waits for the thread. A network that could not be created is tried again later, and then reports its error.
    fn finish(self) -> (Option<namespace_pool::Network>, Result<Owner, String>) {
        self.thread.join().unwrap_or_else(|_| (None, Err("the search for a control group failed".to_owned())))
    }
}

fn find_owner(use_cgroups: bool, share: Share) -> Result<Owner, String> {
    if use_cgroups { Owner::new(share, Family::Parent) } else { Err("switched off".to_owned()) }
}

/// A prepared launcher.
struct Prepared {
    origin: Origin,
    template: Template,
    owner: Option<Owner>,
    identity: Identity,
    children: OwnedFd,
    child_resources: ChildResources,
    network: Option<namespace_pool::Network>,
    own_mounts: Option<namespace_pool::SandboxMounts>,
    compiled: io::Result<CompiledFilters>,
    facts: HostFacts,
}

impl Prepared {
    /// Installs the filter on the launcher. Leaves nothing behind if that fails.
    fn finish(mut self, configure: &Configure) -> Step<(Self, Filters, NamespacePool)> {
        match self.install_filters().and_then(|filters| Ok((filters, self.create_pool(configure)?))) {
            Ok((filters, pool)) => Ok((self, filters, pool)),
            Err(failure) => {
                self.owner.into_iter().for_each(Owner::close);
                Err(failure)
            }
        }
    }

    fn install_filters(&mut self) -> Step<Filters> {
        let has_accounting = self.owner.is_some();
        let compiled = std::mem::replace(&mut self.compiled, Err(io::ErrorKind::NotFound.into()));
        let compiled = match compiled {
            Ok(compiled) if compiled.has_accounting == has_accounting => Ok(compiled),
            _ => CompiledFilters::new(has_accounting),
        };
        compiled.and_then(CompiledFilters::install).step("install the system-call filter on the launcher")
    }

    fn create_pool(&mut self, configure: &Configure) -> Step<NamespacePool> {
        let view = TemplateView { template: &self.template, landlock_abi: self.facts.landlock_abi };
        let pool = match (self.origin, configure.prepare_ahead) {
            (Origin::Forked, _) => Ok(NamespacePool::single(self.network.take(), self.own_mounts.take())),
            (Origin::Executed, false) => Ok(NamespacePool::on_demand(self.network.take())),
            (Origin::Executed, true) => NamespacePool::with_worker(view, DEFAULT_DISK),
        };
        pool.step("start the worker that creates namespaces")
    }

    fn launcher(self, socket: OwnedFd, filters: Filters, pool: NamespacePool) -> Launcher {
        Launcher {
            socket,
            hello_sent: false,
            children: self.children,
            template: self.template,
            owner: self.owner,
            identity: self.identity,
            facts: self.facts,
            filters,
            pool,
            child_resources: self.child_resources,
            live: Vec::new(),
            single: self.origin == Origin::Forked,
            last_disk: DEFAULT_DISK,
        }
    }
}
