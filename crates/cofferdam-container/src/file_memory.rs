//! Memory for stored files in addition to the memory limit. A container's files are pages of tmpfs mounts, which the
//! kernel charges to its control group, so the engine's memory limit follows them.
//!
//! The agent reports the stored bytes. The disk limit bounds the report, so a container never has more than both limits
//! together.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ByteSize, Limits};
use cofferdam_guest::Guest;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::container::Container;

/// Interval between readings while programs run.
const INTERVAL: Duration = Duration::from_millis(10);
/// The number of readings without a process after which the follower waits for the next start.
const MAX_IDLE_READINGS: u32 = 50;
/// The maximum step by which the limit changes.
const MAX_STEP: u64 = 64 << 20;

/// A task that adapts the engine's memory limit to the stored bytes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Follower {
    starts: Arc<Notify>,
    task: Option<AbortHandle>,
}

impl Follower {
    /// Starts following a container with these limits. Does nothing without a limit on memory or disk.
    pub(crate) fn start(container: &Arc<Container>, guest: &Guest, limits: &Limits) -> Self {
        let starts = Arc::new(Notify::new());
        let (Some(memory), Some(disk)) = (limits.memory, limits.disk) else { return Self { starts, task: None } };
        let (container, guest, woken) = (Arc::clone(container), guest.clone(), Arc::clone(&starts));
        let (memory, disk) = (memory.as_bytes(), disk.as_bytes());
        let limits = limits.clone();
        let task = tokio::spawn(async move { follow(&container, &guest, (memory, disk), limits, &woken).await });
        Self { starts, task: Some(task.abort_handle()) }
    }

    /// Wakes the follower before an operation that may store files.
    pub(crate) fn wake(&self) {
        self.starts.notify_one();
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn follow(container: &Container, guest: &Guest, (memory, disk): (u64, u64), limits: Limits, woken: &Notify) {
    let mut bytes = memory;
    loop {
        woken.notified().await;
        let mut idle = 0;
        while idle < MAX_IDLE_READINGS {
            let usage = guest.usage(&limits).await;
            container.record_oom_kill();
            let Ok(usage) = usage else { break };
            let wanted = wanted(memory, disk, usage.disk_bytes.unwrap_or(0));
            if wanted != bytes {
                let limits = Limits { memory: Some(ByteSize::from_bytes(wanted)), ..limits.clone() };
                // If the limit cannot be changed, files count as memory.
                if bound_directly(container, wanted).await || container.bound(&limits).await.is_ok() {
                    bytes = wanted;
                }
            }
            idle = if usage.processes.is_some_and(|count| count > 0) { 0 } else { idle + 1 };
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Sets the limit in the container's control group, which takes microseconds. The engine takes tens of milliseconds, in
/// which a program can fill its memory with files. Returns false if this process must not.
async fn bound_directly(container: &Container, bytes: u64) -> bool {
    let Some(groups) = container.groups().await else { return false };
    // Lowering waits for the kernel to shrink the group.
    tokio::task::spawn_blocking(move || groups.stats().bound_memory(bytes).is_ok()).await.unwrap_or(false)
}

/// Returns the memory limit for the stored bytes: whole steps, one of them in advance.
fn wanted(memory: u64, disk: u64, stored: u64) -> u64 {
    let step = (memory / 8).clamp(1 << 20, MAX_STEP);
    let files = if stored < step / 4 { 0 } else { (stored / step + 1).saturating_mul(step) };
    memory.saturating_add(files.min(disk))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_limit_follows_stored_bytes_up_to_both_limits() {
        for (stored, expected) in [(0, 512), (MIB, 512), (20 * MIB, 576), (100 * MIB, 640), (1024 * MIB, 1536)] {
            assert_eq!(wanted(512 * MIB, 1024 * MIB, stored), expected * MIB, "{stored}");
        }
        assert_eq!(wanted(64 * MIB, 1024 * MIB, u64::MAX), 1088 * MIB);
        assert_eq!(wanted(64 * MIB, 1024 * MIB, 4 * MIB), 72 * MIB);
    }
}
