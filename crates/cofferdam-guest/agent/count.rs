//! The counters of the sandbox's control groups, as visible inside.

use super::sys::{self, Fd};
use super::texts;
use super::wire::{Counts, Texts};

/// The size of the buffer for a file, larger than the part that is parsed.
const TEXT: usize = 2048;
/// The size of the buffer for the names of the stores.
const STORES: usize = 1024;

/// The counter files of control groups. They stay open, so that a guest that exhausts the kernel's open files cannot
/// stop the agent from counting.
struct Files {
    cpu: Option<Fd>,
    memory: Option<Fd>,
    peak: Option<Fd>,
    kills: Option<Fd>,
    refused: Option<Fd>,
    tasks: Option<Fd>,
}

impl Files {
    const NONE: Self = Self { cpu: None, memory: None, peak: None, kills: None, refused: None, tasks: None };

    fn first() -> Self {
        Self {
            cpu: open(b"/sys/fs/cgroup/cpuacct/cpuacct.usage\0"),
            memory: open(b"/sys/fs/cgroup/memory/memory.usage_in_bytes\0"),
            peak: open(b"/sys/fs/cgroup/memory/memory.max_usage_in_bytes\0"),
            kills: open(b"/sys/fs/cgroup/memory/memory.oom_control\0"),
            refused: open(b"/sys/fs/cgroup/pids/pids.events\0"),
            tasks: open(b"/sys/fs/cgroup/pids/pids.current\0"),
        }
    }

    fn second() -> Self {
        Self {
            cpu: open(b"/sys/fs/cgroup/cpu.stat\0"),
            memory: open(b"/sys/fs/cgroup/memory.current\0"),
            peak: open(b"/sys/fs/cgroup/memory.peak\0"),
            kills: open(b"/sys/fs/cgroup/memory.events\0"),
            refused: open(b"/sys/fs/cgroup/pids.events\0"),
            tasks: open(b"/sys/fs/cgroup/pids.current\0"),
        }
    }
}

/// The sources of counts.
pub struct Counters {
    groups: u8,
    files: Files,
    stores: [u8; STORES],
    length: usize,
    /// The number of processes that the agent refused, if it limits them.
    pub processes_refused: Option<u64>,
}

impl Counters {
    /// Counters without sources.
    pub const NEW: Self =
        Self { groups: 0, files: Files::NONE, stores: [0; STORES], length: 0, processes_refused: None };

    /// Opens the control groups of this version, and remembers the directories of the stores. Ignores stores whose
    /// names exceed the buffer.
    pub fn configure(&mut self, groups: u8, stores: &Texts<'_>) {
        self.groups = groups;
        self.files = match groups {
            1 => Files::first(),
            2 => Files::second(),
            _ => Files::NONE,
        };
        self.length = 0;
        for store in stores.iter() {
            let end = self.length + store.len();
            if let Some(slot) = self.stores.get_mut(self.length..end + 1) {
                let (name, nul) = slot.split_at_mut(store.len());
                name.copy_from_slice(store);
                nul.fill(0);
                self.length = end + 1;
            }
        }
    }

    /// Reads all counts.
    pub fn read(&self) -> Counts {
        let files = &self.files;
        let cpu = match self.groups {
            1 => number(&files.cpu).map(|nanos| nanos / 1000),
            _ => field(&files.cpu, b"usage_usec "),
        };
        let mut counts = Counts {
            cpu_micros: cpu,
            memory: number(&files.memory),
            peak: number(&files.peak),
            kills: field(&files.kills, b"oom_kill "),
            refused: match (field(&files.refused, b"max "), self.processes_refused) {
                (None, None) => None,
                (tasks, processes) => Some(tasks.unwrap_or(0) + processes.unwrap_or(0)),
            },
            tasks: number(&files.tasks),
            stored: None,
            full: None,
        };
        let stores = self.stores.get(..self.length).unwrap_or_default();
        for name in stores.split_inclusive(|&byte| byte == 0) {
            let Ok(room) = sys::room(name) else { continue };
            // A file system without a limit reports 0 everywhere.
            let full = room.bytes > 0 && (room.free == 0 || (room.files > 0 && room.files_free == 0));
            counts.stored = Some(counts.stored.unwrap_or(0).saturating_add(room.bytes.saturating_sub(room.free)));
            counts.full = Some(counts.full.unwrap_or(0) + u64::from(full));
        }
        counts
    }
}

fn open(path: &[u8]) -> Option<Fd> {
    sys::open_at(sys::AT_FDCWD, path, sys::O_RDONLY, 0).ok()
}

fn read<'a>(file: &Option<Fd>, text: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = file.as_ref()?;
    sys::seek(file, 0).ok()?;
    let length = sys::read_all(file.number(), text).ok()?;
    text.get(..length)
}

fn number(file: &Option<Fd>) -> Option<u64> {
    texts::number(read(file, &mut [0; TEXT])?.trim_ascii())
}

fn field(file: &Option<Fd>, key: &[u8]) -> Option<u64> {
    texts::field(read(file, &mut [0; TEXT])?, key)
}
