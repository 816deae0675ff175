//! A stock of cells: what every sandbox needs and no request has a say in.
//!
//! A cell is a network namespace, an IPC namespace, a mount namespace with the template's root, terminals and writable directories, and a
//! set of Landlock rules for them. Making one is most of the kernel's work on a sandbox, and so is taking it down. So a
//! process of its own makes them ahead of time, a few at most, hands them over as descriptors, and drops them when they
//! are used up. Each is used by one sandbox, once.
//!
//! ```text
//! launcher --Make--> maker --cell--> launcher --setns--> sandbox --gone--> launcher --Drop--> maker
//! ```

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use cofferdam_linux::landlock::{Ruleset, access};
use cofferdam_linux::mount::{self, Depth, attr};
use cofferdam_linux::spawn::{self, Fork};
use cofferdam_linux::{message, namespace, process};
use rustix::fs::{Mode, OFlags};

use super::template::{Covered, Template};

/// Cells kept ready.
const STOCK: usize = 8;
/// Time to wait for one that is being made.
const PATIENCE: Duration = Duration::from_secs(5);
/// Files that fit into a sandbox without a disk limit are bounded by this.
const MAX_FILES: u64 = 1 << 20;
const MIN_FILES: u64 = 1024;
const MAKE: u8 = b'+';
const DROP: u8 = b'-';

/// What every sandbox needs.
#[derive(Debug)]
pub struct Cell {
    /// With only a loopback interface, which is up.
    pub network: OwnedFd,
    /// Without any object in it.
    pub ipc: OwnedFd,
    /// The template's root with terminals and the writable directories, but without `/proc`. `None` where the template's
    /// own namespace became the cell's: the sandbox is in it from the start, and there will be no other.
    pub mounts: Option<OwnedFd>,
    /// The file system of which `/tmp`, `/dev/shm`, `/code` and a private workspace are parts.
    pub own: OwnedFd,
    /// Landlock rules for all of it but `/proc` and the workspace; `None` on a kernel without Landlock.
    pub rules: Option<OwnedFd>,
    /// Bytes that fit into the writable directories. At first always a limit: one can be lifted later, but not set where
    /// there is none.
    pub disk: Option<u64>,
}

/// What cells are made from.
#[derive(Debug, Clone, Copy)]
pub struct Mould<'a> {
    pub template: &'a Template,
    pub landlock_abi: u32,
}

/// The launcher's side of the stock.
#[derive(Debug)]
pub struct Cells {
    maker: Option<OwnedFd>,
    /// Taken, and not yet asked for again.
    owed: usize,
    /// The first network, if there is no stock.
    network: Option<Network>,
    /// Where there will be one sandbox only: what was made for it.
    single: Option<Option<Furniture>>,
}

/// What a sandbox has of its own below the template's root.
#[derive(Debug)]
pub struct Furniture {
    own: OwnedFd,
    rules: Option<OwnedFd>,
    disk: u64,
}

/// The part of a cell that depends on nothing at all.
#[derive(Debug)]
pub struct Network {
    network: OwnedFd,
    ipc: OwnedFd,
}

impl Network {
    /// Makes both namespaces; the calling thread stays in them.
    pub fn make(proc: BorrowedFd<'_>) -> io::Result<Self> {
        namespace::unshare(namespace::kind::NET | namespace::kind::IPC)?;
        namespace::loopback_up()?;
        Ok(Self { network: namespace::open_own(proc, "net")?, ipc: namespace::open_own(proc, "ipc")? })
    }
}

impl Cells {
    /// No stock, and at most one sandbox, which is in the template's own mount namespace.
    pub fn single(network: Option<Network>, furniture: Option<Furniture>) -> Self {
        Self { maker: None, owed: 0, network, single: Some(furniture) }
    }

    /// No stock, but perhaps the network for the first.
    pub fn on_demand(network: Option<Network>) -> Self {
        Self { maker: None, owed: 0, network, single: None }
    }

    /// Starts the maker, and has it make cells with this disk limit.
    pub fn stock(mould: Mould<'_>, disk: u64) -> io::Result<Self> {
        let (ours, theirs) = message::pair()?;
        match spawn::fork(0, None, None)? {
            Fork::Child => {
                let Ok(home) = mould.template.home() else { process::exit_now(71) };
                let (proc, home) = (mould.template.host_proc().as_raw_fd(), home.as_raw_fd());
                process::close_all_but(&mut [0, 1, 2, theirs.as_raw_fd(), proc, home]);
                process::set_name(c"cofferdam-cells");
                let _ = process::die_with_parent();
                let _ = serve(theirs.as_fd(), mould);
                process::exit_now(0)
            }
            Fork::Parent(_) => {
                let mut cells = Self { maker: Some(ours), owed: STOCK, network: None, single: None };
                cells.restock(disk);
                Ok(cells)
            }
        }
    }

    /// A cell that nothing was ever in. Without a maker, the calling process makes it, and stays in its network and IPC
    /// namespace.
    pub fn take(&mut self, mould: Mould<'_>, disk: u64) -> io::Result<Cell> {
        if let Some(maker) = &self.maker {
            match from_stock(maker.as_fd()) {
                Ok(cell) => {
                    self.owed += 1;
                    if self.owed >= STOCK / 2 {
                        self.restock(disk);
                    }
                    return Ok(cell);
                }
                Err(_) => self.maker = None,
            }
        }
        let network = self.network.take().map_or_else(|| Network::make(mould.template.host_proc()), Ok)?;
        match &mut self.single {
            Some(furniture) => make_of_template(mould, disk, network, furniture.take()),
            None => make(mould, disk, network),
        }
    }

    /// Has the maker take down a cell in which nothing lives any more.
    pub fn dispose(&self, cell: Cell) {
        if let Some(maker) = &self.maker {
            // Where it cannot be handed over, it is dropped here.
            let fds: Vec<_> = [&cell.network, &cell.ipc].into_iter().chain(&cell.mounts).map(AsFd::as_fd).collect();
            let _ = message::send(maker.as_fd(), &[DROP], &fds);
        }
    }

    /// Ends the maker; the caller reaps it.
    pub fn stop(&mut self) {
        self.maker = None;
    }

    /// Whether there is anything to make. It waits until nothing else is wanted: making one right away would hold up the
    /// very sandbox that took it.
    pub fn is_short(&self) -> bool {
        self.owed > 0
    }

    /// Asks the maker for what was taken.
    pub fn restock(&mut self, disk: u64) {
        let mut order = [MAKE; 9];
        order[1..].copy_from_slice(&disk.to_le_bytes());
        for _ in 0..std::mem::take(&mut self.owed) {
            // A maker that is gone is noticed when a cell is wanted.
            if let Some(maker) = &self.maker {
                let _ = message::send(maker.as_fd(), &order, &[]);
            }
        }
    }
}

impl Cell {
    fn new(network: Network, mounts: Option<OwnedFd>, furniture: Furniture) -> Self {
        let (Network { network, ipc }, Furniture { own, rules, disk }) = (network, furniture);
        Self { network, ipc, mounts, own, rules, disk: Some(disk) }
    }

    /// Bounds the writable directories, if they do not have this bound. Who has another copy of the cell says so there.
    ///
    /// Fails where there is less room than is in use, and where there was no limit before.
    pub fn resize(&self, disk: Option<u64>) -> io::Result<()> {
        if self.disk == disk {
            return Ok(());
        }
        let (size, files) = bounds(disk);
        mount::reconfigure(self.own.as_fd(), &[(c"size", &size), (c"nr_inodes", &files)])
    }
}

fn from_stock(maker: BorrowedFd<'_>) -> io::Result<Cell> {
    let mut buffer = [0; 8];
    if !message::wait_readable(maker, Some(PATIENCE))? {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    let (length, fds) = message::receive(maker, &mut buffer)?;
    let mut fds = fds.into_iter();
    match (length, fds.next(), fds.next(), fds.next(), fds.next()) {
        (8, Some(network), Some(ipc), Some(mounts), Some(own)) => Ok(Cell {
            network,
            ipc,
            mounts: Some(mounts),
            own,
            rules: fds.next(),
            disk: Some(u64::from_le_bytes(buffer)),
        }),
        _ => Err(io::Error::from(io::ErrorKind::BrokenPipe)),
    }
}

/// The maker's life: one order after the other, until the launcher is gone or something fails.
fn serve(launcher: BorrowedFd<'_>, mould: Mould<'_>) -> io::Result<()> {
    let mut buffer = [0; 16];
    loop {
        message::wait_readable(launcher, None)?;
        let (length, fds) = message::receive(launcher, &mut buffer)?;
        match (buffer[..length].first(), buffer[..length].get(1..9).map(<[u8; 8]>::try_from)) {
            (Some(&MAKE), Some(Ok(disk))) => {
                let cell = make(mould, u64::from_le_bytes(disk), Network::make(mould.template.host_proc())?)?;
                let mut fds: Vec<_> = [&cell.network, &cell.ipc].map(AsFd::as_fd).to_vec();
                fds.extend(cell.mounts.iter().chain([&cell.own]).map(AsFd::as_fd));
                fds.extend(cell.rules.iter().map(AsFd::as_fd));
                message::send(launcher, &disk, &fds)?;
            }
            (Some(&DROP), _) => drop(fds),
            _ => return Ok(()),
        }
    }
}

/// Makes the only cell there will be: the template needs no copy.
fn make_of_template(mould: Mould<'_>, disk: u64, network: Network, furniture: Option<Furniture>) -> io::Result<Cell> {
    let furniture = furniture.map_or_else(|| Furniture::make(mould, disk), Ok)?;
    Ok(Cell::new(network, None, furniture))
}

fn make(mould: Mould<'_>, disk: u64, network: Network) -> io::Result<Cell> {
    let (proc, home) = (mould.template.host_proc(), mould.template.home()?);
    namespace::unshare(namespace::kind::MOUNT)?;
    let cell = Furniture::make(mould, disk)
        .and_then(|furniture| Ok(Cell::new(network, Some(namespace::open_own(proc, "mnt")?), furniture)));
    // What is not in the template's namespace can make no further cell, and no sandbox.
    if namespace::join(home, namespace::kind::MOUNT).is_err() {
        process::exit_now(71);
    }
    cell
}

impl Furniture {
    /// Adds to the root of the calling process what each sandbox has of its own, and makes rules for it.
    pub fn make(mould: Mould<'_>, disk: u64) -> io::Result<Self> {
        let terminals = [(c"ptmxmode", c"0666"), (c"mode", c"0620"), (c"max", c"64")];
        let terminals = mount::new_filesystem(c"devpts", &terminals, attr::NOSUID | attr::NOEXEC)?;
        mount::attach(terminals.as_fd(), mount::cwd(), c"/dev/pts")?;
        let own = mount_own(disk, mould.template.covered())?;
        let rules = if mould.landlock_abi > 0 { Some(rules(mould)?.into_fd()) } else { None };
        Ok(Self { own, rules, disk })
    }
}

/// Mounts one tmpfs, of which `/tmp`, `/dev/shm`, `/code` and a private workspace are parts, so that one size bounds them
/// all.
fn mount_own(disk: u64, covered: &[Covered]) -> io::Result<OwnedFd> {
    // While it can still be reached.
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
    // It is covered by the workspace at the end; until then its parts can be copied from here.
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

/// Shows a part of an interpreter in the sandbox's own `/tmp`, where the host has it.
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

/// Size and number of files, as a tmpfs takes them; 0 is no bound.
fn bounds(disk: Option<u64>) -> (CString, CString) {
    let files = disk.map_or(MAX_FILES, |bytes| (bytes / 8192).clamp(MIN_FILES, MAX_FILES));
    let text = |number: u64| CString::new(number.to_string()).unwrap_or_default();
    (text(disk.unwrap_or(0)), text(files))
}

fn rules(mould: Mould<'_>) -> io::Result<Ruleset> {
    let rules = Ruleset::new(mould.landlock_abi)?;
    allow(&rules, c"/", access::READ_DIR)?;
    for (path, is_directory) in mould.template.programs() {
        // The kernel takes no right to list for a file.
        allow(&rules, path, access::EXECUTE | if *is_directory { access::READ } else { access::READ_FILE })?;
    }
    allow(&rules, c"/code", access::READ | access::EXECUTE)?;
    // Terminals are files of /dev/pts, and a rule on /dev reaches what is mounted below it.
    let devices = access::READ | access::WRITE_FILE | access::TRUNCATE | access::IOCTL_DEV;
    for path in [c"/dev/pts", c"/dev/null", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"] {
        allow(&rules, path, if path == c"/dev/pts" { devices } else { devices & !access::READ_DIR })?;
    }
    // Opened for writing it could be mapped: memory that stays when no process has it mapped any more.
    allow(&rules, c"/dev", access::READ)?;
    allow(&rules, c"/dev/shm", access::ALL)?;
    allow(&rules, c"/tmp", access::ALL)?;
    Ok(rules)
}

/// Adds a rule for what is at `path` now.
pub fn allow(rules: &Ruleset, path: &CStr, rights: u64) -> io::Result<()> {
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    rules.allow(place.as_fd(), rights)
}
