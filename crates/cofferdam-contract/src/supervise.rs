//! Termination of execs and construction of their exits, shared by all backends with processes.
//!
//! ```text
//! running --cancel--> SIGTERM sent --grace period over--\
//!    |--timeout, CPU limit, kill----------------------------> SIGKILL sent --kill timeout--> end sandbox --> (again)
//! ```
//!
//! The module is pure: it reads no clock, sends no signal and reads no counter. A backend waits until
//! [`Supervision::next`] and then does what [`Supervision::tick`] and the other methods return.

use std::time::{Duration, Instant};

use crate::{Error, ErrorKind, Exit, LimitKind, Usage};

/// The time for a SIGKILL to take effect before the whole sandbox is ended.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest interval between two reads of the CPU time.
const CPU_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The most failed reads of the CPU time in a row. After them the exec is killed, because its limit would not be
/// enforced.
const MAX_FAILED_READS: u32 = 20;
/// The longest time during which all reads of the CPU time fail, for reads that are slow.
const FAILED_READS_TIMEOUT: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;
const SIGXCPU: i32 = 24;

/// A stop request of a handle while its exec runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopRequest {
    /// SIGTERM, then SIGKILL after this time.
    Cancel(Duration),
    /// SIGKILL.
    Kill,
}

/// The limits of an exec.
#[derive(Debug, Clone, Copy)]
pub struct ExecLimits {
    /// Wall-clock time.
    pub wall_time: Duration,
    /// CPU time of the sandbox since the exec began.
    pub cpu: Option<Duration>,
    /// True if a counter of CPU time can be read while the exec runs.
    pub counted: bool,
    /// Number of processors on which the exec can run at once.
    pub processors: u32,
}

/// Reasons for terminating an exec.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reasons {
    timed_out: bool,
    cancelled: bool,
    over_cpu: bool,
    uncounted: bool,
}

/// Actions to take now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Actions {
    /// True if a kill had no effect and the whole sandbox must be ended.
    pub end_sandbox: bool,
    /// True if the CPU time must be read and reported with [`Supervision::polled`].
    pub poll_cpu_time: bool,
}

/// The end of a program, as its wait call reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The raw wait status.
    pub status: i32,
    /// The largest resident set size of a process, in bytes.
    pub peak_bytes: u64,
    /// CPU time of the reaped processes, in microseconds.
    pub cpu_micros: u64,
}

/// Resource usage and events counted during an exec.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExecUsage {
    /// CPU time of the sandbox since the exec began, in microseconds; `None` if there is no counter.
    pub cpu_micros: Option<u64>,
    /// Peak memory use of the sandbox, in bytes.
    pub peak_bytes: Option<u64>,
    /// True if the kernel killed a process of the sandbox for memory.
    pub memory_kills: bool,
    /// True if the kernel refused a fork.
    pub forks_refused: bool,
    /// True if no more bytes or no more files can be stored.
    pub disk_full: bool,
    /// True if a watchdog found the memory limit exceeded and killed the exec.
    pub watched_memory: bool,
    /// True if a watchdog found the CPU time limit exceeded and killed the exec.
    pub watched_cpu: bool,
    /// True if the owner closed the sandbox.
    pub closed_by_owner: bool,
}

/// The supervision of one exec.
#[derive(Debug, Clone)]
pub struct Supervision {
    begun: Instant,
    deadline: Instant,
    limits: ExecLimits,
    reasons: Reasons,
    kill_at: Option<Instant>,
    killed_at: Option<Instant>,
    next_cpu_poll: Option<Instant>,
    /// Number of failed reads of the CPU time in a row.
    failed_reads: u32,
    /// The time of the first of these failed reads.
    failing_since: Option<Instant>,
}

impl Supervision {
    /// Creates the supervision of an exec that began at `begun`.
    pub fn new(begun: Instant, now: Instant, limits: ExecLimits) -> Self {
        let mut supervision = Self {
            begun,
            deadline: begun + limits.wall_time,
            limits,
            reasons: Reasons::default(),
            kill_at: None,
            killed_at: None,
            next_cpu_poll: None,
            failed_reads: 0,
            failing_since: None,
        };
        supervision.next_cpu_poll = supervision.cpu_poll_time(0, now);
        supervision
    }

    /// Postpones all deadlines by `by`: a time in which nothing ran and that does not count.
    pub fn postpone(&mut self, by: Duration) {
        self.deadline += by;
        for at in [&mut self.kill_at, &mut self.killed_at, &mut self.next_cpu_poll].into_iter().flatten() {
            *at += by;
        }
    }

    /// Returns the wall-clock time left until the deadline.
    pub fn left(&self, now: Instant) -> Duration {
        self.deadline.saturating_duration_since(now)
    }

    /// Returns the time until the process tree is killed, if termination was requested. Returns zero if the kill was
    /// already ordered.
    pub fn kill_in(&self, now: Instant) -> Option<Duration> {
        let terminating = self.kills_the_rest() || self.kill_at.is_some();
        terminating.then(|| self.kill_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)))
    }

    /// Returns the time at which [`Self::tick`] must be called next, if nothing else happens before.
    pub fn next(&self) -> Option<Instant> {
        [self.killed_at.map(|at| at + KILL_TIMEOUT), self.kill_at, self.next_cpu_poll]
            .into_iter()
            .chain([(!self.reasons.timed_out).then_some(self.deadline)])
            .flatten()
            .min()
    }

    /// Records a stop request. Returns true if SIGTERM must be sent.
    pub fn request_stop(&mut self, request: StopRequest, now: Instant) -> bool {
        match request {
            StopRequest::Cancel(grace) if self.killed_at.is_none() && self.kill_at.is_none() => {
                self.reasons.cancelled = true;
                self.kill_at = Some(now + grace);
                true
            }
            StopRequest::Kill if self.killed_at.is_none() => {
                self.reasons.cancelled = true;
                self.kill_at = Some(now);
                false
            }
            StopRequest::Cancel(_) | StopRequest::Kill => false,
        }
    }

    /// Returns the actions that are due at `now`. The caller must call [`Self::kill_now`] after it.
    pub fn tick(&mut self, now: Instant) -> Actions {
        let mut actions = Actions::default();
        if self.killed_at.is_some_and(|at| now >= at + KILL_TIMEOUT) {
            actions.end_sandbox = true;
            self.killed_at = Some(now);
        }
        if now >= self.deadline && !self.reasons.timed_out {
            self.reasons.timed_out = true;
            self.kill_at = Some(now);
        }
        if self.next_cpu_poll.is_some_and(|at| now >= at) {
            actions.poll_cpu_time = true;
            self.next_cpu_poll = None;
        }
        actions
    }

    /// Records the CPU time used so far; `None` if it could not be read. After repeated failures the exec is killed.
    pub fn polled(&mut self, cpu_micros: Option<u64>, now: Instant) {
        let Some(cpu_micros) = cpu_micros else {
            self.failed_reads += 1;
            let since = *self.failing_since.get_or_insert(now);
            let too_long = now.saturating_duration_since(since) >= FAILED_READS_TIMEOUT;
            self.reasons.uncounted |= self.failed_reads >= MAX_FAILED_READS || too_long;
            if self.reasons.uncounted {
                self.kill_at = Some(now);
            } else {
                self.next_cpu_poll = Some(now + CPU_POLL_INTERVAL);
            }
            return;
        };
        (self.failed_reads, self.failing_since) = (0, None);
        if self.over_cpu(cpu_micros) {
            self.reasons.over_cpu = true;
            self.kill_at = Some(now);
        } else {
            self.next_cpu_poll = self.cpu_poll_time(cpu_micros, now);
        }
    }

    /// Returns true if SIGKILL must be sent now.
    pub fn kill_now(&mut self, now: Instant) -> bool {
        if self.kill_at.is_none_or(|at| now < at) {
            return false;
        }
        self.kill_at = None;
        let first = self.killed_at.is_none();
        self.killed_at.get_or_insert(now);
        first
    }

    /// Returns true if processes that outlive the program itself must be killed too.
    pub fn kills_the_rest(&self) -> bool {
        let Reasons { timed_out, cancelled, over_cpu, uncounted } = self.reasons;
        timed_out || cancelled || over_cpu || uncounted
    }

    fn over_cpu(&self, cpu_micros: u64) -> bool {
        self.limits.cpu.is_some_and(|limit| u128::from(cpu_micros) >= limit.as_micros())
    }

    /// Returns the time of the next read. The limit cannot be exceeded before the remaining time is used up on all
    /// processors at once.
    fn cpu_poll_time(&self, cpu_micros: u64, now: Instant) -> Option<Instant> {
        let limit = self.limits.cpu.filter(|_| self.limits.counted)?;
        let left = limit.saturating_sub(Duration::from_micros(cpu_micros));
        Some(now + (left / self.limits.processors.max(1)).max(CPU_POLL_INTERVAL))
    }

    /// Returns the error that replaces the exit of an exec that was killed because its CPU time could not be read.
    pub fn uncounted(&self, ended: Option<Ended>) -> Option<Error> {
        let Reasons { timed_out, cancelled, over_cpu, uncounted } = self.reasons;
        let by_itself = ended.is_some_and(|ended| ended.status & 0x7f == 0);
        (uncounted && !timed_out && !cancelled && !over_cpu && !by_itself).then(|| {
            let what = "its CPU time could no longer be read; it was killed because its limit could not be enforced";
            Error::new(ErrorKind::Unavailable, "exit", what)
                .with_remedy("check if a program in the sandbox exhausts open files or kernel memory, then try again")
        })
    }

    /// Returns the exit. Returns `None` if the program vanished and no action or counter explains it.
    pub fn exit(&self, ended: Option<Ended>, usage: &ExecUsage, now: Instant) -> Option<Exit> {
        let reasons = self.reasons;
        let closed = usage.closed_by_owner;
        // An exec that was killed and did not end takes its sandbox along. The exit keeps the reason for the kill.
        let killed = self.kills_the_rest();
        let cancelled = reasons.cancelled || (ended.is_none() && closed && !killed);
        let explained = killed || usage.memory_kills || closed;
        // The supervisor of the program is gone and took the program along. If a kill or a limit explains this, the
        // exec has ended.
        let killed = Ended { status: SIGKILL, peak_bytes: 0, cpu_micros: 0 };
        let ended = ended.or(explained.then_some(killed))?;
        let (code, signal) =
            if ended.status & 0x7f == 0 { ((ended.status >> 8) & 0xff, None) } else { (-1, Some(ended.status & 0x7f)) };
        let killed_by = match signal {
            _ if reasons.timed_out || cancelled => None,
            Some(_) if reasons.over_cpu || usage.watched_cpu => Some(LimitKind::Cpu),
            Some(SIGXCPU) => Some(LimitKind::Cpu),
            Some(SIGKILL) if usage.watched_memory || usage.memory_kills => Some(LimitKind::Memory),
            // The kernel's own limit on one process, one second above ours, took effect before the CPU time was read.
            Some(SIGKILL) if self.over_cpu(ended.cpu_micros) => Some(LimitKind::Cpu),
            _ => None,
        };
        // The killed process may be a different one than the main program.
        let memory = (usage.memory_kills || usage.watched_memory).then_some(LimitKind::Memory);
        let memory = memory.filter(|limit| killed_by != Some(*limit));
        let refused = usage.forks_refused.then_some(LimitKind::Pids);
        let full = usage.disk_full.then_some(LimitKind::Disk);
        Some(Exit {
            code: if reasons.timed_out { -1 } else { code },
            signal,
            timed_out: reasons.timed_out,
            cancelled,
            truncated: false,
            killed_by,
            limits_hit: killed_by.into_iter().chain(memory).chain(refused).chain(full).collect(),
            duration: now.saturating_duration_since(self.begun),
            usage: Usage {
                cpu_seconds: usage.cpu_micros.unwrap_or(ended.cpu_micros) as f64 / 1e6,
                peak_memory_bytes: usage.peak_bytes.or(Some(ended.peak_bytes)),
                output_bytes: 0,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn supervision(cpu: Option<Duration>) -> (Supervision, Instant) {
        let now = Instant::now();
        let limits = ExecLimits { wall_time: SECOND * 10, cpu, counted: true, processors: 2 };
        (Supervision::new(now, now, limits), now)
    }

    const EXITED: Ended = Ended { status: 7 << 8, peak_bytes: 1, cpu_micros: 2 };
    const KILLED: Ended = Ended { status: SIGKILL, ..EXITED };

    #[test]
    fn a_cancel_terminates_then_kills_then_ends_everything() {
        let (mut it, begun) = supervision(None);
        assert!(it.request_stop(StopRequest::Cancel(SECOND), begun));
        assert!(
            !it.request_stop(StopRequest::Cancel(Duration::ZERO), begun),
            "the grace period of the first request applies"
        );
        assert_eq!(it.next(), Some(begun + SECOND));
        assert!(!it.kill_now(begun));
        assert!(it.kill_now(begun + SECOND));
        assert!(!it.kill_now(begun + SECOND), "once");
        assert_eq!(it.next(), Some(begun + SECOND + KILL_TIMEOUT));
        assert!(it.tick(begun + SECOND + KILL_TIMEOUT).end_sandbox);
        assert_eq!(it.next(), Some(begun + SECOND * 10), "the deadline comes before the next kill timeout");
        let exit = it.exit(Some(KILLED), &ExecUsage::default(), begun).unwrap();
        assert!(exit.cancelled && exit.signal == Some(SIGKILL) && exit.killed_by.is_none());
    }

    #[test]
    fn a_kill_does_not_wait_for_a_grace() {
        let (mut it, begun) = supervision(None);
        it.request_stop(StopRequest::Cancel(SECOND * 5), begun);
        it.request_stop(StopRequest::Kill, begun);
        assert!(it.kill_now(begun));
    }

    #[test]
    fn timeout_gives_code_minus_one_for_any_exit_of_the_program() {
        let (mut it, begun) = supervision(None);
        let late = begun + SECOND * 10;
        assert_eq!(it.tick(late), Actions::default());
        assert!(it.kill_now(late) && it.kills_the_rest());
        let exit = it.exit(Some(EXITED), &ExecUsage::default(), late).unwrap();
        assert!(exit.timed_out && !exit.cancelled && exit.code == -1);
        assert_eq!(exit.duration, SECOND * 10);
    }

    #[test]
    fn a_postponement_moves_all_deadlines() {
        let (mut it, begun) = supervision(Some(SECOND * 4));
        it.request_stop(StopRequest::Cancel(SECOND), begun);
        it.postpone(SECOND * 5);
        assert_eq!(it.next(), Some(begun + SECOND * 6), "the grace period");
        assert!(!it.kill_now(begun + SECOND * 5) && it.kill_now(begun + SECOND * 6));
        assert!(!it.tick(begun + SECOND * 6).poll_cpu_time && it.tick(begun + SECOND * 7).poll_cpu_time);
        it.postpone(SECOND * 100);
        assert!(!it.tick(begun + SECOND * 110).end_sandbox, "killed at 106, as it counts now");
        assert_eq!(it.next(), Some(begun + SECOND * 106 + KILL_TIMEOUT));
        assert!(it.tick(begun + SECOND * 106 + KILL_TIMEOUT).end_sandbox);
        let it = it.exit(Some(KILLED), &ExecUsage::default(), begun + SECOND * 112).unwrap();
        assert!(it.cancelled && !it.timed_out, "the deadline is at 115");
    }

    #[test]
    fn remaining_time_is_reported() {
        let (mut it, begun) = supervision(None);
        assert_eq!((it.left(begun + SECOND * 4), it.kill_in(begun)), (SECOND * 6, None));
        assert_eq!(it.left(begun + SECOND * 40), Duration::ZERO);
        it.request_stop(StopRequest::Cancel(SECOND * 2), begun);
        assert_eq!(it.kill_in(begun + SECOND), Some(SECOND));
        assert!(it.kill_now(begun + SECOND * 2));
        assert_eq!(it.kill_in(begun + SECOND * 3), Some(Duration::ZERO));
    }

    #[test]
    fn cpu_time_is_polled_when_it_can_be_used_up() {
        let (mut it, begun) = supervision(Some(SECOND * 4));
        assert_eq!(it.next(), Some(begun + SECOND * 2));
        assert!(it.tick(begun + SECOND * 2).poll_cpu_time);
        assert_eq!(it.next(), Some(begun + SECOND * 10), "no second read before the first is reported");
        it.polled(Some(3_000_000), begun + SECOND * 2);
        assert_eq!(it.next(), Some(begun + SECOND * 5 / 2));
        it.polled(Some(4_000_000), begun + SECOND * 3);
        assert!(it.kill_now(begun + SECOND * 3));
        let exit = it.exit(Some(KILLED), &ExecUsage::default(), begun).unwrap();
        assert_eq!(exit.killed_by, Some(LimitKind::Cpu));
    }

    /// Promise (Limits): An exec whose CPU time can no longer be read is killed, and its exit states the reason.
    #[test]
    fn an_exec_whose_cpu_time_cannot_be_read_is_killed() {
        let (mut it, begun) = supervision(Some(SECOND * 4));
        let mut now = begun + SECOND * 2;
        assert!(it.tick(now).poll_cpu_time);
        for _ in 1..MAX_FAILED_READS {
            it.polled(None, now);
            now += CPU_POLL_INTERVAL;
            assert!(it.next() == Some(now) && it.tick(now).poll_cpu_time && !it.kill_now(now));
        }
        let mut read = it.clone();
        read.polled(Some(0), now);
        assert_eq!(read.next(), Some(now + SECOND * 2));
        read.polled(None, now);
        assert!(!read.kill_now(now) && read.uncounted(Some(KILLED)).is_none(), "not in a row");
        it.polled(None, now);
        assert!(it.kill_now(now) && it.kills_the_rest());
        assert_eq!(it.uncounted(Some(KILLED)).map(|error| error.kind()), Some(ErrorKind::Unavailable));
        assert!(it.uncounted(None).is_some());
        assert!(it.uncounted(Some(EXITED)).is_none(), "it ended by itself");
        it.tick(begun + SECOND * 10);
        assert!(it.uncounted(Some(KILLED)).is_none(), "it timed out");
    }

    #[test]
    fn two_slow_failed_polls_kill_the_exec() {
        let (mut it, begun) = supervision(Some(SECOND * 4));
        let now = begun + SECOND * 4;
        assert!(it.tick(now).poll_cpu_time);
        it.polled(None, now);
        assert!(!it.kill_now(now) && it.tick(now + CPU_POLL_INTERVAL).poll_cpu_time);
        let mut read = it.clone();
        read.polled(Some(0), now + FAILED_READS_TIMEOUT);
        read.polled(None, now + FAILED_READS_TIMEOUT * 2);
        assert!(!read.kill_now(now + FAILED_READS_TIMEOUT * 2), "not in a row");
        it.polled(None, now + FAILED_READS_TIMEOUT);
        assert!(it.kill_now(now + FAILED_READS_TIMEOUT) && it.kills_the_rest());
    }

    /// Promise (Limits): A process that the kernel's own CPU limit kills is reported as a hit of the CPU limit. Other
    /// kills are not.
    #[test]
    fn the_kernels_own_limit_on_a_process_is_the_cpu_limit() {
        for counted in [true, false] {
            let now = Instant::now();
            let limits = ExecLimits { wall_time: SECOND * 10, cpu: Some(SECOND * 4), counted, processors: 2 };
            let it = Supervision::new(now, now, limits);
            let killed_by = |status, cpu_micros| {
                // Other execs of the sandbox used far more.
                let usage = ExecUsage { cpu_micros: Some(9_000_000), ..ExecUsage::default() };
                it.exit(Some(Ended { status, cpu_micros, peak_bytes: 1 }), &usage, now).unwrap().killed_by
            };
            assert_eq!(killed_by(SIGKILL, 5_000_000), Some(LimitKind::Cpu));
            assert_eq!(killed_by(SIGKILL, 4_000_000), Some(LimitKind::Cpu));
            assert_eq!(killed_by(SIGKILL, 3_900_000), None, "another sender killed it");
            assert_eq!(killed_by(15, 5_000_000), None, "the kernel does not send this signal");
            assert_eq!(killed_by(7 << 8, 5_000_000), None);
        }
        let (unlimited, now) = supervision(None);
        let killed = Ended { cpu_micros: u64::MAX, ..KILLED };
        assert_eq!(unlimited.exit(Some(killed), &ExecUsage::default(), now).unwrap().killed_by, None);
    }

    /// Promise (Limits): The program keeps its own exit code when a child is killed for memory.
    #[test]
    fn child_killed_for_memory_is_a_limit_hit_and_leaves_the_exit_code() {
        let (it, begun) = supervision(None);
        let limits = |status, usage: ExecUsage| {
            let exit = it.exit(Some(Ended { status, ..EXITED }), &usage, begun).unwrap();
            (exit.code, exit.killed_by, exit.limits_hit)
        };
        let kernel = ExecUsage { memory_kills: true, ..ExecUsage::default() };
        let watch = ExecUsage { watched_memory: true, ..ExecUsage::default() };
        for usage in [kernel, watch] {
            assert_eq!(limits(0, usage), (0, None, vec![LimitKind::Memory]));
            assert_eq!(limits(7 << 8, usage), (7, None, vec![LimitKind::Memory]));
            let killed = (-1, Some(LimitKind::Memory), vec![LimitKind::Memory]);
            assert_eq!(limits(SIGKILL, usage), killed, "once, where it is the main program");
        }
        assert_eq!(limits(7 << 8, ExecUsage::default()), (7, None, vec![]));
    }

    #[test]
    fn a_vanished_program_has_an_exit_only_with_an_explanation() {
        let (it, begun) = supervision(None);
        assert_eq!(it.exit(None, &ExecUsage::default(), begun), None);
        let closed = ExecUsage { closed_by_owner: true, ..ExecUsage::default() };
        assert!(it.exit(None, &closed, begun).unwrap().cancelled);
        let (mut spinning, _) = supervision(Some(SECOND));
        spinning.polled(Some(1_000_000), begun);
        let exit = spinning.exit(None, &closed, begun).unwrap();
        assert!(!exit.cancelled && exit.killed_by == Some(LimitKind::Cpu), "closed since the kill had no effect");
        let memory = ExecUsage { memory_kills: true, forks_refused: true, ..ExecUsage::default() };
        let exit = it.exit(None, &memory, begun).unwrap();
        assert_eq!(exit.limits_hit, [LimitKind::Memory, LimitKind::Pids]);
        assert_eq!(exit.killed_by, Some(LimitKind::Memory));
    }
}
