//! The kernel's modules that travel in the initramfs.

use super::failure::{Failure, Step};
use super::sys;
use super::text::Text;

/// Their names, a line each, in the order in which they need each other.
const LIST: &[u8] = b"/modules/list\0";
const MAX_LIST: usize = 4096;
const EEXIST: i32 = 17;

/// Modules for connections with the host: what nothing uses, guests are not to find in the kernel.
const VSOCK: [&[u8]; 2] = [b"vsock.", b"vmw_vsock_"];

/// Loads them all, but those for a vsock without one, and removes the files, whose memory the machine has better uses for.
pub fn load(vsock: bool) -> Result<(), Failure> {
    let mut list = [0; MAX_LIST];
    let list = sys::read_file(LIST, &mut list);
    if list.len() == MAX_LIST {
        return Err(Failure::new("read", LIST, 0));
    }
    for name in list.split(|&byte| byte == b'\n').filter(|name| !name.is_empty()) {
        let mut path = Text::<256>::new();
        let known = path.push(b"/modules/").and_then(|path| path.push(name));
        known.ok_or_else(|| Failure::new("find the module", name, 0))?;
        let file = sys::open(path.terminated(), 0).step("open the module", name)?;
        if !vsock && VSOCK.iter().any(|begin| name.starts_with(begin)) {
            sys::unlink(sys::AT_FDCWD, path.terminated()).step("remove the module", name)?;
            continue;
        }
        let packed = [&b".xz"[..], b".gz", b".zst"].iter().any(|end| name.ends_with(end));
        match sys::load_module(&file, packed) {
            Ok(()) | Err(EEXIST) => {}
            Err(errno) => return Err(Failure::new("load the module", name, errno)),
        }
        sys::unlink(sys::AT_FDCWD, path.terminated()).step("remove the module", name)?;
    }
    Ok(())
}

/// What guests could make a kernel do that they have no need for, switched off for good where the kernel has it.
const SWITCHES: [(&[u8], &[u8]); 5] = [
    (b"/proc/sys/kernel/modules_disabled\0", b"1"),
    (b"/proc/sys/kernel/unprivileged_bpf_disabled\0", b"1"),
    (b"/proc/sys/kernel/dmesg_restrict\0", b"1"),
    (b"/proc/sys/kernel/kptr_restrict\0", b"2"),
    (b"/proc/sys/user/max_user_namespaces\0", b"0"),
];

/// What a kernel does by itself twice a second, in case that somebody wants large pages some day: an idle machine is to be idle.
const HABITS: [(&[u8], &[u8]); 1] = [(b"/proc/sys/vm/compaction_proactiveness\0", b"0")];

/// Lets nobody load anything any more, closes what guests have no need for, and lets an idle machine rest.
pub fn forbid() -> Result<(), Failure> {
    for (path, value) in SWITCHES.into_iter().chain(HABITS) {
        match sys::open_at(sys::AT_FDCWD, path, sys::O_WRONLY, 0) {
            Ok(file) => sys::write(file.number(), value).map(drop).step("set", path)?,
            Err(sys::ENOENT) => {}
            Err(errno) => return Err(Failure::new("set", path, errno)),
        }
    }
    Ok(())
}
