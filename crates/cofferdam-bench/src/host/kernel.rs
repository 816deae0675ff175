//! Memory use of the kernel.

use super::{field, read};

/// Figures of `/proc/meminfo`, for the whole host, in KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelMemory {
    /// Memory available without swapping.
    pub available: u64,
    /// Total memory.
    pub total: u64,
    /// Kernel objects.
    pub slab: u64,
    /// Kernel objects that cannot be reclaimed under pressure.
    pub unreclaimable: u64,
    /// Kernel stacks, one for each task.
    pub stacks: u64,
    /// Page tables.
    pub tables: u64,
    /// Per-CPU allocations.
    pub per_processor: u64,
    /// Files in memory: tmpfs and shared memory.
    pub shared: u64,
}

/// Reads the current figures.
pub fn memory() -> KernelMemory {
    parse(&read("/proc/meminfo"))
}

fn parse(text: &str) -> KernelMemory {
    let value = |name| field(text, name).unwrap_or_default();
    KernelMemory {
        available: value("MemAvailable"),
        total: value("MemTotal"),
        slab: value("Slab"),
        unreclaimable: value("SUnreclaim"),
        stacks: value("KernelStack"),
        tables: value("PageTables"),
        per_processor: value("Percpu"),
        shared: value("Shmem"),
    }
}

/// Returns the number of network namespaces of the host, including empty ones that the kernel has not yet removed.
/// Returns `None` if this user may not read it.
pub fn network_namespaces() -> Option<u64> {
    active(&read("/proc/slabinfo"), "net_namespace")
}

fn active(slabinfo: &str, cache: &str) -> Option<u64> {
    let line = slabinfo.lines().find(|line| line.split(' ').next() == Some(cache))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal: 900 kB\nMemAvailable: 800 kB\nSlab: 50 kB\nSReclaimable: 20 kB\nSUnreclaim: 30 kB\n";
        let memory = parse(text);
        assert_eq!((memory.total, memory.available, memory.slab, memory.unreclaimable), (900, 800, 50, 30));
        assert_eq!(memory.stacks, 0);
    }

    #[test]
    fn slabinfo_is_read() {
        let text = "slabinfo - version: 2.1\nnet_namespace_x 9 9\nnet_namespace         28     56   4288\n";
        assert_eq!(active(text, "net_namespace"), Some(28));
        assert_eq!(active("", "net_namespace"), None);
    }
}
