//! Parts of `/proc` that show the host or its activity, and are covered in each sandbox.

/// Files of `/proc` that are covered: those that container runtimes cover, and others that identify the host or reveal
/// its activity. Files that only the host's root may read are not repeated here, because no sandbox runs as that user.
/// Files that programs need stay visible: `cpuinfo`, `meminfo`, `stat`, `loadavg`, `uptime`, `version`, `cgroups`,
/// `filesystems`. So do files that only name hardware and drivers, because each cover takes time.
pub(super) const MASKED_FILES: &[&str] = &[
    "buddyinfo",
    "cmdline",
    "config.gz",
    "diskstats",
    "interrupts",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "latency_stats",
    "locks",
    "modules",
    "partitions",
    "sched_debug",
    "schedstat",
    "softirqs",
    "swaps",
    "sys/fs/dentry-state",
    "sys/fs/file-nr",
    "sys/fs/inode-nr",
    "sys/fs/inode-state",
    "sys/kernel/random/boot_id",
    "timer_list",
    "timer_stats",
    "vmstat",
    "zoneinfo",
];
/// Directories of `/proc` that are covered.
pub(super) const MASKED_DIRS: &[&str] = &["acpi", "asound", "fs", "irq", "pressure", "scsi"];
