//! What host and agent say to each other. Both sides are built from this file: it uses no library and allocates nothing.
//!
//! A frame is four bytes of length, one of kind, eight of the id of what it is about, and a body. The host chooses ids,
//! each once; 0 is the connection itself. What is longer than a body comes in parts, which only orders may. Numbers are
//! little-endian, texts have their length before them.
//!
//! ```text
//! host --Hello, probes, Configure--> agent      host <--Hello, answers-- agent
//! host --Start--> <--Started-- <--Output... --Input...--> <--Credit... --Signal--> <--Ended--
//! host --Read--> <--Opened-- <--Data... --More--> <--Done--
//! host --Write--> --Data...--> <--Credit... --Finish--> <--Done--
//! host --Hold--> <--Held--, silence of both, --Release--> <--Done--
//! host --Hold--> <--Held--, copied, another host --Renew--> <--Renewed-- --probes--> --Release--> <--Done--
//! ```

mod read;
mod write;

pub use read::Reader;
pub use write::put_text;

/// What a greeting begins with.
pub const MAGIC: u32 = 0x4346_4744;
/// The version of everything here.
pub const VERSION: u32 = 5;
/// Bytes before a body.
pub const HEAD: usize = 13;
/// The longest body.
pub const MAX_BODY: usize = 64 * 1024;
/// The longest order, all parts together: arguments and environment of an exec, and something around them.
pub const MAX_ORDER: usize = 4 << 20;
/// Bytes of data that one frame carries.
pub const MAX_DATA: usize = 60 * 1024;
/// Bytes of input for an exec, or of contents for a file, that may be on their way before more are asked for.
pub const WINDOW: usize = 64 * 1024;
/// The longest path, in bytes.
pub const MAX_PATH: usize = 4096;
/// Files and directories that can be open at the same time for orders.
pub const MAX_JOBS: usize = 64;
/// Programs of execs that can run at the same time.
pub const MAX_EXECS: usize = 512;
/// Processes whose CPU time is told apart at most, since that takes time of the agent's. What others use is everybody's.
pub const MAX_SHARES: usize = 64;
/// What an agent that takes connections says first on each, before any frame: that it was taken.
pub const TAKEN: u8 = 6;
/// A number that is not known.
pub const NONE: u64 = u64::MAX;

/// Where encoded bytes go.
pub trait Sink {
    /// Takes some more.
    fn put(&mut self, bytes: &[u8]);
}

/// Where a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The workspace.
    Workspace = 0,
    /// The directory of scripts.
    Code = 1,
}

/// Texts one after the other, as they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Texts<'a> {
    count: usize,
    encoded: &'a [u8],
}

impl<'a> Texts<'a> {
    /// Texts that [`put_text`] encoded.
    pub fn new(count: usize, encoded: &'a [u8]) -> Self {
        Self { count, encoded }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// At least as many bytes as all texts have together.
    pub fn size(&self) -> usize {
        self.encoded.len()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader::new(self.encoded);
        (0..self.count).map_while(move |_| reader.text())
    }
}

/// A program to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start<'a> {
    /// The exec's number: that of the frame.
    pub exec: u64,
    /// Program and arguments.
    pub argv: Texts<'a>,
    /// Names and values, in turn.
    pub env: Texts<'a>,
    /// Where to start.
    pub directory: &'a [u8],
    /// Rows and columns of the terminal to make.
    pub terminal: Option<(u16, u16)>,
    /// Whether input will come.
    pub input: bool,
}

/// How the agent is to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configure<'a> {
    /// The workspace's directory.
    pub workspace: &'a [u8],
    /// The directory of scripts, made if it is not there.
    pub code: &'a [u8],
    /// Directories whose file systems count as the sandbox's own.
    pub stores: Texts<'a>,
    /// Which control groups to read: 0 none, 1 or 2.
    pub groups: u8,
    /// Bytes of memory at which to kill, where the agent watches.
    pub watch_memory: Option<u64>,
    /// CPU microseconds of an exec at which to kill, where the agent watches.
    pub watch_cpu: Option<u64>,
    /// What marks a process: the arguments of `prlimit64`.
    pub mark: Option<(u64, u64)>,
    /// Microseconds without a word from the host after which to end.
    pub silence: u64,
    /// Instructions of the filter of system calls; none for no filter.
    pub filter: &'a [u8],
    /// Instructions of the filter that notifies the agent of what has a quota; none for no quotas.
    pub quotas: &'a [u8],
    /// Processes of guests that there may be at once, of which `quotas` has notifications then.
    pub max_processes: Option<u64>,
    /// File rights that Landlock governs for guests; 0 for no rules.
    pub rights: u64,
    /// Scopes that Landlock governs for guests.
    pub scopes: u64,
    /// Paths and the rights on them, in turn; rights are a text of eight bytes.
    pub rules: Texts<'a>,
}

/// What another host gives to the agent of a copied machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renew<'a> {
    /// Microseconds without a word from the host after which to end.
    pub silence: u64,
    /// Seconds and nanoseconds of the time of day.
    pub now: (u64, u32),
    /// For random numbers.
    pub entropy: &'a [u8; 64],
    /// The machine's id.
    pub machine_id: &'a [u8; 16],
    /// The id of the kernel's start.
    pub boot_id: &'a [u8; 16],
    /// The machine's name.
    pub hostname: &'a [u8],
}

/// A look at the agent's surroundings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe<'a> {
    /// A file's contents from this byte on, as much as one answer holds.
    File { path: &'a [u8], from: u32 },
    /// Whether it can be opened, by a process under the rules for guests if `confined`; what was made is removed again.
    Open { path: &'a [u8], flags: u32, confined: bool },
    /// What kind of file it is, its number, and where it points if it is a link.
    Stat { path: &'a [u8] },
    /// Room of the file system there.
    Space { path: &'a [u8] },
    /// How many entries a directory has, at most 64 are counted.
    Entries { path: &'a [u8] },
    /// A system call, tried by a process that ends right after it.
    Call { number: u64, arguments: [u64; 5] },
    /// The kernel's version of Landlock.
    Landlock,
    /// Whether processes can be marked with these arguments of `prlimit64`.
    Mark { key: (u64, u64) },
    /// Privileges, filter, capabilities, processors.
    Confinement,
    /// Whether Landlock refuses what no rule allows.
    Denial,
    /// Whether processes can be marked with the arguments that the agent was configured with.
    Marked,
}

/// What to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Make<'a> {
    /// A directory with these permissions. It may be there already.
    Directory { mode: u32 },
    /// A symbolic link to this.
    Symlink { target: &'a [u8] },
    /// Another name of this file.
    Link { target: &'a [u8] },
}

/// What the host asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order<'a> {
    /// The greeting.
    Hello { magic: u32, version: u32 },
    /// How to work. Once, before anything is started.
    Configure(Configure<'a>),
    /// A look.
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
    /// Open a file and send as many bytes.
    Read { root: Root, path: &'a [u8], window: u32 },
    /// Send more bytes.
    More { bytes: u32 },
    /// Make or replace a file. With `strict`, no link is followed.
    Write { root: Root, path: &'a [u8], strict: bool },
    /// Bytes for a file.
    Data { data: &'a [u8] },
    /// The file is whole: permissions, and the time of its change if that is to be set.
    Finish { mode: u32, modified: Option<(i64, u32)> },
    /// Give up what has this id.
    Forget,
    /// List a directory; links' targets too.
    List { root: Root, path: &'a [u8] },
    /// Remove a file, or a directory with all below it.
    Remove { root: Root, path: &'a [u8] },
    /// Make something. No link is followed.
    Make { root: Root, path: &'a [u8], make: Make<'a> },
    /// Set permissions and the time of the last change. No link is followed.
    Adjust { root: Root, path: &'a [u8], mode: Option<u32>, modified: Option<(i64, u32)> },
    /// What is used.
    Count,
    /// What is used, and whose CPU time it was.
    Shares,
    /// Stop everything but the agent, or let it go on.
    Freeze { on: bool },
    /// Say something.
    Ping,
    /// End.
    End,
    /// Stop everything but the agent, send what there is, and say nothing more.
    Hold,
    /// Let everything go on after that.
    Release,
    /// Go on as another machine's agent, for another host. Only what is held can be renewed; it stays stopped.
    Renew(Renew<'a>),
}

/// What the agent counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// CPU microseconds of the sandbox.
    pub cpu_micros: Option<u64>,
    /// Bytes of memory in use.
    pub memory: Option<u64>,
    /// The most bytes of memory in use.
    pub peak: Option<u64>,
    /// Kills for memory.
    pub kills: Option<u64>,
    /// Forks refused.
    pub refused: Option<u64>,
    /// Processes and threads, the agent counted.
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
    /// How many names it has.
    pub links: u32,
    /// Its number.
    pub inode: u64,
    /// Its length.
    pub size: u64,
    /// The time of its last change.
    pub modified: (i64, u32),
    /// Its name.
    pub name: &'a [u8],
    /// Where it points, if it is a link.
    pub target: &'a [u8],
}

/// What the agent says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The greeting.
    Hello { magic: u32, version: u32, pid: u32 },
    /// An order was carried out, or why not. Of a special file `kind` says what it is, as in a mode.
    Done { errno: i32, kind: u32 },
    /// What a probe found.
    Probed { errno: i32, value: u64, data: &'a [u8] },
    /// An exec runs; counts from just before.
    Started { counts: Counts },
    /// An exec could not be started.
    NotStarted { failure: NotStarted },
    /// What an exec wrote; the second stream is standard error.
    Output { second: bool, data: &'a [u8] },
    /// An exec's program ended, and all it wrote was sent.
    Ended { status: i32, peak_bytes: u64, cpu_micros: u64, counts: Counts },
    /// So many more bytes may be sent.
    Credit { bytes: u32 },
    /// A limit was passed, and everything killed: memory, else CPU time.
    LimitPassed { memory: bool },
    /// A file was opened.
    Opened { size: u64, mode: u32 },
    /// Bytes of a file.
    Data { data: &'a [u8] },
    /// Entries of a directory.
    Entries { entries: &'a [u8] },
    /// What is used.
    Counted { counts: Counts },
    /// What is used. Before that was counted: marks, and what processes that bear them used at least; see [`read_shares`].
    Shares { counts: Counts, used: &'a [u8] },
    /// Something, since it was asked for.
    Pong,
    /// The last frame of an agent that is held.
    Held,
    /// It is another machine's agent; ids of execs whose end was not told yet.
    Renewed { version: u32, execs: &'a [u8] },
}

/// The step that failed, and the system's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotStarted {
    /// What failed.
    pub step: Step,
    /// The system's error number.
    pub errno: i32,
}

/// The steps of starting a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// No process could be made.
    Fork = 1,
    /// The starting directory could not be entered.
    Directory = 2,
    /// Descriptors, limits, rules or the terminal could not be set.
    Prepare = 3,
    /// The program could not be executed.
    Execute = 4,
}

/// A frame as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it is.
    pub kind: u8,
    /// What it is about.
    pub id: u64,
    /// The rest.
    pub body: &'a [u8],
}

/// Marks and the CPU microseconds of each; `None` for what no agent sends.
pub fn read_shares(used: &[u8]) -> Option<impl Iterator<Item = (u64, u64)>> {
    let (words, rest) = used.as_chunks::<8>();
    let (pairs, odd) = words.as_chunks::<2>();
    let whole = rest.is_empty() && odd.is_empty() && pairs.len() <= MAX_SHARES;
    whole.then(|| pairs.iter().map(|[mark, micros]| (u64::from_le_bytes(*mark), u64::from_le_bytes(*micros))))
}

/// The kind of a frame that holds a part of a long order.
pub const PART: u8 = 255;

/// What the beginning of some bytes is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split<'a> {
    /// A frame, and its length with all.
    Frame(Frame<'a>, usize),
    /// Not all of a frame.
    More,
    /// No frame.
    Rubbish,
}

/// Finds the first frame of some bytes.
pub fn split(bytes: &[u8]) -> Split<'_> {
    let mut reader = Reader::new(bytes);
    let Some(length) = reader.u32() else { return Split::More };
    let length = length as usize;
    if !(HEAD - 4..=HEAD - 4 + MAX_BODY).contains(&length) {
        return Split::Rubbish;
    }
    if reader.left() < length {
        return Split::More;
    }
    match (reader.u8(), reader.u64(), bytes.get(HEAD..length + 4)) {
        (Some(kind), Some(id), Some(body)) => Split::Frame(Frame { kind, id, body }, length + 4),
        _ => Split::Rubbish,
    }
}

/// What stands before a body.
pub fn head(kind: u8, id: u64, length: usize) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    let length = (HEAD - 4 + length) as u32;
    for (slot, byte) in head.iter_mut().zip(length.to_le_bytes().into_iter().chain([kind]).chain(id.to_le_bytes())) {
        *slot = byte;
    }
    head
}
