//! The Landlock rules of a VMM: the files that it may open by their names. These are its own program, libraries and
//! firmware, no user's files, and no information of the kernel about processes and devices.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_linux::landlock::{self, Ruleset, access};
use rustix::io::Errno;

use crate::error::{VmError, io as io_error};
use crate::kvm;
use crate::vmm::Accelerator;

/// Directories of libraries, which may be read and executed from.
const LIBRARIES: [&str; 5] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"];
/// Programs that a VMM which is a script may start besides itself, such as its interpreter.
const PROGRAMS: [&str; 2] = ["/bin", "/usr"];
/// Directories that are searched for a program without a path.
const SEARCHED: [&str; 2] = ["/bin", "/usr/bin"];
/// Readable files: the loader's cache, firmware of the distributions, random numbers, the list of processors.
const READ: [&str; 6] = [
    "/etc/ld.so.cache",
    "/usr/share/qemu",
    "/usr/share/seabios",
    "/usr/share/qboot",
    "/dev/urandom",
    "/sys/devices/system/cpu",
];
/// Writable devices.
const DEVICES: [&str; 1] = ["/dev/null"];

/// Files that a VMM opens in addition.
#[derive(Debug, Default)]
pub(crate) struct Opened<'a> {
    /// Files that it reopens through their descriptors, to read.
    pub read: &'a [&'a File],
    /// Files that it reopens through their descriptors, to read and write.
    pub written: &'a [&'a File],
    /// A directory in which it creates sockets, and nothing else.
    pub sockets: Option<&'a File>,
}

/// Returns the rules; fails if the kernel has no Landlock.
pub(crate) fn of(program: &Path, accelerator: Accelerator, opened: &Opened<'_>) -> io::Result<Ruleset> {
    let abi = landlock::abi();
    if abi == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let rules = Ruleset::new(abi)?;
    let allow = |path: &Path, rights: u64| match File::open(path) {
        Ok(file) => {
            // A file accepts only the rights that apply to files.
            let rights = if file.metadata()?.is_dir() { rights } else { rights & !access::READ_DIR };
            rules.allow(file.as_fd(), rights)
        }
        // A file that cannot be opened here cannot be opened by the VMM either.
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
    let device = (accelerator == Accelerator::Kvm).then_some(kvm::DEVICE);
    for path in DEVICES.into_iter().chain(device) {
        allow(path.as_ref(), access::READ_FILE | access::WRITE_FILE | access::IOCTL_DEV)?;
    }
    // A file in the host's memory is in no directory: the kernel has no rules for it, and reports that.
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

/// Returns the error for Landlock rules that could not be created.
pub(crate) fn error(program: &Path, error: std::io::Error) -> VmError {
    match error.kind() {
        std::io::ErrorKind::Unsupported => {
            VmError::MissingBoundary { boundary: "Landlock, which restricts its access to files" }
        }
        _ => io_error("confine", program)(error),
    }
}

/// Returns the directories that belong to a program with an installation prefix of its own, followed by the program.
fn around(program: &Path) -> Vec<PathBuf> {
    // The C library searches for a plain name in its own default directories, since no PATH is passed.
    let directories: &[&str] = if program.components().count() == 1 { &SEARCHED } else { &[""] };
    let mut found = directories.iter().filter_map(|directory| Path::new(directory).join(program).canonicalize().ok());
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
        let temp = tempfile::tempdir().unwrap();
        let program = temp.path().canonicalize().unwrap().join("qemu");
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
    fn vmm_reads_only_its_own_program_and_libraries() {
        use cofferdam_linux::child::{Start, start};

        let shell = Path::new("/bin/sh");
        let Ok(rules) = of(shell, Accelerator::Tcg, &Opened::default()) else {
            println!("SKIP vmm_reads_only_its_own_program_and_libraries: no Landlock here");
            return;
        };
        let open = ["/dev/urandom", "/etc/ld.so.cache"].map(|path| format!("true < {path} || exit 2"));
        let closed =
            ["/proc/version", "/proc/1/cmdline", "/proc/self/environ", "/sys/kernel/uevent_seqnum", "/etc/passwd"];
        let closed = closed.map(|path| format!("( : < {path} ) 2>&- && {{ echo {path}; exit 3; }}"));
        // A file that it may not read, it may not start either.
        let script = format!("{}; {}; /usr/bin/env 2>&- && exit 4; exit 0", open.join("; "), closed.join("; "));
        let mut command = std::process::Command::new(shell);
        command.args(["-c", &script]).env_clear();
        let status = start(command, Start { rules: Some(rules), ..Start::default() }).unwrap().wait().unwrap();
        assert!(status.success(), "{status}");
    }
}
