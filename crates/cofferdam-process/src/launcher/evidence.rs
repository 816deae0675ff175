//! Measurements from inside an isolated sandbox: settings are read back, and operations that must be refused are tried.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cofferdam_linux::process::{self, Resource};
use cofferdam_linux::{caps, probe};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::template::LANDLOCK_PROBE;
use crate::protocol::{Evidence, NAMESPACES, Probes};

/// Directories of a host whose contents no sandbox may see.
const FORBIDDEN: &[&str] =
    &["/root", "/home", "/var", "/boot", "/mnt", "/media", "/srv", "/sys", "/run", "/etc/shadow"];

/// The type of overlayfs (`OVERLAYFS_SUPER_MAGIC`).
const OVERLAYFS: i64 = 0x794c_7630;

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
pub fn collect(watching: bool, probe: bool, own_root: bool, read_only: bool) -> Evidence {
    let sets = caps::read();
    let disk = rustix::fs::statvfs("/tmp");
    let limit = |resource| process::limit_of(0, resource).unwrap_or(u64::MAX);
    Evidence {
        pid: std::process::id() as i32,
        ids: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
        outside_uid: 0,
        capabilities: sets.map(|sets| [sets.effective, sets.permitted, sets.inheritable]).unwrap_or([u64::MAX; 3]),
        no_new_privileges: process::no_new_privileges(),
        seccomp: process::seccomp_filtered(),
        probes: probe.then(|| probe_isolation(own_root)),
        // Nothing is written to a writable workspace, which may be the caller's own directory.
        workspace_read_only: read_only && refuses_writes("/workspace"),
        workspace_layered: rustix::fs::statfs("/workspace").is_ok_and(|found| found.f_type == OVERLAYFS),
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

fn probe_isolation(own_root: bool) -> Probes {
    // The contents of another root are the choice of its author.
    let forbidden = if own_root { &[] } else { FORBIDDEN };
    Probes {
        namespaces: namespaces("/proc/self/ns").unwrap_or_default(),
        calls_let_through: probe::forbidden_calls_let_through().map(str::to_owned).collect(),
        bounding: caps::bounding(),
        landlock_denies: opens(LANDLOCK_PROBE) == Err(Errno::ACCESS),
        root_read_only: refuses_writes("/") && refuses_writes("/usr") && refuses_writes("/etc"),
        paths_visible: forbidden.iter().filter(|path| visible(path)).map(|path| (*path).to_owned()).collect(),
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
