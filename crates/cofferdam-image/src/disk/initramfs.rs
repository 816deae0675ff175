//! The initial file system of a VM's kernel: the init, the agent, and the modules that are needed to find its disks.

use std::io;

use super::cpio::Cpio;

/// The first program of a VM.
pub(crate) static INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-vm-init"));

/// A kernel module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    /// File name without directories.
    pub name: String,
    pub contents: Vec<u8>,
}

/// Packs the initial file system. Modules are loaded in this order.
pub(crate) fn pack(modules: &[Module]) -> io::Result<Vec<u8>> {
    let mut cpio = Cpio::new(Vec::new());
    for name in ["dev", "proc", "sys", "root"] {
        cpio.directory(name, 0o755)?;
    }
    // Until it mounts something, the init has only the files that the kernel unpacked.
    cpio.device("dev/console", 0o600, 5, 1)?;
    cpio.device("dev/null", 0o666, 1, 3)?;
    cpio.directory("modules", 0o700)?;
    let list: String = modules.iter().map(|module| format!("{}\n", module.name)).collect();
    cpio.file("modules/list", 0o400, list.as_bytes())?;
    for module in modules {
        cpio.file(&format!("modules/{}", module.name), 0o400, &module.contents)?;
    }
    cpio.file("agent", 0o555, cofferdam_guest::AGENT)?;
    cpio.file("init", 0o500, INIT)?;
    cpio.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_listed_in_their_order() {
        let module = |name: &str| Module { name: name.to_owned(), contents: vec![1, 2, 3] };
        let packed = pack(&[module("b.ko"), module("a.ko")]).unwrap();
        let text = String::from_utf8_lossy(&packed);
        assert!(text.contains("b.ko\na.ko\n") && text.contains("modules/a.ko") && text.contains("dev/console"));
        assert!(packed.windows(4).filter(|bytes| bytes == b"\x7fELF").count() >= 2, "init and agent");
    }
}
