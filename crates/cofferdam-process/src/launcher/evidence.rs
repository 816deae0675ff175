//! Measurements from inside an isolated sandbox: settings are read back, and operations that must be refused are tried.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cofferdam_contract::MountAccess;
use cofferdam_linux::process::{self, Resource};
use cofferdam_linux::{caps, probe};
use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use super::template::LANDLOCK_PROBE;
use crate::protocol::{Create, Evidence, MountFrom, MountPlan, NAMESPACES, Probes};

/// Directories of a host whose contents no sandbox may see.
const FORBIDDEN: &[&str] =
    &["/root", "/home", "/var", "/boot", "/mnt", "/media", "/srv", "/sys", "/run", "/etc/shadow"];

/// The type of ext4 (`EXT4_SUPER_MAGIC`).
const EXT4: i64 = 0xef53;
/// The type of overlayfs (`OVERLAYFS_SUPER_MAGIC`).
const OVERLAYFS: i64 = 0x794c_7630;
/// The type of tmpfs (`TMPFS_MAGIC`).
const TMPFS: i64 = 0x0102_1994;
/// The size of a tmpfs is a multiple of at most this number of bytes.
const PAGE: u64 = 64 << 10;

/// Returns the identities of a process's namespaces, in the order of [`NAMESPACES`].
pub fn namespaces(dir: &str) -> io::Result<[u64; 7]> {
    let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut found = [0; 7];
    for (slot, name) in found.iter_mut().zip(NAMESPACES) {
        *slot = rustix::fs::statat(&dir, name, AtFlags::empty())?.st_ino;
    }
    Ok(found)
}

/// Measures the calling process, except what only earlier steps could find: its user id outside and its control group.
/// A setting that cannot be read counts as not enforced.
pub fn collect(watching: bool, own_root: bool, create: &Create) -> Evidence {
    let read_only = create.read_only;
    let sets = caps::read();
    // The same file system as /tmp, at whose path a mount may be.
    let disk = rustix::fs::statvfs("/dev/shm");
    let limit = |resource| process::limit_of(0, resource).unwrap_or(u64::MAX);
    Evidence {
        pid: std::process::id() as i32,
        ids: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        outside_uid: 0,
        capabilities: sets.map(|sets| [sets.effective, sets.permitted, sets.inheritable]).unwrap_or([u64::MAX; 3]),
        no_new_privileges: process::no_new_privileges(),
        seccomp: process::seccomp_filtered(),
        probes: create.probe.then(|| probe_isolation(own_root, &create.mounts)),
        // Nothing is written to a writable workspace, which may be the caller's own directory.
        workspace_read_only: read_only && refuses_writes("/workspace"),
        workspace_layered: rustix::fs::statfs("/workspace").is_ok_and(|found| found.f_type == OVERLAYFS),
        mounts: create.mounts.iter().filter(|mount| is_as_requested(mount)).count(),
        disk_bytes: disk.as_ref().map_or(0, |stat| stat.f_blocks * stat.f_frsize),
        disk_files: disk.as_ref().map_or(0, |stat| stat.f_files),
        process_limits: [
            limit(Resource::DATA),
            limit(Resource::TASKS),
            limit(Resource::CPU),
            limit(Resource::FILE_SIZE),
            limit(Resource::ADDRESS_SPACE),
        ],
        processors: process::processors(),
        watching,
        members: 0,
        group_base: (0, 0, 0),
        group_bounds: [None; 3],
    }
}

/// Returns true if a mount has the requested files, access and size.
fn is_as_requested(mount: &MountPlan) -> bool {
    let (Ok(system), Ok(stat), Ok(found)) =
        (rustix::fs::statfs(&mount.target), rustix::fs::statvfs(&mount.target), rustix::fs::lstat(&mount.target))
    else {
        return false;
    };
    let is_read_only = stat.f_flag.contains(StatVfsMountFlags::RDONLY);
    let is_restricted = stat.f_flag.contains(StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV);
    let files = match &mount.source {
        MountFrom::Host { access: MountAccess::CopyOnWrite, .. } => system.f_type == OVERLAYFS,
        MountFrom::Host { device, inode, .. } => (found.st_dev, found.st_ino) == (*device, *inode),
        MountFrom::Disk { .. } => system.f_type == EXT4,
        MountFrom::Tmpfs(size) => {
            let bytes = stat.f_blocks.saturating_mul(stat.f_frsize);
            system.f_type == TMPFS && bytes > 0 && bytes <= size.next_multiple_of(PAGE) && stat.f_files > 0
        }
    };
    files && is_restricted && is_read_only == mount.is_read_only()
}

fn probe_isolation(own_root: bool, mounts: &[MountPlan]) -> Probes {
    // The contents of another root are the choice of its author.
    let forbidden = if own_root { &[] } else { FORBIDDEN };
    // Mounts are measured on their own.
    let forbidden = forbidden.iter().filter(|path| !mounts.iter().any(|mount| mount.target == Path::new(path)));
    Probes {
        namespaces: namespaces("/proc/self/ns").unwrap_or_default(),
        calls_let_through: probe::forbidden_calls_let_through().map(str::to_owned).collect(),
        bounding: caps::bounding(),
        landlock_denies: opens(LANDLOCK_PROBE) == Err(Errno::ACCESS),
        root_read_only: refuses_writes("/") && refuses_writes("/usr") && refuses_writes("/etc"),
        paths_visible: forbidden.filter(|path| visible(path)).map(|path| (*path).to_owned()).collect(),
        interfaces: interfaces(),
    }
}

fn opens(path: &str) -> Result<(), Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

/// Returns true if the file system refuses a new file in the directory. Removes the file if it was created.
fn refuses_writes(dir: &str) -> bool {
    let path = format!("{dir}/.cofferdam-write-probe");
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(path.as_str(), flags, Mode::RUSR) {
        Ok(_) => {
            let _ = rustix::fs::unlinkat(rustix::fs::CWD, path.as_str(), AtFlags::empty());
            false
        }
        // A full file system is no protection.
        Err(error) => matches!(error, Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::NOENT),
    }
}

/// Returns true if a file of the host, or a directory with entries, is visible at the path. Parents of interpreters in
/// a home directory exist, but contain only the path to them.
fn visible(path: &str) -> bool {
    let Ok(meta) = Path::new(path).metadata() else { return false };
    if !meta.is_dir() {
        return true;
    }
    // All directories of the template itself are on the template's device.
    Path::new("/").metadata().is_ok_and(|root| root.dev() != meta.dev())
}

fn interfaces() -> u32 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo").count() as u32
}
