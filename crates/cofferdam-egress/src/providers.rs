//! Sources of secret values on the host. Errors describe the source, never a value.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cofferdam_contract::{Error, ErrorKind, Result};
use linux_keyutils::{KeyRing, KeyRingIdentifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use zeroize::Zeroizing;

/// The length of a value, in bytes.
pub const MIN_VALUE: usize = 8;
pub const MAX_VALUE: usize = 64 << 10;
/// Time for a command to end.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which the end of a command is polled, after the end of its output.
const EXIT_INTERVAL: Duration = Duration::from_millis(5);
const SYNTAX: &str =
    "use env:NAME, file:PATH, command:PROGRAM ARGUMENTS, keyring:SERVICE/USER or credential:NAME as the source";

/// The bytes of a secret, which are zeroed on drop.
pub type Value = Zeroizing<Vec<u8>>;

/// Reads a value from its source. Blocks its thread, for a command up to 10 seconds.
pub fn read(from: &str) -> Result<Value> {
    let Some((kind, source)) = from.split_once(':') else {
        return Err(Error::invalid("create", "the source of a secret has no kind").with_remedy(SYNTAX));
    };
    match kind {
        _ if source.is_empty() => Err(Error::invalid("create", "the source of a secret is empty").with_remedy(SYNTAX)),
        "env" => env(source),
        "file" => file(Path::new(source)),
        "command" => command(source, COMMAND_TIMEOUT),
        "keyring" => keyring(source),
        "credential" => credential(source, std::env::var_os("CREDENTIALS_DIRECTORY")),
        _ => Err(Error::invalid("create", "the source of a secret has an unknown kind").with_remedy(SYNTAX)),
    }
}

fn env(name: &str) -> Result<Value> {
    match std::env::var_os(name) {
        Some(value) => Ok(Zeroizing::new(value.into_vec())),
        None => Err(Error::new(ErrorKind::InvalidInput, "create", "the environment variable of a secret is not set")
            .with_context("variable", name)
            .with_remedy("set it where cofferdam is started")),
    }
}

/// Reads a file, without the line end at its end.
fn file(path: &Path) -> Result<Value> {
    let shown = || path.display().to_string();
    let failed = |error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::InvalidInput,
            _ => ErrorKind::Io,
        };
        Error::new(kind, "create", format!("cannot read the file of a secret: {error}"))
            .with_context("path", shown())
            .with_remedy("check the path and its permissions")
    };
    let refused = |what: &str, remedy: &str| {
        Err(Error::invalid("create", format!("the file of a secret {what}"))
            .with_context("path", shown())
            .with_remedy(remedy))
    };
    // Without the flag, a named pipe would block.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return refused("is not a regular file", "name a regular file");
    }
    if meta.mode() & 0o022 != 0 {
        return refused("can be changed by other users", "run `chmod go-w` on it");
    }
    if ![0, rustix::process::geteuid().as_raw()].contains(&meta.uid()) {
        return refused("belongs to another user", "use a file of your own");
    }
    let mut value = read_bounded(&mut file).map_err(failed)?;
    strip_line_end(&mut value);
    Ok(value)
}

/// Runs a program and returns its output, without the line end at its end. No shell is involved.
fn command(line: &str, limit: Duration) -> Result<Value> {
    let mut words = line.split_ascii_whitespace();
    let Some(program) = words.next() else {
        return Err(Error::invalid("create", "the command of a secret has no program").with_remedy(SYNTAX));
    };
    let failed = |what: String| {
        // Arguments are not shown: they can contain secrets themselves.
        Error::new(ErrorKind::Unavailable, "create", format!("the command of a secret {what}"))
            .with_context("program", program)
            .with_remedy("run the command by hand: it must print the value and exit with status 0 within 10 seconds")
    };
    let mut starting = Command::new(program);
    starting.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let child = starting.spawn().map_err(|error| failed(format!("cannot be started: {error}")))?;
    let mut running = Running { child: Some(child) };
    let (mut value, status) = running.finish(Instant::now() + limit).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => failed(format!("did not end within {limit:?}")),
        _ => failed(format!("failed: {error}")),
    })?;
    if value.len() > MAX_VALUE {
        return Err(failed(format!("printed more than {} KiB", MAX_VALUE >> 10)));
    }
    if !status.success() {
        return Err(failed(format!("failed with {status}")));
    }
    strip_line_end(&mut value);
    Ok(value)
}

/// A command in its own process group, which is killed on drop if the command did not end by itself.
struct Running {
    child: Option<Child>,
}

impl Running {
    /// Reads the output and waits until the command ends.
    fn finish(&mut self, deadline: Instant) -> io::Result<(Value, ExitStatus)> {
        let Some(child) = &mut self.child else { return Err(io::ErrorKind::NotFound.into()) };
        let Some(output) = child.stdout.take() else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let value = read_bounded(&mut Timed { output: output.into(), deadline })?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(EXIT_INTERVAL);
        };
        self.child = None;
        Ok((value, status))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        // The command was not reaped, so the number of the group is still its own.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
    }
}

/// The output of a command, which must end before a deadline.
struct Timed {
    output: OwnedFd,
    deadline: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let ready = poll(&mut [PollFd::from_borrowed_fd(self.output.as_fd(), PollFlags::IN)], Some(&left))?;
        if ready == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(rustix::io::read(&self.output, buffer)?)
    }
}

/// Reads a key of the kernel's keyrings, under the name that the `keyring` libraries use.
fn keyring(source: &str) -> Result<Value> {
    let Some((service, user)) = source.split_once('/') else {
        return Err(Error::invalid("create", "the keyring source of a secret has no user")
            .with_remedy("use keyring:SERVICE/USER as the source"));
    };
    let description = format!("keyring:{user}@{service}");
    let search = |ring: KeyRing| ring.search(&description).ok();
    let special = |id| KeyRing::from_special_id(id, false).ok();
    let key = special(KeyRingIdentifier::Session)
        .and_then(search)
        .or_else(|| special(KeyRingIdentifier::User).and_then(search))
        // The persistent keyring is linked to a keyring of this thread alone, as a program could inherit any other.
        .or_else(|| KeyRing::get_persistent(KeyRingIdentifier::Thread).ok().and_then(search));
    let missing = |what: &str| {
        Error::new(ErrorKind::InvalidInput, "create", format!("the key of a secret {what}"))
            .with_context("key", description.clone())
            .with_remedy(format!("add it with `keyctl padd user '{description}' @u`"))
    };
    let key = key.ok_or_else(|| missing("is not in the kernel's keyrings of this user"))?;
    let mut value = Zeroizing::new(vec![0; MAX_VALUE]);
    let length = key.read(&mut *value).map_err(|_| missing("cannot be read"))?;
    value.truncate(length);
    Ok(value)
}

/// Reads a credential that systemd gave this service, in its directory of credentials.
fn credential(name: &str, directory: Option<OsString>) -> Result<Value> {
    if name.contains('/') || matches!(name, "." | "..") {
        return Err(Error::invalid("create", "the credential of a secret has an invalid name")
            .with_remedy("use the name without slashes that the unit has in LoadCredential="));
    }
    match directory {
        Some(directory) => file(&Path::new(&directory).join(name)),
        None => Err(Error::new(ErrorKind::InvalidInput, "create", "there is no credential of systemd for a secret")
            .with_context("credential", name)
            .with_remedy("start cofferdam in a unit with LoadCredential=")),
    }
}

/// Reads to the end, but at most one byte more than a value can have. Leaves no copy behind.
fn read_bounded(source: &mut impl Read) -> io::Result<Value> {
    let mut value = Zeroizing::new(vec![0; MAX_VALUE + 1]);
    let mut length = 0;
    while length < value.len() {
        match source.read(&mut value[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    value.truncate(length);
    Ok(value)
}

fn strip_line_end(value: &mut Value) {
    if value.ends_with(b"\n") {
        value.pop();
        if value.ends_with(b"\r") {
            value.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_read_if_no_other_user_can_change_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "a-value-of-a-file\r\n").unwrap();
        let set_mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let read = || read(&format!("file:{}", path.display()));
        for mode in [0o600, 0o444] {
            set_mode(mode);
            assert_eq!(read().unwrap().as_slice(), b"a-value-of-a-file");
        }
        for mode in [0o620, 0o602] {
            set_mode(mode);
            let error = read().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(!format!("{error} {error:?}").contains("a-value-of-a-file"));
        }
        set_mode(0o600);
        std::fs::write(&path, vec![b'x'; 2 * MAX_VALUE]).unwrap();
        assert_eq!(read().unwrap().len(), MAX_VALUE + 1);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read().unwrap_err().kind(), ErrorKind::InvalidInput);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(read().unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn commands_are_run_without_a_shell() {
        let read = |line: &str| command(line, COMMAND_TIMEOUT);
        assert_eq!(read("echo  a value; $HOME").unwrap().as_slice(), b"a value; $HOME");
        assert!(read("yes").unwrap_err().message().contains("more than 64 KiB"));
        for line in ["false", "cofferdam-no-such-program", "sh -c exit"] {
            let result = read(line).map(|value| value.len());
            assert_eq!(result.is_ok(), line == "sh -c exit", "{line} {result:?}");
        }
    }

    /// Promise (Network): The command of a secret that does not end is killed with its children.
    #[test]
    fn a_command_that_does_not_end_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        let pid = directory.path().join("pid");
        // The child has closed its output: only the group connects it with the command.
        let text = format!("sleep 600 >&- & echo $! > {}; echo a-partial-value; wait\n", pid.display());
        std::fs::write(&script, text).unwrap();
        let error = command(&format!("sh {}", script.display()), Duration::from_secs(1)).unwrap_err();
        assert!(error.message().contains("did not end"), "{error}");
        assert!(!format!("{error} {error:?}").contains("a-partial-value"));
        let child: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        let is_gone = || match std::fs::read_to_string(format!("/proc/{child}/stat")) {
            // A zombie waits for the init of this container.
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_gone() {
            assert!(Instant::now() < deadline, "the child of the command lives");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn keys_of_the_kernel_are_read() {
        let Ok(ring) = KeyRing::from_special_id(KeyRingIdentifier::User, false) else {
            return eprintln!("skipped: this host gives its programs no keyrings");
        };
        let name = format!("keyring:user@cofferdam-test-{}", std::process::id());
        let key = ring.add_key(&name, b"a-value-of-a-key").expect("a key can be added");
        let value = read(&format!("keyring:cofferdam-test-{}/user", std::process::id()));
        ring.unlink_key(key).expect("the key can be removed");
        assert_eq!(value.unwrap().as_slice(), b"a-value-of-a-key");
        assert_eq!(read("keyring:cofferdam-no-such-key/user").unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn credentials_of_systemd_are_read_from_their_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.token");
        std::fs::write(&path, "a-value-of-a-credential\n").unwrap();
        // The mode that systemd sets.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        let read = |name: &str| credential(name, Some(directory.path().into()));
        assert_eq!(read("api.token").unwrap().as_slice(), b"a-value-of-a-credential");
        for refused in [read("other"), read("../api.token"), read("."), credential("api.token", None)] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(!format!("{error} {error:?}").contains("a-value-of-a-credential"));
        }
    }

    #[test]
    fn invalid_sources_are_refused() {
        for from in ["", "env", "env:", "vault:x", "keyring:service", "credential:../x", "credential:.."] {
            assert_eq!(read(from).unwrap_err().kind(), ErrorKind::InvalidInput, "{from}");
        }
        assert_eq!(read("env:COFFERDAM_NO_SUCH_VARIABLE").unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
