//! What processes used, told apart by the mark that each inherits and none can change.

use super::sys::{self, Fd};
use super::texts::{self, Path};
use super::watch;
use super::wire::MAX_SHARES;

/// Longer than any `/proc/PID/stat`.
const TEXT: usize = 1024;
/// Bytes of a list of processes that are read at once.
const ENTRIES: usize = 2048;
/// Bytes of one mark and its time.
const PAIR: usize = 16;

/// A process that was looked at.
struct Seen {
    /// Reads of this one process, whatever its number becomes.
    stat: Fd,
    mark: u64,
    micros: u64,
}

impl Seen {
    fn look(pid: i32) -> Option<Self> {
        let path = Path::new("/proc/", pid as u32, "/stat");
        let stat = sys::open_at(sys::AT_FDCWD, path.bytes(), sys::O_RDONLY, 0).ok()?;
        let mark = sys::mark_of(pid)?;
        let micros = read(&stat)?;
        Some(Self { stat, mark, micros })
    }

    fn is_there(&self) -> bool {
        sys::seek(&self.stat, 0).is_ok() && read(&self.stat).is_some()
    }
}

fn read(stat: &Fd) -> Option<u64> {
    let mut text = [0; TEXT];
    let length = sys::read_all(stat.number(), &mut text).ok().filter(|length| *length > 0)?;
    Some(texts::cpu_micros(text.get(..length)?))
}

/// CPU microseconds by mark, as they are sent.
pub struct Used {
    pairs: [u8; MAX_SHARES * PAIR],
    length: usize,
}

impl Used {
    /// Nobody's.
    pub const NOTHING: Self = Self { pairs: [0; MAX_SHARES * PAIR], length: 0 };

    /// Of processes and of children that they have waited for. What more than so many processes used is left out, and
    /// so is one of which anything cannot be read.
    pub fn look() -> Self {
        let mut seen = [const { None::<Seen> }; MAX_SHARES];
        let mut free = seen.iter_mut();
        let mut entries = [0; ENTRIES];
        watch::each_process(&mut entries, |pid| {
            if let Some(slot) = free.next() {
                *slot = Seen::look(pid);
            }
        });
        let mut used = Self::NOTHING;
        // A child that was read and then waited for could be in what was read of its parent, as well. One that is still
        // there had not been; and the number by which its mark was found was its own all the time.
        for seen in seen.iter().flatten().filter(|seen| seen.is_there()) {
            used.add(seen.mark, seen.micros);
        }
        used
    }

    fn add(&mut self, mark: u64, micros: u64) {
        let known = self.pairs.chunks_exact_mut(PAIR).take(self.length).find(|pair| pair.starts_with(&mark.to_le_bytes()));
        if let Some(sum) = known.and_then(|pair| pair.last_chunk_mut()) {
            *sum = u64::from_le_bytes(*sum).saturating_add(micros).to_le_bytes();
            return;
        }
        let Some((first, last)) = self.pairs.chunks_exact_mut(PAIR).nth(self.length).and_then(|pair| pair.split_at_mut_checked(8))
        else {
            return;
        };
        first.copy_from_slice(&mark.to_le_bytes());
        last.copy_from_slice(&micros.to_le_bytes());
        self.length += 1;
    }

    /// Marks and times, eight bytes each.
    pub fn bytes(&self) -> &[u8] {
        self.pairs.get(..self.length * PAIR).unwrap_or_default()
    }
}
