//! The state that a sandbox, its execs and the task that receives its init's events share.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use cofferdam_contract::supervise::Ended;
use cofferdam_contract::{Error, ErrorKind, Limits, Result};
use cofferdam_linux::cgroup::Stats;
use cofferdam_linux::named::Directory;
use cofferdam_linux::{message, process};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, Semaphore, oneshot, watch as flag};

use crate::client::{self, Launcher};
use crate::image::Surroundings;
use crate::network::Gateway;
use crate::protocol::{self, Event, HostFacts, NotStarted, Request};

/// Time for the kernel and the launcher to remove a sandbox.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between attempts to send to a full socket. The socket holds many requests, and an init receives them at
/// once.
const SEND_INTERVAL: Duration = Duration::from_millis(2);
/// Time for an init to receive a request.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason and errno of a failed start.
pub type StartFailure = (NotStarted, i32);
/// The result of a start: the terminal's controlling end, if the exec has a terminal.
pub type StartOutcome = std::result::Result<Option<OwnedFd>, StartFailure>;

/// A new exec, and channels that report its start and its end.
pub struct Enrolled {
    pub exec: u64,
    pub on_start: oneshot::Receiver<StartOutcome>,
    pub on_end: oneshot::Receiver<Ended>,
}

/// The channels that wait for an init's events on one exec.
pub struct Slot {
    started: Option<oneshot::Sender<StartOutcome>>,
    ended: Option<oneshot::Sender<Ended>>,
}

/// The layers of a copy-on-write workspace.
pub struct Layer {
    /// The host directory.
    pub base: Directory,
    /// The directory that takes the changes.
    pub upper: OwnedFd,
}

/// The state that the sandbox, its execs and the task that receives events share.
pub struct Core {
    pub control: AsyncFd<OwnedFd>,
    /// True once nothing remains of the sandbox, set by the task that receives events.
    pub gone: flag::Receiver<bool>,
    pub init: OwnedFd,
    pub workspace: OwnedFd,
    pub code: OwnedFd,
    /// The layers of a copy-on-write workspace.
    pub layer: Option<Layer>,
    /// The time of the request.
    pub requested: SystemTime,
    /// User and group of files that the file API creates. `None` leaves them unchanged.
    pub owner: Option<(u32, u32)>,
    pub stats: Option<Stats>,
    /// The control group's counters before this sandbox: kills for memory, refused forks, used bytes.
    pub group_base: (u64, u64, u64),
    /// The limits of the accepted spec. No program starts before that.
    pub limits: OnceLock<Limits>,
    /// The surroundings of every exec, with the variables that the network policy adds.
    pub surroundings: Surroundings,
    /// Facts about the host that the launcher found.
    pub facts: HostFacts,
    pub slots: Mutex<HashMap<u64, Slot>>,
    pub next_exec: AtomicU64,
    /// Notified when an exec is requested.
    pub starts: Notify,
    pub closed: AtomicBool,
    /// The network besides the sandbox's own loopback.
    pub gateway: Option<Gateway>,
    /// The ports that the gateway serves on every address of the sandbox.
    pub policy_ports: Vec<u16>,
    /// The sandbox's number in the launcher.
    pub serial: u64,
    /// Permits for connections from the owner to servers in the sandbox.
    pub connections: Arc<Semaphore>,
    /// Permits for watches of the workspace.
    pub watches: Arc<Semaphore>,
    /// True if the owner closed the sandbox, false if it ended by itself.
    pub closed_by_owner: AtomicBool,
    pub over_memory: AtomicBool,
    pub over_cpu: AtomicBool,
    /// The number of processes that the init refused, as of the last exec that ended.
    pub processes_refused: AtomicU64,
    // The last field: the launcher may only be waited for once no field above needs it.
    pub launcher: Arc<Launcher>,
}

/// Forwards the init's events until nothing remains of the sandbox. An init is not trusted: it can complete each exec
/// once, and nothing else.
pub async fn receive_events(core: Arc<Core>, gone: flag::Sender<bool>) {
    loop {
        match client::receive::<Event>(&core.control).await {
            Ok(Some((event, fds))) => {
                if !core.handle(event, fds) {
                    core.shut();
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => core.shut(),
            // The launcher keeps the other end open until everything is removed, even if the init left unread messages.
            Ok(None) | Err(_) => break,
        }
    }
    core.shut();
    core.slots().clear();
    gone.send_replace(true);
}

impl Core {
    fn slots(&self) -> MutexGuard<'_, HashMap<u64, Slot>> {
        self.slots.lock()
    }

    /// Registers a new exec. Returns its number and channels that report its start and its end.
    pub fn enroll(&self) -> Enrolled {
        let exec = self.next_exec.fetch_add(1, Ordering::Relaxed) + 1;
        let (started, on_start) = oneshot::channel();
        let (ended, on_end) = oneshot::channel();
        self.slots().insert(exec, Slot { started: Some(started), ended: Some(ended) });
        self.starts.notify_one();
        Enrolled { exec, on_start, on_end }
    }

    /// Registers an exec whose start succeeded or failed by the time that its sandbox was ready.
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

    /// Processes an event. Returns false if a correct init does not send it in this state.
    fn handle(&self, event: Event, mut fds: Vec<OwnedFd>) -> bool {
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
            Event::Sockets | Event::Ready { .. } | Event::Failed(_) => return false,
        }
        true
    }

    /// Sends a request to the init. A small one practically never waits.
    pub async fn request(&self, request: &Request, fds: &[std::os::fd::BorrowedFd<'_>]) -> std::io::Result<()> {
        let body = protocol::encode(request)?;
        let begun = Instant::now();
        loop {
            match protocol::send_encoded(self.control.get_ref().as_fd(), &body, fds) {
                // Do not poll for writability: that would wake this process for each request that the init receives.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock || message::is_crowded(&error) => {
                    if begun.elapsed() > SEND_TIMEOUT {
                        return Err(error);
                    }
                    tokio::time::sleep(SEND_INTERVAL).await;
                }
                other => return other,
            }
        }
    }

    /// Requests the kill of an exec without waiting. Returns false if the request could not be sent.
    pub fn kill_now(&self, exec: u64) -> bool {
        let request = protocol::encode(&Request::Signal { exec, kill: true });
        request.is_ok_and(|body| protocol::send_encoded(self.control.get_ref().as_fd(), &body, &[]).is_ok())
    }

    /// Returns whether the init found that the memory limit and the CPU time limit were exceeded.
    pub fn passed(&self) -> (bool, bool) {
        (self.over_memory.load(Ordering::Acquire), self.over_cpu.load(Ordering::Acquire))
    }

    /// Returns the peak memory of the sandbox in bytes, if a control group counts it.
    pub fn peak_memory(&self) -> Option<u64> {
        Some(self.stats.as_ref()?.peak_memory()?.saturating_sub(self.group_base.2))
    }

    /// Returns the CPU time of the sandbox in microseconds, if a control group counts it.
    pub fn cpu_counted(&self) -> Option<u64> {
        self.stats.as_ref()?.cpu_micros()
    }

    /// Returns the CPU time of the sandbox in microseconds: counted by a control group, else added up.
    pub fn cpu_used(&self) -> Option<u64> {
        self.cpu_counted().or_else(|| process::tree_cpu_micros(self.init.as_fd()))
    }

    /// Returns true if the sandbox contains an exec, or processes that an exec left.
    pub fn is_busy(&self) -> bool {
        // The init is a task as well.
        !self.slots().is_empty() || self.stats.as_ref().and_then(Stats::tasks).is_none_or(|tasks| tasks > 1)
    }

    /// Kills all execs because the sandbox uses more memory than its limit.
    pub async fn kill_for_memory(&self) {
        self.over_memory.store(true, Ordering::Release);
        let running: Vec<u64> = self.slots().keys().copied().collect();
        if running.is_empty() {
            self.kill_all();
        }
        for exec in running {
            if self.request(&Request::Signal { exec, kill: true }, &[]).await.is_err() {
                self.kill_all();
            }
        }
    }

    /// Returns true if the sandbox is closed or closing.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns true if the owner closed or dropped the sandbox.
    pub fn is_closed_by_owner(&self) -> bool {
        self.closed_by_owner.load(Ordering::Acquire)
    }

    /// Kills the init, and with it everything in the sandbox.
    pub fn kill_all(&self) {
        let _ = process::kill_by_pidfd(self.init.as_fd());
    }

    /// Begins to end the sandbox, without waiting.
    pub fn shut(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.kill_all();
            if let Some(gateway) = &self.gateway {
                gateway.shut();
            }
            // Events are still received: once the socket is closed, nothing remains.
            let _ = rustix::net::shutdown(self.control.get_ref(), rustix::net::Shutdown::Write);
        }
    }

    /// Ends the sandbox on behalf of its owner.
    pub fn end(&self) {
        if !self.is_closed() {
            self.closed_by_owner.store(true, Ordering::Release);
        }
        self.shut();
    }

    pub async fn close(&self) -> Result<()> {
        self.end();
        self.launcher.retire();
        if let Some(gateway) = &self.gateway {
            // The rest ends with the last reference to the gateway.
            let _ = tokio::time::timeout(REMOVE_TIMEOUT, gateway.close()).await;
        }
        let mut gone = self.gone.clone();
        match tokio::time::timeout(REMOVE_TIMEOUT, gone.wait_for(|gone| *gone)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Error::new(
                ErrorKind::Unavailable,
                "close",
                "the runtime that created the sandbox has ended; the launcher removes the sandbox without it",
            )),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "close", "the sandbox was not removed within 60 s")),
        }
    }

    /// Returns the limits of the accepted spec.
    pub fn limits(&self) -> &Limits {
        self.limits.get_or_init(Limits::default)
    }

    /// Returns the directory that contains a directory for each exec's script.
    pub fn code(&self) -> &OwnedFd {
        &self.code
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}
