//! A Firecracker process: start, readiness, end, and removal of its files.
//!
//! ```text
//! started --socket answers, version and name match--> ready --end--> killed, reaped, files removed
//!    '--exits, no answer, other version-----> killed        '--drop, this process dies--> killed
//! ```
//!
//! It dies with this process in any case. The next start removes its files then.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use cofferdam_linux::child::{self, Start};
use cofferdam_linux::process;
use cofferdam_util::text::excerpt;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::bounds::Enclosure;
use crate::error::VmError;

use super::client::{Client, Deadlines};
use super::console::Console;
use super::ids::InstanceId;
use super::socket;
use super::version::{OLDEST, Version};

/// The socket of the API in the process's directory.
pub(super) const API_SOCKET: &str = "api.sock";
/// Time for a killed process to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to read the remaining output of an ended process.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Remedy for a root user without the necessary capabilities.
const JAILER_REMEDY: &str = "run as root with the capabilities that the jailer needs (to mount, to create \
     namespaces and device nodes), or disable it: `jailer` in [vms], or COFFERDAM_VM_JAILER";
/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The parameters for starting Firecracker.
#[derive(Debug)]
pub(super) struct Launch {
    /// Absolute path of the program, for errors.
    pub(super) program: PathBuf,
    /// Time until it answers.
    pub(super) ready: Duration,
    /// Deadlines of its client.
    pub(super) deadlines: Deadlines,
}

impl Launch {
    /// Starts it in an existing directory, which becomes its own, with the prepared isolation. Relative paths in
    /// requests start in that directory.
    pub(super) async fn start(&self, confined: Confined, id: &InstanceId) -> Result<Firecracker> {
        let Confined { mut command, tie, view, start, running } = confined;
        let (console, writer) = Console::new().map_err(|error| os("create a pipe", &view.outside, error))?;
        let second = writer.try_clone().map_err(|error| os("create a pipe", &view.outside, error))?;
        command.env_clear().stdin(Stdio::null()).stdout(writer).stderr(second);
        let program = self.program.clone();
        let running = tokio::task::spawn_blocking(move || running.start(command, tie, start));
        let running = running.await.map_err(|error| internal(&error.to_string()))?;
        let running = running.map_err(|error| not_started(&program, tie, error))?;
        let client = Client::new(view.outside.join(API_SOCKET), self.deadlines).holding(view.tree.clone());
        let mut process = Firecracker { client, view, running, console, version: OLDEST };
        match process.become_ready(id, self.ready).await {
            Ok(version) => {
                process.version = version;
                Ok(process)
            }
            Err(error) => {
                // The sweep removes what cannot be removed now.
                let _ = process.end().await;
                Err(error)
            }
        }
    }
}

/// Returns the error for a program that could not be started.
fn not_started(program: &Path, tie: Tie, error: io::Error) -> Error {
    if child::lacks_namespaces(&error) {
        let boundary = "namespaces of its own, which isolate it from the network";
        return VmError::MissingBoundary { boundary }.into_error("create");
    }
    match (error.kind(), tie) {
        (io::ErrorKind::PermissionDenied, Tie::Own) => {
            VmError::NotExecutable { program: program.to_owned(), source: error }.into_error("create")
        }
        (io::ErrorKind::PermissionDenied, Tie::Namespace) => {
            let why = format!("this user lacks the necessary capabilities: {error}");
            VmError::JailerUnusable { why, remedy: JAILER_REMEDY }.into_error("create")
        }
        _ => os("start Firecracker", program, error),
    }
}

/// The mechanism that ties its life to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tie {
    /// The process itself.
    Own,
    /// A PID namespace around it, because the jailer changes its user.
    Namespace,
}

/// Its directory, from the view of this process.
#[derive(Debug)]
pub(super) struct View {
    pub outside: PathBuf,
    /// The mount that `outside` starts at, if that has no path on the host.
    pub tree: Tree,
}

/// A detached mount, which exists as long as a process has it open.
pub(super) type Tree = Option<Arc<OwnedFd>>;

/// The resources to remove when the process is gone.
#[derive(Debug, Default)]
pub(super) struct Remains {
    pub directory: Option<PathBuf>,
    /// The resource bounds of the process.
    pub enclosure: Option<Enclosure>,
}

impl Remains {
    /// Removes everything.
    pub(super) fn remove(&self) -> io::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        // The directory may be closed to its own user. It is in a directory of Cofferdam.
        let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// A process that is killed when it is dropped, and whose files are removed.
#[derive(Debug)]
pub(super) struct Running {
    child: Option<Child>,
    tie: Tie,
    remains: Option<Remains>,
}

impl Running {
    /// Creates it without a process yet. From here on, dropping it kills the process and removes its files.
    pub(super) fn new(remains: Remains) -> Self {
        Self { child: None, tie: Tie::Own, remains: Some(remains) }
    }

    fn start(mut self, command: Command, tie: Tie, start: Start) -> io::Result<Self> {
        let begin = match tie {
            Tie::Own => child::start,
            Tie::Namespace => child::start_in_namespace,
        };
        self.child = Some(begin(command, start)?);
        self.tie = tie;
        Ok(self)
    }

    /// Returns the process to kill: if it is the init of a namespace, all processes in it end before the child.
    fn kill_target(&self) -> io::Result<OwnedFd> {
        let number = self.child.as_ref().map_or(0, Child::id);
        let init = || child::init_of(number).filter(|_| self.tie == Tie::Namespace);
        init().map_or_else(|| self.child_itself(), Ok)
    }

    fn child_itself(&self) -> io::Result<OwnedFd> {
        let number = self.child.as_ref().map_or(0, Child::id);
        process::pidfd(i32::try_from(number).unwrap_or(i32::MAX))
    }

    fn kill(&mut self) -> io::Result<()> {
        if self.has_ended() {
            return Ok(());
        }
        // It was not reaped yet, so the process ID is still its own.
        self.kill_target().and_then(|process| process::kill_by_pidfd(process.as_fd()))
    }

    /// Reaps a process that has ended, and removes its files. Returns its status, and the files that could not be
    /// removed.
    fn reap(mut self) -> End {
        let (child, remains) = (self.child.take(), self.remains.take());
        let status = child.and_then(|mut child| child.wait().ok());
        let removed = remains.map_or(Ok(()), |remains| remains.remove());
        End { status, left: removed.err().map(|error| error.to_string()) }
    }

    /// Kills, reaps and removes.
    fn finish(mut self) -> io::Result<()> {
        let killed = self.kill();
        let (child, remains) = (self.child.take(), self.remains.take());
        killed?;
        if let Some(mut child) = child {
            child.wait()?;
        }
        remains.map_or(Ok(()), |remains| remains.remove())
    }

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.is_some() || self.remains.is_some() {
            let (child, remains) = (self.child.take(), self.remains.take());
            let running = std::mem::ManuallyDrop::new(Self { child, tie: self.tie, remains });
            // A drop may not block, and cannot report errors: the sweep finds a directory again by its name.
            let finish = move || drop(std::mem::ManuallyDrop::into_inner(running).finish());
            // Without a thread, the process dies with this one.
            drop(std::thread::Builder::new().name("firecracker-end".to_owned()).spawn(finish));
        }
    }
}

/// The end of a process.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub status: Option<ExitStatus>,
    /// The error if its files could not be removed.
    pub left: Option<String>,
}

/// A process that a task waits for.
#[derive(Debug)]
pub(super) struct Watched {
    pub client: Client,
    pub console: Console,
    pub directory: PathBuf,
    pub tree: Tree,
    /// Its host resource limits, for display.
    pub vmm_limits: String,
    pub process: OwnedFd,
    pub end: watch::Receiver<Option<End>>,
}

/// A directory and isolation that were prepared for a process, and its command.
#[derive(Debug)]
pub(super) struct Confined {
    pub command: Command,
    pub tie: Tie,
    pub view: View,
    pub start: Start,
    pub running: Running,
}

/// A Firecracker that is ready for requests.
#[derive(Debug)]
pub(super) struct Firecracker {
    client: Client,
    pub(super) view: View,
    running: Running,
    console: Console,
    version: Version,
}

impl Firecracker {
    /// Returns its version.
    pub(super) fn version(&self) -> Version {
        self.version
    }

    /// Kills it, and returns when the process and its files are gone.
    pub(super) async fn end(mut self) -> Result<()> {
        self.running.kill().map_err(|error| os("kill Firecracker", &self.view.outside, error))?;
        // In a jail, the killed process is the parent of Firecracker: its output ends when Firecracker is gone.
        let gone = timeout(EXIT_TIMEOUT, self.console.over()).await;
        gone.map_err(|_| {
            internal(&format!("Firecracker still runs {} s after it was killed", EXIT_TIMEOUT.as_secs()))
        })?;
        let running = std::mem::replace(&mut self.running, Running { child: None, tie: Tie::Own, remains: None });
        let finished = tokio::task::spawn_blocking(move || running.finish());
        let finished = finished.await.map_err(|error| internal(&error.to_string()))?;
        finished.map_err(|error| os("remove what Firecracker left", &self.view.outside, error))
    }

    /// Hands it to a task that waits for its end, and removes its files then.
    pub(super) fn watch(self) -> Result<Watched> {
        let Self { client, view, running, console, .. } = self;
        let failed = |error| os("watch Firecracker", &view.outside, error);
        let (process, killer) = (running.child_itself().map_err(failed)?, running.kill_target().map_err(failed)?);
        #[expect(
            deprecated,
            reason = "an owned descriptor stays what it is, which its successor has its caller promise"
        )]
        let process = AsyncFd::new(process).map_err(failed)?;
        let enclosure = running.remains.as_ref().and_then(|remains| remains.enclosure.as_ref());
        let vmm_limits = enclosure.map_or_else(String::new, |enclosure| enclosure.shown.clone());
        let (sender, end) = watch::channel(None);
        let output = console.clone();
        tokio::spawn(async move {
            // If waiting for the descriptor fails, the process is still reaped.
            let _ = process.readable().await;
            // Output may still be in the pipe.
            let _ = timeout(OUTPUT_TIMEOUT, output.over()).await;
            let reaped = tokio::task::spawn_blocking(move || running.reap()).await;
            let lost = |_| End { status: None, left: Some("the task that reaps it was cancelled".to_owned()) };
            sender.send_replace(Some(reaped.unwrap_or_else(lost)));
        });
        Ok(Watched { client, console, directory: view.outside, tree: view.tree, vmm_limits, process: killer, end })
    }

    async fn become_ready(&mut self, id: &InstanceId, timeout: Duration) -> Result<Version> {
        let begun = Instant::now();
        while let Err(error) = socket::connect(self.client.socket()).await {
            if self.running.has_ended() {
                return Err(self.exited_early().await);
            }
            if begun.elapsed() > timeout {
                let message = format!("Firecracker opened no socket within {} s", timeout.as_secs_f64());
                return Err(self.not_ready(message).with_retry(Retry::MayHelp).with_source(error));
            }
            sleep(POLL_INTERVAL).await;
        }
        let text = self.client.version("create").await?.firecracker_version;
        let Some(version) = Version::parse(&text) else {
            return Err(self.not_ready(format!("Firecracker reports the invalid version '{}'", excerpt(&text))));
        };
        version.check_supported("create")?;
        let instance = self.client.describe("create").await?;
        if instance.id != id.as_str() {
            return Err(self.not_ready(format!("another VM answers: '{}'", excerpt(&instance.id))));
        }
        Ok(version)
    }

    async fn exited_early(&self) -> Error {
        // Output may still be in the pipe.
        let _ = timeout(OUTPUT_TIMEOUT, self.console.over()).await;
        let text = self.console.text();
        // The end of the output has the reason.
        let end = text.char_indices().rev().nth(500).map_or(0, |(at, _)| at);
        self.not_ready(format!("Firecracker exited immediately: {}", excerpt(&text[end..])))
    }

    fn not_ready(&self, message: String) -> Error {
        Error::new(ErrorKind::Unavailable, "create", message)
            .with_retry(Retry::Never)
            .with_remedy("run the program by hand as the same user, and read its output")
            .with_context("directory", self.view.outside.display().to_string())
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "create", message)
}

/// Converts an error of the operating system. `doing` completes "cannot …".
pub(super) fn os(doing: &str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::Unavailable,
        io::ErrorKind::AlreadyExists => ErrorKind::Conflict,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::ResourceExhausted,
        _ => ErrorKind::Io,
    };
    Error::new(kind, "create", format!("cannot {doing}"))
        .with_context("path", path.display().to_string())
        .with_source(error)
}
