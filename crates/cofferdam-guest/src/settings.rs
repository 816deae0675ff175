//! Settings of a guest.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Access, Limits, WORKSPACE_PATH};
use cofferdam_linux::landlock::access;
use cofferdam_linux::seccomp;

/// The control groups that the agent reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Groups {
    /// The groups that are visible inside, if they belong to the enclosure alone.
    #[default]
    Detect,
    /// None. The agent sums up the usage of the processes, as on a kernel without control groups.
    Never,
}

/// Rights of guests on a path and on everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// A directory or a file. A path that does not exist is ignored.
    pub path: String,
    /// File rights as [`access`] names them.
    pub rights: u64,
}

/// The reason for the end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Termination {
    /// The reason as a clause, such as "the container was removed by another program".
    pub why: String,
    /// The remedy.
    pub remedy: Option<String>,
    /// True if the memory limit ended the whole enclosure.
    pub out_of_memory: bool,
}

impl Termination {
    /// Creates an ending with a reason and without a remedy.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), ..Self::default() }
    }
}

/// A function that returns the reason for a connection's end. It runs once, if the owner did not end the connection,
/// and has two seconds. If it returns `None`, the reason is the failure of the connection itself.
pub type Reason = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = Option<Termination>> + Send>> + Send + Sync>;

/// A function that reads the host's own count of an enclosure's CPU time in microseconds. It returns `None` if the
/// count cannot be read now.
pub type ReadCpu = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Option<u64>> + Send>> + Send + Sync>;

/// A counter of CPU time that the host reads itself. The agent's counts only refine it.
#[derive(Clone)]
pub enum Meter {
    /// The counter that the agent reads, read from outside. It replaces the agent's count.
    Same(ReadCpu),
    /// A counter of the enclosure together with its VMM. It bounds the agent's count, and replaces it while the agent
    /// does not answer.
    Around(ReadCpu),
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Same(_) => "Same",
            Self::Around(_) => "Around",
        })
    }
}

/// Settings of a guest.
pub struct Settings {
    /// The path of the workspace inside. Default `/workspace`.
    pub workspace: String,
    /// The directory for scripts, each in a directory of its own. The agent creates it if it is missing; its parent
    /// must exist. Default `/tmp/.cofferdam-code`.
    pub code: String,
    /// Directories whose file systems belong to the enclosure alone. Their contents count as its disk usage. Default
    /// the workspace and `/tmp`.
    pub stores: Vec<String>,
    /// PATH of every exec.
    pub path: String,
    /// Further environment variables of every exec. Default HOME and LANG.
    pub env: Vec<(String, String)>,
    /// The system call filter for the agent and guests; `None` for no filter. The agent adds the key of exec tags.
    pub filter: Option<seccomp::Options>,
    /// True if the agent enforces quotas of file locks, netlink sockets and listening sockets, and of processes if
    /// `limits` has a number of these. Meant for guests that share a kernel with other tenants, since the kernel has no
    /// such limits. Default false.
    pub quotas: bool,
    /// Landlock rules for guests; empty for none. They apply if the kernel has Landlock, which the evidence shows.
    pub rules: Vec<Rule>,
    /// Files and directories whose identity is measured. Default none.
    pub identified: Vec<String>,
    /// Limits. The agent enforces those of memory and CPU time if it cannot read a control group of the enclosure.
    pub limits: Limits,
    /// The control groups that the agent reads.
    pub groups: Groups,
    /// Time without a frame from the host after which the agent exits. Default 60 s.
    pub silence: Duration,
    /// Time limit for each answer of the agent. Default 60 s.
    pub answer_timeout: Duration,
    /// The host's own counter, if it has one. It must be readable.
    pub meter: Option<Meter>,
    /// The source of the reason if the owner did not end the connection.
    pub reason: Option<Reason>,
    /// The path of the agent's program inside, to compare it with [`AGENT`](crate::AGENT) before anything else; `None`
    /// for no comparison. A damaged program may still greet. If it differs, connecting fails as for a missing greeting.
    pub program: Option<String>,
    /// The TCP ports on which the agent listens for the gateway, and then also as resolver; `None` for no network.
    /// Needs the right to listen on them.
    pub ports: Option<Vec<u16>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workspace: WORKSPACE_PATH.to_owned(),
            code: "/tmp/.cofferdam-code".to_owned(),
            stores: vec![WORKSPACE_PATH.to_owned(), "/tmp".to_owned()],
            path: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            env: vec![("HOME".to_owned(), "/tmp".to_owned()), ("LANG".to_owned(), "C.UTF-8".to_owned())],
            filter: Some(seccomp::Options::default()),
            quotas: false,
            rules: usual_rules(Access::ReadWrite),
            identified: Vec::new(),
            limits: Limits::default(),
            groups: Groups::Detect,
            silence: Duration::from_secs(60),
            answer_timeout: Duration::from_secs(60),
            meter: None,
            reason: None,
            program: None,
            ports: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("workspace", &self.workspace).finish_non_exhaustive()
    }
}

/// Returns rules for an enclosure whose writable directories are the workspace, `/tmp` and `/dev/shm`. They repeat the
/// restrictions of the mounts. They can also make the workspace read-only for guests only, so that the file API can
/// fill it.
pub fn usual_rules(workspace: Access) -> Vec<Rule> {
    let read = access::READ | access::EXECUTE;
    let workspace = match workspace {
        Access::ReadWrite => access::ALL,
        Access::ReadOnly => read,
    };
    let device = access::READ | access::WRITE_FILE | access::IOCTL_DEV;
    let rule = |path: &str, rights| Rule { path: path.to_owned(), rights };
    vec![
        rule("/", read),
        rule("/dev", device),
        rule("/proc", read),
        rule("/tmp", access::ALL),
        rule("/dev/shm", access::ALL),
        rule(WORKSPACE_PATH, workspace),
    ]
}
