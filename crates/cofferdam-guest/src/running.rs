//! The running execs: their limits, and the part that is used up.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cofferdam_contract::supervise::{ExecLimits, StopRequest, Supervision};
use cofferdam_contract::{ExecId, Limits};
use parking_lot::{Mutex, MutexGuard};

use crate::record::{MAX_TIME, RunningExec};
use crate::wire::Counts;

/// The state of an exec that was requested and has not ended.
pub struct ExecState {
    supervision: Mutex<Supervision>,
    exec_limits: ExecLimits,
    /// The counts just before it began.
    base: OnceLock<Counts>,
    pub script: bool,
    /// True if a former host started it.
    reattached: bool,
}

impl ExecState {
    /// Creates the state of an exec whose time began at `begun`.
    pub fn new(begun: Instant, exec_limits: ExecLimits, script: bool) -> Self {
        let supervision = Mutex::new(Supervision::new(begun, Instant::now(), exec_limits));
        Self { supervision, exec_limits, base: OnceLock::new(), script, reattached: false }
    }

    /// Creates the state of an exec of a former host, whose time resumes now. Since another program may have changed
    /// its recorded limits, `limits` apply as well from now on. `first` is the count before it resumed.
    pub fn reattach(exec: &RunningExec, limits: &Limits, first: Option<u64>, counted: bool, processors: u32) -> Self {
        let now = Instant::now();
        let elapsed = Duration::from_micros(exec.elapsed);
        let all = Duration::from_micros(exec.wall_time).min(elapsed.saturating_add(limits.wall_time));
        let wall_time = all.saturating_sub(elapsed);
        let cpu = [exec.cpu.map(Duration::from_micros), limits.cpu_time].into_iter().flatten().min();
        let exec_limits = ExecLimits { wall_time, cpu, counted, processors };
        let mut supervision = Supervision::new(now, now, exec_limits);
        if let Some(micros) = exec.kill_in {
            // The former host has sent the signal already.
            supervision.request_stop(StopRequest::Cancel(Duration::from_micros(micros)), now);
        }
        // Time that is used up stays used up if the guest is quiesced again.
        let exec_limits = ExecLimits { wall_time: all, ..exec_limits };
        // The count at its start cannot exceed the current count.
        let cpu_micros = exec.cpu_base.map(|base| base.min(first.unwrap_or(base)));
        let base = OnceLock::from(Counts { cpu_micros, ..Counts::default() });
        Self { supervision: Mutex::new(supervision), exec_limits, base, script: exec.script, reattached: true }
    }

    pub fn supervision(&self) -> MutexGuard<'_, Supervision> {
        self.supervision.lock()
    }

    pub fn begin(&self, base: Counts) {
        let _ = self.base.set(base);
    }

    pub fn base(&self) -> Counts {
        self.base.get().copied().unwrap_or_default()
    }

    fn record(&self, id: u64, now: Instant) -> RunningExec {
        let micros = |time: Duration| time.min(MAX_TIME).as_micros() as u64;
        let supervision = self.supervision();
        let ExecLimits { wall_time, cpu, .. } = self.exec_limits;
        let wall_time = wall_time.min(MAX_TIME);
        RunningExec {
            id,
            elapsed: micros(wall_time.saturating_sub(supervision.left(now))),
            wall_time: micros(wall_time),
            cpu: cpu.map(micros),
            cpu_base: self.base().cpu_micros,
            script: self.script,
            kill_in: supervision.kill_in(now).map(micros),
        }
    }
}

/// The running execs by their ids.
#[derive(Default)]
pub struct Running(Mutex<BTreeMap<u64, Arc<ExecState>>>);

impl Running {
    /// Adds an exec until the returned guard is dropped.
    pub fn add(self: &Arc<Self>, id: u64, state: ExecState) -> RunningGuard {
        let state = Arc::new(state);
        self.0.lock().insert(id, Arc::clone(&state));
        RunningGuard { list: Arc::clone(self), id, state }
    }

    /// Returns true if the counts at the exec's start are known.
    pub fn is_known(&self, id: u64) -> bool {
        self.0.lock().get(&id).is_some_and(|state| state.base.get().is_some())
    }

    /// Returns the records of these execs, whose counts must be known.
    pub fn record(&self, ids: &[u64], now: Instant) -> Vec<RunningExec> {
        let list = self.0.lock();
        ids.iter().filter_map(|id| list.get(id).map(|state| state.record(*id, now))).collect()
    }

    /// Returns the execs of a former host.
    pub fn reattached(&self) -> Vec<ExecId> {
        self.0.lock().iter().filter(|(_, state)| state.reattached).map(|(id, _)| ExecId(*id)).collect()
    }
}

/// A guard that keeps an exec in the list.
pub struct RunningGuard {
    list: Arc<Running>,
    id: u64,
    state: Arc<ExecState>,
}

impl std::ops::Deref for RunningGuard {
    type Target = ExecState;

    fn deref(&self) -> &ExecState {
        &self.state
    }
}

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.list.0.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn exec_limits() -> ExecLimits {
        ExecLimits { wall_time: SECOND * 10, cpu: Some(SECOND * 4), counted: true, processors: 2 }
    }

    #[test]
    fn used_time_is_recorded_and_stays_used() {
        let begun = Instant::now() - SECOND * 3;
        let list = Arc::new(Running::default());
        let listed = list.add(7, ExecState::new(begun, exec_limits(), true));
        assert!(!list.is_known(7));
        listed.begin(Counts { cpu_micros: Some(5), ..Counts::default() });
        assert!(list.is_known(7) && list.reattached().is_empty());
        let now = begun + SECOND * 4;
        let recorded = list.record(&[7], now).remove(0);
        let second = SECOND.as_micros() as u64;
        let expected = RunningExec {
            id: 7,
            elapsed: 4 * second,
            wall_time: 10 * second,
            cpu: Some(4 * second),
            cpu_base: Some(5),
            script: true,
            kill_in: None,
        };
        assert_eq!(recorded, expected);
        drop(listed);
        assert!(!list.is_known(7));
        let reattached = list.add(7, ExecState::reattach(&recorded, &Limits::default(), Some(9), true, 2));
        assert_eq!(list.reattached(), [ExecId(7)]);
        let later = Instant::now() + SECOND * 2;
        let left = reattached.supervision().left(later);
        assert!(left <= SECOND * 4 && left > SECOND * 3, "{left:?}");
        let again = list.record(&[7], later).remove(0);
        assert!(
            again.elapsed >= 6 * second && again.elapsed < 7 * second && again.wall_time == 10 * second,
            "{again:?}"
        );
    }

    #[test]
    fn recorded_limits_never_exceed_those_of_the_settings() {
        let second = SECOND.as_micros() as u64;
        let year = 366 * 24 * 3600 * second;
        let recorded = RunningExec {
            id: 3,
            elapsed: 2 * second,
            wall_time: 10 * year,
            cpu: None,
            cpu_base: Some(u64::MAX),
            script: false,
            kill_in: Some(year),
        };
        let limits = Limits { wall_time: SECOND, cpu_time: Some(SECOND * 3), ..Limits::default() };
        let list = Arc::new(Running::default());
        let reattached = list.add(3, ExecState::reattach(&recorded, &limits, Some(5), true, 1));
        assert!(reattached.supervision().left(Instant::now()) <= SECOND);
        assert_eq!(reattached.base().cpu_micros, Some(5));
        // The next host gets the same record.
        let again = list.record(&[3], Instant::now()).remove(0);
        assert_eq!((again.wall_time, again.cpu, again.cpu_base), (3 * second, Some(3 * second), Some(5)));
        let later = Instant::now() + SECOND;
        reattached.supervision().tick(later);
        assert!(reattached.supervision().kill_now(later), "its time is over");
        // Higher limits have no effect.
        let limits = Limits { wall_time: SECOND * 1000, cpu_time: Some(SECOND * 1000), ..Limits::default() };
        let generous = list.add(4, ExecState::reattach(&again, &limits, Some(7), true, 1));
        let again = list.record(&[4], Instant::now()).remove(0);
        assert_eq!((again.wall_time, again.cpu, again.cpu_base), (3 * second, Some(3 * second), Some(5)));
        drop(generous);
    }

    #[test]
    fn cancelled_exec_is_killed_in_the_remaining_time() {
        let list = Arc::new(Running::default());
        let now = Instant::now();
        let listed = list.add(1, ExecState::new(now, exec_limits(), false));
        listed.begin(Counts::default());
        listed.supervision().request_stop(StopRequest::Cancel(SECOND * 2), now);
        let recorded = list.record(&[1], now + SECOND).remove(0);
        assert_eq!(recorded.kill_in, Some(SECOND.as_micros() as u64));
        let reattached = ExecState::reattach(&recorded, &Limits::default(), None, true, 1);
        assert!(reattached.supervision().kills_the_rest());
        assert!(!reattached.supervision().kill_now(Instant::now()));
        assert!(reattached.supervision().kill_now(Instant::now() + SECOND));
    }
}
