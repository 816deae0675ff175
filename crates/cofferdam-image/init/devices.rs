//! Discovery of disks and ports, which appear some time after their drivers were loaded.

use super::failure::{Failure, Step};
use super::options::{Disk, Port};
use super::sys::{self, ENOENT, Fd, Res};
use super::text::Text;

/// Time for a device to appear, and the interval between two polls.
const TIMEOUT_MICROS: u64 = 20_000_000;
const POLL_INTERVAL_MICROS: u64 = 2000;
const BLOCK: &[u8] = b"/sys/block\0";
const PORTS: &[u8] = b"/sys/class/virtio-ports\0";

/// The path of a device.
pub type Path = Text<64>;

/// Waits for a disk, and returns the path of its device.
pub fn disk(disk: Disk<'_>) -> Result<Path, Failure> {
    let (name, found) = match disk {
        Disk::Name(name) => (name, wait(|| exists(name))),
        Disk::Serial(serial) => (serial, wait(|| with_attribute(BLOCK, b"serial", serial))),
    };
    found.step("find the disk", name)
}

/// Waits for the port, and opens it; or creates a socket that accepts the host's connections.
pub fn port(port: Port<'_>) -> Result<Fd, Failure> {
    const O_RDWR: usize = 2;
    let name = match port {
        Port::Name(name) => name,
        Port::Vsock(number) => return sys::vsock_listen(number).step("listen at", b"the vsock"),
    };
    let path = wait(|| with_attribute(PORTS, b"name", name)).step("find the port", name)?;
    sys::open_at(sys::AT_FDCWD, path.terminated(), O_RDWR, 0).step("open the port", name)
}

fn wait(mut poll: impl FnMut() -> Res<Path>) -> Res<Path> {
    let begun = sys::now_micros();
    loop {
        match poll() {
            Err(ENOENT) if sys::now_micros().saturating_sub(begun) < TIMEOUT_MICROS => {
                sys::poll(&mut [], Some(POLL_INTERVAL_MICROS))?;
            }
            other => return other,
        }
    }
}

fn device(name: &[u8]) -> Res<Path> {
    let mut path = Path::new();
    path.push(b"/dev/").and_then(|path| path.push(name)).ok_or(sys::EINVAL)?;
    Ok(path)
}

fn exists(name: &[u8]) -> Res<Path> {
    let path = device(name)?;
    sys::stat_at(sys::AT_FDCWD, path.terminated()).map(|_| path)
}

/// Finds the device whose directory below `class` has a file `attribute` with this text.
fn with_attribute(class: &[u8], attribute: &[u8], wanted: &[u8]) -> Res<Path> {
    const NAME_AT: usize = 19;
    const LENGTH_AT: usize = 16;
    let directory = sys::open_directory(class)?;
    let mut buffer = [0; 2048];
    loop {
        let mut entries = sys::entries(&directory, &mut buffer)?;
        if entries.is_empty() {
            return Err(ENOENT);
        }
        while let Some(&[low, high]) = entries.get(LENGTH_AT..LENGTH_AT + 2) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let Some((entry, rest)) = entries.split_at_checked(length).filter(|_| length > NAME_AT) else { break };
            let name = entry.get(NAME_AT..).unwrap_or_default().split(|&byte| byte == 0).next().unwrap_or_default();
            if !name.starts_with(b".") && has(class, name, attribute, wanted) {
                let path = exists(name)?;
                return Ok(path);
            }
            entries = rest;
        }
    }
}

fn has(class: &[u8], name: &[u8], attribute: &[u8], wanted: &[u8]) -> bool {
    let mut path = Text::<128>::new();
    let class = class.strip_suffix(b"\0").unwrap_or(class);
    for part in [class, b"/", name, b"/", attribute] {
        if path.push(part).is_none() {
            return false;
        }
    }
    let mut text = [0; 64];
    sys::read_file(path.terminated(), &mut text).trim_ascii() == wanted
}
