//! What a sandbox, its execs and the task that listens to its init share.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cofferdam_contract::shares::Shares;
use cofferdam_contract::supervise::Ended;
use cofferdam_contract::{Error, ErrorKind, Limits, Result};
use cofferdam_linux::cgroup::Stats;
use cofferdam_linux::{marks, process};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot, watch as flag};

use crate::client::{self, Launcher};
use crate::protocol::{self, Event, HostFacts, NotStarted, Order};

/// Time the kernel and the launcher have to remove a sandbox.
const GONE_LIMIT: Duration = Duration::from_secs(60);
/// How long to wait before a full socket is tried again. It holds many orders, and an init takes them at once.
const FULL: Duration = Duration::from_millis(2);
/// Processes of a sandbox that are looked at to tell execs apart, since that takes the supervisor's own time. What others
/// use is everybody's.
const MAX_TOLD_APART: usize = 64;
/// Time an init has to take an order.
const ORDER_LIMIT: Duration = Duration::from_secs(10);

/// An exec that could not be started.
pub type StartFailure = (NotStarted, i32);
/// An exec that runs, with its terminal's controlling end if it has one.
pub type StartOutcome = std::result::Result<Option<OwnedFd>, StartFailure>;

/// A new exec, and what will tell of its start and its end.
pub struct Enrolled {
    pub exec: u64,
    pub on_start: oneshot::Receiver<StartOutcome>,
    pub on_end: oneshot::Receiver<Ended>,
}

/// What waits for an init's word on one exec.
pub struct Slot {
    started: Option<oneshot::Sender<StartOutcome>>,
    ended: Option<oneshot::Sender<Ended>>,
}

/// What sandbox, execs and the task that listens to the init share.
pub struct Core {
    pub control: AsyncFd<OwnedFd>,
    /// Whether nothing is left of it, as the task that listens to the init finds out.
    pub gone: flag::Receiver<bool>,
    pub init: OwnedFd,
    pub workspace: OwnedFd,
    pub code: OwnedFd,
    /// User and group that files made for the guest must belong to; `None` leaves them as they come.
    pub owner: Option<(u32, u32)>,
    pub stats: Option<Stats>,
    /// What the control group had counted before this sandbox: kills for memory, forks refused, bytes in use.
    pub group_base: (u64, u64, u64),
    /// Those of the spec that it was accepted for; nothing starts before.
    pub limits: OnceLock<Limits>,
    pub path: String,
    /// What the launcher found out about the host.
    pub facts: HostFacts,
    pub slots: Mutex<HashMap<u64, Slot>>,
    /// Whose CPU time it was that the control group counted.
    pub shares: Mutex<Shares>,
    pub next_exec: AtomicU64,
    /// Notified when an exec was ordered.
    pub starts: Notify,
    pub closed: AtomicBool,
    /// Whether its owner ended it, rather than that it ended by itself.
    pub closed_by_owner: AtomicBool,
    pub over_memory: AtomicBool,
    pub over_cpu: AtomicBool,
    /// Processes refused by the init, as it reported with the last exec that ended.
    pub processes_refused: AtomicU64,
    // Last: the launcher may only be waited for once nothing above needs it.
    pub launcher: Arc<Launcher>,
}

/// Passes on what the init says, until nothing is left of the sandbox. An init is not trusted: it can complete each exec
/// once, and nothing else.
pub async fn listen(core: Arc<Core>, gone: flag::Sender<bool>) {
    loop {
        match client::receive::<Event>(&core.control).await {
            Ok(Some((event, fds))) => {
                if !core.hear(event, fds) {
                    core.shut();
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => core.shut(),
            // The launcher holds the other end until everything is removed, also where the init left it unread.
            Ok(None) | Err(_) => break,
        }
    }
    core.shut();
    core.slots().clear();
    gone.send_replace(true);
}

impl Core {
    fn slots(&self) -> MutexGuard<'_, HashMap<u64, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new exec, and what will tell of its start and its end.
    pub fn enroll(&self) -> Enrolled {
        let exec = self.next_exec.fetch_add(1, Ordering::Relaxed) + 1;
        let (started, on_start) = oneshot::channel();
        let (ended, on_end) = oneshot::channel();
        self.slots().insert(exec, Slot { started: Some(started), ended: Some(ended) });
        self.starts.notify_one();
        Enrolled { exec, on_start, on_end }
    }

    /// The number for an exec that its sandbox started, or could not start, by the time it was ready.
    pub fn enroll_started(&self, outcome: std::result::Result<(), StartFailure>) -> Enrolled {
        let enrolled = self.enroll();
        let mut slots = self.slots();
        let started = slots.get_mut(&enrolled.exec).and_then(|slot| slot.started.take());
        if outcome.is_err() {
            slots.remove(&enrolled.exec);
        }
        if let Some(sender) = started {
            let _ = sender.send(outcome.map(|()| None));
        }
        drop(slots);
        enrolled
    }

    /// Takes in what the init said; `false` when no init of ours says such a thing now.
    fn hear(&self, event: Event, mut fds: Vec<OwnedFd>) -> bool {
        match event {
            Event::Started { exec } => {
                if let Some(sender) = self.slots().get_mut(&exec).and_then(|slot| slot.started.take()) {
                    let _ = sender.send(Ok(fds.pop()));
                }
            }
            Event::NotStarted { exec, reason, errno } => {
                if let Some(sender) = self.slots().remove(&exec).and_then(|slot| slot.started) {
                    let _ = sender.send(Err((reason, errno)));
                }
            }
            Event::Ended { exec, status, peak_bytes, cpu_micros, processes_refused } => {
                self.processes_refused.fetch_max(processes_refused, Ordering::AcqRel);
                if let Some(sender) = self.slots().remove(&exec).and_then(|slot| slot.ended) {
                    let _ = sender.send(Ended { status, peak_bytes, cpu_micros });
                }
            }
            Event::LimitPassed { memory: true } => self.over_memory.store(true, Ordering::Release),
            Event::LimitPassed { memory: false } => self.over_cpu.store(true, Ordering::Release),
            Event::Ready { .. } | Event::Failed(_) => return false,
        }
        true
    }

    /// Sends an order. Small ones practically never wait.
    pub async fn order(&self, order: &Order, fds: &[std::os::fd::BorrowedFd<'_>]) -> std::io::Result<()> {
        let body = protocol::encode(order)?;
        let sending = async {
            loop {
                match protocol::send_encoded(self.control.get_ref().as_fd(), &body, fds) {
                    // Room is not watched for: that would wake this process for each order that the init takes.
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => tokio::time::sleep(FULL).await,
                    other => return other,
                }
            }
        };
        tokio::time::timeout(ORDER_LIMIT, sending)
            .await
            .unwrap_or(Err(std::io::Error::from(std::io::ErrorKind::TimedOut)))
    }

    /// Orders an exec's end without waiting; `false` if that could not be sent.
    pub fn kill_now(&self, exec: u64) -> bool {
        let order = protocol::encode(&Order::Signal { exec, kill: true });
        order.is_ok_and(|body| protocol::send_encoded(self.control.get_ref().as_fd(), &body, &[]).is_ok())
    }

    /// Whether the init's own watch found a limit passed: memory, CPU time.
    pub fn passed(&self) -> (bool, bool) {
        (self.over_memory.load(Ordering::Acquire), self.over_cpu.load(Ordering::Acquire))
    }

    /// The most memory that the sandbox used at once, in bytes, where a control group counts it.
    pub fn peak_memory(&self) -> Option<u64> {
        Some(self.stats.as_ref()?.peak_memory()?.saturating_sub(self.group_base.2))
    }

    /// CPU microseconds that the sandbox has used, where a control group counts them.
    pub fn cpu_counted(&self) -> Option<u64> {
        self.stats.as_ref()?.cpu_micros()
    }

    /// Which exec's CPU time it was.
    pub fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks who used the CPU time that was counted. With an exec that has ended comes what was reaped of it.
    pub fn tell_apart(&self, ended: Option<(u64, u64)>) {
        let Some(stats) = &self.stats else { return };
        let mut used = marks::cpu_micros(&stats.processes(MAX_TOLD_APART));
        if let Some((exec, reaped)) = ended {
            // What was reaped is in no process that is left.
            let sum = used.entry(exec).or_default();
            *sum = sum.saturating_add(reaped);
        }
        if let Some(counted) = stats.cpu_micros() {
            self.shares().saw(counted, used);
        }
    }

    /// Whether an exec, or what one left behind, is in the sandbox.
    pub fn runs_something(&self) -> bool {
        // The init is a task, too.
        !self.slots().is_empty() || self.stats.as_ref().and_then(Stats::tasks).is_none_or(|tasks| tasks > 1)
    }

    /// Kills what runs because it holds more memory than its limit.
    pub async fn kill_for_memory(&self) {
        self.over_memory.store(true, Ordering::Release);
        let running: Vec<u64> = self.slots().keys().copied().collect();
        if running.is_empty() {
            self.kill_all();
        }
        for exec in running {
            if self.order(&Order::Signal { exec, kill: true }, &[]).await.is_err() {
                self.kill_all();
            }
        }
    }

    /// Whether the sandbox is closed or closing.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether its owner closed or dropped it.
    pub fn is_closed_by_owner(&self) -> bool {
        self.closed_by_owner.load(Ordering::Acquire)
    }

    /// Kills the init, and with it everything in the sandbox.
    pub fn kill_all(&self) {
        let _ = process::kill_by_pidfd(self.init.as_fd());
    }

    /// Starts the end, without waiting for it.
    pub fn shut(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.kill_all();
            // What comes from there is still listened to: that it is closed tells that nothing is left.
            let _ = rustix::net::shutdown(self.control.get_ref(), rustix::net::Shutdown::Write);
        }
    }

    /// The owner's wish to end it.
    pub fn end(&self) {
        if !self.is_closed() {
            self.closed_by_owner.store(true, Ordering::Release);
        }
        self.shut();
    }

    pub async fn close(&self) -> Result<()> {
        self.end();
        self.launcher.retire();
        let mut gone = self.gone.clone();
        match tokio::time::timeout(GONE_LIMIT, gone.wait_for(|gone| *gone)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Error::new(
                ErrorKind::Unavailable,
                "close",
                "the runtime in which the sandbox was made has ended; the sandbox is being removed without it",
            )),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "close", "the sandbox was not removed within 60 s")),
        }
    }

    /// The limits of the spec that it was accepted for.
    pub fn limits(&self) -> &Limits {
        self.limits.get_or_init(Limits::default)
    }

    /// Directory in which each exec's script gets a directory of its own.
    pub fn code(&self) -> &OwnedFd {
        &self.code
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}
