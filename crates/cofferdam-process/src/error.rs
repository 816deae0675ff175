//! Conversion of the crate's failures to errors of the contract.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use cofferdam_contract::{Error, ErrorKind, Retry};
use cofferdam_linux::named::UntrustedLink;

use crate::protocol::{Failure, NotStarted};

/// Returns an error if this process has no file descriptors left.
pub fn no_descriptors(any: &OwnedFd) -> Option<Error> {
    Some(without_descriptors("create", any.try_clone().err()?))
}

fn without_descriptors(operation: &'static str, error: io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "this process has no file descriptors left")
        .with_retry(Retry::MayHelp)
        .with_remedy("raise its limit (`ulimit -n`): each sandbox takes about a dozen")
        .with_source(error)
}

/// Returns an operating-system error during `operation`.
pub fn os(operation: &'static str, what: &str, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ETOOMANYREFS) => without_descriptors(operation, error),
        _ => Error::new(ErrorKind::Io, operation, what).with_source(error),
    }
}

/// Returns the error for a directory of the caller that cannot be opened. `what` is its role in a spec.
pub fn directory(what: &str, path: &Path, error: io::Error) -> Error {
    let failed = match UntrustedLink::of(&error) {
        Some(link) => Error::new(ErrorKind::PathEscape, "create", format!("cannot open the {what} directory: {link}"))
            .with_remedy(UntrustedLink::REMEDY),
        None if error.kind() == io::ErrorKind::NotADirectory => {
            Error::new(ErrorKind::InvalidInput, "create", format!("the {what} is not a directory"))
        }
        None => Error::new(ErrorKind::NotFound, "create", format!("the {what} directory cannot be opened")),
    };
    failed.with_context("path", path.display().to_string()).with_source(error)
}

/// Returns the error for a host path of a mount that cannot be opened.
pub fn mount(path: &Path, error: io::Error) -> Error {
    let failed = match UntrustedLink::of(&error) {
        Some(link) => {
            Error::new(ErrorKind::PathEscape, "create", format!("cannot open the host path of a mount: {link}"))
                .with_remedy(UntrustedLink::REMEDY)
        }
        None => Error::new(ErrorKind::NotFound, "create", "the host path of a mount cannot be opened"),
    };
    failed.with_context("path", path.display().to_string()).with_source(error)
}

/// Returns the error for a mount target that the sandbox cannot have, if the failure is about one.
fn mount_target(failure: &Failure) -> Option<Error> {
    let target = failure.step.contains("the mount target ");
    let (problem, remedy) = match failure.errno {
        libc::ENOENT | libc::EROFS => (
            "it lies in a directory that the sandbox cannot change, and does not exist there",
            "create it in that directory on the host, or use a target in a new directory such as /data",
        ),
        libc::ELOOP | libc::EXDEV => ("its path contains a symbolic link", "name the path that the link leads to"),
        libc::ENOTDIR => ("a directory can be mounted on a directory only", "use another target"),
        libc::EISDIR => ("a file can be mounted on a file only", "use another target, with the name of the file"),
        _ => return None,
    };
    target.then(|| {
        Error::invalid("create", format!("cannot {}: {problem}", failure.step))
            .with_remedy(remedy)
            .with_source(io::Error::from_raw_os_error(failure.errno))
    })
}

/// Returns the error for a launcher that cannot be set up.
pub fn launcher(failure: &Failure) -> Error {
    if let Some(error) = mount_target(failure) {
        return error;
    }
    let source = io::Error::from_raw_os_error(failure.errno);
    Error::new(ErrorKind::Unavailable, "create", format!("cannot {}", failure.step))
        .with_retry(Retry::Never)
        .with_remedy(remedy(failure))
        .with_source(source)
}

/// Returns the error for a sandbox that cannot be created.
pub fn create(failure: &Failure) -> Error {
    if let Some(error) = mount_target(failure) {
        return error;
    }
    let source = io::Error::from_raw_os_error(failure.errno);
    let kind = match failure.errno {
        libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ENOSPC | libc::EUSERS => {
            ErrorKind::ResourceExhausted
        }
        libc::ESTALE | libc::ENOENT | libc::ENOTDIR | libc::ELOOP
            if failure.step.contains("workspace") || failure.step.contains("host path") =>
        {
            ErrorKind::NotFound
        }
        // Callers may copy the directory instead.
        _ if failure.step.contains("copy-on-write workspace") => ErrorKind::Unsupported,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "create", format!("cannot {}", failure.step)).with_remedy(remedy(failure)).with_source(source)
}

/// Returns the error for sockets that cannot be created in a sandbox's network.
pub fn connect(failure: &Failure) -> Error {
    Error::new(ErrorKind::Unavailable, "connect", format!("cannot {}", failure.step))
        .with_source(io::Error::from_raw_os_error(failure.errno))
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns a remedy for a failed step, by the step and the settings of the host.
pub fn remedy(failure: &Failure) -> String {
    let is = |path: &str, value: &str| read(path).as_deref() == Some(value);
    let user_namespace = failure.step.contains("user namespace") || failure.step.contains("user id");
    let denied = matches!(failure.errno, libc::EPERM | libc::EACCES);
    if denied && is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        return "AppArmor gives no privileges in namespaces of ordinary users (Ubuntu 23.10 and later): install an \
                AppArmor profile that allows userns for this program (docs/hosts.md has one), run as root, or `sysctl \
                -w kernel.apparmor_restrict_unprivileged_userns=0`"
            .to_owned();
    }
    if failure.step.contains("not root's") {
        return "map more ids than root's into this user namespace (newuidmap), or start outside of it".to_owned();
    }
    if user_namespace && is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        return "ordinary users may not create user namespaces: `sysctl -w kernel.unprivileged_userns_clone=1`, or run \
                as root"
            .to_owned();
    }
    if user_namespace && (failure.errno == libc::ENOSPC || is("/proc/sys/user/max_user_namespaces", "0")) {
        return "the host allows no more user namespaces: `sysctl -w user.max_user_namespaces=15000`".to_owned();
    }
    if failure.errno == libc::ENOSYS {
        return "the kernel is too old: Linux 5.14 or newer is needed".to_owned();
    }
    if failure.step.contains("mount proc") && denied {
        return "parts of /proc are covered by mounts (a container without its own full /proc): run the container with \
                `--security-opt systempaths=unconfined` (Docker), or run outside of it"
            .to_owned();
    }
    if failure.step.contains("idmapped") {
        return "use a directory on ext4, xfs or btrfs (on tmpfs from Linux 6.3 on), or run as the directory's owner \
                instead of root"
            .to_owned();
    }
    if denied {
        return "run as root, or in a container with user namespaces and seccomp=unconfined; `cofferdam doctor` reports \
                more"
            .to_owned();
    }
    "`cofferdam doctor` reports what this host lacks".to_owned()
}

/// Returns the error for a program that could not be started.
pub fn not_started(reason: NotStarted, errno: i32, program: &str, directory: &str) -> Error {
    let program = program.escape_debug().to_string();
    let source = io::Error::from_raw_os_error(errno);
    match (reason, errno) {
        (NotStarted::Execute, libc::ENOENT) => {
            Error::new(ErrorKind::NotFound, "start", format!("'{program}' was not found in the sandbox"))
                .with_remedy("only the sandbox's own file system counts: see --root, --workspace and the PATH inside")
        }
        (NotStarted::Execute, _) => {
            Error::new(ErrorKind::NotExecutable, "start", format!("'{program}' cannot be executed")).with_source(source)
        }
        (NotStarted::Directory, _) => Error::new(
            ErrorKind::InvalidInput,
            "start",
            format!("cannot enter the working directory '{}'", directory.escape_debug()),
        )
        .with_source(source),
        (NotStarted::Fork, _) => {
            Error::new(ErrorKind::ResourceExhausted, "start", "no further process may be created in the sandbox")
                .with_remedy("end a process, or raise the limit with --pids")
                .with_source(source)
        }
        (NotStarted::Unexpected, _) => {
            Error::new(ErrorKind::Internal, "start", "the sandbox's measurements are not as expected")
        }
        (NotStarted::Prepare, _) => {
            Error::new(ErrorKind::Io, "start", "cannot prepare the program's descriptors").with_source(source)
        }
    }
}
