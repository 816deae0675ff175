//! The init's options, encoded in the kernel's command line. Both sides compile this file: it uses no library and
//! allocates nothing.
//!
//! ```text
//! cofferdam.root=serial:NAME            the disk with the root file system; or the kernel's name for it, such as vda
//! cofferdam.workspace=DISK|BYTES:FILES  a disk as above, or memory
//! cofferdam.tmp=BYTES:FILES  cofferdam.shm=BYTES:FILES
//! cofferdam.user=UID:GID  cofferdam.port=NAME|vsock:NUMBER
//! cofferdam.mount=PATH:ro|rw:DISK       a disk at a path, at most four of these words
//! cofferdam.memory=BYTES  cofferdam.tasks=COUNT  cofferdam.cpu=MICROSECONDS   limits of the sandbox, all optional
//! ```
//!
//! An unknown, repeated or malformed argument that starts with `cofferdam.` is an error.

use core::fmt;

/// Prefix of Cofferdam's arguments.
const PREFIX: &[u8] = b"cofferdam.";
/// Maximum length of a disk's name: the kernel truncates serial numbers to this length.
pub const MAX_DISK: usize = 20;
/// Maximum length of a port's name.
pub const MAX_PORT: usize = 32;
/// Maximum number of disks at paths of their own.
pub const MAX_MOUNTS: usize = 4;
/// Maximum length of the path of a disk.
pub const MAX_TARGET: usize = 128;
/// Period of the processor quota, in microseconds.
pub const CPU_PERIOD: u64 = 100_000;

/// A disk of the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk<'a> {
    /// A serial number, set by the VMM.
    Serial(&'a [u8]),
    /// The kernel's name, which depends on the order in which disks are found.
    Name(&'a [u8]),
}

/// The connection between host and agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port<'a> {
    /// A port of the console device, with this name.
    Name(&'a [u8]),
    /// A port of the VM's vsock, to which the host connects.
    Vsock(u32),
}

/// The size of a file system in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
}

/// The location of the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store<'a> {
    /// A disk with a file system.
    Disk(Disk<'a>),
    /// Memory.
    Memory(Room),
}

/// A disk at a path of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskMount<'a> {
    /// An absolute path of plain characters, without `.` and `..`.
    pub target: &'a [u8],
    /// True if every write fails.
    pub read_only: bool,
    /// The disk, which has an ext4 file system.
    pub disk: Disk<'a>,
}

/// All options of the init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options<'a> {
    /// The disk with the root file system.
    pub root: Disk<'a>,
    /// The workspace.
    pub workspace: Store<'a>,
    /// Disks at paths of their own, parents before the paths below them.
    pub mounts: [Option<DiskMount<'a>>; MAX_MOUNTS],
    /// `/tmp`.
    pub tmp: Room,
    /// `/dev/shm`.
    pub shm: Room,
    /// User and group of agent and guests; neither is root.
    pub user: (u32, u32),
    /// The connection to the host.
    pub port: Port<'a>,
    /// Maximum bytes of memory of agent and guests.
    pub memory: Option<u64>,
    /// Maximum number of threads and processes of agent and guests.
    pub tasks: Option<u64>,
    /// Microseconds of processor time in each [`CPU_PERIOD`].
    pub cpu: Option<u64>,
}

impl<'a> Disk<'a> {
    /// Parses the value of a disk.
    pub fn parse(word: &'a [u8]) -> Option<Self> {
        disk(word)
    }
}

impl<'a> Port<'a> {
    /// Parses the value of a port.
    pub fn parse(word: &'a [u8]) -> Option<Self> {
        port(word)
    }
}

#[derive(Default)]
struct Found<'a> {
    root: Option<Disk<'a>>,
    workspace: Option<Store<'a>>,
    mounts: [Option<DiskMount<'a>>; MAX_MOUNTS],
    tmp: Option<Room>,
    shm: Option<Room>,
    user: Option<(u32, u32)>,
    port: Option<Port<'a>>,
    memory: Option<u64>,
    tasks: Option<u64>,
    cpu: Option<u64>,
}

impl<'a> Options<'a> {
    /// Parses a command line. Returns the invalid argument, or the prefix of a missing one, as an error.
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
            mounts: found.mounts,
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
            b"mount" => {
                let slot = self.mounts.iter_mut().find(|slot| slot.is_none())?;
                set(slot, mount(value))
            }
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

/// Sets a value once.
fn set<T>(slot: &mut Option<T>, value: Option<T>) -> Option<()> {
    if slot.is_some() {
        return None;
    }
    *slot = Some(value?);
    Some(())
}

fn is_name(name: &[u8], max: usize) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte);
    (1..=max).contains(&name.len()) && name.iter().all(plain)
}

fn disk(value: &[u8]) -> Option<Disk<'_>> {
    match value.strip_prefix(b"serial:") {
        Some(serial) => is_name(serial, MAX_DISK).then_some(Disk::Serial(serial)),
        // Only letters and digits: the name becomes part of a path.
        None => (is_name(value, MAX_DISK) && value.iter().all(u8::is_ascii_alphanumeric) && !starts_with_digit(value))
            .then_some(Disk::Name(value)),
    }
}

impl<'a> DiskMount<'a> {
    /// Returns true if the init accepts a path.
    pub fn is_target(path: &[u8]) -> bool {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._+@".contains(byte);
        let is_part = |part: &[u8]| !part.is_empty() && part != b"." && part != b".." && part.iter().all(plain);
        path.len() <= MAX_TARGET
            && path.strip_prefix(b"/").is_some_and(|path| path.split(|&byte| byte == b'/').all(is_part))
    }
}

fn mount(value: &[u8]) -> Option<DiskMount<'_>> {
    let (target, rest) = halves(value)?;
    let (access, word) = halves(rest)?;
    let read_only = match access {
        b"ro" => true,
        b"rw" => false,
        _ => return None,
    };
    Some(DiskMount { target, read_only, disk: disk(word)? }).filter(|_| DiskMount::is_target(target))
}

fn port(value: &[u8]) -> Option<Port<'_>> {
    match value.strip_prefix(b"vsock:") {
        // The largest number means any port.
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

/// Splits a value at its first colon.
fn halves(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = value.iter().position(|&byte| byte == b':')?;
    Some((value.get(..at)?, value.get(at + 1..)?))
}

fn pair(value: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = halves(value)?;
    Some((number(first)?, number(second)?))
}

fn room(value: &[u8]) -> Option<Room> {
    let (bytes, files) = pair(value)?;
    Some(Room { bytes, files })
}

fn user(value: &[u8]) -> Option<(u32, u32)> {
    let (uid, gid) = pair(value)?;
    // The largest ID means "no change" to the kernel.
    let ordinary = |id: u64| u32::try_from(id).ok().filter(|id| *id < u32::MAX);
    Some((ordinary(uid)?, ordinary(gid)?))
}

/// Parses a positive decimal number without leading zeros.
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

/// Encodes the options as arguments that [`Options::parse`] accepts.
impl fmt::Display for Options<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { root, workspace, mounts, tmp, shm, user: (uid, gid), port, memory, tasks, cpu } = self;
        write!(f, "cofferdam.root={root} cofferdam.workspace=")?;
        match workspace {
            Store::Disk(disk) => write!(f, "{disk}")?,
            Store::Memory(room) => write!(f, "{room}")?,
        }
        write!(f, " cofferdam.tmp={tmp} cofferdam.shm={shm} cofferdam.user={uid}:{gid} cofferdam.port={port}")?;
        for DiskMount { target, read_only, disk } in mounts.iter().flatten() {
            f.write_str(" cofferdam.mount=")?;
            plain(f, target)?;
            write!(f, ":{}:{disk}", if *read_only { "ro" } else { "rw" })?;
        }
        for (key, value) in [("memory", memory), ("tasks", tasks), ("cpu", cpu)] {
            if let Some(value) = value {
                write!(f, " cofferdam.{key}={value}")?;
            }
        }
        Ok(())
    }
}
