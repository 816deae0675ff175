//! Sampling of the host's available memory during an attack.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(5);

/// A running series of samples.
pub struct HostMemory {
    before: u64,
    done: Arc<AtomicBool>,
    least: JoinHandle<u64>,
}

impl HostMemory {
    /// Starts sampling.
    pub fn watch() -> Self {
        let before = available_mebibytes();
        let done = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&done);
        let least = std::thread::spawn(move || {
            let mut least = before;
            while !stop.load(Ordering::Relaxed) {
                least = least.min(available_mebibytes());
                std::thread::sleep(EVERY);
            }
            least
        });
        Self { before, done, least }
    }

    /// Stops sampling. Returns the largest decrease since the start.
    pub fn taken_mebibytes(self) -> u64 {
        self.done.store(true, Ordering::Relaxed);
        self.before.saturating_sub(self.least.join().expect("it reads and sleeps only"))
    }
}

fn available_mebibytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("every kernel has it");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("every kernel reports it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}
