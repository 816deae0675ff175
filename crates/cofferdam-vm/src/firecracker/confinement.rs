//! The directory of a VM, and the isolation of its Firecracker, which has access to the VM's files and to nothing else
//! of the host.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_contract::Access;
use cofferdam_linux::child::{Calls, Pages, Seclusion, Start};
use cofferdam_linux::trust::{self, Secrecy};
use cofferdam_util::private;
use rustix::fs::{Gid, Uid, fchown};

use super::ids::InstanceId;
use super::owner::Owner;
use super::process::{API_SOCKET, Confined, Remains, Running, Tie, View};
use crate::bounds::{Enclosure, VmmLimits};
use crate::error::{Result, VmError, io};
use crate::rules::{self, Opened};
use crate::users;
use crate::vmm::Accelerator;

/// A file that Firecracker gets under a name in its directory.
#[derive(Debug)]
pub(super) struct VmFile {
    pub name: String,
    pub file: File,
    pub access: Access,
}

impl VmFile {
    pub(super) fn new(name: impl Into<String>, file: File, access: Access) -> Self {
        Self { name: name.into(), file, access }
    }
}

/// Creates the base directory, removes the directories of dead owners in it, and returns a new name.
pub(super) fn prepare_base(base: &Path) -> Result<InstanceId> {
    private::create_directory(base).map_err(io("create", base))?;
    let found = fs::symlink_metadata(base).map_err(io("inspect", base))?;
    let reason = if found.is_dir() { private::exposure(&found) } else { Some("it is not a directory") };
    if let Some(reason) = reason {
        return Err(VmError::ExposedDirectory { path: base.to_owned(), reason });
    }
    let here = Owner::this().map_err(io("name a directory in", base))?;
    for entry in fs::read_dir(base).map_err(io("list", base))? {
        let name = entry.map_err(io("list", base))?.file_name();
        if name.to_str().and_then(Owner::of).is_some_and(|owner| owner.is_dead(&here)) {
            let remains = Remains { directory: Some(base.join(&name)), ..Remains::default() };
            // Another process may be removing it as well; the next sweep finds the rest.
            let _ = remains.remove();
        }
    }
    Ok(here.name()?)
}

/// Creates the directory of a VM with its files, and the isolation. Blocks its thread for some milliseconds.
pub(super) fn confine(
    base: &Path,
    id: &InstanceId,
    program: &Path,
    all: Vec<VmFile>,
    vmm_limits: &VmmLimits,
) -> Result<Confined> {
    let directory = base.join(id.as_str());
    DirBuilder::new().mode(0o700).create(&directory).map_err(io("create", &directory))?;
    let user = users::user(Accelerator::Kvm);
    let enclosure = Enclosure::make(vmm_limits, user.is_some());
    let (groups, limits) = (enclosure.entrances(), enclosure.limits.clone());
    let directory_left = Some(directory.clone());
    let remains = Remains { directory: directory_left, enclosure: Some(enclosure) };
    // Removed when anything fails, or when the caller stops waiting.
    let running = Running::new(remains);
    let failed = || io("set up", &directory);
    for VmFile { name, file, access } in &all {
        if let Some(user) = user {
            grant(file, *access, user).map_err(io("make accessible to the VMM", PathBuf::from(name)))?;
        }
        symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), directory.join(name)).map_err(failed())?;
    }
    let opened_directory = File::open(&directory).map_err(failed())?;
    if let Some((uid, gid)) = user {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        fchown(&opened_directory, uid, gid).map_err(|error| failed()(error.into()))?;
    }
    let with = |wanted| all.iter().filter(move |shown| shown.access == wanted).map(|shown| &shown.file);
    let (read, written): (Vec<&File>, Vec<&File>) =
        (with(Access::ReadOnly).collect(), with(Access::ReadWrite).collect());
    let opened = Opened { read: &read, written: &written, sockets: Some(&opened_directory) };
    let rules = rules::of(program, Accelerator::Kvm, &opened).map_err(|error| rules::error(program, error))?;
    let start = Start {
        keep: all.into_iter().map(|shown| OwnedFd::from(shown.file)).collect(),
        user,
        rules: Some(rules),
        seclusion: Seclusion::Apart,
        groups: groups.map_err(failed())?,
        limits,
        pages: Pages::Small,
        // Firecracker has filters of its own, one for each of its threads.
        calls: Calls::Any,
        held_files: None,
    };
    let mut command = Command::new(program);
    command.args(["--api-sock", API_SOCKET, "--id", id.as_str()]).current_dir(&directory);
    let view = View { outside: directory, tree: None };
    Ok(Confined { command, tie: Tie::Own, view, start, running })
}

/// Prevents the creation of further files in a VM's directory, once its Firecracker has created the two sockets that it
/// needs: it could otherwise use up the inodes of the host's file system. Must be called before any code of a guest
/// runs.
pub(super) fn close(directory: &Path) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        rustix::fs::chown(directory, Some(Uid::ROOT), Some(Gid::ROOT))?;
        return fs::set_permissions(directory, Permissions::from_mode(0o711));
    }
    // The owner could undo that with a system call that Firecracker's own filter denies.
    fs::set_permissions(directory, Permissions::from_mode(0o500))
}

/// Lets a user reopen a file: a writable file belongs to this VM alone, and its ownership passes to the user; a shared
/// file keeps its owner.
pub(super) fn grant(file: &File, access: Access, (uid, gid): (u32, u32)) -> io::Result<()> {
    let about = file.metadata()?;
    if access == Access::ReadWrite {
        return Ok(fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?);
    }
    if about.mode() & 0o004 == 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is not readable for other users than its owner",
        ));
    }
    Ok(())
}

/// Returns the absolute path of a program that only root and this user can change.
pub(super) fn trusted_path(tool: &'static str, program: &Path) -> Result<PathBuf> {
    let path = program.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => VmError::MissingTool { tool },
        _ => io("find", program)(error),
    })?;
    trust::check(program, Secrecy::Public)?;
    Ok(path)
}
