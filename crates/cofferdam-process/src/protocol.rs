//! Messages between host, launcher and init: typed, bounded, one per datagram.
//!
//! ```text
//! host --Configure, Create--> launcher --forks--> init (process 1 of a sandbox)
//! host <----------------- Event ------------------ init
//! host ----------------- Request ----------------> init
//! ```
//!
//! The host treats all data from an init as hostile: an init shares the fate of its guests.

mod sources;

use cofferdam_egress::{PROXY_PORT, RESOLVER};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use cofferdam_linux::message;
use serde::Serialize;
use serde::de::DeserializeOwned;
pub use sources::{LayerPlan, MountFrom, MountPlan, MountPoint, RootPlan, WorkspacePlan};

/// The maximum size of a message in bytes: arguments and environment of one exec, and other fields.
pub const MAX_MESSAGE: usize = 4 << 20;
/// The first byte of a message with its body in the first descriptor.
const IN_MEMORY_FILE: u8 = 1;
const INLINE: u8 = 0;
/// User and group inside a sandbox, unless its image names others.
pub const INSIDE: (u32, u32) = (1000, 1000);

/// The first message to a launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Configure {
    /// Another root file system. `None` uses the host's programs.
    pub root: Option<RootPlan>,
    /// Host directories or files that are mounted read-only at the same path.
    pub read_only: Vec<PathBuf>,
    /// The same for found interpreters. They are omitted if the launcher's user may not enter them.
    pub interpreters: Vec<PathBuf>,
    /// Prefixes of interpreters that are not visible, because sandboxes have their own directories there.
    pub hidden: Vec<PathBuf>,
    /// Mount points that the root needs.
    pub mount_points: Vec<MountPoint>,
    /// True if control groups may be used.
    pub use_cgroups: bool,
    /// True to keep a pool of prepared namespaces.
    pub prepare_ahead: bool,
}

/// The launcher's answer to [`Configure`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Hello {
    /// The launcher is ready to create sandboxes.
    Ready(HostFacts),
    /// A step failed.
    Failed(Failure),
}

/// Facts about the host that the launcher found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct HostFacts {
    /// Visible files and directories of the host, besides the system's own.
    pub shown: Vec<PathBuf>,
    /// Files and directories that were requested and are not visible.
    pub hidden: Vec<PathBuf>,
    /// The version of control groups in use: 1 or 2; 0 for none.
    pub cgroup_version: u8,
    /// The controllers of each hierarchy.
    pub cgroup_layout: Vec<Vec<String>>,
    /// The reason for the absence of control groups.
    pub cgroup_reason: String,
    /// True if processor shares can be limited.
    pub cgroup_cpu: bool,
    /// Two flags: control groups count swap, control groups count CPU time.
    pub cgroup_counts: (bool, bool),
    /// Landlock's version; 0 for none.
    pub landlock_abi: u32,
    /// True if the launcher has the privileges of root, of the host or of a container.
    pub privileged: bool,
    /// The launcher's own namespaces, in the order of [`NAMESPACES`].
    pub namespaces: [u64; 7],
}

/// The namespaces whose identity is compared, by their names in `/proc/self/ns`.
pub const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];

/// A failed step and the system error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Failure {
    /// The step, as an infinitive.
    pub step: String,
    /// The system's error number.
    pub errno: i32,
}

/// A request to a launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum LauncherRequest {
    /// Create a sandbox.
    Create(Box<Create>),
    /// Change the limits of a sandbox in which no program has run yet.
    Adapt(Adapt),
    /// Create sockets in a sandbox's network.
    Sockets(SandboxSockets),
}

/// A request for TCP sockets in a sandbox's network: one for IPv4, and one for IPv6 if the kernel has it. A socket comes
/// with the request, on which the launcher answers with `Result<(), Failure>` and the sockets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct SandboxSockets {
    /// The sandbox's number.
    pub serial: u64,
}

/// New limits of a sandbox. A socket comes with the request, on which the launcher answers with `Result<(), Failure>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Adapt {
    /// The sandbox's number.
    pub serial: u64,
    /// The size of the sandbox's own writable directories in bytes.
    pub disk: Option<u64>,
    /// Memory in bytes, if a control group limits it.
    pub memory: Option<u64>,
    /// The number of tasks without the init, if a control group limits it.
    pub tasks: Option<u64>,
}

/// A request for a sandbox. A socket comes with it, which becomes the init's. The launcher keeps a copy until nothing
/// of the sandbox remains: then the other end reads as closed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub struct Create {
    /// A number that is unique among the sandboxes of this launcher.
    pub serial: u64,
    /// The source of `/workspace`.
    pub workspace: WorkspacePlan,
    /// User and group inside.
    pub inside: (u32, u32),
    /// Mounts besides the workspace, parents before what is below them.
    pub mounts: Vec<MountPlan>,
    /// True if the guest must not write there.
    pub read_only: bool,
    /// The size of the sandbox's own writable directories in bytes.
    pub disk: Option<u64>,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// The number of tasks without the init.
    pub tasks: Option<u64>,
    /// The number of processes without the init.
    pub processes: Option<u64>,
    /// The share of processors in thousandths of one.
    pub cpu_millis: Option<u64>,
    /// The CPU time limit in microseconds, used here only for the limit of a single process.
    pub cpu_micros: Option<u64>,
    /// The network besides the sandbox's own loopback.
    pub network: Option<NetworkPlan>,
    /// True to probe the isolation that is the same for every sandbox of this kind.
    pub probe: bool,
    /// The measurements that are needed to start an exec before the host has seen them.
    pub expected: Option<Expected>,
}

/// The sockets that serve a sandbox's network.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub struct NetworkPlan {
    /// The ports on which connections are accepted.
    pub ports: Vec<u16>,
    /// True if TLS is intercepted, so that programs need other certificates than those of the root.
    pub certificates: bool,
}

impl NetworkPlan {
    /// Returns the address and port of each listening socket for connections: the ports of the policy on every address,
    /// and the proxy's.
    pub fn listeners(&self) -> impl Iterator<Item = (Ipv4Addr, u16)> {
        // A port of the policy includes the proxy's address.
        let proxy = (!self.ports.contains(&PROXY_PORT)).then_some((RESOLVER, PROXY_PORT));
        self.ports.iter().map(|port| (Ipv4Addr::UNSPECIFIED, *port)).chain(proxy)
    }
}

/// The measurements of a sandbox that are needed to start an exec before the host has seen them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub enum Expected {
    /// They equal those of an accepted sandbox with the same request.
    Same(Box<Evidence>),
    /// No protection is missing; see [`Evidence::is_complete`]. It is used if no accepted sandbox is known.
    Complete,
}

/// A request to an init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Request {
    /// Start a program. Its descriptors 0, 1 and 2 come with the request, unless it gets a terminal.
    Start(Start),
    /// Signal all living processes of an exec.
    Signal {
        /// The exec's number.
        exec: u64,
        /// True for SIGKILL, false for SIGTERM.
        kill: bool,
    },
}

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Start {
    /// The exec's number, increasing from 1.
    pub exec: u64,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The complete environment.
    pub env: Vec<(String, String)>,
    /// The working directory.
    pub directory: String,
    /// The rows and columns of the terminal, if the program gets one.
    pub terminal: Option<(u16, u16)>,
    /// True to start only if the measurements are as expected.
    pub if_expected: bool,
    /// True if the sandbox ends with this exec once its program exits by itself.
    pub last: bool,
}

/// An event that an init reports to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Event {
    /// The sandbox is ready. These descriptors come with the event: a handle of the init, the workspace, the code
    /// directory, and one directory for each control group hierarchy.
    Ready {
        /// The measurements.
        evidence: Box<Evidence>,
        /// The result of the exec that was requested with the sandbox, if its start was attempted already.
        first: Option<Result<(), (NotStarted, i32)>>,
    },
    /// The sandbox could not be created.
    Failed(Failure),
    /// An exec runs. If it has a terminal, its controlling end comes with the event.
    Started {
        /// The exec's number.
        exec: u64,
    },
    /// An exec could not be started.
    NotStarted {
        /// The exec's number.
        exec: u64,
        /// The failed step.
        reason: NotStarted,
        /// The system's error number.
        errno: i32,
    },
    /// An exec's program ended.
    Ended {
        /// The exec's number.
        exec: u64,
        /// The raw wait status.
        status: i32,
        /// The largest resident size among the program and its reaped children, in bytes.
        peak_bytes: u64,
        /// CPU microseconds of the program and its reaped children.
        cpu_micros: u64,
        /// The number of processes beyond the limit that were refused since the sandbox was created.
        processes_refused: u64,
    },
    /// The init found that the sandbox exceeded a limit, and killed all processes in it.
    LimitPassed {
        /// True for memory, false for CPU time.
        memory: bool,
    },
    /// Sockets of the network, sent in parts before `Ready`: the resolver's for datagrams and for connections, then one
    /// for each port of the [`NetworkPlan`], and a raw one that shows connection attempts, if it could be created.
    Sockets,
}

/// The reason of a failed start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum NotStarted {
    /// The measurements are not as expected.
    Unexpected,
    /// No process could be created.
    Fork,
    /// The starting directory could not be entered.
    Directory,
    /// Descriptors, limits or the terminal could not be set.
    Prepare,
    /// The program could not be executed.
    Execute,
}

/// The bytes of address space that a page of page tables maps, divided by the page's size.
const MAPPED_BY_TABLES: u64 = 512;

/// Returns the maximum address space of one process where no control group counts page tables. The tables for it take at
/// most the memory limit.
pub fn address_space(memory: u64) -> u64 {
    memory.saturating_mul(MAPPED_BY_TABLES)
}

/// Measurements of the init about itself, after isolation is complete.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, serde::Deserialize)]
pub struct Evidence {
    /// Its process id: 1 in its own pid namespace.
    pub pid: i32,
    /// The init's user and group inside.
    pub ids: (u32, u32),
    /// The init's user id outside its user namespace.
    pub outside_uid: u32,
    /// Effective, permitted and inheritable capabilities.
    pub capabilities: [u64; 3],
    /// True if execution grants no privileges.
    pub no_new_privileges: bool,
    /// True if a seccomp filter is installed.
    pub seccomp: bool,
    /// The probe results, if they were requested.
    pub probes: Option<Probes>,
    /// True if the workspace refused a write.
    pub workspace_read_only: bool,
    /// True if the workspace is an overlay: writes go to its upper layer.
    pub workspace_layered: bool,
    /// The number of mounts that are what was requested: read-only or writable, with the requested files and size.
    pub mounts: usize,
    /// The size of the sandbox's own writable directories in bytes; 0 means unlimited.
    pub disk_bytes: u64,
    /// The maximum of files there; 0 means unlimited.
    pub disk_files: u64,
    /// The limits of one process: memory, tasks, CPU seconds, file size, address space. `u64::MAX` means unlimited.
    pub process_limits: [u64; 5],
    /// The number of processors that the init may use.
    pub processors: u32,
    /// True if the init itself enforces limits on memory and CPU time.
    pub watching: bool,
    /// The number of tasks in its control group after it has joined: only itself.
    pub members: u64,
    /// The control group's counters before this sandbox: kills for memory, refused forks, used bytes.
    pub group_base: (u64, u64, u64),
    /// The limits of a control group of version 2, which may be gone once the owner reads this: bytes of memory, tasks,
    /// and the share of processors in thousandths.
    pub group_bounds: [Option<u64>; 3],
}

impl Evidence {
    /// Returns true if these measurements equal `expected`, except for values that are unique to a sandbox.
    pub fn matches(&self, expected: &Self) -> bool {
        let own = Self {
            outside_uid: self.outside_uid,
            probes: self.probes.clone(),
            group_base: self.group_base,
            ..expected.clone()
        };
        own == *self && (self.outside_uid == 0) == (expected.outside_uid == 0)
    }

    /// Returns true if every protection was probed and holds, and a control group enforces every requested limit, which
    /// the launcher has set.
    ///
    ///
    /// It requires at least as much as the posture, and accepts no weaker substitute. A spec that accepts weaker
    /// protections has to wait for the host's verification, which follows in any case.
    pub fn is_complete(&self, create: &Create, facts: &HostFacts) -> bool {
        let Some(probes) = &self.probes else { return false };
        let unbounded_directory = create.workspace.writes_to_host() && !create.read_only
            || create.mounts.iter().any(MountPlan::writes_to_host);
        let disk = create.disk.is_none_or(|bytes| {
            let is_limited =
                self.disk_bytes > 0 && self.disk_bytes <= bytes.next_multiple_of(4096) && self.disk_files > 0;
            is_limited && !unbounded_directory
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
            && self.workspace_layered == create.workspace.is_copy_on_write()
            && self.mounts == create.mounts.len()
            && disk
            && counted
            && counts_cpu
            // There are several ways to enforce a share of processors.
            && create.cpu_millis.is_none()
            && probes.all_hold(&facts.namespaces)
    }
}

/// Results of probes that are the same for every sandbox of one launcher and kind, and can be reused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, serde::Deserialize)]
pub struct Probes {
    /// The sandbox's namespaces, in the order of [`NAMESPACES`].
    pub namespaces: [u64; 7],
    /// System calls that the filter should refuse and did not.
    pub calls_let_through: Vec<String>,
    /// Capabilities that execution could still grant.
    pub bounding: u64,
    /// True if Landlock refused access that only it forbids.
    pub landlock_denies: bool,
    /// True if the root file system refused a write.
    pub root_read_only: bool,
    /// Host directories that should not be visible and are.
    pub paths_visible: Vec<String>,
    /// Network interfaces other than loopback.
    pub interfaces: u32,
}

impl Probes {
    /// Returns true if all protections hold.
    fn all_hold(&self, host: &[u64; 7]) -> bool {
        self.namespaces.iter().zip(host).all(|(inside, outside)| *inside != 0 && inside != outside)
            && self.calls_let_through.is_empty()
            && self.bounding == 0
            && self.landlock_denies
            && self.root_read_only
            && self.paths_visible.is_empty()
            && self.interfaces == 0
    }
}

/// Sends a message. Waits while the socket is full, at most for `timeout`.
pub fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
    timeout: std::time::Duration,
) -> io::Result<()> {
    let body = encode(message)?;
    loop {
        match send_encoded(socket, &body, fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !message::wait_writable(socket, Some(timeout))? {
                    return Err(io::Error::from(io::ErrorKind::TimedOut));
                }
            }
            other => return other,
        }
    }
}

/// Encodes a message for [`send_encoded`].
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

/// Receives a message if there is one. Returns `None` if the other end is closed. Fails with `WouldBlock` rather than
/// wait.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    // Keep the buffer small: a fork copies each page that is written to.
    let next = match message::next_length(socket) {
        // The other end was closed with unread messages. Messages that it sent before are still available.
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

/// Decodes a message's body. Extra bytes are an error.
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

    fn start(words: usize) -> Request {
        Request::Start(Start {
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
            let (request, fds) = receive::<Request>(b.as_fd()).unwrap().unwrap();
            assert_eq!((request, fds.len()), (start(words), 1));
        }
        assert!(encode(&start(100_000)).is_err());
        drop(a);
        assert!(receive::<Request>(b.as_fd()).unwrap().is_none());
    }

    /// Promise (Posture): Evidence of an earlier sandbox is reused only if no relevant property differs.
    #[test]
    fn evidence_is_as_expected_only_when_nothing_that_counts_differs() {
        let expected = Evidence { outside_uid: 7, disk_bytes: 4096, ..Evidence::default() };
        let other = Evidence { outside_uid: 8, group_base: (1, 2, 3), ..expected.clone() };
        assert!(other.matches(&expected));
        assert!(!Evidence { outside_uid: 0, ..other.clone() }.matches(&expected));
        assert!(!Evidence { members: 1, ..other.clone() }.matches(&expected));
        assert!(!Evidence { pid: 2, ..other.clone() }.matches(&expected));
        assert!(!Evidence { ids: (1, 1), ..other.clone() }.matches(&expected));
        assert!(!Evidence { seccomp: true, ..other.clone() }.matches(&expected));
        assert!(!Evidence { capabilities: [1, 0, 0], ..other.clone() }.matches(&expected));
        assert!(!Evidence { disk_bytes: 8192, ..other }.matches(&expected));
    }

    proptest! {
        /// Promise (Process isolation): No message from inside a process sandbox harms the supervisor.
        #[test]
        fn garbage_is_refused_or_read_but_never_harms(body in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Request>(&body);
            let _ = decode::<Event>(&body);
            let _ = decode::<LauncherRequest>(&body);
            let _ = decode::<Create>(&body);
            let _ = decode::<Configure>(&body);
            let _ = decode::<Hello>(&body);
        }
    }
}
