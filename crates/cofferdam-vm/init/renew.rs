//! Making a copy of a machine another machine: its clock, its random numbers, its name and its ids.
//!
//! The ids are files of the initramfs, which no guest sees or can write to, bound read-only over what guests read. The
//! place is found one name at a time and never through a link, before anything of a guest's runs; it is on file systems
//! that nobody inside can change.

use super::failure::{Failure, Step};
use super::partner::Renew;
use super::sys::{self, Fd, MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT, Res};

const IDS: &[u8] = b"/ids\0";
const MACHINE_ID: &[u8] = b"/ids/machine-id\0";
const BOOT_ID: &[u8] = b"/ids/boot-id\0";
/// What the kernel calls itself from its start to its end.
const KERNELS_ID: &[u8] = b"/proc/sys/kernel/random/boot_id\0";
const ETC: &[&[u8]] = &[b"etc\0"];
const MACHINE: &[u8] = b"machine-id\0";
const RANDOM: &[u8] = b"/dev/random\0";
const ROOT: &[u8] = b"/root\0";
const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Where the ids of a kernel's start have a `-` before them, in bytes.
const GROUPS: [usize; 4] = [4, 6, 8, 10];

/// Bytes of a machine's id, with the end of its line.
const ID_LINE: usize = 33;

/// A file that stands in the place of one that guests read.
struct Id {
    file: Fd,
    bound: bool,
}

/// What is needed to make this machine another one, while it can still be reached.
pub struct Identity {
    random: Fd,
    /// The root file system.
    root: Fd,
    machine: Id,
    boot: Id,
}

impl Identity {
    /// To be called before the agent's process makes the root file system its root. As far as possible, guests read files of
    /// ours from the start, which say what those in their places do: so a renewal has to mount nothing.
    pub fn prepare() -> Result<Self, Failure> {
        sys::make_directory(sys::AT_FDCWD, IDS, 0o755).step("make", IDS)?;
        let random = sys::open(RANDOM, 0).step("open", RANDOM)?;
        let root = sys::open_at(sys::AT_FDCWD, ROOT, sys::O_PATH | sys::O_DIRECTORY, 0).step("open", ROOT)?;
        let mut text = [0; 40];
        let boot = make(BOOT_ID, sys::read_file(KERNELS_ID, &mut text)).step("make", BOOT_ID)?;
        let boot = Id { file: boot, bound: true };
        let machine = Id { file: make(MACHINE_ID, b"").step("make", MACHINE_ID)?, bound: false };
        let mut identity = Self { random, root, machine, boot };
        identity.begin_machine().step("bind", MACHINE_ID)?;
        Ok(identity)
    }

    /// The other part of it, for the agent's process, once that has mounted what the kernel says of processes.
    pub fn begin(&self) -> Result<(), Failure> {
        let place: [&[u8]; 4] = [b"proc\0", b"sys\0", b"kernel\0", b"random\0"];
        match self.bind(BOOT_ID, &place, b"boot_id\0").step("bind", BOOT_ID)? {
            true => Ok(()),
            false => Err(Failure::new("find the place of", BOOT_ID, 0)),
        }
    }

    /// Makes it another machine. May be done more than once. `ENOENT` says that its root file system has no place for an id.
    pub fn renew(&mut self, it: &Renew<'_>) -> Res<()> {
        sys::set_clock(it.now)?;
        sys::renew_randomness(&self.random, it.entropy)?;
        sys::set_host_name(it.hostname)?;
        let mut text = [0; 40];
        put(&self.machine.file, hex(it.machine_id, &[], &mut text))?;
        put(&self.boot.file, hex(&uuid(it.boot_id), &GROUPS, &mut text))?;
        if !self.machine.bound {
            // Else it would go on under an id that others have, and nobody would know.
            if !self.bind(MACHINE_ID, ETC, MACHINE)? {
                return Err(sys::ENOENT);
            }
            self.machine.bound = true;
        }
        Ok(())
    }

    /// Binds the machine's id where it says what the root file system's says; what is longer than an id is left there until
    /// the machine is renewed.
    fn begin_machine(&mut self) -> Res<()> {
        let Some(place) = self.find(ETC, MACHINE)? else { return Ok(()) };
        let file = sys::open_at(place.number(), MACHINE, sys::O_NOFOLLOW | sys::O_NONBLOCK, 0)?;
        let mut text = [0; ID_LINE + 1];
        let length = sys::read_all(file.number(), &mut text)?;
        let Some(text) = text.get(..length).filter(|_| length <= ID_LINE) else { return Ok(()) };
        put(&self.machine.file, text)?;
        self.machine.bound = self.bind(MACHINE_ID, ETC, MACHINE)?;
        Ok(())
    }

    /// Where the root file system has a plain file of this name below these directories.
    fn find(&self, directories: &[&[u8]], name: &[u8]) -> Res<Option<Fd>> {
        let mut place = sys::duplicate(&self.root)?;
        for directory in directories {
            let flags = sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW;
            match sys::open_at(place.number(), directory, flags, 0) {
                Ok(found) => place = found,
                Err(sys::ENOENT | sys::ENOTDIR) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        match sys::stat_at(place.number(), name) {
            Ok(found) => Ok((found.mode & sys::S_IFMT == sys::S_IFREG).then_some(place)),
            Err(sys::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Puts a file in the place of another one, which guests can read and nobody can write to. Whether there is such a
    /// file; where there is none, nothing can be put in its place.
    fn bind(&self, file: &[u8], directories: &[&[u8]], name: &[u8]) -> Res<bool> {
        let Some(place) = self.find(directories, name)? else { return Ok(false) };
        sys::enter_open(&place)?;
        const CLOSED: usize = MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC;
        const NONE: &[u8] = b"none\0";
        let bound = sys::mount(file, name, NONE, MS_BIND, b"")
            .and_then(|()| sys::mount(NONE, name, NONE, MS_REMOUNT | MS_RDONLY | CLOSED, b""));
        // Nothing is to be kept by this process that stands there.
        sys::change_directory(b"/\0")?;
        bound.map(|()| true)
    }
}

/// A random id of the kind that the kernel makes for its start.
fn uuid(random: &[u8; 16]) -> [u8; 16] {
    let mut id = *random;
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// A line of hexadecimal digits, with a `-` before these bytes.
fn hex<'a>(bytes: &[u8; 16], groups: &[usize], line: &'a mut [u8; 40]) -> &'a [u8] {
    let mut length = 0;
    let mut put = |byte: u8| {
        if let Some(slot) = line.get_mut(length) {
            *slot = byte;
            length += 1;
        }
    };
    for (at, byte) in bytes.iter().enumerate() {
        if groups.contains(&at) {
            put(b'-');
        }
        for digit in [byte >> 4, byte & 15] {
            put(DIGITS.get(usize::from(digit)).copied().unwrap_or(b'0'));
        }
    }
    put(b'\n');
    line.get(..length).unwrap_or_default()
}

/// Makes a file that says this.
fn make(path: &[u8], text: &[u8]) -> Res<Fd> {
    let file = sys::open_at(sys::AT_FDCWD, path, sys::O_WRONLY | sys::O_CREAT | sys::O_EXCL, 0o444)?;
    sys::set_mode(&file, 0o444)?;
    put(&file, text).map(|()| file)
}

/// Writes over what a file says, which is no longer than this.
fn put(file: &Fd, text: &[u8]) -> Res<()> {
    sys::seek(file, 0)?;
    match sys::write(file.number(), text)? {
        length if length == text.len() => Ok(()),
        _ => Err(sys::EINVAL),
    }
}
