//! A machine's Firecracker started by its own jailer, in place of our walls.
//!
//! ```text
//! in a mount namespace that ends with the machine, and has no name outside:
//! PLACE/                        a file system in memory, with a bound on its size and on its files
//!       keeper                  executed by the first process of the jail's namespace, which has the machine's files open
//!       PROGRAM/ID/root/        the root that Firecracker sees
//!                       kernel, disk0, ...   links to
//!                       files/NUMBER         what the keeper has open, as the kernel shows it
//!                       PROGRAM, dev, run    of the jailer's making, with the sockets beside them
//! ```
//!
//! The jailer closes descriptors and shows Firecracker nothing but that root. A machine's files have no names, many of them are
//! shared by machines, and are to stay one file each: so they are not brought into the root, but opened through the keeper,
//! who has the jailed user's rights and nothing of ours. Nothing of a jail stands in a directory of the host's.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cofferdam_linux::child::{Calls, Pages, Seclusion, Start, Stock};
use cofferdam_linux::mount::{self, attr};
use cofferdam_linux::process::{self, Resource};
use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};

use super::ids::InstanceId;
use super::process::{API_SOCKET, Raised, Remains, Running, Tie, View};
use super::walls::{Shown, give};
use super::{PROGRAM, broken};
use crate::bounds::{Enclosure, VmmLimits};
use crate::error::{Result, VmError, io};
use crate::qemu;

/// The jailer's program.
pub(crate) const JAILER: &str = "jailer";
/// What the first process of a jail's namespace executes.
static KEEPER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-vm-keeper"));
/// Where it lies, beside the jail's directories.
const KEEPER_NAME: &str = "keeper";
/// The directory of descriptors in a jail's root.
const FILES: &str = "files";
/// Bytes in a jail besides Firecracker's program: pages of directories, of the keeper, of what the jailer writes.
const FURTHER: u64 = 1 << 20;
/// Files and directories in a jail: some thirty are the jailer's and ours, two are Firecracker's sockets.
const MAX_FILES: u32 = 64;

/// Whether machines are started by Firecracker's own jailer. It needs root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Jailer {
    /// They are started behind our own walls.
    #[default]
    Off,
    /// By the program `jailer` in the directory of Firecracker's.
    Beside,
    /// By this program; its whole path.
    At(PathBuf),
}

impl Jailer {
    /// The jailer for this Firecracker, if there is to be one, by its whole path.
    pub(super) fn program(&self, firecracker: &Path) -> Result<Option<PathBuf>> {
        let program = match self {
            Self::Off => return Ok(None),
            Self::At(path) if path.is_absolute() => path.clone(),
            Self::At(path) => {
                let why = format!("{} is not a whole path", path.display());
                return Err(VmError::NoJailer { why, remedy: "name it from the root on: /usr/local/bin/jailer" });
            }
            Self::Beside => firecracker.with_file_name(JAILER),
        };
        super::walls::whole(JAILER, &program).map(Some)
    }
}

/// Refuses what cannot be jailed here, before anything is started.
pub(super) fn check(firecracker: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let remedy =
            "run as root, or switch it off: `jailer` in [machines], or COFFERDAM_VM_JAILER; our own walls need no root";
        return Err(VmError::NoJailer { why: "it needs root, and this user is none".to_owned(), remedy });
    }
    if name(firecracker)?.to_str().is_some_and(|name| name.contains(PROGRAM)) {
        return Ok(());
    }
    let why = format!("it starts only programs with `{PROGRAM}` in their names, not {}", firecracker.display());
    Err(VmError::NoJailer { why, remedy: "give the program its name back, or switch the jailer off" })
}

fn name(program: &Path) -> Result<&OsStr> {
    program.file_name().ok_or_else(|| broken("its path names no file"))
}

/// A jail's paths: in its own file system, and as its processes see them before the jailer has walled them in.
struct Layout {
    /// From the tree's root.
    below: PathBuf,
    root: PathBuf,
}

impl Layout {
    fn new(base: &Path, program: &Path, id: &InstanceId) -> Result<Self> {
        let below = Path::new(name(program)?).join(id.as_str()).join("root");
        Ok(Self { root: base.join(&below), below })
    }
}

/// Makes the file system of a machine's jail with what Firecracker is shown, and says how it is started by the jailer. Blocks
/// its thread for some milliseconds.
pub(super) fn raise(
    jailer: &Path,
    (base, id): (&Path, &InstanceId),
    program: &Path,
    all: Vec<Shown>,
    may: &VmmLimits,
) -> Result<Raised> {
    let user = user();
    let enclosure = Enclosure::make(may, true);
    let (groups, limits) = (enclosure.entrances(), enclosure.limits.clone());
    // Removed when anything fails, or nobody waits for it any more.
    let running = Running::new(Remains { enclosure: Some(enclosure), ..Remains::default() });
    let failed = || io("set up a jail for", program);
    let layout = Layout::new(base, program, id)?;
    let tree = tree(program)?;
    for directory in layout.below.ancestors().collect::<Vec<_>>().into_iter().rev().skip(1) {
        mkdirat(&tree, directory, Mode::RWXU).map_err(|error| failed()(error.into()))?;
    }
    mkdirat(&tree, layout.below.join(FILES), Mode::RWXU).map_err(|error| failed()(error.into()))?;
    for Shown { name, file, access } in &all {
        give(file, *access, user).map_err(io("give to the machine's monitor", PathBuf::from(name)))?;
        let target = format!("{FILES}/{}", file.as_raw_fd());
        symlinkat(target, &tree, layout.below.join(name)).map_err(|error| failed()(error.into()))?;
    }
    let stock = Stock {
        tree: tree.try_clone().map_err(failed())?,
        at: text(base)?,
        shown: text(&layout.root.join(FILES))?,
        user,
        keeper: keeper(&tree).map_err(failed())?,
    };
    let mut command = Command::new(jailer);
    command.args(arguments(id, program, base, user, &allowed(&limits).map_err(failed())?)).current_dir("/");
    let start = Start {
        keep: all.into_iter().map(|shown| OwnedFd::from(shown.file)).collect(),
        user: None,
        rules: None,
        seclusion: Seclusion::Apart,
        groups: groups.map_err(failed())?,
        limits,
        pages: Pages::Small,
        // The jailer's are more than a machine's, and Firecracker has filters of its own.
        calls: Calls::Any,
        stock: Some(stock),
    };
    // Between the tree's root and the jail's root nobody but root can put anything.
    let outside = PathBuf::from(format!("/proc/self/fd/{}", tree.as_raw_fd())).join(&layout.below);
    let view = View { outside, inside: PathBuf::from("/"), owner: Some(user), tree: Some(Arc::new(tree)) };
    Ok(Raised { command, tie: Tie::Namespace, view, start, running })
}

/// A user and a group that no host has, of this machine alone. The device for machines is the jailer's own, and this user's.
fn user() -> (u32, u32) {
    let user = qemu::nobodys();
    (user, user)
}

/// The file system that a jail is in. Devices can be made there, and programs executed.
fn tree(program: &Path) -> Result<OwnedFd> {
    let bytes = program.metadata().map_err(io("look at", program))?.len().saturating_add(FURTHER);
    let (size, files) = (bytes.next_multiple_of(4096).to_string(), MAX_FILES.to_string());
    let options = [("size", &*size), ("nr_inodes", &*files), ("mode", "0700")];
    let words = options.map(|(key, value)| Ok::<_, VmError>((text(key.as_ref())?, text(value.as_ref())?)));
    let words = words.into_iter().collect::<Result<Vec<_>>>()?;
    let words: Vec<_> = words.iter().map(|(key, value)| (&**key, &**value)).collect();
    mount::new_filesystem(c"tmpfs", &words, attr::NOSUID).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => VmError::NoJailer {
            why: format!("this root may make no file system for a jail: {error}"),
            remedy: "run as root with all its rights, or switch the jailer off",
        },
        _ => io("make a file system for", program)(error),
    })
}

/// The keeper, to be executed.
fn keeper(tree: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let mut file = File::from(openat(tree, KEEPER_NAME, flags, Mode::RWXU)?);
    file.write_all(KEEPER)?;
    // Who executes what he may read can be looked into by his own user, as its descriptors are to be.
    file.set_permissions(Permissions::from_mode(0o555))?;
    Ok(openat(tree, KEEPER_NAME, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn text(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| broken("a path has a byte that is none"))
}

/// What the jailer is to limit: what holds for it already. It would set limits of its own otherwise, which may be more than
/// it can have.
fn allowed(limits: &[(Resource, u64)]) -> io::Result<Vec<String>> {
    let named = [("fsize", Resource::FILE_SIZE), ("no-file", Resource::OPEN_FILES)];
    let mut words = Vec::new();
    for (name, resource) in named {
        if let Some((_, most)) = limits.iter().find(|(found, _)| *found == resource) {
            words.push(format!("{name}={}", most.min(&process::most_of(resource)?)));
        }
    }
    Ok(words)
}

fn arguments(id: &InstanceId, program: &Path, base: &Path, (uid, gid): (u32, u32), limits: &[String]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut option = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    option("--id", id.as_str().into());
    option("--exec-file", program.into());
    option("--uid", uid.to_string().into());
    option("--gid", gid.to_string().into());
    option("--chroot-base-dir", base.into());
    for limit in limits {
        option("--resource-limit", limit.into());
    }
    // Its control group is ours, and it is in it already. Nothing is said of its network: it has none.
    arguments.extend(["--new-pid-ns", "--", "--api-sock"].map(Into::into));
    arguments.push(format!("/{API_SOCKET}").into());
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jailer_is_told_everything() {
        let id = InstanceId::new("vm-1").unwrap();
        let (program, base) = (Path::new("/opt/firecracker"), Path::new("/srv/monitors"));
        let said = arguments(&id, program, base, (7, 8), &["fsize=9".to_owned(), "no-file=128".to_owned()]);
        assert_eq!(
            said.join(" ".as_ref()).to_str().unwrap(),
            "--id vm-1 --exec-file /opt/firecracker --uid 7 --gid 8 --chroot-base-dir /srv/monitors \
             --resource-limit fsize=9 --resource-limit no-file=128 --new-pid-ns -- --api-sock /api.sock"
        );
        let layout = Layout::new(base, program, &id).unwrap();
        assert_eq!(layout.root, Path::new("/srv/monitors/firecracker/vm-1/root"));
    }

    #[test]
    fn a_jailer_is_found_or_missed_where_it_is_named() {
        let place = tempfile::tempdir().unwrap();
        let firecracker = place.path().join("firecracker");
        assert_eq!(Jailer::Off.program(&firecracker).unwrap(), None);
        for jailer in [Jailer::Beside, Jailer::At(place.path().join("other"))] {
            let error = jailer.program(&firecracker).unwrap_err().into_error("create");
            assert!(error.message().contains("jailer is not installed"), "{error}");
            assert!(error.remedy().is_some_and(|remedy| remedy.contains("COFFERDAM_VM_JAILER")), "{error:?}");
        }
        let beside = place.path().canonicalize().unwrap().join(JAILER);
        std::fs::write(&beside, "").unwrap();
        assert_eq!(Jailer::Beside.program(&firecracker).unwrap(), Some(beside));
        // One of the directory in which somebody happens to be is not executed.
        assert!(Jailer::At(JAILER.into()).program(&firecracker).unwrap_err().to_string().contains("whole path"));
    }

    #[test]
    fn what_cannot_be_jailed_is_refused() {
        let root = rustix::process::geteuid().is_root();
        let refused = |program: &str| check(Path::new(program)).err().map(|error| error.into_error("create"));
        let [good, bad] = [refused("/opt/firecracker-v1.17"), refused("/opt/vmm")];
        assert_eq!(good.is_none(), root, "{good:?}");
        let says = if root { "names" } else { "needs root" };
        assert!(bad.is_some_and(|error| error.message().contains(says) && error.remedy().is_some()));
    }
}
