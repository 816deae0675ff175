//! Host resource limits of a VMM: control groups where this user may create some, resource limits in any case.
//!
//! All VMs of a process share one owner of groups. It exists as long as any of them. Groups that a killed process left
//! behind are removed when the next owner is created; a group's name identifies its owner.

use std::fs::File;
use std::os::fd::OwnedFd;

use cofferdam_contract::{Access, ByteSize};
use cofferdam_linux::cgroup::{Bounds, Family, Group, Owner, Share, Stats, Version};
use cofferdam_linux::process::Resource;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::fstatfs;

use crate::vmm::{Contents, Disk, Hardware};

const MEBIBYTE: u64 = 1 << 20;
/// The size of QEMU's cache of translated code. The module `qemu` passes it to QEMU.
pub(crate) const CODE_CACHE: u64 = 128 * MEBIBYTE;
/// The VMM's program, its stacks, devices and tables.
const STRUCTURES: u64 = 192 * MEBIBYTE;
/// The fraction of a VM's memory that the host needs for page tables.
const TABLES_SHARE: u64 = 64;
/// Threads besides one for each processor: the main thread, and those for disk I/O.
const THREADS: u64 = 96;
/// Address space that the stacks and heaps of these threads reserve and do not use.
const RESERVED: u64 = 1 << 30;
/// File descriptors: some channels, disks, and event descriptors of its threads.
const DESCRIPTORS: u64 = 128;
/// The magic number of a file system in memory.
const TMPFS: u64 = 0x0102_1994;

/// The owner of the file with a VM's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The VM: its writes change the file.
    Own,
    /// A state: the VM's writes are only in its VMM's process.
    State,
}

/// Host resource limits of one VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VmmLimits {
    /// Bytes, including the VM's memory.
    memory: u64,
    /// Bytes besides the VM's memory and its state; the same for a created and a restored VM.
    beside: u64,
    /// Bytes of the largest file that it writes to.
    file: u64,
    /// Thousandths of a processor.
    cpu_millis: u64,
    tasks: u64,
}

impl VmmLimits {
    /// Computes the limits for a VM with this hardware.
    ///
    /// A VM that was restored from a state has its memory twice in the worst case: the first access to a hole fills the
    /// state's file, which is charged to the VMM's group, and the first write allocates another page.
    pub(crate) fn of(hardware: &Hardware, sharing: Sharing) -> Self {
        let own = |disk: &Disk| match &disk.contents {
            // A read-only disk takes nothing.
            Contents::Own(file) if disk.access == Access::ReadWrite => Some((length(file), in_memory(file))),
            Contents::Own(_) | Contents::Shared(_) => None,
        };
        let disks: Vec<(u64, bool)> = hardware.disks.iter().filter_map(own).collect();
        let stored: u64 = disks.iter().filter(|(_, in_memory)| *in_memory).map(|(bytes, _)| bytes).sum();
        let guest = hardware.memory.as_bytes();
        let resident = match sharing {
            Sharing::Own => guest,
            Sharing::State => guest.saturating_mul(2),
        };
        let beside = (CODE_CACHE + STRUCTURES + guest / TABLES_SHARE).saturating_add(stored);
        Self {
            memory: resident.saturating_add(beside).next_multiple_of(MEBIBYTE),
            beside,
            // A VMM may keep the VM's memory in a file as well.
            file: disks.iter().map(|(bytes, _)| *bytes).fold(guest, u64::max).saturating_add(64 * MEBIBYTE),
            cpu_millis: u64::from(hardware.processors) * 1000,
            tasks: u64::from(hardware.processors) + THREADS,
        }
    }

    /// Computes the limits for Firecracker, which translates nothing, and writes a VM's memory into a file in the
    /// host's memory when it saves a state.
    pub(crate) fn of_firecracker(hardware: &Hardware, sharing: Sharing) -> Self {
        let of = Self::of(hardware, sharing);
        let adjust = |bytes: u64| bytes.saturating_sub(CODE_CACHE).saturating_add(hardware.memory.as_bytes());
        Self { memory: adjust(of.memory).next_multiple_of(MEBIBYTE), beside: adjust(of.beside), ..of }
    }

    /// Returns them as resource limits, which apply to one process each. `alone` says that no other process has its
    /// user.
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

/// Returns a file's length, or 0 if it cannot be read, which does not happen for own files.
fn length(file: &File) -> u64 {
    file.metadata().map_or(0, |found| found.len())
}

fn in_memory(file: &File) -> bool {
    fstatfs(file).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS))
}

/// The resource bounds of one VMM. Dropping it kills the processes that are left in the group, and removes the group.
#[derive(Debug)]
pub(crate) struct Enclosure {
    group: Option<Group>,
    /// Resource limits to set in addition.
    pub limits: Vec<(Resource, u64)>,
    /// Description of the bounds in effect, for display.
    pub shown: String,
}

struct Groups {
    owner: Option<Owner>,
    members: usize,
}

static GROUPS: Mutex<Groups> = Mutex::new(Groups { owner: None, members: 0 });

fn groups() -> MutexGuard<'static, Groups> {
    GROUPS.lock()
}

impl Groups {
    fn make(&mut self, vmm_limits: &VmmLimits) -> Result<(Group, String), String> {
        if self.owner.is_none() {
            self.owner = Some(Owner::new(Share::Many, Family::Own)?);
        }
        let Some(owner) = &mut self.owner else { return Err("no owner".to_owned()) };
        let cpu_millis = Some(vmm_limits.cpu_millis).filter(|_| owner.has_cpu());
        let bounds = Bounds { memory: Some(vmm_limits.memory), tasks: Some(vmm_limits.tasks), cpu_millis };
        let group = owner.make(bounds).map_err(|error| format!("{}: {error}", owner.version().as_str()))?;
        match measured(owner, &group, bounds, vmm_limits.beside) {
            Ok(shown) => Ok((group, shown)),
            Err(why) => {
                // Nothing is in this group yet. If it cannot be removed now, the next owner removes it.
                let _ = owner.discard(&group);
                Err(why)
            }
        }
    }

    /// Closes an owner without groups, so that nothing is left of it.
    fn tidy(&mut self) {
        if self.members == 0
            && let Some(owner) = self.owner.take()
        {
            owner.close();
        }
    }
}

/// Reads back the bounds of a group, and fails if they differ from those requested. Returns a description for display;
/// `beside` is the part of the memory for the VMM itself.
fn measured(owner: &Owner, group: &Group, requested: Bounds, beside: u64) -> Result<String, String> {
    let copies: Result<Vec<OwnedFd>, _> = group.dirs().map(|dir| dir.try_clone_to_owned()).collect();
    let copies = copies.map_err(|error| error.to_string())?;
    let stats = Stats::new(owner.version(), copies, &owner.layout());
    let (memory, tasks) = (stats.memory_bound(), stats.tasks_bound());
    // The kernel rounds down to pages.
    let close = |found: u64| requested.memory.is_some_and(|requested| found <= requested && requested - found < 65_536);
    let (Some(found), Some(threads)) =
        (memory.filter(|found| close(*found)), tasks.filter(|_| tasks == requested.tasks))
    else {
        return Err(format!(
            "{}: memory {memory:?}, tasks {tasks:?} instead of {requested:?}",
            owner.version().as_str()
        ));
    };
    let processors = match stats.cpu_millis().filter(|_| requested.cpu_millis.is_some()) {
        Some(millis) => format!("{millis} thousandths of a processor"),
        None => "processors without a bound".to_owned(),
    };
    let swap = if owner.counts_swap() { "without swap" } else { "swap not counted" };
    // Based on the measured bound, not the requested one.
    let beside = beside.saturating_sub(requested.memory.unwrap_or(found).saturating_sub(found));
    let (version, beside) = (owner.version().as_str(), beside.next_multiple_of(MEBIBYTE));
    let size = ByteSize::from_bytes(beside);
    Ok(format!("a group of {version}: {size} beside the VM's memory {swap}, {processors}, {threads} threads"))
}

impl Enclosure {
    /// Creates the bounds for a VMM. Blocks its thread for some milliseconds.
    pub(crate) fn make(vmm_limits: &VmmLimits, alone: bool) -> Self {
        let mut groups = groups();
        match groups.make(vmm_limits) {
            Ok((group, shown)) => {
                groups.members += 1;
                Self {
                    group: Some(group),
                    limits: vmm_limits.limits(true, alone),
                    shown: format!("the VMM is in {shown}"),
                }
            }
            Err(why) => {
                groups.tidy();
                Self { group: None, limits: vmm_limits.limits(false, alone), shown: unbounded(&why) }
            }
        }
    }

    /// Opens the files through which a process enters the group, if there is one.
    pub(crate) fn entrances(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.group.as_ref().map_or(Ok(Vec::new()), Group::entrances)
    }
}

fn unbounded(why: &str) -> String {
    format!("the VMM's memory and processor time are bounded only by resource limits ({why})")
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        let Some(group) = self.group.take() else { return };
        let mut groups = groups();
        if let Some(owner) = &mut groups.owner {
            // The next owner removes what is left.
            let _ = owner.discard(&group);
        }
        groups.members -= 1;
        groups.tidy();
    }
}

/// Creates a group to test whether this user may. Returns the control group version, or the reason why not.
pub(crate) fn tried() -> Result<Version, String> {
    let mut groups = groups();
    let vmm_limits = VmmLimits { memory: 64 * MEBIBYTE, beside: 0, file: 0, cpu_millis: 1000, tasks: 16 };
    let created = groups.make(&vmm_limits);
    let version = groups.owner.as_ref().map(Owner::version);
    if let (Ok((group, _)), Some(owner)) = (&created, &mut groups.owner) {
        let _ = owner.discard(group);
    }
    groups.tidy();
    created.and_then(|_| version.ok_or_else(|| "no owner".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware(disks: Vec<Disk>) -> Hardware {
        Hardware { memory: ByteSize::from_mebibytes(256), processors: 2, disks, port: "p" }
    }

    /// Promise (Virtual machines): The limits of a VMM are those of its VM and a fixed overhead.
    #[test]
    fn vmm_may_use_its_vms_memory_and_a_bounded_rest() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(512 * MEBIBYTE).unwrap();
        let stored = if in_memory(&file) { 512 } else { 0 };
        let disk = Disk { name: "work", contents: Contents::Own(file), access: Access::ReadWrite };
        let found = VmmLimits::of(&hardware(vec![disk]), Sharing::Own);
        assert_eq!(found.memory, (256 + 128 + 192 + 4 + stored) * MEBIBYTE);
        assert_eq!((found.file, found.cpu_millis, found.tasks), (576 * MEBIBYTE, 2000, 98));
        let names = |grouped, alone| found.limits(grouped, alone).len();
        assert_eq!((names(true, true), names(false, false), names(false, true)), (2, 3, 4));
    }

    #[test]
    fn restored_vm_may_have_each_page_twice() {
        let [own, state] = [Sharing::Own, Sharing::State].map(|sharing| VmmLimits::of(&hardware(Vec::new()), sharing));
        assert_eq!(state.memory, own.memory + 256 * MEBIBYTE);
        // A claimed VM is described exactly as a created one.
        assert_eq!(state.beside, own.beside);
        assert_eq!((state.file, state.cpu_millis, state.tasks), (own.file, own.cpu_millis, own.tasks));
        let dumping = VmmLimits::of_firecracker(&hardware(Vec::new()), Sharing::Own);
        assert_eq!(dumping.memory, (256 + 256 + 192 + 4) * MEBIBYTE);
    }

    /// Returns true if the owner exists exactly while it has members. Other tests of this process may have some.
    fn owner_matches_members() -> bool {
        let groups = groups();
        groups.owner.is_some() == (groups.members > 0)
    }

    /// Promise (Virtual machines): The control group of a VMM exists as long as the VMM.
    #[test]
    fn group_lives_as_long_as_its_vmm_and_owner_as_long_as_any_group() {
        let vmm_limits = VmmLimits::of(&hardware(Vec::new()), Sharing::Own);
        let first = Enclosure::make(&vmm_limits, true);
        if first.group.is_none() {
            println!("SKIP group_lives_as_long_as_its_vmm_and_owner_as_long_as_any_group: {}", first.shown);
            assert!(first.shown.contains("only by resource limits"), "{}", first.shown);
            return;
        }
        assert!(first.shown.contains(": 324 MiB beside") && first.shown.contains("98 threads"), "{}", first.shown);
        let second = Enclosure::make(&vmm_limits, true);
        let members = groups().members;
        assert!(members >= 2, "{members}");
        assert!(tried().is_ok() && owner_matches_members());
        drop(first);
        assert!(owner_matches_members());
        drop(second);
        assert!(owner_matches_members());
        assert!(tried().is_ok() && owner_matches_members());
    }
}
