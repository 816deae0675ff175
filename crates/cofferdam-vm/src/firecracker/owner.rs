//! Who made a machine's directory: written into its name, read when such directories are swept.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use cofferdam_contract::Result;
use cofferdam_linux::process::Life;
use rustix::process::{Pid, test_kill_process};

use crate::firecracker::InstanceId;

const PREFIX: &str = "cofferdam";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A process, unlike any other before or after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// The beginning of the boot's name.
    boot: u32,
    /// The namespace in which the process has its number.
    namespace: u64,
    process: u32,
    /// When it began, in the kernel's ticks since the boot.
    start: u64,
}

impl Owner {
    /// This process.
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

    /// A new name for a directory of this owner's.
    pub(super) fn name(&self) -> Result<InstanceId> {
        let Self { boot, namespace, process, start } = self;
        InstanceId::new(format!("{PREFIX}-{boot:08x}-{namespace}-{process}-{start}-{:08x}", fastrand::u32(..)))
    }

    /// Who made a directory of this name, if it is one of ours.
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

    /// Whether it is certain that the process is gone, as `here` can tell. One of another namespace may be alive.
    pub(super) fn is_dead(&self, here: &Self) -> bool {
        if self.boot != here.boot {
            return true;
        }
        let number = i32::try_from(self.process).ok().and_then(Pid::from_raw);
        let (true, Some(number)) = (self.namespace == here.namespace, number) else { return false };
        match test_kill_process(number) {
            Err(rustix::io::Errno::SRCH) => true,
            // There is somebody with this number, or what is left of somebody until its parent asks how it ended. Where its
            // life is hidden, it must be taken for the owner's.
            _ => Life::of(self.process).is_some_and(|life| life.over || life.start != self.start),
        }
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
        let name = owner.name().unwrap();
        assert_eq!(Owner::of(name.as_str()), Some(owner.clone()));
        assert_ne!(name, owner.name().unwrap());
        let longest = Owner { boot: u32::MAX, namespace: u32::MAX.into(), process: 4_194_304, start: 10_u64.pow(11) };
        longest.name().expect("it fits, for thirty years since the boot");
        for foreign in ["", "cofferdam", "cofferdam-x", "vm-1", &format!("{name}-1"), &format!("x{name}")] {
            assert_eq!(Owner::of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn only_the_certainly_dead_are_dead() {
        let here = Owner::this().unwrap();
        assert!(!here.is_dead(&here));
        assert!(Owner { boot: here.boot ^ 1, ..here.clone() }.is_dead(&here), "an earlier boot");
        assert!(Owner { start: here.start + 1, ..here.clone() }.is_dead(&here), "another with its number");
        assert!(!Owner { namespace: here.namespace + 1, process: 1, ..here.clone() }.is_dead(&here));
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let gone = Owner { process: child.id(), start: start_of(child.id()).unwrap(), ..here.clone() };
        let begun = std::time::Instant::now();
        while !gone.is_dead(&here) {
            assert!(begun.elapsed().as_secs() < 60, "it counts as alive until it is asked about");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(gone.is_dead(&here));
    }
}
