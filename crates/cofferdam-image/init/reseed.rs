//! A new identity for a copy of a VM: its clock, its random numbers, its name and its IDs.
//!
//! The IDs are files of the initramfs, which guests can neither see nor write to, bound read-only over the files that
//! guests read. The targets are resolved one component at a time without following links, before any code of a guest
//! runs, and are on file systems that guests cannot change.

use super::failure::{Failure, Step};
use super::partner::Reseed;
use super::sys::{self, Fd, MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REMOUNT, Res};

const IDS: &[u8] = b"/ids\0";
const MACHINE_ID: &[u8] = b"/ids/machine-id\0";
const BOOT_ID: &[u8] = b"/ids/boot-id\0";
/// The kernel's boot ID.
const KERNEL_BOOT_ID: &[u8] = b"/proc/sys/kernel/random/boot_id\0";
/// The configuration of resolvers: the agent's address. A root file system without such a file needs none, since
/// resolvers then ask the loopback address.
const RESOLVER: &[u8] = b"/ids/resolv.conf\0";
const NAME_SERVER: &[u8] = b"nameserver 127.64.0.1\n";
const RESOLV: &[u8] = b"resolv.conf\0";
const ETC: &[&[u8]] = &[b"etc\0"];
const MACHINE: &[u8] = b"machine-id\0";
const RANDOM: &[u8] = b"/dev/random\0";
const ROOT: &[u8] = b"/root\0";
const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Positions of the `-` in a boot ID, in bytes.
const GROUPS: [usize; 4] = [4, 6, 8, 10];

/// Length of a machine ID, including the newline.
const ID_LINE: usize = 33;

/// A file that is bound over one that guests read.
struct Id {
    file: Fd,
    bound: bool,
}

/// The resources for changing the VM's identity, opened while they are accessible.
pub struct Identity {
    random: Fd,
    /// The root file system.
    root: Fd,
    machine: Id,
    boot: Id,
}

impl Identity {
    /// Prepares the resources. Must be called before the agent's process makes the root file system its root. If
    /// possible, guests read the bound files from the start, with the original contents, so that a later reseed mounts
    /// nothing.
    pub fn prepare() -> Result<Self, Failure> {
        sys::make_directory(sys::AT_FDCWD, IDS, 0o755).step("create", IDS)?;
        let random = sys::open(RANDOM, 0).step("open", RANDOM)?;
        let root = sys::open_at(sys::AT_FDCWD, ROOT, sys::O_PATH | sys::O_DIRECTORY, 0).step("open", ROOT)?;
        let mut text = [0; 40];
        let boot = make(BOOT_ID, sys::read_file(KERNEL_BOOT_ID, &mut text)).step("create", BOOT_ID)?;
        let boot = Id { file: boot, bound: true };
        let machine = Id { file: make(MACHINE_ID, b"").step("create", MACHINE_ID)?, bound: false };
        let mut identity = Self { random, root, machine, boot };
        identity.begin_vm().step("bind", MACHINE_ID)?;
        make(RESOLVER, NAME_SERVER).step("create", RESOLVER)?;
        identity.bind(RESOLVER, ETC, RESOLV).step("bind", RESOLVER)?;
        Ok(identity)
    }

    /// Binds the boot ID, in the agent's process, after it has mounted procfs.
    pub fn begin(&self) -> Result<(), Failure> {
        let directories: [&[u8]; 4] = [b"proc\0", b"sys\0", b"kernel\0", b"random\0"];
        match self.bind(BOOT_ID, &directories, b"boot_id\0").step("bind", BOOT_ID)? {
            true => Ok(()),
            false => Err(Failure::new("find the target of", BOOT_ID, 0)),
        }
    }

    /// Gives the VM a new identity. May be called repeatedly. `ENOENT` means that its root file system has no file for
    /// the machine ID.
    pub fn reseed(&mut self, it: &Reseed<'_>) -> Res<()> {
        sys::set_clock(it.now)?;
        sys::reseed_randomness(&self.random, it.entropy)?;
        sys::set_host_name(it.hostname)?;
        let mut text = [0; 40];
        put(&self.machine.file, hex(it.machine_id, &[], &mut text))?;
        put(&self.boot.file, hex(&uuid(it.boot_id), &GROUPS, &mut text))?;
        if !self.machine.bound {
            // Otherwise it would silently keep an ID that other VMs have.
            if !self.bind(MACHINE_ID, ETC, MACHINE)? {
                return Err(sys::ENOENT);
            }
            self.machine.bound = true;
        }
        Ok(())
    }

    /// Binds the machine ID, with the contents of the root file system's file. A file that is longer than an ID is left
    /// until the VM is reseeded.
    fn begin_vm(&mut self) -> Res<()> {
        let Some(directory_fd) = self.find(ETC, MACHINE)? else { return Ok(()) };
        let file = sys::open_at(directory_fd.number(), MACHINE, sys::O_NOFOLLOW | sys::O_NONBLOCK, 0)?;
        let mut text = [0; ID_LINE + 1];
        let length = sys::read_all(file.number(), &mut text)?;
        let Some(text) = text.get(..length).filter(|_| length <= ID_LINE) else { return Ok(()) };
        put(&self.machine.file, text)?;
        self.machine.bound = self.bind(MACHINE_ID, ETC, MACHINE)?;
        Ok(())
    }

    /// Opens the directory that contains a regular file of this name, if it exists in the root file system.
    fn find(&self, directories: &[&[u8]], name: &[u8]) -> Res<Option<Fd>> {
        let mut directory_fd = sys::duplicate(&self.root)?;
        for directory in directories {
            let flags = sys::O_PATH | sys::O_DIRECTORY | sys::O_NOFOLLOW;
            match sys::open_at(directory_fd.number(), directory, flags, 0) {
                Ok(found) => directory_fd = found,
                Err(sys::ENOENT | sys::ENOTDIR) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        match sys::stat_at(directory_fd.number(), name) {
            Ok(found) => Ok((found.mode & sys::S_IFMT == sys::S_IFREG).then_some(directory_fd)),
            Err(sys::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Binds a file over another one, read-only for guests. Returns false if that file does not exist.
    fn bind(&self, file: &[u8], directories: &[&[u8]], name: &[u8]) -> Res<bool> {
        let Some(directory_fd) = self.find(directories, name)? else { return Ok(false) };
        sys::enter_open(&directory_fd)?;
        const CLOSED: usize = MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC;
        const NONE: &[u8] = b"none\0";
        let bound = sys::mount(file, name, NONE, MS_BIND, b"")
            .and_then(|()| sys::mount(NONE, name, NONE, MS_REMOUNT | MS_RDONLY | CLOSED, b""));
        // The process must not keep a reference to the directory.
        sys::change_directory(b"/\0")?;
        bound.map(|()| true)
    }
}

/// Returns a random ID in the format of a boot ID.
fn uuid(random: &[u8; 16]) -> [u8; 16] {
    let mut id = *random;
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// Returns a line of hexadecimal digits, with a `-` before these bytes.
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

/// Creates a file with this text.
fn make(path: &[u8], text: &[u8]) -> Res<Fd> {
    let file = sys::open_at(sys::AT_FDCWD, path, sys::O_WRONLY | sys::O_CREAT | sys::O_EXCL, 0o444)?;
    sys::set_mode(&file, 0o444)?;
    put(&file, text).map(|()| file)
}

/// Overwrites a file whose text is not longer than the new one.
fn put(file: &Fd, text: &[u8]) -> Res<()> {
    sys::seek(file, 0)?;
    match sys::write(file.number(), text)? {
        length if length == text.len() => Ok(()),
        _ => Err(sys::EINVAL),
    }
}
