//! Sums over the sandbox's processes, for hosts without control groups.

use super::ledger::{Ledger, Population};
use super::sys;
use super::texts::{self, Path};

/// How often memory and CPU time are summed up where no control group does it.
const WATCH_EVERY_MICROS: u64 = 25_000;
/// What a descriptor may hold in the kernel: a socket's send buffer, by default. Pipes hold less, files nothing.
const DESCRIPTOR_BYTES: u64 = 208 * 1024;
/// Descriptors of a process that count for nothing.
const FREE_DESCRIPTORS: u64 = 8;
/// The size of a new table of descriptors.
const FIRST_TABLE: u64 = 64;
/// Bytes of a directory that are read at once.
const ENTRIES: usize = 2048;
/// Longer than the parts of any file of `/proc` that are looked at here.
const TEXT: usize = 4096;

/// Looks in a row at which processes could not be listed, after which memory counts as used up.
const MOST_BLIND: u32 = 40;

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
    /// Begins the digest of who is there.
    seed: u64,
    ledger: Ledger,
    /// The start of the exec that has run for longest.
    since: Since,
    last_look: u64,
    due: u64,
    /// Looks in a row at which processes could not be listed.
    blind: u32,
}

impl Watch {
    /// A watch if there is something to watch.
    pub fn new(memory: Option<u64>, cpu_micros: Option<u64>, seed: u64) -> Option<Self> {
        let now = sys::now_micros();
        (memory.is_some() || cpu_micros.is_some()).then_some(Self {
            memory,
            cpu_micros,
            seed,
            ledger: Ledger::default(),
            since: Since::NOTHING,
            last_look: now,
            due: now,
            blind: 0,
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
        if self.memory.is_some_and(|limit| total.memory > limit || self.blind >= MOST_BLIND) {
            return Some(Passed::Memory);
        }
        self.charge(&total);
        let charged = self.ledger.charged_micros().saturating_sub(self.since.charged_micros);
        self.cpu_micros.is_some_and(|limit| charged > limit).then_some(Passed::Cpu)
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
        let kibibytes = |key: &[u8]| texts::field(status, key).unwrap_or(0);
        let resident = (kibibytes(b"RssAnon:") + kibibytes(b"RssShmem:")) * 1024;
        total.memory += resident + counted_descriptors(number, status) * DESCRIPTOR_BYTES;
        let stat = sys::read_file(Path::new("/proc/", number, "/stat").bytes(), &mut text);
        total.cpu_micros += texts::cpu_micros(stat);
        whole &= !stat.is_empty();
    });
    total.listed = listed;
    if !listed || !whole {
        // Nobody knows who was there, so that it counts as others than before.
        total.population = Population::new(seed ^ sys::now_micros(), last);
    }
    // What is stored in the sandbox's own tmpfs is memory as well.
    total.memory += sys::used_bytes(b"/tmp\0").unwrap_or(0);
    total
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
fn each_name(path: &[u8], buffer: &mut [u8], mut visit: impl FnMut(&[u8])) -> bool {
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
