//! Sums of memory and CPU time over the sandbox's processes, for hosts without control groups.

use super::cpu_charges::{CpuCharges, Population};
use super::sys;
use super::texts::{self, Path};

/// The interval at which memory and CPU time are summed up.
const POLL_INTERVAL_MICROS: u64 = 25_000;
/// The maximum kernel memory of a descriptor: a pipe's buffer. Other kinds use less.
const DESCRIPTOR_BYTES: u64 = 72 * 1024;
/// The maximum kernel memory of a socket: its own buffer and data that was sent to it. The kernel's defaults, and the
/// TCP limits of the network namespace, keep each lower.
const SOCKET_BYTES: u64 = 320 * 1024;
/// The number of sockets of the whole sandbox that are not charged.
const FREE_SOCKETS: u64 = 16;
/// The kernel memory of a thread: a stack and the task structure.
const THREAD_BYTES: u64 = 32 * 1024;
/// The kernel memory of a file of the sandbox besides its contents: an inode and a name.
const FILE_BYTES: u64 = 1024;
/// The kernel memory of one mapping of a process.
const MAPPING_BYTES: u64 = 256;
/// The maximum of mappings of all processes together, above which memory counts as used up: as many as the kernel
/// allows a single process.
const MAX_MAPPINGS: u64 = 65_530;
/// The number of polls for each count of mappings. They take longer to read than everything else, and longer to create.
const POLLS_PER_COUNT: u32 = 8;
/// The number of descriptors of a process that are not charged.
const FREE_DESCRIPTORS: u64 = 8;
/// The size of a new descriptor table.
const FIRST_TABLE: u64 = 64;
/// The number of bytes of a directory to read at once.
const ENTRIES: usize = 2048;
/// The size of a buffer for files of `/proc`, larger than the parts that are read here.
const TEXT: usize = 4096;

/// The number of successive polls without a complete list of processes, after which memory counts as used up.
const MAX_FAILED_POLLS: u32 = 40;

/// A limit that was exceeded.
#[derive(Clone, Copy)]
pub enum Passed {
    Memory,
    Cpu,
}

/// The used and charged CPU time at the start of an exec.
#[derive(Clone, Copy)]
pub struct Since {
    charged_micros: u64,
    cpu_micros: u64,
}

impl Since {
    /// No CPU time.
    pub const NOTHING: Self = Self { charged_micros: 0, cpu_micros: 0 };
}

/// The watch over memory and CPU time.
pub struct Watch {
    memory: Option<u64>,
    cpu_micros: Option<u64>,
    /// True if files in the sandbox's tmpfs count as memory, because nothing else limits them.
    counts_files: bool,
    /// The seed of the digest of processes.
    seed: u64,
    charges: CpuCharges,
    /// The start of the exec that has run for the longest time.
    since: Since,
    last_poll: u64,
    due: u64,
    /// The number of successive polls without a complete list of processes.
    failed_polls: u32,
    /// The number of polls until mappings are counted again.
    polls_until_count: u32,
    /// The number of mappings at the last count.
    mappings: u64,
}

impl Watch {
    /// Creates a watch if there is a limit to enforce.
    pub fn new(memory: Option<u64>, cpu_micros: Option<u64>, counts_files: bool, seed: u64) -> Option<Self> {
        let now = sys::now_micros();
        (memory.is_some() || cpu_micros.is_some()).then_some(Self {
            memory,
            cpu_micros,
            counts_files,
            seed,
            charges: CpuCharges::default(),
            since: Since::NOTHING,
            last_poll: now,
            due: now,
            failed_polls: 0,
            polls_until_count: 0,
            mappings: 0,
        })
    }

    /// Begins an exec, which is charged with what is used from now on. If others run beside it, their account
    /// continues, so that no start, not even a failed one, cancels charges. Otherwise the account is a new one.
    pub fn begin(&mut self, beside: bool) -> Since {
        let total = total(self.seed);
        if beside {
            self.charge(&total);
        } else {
            self.charges = CpuCharges::open(total.cpu_micros, total.population);
            self.last_poll = sys::now_micros();
            self.due = self.last_poll + POLL_INTERVAL_MICROS;
        }
        let since = Since { charged_micros: self.charges.charged_micros(), cpu_micros: total.cpu_micros };
        if !beside {
            self.since = since;
        }
        since
    }

    /// Resumes after all processes were stopped, and does not charge that time. A seed replaces the previous one.
    pub fn resume(&mut self, seed: Option<u64>) {
        self.seed = seed.unwrap_or(self.seed);
        let total = total(self.seed);
        self.charges.resume(total.cpu_micros, total.population);
        self.last_poll = sys::now_micros();
        self.due = self.last_poll + POLL_INTERVAL_MICROS;
    }

    /// Returns the microseconds until the next poll.
    pub fn left(&self) -> u64 {
        self.due.saturating_sub(sys::now_micros())
    }

    /// Returns the CPU time of an ended exec. `reaped_micros` is the time of its main process. If this watch limits CPU
    /// time, the result is all time used since the exec started: other processes of it may still exist, or only this
    /// process reaped them.
    pub fn used(&self, reaped_micros: u64, since: Since) -> u64 {
        if self.cpu_micros.is_none() {
            return reaped_micros;
        }
        total(self.seed).cpu_micros.saturating_sub(since.cpu_micros).max(reaped_micros)
    }

    /// Polls if the interval is over. Returns a limit that was exceeded, by the time used since the start of a running
    /// exec.
    pub fn poll(&mut self, running: impl Iterator<Item = Since>) -> Option<Passed> {
        if sys::now_micros() < self.due {
            return None;
        }
        // Processes that the last exec left are charged to no other.
        self.since = running.min_by_key(|since| since.charged_micros).unwrap_or(self.since);
        let passed = self.passed();
        self.due = sys::now_micros() + POLL_INTERVAL_MICROS;
        passed
    }

    fn passed(&mut self) -> Option<Passed> {
        let total = total(self.seed);
        self.failed_polls = if total.listed { 0 } else { self.failed_polls + 1 };
        if let Some(limit) = self.memory {
            let files = if self.counts_files { sys::used_bytes(b"/tmp\0").unwrap_or(0) } else { 0 };
            let used = total.memory + files + self.count_mappings() * MAPPING_BYTES;
            if used > limit || self.mappings > MAX_MAPPINGS || self.failed_polls >= MAX_FAILED_POLLS {
                return Some(Passed::Memory);
            }
        }
        self.charge(&total);
        let charged = self.charges.charged_micros().saturating_sub(self.since.charged_micros);
        self.cpu_micros.is_some_and(|limit| charged > limit).then_some(Passed::Cpu)
    }

    fn count_mappings(&mut self) -> u64 {
        if self.polls_until_count == 0 {
            self.polls_until_count = POLLS_PER_COUNT;
            self.mappings = mappings();
        }
        self.polls_until_count -= 1;
        self.mappings
    }

    fn charge(&mut self, total: &Total) {
        let now = sys::now_micros();
        let span = now.saturating_sub(core::mem::replace(&mut self.last_poll, now));
        self.charges.charge(span, sys::processors().max(1), total.cpu_micros, total.population);
    }
}

struct Total {
    memory: u64,
    cpu_micros: u64,
    population: Population,
    /// True if all processes were listed.
    listed: bool,
}

/// Returns what all processes of the sandbox use together. Shared memory counts for each process that maps it: rather
/// too much than too little.
fn total(seed: u64) -> Total {
    let mut text = [0; TEXT];
    // Read it before the list: a process that starts meanwhile changes the number for the next poll.
    let last = texts::last_pid(sys::read_file(b"/proc/loadavg\0", &mut text));
    let population = Population::new(seed, last);
    let mut total = Total { memory: 0, cpu_micros: sys::reaped_cpu_micros(), population, listed: false };
    let mut whole = true;
    let mut entries = [0; ENTRIES];
    let listed = each_process(&mut entries, |pid| {
        total.population.add(pid);
        let number = pid as u32;
        let status = sys::read_file(Path::new("/proc/", number, "/status").bytes(), &mut text);
        total.memory += match texts::field(status, b"RssAnon:") {
            Some(_) => used_by(number, status),
            None => used_by_threads(number, status),
        };
        let stat = sys::read_file(Path::new("/proc/", number, "/stat").bytes(), &mut text);
        total.cpu_micros += texts::cpu_micros(stat);
        whole &= !stat.is_empty();
    });
    total.listed = listed;
    if !listed || !whole {
        // The list is not complete, so it must differ from the previous one.
        total.population = Population::new(seed ^ sys::now_micros(), last);
    }
    total.memory += sys::used_files(b"/tmp\0").unwrap_or(0) * FILE_BYTES;
    // Sockets that wait to be accepted, are in flight between processes, or were closed with unread data are in no
    // process's list.
    let sockets = texts::sockets(sys::read_file(b"/proc/net/sockstat\0", &mut text)).unwrap_or(0);
    total.memory += sockets.saturating_sub(FREE_SOCKETS) * SOCKET_BYTES;
    total
}

/// Returns what a process uses, by its status: pages, page tables and other kernel memory.
fn used_by(pid: u32, status: &[u8]) -> u64 {
    const PAGES: [&[u8]; 4] = [b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:"];
    let kibibytes = PAGES.iter().map(|key| texts::field(status, key).unwrap_or(0)).sum::<u64>();
    let threads = texts::field(status, b"Threads:").unwrap_or(1);
    kibibytes * 1024 + threads * THREAD_BYTES + counted_descriptors(pid, status) * DESCRIPTOR_BYTES
}

/// Returns the same for a process whose first thread has ended, which then shows nothing: takes the values of one of
/// its other threads.
fn used_by_threads(pid: u32, status: &[u8]) -> u64 {
    let threads = texts::field(status, b"Threads:").unwrap_or(0);
    if threads < 2 {
        return THREAD_BYTES;
    }
    let mut used = threads * THREAD_BYTES;
    each_thread(pid, |thread| {
        let mut text = [0; TEXT];
        let status = sys::read_file(Path::new("/proc/", thread, "/status").bytes(), &mut text);
        if texts::field(status, b"RssAnon:").is_some() {
            used = used.max(used_by(thread, status));
        }
    });
    used
}

fn each_thread(pid: u32, mut visit: impl FnMut(u32)) {
    let mut buffer = [0; ENTRIES];
    each_name(Path::new("/proc/", pid, "/task").bytes(), &mut buffer, |name| {
        if let Some(thread) = texts::pid(name) {
            visit(thread as u32);
        }
    });
}

/// Returns the number of mappings of all processes, up to a little more than [`MAX_MAPPINGS`].
fn mappings() -> u64 {
    let mut count = 0;
    let mut entries = [0; ENTRIES];
    each_process(&mut entries, |pid| {
        if count <= MAX_MAPPINGS {
            count += mappings_of(pid as u32, MAX_MAPPINGS - count);
        }
    });
    count
}

fn mappings_of(pid: u32, max: u64) -> u64 {
    let mut text = [0; TEXT];
    let status = sys::read_file(Path::new("/proc/", pid, "/status").bytes(), &mut text);
    if texts::field(status, b"RssAnon:").is_some() {
        return listed_mappings(pid, status, max);
    }
    let mut count = 0;
    if texts::field(status, b"Threads:").is_some_and(|threads| threads > 1) {
        each_thread(pid, |thread| {
            let mut text = [0; TEXT];
            let status = sys::read_file(Path::new("/proc/", thread, "/status").bytes(), &mut text);
            if count == 0 && texts::field(status, b"RssAnon:").is_some() {
                count = listed_mappings(thread, status, max);
            }
        });
    }
    count
}

/// Returns the number of mappings of one process, up to a little more than `max`. A process that hides them is charged
/// with as many as fit into its address space.
fn listed_mappings(pid: u32, status: &[u8], max: u64) -> u64 {
    let pages = texts::field(status, b"VmSize:").unwrap_or(0) / 4;
    let Ok(maps) = sys::open(Path::new("/proc/", pid, "/maps").bytes(), 0) else { return pages.min(max / 4) };
    let mut text = [0; TEXT];
    let mut count = 0;
    while count <= max {
        match sys::read(maps.number(), &mut text) {
            Ok(length) if length > 0 => {
                let read = text.get(..length).unwrap_or_default();
                count += read.iter().filter(|&&byte| byte == b'\n').count() as u64;
            }
            _ => break,
        }
    }
    count
}

/// Returns the number of open descriptors of a process that are charged. For a process that hides them, the size of its
/// table counts, which is 64 at first. A child of this process hides them until it executes its program.
fn counted_descriptors(pid: u32, status: &[u8]) -> u64 {
    let mut buffer = [0; ENTRIES];
    let mut count = 0u64;
    let counted = each_name(Path::new("/proc/", pid, "/fd").bytes(), &mut buffer, |name| {
        count += u64::from(texts::number(name).is_some());
    });
    if counted { count.saturating_sub(FREE_DESCRIPTORS) } else { hidden_descriptors(status) }
}

fn hidden_descriptors(status: &[u8]) -> u64 {
    texts::field(status, b"FDSize:").unwrap_or(0).saturating_sub(FIRST_TABLE)
}

/// Calls `visit` with each process of the sandbox except this one. Returns false if not all of them could be listed.
pub fn each_process(buffer: &mut [u8], mut visit: impl FnMut(i32)) -> bool {
    each_name(b"/proc\0", buffer, |name| {
        if let Some(pid) = texts::pid(name).filter(|&pid| pid > 1) {
            visit(pid);
        }
    })
}

/// Calls `visit` with each name in a directory, and reads as many at once as fit into the buffer. Returns false if the
/// directory cannot be read.
pub fn each_name(path: &[u8], buffer: &mut [u8], mut visit: impl FnMut(&[u8])) -> bool {
    let Ok(directory) = sys::open_directory(path) else { return false };
    while let Ok(entries) = sys::entries(&directory, buffer) {
        if entries.is_empty() {
            return true;
        }
        each_entry(entries, |entry| visit(entry.name));
    }
    false
}

/// An entry of a directory.
pub struct Entry<'a> {
    /// The entry's name.
    pub name: &'a [u8],
    /// The offset of the next entry, for [`sys::seek`].
    pub next: u64,
}

/// Calls `visit` with each entry in the kernel's format.
pub fn each_entry(mut entries: &[u8], mut visit: impl FnMut(Entry<'_>)) {
    const NEXT_AT: usize = 8;
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    while let Some(&[low, high]) = entries.get(LENGTH_AT..LENGTH_AT + 2) {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let Some((entry, rest)) = entries.split_at_checked(length).filter(|_| length > NAME_AT) else { break };
        let name = entry.get(NAME_AT..).unwrap_or_default();
        let next = entry.get(NEXT_AT..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        visit(Entry { name: name.split(|&byte| byte == 0).next().unwrap_or_default(), next });
        entries = rest;
    }
}
