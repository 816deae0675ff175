//! Signalling everything that belongs together.

use super::ledger::Population;
use super::sys::{self, Mapping, Ready};
use super::texts::{self, Path};
use super::watch;

/// Scans for processes of one exec, one right after the other: what forks must not get ahead.
const KILL_SCANS: usize = 200;
/// Scans after that, with pauses: what was killed may need a while to be gone. If there is something still, everything
/// in the sandbox is killed instead.
const SLOW_KILL_SCANS: usize = 1000;
const PAUSE_MICROS: u64 = 1000;
/// Bytes for a list of all processes: some thirty thousand. Only what is needed of it is ever touched.
const SNAPSHOT: usize = 1 << 20;
/// The kernel ignores negative descriptors.
const NOTHING: (i32, Ready) = (-1, Ready::Read);

/// Signals what belongs; where it is all there is (`alone`), a kill is a single step.
pub fn signal(signal: i32, alone: bool, belongs: &dyn Fn(i32) -> bool) {
    let kills = signal == sys::SIGKILL;
    if kills && alone {
        sys::kill(-1, signal); // One step, which no fork can outrun.
        return;
    }
    if let Ok(mut list) = Mapping::anonymous(SNAPSHOT) {
        let mut before = None;
        for scan in 0..if kills { KILL_SCANS + SLOW_KILL_SCANS } else { 1 } {
            if scan >= KILL_SCANS {
                pause();
            }
            let seen = signal_once(list.bytes_mut(), signal, belongs);
            // One that was alive when the list was made may have left a child behind by the time it was looked at. That
            // child is in the next list, and was in none before.
            if seen.whole && !seen.alive && before == Some(seen.who) {
                return;
            }
            before = Some(seen.who);
        }
    }
    if kills {
        // It forks faster than it can be counted, or nobody can be listed where the kernel opens no more files. The
        // sandbox ends rather than the order be disobeyed.
        sys::kill(-1, sys::SIGKILL);
    }
}

/// What a scan saw of what belongs.
struct Seen {
    /// Whether everything was listed.
    whole: bool,
    /// Whether something was alive.
    alive: bool,
    /// Stands for all that there was, ended and not yet reaped included: this process reaps nothing between scans.
    who: Population,
}

/// Signals what belongs and is alive. All are listed before the first is signalled, so that what a program starts in
/// answer to a signal does not get one.
fn signal_once(list: &mut [u8], signal: i32, belongs: &dyn Fn(i32) -> bool) -> Seen {
    let mut seen = Seen { whole: false, alive: false, who: Population::new(0, 0) };
    let whole = watch::each_process(list, |pid| {
        if belongs(pid) {
            seen.who.add(pid);
            if is_running(pid) {
                seen.alive = true;
                sys::kill(pid, signal);
            }
        }
    });
    Seen { whole, ..seen }
}

/// Waits a moment.
pub fn pause() {
    let _ = sys::wait([NOTHING; 2], Some(PAUSE_MICROS));
}

/// Whether a process is alive, or may be.
fn is_running(pid: i32) -> bool {
    let mut text = [0; 512];
    let stat = sys::read_file(Path::new("/proc/", pid as u32, "/stat").bytes(), &mut text);
    stat.is_empty() || texts::is_running(stat)
}
