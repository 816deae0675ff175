//! Which files a monitor may open by their names: its own program and libraries, and what the kernel says. Nothing of any
//! user's.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_linux::landlock::{self, Ruleset, access};
use rustix::io::Errno;

use crate::qemu::KVM;
use crate::vmm::Accelerator;

/// Places that may be read, and executed from.
const PROGRAMS: [&str; 5] = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"];
/// What the kernel says.
const KERNELS: [&str; 3] = ["/proc", "/sys", "/dev/urandom"];
/// Devices that may be written to.
const DEVICES: [&str; 1] = ["/dev/null"];

/// What a monitor opens besides that.
#[derive(Debug, Default)]
pub(crate) struct Opened<'a> {
    /// Files that it opens once more by their descriptors, to read.
    pub read: &'a [&'a File],
    /// The same, to read and write.
    pub written: &'a [&'a File],
    /// A directory in which it makes sockets, and nothing else.
    pub sockets: Option<&'a File>,
}

/// The rules; fails where the kernel has none.
pub(crate) fn of(program: &Path, accelerator: Accelerator, opened: &Opened<'_>) -> io::Result<Ruleset> {
    let abi = landlock::abi();
    if abi == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let rules = Ruleset::new(abi)?;
    let allow = |path: &Path, rights: u64| match File::open(path) {
        Ok(place) => {
            // Of a file's rights, only those that files have.
            let rights = if place.metadata()?.is_dir() { rights } else { rights & !access::READ_DIR };
            rules.allow(place.as_fd(), rights)
        }
        // What cannot be opened here cannot be opened there.
        Err(_) => Ok(()),
    };
    for path in PROGRAMS.iter().map(PathBuf::from).chain(around(program)) {
        allow(&path, access::READ | access::EXECUTE)?;
    }
    for path in KERNELS {
        allow(path.as_ref(), access::READ)?;
    }
    let kvm = (accelerator == Accelerator::Kvm).then_some(KVM);
    for path in DEVICES.into_iter().chain(kvm) {
        allow(path.as_ref(), access::READ_FILE | access::WRITE_FILE | access::IOCTL_DEV)?;
    }
    // A file of the host's memory stands in no directory: the kernel has no rules about it, and says so.
    let allow_open = |file: &File, rights: u64| match rules.allow(file.as_fd(), rights) {
        Err(error) if error.raw_os_error() == Some(Errno::BADFD.raw_os_error()) => Ok(()),
        other => other,
    };
    for file in opened.read {
        allow_open(file, access::READ_FILE)?;
    }
    for file in opened.written {
        allow_open(file, access::READ_FILE | access::WRITE_FILE | access::TRUNCATE)?;
    }
    if let Some(directory) = opened.sockets {
        rules.allow(directory.as_fd(), access::MAKE_SOCK)?;
    }
    Ok(rules)
}

/// A program, and where one that was installed by itself has its parts.
fn around(program: &Path) -> Vec<PathBuf> {
    let Ok(program) = program.canonicalize() else { return Vec::new() };
    let above = program.parent().and_then(Path::parent).map(Path::to_owned);
    let parts = above.into_iter().flat_map(|above| ["share/qemu", "lib"].map(|name| above.join(name)));
    let parts: Vec<PathBuf> = parts.collect();
    parts.into_iter().chain([program]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_directory_of_a_user_is_among_them() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().canonicalize().unwrap().join("qemu");
        std::fs::write(&program, "").unwrap();
        let all = around(&program);
        assert!(
            all.contains(&program) && !all.iter().any(|path| program.starts_with(path) && *path != program),
            "{all:?}"
        );
        assert!(around(Path::new("/no/such/program")).is_empty());
    }
}
