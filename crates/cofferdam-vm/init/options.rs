//! What the init is told, as words of the kernel's command line. Both sides are built from this file: it uses no library
//! and allocates nothing.
//!
//! ```text
//! cofferdam.root=serial:NAME            the disk with the root file system; or the kernel's name for it, such as vda
//! cofferdam.workspace=DISK|BYTES:FILES  a disk as above, or memory
//! cofferdam.tmp=BYTES:FILES  cofferdam.shm=BYTES:FILES
//! cofferdam.user=UID:GID  cofferdam.port=NAME|vsock:NUMBER
//! cofferdam.memory=BYTES  cofferdam.tasks=COUNT  cofferdam.cpu=MICROSECONDS   bounds of the sandbox; none where missing
//! ```
//!
//! A word that begins with `cofferdam.` and is none of these, comes twice, or has no value of its kind is an error.

use core::fmt;

/// What all words of ours begin with.
const PREFIX: &[u8] = b"cofferdam.";
/// The longest name of a disk: the kernel keeps no more of a serial number.
pub const MAX_DISK: usize = 20;
/// The longest name of a port.
pub const MAX_PORT: usize = 32;
/// The time over which a share of the processors is kept, in microseconds.
pub const CPU_PERIOD: u64 = 100_000;

/// A disk of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk<'a> {
    /// By the serial number that its monitor gave it.
    Serial(&'a [u8]),
    /// By the kernel's name, which says in which order disks were found.
    Name(&'a [u8]),
}

/// Where the host and the agent find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port<'a> {
    /// At a port of the console's device, by its name.
    Name(&'a [u8]),
    /// At a port of the machine's vsock, to which the host connects.
    Vsock(u32),
}

/// How much a file system in memory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
}

/// Where the workspace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store<'a> {
    /// On a disk with a file system.
    Disk(Disk<'a>),
    /// In memory.
    Memory(Room),
}

/// Everything that the init is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options<'a> {
    /// The disk with the root file system.
    pub root: Disk<'a>,
    /// The workspace.
    pub workspace: Store<'a>,
    /// `/tmp`.
    pub tmp: Room,
    /// `/dev/shm`.
    pub shm: Room,
    /// User and group of agent and guests; neither is root.
    pub user: (u32, u32),
    /// Where the host is found.
    pub port: Port<'a>,
    /// Bytes of memory for agent and guests.
    pub memory: Option<u64>,
    /// Threads and processes of agent and guests.
    pub tasks: Option<u64>,
    /// Microseconds of processor time in each [`CPU_PERIOD`].
    pub cpu: Option<u64>,
}

impl<'a> Disk<'a> {
    /// Takes a word for a disk.
    pub fn parse(word: &'a [u8]) -> Option<Self> {
        disk(word)
    }
}

impl<'a> Port<'a> {
    /// Takes a word for a port.
    pub fn parse(word: &'a [u8]) -> Option<Self> {
        port(word)
    }
}

#[derive(Default)]
struct Found<'a> {
    root: Option<Disk<'a>>,
    workspace: Option<Store<'a>>,
    tmp: Option<Room>,
    shm: Option<Room>,
    user: Option<(u32, u32)>,
    port: Option<Port<'a>>,
    memory: Option<u64>,
    tasks: Option<u64>,
    cpu: Option<u64>,
}

impl<'a> Options<'a> {
    /// Finds them on a command line. Gives the word that is wrong, or the beginning of the one that is missing.
    pub fn parse(line: &'a [u8]) -> Result<Self, &'a [u8]> {
        let mut found = Found::default();
        let words = line.split(|byte| byte.is_ascii_whitespace());
        for word in words.filter(|word| word.starts_with(PREFIX)) {
            found.take(word).ok_or(word)?;
        }
        let user = found.user.ok_or(&b"cofferdam.user"[..])?;
        Ok(Self {
            root: found.root.ok_or(&b"cofferdam.root"[..])?,
            workspace: found.workspace.ok_or(&b"cofferdam.workspace"[..])?,
            tmp: found.tmp.ok_or(&b"cofferdam.tmp"[..])?,
            shm: found.shm.ok_or(&b"cofferdam.shm"[..])?,
            user,
            port: found.port.ok_or(&b"cofferdam.port"[..])?,
            memory: found.memory,
            tasks: found.tasks,
            cpu: found.cpu,
        })
    }
}

impl<'a> Found<'a> {
    fn take(&mut self, word: &'a [u8]) -> Option<()> {
        let word = word.strip_prefix(PREFIX)?;
        let at = word.iter().position(|&byte| byte == b'=')?;
        let (key, value) = (word.get(..at)?, word.get(at + 1..)?);
        match key {
            b"root" => set(&mut self.root, disk(value)),
            b"workspace" => set(&mut self.workspace, store(value)),
            b"tmp" => set(&mut self.tmp, room(value)),
            b"shm" => set(&mut self.shm, room(value)),
            b"user" => set(&mut self.user, user(value)),
            b"port" => set(&mut self.port, port(value)),
            b"memory" => set(&mut self.memory, number(value)),
            b"tasks" => set(&mut self.tasks, number(value)),
            b"cpu" => set(&mut self.cpu, number(value)),
            _ => None,
        }
    }
}

/// Puts a value into a place that is free.
fn set<T>(place: &mut Option<T>, value: Option<T>) -> Option<()> {
    if place.is_some() {
        return None;
    }
    *place = Some(value?);
    Some(())
}

fn is_name(name: &[u8], longest: usize) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte);
    (1..=longest).contains(&name.len()) && name.iter().all(plain)
}

fn disk(value: &[u8]) -> Option<Disk<'_>> {
    match value.strip_prefix(b"serial:") {
        Some(serial) => is_name(serial, MAX_DISK).then_some(Disk::Serial(serial)),
        // Only letters and digits: the name becomes part of a path.
        None => (is_name(value, MAX_DISK) && value.iter().all(u8::is_ascii_alphanumeric) && !starts_with_digit(value))
            .then_some(Disk::Name(value)),
    }
}

fn port(value: &[u8]) -> Option<Port<'_>> {
    match value.strip_prefix(b"vsock:") {
        // The largest stands for any.
        Some(port) => u32::try_from(number(port)?).ok().filter(|port| *port < u32::MAX).map(Port::Vsock),
        None => is_name(value, MAX_PORT).then_some(Port::Name(value)),
    }
}

fn starts_with_digit(value: &[u8]) -> bool {
    value.first().is_some_and(u8::is_ascii_digit)
}

fn store(value: &[u8]) -> Option<Store<'_>> {
    if starts_with_digit(value) { room(value).map(Store::Memory) } else { disk(value).map(Store::Disk) }
}

fn pair(value: &[u8]) -> Option<(u64, u64)> {
    let at = value.iter().position(|&byte| byte == b':')?;
    Some((number(value.get(..at)?)?, number(value.get(at + 1..)?)?))
}

fn room(value: &[u8]) -> Option<Room> {
    let (bytes, files) = pair(value)?;
    Some(Room { bytes, files })
}

fn user(value: &[u8]) -> Option<(u32, u32)> {
    let (uid, gid) = pair(value)?;
    // The largest means "no change" to the kernel.
    let ordinary = |id: u64| u32::try_from(id).ok().filter(|id| *id < u32::MAX);
    Some((ordinary(uid)?, ordinary(gid)?))
}

/// A number that is not 0, in digits only, without zeros before it.
fn number(value: &[u8]) -> Option<u64> {
    let first = value.first()?;
    if !(b'1'..=b'9').contains(first) {
        return None;
    }
    value.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Writes bytes that are known to be ASCII.
fn plain(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|&byte| fmt::Write::write_char(f, char::from(byte)))
}

impl fmt::Display for Disk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serial(serial) => {
                f.write_str("serial:")?;
                plain(f, serial)
            }
            Self::Name(name) => plain(f, name),
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.bytes, self.files)
    }
}

impl fmt::Display for Port<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => plain(f, name),
            Self::Vsock(port) => write!(f, "vsock:{port}"),
        }
    }
}

/// As words of a command line, which [`Options::parse`] takes.
impl fmt::Display for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { root, workspace, tmp, shm, user: (uid, gid), port, memory, tasks, cpu } = self;
        write!(f, "cofferdam.root={root} cofferdam.workspace=")?;
        match workspace {
            Store::Disk(disk) => write!(f, "{disk}")?,
            Store::Memory(room) => write!(f, "{room}")?,
        }
        write!(f, " cofferdam.tmp={tmp} cofferdam.shm={shm} cofferdam.user={uid}:{gid} cofferdam.port={port}")?;
        for (key, value) in [("memory", memory), ("tasks", tasks), ("cpu", cpu)] {
            if let Some(value) = value {
                write!(f, " cofferdam.{key}={value}")?;
            }
        }
        Ok(())
    }
}
