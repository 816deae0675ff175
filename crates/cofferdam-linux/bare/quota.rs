//! Quotas of kernel objects without a memory limit: a number of calls may create objects before these are counted
//! again.
//!
//! ```text
//! granting --calls used up--> count --below the maximum--> granting
//!                               \-----at the maximum, or not countable--> refusing --pause over, next call--> count
//! ```
//!
//! So the number of objects is at most `max_live`, plus those of `calls` calls, plus those of calls that were granted
//! before the count and completed after it. The last are at most one for each task. For large objects, [`InFlight`]
//! counts them too. Nothing here reads data of guests: the counts are the kernel's.

use super::texts;

/// The limits on objects of one kind.
#[derive(Clone, Copy)]
pub struct Quota {
    /// The number of objects at which no more calls are granted.
    pub max_live: u64,
    /// The number of calls that are granted without a count.
    pub calls: u64,
    /// The error of a refused call.
    pub error: i32,
}

/// The factor of the pause after a refusal: without a new count, calls are refused for this many times the duration of
/// the last one. So guests with many calls do not keep this process from its other work.
const PAUSE_FACTOR: u64 = 4;

/// The time of a count after which there is a pause even if it grants calls. Guests can make lists long.
const SLOW_COUNT_MICROS: u64 = 100_000;

/// The rest of a quota.
pub struct Account {
    pub quota: Quota,
    left: u64,
    refuse_until: u64,
}

impl Account {
    /// Creates an account that grants its first calls without a count, because no process runs yet.
    pub const fn new(quota: Quota) -> Self {
        Self { quota, left: quota.calls, refuse_until: 0 }
    }

    /// Creates an account that counts before its first call.
    pub const fn used_up(quota: Quota) -> Self {
        Self { quota, left: 0, refuse_until: 0 }
    }

    /// Decides about a call. Returns the error if it is refused. `count` returns the number of objects if it can be
    /// determined.
    pub fn decide(&mut self, now: &dyn Fn() -> u64, count: &mut dyn FnMut() -> Option<u64>) -> Option<i32> {
        if self.left == 0 {
            let start = now();
            if start < self.refuse_until {
                return Some(self.quota.error);
            }
            let refused = count().is_none_or(|live| live >= self.quota.max_live);
            let end = now();
            let took = end.saturating_sub(start);
            // After a count that grants calls, the pause delays the next count only.
            if refused || took > SLOW_COUNT_MICROS {
                self.refuse_until = end + PAUSE_FACTOR * took;
            }
            if refused {
                return Some(self.quota.error);
            }
            self.left = self.quota.calls;
        }
        self.left -= 1;
        None
    }
}

/// The maximum of stored tasks of a kind: as many as can be in flight below the maximum, and as many as are granted
/// then.
const MAX_TASKS: usize = 64;

/// The state of a task as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskState {
    /// The letter of its state.
    pub letter: u8,
    /// Its time in user mode, in clock ticks.
    pub user_ticks: u64,
}

/// The tasks whose calls were granted and may not be complete, each with its time in user mode at the grant.
pub struct InFlight {
    tasks: [(i32, u64); MAX_TASKS],
    count: usize,
}

impl InFlight {
    /// No tasks.
    pub const NONE: Self = Self { tasks: [(0, 0); MAX_TASKS], count: 0 };

    /// Adds a task with a granted call. Returns false if there is no space: the call must be refused.
    pub fn add(&mut self, task: i32, user_ticks: u64) -> bool {
        let Some(slot) = self.tasks.get_mut(self.count) else { return false };
        *slot = (task, user_ticks);
        self.count += 1;
        true
    }

    /// Removes completed calls by the state of each task. Returns the number of remaining calls.
    ///
    ///
    /// Until its call completes, a task runs in the kernel or is in uninterruptible sleep. A task has completed its
    /// call, or never will, if it sleeps otherwise, has been in user mode since, is stopped or gone, or is `asking`,
    /// the task with the next call.
    pub fn settle(&mut self, asking: i32, state: impl Fn(i32) -> Option<TaskState>) -> u64 {
        let mut retained = 0;
        for at in 0..self.count {
            let Some(&(task, user_ticks)) = self.tasks.get(at) else { break };
            let may_be_calling = |state: TaskState| match state.letter {
                b'D' => true,
                // The kernel derives these times from the whole run time: the first tick may be of the call itself.
                b'R' => state.user_ticks <= user_ticks + 1,
                _ => false,
            };
            if task != asking && state(task).is_some_and(may_be_calling) {
                if let Some(slot) = self.tasks.get_mut(retained) {
                    *slot = (task, user_ticks);
                }
                retained += 1;
            }
        }
        self.count = retained;
        retained as u64
    }
}

/// The kind of lock in a line of `/proc/locks`. Waiting requests are locks as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// A lock of a process, by `F_SETLK`. Only those of the own pid namespace are listed.
    Process,
    /// A lock of an open file, by `F_OFD_SETLK`. Those of the whole host are listed.
    OpenFile,
}

/// Parses a line of `/proc/locks`, which contains no text of a guest.
pub fn lock(line: &[u8]) -> Option<Lock> {
    line.split(|&byte| byte == b' ').find_map(|word| match word {
        b"POSIX" | b"ACCESS" => Some(Lock::Process),
        b"OFDLCK" => Some(Lock::OpenFile),
        _ => None,
    })
}

/// Returns true if a line of a process's `fdinfo` describes a lock of the process.
pub fn is_held_lock(line: &[u8]) -> bool {
    line.starts_with(b"lock:") && lock(line) == Some(Lock::Process)
}

/// Returns true if a line of `/proc/net/tcp` describes a listening socket. These lines come before all others.
pub fn is_listener(line: &[u8]) -> bool {
    const LISTENING: &[u8] = b"0A";
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    words.nth(3) == Some(LISTENING)
}

/// Parses the number of netlink sockets from a line of `/proc/net/protocols`.
pub fn netlink_sockets(line: &[u8]) -> Option<u64> {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    if words.next() == Some(b"NETLINK") { words.nth(1).and_then(texts::number) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const QUOTA: Quota = Quota { max_live: 4, calls: 3, error: 37 };

    #[test]
    fn calls_are_granted_up_to_the_quota_and_counted_then() {
        let mut account = Account::new(QUOTA);
        let mut never = || -> Option<u64> { unreachable!("no count yet") };
        for _ in 0..QUOTA.calls {
            assert_eq!(account.decide(&|| 0, &mut never), None);
        }
        assert_eq!(account.decide(&|| 0, &mut || Some(4)), Some(37), "at the maximum");
        assert_eq!(account.decide(&|| 0, &mut || None), Some(37), "not countable");
        assert_eq!(account.decide(&|| 0, &mut || Some(3)), None);
        assert_eq!(account.decide(&|| 0, &mut never), None);
        assert_eq!(account.decide(&|| 0, &mut never), None);
        assert_eq!(account.decide(&|| 0, &mut || Some(4)), Some(37));
    }

    #[test]
    fn slow_counts_pause_although_they_grant_calls() {
        for (micros, calls) in [(SLOW_COUNT_MICROS, 4), (SLOW_COUNT_MICROS + 1, 3)] {
            let mut account = Account::used_up(QUOTA);
            let clock = Cell::new(0);
            let mut granted = 0;
            while account
                .decide(&|| clock.get(), &mut || {
                    clock.set(clock.get() + micros);
                    Some(0)
                })
                .is_none()
                && granted < 4
            {
                granted += 1;
            }
            assert_eq!(granted, calls, "{micros}");
        }
    }

    #[test]
    fn refusals_pause_in_proportion_to_the_count() {
        let mut account = Account::used_up(Quota { calls: 1, ..QUOTA });
        assert_eq!(account.decide(&|| 0, &mut || Some(0)), None);
        let clock = Cell::new(100);
        let counts = Cell::new(0);
        let mut ask = |at| {
            clock.set(at);
            account.decide(&|| clock.get(), &mut || {
                counts.set(counts.get() + 1);
                clock.set(clock.get() + 10);
                Some(9)
            })
        };
        for at in [100, 111, 149] {
            assert_eq!(ask(at), Some(37));
        }
        assert_eq!(ask(150), Some(37));
        assert_eq!(counts.get(), 2);
    }

    #[test]
    fn however_guests_ask_there_are_never_more_than_the_bound() {
        let mut account = Account::new(QUOTA);
        let (mut live, mut peak) = (0u64, 0);
        for step in 0..1000u64 {
            if step % 7 == 0 {
                live = live.saturating_sub(step % 3);
            } else if account.decide(&|| step, &mut || Some(live)).is_none() {
                live += 1;
            }
            peak = peak.max(live);
        }
        assert!(peak < QUOTA.max_live + QUOTA.calls, "{peak}");
        assert!(peak >= QUOTA.max_live, "{peak}");
    }

    #[test]
    fn calls_in_flight_count_until_they_have_run() {
        let mut flight = InFlight::NONE;
        for task in [6, 7, 8, 9, 10, 11] {
            assert!(flight.add(task, 5));
        }
        let at = |letter, user_ticks| Some(TaskState { letter, user_ticks });
        let states = |task| match task {
            6 | 11 => at(b'R', 6),
            7 => at(b'R', 7),
            8 => at(b'S', 5),
            9 => at(b'D', 6),
            _ => None,
        };
        // These remain: 6, which still runs its call, and 9, which sleeps in it. 11 makes its next call.
        assert_eq!(flight.settle(11, states), 2);
        assert_eq!(flight.settle(0, |task| if task == 9 { at(b'R', 5) } else { None }), 1);
        assert_eq!(flight.settle(0, |_| at(b'T', 5)), 0);
    }

    #[test]
    fn more_calls_in_flight_than_can_be_remembered_are_refused() {
        let mut flight = InFlight::NONE;
        assert!((0..64).all(|task| flight.add(task, 0)));
        assert!(!flight.add(64, 0));
    }

    #[test]
    fn lines_about_locks_are_recognized() {
        assert_eq!(lock(b"1: POSIX  ADVISORY  WRITE 12 00:2f:17 0 0"), Some(Lock::Process));
        assert_eq!(lock(b"1: -> POSIX  ADVISORY  WRITE 12 00:2f:17 0 0"), Some(Lock::Process));
        assert_eq!(lock(b"2: OFDLCK ADVISORY  READ -1 fe:01:9 0 EOF"), Some(Lock::OpenFile));
        assert!(is_held_lock(b"lock:\t1: POSIX  ADVISORY  WRITE 12 00:2f:17 0 0"));
        assert!(!is_held_lock(b"lock:\t1: OFDLCK ADVISORY  READ -1 fe:01:9 0 EOF"));
        assert!(!is_held_lock(b"flags:\t0100002"));
        assert_eq!(lock(b"3: FLOCK  ADVISORY  WRITE 1 00:2f:3 0 EOF"), None);
        let row = b"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 5";
        assert!(is_listener(row));
        assert!(!is_listener(b"   1: 0100007F:1F90 0100007F:0A0A 01 00000000:00000000 00:00000000 00000000"));
        assert_eq!(netlink_sockets(b"NETLINK   1096     12      -1   NI       0   no   kernel      n  n"), Some(12));
        assert_eq!(netlink_sockets(b"UNIX      1024      3      -1   NI       0   yes  kernel      n  n"), None);
        assert_eq!(netlink_sockets(b"NETLINK"), None);
        assert!(!is_listener(b"  sl  local_address rem_address   st tx_queue rx_queue"));
    }
}
