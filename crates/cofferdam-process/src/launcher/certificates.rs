//! The certificates of a sandbox whose TLS is intercepted, in place of those of its root. The owner writes the files.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use cofferdam_linux::mount::{self, Depth, attr};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Named, Step};

/// The files in the directory of scripts, and the places where programs look for such a file: on Debian, Alpine and Arch
/// Linux, on Fedora, and on SUSE.
const FILES: [(&str, &[&CStr]); 2] = [
    (
        "ca-certificates.crt",
        &[
            c"/etc/ssl/certs/ca-certificates.crt",
            c"/etc/ssl/cert.pem",
            c"/etc/pki/tls/certs/ca-bundle.crt",
            c"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
            c"/etc/ssl/ca-bundle.pem",
        ],
    ),
    ("ca-certificates.jks", &[c"/etc/ssl/certs/java/cacerts"]),
];

/// Creates the files, empty, and mounts them over those that the root has.
pub fn cover(code: &OwnedFd) -> Step<()> {
    let proc = rustix::fs::stat("/proc").step("inspect /proc")?.st_dev;
    for (name, paths) in FILES {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(code, name, flags, Mode::from_raw_mode(0o644)).step("create a file of certificates")?;
        for target in paths {
            // Links lead to places in the sandbox's own root.
            let opened = match rustix::fs::open(*target, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => continue,
                other => other.step("open the certificates of the root")?,
            };
            let stat = rustix::fs::fstat(&opened).step("inspect the certificates of the root")?;
            // A root of others could lead to a file that shows how the sandbox is isolated.
            if !FileType::from_raw_mode(stat.st_mode).is_file() || stat.st_dev == proc {
                continue;
            }
            let path = CString::new(format!("/code/{name}")).step("name a file of certificates")?;
            let tree = mount::clone_tree(mount::cwd(), &path, Depth::Single).step("copy a file of certificates")?;
            let attributes = attr::RDONLY | attr::NOSUID | attr::NODEV | attr::NOEXEC;
            mount::add_attributes(tree.as_fd(), Depth::Single, attributes).step("restrict a file of certificates")?;
            mount::attach_onto(tree.as_fd(), opened.as_fd()).step("cover the certificates of the root")?;
        }
    }
    Ok(())
}

#[cfg(all(test, feature = "net"))]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_those_that_the_owner_writes() {
        assert_eq!(FILES.map(|(name, _)| name), cofferdam_egress::FILES);
    }
}
