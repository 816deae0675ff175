//! Signals to all processes of an exec.

use super::cpu_charges::Population;
use super::sys::{self, Mapping, Ready};
use super::texts::{self, Path};
use super::watch;

/// The number of scans for processes of an exec without a pause, so that forks do not get ahead.
const KILL_SCANS: usize = 200;
/// The number of further scans with pauses, because killed processes may need a while to vanish. If some remain, all
/// processes of the sandbox are killed instead.
const SLOW_KILL_SCANS: usize = 1000;
const PAUSE_MICROS: u64 = 1000;
/// The size of the list of all processes: some thirty thousand. Only the used part is ever touched.
const SNAPSHOT: usize = 1 << 20;
/// The kernel ignores negative descriptors.
const NOTHING: (i32, Ready) = (-1, Ready::Read);

/// Signals all processes for which `belongs` returns true. If these are all processes (`alone`), a kill is a single
/// step.
pub fn signal(signal: i32, alone: bool, belongs: &dyn Fn(i32) -> bool) {
    let kills = signal == sys::SIGKILL;
    if kills && alone {
        sys::kill(-1, signal); // One step, which no fork can outrun.
        return;
    }
    if let Ok(mut list) = Mapping::anonymous(SNAPSHOT) {
        let mut before = None;
        for round in 0..if kills { KILL_SCANS + SLOW_KILL_SCANS } else { 1 } {
            if round >= KILL_SCANS {
                pause();
            }
            let scan = scan_once(list.bytes_mut(), signal, belongs);
            // A process that was alive in the list may have left a child behind before it was inspected. That child is
            // in the next list and was in none before.
            if scan.whole && !scan.alive && before == Some(scan.population) {
                return;
            }
            before = Some(scan.population);
        }
    }
    if kills {
        // The exec forks faster than scans can follow, or processes cannot be listed because the kernel opens no more
        // files. End the sandbox rather than ignore the request.
        sys::kill(-1, sys::SIGKILL);
    }
}

/// The result of a scan.
struct Scan {
    /// True if all processes were listed.
    whole: bool,
    /// True if a matching process was alive.
    alive: bool,
    /// The matching processes, including those that ended and were not reaped: this process reaps none between scans.
    population: Population,
}

/// Signals matching processes that are alive. All are listed before the first is signalled, so that processes that a
/// program starts in reaction to a signal do not get it.
fn scan_once(list: &mut [u8], signal: i32, belongs: &dyn Fn(i32) -> bool) -> Scan {
    let mut scan = Scan { whole: false, alive: false, population: Population::new(0, 0) };
    let whole = watch::each_process(list, |pid| {
        if belongs(pid) {
            scan.population.add(pid);
            if is_running(pid) {
                scan.alive = true;
                sys::kill(pid, signal);
            }
        }
    });
    Scan { whole, ..scan }
}

/// Waits for the pause between scans.
pub fn pause() {
    let _ = sys::wait([NOTHING; 2], Some(PAUSE_MICROS));
}

/// Returns true if a process is alive or its state is unknown.
fn is_running(pid: i32) -> bool {
    let mut text = [0; 512];
    let stat = sys::read_file(Path::new("/proc/", pid as u32, "/stat").bytes(), &mut text);
    stat.is_empty() || texts::is_running(stat)
}
