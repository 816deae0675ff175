//! What host, launcher and init say to each other: typed, bounded, one message a datagram.
//!
//! ```text
//! host --Configure, Create--> launcher --forks--> init (process 1 of a sandbox)
//! host <----------------- Event ------------------ init
//! host ------------------ Order -----------------> init
//! ```
//!
//! Everything that comes from an init is treated as hostile by the host: an init shares the fate of its guests.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use cofferdam_linux::message;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message, in bytes: arguments and environment of one exec, and something around them.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Marks a message whose body is in the first descriptor.
const IN_MEMORY_FILE: u8 = 1;
const INLINE: u8 = 0;

/// The first message to a launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Configure {
    /// A directory with another root file system; `None` takes the host's programs.
    pub root: Option<RootPlan>,
    /// Host directories or files that appear read-only at the same path.
    pub read_only: Vec<PathBuf>,
    /// The same for interpreters that were found: left out where the launcher's user may not enter.
    pub interpreters: Vec<PathBuf>,
    /// Prefixes of interpreters that are not shown, because sandboxes have directories of their own there.
    pub hidden: Vec<PathBuf>,
    /// Whether control groups may be used.
    pub use_cgroups: bool,
    /// Whether to keep a stock of what every sandbox needs.
    pub prepare_ahead: bool,
}

/// A directory of the host with a root file system, and which one it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub struct RootPlan {
    /// Its absolute path, links resolved.
    pub path: PathBuf,
    /// Its device.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
}

/// The launcher's answer to [`Configure`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Hello {
    /// It is ready to make sandboxes.
    Ready(HostFacts),
    /// A step failed.
    Failed(Failure),
}

/// What the launcher found out about the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct HostFacts {
    /// Files and directories of the host that are shown besides the system's own.
    pub shown: Vec<PathBuf>,
    /// Files and directories that were to be shown and are not.
    pub hidden: Vec<PathBuf>,
    /// The version of control groups in use: 1 or 2; 0 for none.
    pub cgroup_version: u8,
    /// The controllers of each hierarchy.
    pub cgroup_layout: Vec<Vec<String>>,
    /// Why there are no control groups.
    pub cgroup_reason: String,
    /// Whether processor shares can be bounded.
    pub cgroup_cpu: bool,
    /// Whether control groups count swap, and CPU time.
    pub cgroup_counts: (bool, bool),
    /// Landlock's version; 0 for none.
    pub landlock_abi: u32,
    /// Whether the launcher has the privileges of the machine's root (or a container's).
    pub privileged: bool,
    /// The launcher's own namespaces, in the order of [`NAMESPACES`].
    pub namespaces: [u64; 7],
}

/// The namespaces whose identity is compared, by their names in `/proc/self/ns`.
pub const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// A step that failed, and the system's error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Failure {
    /// What was being done.
    pub step: String,
    /// The system's error number.
    pub errno: i32,
}

/// What an owner asks of its launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Ask {
    /// A sandbox.
    Create(Create),
    /// Other bounds for a sandbox in which nothing has run yet.
    Adapt(Adapt),
}

/// Gives a sandbox other bounds. With it comes a socket, on which the launcher answers with `Result<(), Failure>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Adapt {
    /// Which sandbox.
    pub serial: u64,
    /// Bytes for its own writable directories.
    pub disk: Option<u64>,
    /// Bytes of memory, if a control group bounds them.
    pub memory: Option<u64>,
    /// Tasks, the init not counted, if a control group bounds them.
    pub tasks: Option<u64>,
}

/// Asks the launcher for a sandbox. With it comes a socket, which becomes the init's. The launcher keeps it, too, until
/// nothing of the sandbox is left: then its other end reads as closed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub struct Create {
    /// A number that no other sandbox of this launcher has.
    pub serial: u64,
    /// What becomes `/workspace`.
    pub workspace: WorkspacePlan,
    /// Whether the guest must not write there.
    pub read_only: bool,
    /// Bytes for the sandbox's own writable directories.
    pub disk: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Tasks, the init not counted.
    pub tasks: Option<u64>,
    /// Processes, the init not counted.
    pub processes: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u64>,
    /// CPU microseconds of one exec; here only for the limit of a single process.
    pub cpu_micros: Option<u64>,
    /// Whether the walls that are the same for every sandbox of this kind are to be tried.
    pub probe: bool,
    /// An exec may be ordered before the host has seen this sandbox's measurements, and starts at once only if they are
    /// as expected.
    pub expected: Option<Expected>,
}

/// What a sandbox has to measure for an exec to start before the host has seen that.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub enum Expected {
    /// The same as an accepted sandbox with the same request.
    Same(Box<Evidence>),
    /// That nothing is missing; see [`Evidence::is_whole`]. For want of another to compare it with.
    Whole,
}

/// What becomes `/workspace`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub enum WorkspacePlan {
    /// A directory of the sandbox's own.
    Private,
    /// A directory of the host, and which one it is.
    HostDir {
        /// Its absolute path, links resolved.
        path: PathBuf,
        /// Its device.
        device: u64,
        /// Its inode.
        inode: u64,
        /// Its owner.
        uid: u32,
        /// Its group.
        gid: u32,
    },
}

/// What the host asks of an init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Order {
    /// Start a program. With it come its descriptors 0, 1 and 2, unless it gets a terminal.
    Start(Start),
    /// Signal everything that an exec started and that is still alive.
    Signal {
        /// Which exec.
        exec: u64,
        /// SIGTERM or SIGKILL.
        kill: bool,
    },
}

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Start {
    /// The exec's number: from 1, rising.
    pub exec: u64,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Where to start.
    pub directory: String,
    /// Rows and columns of the terminal to make.
    pub terminal: Option<(u16, u16)>,
    /// Whether to start only in a sandbox that measured what was expected.
    pub if_expected: bool,
    /// Whether the sandbox ends with this exec, should its program exit by itself.
    pub last: bool,
}

/// What an init tells the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Event {
    /// The sandbox is ready. With it come: a descriptor for the init, the workspace, the code directory, and one
    /// directory for each control group hierarchy.
    Ready {
        /// What it measured.
        evidence: Box<Evidence>,
        /// What became of the exec that was ordered along with it, if it was started already.
        first: Option<Result<(), (NotStarted, i32)>>,
    },
    /// Making the sandbox failed.
    Failed(Failure),
    /// An exec runs. With it comes the terminal's controlling end, if it has one.
    Started {
        /// Which exec.
        exec: u64,
    },
    /// An exec could not be started.
    NotStarted {
        /// Which exec.
        exec: u64,
        /// What failed.
        reason: NotStarted,
        /// The system's error number.
        errno: i32,
    },
    /// An exec's program ended.
    Ended {
        /// Which exec.
        exec: u64,
        /// The raw wait status.
        status: i32,
        /// The largest resident size among the program and its reaped children, in bytes.
        peak_bytes: u64,
        /// CPU microseconds of the program and its reaped children.
        cpu_micros: u64,
        /// Processes that the sandbox was refused since it began, beyond the limit on processes.
        processes_refused: u64,
    },
    /// The init's own watch found that the sandbox passed a limit, and killed everything in it.
    LimitPassed {
        /// Whether it was memory (else CPU time).
        memory: bool,
    },
}

/// Why an exec could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum NotStarted {
    /// The sandbox did not measure what was expected.
    Unexpected,
    /// No process could be made.
    Fork,
    /// The starting directory could not be entered.
    Directory,
    /// Descriptors, limits or the terminal could not be set.
    Prepare,
    /// The program could not be executed.
    Execute,
}

/// What the init measured about itself after the walls were up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, serde::Deserialize)]
pub struct Evidence {
    /// Its process number; 1 in a pid namespace of its own.
    pub pid: i32,
    /// Its user and group inside.
    pub ids: (u32, u32),
    /// The user that it was when its user namespace was made, and still is outside.
    pub outside_uid: u32,
    /// Effective, permitted and inheritable capabilities.
    pub capabilities: [u64; 3],
    /// Whether privileges cannot be gained by executing.
    pub no_new_privileges: bool,
    /// Whether a seccomp filter is on.
    pub seccomp: bool,
    /// What came of trying the walls, where that was asked for.
    pub walls: Option<Walls>,
    /// Whether the workspace refused a write.
    pub workspace_read_only: bool,
    /// Bytes that fit into the sandbox's own writable directories; 0 when unbounded.
    pub disk_bytes: u64,
    /// Files that fit there; 0 when unbounded.
    pub disk_files: u64,
    /// Limits of one process: memory, tasks, CPU seconds, file size; `u64::MAX` when unbounded.
    pub process_limits: [u64; 4],
    /// Processors that it may use.
    pub processors: u32,
    /// Whether the init watches memory and CPU time itself.
    pub watching: bool,
    /// Tasks in its control group after it had joined it: itself.
    pub members: u64,
    /// What the control group had counted before: kills for memory, forks refused, bytes in use.
    pub group_base: (u64, u64, u64),
}

impl Evidence {
    /// Whether this sandbox stands as the one did that `expected` was measured in, but for what each has of its own.
    pub fn is_as(&self, expected: &Self) -> bool {
        let own = Self {
            outside_uid: self.outside_uid,
            walls: self.walls.clone(),
            group_base: self.group_base,
            ..expected.clone()
        };
        own == *self && (self.outside_uid == 0) == (expected.outside_uid == 0)
    }

    /// Whether every wall was tried and stands, and every limit that was asked for is kept by a control group, in which
    /// the launcher has set it.
    ///
    /// It asks for no less than the posture does, and takes nothing that is only nearly as good: whoever is content with
    /// less has to wait for the host's judgement, which comes in any case.
    pub fn is_whole(&self, create: &Create, facts: &HostFacts) -> bool {
        let Some(walls) = &self.walls else { return false };
        let unbounded_directory = matches!(create.workspace, WorkspacePlan::HostDir { .. }) && !create.read_only;
        let disk = create.disk.is_none_or(|bytes| {
            let fits = self.disk_bytes > 0 && self.disk_bytes <= bytes.next_multiple_of(4096) && self.disk_files > 0;
            fits && !unbounded_directory
        });
        let limited = create.memory.is_some() || create.tasks.is_some() || create.cpu_micros.is_some();
        let counted = !limited || facts.cgroup_version != 0 && self.members > 0;
        let counts_cpu = facts.cgroup_counts.1 || create.cpu_micros.is_none();
        self.pid == 1
            && self.ids.0 != 0
            && !(facts.privileged && self.outside_uid == 0)
            && self.capabilities == [0; 3]
            && self.no_new_privileges
            && self.seccomp
            && self.workspace_read_only == create.read_only
            && disk
            && counted
            && counts_cpu
            // Shares of processors have several ways to be kept.
            && create.cpu_millis.is_none()
            && walls.stand(&facts.namespaces)
    }
}

/// What came of trying walls that are the same for every sandbox of one launcher and one kind: their answer may be
/// reused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, serde::Deserialize)]
pub struct Walls {
    /// The sandbox's namespaces, in the order of [`NAMESPACES`].
    pub namespaces: [u64; 7],
    /// Calls that a filter should refuse and did not.
    pub calls_let_through: Vec<String>,
    /// Capabilities that could still be gained by executing.
    pub bounding: u64,
    /// Whether Landlock refused what only it forbids.
    pub landlock_denies: bool,
    /// Whether the root file system refused a write.
    pub root_read_only: bool,
    /// Host directories that should not be there and are.
    pub paths_visible: Vec<String>,
    /// Network interfaces other than loopback.
    pub interfaces: u32,
}

impl Walls {
    /// Whether all of them do.
    fn stand(&self, host: &[u64; 7]) -> bool {
        self.namespaces.iter().zip(host).all(|(inside, outside)| *inside != 0 && inside != outside)
            && self.calls_let_through.is_empty()
            && self.bounding == 0
            && self.landlock_denies
            && self.root_read_only
            && self.paths_visible.is_empty()
            && self.interfaces == 0
    }
}

/// Sends a message, waiting while the socket is full, at most `patience`.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
    patience: std::time::Duration,
) -> io::Result<()> {
    let body = encode(message)?;
    loop {
        match send_encoded(socket, &body, fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !message::wait_writable(socket, Some(patience))? {
                    return Err(io::Error::from(io::ErrorKind::TimedOut));
                }
            }
            other => return other,
        }
    }
}

/// A message as bytes for [`send_encoded`].
pub fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = postcard::to_extend(message, vec![INLINE]).map_err(io::Error::other)?;
    if body.len() > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    Ok(body)
}

/// Sends an encoded message; fails with `WouldBlock` rather than wait.
pub fn send_encoded(socket: BorrowedFd<'_>, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if body.len() <= message::MAX_INLINE {
        return message::send(socket, body, fds);
    }
    use std::os::fd::AsFd;
    let sealed = message::seal(&body[1..])?;
    let all: Vec<BorrowedFd<'_>> = [sealed.as_fd()].into_iter().chain(fds.iter().copied()).collect();
    message::send(socket, &[IN_MEMORY_FILE], &all)
}

/// Receives a message if there is one; `None` when the other end is closed. Fails with `WouldBlock` rather than wait.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    // No larger than it must be: a fork copies each page that is written to.
    let next = match message::next_length(socket) {
        // The other end was closed with messages that it had not read. What it sent before that is still there.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => message::next_length(socket)?,
        next => next?,
    };
    let mut buffer = vec![0; next.min(message::MAX_INLINE)];
    let (length, mut fds) = message::receive(socket, &mut buffer)?;
    match buffer[..length].split_first() {
        None => Ok(None),
        Some((&INLINE, body)) => Ok(Some((decode(body)?, fds))),
        Some((&IN_MEMORY_FILE, [])) if !fds.is_empty() => {
            let body = message::unseal(fds.remove(0), MAX_MESSAGE)?;
            Ok(Some((decode(&body)?, fds)))
        }
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "malformed message")),
    }
}

/// Decodes a message's body; what is left over is an error.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok(_) | Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "malformed message")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsFd;
    use std::time::Duration;

    fn start(words: usize) -> Order {
        Order::Start(Start {
            exec: 1,
            argv: vec!["x".repeat(100); words],
            env: vec![("A".into(), "b".into())],
            directory: "/".into(),
            terminal: None,
            if_expected: false,
            last: false,
        })
    }

    #[test]
    fn the_last_message_arrives_from_an_end_that_had_not_read_everything() {
        let (a, b) = message::pair().unwrap();
        let failure = Failure { step: "try".to_owned(), errno: 2 };
        send(b.as_fd(), &Event::Failed(failure), &[], Duration::from_secs(10)).unwrap();
        send(a.as_fd(), &1u8, &[], Duration::from_secs(10)).unwrap();
        drop(b);
        let received = receive::<Event>(a.as_fd()).unwrap();
        assert!(matches!(received, Some((Event::Failed(failure), _)) if failure.step == "try"));
        assert!(receive::<Event>(a.as_fd()).unwrap().is_none());
    }

    #[test]
    fn long_messages_travel_in_memory_files() {
        let (a, b) = message::pair().unwrap();
        for words in [1, 10_000] {
            send(a.as_fd(), &start(words), &[a.as_fd()], Duration::from_secs(1)).unwrap();
            let (order, fds) = receive::<Order>(b.as_fd()).unwrap().unwrap();
            assert_eq!((order, fds.len()), (start(words), 1));
        }
        assert!(encode(&start(100_000)).is_err());
        drop(a);
        assert!(receive::<Order>(b.as_fd()).unwrap().is_none());
    }

    /// Promise (Posture): Evidence of an earlier sandbox is reused only if no relevant property differs.
    #[test]
    fn evidence_is_as_expected_only_when_nothing_that_counts_differs() {
        let expected = Evidence { outside_uid: 7, disk_bytes: 4096, ..Evidence::default() };
        let other = Evidence { outside_uid: 8, group_base: (1, 2, 3), ..expected.clone() };
        assert!(other.is_as(&expected));
        assert!(!Evidence { outside_uid: 0, ..other.clone() }.is_as(&expected));
        assert!(!Evidence { members: 1, ..other.clone() }.is_as(&expected));
        assert!(!Evidence { pid: 2, ..other.clone() }.is_as(&expected));
        assert!(!Evidence { ids: (1, 1), ..other.clone() }.is_as(&expected));
        assert!(!Evidence { seccomp: true, ..other.clone() }.is_as(&expected));
        assert!(!Evidence { capabilities: [1, 0, 0], ..other.clone() }.is_as(&expected));
        assert!(!Evidence { disk_bytes: 8192, ..other }.is_as(&expected));
    }

    proptest! {
        /// Promise (Process isolation): No message from inside a process sandbox harms the supervisor.
        #[test]
        fn garbage_is_refused_or_read_but_never_harms(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Order>(&body);
            let _ = decode::<Event>(&body);
            let _ = decode::<Ask>(&body);
            let _ = decode::<Create>(&body);
            let _ = decode::<Configure>(&body);
            let _ = decode::<Hello>(&body);
        }
    }
}
