//! The kernel modules in the initramfs.

use super::failure::{Failure, Step};
use super::sys;
use super::text::Text;

/// The list of their names, one per line, in loading order.
const LIST: &[u8] = b"/modules/list\0";
const MAX_LIST: usize = 4096;
const EEXIST: i32 = 17;

/// Prefixes of modules for vsock: guests must not find unused modules in the kernel.
const VSOCK: [&[u8]; 2] = [b"vsock.", b"vmw_vsock_"];
/// Prefix of the module for mount points in the root.
const OVERLAY: &[u8] = b"overlay.";

/// Loads all modules, without those for vsock and overlays if these are not used, and removes the files to free their
/// memory.
pub fn load(vsock: bool, overlay: bool) -> Result<(), Failure> {
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
        let is_unused = !vsock && VSOCK.iter().any(|begin| name.starts_with(begin));
        if is_unused || !overlay && name.starts_with(OVERLAY) {
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

/// Settings that permanently disable kernel features that guests do not need, if the kernel has them.
const SWITCHES: [(&[u8], &[u8]); 5] = [
    (b"/proc/sys/kernel/modules_disabled\0", b"1"),
    (b"/proc/sys/kernel/unprivileged_bpf_disabled\0", b"1"),
    (b"/proc/sys/kernel/dmesg_restrict\0", b"1"),
    (b"/proc/sys/kernel/kptr_restrict\0", b"2"),
    (b"/proc/sys/user/max_user_namespaces\0", b"0"),
];

/// Settings that disable periodic background work, such as compaction for huge pages: an idle VM must be idle.
const BACKGROUND_WORK: [(&[u8], &[u8]); 1] = [(b"/proc/sys/vm/compaction_proactiveness\0", b"0")];

/// Settings of the network: the agent, an ordinary user, can listen on every port for the gateway on the host.
const NETWORK: [(&[u8], &[u8]); 1] = [(b"/proc/sys/net/ipv4/ip_unprivileged_port_start\0", b"0")];

/// Disables module loading, unneeded features and background work, and sets up the network.
pub fn harden() -> Result<(), Failure> {
    for (path, value) in SWITCHES.into_iter().chain(BACKGROUND_WORK).chain(NETWORK) {
        match sys::open_at(sys::AT_FDCWD, path, sys::O_WRONLY, 0) {
            Ok(file) => sys::write(file.number(), value).map(drop).step("set", path)?,
            Err(sys::ENOENT) => {}
            Err(errno) => return Err(Failure::new("set", path, errno)),
        }
    }
    // A kernel without a network has no loopback interface.
    let _ = sys::raise_loopback();
    Ok(())
}
