//! Sums over the sandbox's processes, for hosts without control groups.

use super::ledger::{Ledger, Population};
use super::sys;
use super::texts::{self, Path};

/// How often memory and CPU time are summed up where no control group does it.
const WATCH_EVERY_MICROS: u64 = 25_000;
/// What a descriptor may hold in the kernel: a pipe's buffer. Of what else there is, each holds less.
const DESCRIPTOR_BYTES: u64 = 72 * 1024;
/// What a socket may hold in the kernel: the buffer of its own, and what was sent to it. The kernel's defaults, and the
/// bounds of TCP that the network namespace was made with, keep each below that.
const SOCKET_BYTES: u64 = 320 * 1024;
/// Sockets of the whole sandbox that count for nothing.
const FREE_SOCKETS: u64 = 16;
/// What a thread has in the kernel: a stack, and what describes it.
const THREAD_BYTES: u64 = 32 * 1024;
/// What a file of the sandbox's own has in the kernel besides its contents: an inode, and a name.
const FILE_BYTES: u64 = 1024;
/// What describes one mapping of a process.
const MAPPING_BYTES: u64 = 256;
/// Mappings of all processes together, above which memory counts as used up: as many as the kernel allows one of them.
const MAX_MAPPINGS: u64 = 65_530;
/// Mappings are counted only at every eighth look: they take longer to read than everything else, and longer to make.
const LOOKS_PER_COUNT: u32 = 8;
/// Descriptors of a process that count for nothing.
const FREE_DESCRIPTORS: u64 = 8;
/// The size of a new table of descriptors.
const FIRST_TABLE: u64 = 64;
/// Bytes of a directory that are read at once.
const ENTRIES: usize = 2048;
/// Longer than the parts of any file of `/proc` that are looked at here.
const TEXT: usize = 4096;

/// Looks in a row at which processes could not be listed, after which memory counts as used up.
const MAX_BLIND: u32 = 40;

/// A limit that was passed.
#[derive(Clone, Copy)]
pub enum Passed {
    Memory,
    Cpu,
}

/// What was used and charged by the time that an exec started.
#[derive(Clone, Copy)]
pub struct Since {
    charged_micros: u64,
    cpu_micros: u64,
}

impl Since {
    /// Nothing.
    pub const NOTHING: Self = Self { charged_micros: 0, cpu_micros: 0 };
}

/// The watch.
pub struct Watch {
    memory: Option<u64>,
    cpu_micros: Option<u64>,
    /// Whether files in the sandbox's tmpfs count as memory: nothing else bounds them.
    counts_files: bool,
    /// Begins the digest of who is there.
    seed: u64,
    ledger: Ledger,
    /// The start of the exec that has run for longest.
    since: Since,
    last_look: u64,
    due: u64,
    /// Looks in a row at which processes could not be listed.
    blind: u32,
    /// Looks until mappings are counted again.
    until_count: u32,
    /// Mappings at the last count.
    mappings: u64,
}

impl Watch {
    /// A watch if there is something to watch.
    pub fn new(memory: Option<u64>, cpu_micros: Option<u64>, counts_files: bool, seed: u64) -> Option<Self> {
        let now = sys::now_micros();
        (memory.is_some() || cpu_micros.is_some()).then_some(Self {
            memory,
            cpu_micros,
            counts_files,
            seed,
            ledger: Ledger::default(),
            since: Since::NOTHING,
            last_look: now,
            due: now,
            blind: 0,
            until_count: 0,
            mappings: 0,
        })
    }

    /// An exec starts: it is charged with what is used from now on. Where others run beside it, their account goes on,
    /// so that no start, not even one that fails, forgives what was used; else it is a new one.
    pub fn begin(&mut self, beside: bool) -> Since {
        let total = total(self.seed);
        if beside {
            self.charge(&total);
        } else {
            self.ledger = Ledger::open(total.cpu_micros, total.population);
            self.last_look = sys::now_micros();
            self.due = self.last_look + WATCH_EVERY_MICROS;
        }
        let since = Since { charged_micros: self.ledger.charged_micros(), cpu_micros: total.cpu_micros };
        if !beside {
            self.since = since;
        }
        since
    }

    /// Everything was stopped until now; that time is not charged. A seed replaces the one that there was.
    pub fn go_on(&mut self, seed: Option<u64>) {
        self.seed = seed.unwrap_or(self.seed);
        let total = total(self.seed);
        self.ledger.go_on(total.cpu_micros, total.population);
        self.last_look = sys::now_micros();
        self.due = self.last_look + WATCH_EVERY_MICROS;
    }

    /// Microseconds until the next look.
    pub fn left(&self) -> u64 {
        self.due.saturating_sub(sys::now_micros())
    }

    /// CPU time of an exec that has ended, of whose main process this was read. Where this watch is what counts, it is
    /// all that was used since the exec started: others of it may still be there, or were reaped by nobody but this
    /// process.
    pub fn used(&self, reaped_micros: u64, since: Since) -> u64 {
        if self.cpu_micros.is_none() {
            return reaped_micros;
        }
        total(self.seed).cpu_micros.saturating_sub(since.cpu_micros).max(reaped_micros)
    }

    /// Looks, if it is time to. Tells of a limit that was passed, by what was used since one of those started that run.
    pub fn look(&mut self, running: impl Iterator<Item = Since>) -> Option<Passed> {
        if sys::now_micros() < self.due {
            return None;
        }
        // What the last one left is charged to nobody else.
        self.since = running.min_by_key(|since| since.charged_micros).unwrap_or(self.since);
        let passed = self.passed();
        self.due = sys::now_micros() + WATCH_EVERY_MICROS;
        passed
    }

    fn passed(&mut self) -> Option<Passed> {
        let total = total(self.seed);
        self.blind = if total.listed { 0 } else { self.blind + 1 };
        if let Some(limit) = self.memory {
            let files = if self.counts_files { sys::used_bytes(b"/tmp\0").unwrap_or(0) } else { 0 };
            let used = total.memory + files + self.count_mappings() * MAPPING_BYTES;
            if used > limit || self.mappings > MAX_MAPPINGS || self.blind >= MAX_BLIND {
                return Some(Passed::Memory);
            }
        }
        self.charge(&total);
        let charged = self.ledger.charged_micros().saturating_sub(self.since.charged_micros);
        self.cpu_micros.is_some_and(|limit| charged > limit).then_some(Passed::Cpu)
    }

    fn count_mappings(&mut self) -> u64 {
        if self.until_count == 0 {
            self.until_count = LOOKS_PER_COUNT;
            self.mappings = mappings();
        }
        self.until_count -= 1;
        self.mappings
    }

    fn charge(&mut self, total: &Total) {
        let now = sys::now_micros();
        let span = now.saturating_sub(core::mem::replace(&mut self.last_look, now));
        self.ledger.charge(span, sys::processors().max(1), total.cpu_micros, total.population);
    }
}

struct Total {
    memory: u64,
    cpu_micros: u64,
    population: Population,
    /// Whether all processes could be listed.
    listed: bool,
}

/// What all processes of the sandbox use together. Shared memory counts for each process that maps it: rather too
/// much than too little.
fn total(seed: u64) -> Total {
    let mut text = [0; TEXT];
    // Before the list is read: who is born meanwhile makes the next look find another number here.
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
        // Nobody knows who was there, so that it counts as others than before.
        total.population = Population::new(seed ^ sys::now_micros(), last);
    }
    total.memory += sys::used_files(b"/tmp\0").unwrap_or(0) * FILE_BYTES;
    // Those that wait to be accepted, are on their way to another process, or were closed with something in them are in no
    // process's list.
    let sockets = texts::sockets(sys::read_file(b"/proc/net/sockstat\0", &mut text)).unwrap_or(0);
    total.memory += sockets.saturating_sub(FREE_SOCKETS) * SOCKET_BYTES;
    total
}

/// What a process uses, by its status: pages, the tables that lead to them, and what the kernel holds for it.
fn used_by(pid: u32, status: &[u8]) -> u64 {
    const PAGES: [&[u8]; 4] = [b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:"];
    let kibibytes = PAGES.iter().map(|key| texts::field(status, key).unwrap_or(0)).sum::<u64>();
    let threads = texts::field(status, b"Threads:").unwrap_or(1);
    kibibytes * 1024 + threads * THREAD_BYTES + counted_descriptors(pid, status) * DESCRIPTOR_BYTES
}

/// The same of a process whose first thread has ended, which then shows nothing: as one of its other threads shows it.
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

/// Mappings of all processes, no more than a little above [`MAX_MAPPINGS`].
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

fn mappings_of(pid: u32, most: u64) -> u64 {
    let mut text = [0; TEXT];
    let status = sys::read_file(Path::new("/proc/", pid, "/status").bytes(), &mut text);
    if texts::field(status, b"RssAnon:").is_some() {
        return listed_mappings(pid, status, most);
    }
    let mut count = 0;
    if texts::field(status, b"Threads:").is_some_and(|threads| threads > 1) {
        each_thread(pid, |thread| {
            let mut text = [0; TEXT];
            let status = sys::read_file(Path::new("/proc/", thread, "/status").bytes(), &mut text);
            if count == 0 && texts::field(status, b"RssAnon:").is_some() {
                count = listed_mappings(thread, status, most);
            }
        });
    }
    count
}

/// The mappings of one process, no more than a little above `most`. One that hides them has as many as fit into its
/// address space, if need be.
fn listed_mappings(pid: u32, status: &[u8], most: u64) -> u64 {
    let pages = texts::field(status, b"VmSize:").unwrap_or(0) / 4;
    let Ok(maps) = sys::open(Path::new("/proc/", pid, "/maps").bytes(), 0) else { return pages.min(most / 4) };
    let mut text = [0; TEXT];
    let mut count = 0;
    while count <= most {
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

/// Descriptors that a process has open and that count. One that hides them is judged by the size of its table, which
/// is 64 at first: so is a child of ours for the moment until it executes its program.
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

/// Goes through the sandbox's processes, this one left out; `false` when not all of them could be listed.
pub fn each_process(buffer: &mut [u8], mut visit: impl FnMut(i32)) -> bool {
    each_name(b"/proc\0", buffer, |name| {
        if let Some(pid) = texts::pid(name).filter(|&pid| pid > 1) {
            visit(pid);
        }
    })
}

/// Goes through the names in a directory, reading as many at once as the buffer takes; `false` when it cannot be read.
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
    /// Its name.
    pub name: &'a [u8],
    /// The place of the next one, for [`sys::seek`].
    pub next: u64,
}

/// Goes through entries in the kernel's format.
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
