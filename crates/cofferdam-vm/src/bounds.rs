//! What a monitor may take of its host: control groups around it where this user may make some, resource limits in any case.
//!
//! All machines of a process share one owner of groups, which is there as long as any of them is. What a killed process
//! left is swept when the next owner is made; whose a group was, its name says.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_contract::{Access, ByteSize};
use cofferdam_linux::cgroup::{Bounds, Family, Group, Owner, Share, Stats, Version};
use cofferdam_linux::process::Resource;
use rustix::fs::fstatfs;

use crate::qemu::Sharing;
use crate::vmm::{Contents, Disk, Hardware};

const MEBIBYTE: u64 = 1 << 20;
/// What a translator keeps of what it translated: as much as it is told, [`crate::qemu`] tells it that.
pub(crate) const TRANSLATED: u64 = 128 * MEBIBYTE;
/// The monitor's program, its stacks, devices and tables.
const STRUCTURES: u64 = 192 * MEBIBYTE;
/// Of a machine's memory, the host keeps tables of so much of it.
const TABLES_SHARE: u64 = 64;
/// Threads besides one for each processor: the main one, and those that read and write disks.
const THREADS: u64 = 96;
/// Address space that stacks and heaps of so many threads reserve and do not use.
const RESERVED: u64 = 1 << 30;
/// Descriptors: a handful of channels, disks, and what its threads wake each other with.
const DESCRIPTORS: u64 = 128;
/// A file system in memory, by its number.
const TMPFS: u64 = 0x0102_1994;

/// What one monitor may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Bytes, the machine's own included.
    memory: u64,
    /// Bytes of those beside what is kept of the machine's memory, which is the same however the machine began.
    beside: u64,
    /// Of the largest file that it writes to.
    file: u64,
    /// Thousandths of a processor.
    cpu_millis: u64,
    tasks: u64,
}

impl Allowance {
    /// For a machine as it is described.
    ///
    /// One that came from a state has its memory twice at worst: the first touch of a hole fills the state's file, for which
    /// the monitor's group pays, and the first write makes a page of its own besides.
    pub(crate) fn of(machine: &Hardware, sharing: Sharing) -> Self {
        let own = |disk: &Disk| match &disk.contents {
            // What cannot be written to takes nothing.
            Contents::Own(file) if disk.access == Access::ReadWrite => Some((length(file), in_memory(file))),
            Contents::Own(_) | Contents::Shared(_) => None,
        };
        let disks: Vec<(u64, bool)> = machine.disks.iter().filter_map(own).collect();
        let stored: u64 = disks.iter().filter(|(_, in_memory)| *in_memory).map(|(bytes, _)| bytes).sum();
        let guest = machine.memory.as_bytes();
        let held = match sharing {
            Sharing::Own => guest,
            Sharing::State => guest.saturating_mul(2),
        };
        let beside = (TRANSLATED + STRUCTURES + guest / TABLES_SHARE).saturating_add(stored);
        Self {
            memory: held.saturating_add(beside).next_multiple_of(MEBIBYTE),
            beside,
            // Memory is a file as well, where a monitor keeps it in one.
            file: disks.iter().map(|(bytes, _)| *bytes).fold(guest, u64::max).saturating_add(64 * MEBIBYTE),
            cpu_millis: u64::from(machine.processors) * 1000,
            tasks: u64::from(machine.processors) + THREADS,
        }
    }

    /// The same for a monitor that translates nothing, and writes a machine's memory into a file of the host's memory when
    /// it writes down a state.
    pub(crate) fn of_firecracker(machine: &Hardware, sharing: Sharing) -> Self {
        let of = Self::of(machine, sharing);
        let instead = |bytes: u64| bytes.saturating_sub(TRANSLATED).saturating_add(machine.memory.as_bytes());
        Self { memory: instead(of.memory).next_multiple_of(MEBIBYTE), beside: instead(of.beside), ..of }
    }

    /// As resource limits, which hold for one process each. `alone` says that no other process has its user.
    fn limits(&self, grouped: bool, alone: bool) -> Vec<(Resource, u64)> {
        let mut limits = vec![(Resource::FILE_SIZE, self.file), (Resource::OPEN_FILES, DESCRIPTORS)];
        if !grouped {
            limits.push((Resource::DATA, self.memory.saturating_add(RESERVED)));
        }
        if !grouped && alone {
            limits.push((Resource::TASKS, self.tasks));
        }
        limits
    }
}

/// Nothing is known of a file that cannot be asked, which is one of ours.
fn length(file: &File) -> u64 {
    file.metadata().map_or(0, |found| found.len())
}

fn in_memory(file: &File) -> bool {
    fstatfs(file).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS))
}

/// What is around one monitor. Dropping it ends what is still in its group, and removes the group.
#[derive(Debug)]
pub(crate) struct Enclosure {
    group: Option<Group>,
    /// Resource limits that go with it.
    pub limits: Vec<(Resource, u64)>,
    /// What holds, for people.
    pub shown: String,
}

struct Groups {
    owner: Option<Owner>,
    members: usize,
}

static GROUPS: Mutex<Groups> = Mutex::new(Groups { owner: None, members: 0 });

fn groups() -> MutexGuard<'static, Groups> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Groups {
    fn make(&mut self, allowance: &Allowance) -> Result<(Group, String), String> {
        if self.owner.is_none() {
            self.owner = Some(Owner::new(Share::Many, Family::Own)?);
        }
        let Some(owner) = &mut self.owner else { return Err("no owner".to_owned()) };
        let cpu_millis = Some(allowance.cpu_millis).filter(|_| owner.has_cpu());
        let bounds = Bounds { memory: Some(allowance.memory), tasks: Some(allowance.tasks), cpu_millis };
        let group = owner.make(bounds).map_err(|error| format!("{}: {error}", owner.version().as_str()))?;
        match measured(owner, &group, bounds, allowance.beside) {
            Ok(shown) => Ok((group, shown)),
            Err(why) => {
                // A group of nobody's; what cannot be removed now is swept later.
                let _ = owner.discard(&group);
                Err(why)
            }
        }
    }

    /// An owner that has no group any more goes, so that nothing is left of it.
    fn tidy(&mut self) {
        if self.members == 0
            && let Some(owner) = self.owner.take()
        {
            owner.close();
        }
    }
}

/// Reads back what bounds a group; an error where that is not what was asked for. Gives what holds, for people: `beside` is what
/// there is for the monitor's own ends.
fn measured(owner: &Owner, group: &Group, asked: Bounds, beside: u64) -> Result<String, String> {
    let copies: Result<Vec<OwnedFd>, _> = group.dirs().map(|dir| dir.try_clone_to_owned()).collect();
    let copies = copies.map_err(|error| error.to_string())?;
    let stats = Stats::new(owner.version(), copies, &owner.layout());
    let (memory, tasks) = (stats.memory_bound(), stats.tasks_bound());
    // The kernel rounds down to pages.
    let close = |found: u64| asked.memory.is_some_and(|asked| found <= asked && asked - found < 65_536);
    let (Some(found), Some(threads)) = (memory.filter(|found| close(*found)), tasks.filter(|_| tasks == asked.tasks))
    else {
        return Err(format!("{}: memory {memory:?}, tasks {tasks:?} instead of {asked:?}", owner.version().as_str()));
    };
    let processors = match stats.cpu_millis().filter(|_| asked.cpu_millis.is_some()) {
        Some(millis) => format!("{millis} thousandths of a processor"),
        None => "processors without a bound".to_owned(),
    };
    let swap = if owner.counts_swap() { "without swap" } else { "swap not counted" };
    // Of what was found, not of what was asked for.
    let beside = beside.saturating_sub(asked.memory.unwrap_or(found).saturating_sub(found));
    let (version, beside) = (owner.version().as_str(), beside.next_multiple_of(MEBIBYTE));
    let size = ByteSize::from_bytes(beside);
    Ok(format!("a group of {version}: {size} beside the machine's memory {swap}, {processors}, {threads} threads"))
}

impl Enclosure {
    /// For a monitor with this allowance. Blocks its thread for some milliseconds.
    pub(crate) fn make(allowance: &Allowance, alone: bool) -> Self {
        let mut groups = groups();
        match groups.make(allowance) {
            Ok((group, shown)) => {
                groups.members += 1;
                Self {
                    group: Some(group),
                    limits: allowance.limits(true, alone),
                    shown: format!("the monitor is in {shown}"),
                }
            }
            Err(why) => {
                groups.tidy();
                Self { group: None, limits: allowance.limits(false, alone), shown: unbounded(&why) }
            }
        }
    }

    /// Files by which a process enters the group, if there is one.
    pub(crate) fn entrances(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.group.as_ref().map_or(Ok(Vec::new()), Group::entrances)
    }
}

fn unbounded(why: &str) -> String {
    format!("the monitor's memory and processor time are not bounded from outside, but for resource limits ({why})")
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        let Some(group) = self.group.take() else { return };
        let mut groups = groups();
        if let Some(owner) = &mut groups.owner {
            // What stays is swept when the next owner is made.
            let _ = owner.discard(&group);
        }
        groups.members -= 1;
        groups.tidy();
    }
}

/// Whether this user may make groups, tried: their version, or why not.
pub(crate) fn tried() -> Result<Version, String> {
    let mut groups = groups();
    let allowance = Allowance { memory: 64 * MEBIBYTE, beside: 0, file: 0, cpu_millis: 1000, tasks: 16 };
    let made = groups.make(&allowance);
    let version = groups.owner.as_ref().map(Owner::version);
    if let (Ok((group, _)), Some(owner)) = (&made, &mut groups.owner) {
        let _ = owner.discard(group);
    }
    groups.tidy();
    made.and_then(|_| version.ok_or_else(|| "no owner".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(disks: Vec<Disk>) -> Hardware {
        Hardware { memory: ByteSize::from_mebibytes(256), processors: 2, disks, port: "p" }
    }

    #[test]
    fn a_monitor_may_take_its_machine_and_a_stated_rest() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(512 * MEBIBYTE).unwrap();
        let stored = if in_memory(&file) { 512 } else { 0 };
        let disk = Disk { name: "work", contents: Contents::Own(file), access: Access::ReadWrite };
        let found = Allowance::of(&machine(vec![disk]), Sharing::Own);
        assert_eq!(found.memory, (256 + 128 + 192 + 4 + stored) * MEBIBYTE);
        assert_eq!((found.file, found.cpu_millis, found.tasks), (576 * MEBIBYTE, 2000, 98));
        let names = |grouped, alone| found.limits(grouped, alone).len();
        assert_eq!((names(true, true), names(false, false), names(false, true)), (2, 3, 4));
    }

    #[test]
    fn a_machine_from_a_state_may_have_each_page_twice() {
        let [own, state] = [Sharing::Own, Sharing::State].map(|sharing| Allowance::of(&machine(Vec::new()), sharing));
        assert_eq!(state.memory, own.memory + 256 * MEBIBYTE);
        // Nobody is told another thing of a claimed machine than of one that was created.
        assert_eq!(state.beside, own.beside);
        assert_eq!((state.file, state.cpu_millis, state.tasks), (own.file, own.cpu_millis, own.tasks));
        let dumping = Allowance::of_firecracker(&machine(Vec::new()), Sharing::Own);
        assert_eq!(dumping.memory, (256 + 256 + 192 + 4) * MEBIBYTE);
    }

    /// Whether the owner is there just while somebody needs it; other tests of this process may.
    fn is_kept_for_somebody() -> bool {
        let groups = groups();
        groups.owner.is_some() == (groups.members > 0)
    }

    #[test]
    fn a_group_is_there_as_long_as_its_monitor_and_its_owner_as_long_as_any() {
        let allowance = Allowance::of(&machine(Vec::new()), Sharing::Own);
        let first = Enclosure::make(&allowance, true);
        if first.group.is_none() {
            println!("SKIP a_group_is_there_as_long_as_its_monitor: {}", first.shown);
            assert!(first.shown.contains("not bounded from outside"), "{}", first.shown);
            return;
        }
        assert!(first.shown.contains(": 324 MiB beside") && first.shown.contains("98 threads"), "{}", first.shown);
        let second = Enclosure::make(&allowance, true);
        let members = groups().members;
        assert!(members >= 2, "{members}");
        assert!(tried().is_ok() && is_kept_for_somebody());
        drop(first);
        assert!(is_kept_for_somebody());
        drop(second);
        assert!(is_kept_for_somebody());
        assert!(tried().is_ok() && is_kept_for_somebody());
    }
}
