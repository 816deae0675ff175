//! How a guest is to be run.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Access, Limits, WORKSPACE_PATH};
use cofferdam_linux::landlock::access;
use cofferdam_linux::seccomp;

/// Whether the control groups that are seen inside are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Groups {
    /// Where they are the enclosure's own.
    #[default]
    Look,
    /// Never: the agent sums up what the processes use, as on a kernel without control groups.
    Never,
}

/// What guests may do with a place and all below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// A directory or a file; one that does not exist is passed over.
    pub path: String,
    /// File rights as [`access`] names them.
    pub rights: u64,
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ending {
    /// As a clause, such as "the container was removed by somebody else".
    pub why: String,
    /// What can be done about it.
    pub remedy: Option<String>,
    /// The memory limit ended the whole enclosure.
    pub out_of_memory: bool,
}

impl Ending {
    /// An ending with a reason and nothing more.
    pub fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), ..Self::default() }
    }
}

/// Asks the owner why the connection ended, once, when it has ended by itself; `None` leaves it at what the connection
/// itself showed. It has two seconds.
pub type Reason = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = Option<Ending>> + Send>> + Send + Sync>;

/// Reads the CPU microseconds that the host itself counts of an enclosure; `None` where it cannot now.
pub type ReadCpu = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Option<u64>> + Send>> + Send + Sync>;

/// What the host counts of an enclosure by its own means. The agent's word is only a refinement of it.
#[derive(Clone)]
pub enum Meter {
    /// The counter that the agent reads, read from outside. It replaces the agent's.
    Same(ReadCpu),
    /// A counter of the enclosure together with its monitor. The agent's count is bounded by it, and replaced by it while
    /// the agent does not answer.
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

/// How a guest is to be run.
pub struct Settings {
    /// The workspace inside. Default `/workspace`.
    pub workspace: String,
    /// Where scripts are put, one directory each. Made if it is missing; its parent must exist. Default
    /// `/tmp/.cofferdam-code`.
    pub code: String,
    /// Directories whose file systems are the enclosure's own: what is stored there counts as its disk use. Default the
    /// workspace and `/tmp`.
    pub stores: Vec<String>,
    /// PATH of every exec.
    pub path: String,
    /// What else every exec has in its environment. Default HOME and LANG.
    pub env: Vec<(String, String)>,
    /// The filter of system calls for agent and guests; `None` for none. The key for marks is added.
    pub filter: Option<seccomp::Options>,
    /// Whether the agent keeps quotas of file locks, netlink and listening sockets, and of processes where `limits` has a
    /// number of these: where guests share a kernel with others, which has no limits for them. Default false.
    pub quotas: bool,
    /// Landlock rules for guests; empty for none. They hold where the kernel has Landlock, as the evidence says.
    pub rules: Vec<Rule>,
    /// Memory and CPU time are watched by the agent where no control group of the enclosure's can be read.
    pub limits: Limits,
    /// Whether control groups are read.
    pub groups: Groups,
    /// Time without a word from the host after which the agent ends. Default 60 s.
    pub silence: Duration,
    /// Time that the agent has for an answer. Default 60 s.
    pub patience: Duration,
    /// What the host counts itself, if anything. It must be readable.
    pub meter: Option<Meter>,
    /// Asked why, when the connection ends by itself.
    pub reason: Option<Reason>,
    /// Where the agent's program is inside, where it is to be compared with [`AGENT`](crate::AGENT) before anything else:
    /// one that was damaged may still greet. A difference fails the connection as a missing greeting does.
    pub program: Option<String>,
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
            limits: Limits::default(),
            groups: Groups::Look,
            silence: Duration::from_secs(60),
            patience: Duration::from_secs(60),
            meter: None,
            reason: None,
            program: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("workspace", &self.workspace).finish_non_exhaustive()
    }
}

/// Rules for an enclosure whose writable places are the workspace, `/tmp` and `/dev/shm`: what the mounts forbid anyway,
/// and a workspace that is read-only for guests while the file API can still fill it.
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
