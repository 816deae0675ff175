//! Attacks that exhaust the host. None runs outside: each would take the host down.

use cofferdam_contract::LimitKind;

use super::super::host::Host;
use super::super::row::{Control, Expect, Row, WorkspaceKind, row, words};

const WOULD_HARM: &str = "it would use up the machine";

fn bomb(name: &'static str, guest: &'static str, args: fn(&Host) -> Vec<String>) -> Row {
    row(name, guest, Control::None(WOULD_HARM)).args(args).workspace(WorkspaceKind::Private)
}

fn memory(name: &'static str, args: fn(&Host) -> Vec<String>) -> Row {
    bomb(name, "memory_bomb", args).memory(64).disk(512).expect(Expect::ContainedOrLimit(LimitKind::Memory))
}

/// Creates a row of a file bomb. Files are in memory with a separate quota, which the disk limit sets.
fn files(name: &'static str, args: fn(&Host) -> Vec<String>) -> Row {
    bomb(name, "memory_bomb", args).memory(64).disk(64).expect(Expect::ContainedOrLimit(LimitKind::Disk))
}

fn disk(name: &'static str, args: fn(&Host) -> Vec<String>) -> Row {
    bomb(name, "disk_bomb", args).disk(32).expect(Expect::ContainedOrLimit(LimitKind::Disk))
}

fn cpu(name: &'static str, args: fn(&Host) -> Vec<String>) -> Row {
    bomb(name, "cpu_bomb", args).cpu_seconds(1).expect(Expect::ContainedOrLimit(LimitKind::Cpu))
}

pub fn rows() -> Vec<Row> {
    [counts(), memory_rows(), disk_rows(), cpu_rows()].into_iter().flatten().collect()
}

pub fn counts() -> Vec<Row> {
    vec![
        bomb("a fork bomb", "fork_bomb", |_| words(["10"]))
            .processes(10)
            .expect(Expect::ContainedOrLimit(LimitKind::Pids)),
        bomb("a larger fork bomb", "fork_bomb", |_| words(["40"]))
            .processes(40)
            .expect(Expect::ContainedOrLimit(LimitKind::Pids)),
        bomb("a thread bomb", "thread_bomb", |_| words(["10"]))
            .processes(10)
            .expect(Expect::ContainedOrLimit(LimitKind::Pids)),
        bomb("a descriptor bomb", "descriptor_bomb", |_| words(["1000000"])),
        bomb("a terminal bomb", "terminal_bomb", |_| words(["3072"])),
        bomb("an output bomb", "output_bomb", |_| vec![]).expect(Expect::Truncated),
        bomb("bombs of queues, timers and watches", "queue_bomb", |_| words(["100000"])),
    ]
}

pub fn memory_rows() -> Vec<Row> {
    vec![
        memory("memory in one process", |_| words(["private", "64", "1"])),
        memory("memory in six processes", |_| words(["private", "64", "6"])),
        memory("shared memory", |_| words(["shared", "64", "1"])),
        memory("locked memory", |_| words(["locked", "64", "2"])),
        files("memory in files of the workspace", |_| words(["file", "64", "1", "/workspace"])),
        files("memory in files of /dev/shm", |_| words(["file", "64", "2", "/dev/shm"])),
        files("memory in files of /tmp", |_| words(["file", "64", "1", "/tmp"])),
        memory("memory in memfds", |_| words(["memfd", "64", "1"])),
        memory("memory in descriptors on their way", |_| words(["in-flight", "64", "1"])),
        memory("memory in System V segments", |_| words(["sysv", "64", "1"])),
        memory("memory in pipes", |_| words(["pipe", "64", "4"])),
        memory("memory in sockets", |_| words(["socket", "64", "4"])),
    ]
}

pub fn disk_rows() -> Vec<Row> {
    vec![
        disk("disk by writing", |_| words(["write", "32", "/workspace", "/tmp", "/dev/shm"])),
        disk("disk by fallocate", |_| words(["fallocate", "32", "/workspace", "/tmp", "/dev/shm"])),
        disk("disk by mappings", |_| words(["mmap", "32", "/workspace", "/tmp", "/dev/shm"])),
        disk("disk by files without a name", |_| words(["unlinked", "32", "/tmp", "/workspace", "/dev/shm"])),
        disk("disk by holes", |_| words(["sparse", "32", "/workspace", "/tmp", "/dev/shm"])),
        bomb("an inode bomb in the workspace", "inode_bomb", |_| words(["2000000", "/workspace"]))
            .memory(256)
            .expect(Expect::ContainedOrLimit(LimitKind::Memory)),
        bomb("an inode bomb in /dev/shm", "inode_bomb", |_| words(["2000000", "/dev/shm"]))
            .memory(256)
            .expect(Expect::ContainedOrLimit(LimitKind::Memory)),
    ]
}

pub fn cpu_rows() -> Vec<Row> {
    vec![
        cpu("processor time in one process", |_| words(["one", "1"])).expect(Expect::ContainedOrLimit(LimitKind::Cpu)),
        cpu("processor time in four processes", |_| words(["many", "2"]))
            .cpu_seconds(2)
            .expect(Expect::Limit(LimitKind::Cpu)),
        cpu("CPU time of unreaped children", |_| words(["unreaped", "2"]))
            .cpu_seconds(2)
            .expect(Expect::Limit(LimitKind::Cpu)),
        cpu("processor time in a relay", |_| words(["relay", "2"]))
            .cpu_seconds(2)
            .expect(Expect::Limit(LimitKind::Cpu)),
    ]
}
