//! What the control groups of the sandbox count, as they are seen inside.

use super::sys;
use super::texts;
use super::wire::{Counts, Texts};

/// Longer than what is looked at of any file.
const TEXT: usize = 2048;
/// Room for the names of the stores.
const STORES: usize = 1024;

/// Where to look.
pub struct Counters {
    groups: u8,
    stores: [u8; STORES],
    length: usize,
}

impl Counters {
    /// Nowhere.
    pub const NEW: Self = Self { groups: 0, stores: [0; STORES], length: 0 };

    /// Looks into the groups of this version, and at the file systems of these directories. What does not fit is left
    /// out.
    pub fn configure(&mut self, groups: u8, stores: &Texts<'_>) {
        self.groups = groups;
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

    /// Counts.
    pub fn read(&self) -> Counts {
        let mut counts = match self.groups {
            1 => first(),
            2 => second(),
            _ => Counts::default(),
        };
        let stores = self.stores.get(..self.length).unwrap_or_default();
        for name in stores.split_inclusive(|&byte| byte == 0) {
            let Ok(room) = sys::room(name) else { continue };
            // A file system without a bound says 0 everywhere.
            let full = room.bytes > 0 && (room.free == 0 || (room.files > 0 && room.files_free == 0));
            counts.stored = Some(counts.stored.unwrap_or(0).saturating_add(room.bytes.saturating_sub(room.free)));
            counts.full = Some(counts.full.unwrap_or(0) + u64::from(full));
        }
        counts
    }
}

fn first() -> Counts {
    Counts {
        cpu_micros: number(b"/sys/fs/cgroup/cpuacct/cpuacct.usage\0").map(|nanos| nanos / 1000),
        memory: number(b"/sys/fs/cgroup/memory/memory.usage_in_bytes\0"),
        peak: number(b"/sys/fs/cgroup/memory/memory.max_usage_in_bytes\0"),
        kills: field(b"/sys/fs/cgroup/memory/memory.oom_control\0", b"oom_kill "),
        refused: field(b"/sys/fs/cgroup/pids/pids.events\0", b"max "),
        tasks: number(b"/sys/fs/cgroup/pids/pids.current\0"),
        stored: None,
        full: None,
    }
}

fn second() -> Counts {
    Counts {
        cpu_micros: field(b"/sys/fs/cgroup/cpu.stat\0", b"usage_usec "),
        memory: number(b"/sys/fs/cgroup/memory.current\0"),
        peak: number(b"/sys/fs/cgroup/memory.peak\0"),
        kills: field(b"/sys/fs/cgroup/memory.events\0", b"oom_kill "),
        refused: field(b"/sys/fs/cgroup/pids.events\0", b"max "),
        tasks: number(b"/sys/fs/cgroup/pids.current\0"),
        stored: None,
        full: None,
    }
}

fn number(path: &[u8]) -> Option<u64> {
    let mut text = [0; TEXT];
    texts::number(sys::read_file(path, &mut text).trim_ascii())
}

fn field(path: &[u8], key: &[u8]) -> Option<u64> {
    let mut text = [0; TEXT];
    texts::field(sys::read_file(path, &mut text), key)
}
