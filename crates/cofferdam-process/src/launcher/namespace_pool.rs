//! A pool of prepared namespaces: what every sandbox needs, independent of its request.
//!
//! Each entry has a network namespace, an IPC namespace, a mount namespace with the template's root, terminals and
//! writable directories, and a set of Landlock rules for them. To create and remove these is most of the kernel's work
//! on a sandbox. So a worker process creates a few in advance, hands them over as descriptors, and drops them after
//! use. Each is used by one sandbox, once. After the first sandbox with a host directory as its workspace, each entry of
//! a privileged launcher also has a user namespace without a map, with which the sandbox maps the directory's owner.
//!
//! ```text
//! launcher --Create--> worker --namespaces--> launcher --setns--> sandbox --gone--> launcher --Drop--> worker
//! ```

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use cofferdam_linux::landlock::{Ruleset, access};
use cofferdam_linux::mount::{self, Depth, attr};
use cofferdam_linux::namespace::UnmappedUsers;
use cofferdam_linux::spawn::{self, Fork};
use cofferdam_linux::{message, namespace, process};
use rustix::fs::{Mode, OFlags};

use super::template::{Covered, Template};

/// The maximum of prepared namespaces.
const POOL_SIZE: usize = 8;
/// Time to wait for namespaces that the worker is creating.
const CREATE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum of files in a sandbox without a disk limit.
const MAX_FILES: u64 = 1 << 20;
const MIN_FILES: u64 = 1024;
const CREATE: u8 = b'+';
const RELEASE: u8 = b'-';

/// Prepared namespaces for one sandbox.
#[derive(Debug)]
pub struct PreparedNamespaces {
    /// A network namespace with only a loopback interface, which is up.
    pub network: OwnedFd,
    /// An empty IPC namespace.
    pub ipc: OwnedFd,
    /// A mount namespace with the template's root, terminals and the writable directories, but without `/proc`. `None`
    /// if the sandbox uses the template's own namespace, which it then is in from the start.
    pub mounts: Option<OwnedFd>,
    /// The file system that contains `/tmp`, `/dev/shm`, `/code` and a private workspace.
    pub own: OwnedFd,
    /// Landlock rules for all of it except `/proc` and the workspace. `None` on a kernel without Landlock.
    pub rules: Option<OwnedFd>,
    /// The maximum size in bytes of the writable directories. It is always set at first: a limit can be removed later,
    /// but not added.
    pub disk: Option<u64>,
    /// A user namespace for the owners of a mounted host directory, if the pool prepares them.
    pub users: Option<UnmappedUsers>,
}

/// The template, and the Landlock version for which rules are created.
#[derive(Debug, Clone, Copy)]
pub struct TemplateView<'a> {
    pub template: &'a Template,
    pub landlock_abi: u32,
}

/// The launcher's side of the pool.
#[derive(Debug)]
pub struct NamespacePool {
    worker: Option<OwnedFd>,
    /// The number of entries that were taken and not requested again yet.
    missing: usize,
    /// True if the worker also creates user namespaces for mounted host directories.
    pub with_users: bool,
    /// The first network, if there is no worker.
    network: Option<Network>,
    /// For a launcher of a single sandbox: the mounts that were created for it.
    single: Option<Option<SandboxMounts>>,
}

/// The sandbox's own mounts below the template's root.
#[derive(Debug)]
pub struct SandboxMounts {
    own: OwnedFd,
    rules: Option<OwnedFd>,
    disk: u64,
}

/// The namespaces that do not depend on the template.
#[derive(Debug)]
pub struct Network {
    network: OwnedFd,
    ipc: OwnedFd,
}

impl Network {
    /// Creates both namespaces. The calling thread stays in them.
    pub fn create(proc: BorrowedFd<'_>) -> io::Result<Self> {
        namespace::unshare(namespace::kind::NET | namespace::kind::IPC)?;
        namespace::loopback_up()?;
        Ok(Self { network: namespace::open_own(proc, "net")?, ipc: namespace::open_own(proc, "ipc")? })
    }
}

impl NamespacePool {
    /// Creates a pool without a worker for at most one sandbox, which is in the template's own mount namespace.
    pub fn single(network: Option<Network>, own_mounts: Option<SandboxMounts>) -> Self {
        Self { worker: None, missing: 0, with_users: false, network, single: Some(own_mounts) }
    }

    /// Creates a pool without a worker, perhaps with the network for the first sandbox.
    pub fn on_demand(network: Option<Network>) -> Self {
        Self { worker: None, missing: 0, with_users: false, network, single: None }
    }

    /// Starts the worker and requests namespaces with this disk limit.
    pub fn with_worker(view: TemplateView<'_>, disk: u64) -> io::Result<Self> {
        let (ours, theirs) = message::pair()?;
        match spawn::fork(0, None, None)? {
            Fork::Child => {
                let Ok(mount_namespace) = view.template.mount_namespace() else { process::exit_now(71) };
                let (proc, mount_namespace) = (view.template.host_proc().as_raw_fd(), mount_namespace.as_raw_fd());
                process::close_all_but(&mut [0, 1, 2, theirs.as_raw_fd(), proc, mount_namespace]);
                process::set_name(c"cofferdam-ns");
                let _ = process::die_with_parent();
                let _ = serve(theirs.as_fd(), view);
                process::exit_now(0)
            }
            Fork::Parent(_) => {
                let mut pool = Self { worker: Some(ours), missing: POOL_SIZE, ..Self::on_demand(None) };
                pool.refill(disk);
                Ok(pool)
            }
        }
    }

    /// Returns unused namespaces. Without a worker, the calling process creates them, and stays in the network and IPC
    /// namespaces.
    pub fn take(&mut self, view: TemplateView<'_>, disk: u64) -> io::Result<PreparedNamespaces> {
        if let Some(worker) = &self.worker {
            match receive_namespaces(worker.as_fd()) {
                Ok(prepared) => {
                    self.missing += 1;
                    if self.missing >= POOL_SIZE / 2 {
                        self.refill(disk);
                    }
                    return Ok(prepared);
                }
                Err(_) => self.worker = None,
            }
        }
        let network = self.network.take().map_or_else(|| Network::create(view.template.host_proc()), Ok)?;
        match &mut self.single {
            Some(own_mounts) => create_in_template(view, disk, network, own_mounts.take()),
            None => create(view, disk, network),
        }
    }

    /// Lets the worker remove namespaces in which no process remains.
    pub fn dispose(&self, prepared: PreparedNamespaces) {
        let fds: Vec<_> =
            [&prepared.network, &prepared.ipc].into_iter().chain(&prepared.mounts).map(AsFd::as_fd).collect();
        self.release(&fds);
    }

    /// Does the same for the network alone.
    pub fn dispose_network(&self, network: OwnedFd) {
        self.release(&[network.as_fd()]);
    }

    fn release(&self, fds: &[BorrowedFd<'_>]) {
        if let Some(worker) = &self.worker {
            // If the worker cannot receive them, the caller's drop removes them.
            let _ = message::send(worker.as_fd(), &[RELEASE], fds);
        }
    }

    /// Ends the worker. The caller reaps it.
    pub fn stop(&mut self) {
        self.worker = None;
    }

    /// Returns true if entries are missing. The launcher requests them when it is idle: an earlier request would delay
    /// the sandbox that took the last entry.
    pub fn is_short(&self) -> bool {
        self.missing > 0
    }

    /// Requests as many entries as were taken.
    pub fn refill(&mut self, disk: u64) {
        let mut request = [CREATE; 10];
        request[1..9].copy_from_slice(&disk.to_le_bytes());
        request[9] = self.with_users.into();
        for _ in 0..std::mem::take(&mut self.missing) {
            // If the worker has ended, the next `take` notices it.
            if let Some(worker) = &self.worker {
                let _ = message::send(worker.as_fd(), &request, &[]);
            }
        }
    }
}

impl PreparedNamespaces {
    fn new(network: Network, mounts: Option<OwnedFd>, own_mounts: SandboxMounts) -> Self {
        let (Network { network, ipc }, SandboxMounts { own, rules, disk }) = (network, own_mounts);
        Self { network, ipc, mounts, own, rules, disk: Some(disk), users: None }
    }

    /// Returns all descriptors, in the order in which the worker sends them.
    pub fn fds(&self) -> impl Iterator<Item = &OwnedFd> {
        let own = [&self.network, &self.ipc].into_iter().chain(&self.mounts).chain([&self.own]);
        own.chain(self.users.iter().flat_map(UnmappedUsers::fds)).chain(&self.rules)
    }

    /// Sets the size of the writable directories, unless they have it. A caller with another copy of the namespaces
    /// must update `disk` there.
    ///
    /// Fails if more is in use, or if there was no limit before.
    pub fn resize(&self, disk: Option<u64>) -> io::Result<()> {
        if self.disk == disk {
            return Ok(());
        }
        let (size, files) = bounds(disk);
        mount::reconfigure(self.own.as_fd(), &[(c"size", &size), (c"nr_inodes", &files)])
    }
}

fn receive_namespaces(worker: BorrowedFd<'_>) -> io::Result<PreparedNamespaces> {
    let mut buffer = [0; 9];
    if !message::wait_readable(worker, Some(CREATE_TIMEOUT))? {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    let (length, fds) = message::receive(worker, &mut buffer)?;
    let mut fds = fds.into_iter();
    let (disk, with_users) = (buffer.first_chunk::<8>().copied(), buffer[8] != 0);
    match (length, disk, fds.next(), fds.next(), fds.next(), fds.next()) {
        (9, Some(disk), Some(network), Some(ipc), Some(mounts), Some(own)) => {
            let mut users = || Some(UnmappedUsers::from([fds.next()?, fds.next()?, fds.next()?]));
            let users = if with_users { users() } else { None };
            let (mounts, disk) = (Some(mounts), Some(u64::from_le_bytes(disk)));
            Ok(PreparedNamespaces { network, ipc, mounts, own, rules: fds.next(), disk, users })
        }
        _ => Err(io::Error::from(io::ErrorKind::BrokenPipe)),
    }
}

/// Serves requests in the worker, one after the other, until the launcher has ended or a step fails.
fn serve(launcher: BorrowedFd<'_>, view: TemplateView<'_>) -> io::Result<()> {
    let mut buffer = [0; 16];
    loop {
        message::wait_readable(launcher, None)?;
        let (length, fds) = message::receive(launcher, &mut buffer)?;
        match (buffer[..length].first(), buffer[..length].get(1..9).map(<[u8; 8]>::try_from)) {
            (Some(&CREATE), Some(Ok(disk))) => {
                let proc = view.template.host_proc();
                let mut prepared = create(view, u64::from_le_bytes(disk), Network::create(proc)?)?;
                if buffer[9] != 0 {
                    // Without it, the sandbox creates its own.
                    prepared.users = UnmappedUsers::create(proc).ok();
                }
                let fds: Vec<_> = prepared.fds().map(AsFd::as_fd).collect();
                let mut response = [prepared.users.is_some().into(); 9];
                response[..8].copy_from_slice(&disk);
                message::send(launcher, &response, &fds)?;
            }
            (Some(&RELEASE), _) => drop(fds),
            _ => return Ok(()),
        }
    }
}

/// Creates the only namespaces of a launcher. The template needs no copy for them.
fn create_in_template(
    view: TemplateView<'_>,
    disk: u64,
    network: Network,
    own_mounts: Option<SandboxMounts>,
) -> io::Result<PreparedNamespaces> {
    let own_mounts = own_mounts.map_or_else(|| SandboxMounts::create(view, disk), Ok)?;
    Ok(PreparedNamespaces::new(network, None, own_mounts))
}

fn create(view: TemplateView<'_>, disk: u64, network: Network) -> io::Result<PreparedNamespaces> {
    let (proc, mount_namespace) = (view.template.host_proc(), view.template.mount_namespace()?);
    namespace::unshare(namespace::kind::MOUNT)?;
    let prepared = SandboxMounts::create(view, disk).and_then(|own_mounts| {
        Ok(PreparedNamespaces::new(network, Some(namespace::open_own(proc, "mnt")?), own_mounts))
    });
    // Outside the template's namespace, the process can create no further namespaces and no sandbox.
    if namespace::join(mount_namespace, namespace::kind::MOUNT).is_err() {
        process::exit_now(71);
    }
    prepared
}

impl SandboxMounts {
    /// Mounts the sandbox's own file systems in the root of the calling process, and creates rules for the root.
    pub fn create(view: TemplateView<'_>, disk: u64) -> io::Result<Self> {
        let terminals = [(c"ptmxmode", c"0666"), (c"mode", c"0620"), (c"max", c"64")];
        let terminals = mount::new_filesystem(c"devpts", &terminals, attr::NOSUID | attr::NOEXEC)?;
        mount::attach(terminals.as_fd(), mount::cwd(), c"/dev/pts")?;
        let own = mount_own(disk, view.template.covered())?;
        let rules = if view.landlock_abi > 0 { Some(rules(view)?.into_fd()) } else { None };
        Ok(Self { own, rules, disk })
    }
}

/// Mounts one tmpfs that contains `/tmp`, `/dev/shm`, `/code` and a private workspace, so that one size limits them
/// all.
fn mount_own(disk: u64, covered: &[Covered]) -> io::Result<OwnedFd> {
    // Copy these mounts before `/tmp` covers them.
    let trees = covered.iter().map(|part| {
        let path = CString::new(part.path.as_os_str().as_bytes())?;
        let tree = match &part.link {
            None => Some(mount::clone_tree(mount::cwd(), &path, Depth::Recursive)?),
            Some(_) => None,
        };
        Ok((part, path, tree))
    });
    let trees: Vec<_> = trees.collect::<io::Result<_>>()?;
    let (size, files) = bounds(Some(disk));
    let options = [(c"size", size.as_c_str()), (c"nr_inodes", files.as_c_str()), (c"mode", c"0755")];
    let own = mount::new_filesystem(c"tmpfs", &options, attr::NOSUID | attr::NODEV)?;
    // The workspace covers it in the end. Until then, its parts can be copied from here.
    mount::attach(own.as_fd(), mount::cwd(), c"/workspace")?;
    for (name, mode, target, attributes) in [
        (c"tmp", 0o1777, c"/tmp", 0),
        (c"shm", 0o1777, c"/dev/shm", attr::NOEXEC),
        (c"code", 0o755, c"/code", attr::RDONLY),
        (c"workspace", 0o755, c"/workspace", 0),
    ] {
        rustix::fs::mkdirat(&own, name, Mode::from_raw_mode(mode))?;
        let tree = mount::clone_tree(own.as_fd(), name, Depth::Single)?;
        if attributes != 0 {
            mount::add_attributes(tree.as_fd(), Depth::Single, attributes)?;
        }
        mount::attach(tree.as_fd(), mount::cwd(), target)?;
    }
    for (part, path, tree) in &trees {
        show_again(part, path, tree.as_ref())?;
    }
    Ok(own)
}

/// Shows a part of an interpreter in the sandbox's own `/tmp`, at its path on the host.
fn show_again(part: &Covered, path: &CStr, tree: Option<&OwnedFd>) -> io::Result<()> {
    if let Some(parent) = part.path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match (tree, &part.link) {
        (Some(tree), _) => {
            let stat = rustix::fs::fstat(tree)?;
            if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
                std::fs::create_dir_all(&part.path)?;
            } else {
                std::fs::write(&part.path, "")?;
            }
            mount::attach(tree.as_fd(), mount::cwd(), path)
        }
        (None, Some(target)) => Ok(rustix::fs::symlink(target, &part.path)?),
        (None, None) => Ok(()),
    }
}

/// Returns the size and the number of files as options of a tmpfs; 0 means no limit.
pub fn bounds(disk: Option<u64>) -> (CString, CString) {
    let files = disk.map_or(MAX_FILES, |bytes| (bytes / 8192).clamp(MIN_FILES, MAX_FILES));
    let text = |number: u64| CString::new(number.to_string()).unwrap_or_default();
    (text(disk.unwrap_or(0)), text(files))
}

fn rules(view: TemplateView<'_>) -> io::Result<Ruleset> {
    let rules = Ruleset::new(view.landlock_abi)?;
    allow(&rules, c"/", access::READ_DIR)?;
    for (path, is_directory) in view.template.programs() {
        // The kernel accepts no right to list for a file.
        allow(&rules, path, access::EXECUTE | if *is_directory { access::READ } else { access::READ_FILE })?;
    }
    allow(&rules, c"/code", access::READ | access::EXECUTE)?;
    // Terminals are files of /dev/pts, and a rule on /dev reaches what is mounted below it.
    let devices = access::READ | access::WRITE_FILE | access::TRUNCATE | access::IOCTL_DEV;
    for path in [c"/dev/pts", c"/dev/null", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"] {
        allow(&rules, path, if path == c"/dev/pts" { devices } else { devices & !access::READ_DIR })?;
    }
    // Do not allow writes to /dev/zero: it could then be mapped as memory that stays when no process maps it any more.
    allow(&rules, c"/dev", access::READ)?;
    allow(&rules, c"/dev/shm", access::ALL)?;
    allow(&rules, c"/tmp", access::ALL)?;
    Ok(rules)
}

/// Adds a rule for the file that is at `path` now.
pub fn allow(rules: &Ruleset, path: &CStr, rights: u64) -> io::Result<()> {
    let target = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    rules.allow(target.as_fd(), rights)
}
