//! The protocol between host and agent. Both sides are built from this file, so it uses no library and does not
//! allocate.
//!
//! A frame consists of four bytes of length, one of kind, eight of the request's id, and a body. The host chooses ids
//! and uses each once; 0 is the connection itself. A request that is longer than one body comes in parts. Numbers are
//! little-endian, and texts follow their length.
//!
//! ```text
//! host --Hello, probes, Configure--> agent      host <--Hello, answers-- agent
//! host --Start--> <--Started-- <--Output... --Input...--> <--Credit... --Signal--> <--Ended--
//! host --Read--> <--Opened-- <--Data... --More--> <--Done--
//! host --Write--> --Data...--> <--Credit... --Finish--> <--Done--
//! host --Listen--> <--Done-- <--Query... --Response...--> <--Requested...
//! host --Accept, Connect--> <--Connected-- <--Data... --More--> --Input...--> <--Credit...
//!      --InputEnd--> <--DataEnd-- <--Done--
//! host --Watch--> <--Opened-- <--Data... --More-->
//! host --Mark--> <--Marked-- <--Entries... <--Done--      --Unmark-->
//! host --Quiesce--> <--Quiesced--, silence of both, --Release--> <--Done--
//! host --Quiesce--> <--Quiesced--, copied, another host --Reseed--> <--Reseeded-- --probes--> --Release--> <--Done--
//! ```

mod read;
mod write;

pub use read::Reader;
pub use write::put_text;

/// The number at the beginning of a greeting.
pub const MAGIC: u32 = 0x4346_4744;
/// The version of the protocol.
pub const VERSION: u32 = 9;
/// The length of the part before a body.
pub const HEAD: usize = 13;
/// The maximum length of a body.
pub const MAX_BODY: usize = 64 * 1024;
/// The maximum length of a request, all parts together. It bounds the arguments and environment of an exec.
pub const MAX_REQUEST: usize = 4 << 20;
/// The maximum number of bytes of data in one frame.
pub const MAX_DATA: usize = 60 * 1024;
/// The maximum number of bytes in transit of an exec's input, or of a file's contents.
pub const WINDOW: usize = 64 * 1024;
/// The maximum length of a path in bytes.
pub const MAX_PATH: usize = 4096;
/// The maximum number of files and directories that are open for requests at the same time.
pub const MAX_JOBS: usize = 64;
/// The maximum number of watches of directory trees.
pub const MAX_WATCHES: usize = 8;
/// The maximum number of execs that run at the same time.
pub const MAX_EXECS: usize = 512;
/// The maximum number of TCP ports on which the agent listens for the gateway: those of a policy, and the proxy's.
pub const MAX_PORTS: usize = 129;
/// The maximum number of connections, of guests and of the host together.
pub const MAX_CONNECTIONS: usize = 128;
/// The maximum length of a query to the resolver, and the number of queries without a response.
pub const MAX_QUERY: usize = 512;
pub const MAX_QUERIES: usize = 32;
/// The address of the resolver inside. All addresses of 127.0.0.0/8 lead to the sandbox itself without a setting.
pub const RESOLVER: [u8; 4] = [127, 64, 0, 1];
/// The port of the resolver.
pub const RESOLVER_PORT: u16 = 53;
/// The byte that a listening agent sends before any frame on each accepted connection.
pub const TAKEN: u8 = 6;
/// The encoding of an unknown number.
pub const NONE: u64 = u64::MAX;

/// A destination of encoded bytes.
pub trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

/// The base of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The workspace.
    Workspace = 0,
    /// The directory of scripts.
    Code = 1,
}

/// A sequence of encoded texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Texts<'a> {
    count: usize,
    encoded: &'a [u8],
}

impl<'a> Texts<'a> {
    /// Creates a sequence of texts that [`put_text`] encoded.
    pub fn new(count: usize, encoded: &'a [u8]) -> Self {
        Self { count, encoded }
    }

    /// Returns the number of texts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns an upper bound of the total length of the texts.
    pub fn size(&self) -> usize {
        self.encoded.len()
    }

    /// Returns an iterator of the texts.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader::new(self.encoded);
        (0..self.count).map_while(move |_| reader.text())
    }
}

/// A program to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start<'a> {
    /// The exec's id, which is the id of the frame.
    pub exec: u64,
    /// Program and arguments.
    pub argv: Texts<'a>,
    /// Names and values, in turn.
    pub env: Texts<'a>,
    /// The working directory.
    pub directory: &'a [u8],
    /// Rows and columns of the terminal, if the exec has one.
    pub terminal: Option<(u16, u16)>,
    /// True if input will follow.
    pub input: bool,
}

/// The configuration of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configure<'a> {
    /// The workspace's directory.
    pub workspace: &'a [u8],
    /// The directory of scripts, which the agent creates if it is missing.
    pub code: &'a [u8],
    /// Directories whose file systems belong to the sandbox alone.
    pub stores: Texts<'a>,
    /// The version of the control groups to read: 0 none, 1 or 2.
    pub groups: u8,
    /// Bytes of memory at which the agent kills, if it enforces the limit.
    pub watch_memory: Option<u64>,
    /// CPU microseconds since the start of an exec at which the agent kills, if it enforces the limit.
    pub watch_cpu: Option<u64>,
    /// The key of exec tags: the arguments of `prlimit64`.
    pub tag: Option<(u64, u64)>,
    /// Microseconds without a frame from the host after which the agent exits.
    pub silence: u64,
    /// Instructions of the system call filter; empty for no filter.
    pub filter: &'a [u8],
    /// Instructions of the filter that notifies the agent of system calls with a quota; empty for no quotas.
    pub quotas: &'a [u8],
    /// The maximum number of processes of guests. If it is set, `quotas` notifies the agent of new processes.
    pub max_processes: Option<u64>,
    /// File rights that Landlock restricts for guests; 0 for no rules.
    pub rights: u64,
    /// Scopes that Landlock restricts for guests.
    pub scopes: u64,
    /// Paths and the rights on them, in turn; rights are a text of eight bytes.
    pub rules: Texts<'a>,
}

/// Values that another host sends to the agent of a copied VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reseed<'a> {
    /// Microseconds without a frame from the host after which the agent exits.
    pub silence: u64,
    /// Seconds and nanoseconds of the time of day.
    pub now: (u64, u32),
    /// The seed of random numbers.
    pub entropy: &'a [u8; 64],
    /// The VM's machine id.
    pub machine_id: &'a [u8; 16],
    /// The kernel's boot id.
    pub boot_id: &'a [u8; 16],
    /// The VM's host name.
    pub hostname: &'a [u8],
}

/// A measurement of the agent's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe<'a> {
    /// Read a file from this byte on, as much as one answer can contain.
    File { path: &'a [u8], from: u32 },
    /// Try to open a path, by a process under the rules for guests if `confined`. Removes a file that this creates.
    Open { path: &'a [u8], flags: u32, confined: bool },
    /// Read the type of a file, its inode number, and its target if it is a link.
    Stat { path: &'a [u8] },
    /// Read the space of a file system.
    Space { path: &'a [u8] },
    /// Count the entries of a directory, at most 64.
    Entries { path: &'a [u8] },
    /// Try a system call in a process that exits after it.
    Call { number: u64, arguments: [u64; 5] },
    /// Read the Landlock version of the kernel.
    Landlock,
    /// Try to set an exec tag with these arguments of `prlimit64`.
    Tag { key: (u64, u64) },
    /// Read privileges, filter, capabilities and processors.
    Confinement,
    /// Check that Landlock refuses everything without a rule.
    Denial,
    /// Try to set an exec tag with the configured arguments.
    ConfiguredTag,
}

/// The kind of entry to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Make<'a> {
    /// A directory with these permissions. It may exist already.
    Directory { mode: u32 },
    /// A symbolic link to this target.
    Symlink { target: &'a [u8] },
    /// Another name of this file.
    Link { target: &'a [u8] },
}

/// A request of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// The greeting.
    Hello { magic: u32, version: u32 },
    /// Configure the agent. Sent once, before any program is started.
    Configure(Configure<'a>),
    /// Carry out a probe.
    Probe(Probe<'a>),
    /// Start a program.
    Start(Start<'a>),
    /// Signal everything that an exec started: SIGKILL, else SIGTERM.
    Signal { kill: bool },
    /// Bytes for an exec's standard input.
    Input { data: &'a [u8] },
    /// The end of an exec's standard input.
    InputEnd,
    /// Another size of an exec's terminal.
    Resize { rows: u16, columns: u16 },
    /// Open a file and send up to this number of bytes.
    Read { root: Root, path: &'a [u8], window: u32 },
    /// Send more bytes.
    More { bytes: u32 },
    /// Create or replace a file. With `strict`, no link is followed.
    Write { root: Root, path: &'a [u8], strict: bool },
    /// Bytes for a file.
    Data { data: &'a [u8] },
    /// Complete a file: set its permissions, and the time of its last change if it is given.
    Finish { mode: u32, modified: Option<(i64, u32)> },
    /// Cancel the request with this id.
    Forget,
    /// List a directory; links' targets too.
    List { root: Root, path: &'a [u8] },
    /// Remove a file, or a directory with all below it.
    Remove { root: Root, path: &'a [u8] },
    /// Rename a file, link or directory.
    Rename { root: Root, path: &'a [u8], to: &'a [u8] },
    /// Create a directory or link. No link is followed.
    Make { root: Root, path: &'a [u8], make: Make<'a> },
    /// Set permissions and the time of the last change. No link is followed.
    Adjust { root: Root, path: &'a [u8], mode: Option<u32>, modified: Option<(i64, u32)> },
    /// Report the usage.
    Count,
    /// Stop or resume all processes but the agent.
    Freeze { on: bool },
    /// Request a sign of life.
    Ping,
    /// Exit.
    End,
    /// Stop all processes but the agent, send all pending answers, and then no more frames.
    Quiesce,
    /// Resume a quiesced agent and its guests.
    Release,
    /// Become the agent of another VM, for another host. The agent must be quiesced; guests stay stopped.
    Reseed(Reseed<'a>),
    /// Listen on these TCP ports, each of two bytes, and as resolver, before any program is started. The answers have
    /// the queries.
    Listen { ports: &'a [u8] },
    /// The response to a query; empty for none.
    Response { from: &'a [u8; 7], data: &'a [u8] },
    /// Wait for the next connection of a guest, and send up to this number of its bytes.
    Accept { window: u32 },
    /// Connect to a TCP port of the loopback address, and send up to this number of bytes.
    Connect { port: u16, window: u32 },
    /// Create an inotify instance, and send up to this number of bytes of its events.
    Watch { window: u32 },
    /// Watch a directory of the workspace by the instance of the request `watch`, for the kinds of changes in `mask`.
    /// With `list`, list its entries after that. No link is followed.
    Mark { watch: u64, path: &'a [u8], mask: u32, list: bool },
    /// End a watch of an instance. Has no answer.
    Unmark { wd: i32 },
}

/// The counters of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// CPU microseconds of the sandbox.
    pub cpu_micros: Option<u64>,
    /// Bytes of memory in use.
    pub memory: Option<u64>,
    /// The peak of bytes of memory in use.
    pub peak: Option<u64>,
    /// Kills by the memory limit.
    pub kills: Option<u64>,
    /// Forks refused.
    pub refused: Option<u64>,
    /// Processes and threads, including the agent.
    pub tasks: Option<u64>,
    /// Bytes stored.
    pub stored: Option<u64>,
    /// Stores without a free byte or file.
    pub full: Option<u64>,
}

/// One entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Kind and permissions.
    pub mode: u32,
    /// The number of hard links.
    pub links: u32,
    /// The inode number.
    pub inode: u64,
    /// The length.
    pub size: u64,
    /// The time of the last change.
    pub modified: (i64, u32),
    /// The name.
    pub name: &'a [u8],
    /// The target, if it is a link.
    pub target: &'a [u8],
}

/// An answer of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The greeting.
    Hello { magic: u32, version: u32, pid: u32 },
    /// The result of a request. For a special file, `kind` has its type bits of the mode.
    Done { errno: i32, kind: u32 },
    /// The result of a probe.
    Probed { errno: i32, value: u64, data: &'a [u8] },
    /// An exec runs. The counts are from just before.
    Started { counts: Counts },
    /// An exec could not be started.
    NotStarted { failure: NotStarted },
    /// Output of an exec. The second stream is standard error.
    Output { second: bool, data: &'a [u8] },
    /// An exec's program has ended, and all its output was sent.
    Ended { status: i32, peak_bytes: u64, cpu_micros: u64, counts: Counts },
    /// This many more bytes may be sent.
    Credit { bytes: u32 },
    /// A limit was exceeded, and all processes were killed: memory, else CPU time.
    LimitPassed { memory: bool },
    /// A file was opened.
    Opened { size: u64, mode: u32 },
    /// Bytes of a file.
    Data { data: &'a [u8] },
    /// Entries of a directory.
    Entries { entries: &'a [u8] },
    /// The usage.
    Counted { counts: Counts },
    /// A sign of life.
    Pong,
    /// The last frame of a quiesced agent.
    Quiesced,
    /// The agent has become another VM's. Contains the ids of execs whose end was not reported yet.
    Reseeded { version: u32, execs: &'a [u8] },
    /// A query of a guest to the resolver. The response returns `from`, which identifies its socket and its sender.
    Query { from: &'a [u8; 7], data: &'a [u8] },
    /// A connection is open; its local address.
    Connected { address: [u8; 4], port: u16 },
    /// The guest sends no more bytes on a connection.
    DataEnd,
    /// A directory is watched, under this number.
    Marked { wd: i32 },
    /// A program has requested a connection to this address and port, on which the agent may not listen. Only agents
    /// that see connection attempts send it.
    Requested { address: [u8; 4], port: u16 },
}

/// The failed step and its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotStarted {
    /// The failed step.
    pub step: Step,
    /// The error number.
    pub errno: i32,
}

/// The steps of starting a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Creating a process.
    Fork = 1,
    /// Entering the working directory.
    Directory = 2,
    /// Setting descriptors, limits, rules or the terminal.
    Prepare = 3,
    /// Executing the program.
    Execute = 4,
}

/// A received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind.
    pub kind: u8,
    /// The id.
    pub id: u64,
    /// The body.
    pub body: &'a [u8],
}

/// The kind of a frame with a part of a long request.
pub const PART: u8 = 255;

/// The first frame of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split<'a> {
    /// A frame and its total length.
    Frame(Frame<'a>, usize),
    /// The beginning of a frame.
    More,
    /// An invalid frame.
    Invalid,
}

/// Finds the first frame of some bytes.
pub fn split(bytes: &[u8]) -> Split<'_> {
    let mut reader = Reader::new(bytes);
    let Some(length) = reader.u32() else { return Split::More };
    let length = length as usize;
    if !(HEAD - 4..=HEAD - 4 + MAX_BODY).contains(&length) {
        return Split::Invalid;
    }
    if reader.left() < length {
        return Split::More;
    }
    match (reader.u8(), reader.u64(), bytes.get(HEAD..length + 4)) {
        (Some(kind), Some(id), Some(body)) => Split::Frame(Frame { kind, id, body }, length + 4),
        _ => Split::Invalid,
    }
}

/// Encodes the part before a body.
pub fn head(kind: u8, id: u64, length: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let length = (HEAD - 4 + length) as u32;
    for (slot, byte) in head.iter_mut().zip(length.to_le_bytes().into_iter().chain([kind]).chain(id.to_le_bytes())) {
        *slot = byte;
    }
    head
}
