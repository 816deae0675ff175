//! A VM's Firecracker that is started by its own jailer, instead of by Cofferdam's own isolation.
//!
//! ```text
//! in a mount namespace that ends with the VM, and has no path on the host:
//! PLACE/                        a file system in memory, with a limited size and number of files
//!       init                    executed by the first process of the jail's namespace, which has the VM's files open
//!       PROGRAM/ID/root/        the root directory of Firecracker
//!                       kernel, disk0, ...   links to
//!                       files/NUMBER         the init's open files, in procfs
//!                       PROGRAM, dev, run    created by the jailer, with the sockets beside them
//! ```
//!
//! The jailer closes descriptors and gives Firecracker access to nothing but that root. A VM's files have no names, VMs
//! share many of them, and each must stay one file. So they are not copied into the root, but opened through the
//! init, which has the jailed user's rights and none of the supervisor's. Nothing of a jail is in a directory of the
//! host.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cofferdam_linux::child::{Calls, HeldFiles, Pages, Seclusion, Start};
use cofferdam_linux::mount::{self, attr};
use cofferdam_linux::process::{self, Resource};
use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};

use super::confinement::{VmFile, grant};
use super::ids::InstanceId;
use super::process::{API_SOCKET, Confined, Remains, Running, Tie, View};
use super::{PROGRAM, broken};
use crate::bounds::{Enclosure, VmmLimits};
use crate::error::{Result, VmError, io};
use crate::users;

/// The jailer's program.
pub(crate) const JAILER: &str = "jailer";
/// The program that the first process of a jail's namespace executes.
static JAIL_INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-vm-jail-init"));
/// Its name, beside the jail's directories.
const JAIL_INIT_NAME: &str = "init";
/// The directory of descriptors in a jail's root.
const FILES: &str = "files";
/// Bytes in a jail besides Firecracker's program: pages of directories, the init, files of the jailer.
const FURTHER: u64 = 1 << 20;
/// Maximum number of files and directories in a jail: some thirty are the jailer's and Cofferdam's, two are
/// Firecracker's sockets.
const MAX_FILES: u32 = 64;

/// The use of Firecracker's own jailer. It needs root.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Jailer {
    /// VMs are started by Cofferdam's own isolation.
    #[default]
    Off,
    /// VMs are started by the program `jailer` in the directory of Firecracker.
    Beside,
    /// VMs are started by the program at this absolute path.
    At(PathBuf),
}

impl Jailer {
    /// Returns the absolute path of the jailer for this Firecracker, if it is enabled.
    pub(super) fn program(&self, firecracker: &Path) -> Result<Option<PathBuf>> {
        let program = match self {
            Self::Off => return Ok(None),
            Self::At(path) if path.is_absolute() => path.clone(),
            Self::At(path) => {
                let why = format!("{} is not an absolute path", path.display());
                return Err(VmError::JailerUnusable {
                    why,
                    remedy: "use an absolute path such as /usr/local/bin/jailer",
                });
            }
            Self::Beside => firecracker.with_file_name(JAILER),
        };
        super::confinement::trusted_path(JAILER, &program).map(Some)
    }
}

/// Refuses a configuration that cannot be jailed here, before anything is started.
pub(super) fn check(firecracker: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let remedy = "run as root, or disable it: `jailer` in [vms], or COFFERDAM_VM_JAILER; the default \
                      isolation needs no root";
        return Err(VmError::JailerUnusable { why: "it needs root, and this user is not root".to_owned(), remedy });
    }
    if name(firecracker)?.to_str().is_some_and(|name| name.contains(PROGRAM)) {
        return Ok(());
    }
    let why = format!("it starts only programs with `{PROGRAM}` in their names, not {}", firecracker.display());
    Err(VmError::JailerUnusable { why, remedy: "rename the program, or disable the jailer" })
}

fn name(program: &Path) -> Result<&OsStr> {
    program.file_name().ok_or_else(|| broken("its path has no file name"))
}

/// Paths of a jail: in its own file system, and for its processes before the jailer has isolated them.
struct Layout {
    /// Relative to the root of the file system.
    below: PathBuf,
    root: PathBuf,
}

impl Layout {
    fn new(base: &Path, program: &Path, id: &InstanceId) -> Result<Self> {
        let below = Path::new(name(program)?).join(id.as_str()).join("root");
        Ok(Self { root: base.join(&below), below })
    }
}

/// Creates the file system of a VM's jail with the VM's files, and returns the jailer's command. Blocks its thread for
/// some milliseconds.
pub(super) fn confine(
    jailer: &Path,
    (base, id): (&Path, &InstanceId),
    program: &Path,
    all: Vec<VmFile>,
    vmm_limits: &VmmLimits,
) -> Result<Confined> {
    let user = user();
    let enclosure = Enclosure::make(vmm_limits, true);
    let (groups, limits) = (enclosure.entrances(), enclosure.limits.clone());
    // Removed when anything fails, or when the caller stops waiting.
    let running = Running::new(Remains { enclosure: Some(enclosure), ..Remains::default() });
    let failed = || io("set up a jail for", program);
    let layout = Layout::new(base, program, id)?;
    let tree = tree(program)?;
    for directory in layout.below.ancestors().collect::<Vec<_>>().into_iter().rev().skip(1) {
        mkdirat(&tree, directory, Mode::RWXU).map_err(|error| failed()(error.into()))?;
    }
    mkdirat(&tree, layout.below.join(FILES), Mode::RWXU).map_err(|error| failed()(error.into()))?;
    for VmFile { name, file, access } in &all {
        grant(file, *access, user).map_err(io("make accessible to the VMM", PathBuf::from(name)))?;
        let target = format!("{FILES}/{}", file.as_raw_fd());
        symlinkat(target, &tree, layout.below.join(name)).map_err(|error| failed()(error.into()))?;
    }
    let held_files = HeldFiles {
        tree: tree.try_clone().map_err(failed())?,
        at: text(base)?,
        shown: text(&layout.root.join(FILES))?,
        user,
        init: init(&tree).map_err(failed())?,
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
        // The jailer needs more calls than a VMM, and Firecracker has filters of its own.
        calls: Calls::Any,
        held_files: Some(held_files),
    };
    // Only root can create files between the tree's root and the jail's root.
    let outside = PathBuf::from(format!("/proc/self/fd/{}", tree.as_raw_fd())).join(&layout.below);
    let view = View { outside, tree: Some(Arc::new(tree)) };
    Ok(Confined { command, tie: Tie::Namespace, view, start, running })
}

/// Returns a user and a group that no host uses, for this VM alone. The jailer creates its own device node of KVM for
/// this user.
fn user() -> (u32, u32) {
    let user = users::unused_id();
    (user, user)
}

/// Creates the file system of a jail. It allows device nodes and executing programs.
fn tree(program: &Path) -> Result<OwnedFd> {
    let bytes = program.metadata().map_err(io("inspect", program))?.len().saturating_add(FURTHER);
    let (size, files) = (bytes.next_multiple_of(4096).to_string(), MAX_FILES.to_string());
    let options = [("size", &*size), ("nr_inodes", &*files), ("mode", "0700")];
    let options = options.map(|(key, value)| Ok::<_, VmError>((text(key.as_ref())?, text(value.as_ref())?)));
    let options = options.into_iter().collect::<Result<Vec<_>>>()?;
    let options: Vec<_> = options.iter().map(|(key, value)| (&**key, &**value)).collect();
    mount::new_filesystem(c"tmpfs", &options, attr::NOSUID).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => VmError::JailerUnusable {
            why: format!("this root user may not create a file system for a jail: {error}"),
            remedy: "run as root with all capabilities, or disable the jailer",
        },
        _ => io("create a file system for", program)(error),
    })
}

/// Creates the init's program, and opens it for execution.
fn init(tree: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let mut file = File::from(openat(tree, JAIL_INIT_NAME, flags, Mode::RWXU)?);
    file.write_all(JAIL_INIT)?;
    // A process whose program its user can read can be inspected by that user, which the init's descriptors require.
    file.set_permissions(Permissions::from_mode(0o555))?;
    Ok(openat(tree, JAIL_INIT_NAME, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn text(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| broken("a path contains a zero byte"))
}

/// Returns the limits that the jailer is to set: those that already apply to it. By default it would set limits of its
/// own, which may exceed the maximum.
fn allowed(limits: &[(Resource, u64)]) -> io::Result<Vec<String>> {
    let named = [("fsize", Resource::FILE_SIZE), ("no-file", Resource::OPEN_FILES)];
    let mut options = Vec::new();
    for (name, resource) in named {
        if let Some((_, max)) = limits.iter().find(|(found, _)| *found == resource) {
            options.push(format!("{name}={}", max.min(&process::hard_limit(resource)?)));
        }
    }
    Ok(options)
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
    // Cofferdam creates the control group, and the jailer is already in it. No network namespace is named: it has no
    // network.
    arguments.extend(["--new-pid-ns", "--", "--api-sock"].map(Into::into));
    arguments.push(format!("/{API_SOCKET}").into());
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jailer_arguments_are_complete() {
        let id = InstanceId::new("vm-1").unwrap();
        let (program, base) = (Path::new("/opt/firecracker"), Path::new("/srv/monitors"));
        let arguments = arguments(&id, program, base, (7, 8), &["fsize=9".to_owned(), "no-file=128".to_owned()]);
        assert_eq!(
            arguments.join(" ".as_ref()).to_str().unwrap(),
            "--id vm-1 --exec-file /opt/firecracker --uid 7 --gid 8 --chroot-base-dir /srv/monitors \
             --resource-limit fsize=9 --resource-limit no-file=128 --new-pid-ns -- --api-sock /api.sock"
        );
        let layout = Layout::new(base, program, &id).unwrap();
        assert_eq!(layout.root, Path::new("/srv/monitors/firecracker/vm-1/root"));
    }

    /// Promise (Virtual machines): `doctor` reports whether the configured jailer exists.
    #[test]
    fn a_jailer_is_found_or_missed_where_it_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let firecracker = temp.path().join("firecracker");
        assert_eq!(Jailer::Off.program(&firecracker).unwrap(), None);
        for jailer in [Jailer::Beside, Jailer::At(temp.path().join("other"))] {
            let error = jailer.program(&firecracker).unwrap_err().into_error("create");
            assert!(error.message().contains("jailer is not installed"), "{error}");
            assert!(error.remedy().is_some_and(|remedy| remedy.contains("COFFERDAM_VM_JAILER")), "{error:?}");
        }
        let beside = temp.path().canonicalize().unwrap().join(JAILER);
        std::fs::write(&beside, "").unwrap();
        assert_eq!(Jailer::Beside.program(&firecracker).unwrap(), Some(beside));
        // A relative path is not executed, since it depends on the current directory.
        assert!(Jailer::At(JAILER.into()).program(&firecracker).unwrap_err().to_string().contains("absolute path"));
    }

    /// Promise (Virtual machines): A jailer of another version, or without root, is refused.
    #[test]
    fn jailer_of_another_version_or_without_root_is_refused() {
        let root = rustix::process::geteuid().is_root();
        let refused = |program: &str| check(Path::new(program)).err().map(|error| error.into_error("create"));
        let [good, bad] = [refused("/opt/firecracker-v1.17"), refused("/opt/vmm")];
        assert_eq!(good.is_none(), root, "{good:?}");
        let says = if root { "names" } else { "needs root" };
        assert!(bad.is_some_and(|error| error.message().contains(says) && error.remedy().is_some()));
    }
}
