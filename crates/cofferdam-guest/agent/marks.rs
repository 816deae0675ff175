//! CPU time of processes by exec tag. Each process inherits its tag, and no process can change it.

use super::sys::{self, Fd};
use super::texts::{self, Path};
use super::watch;
use super::wire::MAX_SHARES;

/// The size of the buffer for `/proc/PID/stat`, larger than any.
const TEXT: usize = 1024;
/// The size of the buffer for a part of the list of processes.
const ENTRIES: usize = 2048;
/// The length of one encoded tag and its CPU time.
const PAIR: usize = 16;

/// A process whose CPU time was read.
struct Process {
    /// The open `stat` file. It stays that of this process even if the pid is reused.
    stat: Fd,
    tag: u64,
    micros: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let path = Path::new("/proc/", pid as u32, "/stat");
        let stat = sys::open_at(sys::AT_FDCWD, path.bytes(), sys::O_RDONLY, 0).ok()?;
        let tag = sys::mark_of(pid)?;
        let micros = read(&stat)?;
        Some(Self { stat, tag, micros })
    }

    fn exists(&self) -> bool {
        sys::seek(&self.stat, 0).is_ok() && read(&self.stat).is_some()
    }
}

fn read(stat: &Fd) -> Option<u64> {
    let mut text = [0; TEXT];
    let length = sys::read_all(stat.number(), &mut text).ok().filter(|length| *length > 0)?;
    Some(texts::cpu_micros(text.get(..length)?))
}

/// CPU microseconds by exec tag, in the encoding of the protocol.
pub struct Used {
    pairs: [u8; MAX_SHARES * PAIR],
    length: usize,
}

impl Used {
    /// An empty list.
    pub const NOTHING: Self = Self { pairs: [0; MAX_SHARES * PAIR], length: 0 };

    /// Reads the CPU time of processes and of the children that they have waited for. Leaves out processes beyond the
    /// first [`MAX_SHARES`], and those that cannot be read completely.
    pub fn read() -> Self {
        let mut processes = [const { None::<Process> }; MAX_SHARES];
        let mut free = processes.iter_mut();
        let mut entries = [0; ENTRIES];
        watch::each_process(&mut entries, |pid| {
            if let Some(slot) = free.next() {
                *slot = Process::read(pid);
            }
        });
        let mut used = Self::NOTHING;
        // Counts only processes that still exist. If a process was read and then waited for, its parent's time could
        // include it. For a process that still exists, the pid under which its tag was read was its own throughout.
        for process in processes.iter().flatten().filter(|process| process.exists()) {
            used.add(process.tag, process.micros);
        }
        used
    }

    fn add(&mut self, tag: u64, micros: u64) {
        let mut pairs = self.pairs.chunks_exact_mut(PAIR).take(self.length);
        let known = pairs.find(|pair| pair.starts_with(&tag.to_le_bytes()));
        if let Some(sum) = known.and_then(|pair| pair.last_chunk_mut()) {
            *sum = u64::from_le_bytes(*sum).saturating_add(micros).to_le_bytes();
            return;
        }
        let free = self.pairs.chunks_exact_mut(PAIR).nth(self.length);
        let Some((first, last)) = free.and_then(|pair| pair.split_at_mut_checked(8)) else {
            return;
        };
        first.copy_from_slice(&tag.to_le_bytes());
        last.copy_from_slice(&micros.to_le_bytes());
        self.length += 1;
    }

    /// Returns tags and times, eight bytes each.
    pub fn bytes(&self) -> &[u8] {
        self.pairs.get(..self.length * PAIR).unwrap_or_default()
    }
}
