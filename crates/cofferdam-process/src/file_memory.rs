//! Space for stored files besides the memory limit, if a control group counts both together.
//!
//! A sandbox's files are pages of a tmpfs, which the kernel charges to its group like any other memory. So the group's
//! limit follows them: it is the memory limit plus the stored bytes, at most the memory limit plus the disk limit.
//! While a program runs, the stored bytes are read every few milliseconds. Between two readings, a program can store
//! into the unused part of its memory limit and into a small advance.

use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;

/// The interval between readings while a program runs.
const INTERVAL: Duration = Duration::from_millis(10);
/// The number of stored bytes below which no advance is given, and the difference that changes no limit.
const SMALL: u64 = 1 << 20;
/// The maximum advance for files that are not stored yet.
const MAX_ADVANCE: u64 = 64 << 20;
/// The maximum part of the advance that does not depend on the growth of files.
const MAX_STEADY_ADVANCE: u64 = 16 << 20;

/// The limits that determine the group's limit, and the last reading. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    memory: u64,
    disk: u64,
    stored: u64,
    bytes: u64,
}

impl Bound {
    fn new(memory: u64, disk: u64) -> Self {
        Self { memory, disk, stored: 0, bytes: memory }
    }

    /// Processes a reading. Returns the new limit if it must change.
    fn next(&mut self, stored: u64) -> Option<u64> {
        let stored = if stored < SMALL { 0 } else { stored.min(self.disk) };
        let growth = stored.saturating_sub(self.stored);
        self.stored = stored;
        let advance = if stored == 0 {
            0
        } else {
            let steady = (self.memory / 16).min(MAX_STEADY_ADVANCE);
            (steady + 2 * growth).min(MAX_ADVANCE).min(self.memory / 4).min(self.disk - stored)
        };
        let wanted = self.memory.saturating_add(stored).saturating_add(advance);
        let changed = wanted > self.bytes || wanted.saturating_add(SMALL) < self.bytes || wanted == self.memory;
        (changed && wanted != self.bytes).then_some(wanted)
    }
}

/// Keeps the group's limit at the memory limit plus the stored bytes, until the sandbox is gone.
pub async fn follow(core: Arc<Core>) {
    let limits = core.limits();
    let (Some(memory), Some(disk), true) = (limits.memory, limits.disk, core.stats.is_some()) else { return };
    let mut bound = Bound::new(memory.as_bytes(), disk.as_bytes());
    let mut gone = core.gone.clone();
    while !core.is_closed() {
        let busy = core.is_busy();
        if busy {
            step(&core, &mut bound).await;
        }
        tokio::select! {
            _ = gone.wait_for(|gone| *gone) => return,
            () = tokio::time::sleep(INTERVAL), if busy => {}
            () = core.starts.notified(), if !busy => {}
        }
    }
}

async fn step(core: &Arc<Core>, bound: &mut Bound) {
    let Some(stored) = stored(core) else { return };
    let Some(bytes) = bound.next(stored) else { return };
    let set = move |core: &Core| core.stats.as_ref().is_some_and(|stats| stats.bound_memory(bytes).is_ok());
    if bytes >= bound.bytes {
        // If it cannot be raised, files count as memory.
        if set(core) {
            bound.bytes = bytes;
        }
        return;
    }
    // The kernel needs time to shrink a group.
    let lowering = Arc::clone(core);
    match tokio::task::spawn_blocking(move || set(&lowering)).await {
        Ok(true) => bound.bytes = bytes,
        Ok(false) if !core.is_closed() => core.kill_for_memory().await,
        _ => {}
    }
}

/// Returns the bytes in the sandbox's tmpfs that are charged to its group. Unreadable values count as none.
fn stored(core: &Core) -> Option<u64> {
    let disk = rustix::fs::fstatvfs(core.code()).ok()?;
    let stored = disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize);
    if stored < SMALL {
        return Some(stored);
    }
    // Files that the owner stored are charged to the owner.
    Some(stored.min(core.stats.as_ref()?.shared_memory().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_bound_follows_stored_bytes_up_to_both_limits() {
        let mut bound = Bound::new(512 * MIB, 1024 * MIB);
        let mut at = |stored: u64| {
            let next = bound.next(stored);
            bound.bytes = next.unwrap_or(bound.bytes);
            (next.is_some(), bound.bytes / MIB)
        };
        assert_eq!(at(0), (false, 512));
        assert_eq!(at(MIB / 2), (false, 512));
        assert_eq!(at(20 * MIB), (true, 512 + 20 + 16 + 40));
        assert_eq!(at(20 * MIB), (true, 512 + 20 + 16));
        assert_eq!(at(20 * MIB), (false, 548));
        assert_eq!(at(200 * MIB), (true, 512 + 200 + 64));
        assert_eq!(at(1024 * MIB), (true, 1536));
        assert_eq!(at(2048 * MIB), (false, 1536));
        assert_eq!(at(0), (true, 512));
    }

    #[test]
    fn a_small_sandbox_gets_a_small_advance() {
        let mut bound = Bound::new(64 * MIB, 1024 * MIB);
        assert_eq!(bound.next(0), None);
        assert_eq!(bound.next(2 * MIB), Some(64 * MIB + 2 * MIB + 8 * MIB));
        assert_eq!(bound.next(100 * MIB), Some(64 * MIB + 100 * MIB + 16 * MIB));
        assert_eq!(bound.next(100 * MIB), Some(64 * MIB + 100 * MIB + 4 * MIB));
    }
}
