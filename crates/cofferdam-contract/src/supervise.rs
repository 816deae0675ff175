//! When an exec is told to end, and what its exit says: decisions that every backend with processes takes alike.
//!
//! ```text
//! running --cancel--> SIGTERM sent --grace over--\
//!    |--time-out, CPU limit, kill------------------> SIGKILL sent --patience over--> everything ends --> (again)
//! ```
//!
//! Pure: it keeps no time of its own, sends no signal and reads no counter. A backend asks [`Supervision::next`] how long
//! to wait, and does what [`Supervision::due`] and the others answer.

use std::time::{Duration, Instant};

use crate::{Error, ErrorKind, Exit, LimitKind, Usage};

/// Time that whoever kills on order has, before everything is ended instead.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// CPU time is looked at no more often than this.
const CPU_LOOK: Duration = Duration::from_millis(5);
/// Looks in a row at CPU time that nobody could read, before the exec is killed: its limit would not hold.
const MAX_UNREAD: u32 = 20;
/// The same as time, where each look takes long.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;
const SIGXCPU: i32 = 24;

/// What a handle asks for while its exec runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// SIGTERM, and after this time SIGKILL.
    Cancel(Duration),
    /// SIGKILL.
    Kill,
}

/// What an exec is allowed.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// Real time.
    pub wall: Duration,
    /// CPU time of all its processes.
    pub cpu: Option<Duration>,
    /// Whether somebody counts CPU time who can be asked while it runs.
    pub counted: bool,
    /// Processors on which it can run at once.
    pub processors: u32,
}

/// Why an exec was told to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reasons {
    timed_out: bool,
    cancelled: bool,
    over_cpu: bool,
    uncounted: bool,
}

/// What to do now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Due {
    /// A kill had no effect: end the whole sandbox.
    pub end_sandbox: bool,
    /// Read the CPU time used, and tell it by [`Supervision::looked`].
    pub look: bool,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The raw wait status.
    pub status: i32,
    /// The largest resident size of a process, in bytes.
    pub peak_bytes: u64,
    /// CPU microseconds of what was reaped.
    pub cpu_micros: u64,
}

/// What was counted for an exec by its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accounts {
    /// CPU microseconds of everything that it started; `None` where nobody counts them.
    pub cpu_micros: Option<u64>,
    /// The most memory that the sandbox used at once, in bytes.
    pub peak_bytes: Option<u64>,
    /// The kernel killed for memory meanwhile.
    pub memory_kills: bool,
    /// A fork was refused meanwhile.
    pub forks_refused: bool,
    /// No byte or no file more can be stored.
    pub disk_full: bool,
    /// A watch found the memory limit passed, and killed.
    pub watched_memory: bool,
    /// A watch found the CPU limit passed, and killed.
    pub watched_cpu: bool,
    /// The owner closed the sandbox.
    pub closed_by_owner: bool,
}

/// The supervision of one exec.
#[derive(Debug, Clone)]
pub struct Supervision {
    begun: Instant,
    deadline: Instant,
    allowance: Allowance,
    reasons: Reasons,
    kill_at: Option<Instant>,
    killed_at: Option<Instant>,
    cpu_look: Option<Instant>,
    /// Looks in a row at which nothing could be read.
    unread: u32,
    /// When the first of them came back.
    unread_since: Option<Instant>,
}

impl Supervision {
    /// Of an exec whose time began at `begun`.
    pub fn new(begun: Instant, now: Instant, allowance: Allowance) -> Self {
        let mut made = Self {
            begun,
            deadline: begun + allowance.wall,
            allowance,
            reasons: Reasons::default(),
            kill_at: None,
            killed_at: None,
            cpu_look: None,
            unread: 0,
            unread_since: None,
        };
        made.cpu_look = made.next_look(0, now);
        made
    }

    /// Time that did not count has passed: nothing ran. Everything that is to come, comes that much later.
    pub fn postpone(&mut self, by: Duration) {
        self.deadline += by;
        for at in [&mut self.kill_at, &mut self.killed_at, &mut self.cpu_look].into_iter().flatten() {
            *at += by;
        }
    }

    /// Real time that is left until the deadline.
    pub fn left(&self, now: Instant) -> Duration {
        self.deadline.saturating_duration_since(now)
    }

    /// Time until everything is killed, if the exec was told to end; none is left when that was ordered already.
    pub fn kill_in(&self, now: Instant) -> Option<Duration> {
        let told = self.kills_the_rest() || self.kill_at.is_some();
        told.then(|| self.kill_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)))
    }

    /// When [`Self::due`] has something to say, if nothing happens before.
    pub fn next(&self) -> Option<Instant> {
        [self.killed_at.map(|at| at + KILL_PATIENCE), self.kill_at, self.cpu_look]
            .into_iter()
            .chain([(!self.reasons.timed_out).then_some(self.deadline)])
            .flatten()
            .min()
    }

    /// Takes a wish in; `true` when SIGTERM is to be sent.
    pub fn wish(&mut self, wish: Wish, now: Instant) -> bool {
        match wish {
            Wish::Cancel(grace) if self.killed_at.is_none() && self.kill_at.is_none() => {
                self.reasons.cancelled = true;
                self.kill_at = Some(now + grace);
                true
            }
            Wish::Kill if self.killed_at.is_none() => {
                self.reasons.cancelled = true;
                self.kill_at = Some(now);
                false
            }
            Wish::Cancel(_) | Wish::Kill => false,
        }
    }

    /// What to do now that time has passed. [`Self::kill_now`] is to be asked after it.
    pub fn due(&mut self, now: Instant) -> Due {
        let mut due = Due::default();
        if self.killed_at.is_some_and(|at| now >= at + KILL_PATIENCE) {
            due.end_sandbox = true;
            self.killed_at = Some(now);
        }
        if now >= self.deadline && !self.reasons.timed_out {
            self.reasons.timed_out = true;
            self.kill_at = Some(now);
        }
        if self.cpu_look.is_some_and(|at| now >= at) {
            due.look = true;
            self.cpu_look = None;
        }
        due
    }

    /// Takes in the CPU time used so far; `None` where it could not be read, which is no reason to let it go on for long.
    pub fn looked(&mut self, cpu_micros: Option<u64>, now: Instant) {
        let Some(cpu_micros) = cpu_micros else {
            self.unread += 1;
            let since = *self.unread_since.get_or_insert(now);
            let too_long = now.saturating_duration_since(since) >= UNREAD_TIMEOUT;
            self.reasons.uncounted |= self.unread >= MAX_UNREAD || too_long;
            if self.reasons.uncounted {
                self.kill_at = Some(now);
            } else {
                self.cpu_look = Some(now + CPU_LOOK);
            }
            return;
        };
        (self.unread, self.unread_since) = (0, None);
        if self.over_cpu(cpu_micros) {
            self.reasons.over_cpu = true;
            self.kill_at = Some(now);
        } else {
            self.cpu_look = self.next_look(cpu_micros, now);
        }
    }

    /// Whether SIGKILL is to be sent now.
    pub fn kill_now(&mut self, now: Instant) -> bool {
        if self.kill_at.is_none_or(|at| now < at) {
            return false;
        }
        self.kill_at = None;
        let first = self.killed_at.is_none();
        self.killed_at.get_or_insert(now);
        first
    }

    /// Whether what outlived the program itself must be killed, too.
    pub fn kills_the_rest(&self) -> bool {
        let Reasons { timed_out, cancelled, over_cpu, uncounted } = self.reasons;
        timed_out || cancelled || over_cpu || uncounted
    }

    fn over_cpu(&self, cpu_micros: u64) -> bool {
        self.allowance.cpu.is_some_and(|limit| u128::from(cpu_micros) >= limit.as_micros())
    }

    /// The limit cannot be passed before what is left is used up on all processors at once.
    fn next_look(&self, cpu_micros: u64, now: Instant) -> Option<Instant> {
        let limit = self.allowance.cpu.filter(|_| self.allowance.counted)?;
        let left = limit.saturating_sub(Duration::from_micros(cpu_micros));
        Some(now + (left / self.allowance.processors.max(1)).max(CPU_LOOK))
    }

    /// The error that stands for the exit of an exec which was killed because its CPU time could not be read any more.
    pub fn uncounted(&self, ended: Option<Ended>) -> Option<Error> {
        let Reasons { timed_out, cancelled, over_cpu, uncounted } = self.reasons;
        let by_itself = ended.is_some_and(|ended| ended.status & 0x7f == 0);
        (uncounted && !timed_out && !cancelled && !over_cpu && !by_itself).then(|| {
            let what =
                "its CPU time could not be read any more, and it was killed, since its limit would not have held";
            Error::new(ErrorKind::Unavailable, "exit", what).with_remedy(
                "look whether what runs in the sandbox uses up files or memory of its kernel, then try again",
            )
        })
    }

    /// How the exec ended; `None` when it vanished and nothing that was done or counted explains it.
    pub fn exit(&self, ended: Option<Ended>, accounts: &Accounts, now: Instant) -> Option<Exit> {
        let reasons = self.reasons;
        let closed = accounts.closed_by_owner;
        // What was killed and did not end takes its sandbox along, for the reason for which it was killed.
        let killed = self.kills_the_rest();
        let cancelled = reasons.cancelled || (ended.is_none() && closed && !killed);
        let explained = killed || accounts.memory_kills || closed;
        // Who kept the program is gone and took it along. Where we, or a limit, ended it, that is the exec's end.
        let killed = Ended { status: SIGKILL, peak_bytes: 0, cpu_micros: 0 };
        let ended = ended.or(explained.then_some(killed))?;
        let (code, signal) =
            if ended.status & 0x7f == 0 { ((ended.status >> 8) & 0xff, None) } else { (-1, Some(ended.status & 0x7f)) };
        let killed_by = match signal {
            _ if reasons.timed_out || cancelled => None,
            Some(_) if reasons.over_cpu || accounts.watched_cpu => Some(LimitKind::Cpu),
            Some(SIGXCPU) => Some(LimitKind::Cpu),
            Some(SIGKILL) if accounts.watched_memory || accounts.memory_kills => Some(LimitKind::Memory),
            // The kernel's own limit on one process, one second above ours, was first: nobody looked in time.
            Some(SIGKILL) if self.over_cpu(ended.cpu_micros) => Some(LimitKind::Cpu),
            _ => None,
        };
        // A process other than the main program may be the one that was killed.
        let memory = (accounts.memory_kills || accounts.watched_memory).then_some(LimitKind::Memory);
        let memory = memory.filter(|limit| killed_by != Some(*limit));
        let refused = accounts.forks_refused.then_some(LimitKind::Pids);
        let full = accounts.disk_full.then_some(LimitKind::Disk);
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
                cpu_seconds: accounts.cpu_micros.unwrap_or(ended.cpu_micros) as f64 / 1e6,
                peak_memory_bytes: accounts.peak_bytes.or(Some(ended.peak_bytes)),
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
        let allowance = Allowance { wall: SECOND * 10, cpu, counted: true, processors: 2 };
        (Supervision::new(now, now, allowance), now)
    }

    const EXITED: Ended = Ended { status: 7 << 8, peak_bytes: 1, cpu_micros: 2 };
    const KILLED: Ended = Ended { status: SIGKILL, ..EXITED };

    #[test]
    fn a_cancel_terminates_then_kills_then_ends_everything() {
        let (mut it, begun) = supervision(None);
        assert!(it.wish(Wish::Cancel(SECOND), begun));
        assert!(!it.wish(Wish::Cancel(Duration::ZERO), begun), "the first one's grace holds");
        assert_eq!(it.next(), Some(begun + SECOND));
        assert!(!it.kill_now(begun));
        assert!(it.kill_now(begun + SECOND));
        assert!(!it.kill_now(begun + SECOND), "once");
        assert_eq!(it.next(), Some(begun + SECOND + KILL_PATIENCE));
        assert!(it.due(begun + SECOND + KILL_PATIENCE).end_sandbox);
        assert_eq!(it.next(), Some(begun + SECOND * 10), "the deadline comes before more patience ends");
        let exit = it.exit(Some(KILLED), &Accounts::default(), begun).unwrap();
        assert!(exit.cancelled && exit.signal == Some(SIGKILL) && exit.killed_by.is_none());
    }

    #[test]
    fn a_kill_does_not_wait_for_a_grace() {
        let (mut it, begun) = supervision(None);
        it.wish(Wish::Cancel(SECOND * 5), begun);
        it.wish(Wish::Kill, begun);
        assert!(it.kill_now(begun));
    }

    #[test]
    fn time_out_gives_code_minus_one_whatever_the_program_said() {
        let (mut it, begun) = supervision(None);
        let late = begun + SECOND * 10;
        assert_eq!(it.due(late), Due::default());
        assert!(it.kill_now(late) && it.kills_the_rest());
        let exit = it.exit(Some(EXITED), &Accounts::default(), late).unwrap();
        assert!(exit.timed_out && !exit.cancelled && exit.code == -1);
        assert_eq!(exit.duration, SECOND * 10);
    }

    #[test]
    fn what_did_not_count_puts_everything_off() {
        let (mut it, begun) = supervision(Some(SECOND * 4));
        it.wish(Wish::Cancel(SECOND), begun);
        it.postpone(SECOND * 5);
        assert_eq!(it.next(), Some(begun + SECOND * 6), "the grace");
        assert!(!it.kill_now(begun + SECOND * 5) && it.kill_now(begun + SECOND * 6));
        assert!(!it.due(begun + SECOND * 6).look && it.due(begun + SECOND * 7).look);
        it.postpone(SECOND * 100);
        assert!(!it.due(begun + SECOND * 110).end_sandbox, "killed at 106, as it counts now");
        assert_eq!(it.next(), Some(begun + SECOND * 106 + KILL_PATIENCE));
        assert!(it.due(begun + SECOND * 106 + KILL_PATIENCE).end_sandbox);
        let it = it.exit(Some(KILLED), &Accounts::default(), begun + SECOND * 112).unwrap();
        assert!(it.cancelled && !it.timed_out, "the deadline is at 115");
    }

    #[test]
    fn what_is_left_can_be_told() {
        let (mut it, begun) = supervision(None);
        assert_eq!((it.left(begun + SECOND * 4), it.kill_in(begun)), (SECOND * 6, None));
        assert_eq!(it.left(begun + SECOND * 40), Duration::ZERO);
        it.wish(Wish::Cancel(SECOND * 2), begun);
        assert_eq!(it.kill_in(begun + SECOND), Some(SECOND));
        assert!(it.kill_now(begun + SECOND * 2));
        assert_eq!(it.kill_in(begun + SECOND * 3), Some(Duration::ZERO));
    }

    #[test]
    fn cpu_time_is_looked_at_when_it_may_be_used_up() {
        let (mut it, begun) = supervision(Some(SECOND * 4));
        assert_eq!(it.next(), Some(begun + SECOND * 2));
        assert!(it.due(begun + SECOND * 2).look);
        assert_eq!(it.next(), Some(begun + SECOND * 10), "not again before it was told");
        it.looked(Some(3_000_000), begun + SECOND * 2);
        assert_eq!(it.next(), Some(begun + SECOND * 5 / 2));
        it.looked(Some(4_000_000), begun + SECOND * 3);
        assert!(it.kill_now(begun + SECOND * 3));
        let exit = it.exit(Some(KILLED), &Accounts::default(), begun).unwrap();
        assert_eq!(exit.killed_by, Some(LimitKind::Cpu));
    }

    #[test]
    fn what_cannot_be_counted_is_not_let_go_on() {
        let (mut it, begun) = supervision(Some(SECOND * 4));
        let mut now = begun + SECOND * 2;
        assert!(it.due(now).look);
        for _ in 1..MAX_UNREAD {
            it.looked(None, now);
            now += CPU_LOOK;
            assert!(it.next() == Some(now) && it.due(now).look && !it.kill_now(now));
        }
        let mut read = it.clone();
        read.looked(Some(0), now);
        assert_eq!(read.next(), Some(now + SECOND * 2));
        read.looked(None, now);
        assert!(!read.kill_now(now) && read.uncounted(Some(KILLED)).is_none(), "not in a row");
        it.looked(None, now);
        assert!(it.kill_now(now) && it.kills_the_rest());
        assert_eq!(it.uncounted(Some(KILLED)).map(|error| error.kind()), Some(ErrorKind::Unavailable));
        assert!(it.uncounted(None).is_some());
        assert!(it.uncounted(Some(EXITED)).is_none(), "it ended by itself");
        it.due(begun + SECOND * 10);
        assert!(it.uncounted(Some(KILLED)).is_none(), "it timed out");
    }

    #[test]
    fn two_looks_that_take_long_and_read_nothing_are_enough_to_kill() {
        let (mut it, begun) = supervision(Some(SECOND * 4));
        let now = begun + SECOND * 4;
        assert!(it.due(now).look);
        it.looked(None, now);
        assert!(!it.kill_now(now) && it.due(now + CPU_LOOK).look);
        let mut read = it.clone();
        read.looked(Some(0), now + UNREAD_TIMEOUT);
        read.looked(None, now + UNREAD_TIMEOUT * 2);
        assert!(!read.kill_now(now + UNREAD_TIMEOUT * 2), "not in a row");
        it.looked(None, now + UNREAD_TIMEOUT);
        assert!(it.kill_now(now + UNREAD_TIMEOUT) && it.kills_the_rest());
    }

    #[test]
    fn the_kernels_own_limit_on_a_process_is_the_cpu_limit() {
        for counted in [true, false] {
            let now = Instant::now();
            let allowance = Allowance { wall: SECOND * 10, cpu: Some(SECOND * 4), counted, processors: 2 };
            let it = Supervision::new(now, now, allowance);
            let killed_by = |status, cpu_micros| {
                // Others of the sandbox used far more.
                let accounts = Accounts { cpu_micros: Some(9_000_000), ..Accounts::default() };
                it.exit(Some(Ended { status, cpu_micros, peak_bytes: 1 }), &accounts, now).unwrap().killed_by
            };
            assert_eq!(killed_by(SIGKILL, 5_000_000), Some(LimitKind::Cpu));
            assert_eq!(killed_by(SIGKILL, 4_000_000), Some(LimitKind::Cpu));
            assert_eq!(killed_by(SIGKILL, 3_900_000), None, "somebody else sent it");
            assert_eq!(killed_by(15, 5_000_000), None, "nor does the kernel send this");
            assert_eq!(killed_by(7 << 8, 5_000_000), None);
        }
        let (unlimited, now) = supervision(None);
        let killed = Ended { cpu_micros: u64::MAX, ..KILLED };
        assert_eq!(unlimited.exit(Some(killed), &Accounts::default(), now).unwrap().killed_by, None);
    }

    #[test]
    fn child_killed_for_memory_is_a_limit_hit_and_leaves_the_exit_code() {
        let (it, begun) = supervision(None);
        let limits = |status, accounts: Accounts| {
            let exit = it.exit(Some(Ended { status, ..EXITED }), &accounts, begun).unwrap();
            (exit.code, exit.killed_by, exit.limits_hit)
        };
        let kernel = Accounts { memory_kills: true, ..Accounts::default() };
        let watch = Accounts { watched_memory: true, ..Accounts::default() };
        for accounts in [kernel, watch] {
            assert_eq!(limits(0, accounts), (0, None, vec![LimitKind::Memory]));
            assert_eq!(limits(7 << 8, accounts), (7, None, vec![LimitKind::Memory]));
            let killed = (-1, Some(LimitKind::Memory), vec![LimitKind::Memory]);
            assert_eq!(limits(SIGKILL, accounts), killed, "once, where it is the main program");
        }
        assert_eq!(limits(7 << 8, Accounts::default()), (7, None, vec![]));
    }

    #[test]
    fn what_vanished_is_explained_or_nobody_knows() {
        let (it, begun) = supervision(None);
        assert_eq!(it.exit(None, &Accounts::default(), begun), None);
        let closed = Accounts { closed_by_owner: true, ..Accounts::default() };
        assert!(it.exit(None, &closed, begun).unwrap().cancelled);
        let (mut spinning, _) = supervision(Some(SECOND));
        spinning.looked(Some(1_000_000), begun);
        let exit = spinning.exit(None, &closed, begun).unwrap();
        assert!(!exit.cancelled && exit.killed_by == Some(LimitKind::Cpu), "closed since the kill had no effect");
        let memory = Accounts { memory_kills: true, forks_refused: true, ..Accounts::default() };
        let exit = it.exit(None, &memory, begun).unwrap();
        assert_eq!(exit.limits_hit, [LimitKind::Memory, LimitKind::Pids]);
        assert_eq!(exit.killed_by, Some(LimitKind::Memory));
    }
}
