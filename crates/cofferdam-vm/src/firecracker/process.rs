//! A Firecracker process: started, waited for, ended, and nothing of it left.
//!
//! ```text
//! started --socket answers, version and name are right--> ready --end--> killed, waited for, files removed
//!    '--ends, is silent, is another version--> killed        '--drop, this process dies--> killed
//! ```
//!
//! It dies with this process in any case. Its files are then swept by [`super::Jail::sweep`], or lie in a directory that
//! is the caller's to remove.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use cofferdam_linux::child::{self, Start};
use cofferdam_linux::process;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::bounds::Enclosure;
use crate::error::VmError;

use super::client::{Client, Deadlines};
use super::console::Console;
use super::error::shown;
use super::ids::InstanceId;
use super::version::{OLDEST, Standing, Version};
use super::{socket, version};

/// The socket of the API in the process's directory.
pub(super) const API_SOCKET: &str = "api.sock";
/// Time that a killed process has to be gone.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Time for what an ended process had said.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// What to do where a root is none.
const JAILERS_RIGHTS: &str = "run as root with the rights that the jailer needs (to mount, to make namespaces and device nodes), or switch it off: `jailer` \
     in [machines], or COFFERDAM_VM_JAILER";
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(2);
/// A socket's path as the kernel takes it, without the byte that ends it.
const MAX_SOCKET: usize = 107;

/// How Firecracker is started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program, by its whole path.
    pub program: PathBuf,
    /// Time until it answers.
    pub ready: Duration,
    /// Times of its client.
    pub deadlines: Deadlines,
}

impl Launch {
    /// A program with the usual times.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), ready: Duration::from_secs(10), deadlines: Deadlines::default() }
    }

    /// Which version the program has, and whether it is one that is supported.
    pub async fn version(&self) -> Result<(Version, Standing)> {
        let version = version::of_program("create", &self.program, self.ready).await?;
        Ok((version, version.standing("create")?))
    }

    /// Starts it as this user, in a new directory of that name in `parent`. For hosts without the right to jail it: what
    /// breaks out of the machine is then held by Firecracker's own system-call filter alone.
    pub async fn start(&self, parent: &Path, id: &InstanceId) -> Result<Firecracker> {
        let directory = parent.join(id.as_str());
        let socket = directory.join(API_SOCKET);
        if socket.as_os_str().len() > MAX_SOCKET {
            let message = format!("a socket's path has {MAX_SOCKET} bytes at most");
            return Err(Error::invalid("create", message)
                .with_context("path", socket.display().to_string())
                .with_remedy("use a directory with a shorter path"));
        }
        let made = fs::DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| os("make the machine's directory", &directory, error))?;
        let remains = Remains { directory: Some(directory.clone()), ..Remains::default() };
        let mut command = Command::new(&self.program);
        command.arg("--api-sock").arg(&socket).args(["--id", id.as_str()]).current_dir(&directory);
        let view = View { outside: directory.clone(), inside: directory, owner: None, tree: None };
        self.begin((command, Start::default()), Tie::Own, view, Running::new(remains), id).await
    }

    /// Starts it in a directory that is there, which becomes its own, and behind walls that stand. Names in requests begin
    /// in that directory.
    pub(super) async fn start_behind(&self, raised: Raised, id: &InstanceId) -> Result<Firecracker> {
        let Raised { command, tie, view, start, running } = raised;
        self.begin((command, start), tie, view, running, id).await
    }

    pub(super) async fn begin(
        &self,
        (mut command, start): (Command, Start),
        tie: Tie,
        view: View,
        running: Running,
        id: &InstanceId,
    ) -> Result<Firecracker> {
        let (console, writer) = Console::new().map_err(|error| os("make a pipe", &view.outside, error))?;
        let second = writer.try_clone().map_err(|error| os("make a pipe", &view.outside, error))?;
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
                // What cannot be removed now is said to whoever sweeps.
                let _ = process.end().await;
                Err(error)
            }
        }
    }
}

/// Why a program of the host's was not started.
fn not_started(program: &Path, tie: Tie, error: io::Error) -> Error {
    if child::lacks_namespaces(&error) {
        let wall = "namespaces of its own, which keep it from the network";
        return VmError::NoWall { wall }.into_error("create");
    }
    match (error.kind(), tie) {
        (io::ErrorKind::PermissionDenied, Tie::Own) => {
            VmError::Forbidden { program: program.to_owned(), source: error }.into_error("create")
        }
        (io::ErrorKind::PermissionDenied, Tie::Namespace) => {
            let why = format!("this user may not do what it takes: {error}");
            VmError::NoJailer { why, remedy: JAILERS_RIGHTS }.into_error("create")
        }
        _ => os("start Firecracker", program, error),
    }
}

/// How its life is tied to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tie {
    /// By itself.
    Own,
    /// By a process namespace around it: the jailer changes its user.
    Namespace,
}

/// A directory, as this process and as Firecracker sees it.
#[derive(Debug)]
pub(super) struct View {
    pub outside: PathBuf,
    pub inside: PathBuf,
    /// User and group that Firecracker runs as, if others than this process's.
    pub owner: Option<(u32, u32)>,
    /// What `outside` begins with, where it has no name of the host's.
    pub tree: Tree,
}

/// A mount that is attached nowhere in this process's view. It is there as long as somebody has it open.
pub(super) type Tree = Option<Arc<OwnedFd>>;

/// What is to be removed when the process is gone.
#[derive(Debug, Default)]
pub(super) struct Remains {
    pub directory: Option<PathBuf>,
    pub groups: Vec<PathBuf>,
    /// What bounds the process, if it is ours to remove.
    pub enclosure: Option<Enclosure>,
}

impl Remains {
    /// Removes all, within a time: a control group can be removed only when the last process has left it.
    pub(super) fn remove(&self, limit: Duration) -> io::Result<()> {
        let begun = Instant::now();
        for group in &self.groups {
            loop {
                match fs::remove_dir(group) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(_) if begun.elapsed() < limit => std::thread::sleep(PAUSE),
                    other => break other?,
                }
            }
        }
        let Some(directory) = &self.directory else { return Ok(()) };
        // One that was closed to its own user. What stands there is a directory of ours in one of ours.
        let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// A process that is killed when it is dropped, and its files removed.
#[derive(Debug)]
pub(super) struct Running {
    child: Option<Child>,
    tie: Tie,
    remains: Option<Remains>,
}

impl Running {
    /// Not started yet. From here on, what is dropped kills the process and removes what it leaves.
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

    /// What is killed to end it: with the init of a namespace, all in it end before the child is seen to have ended.
    fn to_be_killed(&self) -> io::Result<OwnedFd> {
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
        // Nobody has waited for it, so the number is still its own.
        self.to_be_killed().and_then(|process| process::kill_by_pidfd(process.as_fd()))
    }

    /// Waits for a process that has ended, and removes what it left. Says how it ended, and what could not be removed.
    fn reap(mut self) -> End {
        let (child, remains) = (self.child.take(), self.remains.take());
        let status = child.and_then(|mut child| child.wait().ok());
        let removed = remains.map_or(Ok(()), |remains| remains.remove(END_LIMIT));
        End { status, left: removed.err().map(|error| error.to_string()) }
    }

    /// Kills, waits and removes.
    fn finish(mut self) -> io::Result<()> {
        let killed = self.kill();
        let (child, remains) = (self.child.take(), self.remains.take());
        killed?;
        if let Some(mut child) = child {
            child.wait()?;
        }
        remains.map_or(Ok(()), |remains| remains.remove(END_LIMIT))
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
            // Whoever drops may not be kept waiting, and cannot be told: a jail is found again by its name.
            let finish = move || drop(std::mem::ManuallyDrop::into_inner(running).finish());
            // Without a thread the process dies with this one.
            drop(std::thread::Builder::new().name("firecracker-end".to_owned()).spawn(finish));
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub status: Option<ExitStatus>,
    /// Why something of it could not be removed.
    pub left: Option<String>,
}

/// A process whose end is waited for by a task.
#[derive(Debug)]
pub(super) struct Watched {
    pub client: Client,
    pub console: Console,
    pub directory: PathBuf,
    pub tree: Tree,
    /// What bounds it from outside, for people.
    pub kept: String,
    pub process: OwnedFd,
    pub end: watch::Receiver<Option<End>>,
}

/// A directory and walls that were made for a process, and how it is started behind them.
#[derive(Debug)]
pub(super) struct Raised {
    pub command: Command,
    pub tie: Tie,
    pub view: View,
    pub start: Start,
    pub running: Running,
}

/// A Firecracker that is ready for requests.
#[derive(Debug)]
pub struct Firecracker {
    client: Client,
    pub(super) view: View,
    running: Running,
    console: Console,
    version: Version,
}

impl Firecracker {
    /// Its API.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its directory, as this process sees it.
    pub fn directory(&self) -> &Path {
        &self.view.outside
    }

    /// Its directory, as it sees it: paths in requests begin here.
    pub fn directory_inside(&self) -> &Path {
        &self.view.inside
    }

    /// The last of what it and its guest have written. Anything may stand there.
    pub fn console(&self) -> String {
        self.console.text()
    }

    /// Waits until the process has ended, for whatever reason: until nobody holds its output any more. One that closes
    /// its output and goes on does what Firecracker does not, and is to be ended like one that is gone.
    pub async fn ended(&self) {
        self.console.over().await;
    }

    /// Kills it, and gives back when the process and its files are gone.
    pub async fn end(mut self) -> Result<()> {
        self.running.kill().map_err(|error| os("kill Firecracker", &self.view.outside, error))?;
        // In a jail, the process is behind the one that was killed: its output shows when it is gone.
        let gone = timeout(END_LIMIT, self.ended()).await;
        gone.map_err(|_| internal(&format!("a killed Firecracker is still there after {} s", END_LIMIT.as_secs())))?;
        let running = std::mem::replace(&mut self.running, Running { child: None, tie: Tie::Own, remains: None });
        let finished = tokio::task::spawn_blocking(move || running.finish());
        let finished = finished.await.map_err(|error| internal(&error.to_string()))?;
        finished.map_err(|error| os("remove what Firecracker left", &self.view.outside, error))
    }

    /// Hands it over to a task that waits for its end, and removes what it leaves then.
    pub(super) fn watch(self) -> Result<Watched> {
        let Self { client, view, running, console, .. } = self;
        let failed = |error| os("watch Firecracker", &view.outside, error);
        let (process, killer) = (running.child_itself().map_err(failed)?, running.to_be_killed().map_err(failed)?);
        #[expect(
            deprecated,
            reason = "an owned descriptor stays what it is, which its successor has its caller promise"
        )]
        let process = AsyncFd::new(process).map_err(failed)?;
        let enclosure = running.remains.as_ref().and_then(|remains| remains.enclosure.as_ref());
        let kept = enclosure.map_or_else(String::new, |enclosure| enclosure.shown.clone());
        let (sender, end) = watch::channel(None);
        let last_words = console.clone();
        tokio::spawn(async move {
            // A descriptor that cannot be waited for is no reason to forget the process.
            let _ = process.readable().await;
            // What it had to say may still be on its way.
            let _ = timeout(LAST_WORDS, last_words.over()).await;
            let reaped = tokio::task::spawn_blocking(move || running.reap()).await;
            let lost = |_| End { status: None, left: Some("the end was not waited for".to_owned()) };
            sender.send_replace(Some(reaped.unwrap_or_else(lost)));
        });
        Ok(Watched { client, console, directory: view.outside, tree: view.tree, kept, process: killer, end })
    }

    async fn become_ready(&mut self, id: &InstanceId, limit: Duration) -> Result<Version> {
        let begun = Instant::now();
        while let Err(error) = socket::connect(self.client.socket()).await {
            if self.running.has_ended() {
                return Err(self.ended_at_once().await);
            }
            if begun.elapsed() > limit {
                let message = format!("Firecracker opened no socket within {} s", limit.as_secs_f64());
                return Err(self.not_ready(message).with_retry(Retry::MayHelp).with_source(error));
            }
            sleep(PAUSE).await;
        }
        let said = self.client.version("create").await?.firecracker_version;
        let Some(version) = Version::parse(&said) else {
            return Err(self.not_ready(format!("Firecracker says that it has version '{}'", shown(&said))));
        };
        version.standing("create")?;
        let instance = self.client.describe("create").await?;
        if instance.id != id.as_str() {
            return Err(self.not_ready(format!("another machine answers: '{}'", shown(&instance.id))));
        }
        Ok(version)
    }

    async fn ended_at_once(&self) -> Error {
        // What it had to say may still be on its way.
        let _ = timeout(LAST_WORDS, self.console.over()).await;
        let text = self.console.text();
        // Its last words say why.
        let end = text.char_indices().rev().nth(500).map_or(0, |(at, _)| at);
        self.not_ready(format!("Firecracker ended at once: {}", shown(&text[end..])))
    }

    fn not_ready(&self, message: String) -> Error {
        Error::new(ErrorKind::Unavailable, "create", message)
            .with_retry(Retry::Never)
            .with_remedy("start the program by hand with the same user: it says what it lacks")
            .with_context("directory", self.view.outside.display().to_string())
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "create", message)
}

/// An operating-system error. `doing` completes "cannot …".
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
