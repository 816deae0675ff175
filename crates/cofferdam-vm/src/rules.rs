//! Which files a monitor may open by their names: its own program, libraries and firmware. Nothing of any user's, and
//! nothing that the kernel says of processes and devices.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_linux::landlock::{self, Ruleset, access};
use rustix::io::Errno;

use crate::qemu::KVM;
use crate::vmm::Accelerator;

/// Libraries, which may be read and executed from.
const LIBRARIES: [&str; 5] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"];
/// What a monitor that is a script may start besides: its interpreter, and the monitor itself.
const PROGRAMS: [&str; 2] = ["/bin", "/usr"];
/// Where a program without a path is started from.
const SEARCHED: [&str; 2] = ["/bin", "/usr/bin"];
/// What may be read: the loader's list, firmware where distributions put it, random numbers, which processors there are.
const READ: [&str; 6] = [
    "/etc/ld.so.cache",
    "/usr/share/qemu",
    "/usr/share/seabios",
    "/usr/share/qboot",
    "/dev/urandom",
    "/sys/devices/system/cpu",
];
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
    let parts = around(program);
    let programs: &[&str] = if parts.last().is_some_and(|program| is_script(program)) { &PROGRAMS } else { &[] };
    for path in LIBRARIES.iter().chain(programs).map(PathBuf::from).chain(parts) {
        allow(&path, access::READ | access::EXECUTE)?;
    }
    for path in READ {
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

/// Where a program that was installed by itself has its parts, and at last the program.
fn around(program: &Path) -> Vec<PathBuf> {
    // A plain name is looked for by the C library, which has no list of places from us but its own.
    let places: &[&str] = if program.components().count() == 1 { &SEARCHED } else { &[""] };
    let mut found = places.iter().filter_map(|place| Path::new(place).join(program).canonicalize().ok());
    let Some(program) = found.next() else { return Vec::new() };
    let above = program.parent().and_then(Path::parent).map(Path::to_owned);
    let parts = above.into_iter().flat_map(|above| ["share/qemu", "lib"].map(|name| above.join(name)));
    let parts: Vec<PathBuf> = parts.collect();
    parts.into_iter().chain([program]).collect()
}

fn is_script(program: &Path) -> bool {
    let mut start = [0; 2];
    File::open(program).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!"
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
        let shell = Path::new("/bin/sh").canonicalize().unwrap();
        assert!(around(Path::new("sh")).contains(&shell), "by its name alone");
    }

    #[test]
    fn a_monitor_reads_its_own_parts_and_nothing_that_the_host_says() {
        use cofferdam_linux::child::{Start, start};

        let shell = Path::new("/bin/sh");
        let Ok(rules) = of(shell, Accelerator::Tcg, &Opened::default()) else {
            println!("SKIP a_monitor_reads_its_own_parts_and_nothing_that_the_host_says: no Landlock here");
            return;
        };
        let open = ["/dev/urandom", "/etc/ld.so.cache"].map(|path| format!("true < {path} || exit 2"));
        let closed =
            ["/proc/version", "/proc/1/cmdline", "/proc/self/environ", "/sys/kernel/uevent_seqnum", "/etc/passwd"];
        let closed = closed.map(|path| format!("( : < {path} ) 2>&- && {{ echo {path}; exit 3; }}"));
        // What it may not read, it may not start.
        let script = format!("{}; {}; /usr/bin/env 2>&- && exit 4; exit 0", open.join("; "), closed.join("; "));
        let mut command = std::process::Command::new(shell);
        command.args(["-c", &script]).env_clear();
        let status = start(command, Start { rules: Some(rules), ..Start::default() }).unwrap().wait().unwrap();
        assert!(status.success(), "{status}");
    }
}
