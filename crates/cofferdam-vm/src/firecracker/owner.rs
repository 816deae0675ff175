//! The owner of a VM's directory: encoded in its name, and parsed when such directories are swept.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use cofferdam_contract::Result;
use cofferdam_linux::process::Life;

use super::ids::InstanceId;

const PREFIX: &str = "cofferdam";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A unique identity of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// Beginning of the boot ID.
    boot: u32,
    /// PID namespace of the process ID.
    namespace: u64,
    process: u32,
    /// Start time, in the kernel's ticks since the boot.
    start: u64,
}

impl Owner {
    /// Returns the identity of this process.
    pub(super) fn this() -> io::Result<Self> {
        let boot = fs::read_to_string(BOOT_ID)?;
        let boot = boot.get(..8).and_then(|first| u32::from_str_radix(first, 16).ok());
        let process = std::process::id();
        Ok(Self {
            boot: boot.ok_or(io::ErrorKind::InvalidData)?,
            namespace: fs::metadata("/proc/self/ns/pid")?.ino(),
            process,
            start: start_of(process).ok_or(io::ErrorKind::InvalidData)?,
        })
    }

    /// Returns a new name for a directory of this owner.
    pub(super) fn name(&self) -> Result<InstanceId> {
        let Self { boot, namespace, process, start } = self;
        InstanceId::new(format!("{PREFIX}-{boot:08x}-{namespace}-{process}-{start}-{:08x}", fastrand::u32(..)))
    }

    /// Parses the owner of a directory from its name, if it is one of Cofferdam's.
    pub(super) fn of(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-');
        let owner = Self {
            boot: u32::from_str_radix(parts.next()?, 16).ok()?,
            namespace: parts.next()?.parse().ok()?,
            process: parts.next()?.parse().ok()?,
            start: parts.next()?.parse().ok()?,
        };
        u32::from_str_radix(parts.next()?, 16).ok()?;
        parts.next().is_none().then_some(owner)
    }

    /// Returns true if the process is certainly gone. A process of another namespace may be alive.
    pub(super) fn is_dead(&self, here: &Self) -> bool {
        if self.boot != here.boot {
            return true;
        }
        self.namespace == here.namespace && Life::is_over(self.process, self.start)
    }
}

fn start_of(process: u32) -> Option<u64> {
    Life::of(process).map(|life| life.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_found_again_in_a_name() {
        let owner = Owner::this().unwrap();
        let name = owner.name().unwrap().as_str().to_owned();
        assert_eq!(Owner::of(&name), Some(owner.clone()));
        assert_ne!(name, owner.name().unwrap().as_str());
        let longest = Owner { boot: u32::MAX, namespace: u32::MAX.into(), process: 4_194_304, start: 10_u64.pow(11) };
        longest.name().expect("a valid name, for thirty years since the boot");
        for foreign in ["", "cofferdam", "cofferdam-x", "vm-1", &format!("{name}-1"), &format!("x{name}")] {
            assert_eq!(Owner::of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn only_the_certainly_dead_are_dead() {
        let here = Owner::this().unwrap();
        assert!(!here.is_dead(&here));
        assert!(Owner { boot: here.boot ^ 1, ..here.clone() }.is_dead(&here), "an earlier boot");
        assert!(Owner { start: here.start + 1, ..here.clone() }.is_dead(&here), "another process with its ID");
        assert!(!Owner { namespace: here.namespace + 1, process: 1, ..here.clone() }.is_dead(&here));
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let gone = Owner { process: child.id(), start: start_of(child.id()).unwrap(), ..here.clone() };
        let begun = std::time::Instant::now();
        while !gone.is_dead(&here) {
            assert!(begun.elapsed().as_secs() < 60, "a zombie counts as alive");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(gone.is_dead(&here));
    }
}
