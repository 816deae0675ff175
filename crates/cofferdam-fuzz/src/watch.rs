//! Detection of panics, threads and memory that a case leaves in this process.

use std::sync::Once;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time within which threads must end. A compiler whose time ran out still runs to completion.
const THREADS_TIMEOUT: Duration = Duration::from_secs(60);
const THREADS_INTERVAL: Duration = Duration::from_millis(2);
/// Name prefixes of the backend's threads, except for the clock's, which lives a little longer than its guests.
const GUESTS: [&str; 3] = ["wasm-guest", "wasm-session", "wasm-compiler"];

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

/// Records panics from now on, on any thread, even if they are caught.
pub(crate) fn keep_panics() {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.lock().push(info.to_string());
            before(info);
        }));
    });
}

/// Returns the panics since the last call.
pub(crate) fn panics() -> Vec<String> {
    std::mem::take(&mut *PANICS.lock())
}

/// Waits until no thread runs a guest or compiles. Returns the names of threads that remain.
pub(crate) fn threads_left() -> Vec<String> {
    let start = Instant::now();
    loop {
        let left: Vec<String> =
            threads().into_iter().filter(|name| GUESTS.iter().any(|guest| name.starts_with(guest))).collect();
        if left.is_empty() || start.elapsed() > THREADS_TIMEOUT {
            return left;
        }
        std::thread::sleep(THREADS_INTERVAL);
    }
}

fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect()
}

/// Returns the resident memory of this process, in bytes, or 0 where it is not known.
pub(crate) fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or_default() * rustix::param::page_size() as u64
}

/// A lock for tests that panic, because [`panics`] takes all panics of the process.
#[cfg(test)]
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_that_is_caught_is_seen_all_the_same() {
        let _alone = ALONE.lock();
        keep_panics();
        let caught = std::thread::spawn(|| panic!("seen")).join();
        assert!(caught.is_err());
        assert!(panics().iter().any(|text| text.contains("seen")));
        assert!(panics().is_empty());
    }

    #[test]
    fn driver_waits_for_a_running_guest() {
        let guest = std::thread::Builder::new().name("wasm-guest".to_owned());
        let (named, ready) = std::sync::mpsc::channel();
        let work = move || {
            named.send("started").unwrap();
            std::thread::sleep(Duration::from_millis(50));
            named.send("done").unwrap();
        };
        let guest = guest.spawn(work).unwrap();
        assert_eq!(ready.recv(), Ok("started"));
        assert!(threads_left().is_empty());
        assert_eq!(ready.try_recv(), Ok("done"));
        guest.join().unwrap();
    }
}
