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
const RANDOM: &[u8] = b"/dev/random\0";
const ROOT: &[u8] = b"/root\0";
const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Where the ids of a kernel's start have a `-` before them, in bytes.
const GROUPS: [usize; 4] = [4, 6, 8, 10];

/// What is needed to make this machine another one, while it can still be reached.
pub struct Identity {
    random: Fd,
    /// The root file system.
    root: Fd,
    bound: bool,
}

impl Identity {
    /// To be called before the agent's process makes the root file system its root.
    pub fn prepare() -> Result<Self, Failure> {
        sys::make_directory(sys::AT_FDCWD, IDS, 0o755).step("make", IDS)?;
        let random = sys::open(RANDOM, 0).step("open", RANDOM)?;
        let root = sys::open_at(sys::AT_FDCWD, ROOT, sys::O_PATH | sys::O_DIRECTORY, 0).step("open", ROOT)?;
        Ok(Self { random, root, bound: false })
    }

    /// Makes it another machine. May be done more than once.
    pub fn renew(&mut self, it: &Renew<'_>) -> Res<()> {
        sys::set_clock(it.now)?;
        sys::renew_randomness(&self.random, it.entropy)?;
        sys::set_host_name(it.hostname)?;
        let mut text = [0; 40];
        put(MACHINE_ID, hex(it.machine_id, &[], &mut text))?;
        put(BOOT_ID, hex(&uuid(it.boot_id), &GROUPS, &mut text))?;
        if !self.bound {
            self.bind(MACHINE_ID, &[b"etc\0"], b"machine-id\0")?;
            self.bind(BOOT_ID, &[b"proc\0", b"sys\0", b"kernel\0", b"random\0"], b"boot_id\0")?;
            self.bound = true;
        }
        Ok(())
    }

    /// Puts a file in the place of another one, which guests can read and nobody can write to. Where there is no such
    /// file, there is nothing to be put in its place.
    fn bind(&self, file: &[u8], directories: &[&[u8]], name: &[u8]) -> Res<()> {
        let mut place: Option<Fd> = None;
        for directory in directories {
            let above = place.as_ref().unwrap_or(&self.root).number();
            let flags = sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW;
            match sys::open_at(above, directory, flags, 0) {
                Ok(found) => place = Some(found),
                Err(sys::ENOENT | sys::ENOTDIR) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        let place = place.as_ref().unwrap_or(&self.root);
        match sys::stat_at(place.number(), name) {
            Ok(found) if found.mode & sys::S_IFMT == sys::S_IFREG => {}
            Ok(_) | Err(sys::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        sys::enter_open(place)?;
        const CLOSED: usize = MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC;
        const NONE: &[u8] = b"none\0";
        let bound = sys::mount(file, name, NONE, MS_BIND, b"")
            .and_then(|()| sys::mount(NONE, name, NONE, MS_REMOUNT | MS_RDONLY | CLOSED, b""));
        // Nothing is to be kept by this process that stands there.
        sys::change_directory(b"/\0")?;
        bound
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

fn put(path: &[u8], text: &[u8]) -> Res<()> {
    const O_TRUNC: usize = 0o1000;
    let file = sys::open_at(sys::AT_FDCWD, path, sys::O_WRONLY | sys::O_CREAT | O_TRUNC, 0o444)?;
    sys::set_mode(&file, 0o444)?;
    match sys::write(file.number(), text)? {
        length if length == text.len() => Ok(()),
        _ => Err(sys::EINVAL),
    }
}
