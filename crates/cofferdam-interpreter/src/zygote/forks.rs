//! The forks of one zygote that run, as the host sees them: each is an exec with a handle of its own.
//!
//! ```text
//! open --(Ended)--> exit told
//!   |  cancel, kill: ordered, and the whole zygote ended if nothing comes of it
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{
    ByteSize, Error, ExecControl, ExecDriver, ExecHandle, ExecId, ExecRequest, Exit, LimitKind, Result, Sandbox,
    StdinWriter, TerminalSize, Usage,
};
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, mpsc};

use super::config::ZygoteConfig;
use super::window::{Room, WINDOW};
use super::wire::{Ended, INPUT_PIECE, Order, Report};
use crate::error::ZygoteError;
use crate::line::Line;

/// Time in which a fork that is killed ends, before the whole zygote is ended. The guard inside gives up earlier.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Room for the answer, besides the request's output.
const ANSWER_ROOM: u64 = 4096;
const SIGXCPU: i32 = 24;

/// All forks of one zygote, and what they have in common.
pub struct Forks {
    pub sandbox: Arc<dyn Sandbox>,
    pub config: ZygoteConfig,
    /// When the zygote's exec ends, whatever runs.
    pub expires: Instant,
    retires: Instant,
    orders: mpsc::UnboundedSender<Bytes>,
    runtime: Handle,
    state: Mutex<State>,
    /// Tells the reader that something besides output is to be looked at.
    pub changed: Notify,
}

struct State {
    running: HashMap<u32, Fork>,
    next: u32,
    /// Why there will be no more.
    over: Option<Error>,
    released: bool,
}

/// One that runs.
struct Fork {
    driver: ExecDriver,
    room: Room,
    input: Arc<Semaphore>,
    input_task: tokio::task::AbortHandle,
    cancelled: bool,
    ended_by: Option<Instant>,
}

impl Forks {
    /// Must be called in a runtime.
    pub fn new(
        sandbox: Arc<dyn Sandbox>,
        config: ZygoteConfig,
        born: Instant,
        orders: mpsc::UnboundedSender<Bytes>,
    ) -> Self {
        let (expires, retires) = (born + config.interpreter.lifetime, born + config.max_age);
        let state = Mutex::new(State { running: HashMap::new(), next: 0, over: None, released: false });
        let (runtime, changed) = (Handle::current(), Notify::new());
        Self { sandbox, config, expires, retires, orders, runtime, state, changed }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Changed by whole steps, so that a panic elsewhere leaves it consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, fork: u32, order: &Order) {
        // Whoever does not take orders any more has ended, which the reader sees.
        let _ = self.orders.send(order.encode(fork));
    }

    pub fn is_open(&self) -> bool {
        let state = self.lock();
        state.over.is_none() && !self.retired(&state)
    }

    pub fn running(&self) -> usize {
        self.lock().running.len()
    }

    fn retired(&self, state: &State) -> bool {
        state.next >= self.config.max_forks || Instant::now() >= self.retires
    }

    /// Takes the next fork that is ready.
    pub fn open(self: &Arc<Self>) -> Result<Line> {
        let mut state = self.lock();
        if let Some(error) = &state.over {
            return Err(error.clone());
        }
        if self.retired(&state) {
            return Err(ZygoteError::Retired.into());
        }
        if state.running.len() >= self.config.most_running as usize {
            return Err(ZygoteError::Busy { most: self.config.most_running }.into());
        }
        let name = state.next;
        let room = ByteSize::from_bytes(self.config.interpreter.most_output.as_bytes() + ANSWER_ROOM);
        let request = ExecRequest::argv(["fork"]).max_output(room).output_buffer(room).build()?;
        let (writer, reader) = tokio::io::duplex(INPUT_PIECE);
        let control = Arc::new(Control { forks: Arc::downgrade(self), name });
        let (inner, driver) =
            ExecHandle::new(ExecId(u64::from(name)), &request, Some(StdinWriter::new(writer)), control);
        let output = inner.output();
        let stdin = inner.stdin().ok_or(ZygoteError::Closed)?;
        self.order(name, &Order::Open);
        let input = Arc::new(Semaphore::new(WINDOW as usize));
        let task = feed(self.orders.clone(), name, reader, Arc::clone(&input));
        let input_task = self.runtime.spawn(task).abort_handle();
        let room = Room::default();
        state.next += 1;
        state.running.insert(name, Fork { driver, room, input, input_task, cancelled: false, ended_by: None });
        Ok(Line { inner, stdin, output, warm_cpu: 0.0, before: 0 })
    }

    /// Takes in what came from inside. What does not fit to what is known is the end of the zygote.
    pub fn take_in(&self, name: u32, report: Report) -> Result<(), ZygoteError> {
        let mut state = self.lock();
        if let Report::Failed(reason) = report {
            return Err(ZygoteError::Failed { reason });
        }
        let fork = state.running.get_mut(&name).ok_or(ZygoteError::Nonsense)?;
        match report {
            Report::Output(stream, data) => {
                let opened = fork.room.read(data.len()).map_err(|_| ZygoteError::Nonsense)?;
                fork.driver.publisher().publish(stream, data);
                if let Some(bytes) = opened {
                    self.order(name, &Order::Room(bytes));
                }
            }
            Report::Taken(bytes) => {
                let bytes = bytes as usize;
                if fork.input.available_permits().saturating_add(bytes) > WINDOW as usize {
                    return Err(ZygoteError::Nonsense);
                }
                fork.input.add_permits(bytes);
            }
            Report::InputClosed => fork.input_task.abort(),
            Report::Ended(ended) => {
                if let Some(fork) = state.running.remove(&name) {
                    fork.input_task.abort();
                    fork.driver.finish(Ok(exit(ended, fork.cancelled)));
                }
            }
            Report::Failed(_) => {}
        }
        Ok(())
    }

    /// Whether nobody needs the zygote any more.
    pub fn is_done(&self) -> bool {
        let state = self.lock();
        state.over.is_some() || (state.released && state.running.is_empty())
    }

    /// When the first fork that was killed has to have ended.
    pub fn ended_by(&self) -> Option<Instant> {
        self.lock().running.values().filter_map(|fork| fork.ended_by).min()
    }

    /// Tells everybody that this is the end.
    pub fn end(&self, error: Error) {
        let running = {
            let mut state = self.lock();
            state.over.get_or_insert(error.clone());
            std::mem::take(&mut state.running)
        };
        for fork in running.into_values() {
            fork.input_task.abort();
            fork.driver.finish(Err(error.clone()));
        }
        self.changed.notify_one();
    }

    /// Nobody will start any more.
    pub fn release(&self) {
        self.lock().released = true;
        self.changed.notify_one();
    }

    fn cancel(self: Arc<Self>, name: u32, grace: Duration) {
        match self.lock().running.get_mut(&name) {
            Some(fork) if !fork.cancelled => fork.cancelled = true,
            _ => return,
        }
        self.order(name, &Order::Terminate);
        let forks = Arc::clone(&self);
        self.runtime.spawn(async move {
            tokio::time::sleep(grace).await;
            forks.kill(name);
        });
    }

    fn kill(&self, name: u32) {
        match self.lock().running.get_mut(&name) {
            Some(fork) if fork.ended_by.is_none() => {
                fork.cancelled = true;
                fork.ended_by = Some(Instant::now() + KILL_PATIENCE);
            }
            _ => return,
        }
        self.order(name, &Order::Kill);
        self.changed.notify_one();
    }
}

impl std::fmt::Debug for Forks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forks").field("sandbox", self.sandbox.id()).field("running", &self.running()).finish()
    }
}

/// Passes on what the handle's owner asks of one fork.
struct Control {
    forks: Weak<Forks>,
    name: u32,
}

impl ExecControl for Control {
    fn cancel(&self, grace: Duration) {
        if let Some(forks) = self.forks.upgrade() {
            forks.cancel(self.name, grace);
        }
    }

    fn kill(&self) {
        if let Some(forks) = self.forks.upgrade() {
            forks.kill(self.name);
        }
    }

    fn resize(&self, _size: TerminalSize) -> Result<()> {
        Err(Error::unsupported("resize", "the exec has no terminal"))
    }
}

/// Carries a fork's input as far as its window is open. What is not read by the fork waits here, and nobody else with it.
async fn feed(orders: mpsc::UnboundedSender<Bytes>, name: u32, mut reader: DuplexStream, window: Arc<Semaphore>) {
    let mut piece = vec![0; INPUT_PIECE];
    loop {
        let count = reader.read(&mut piece).await.unwrap_or(0);
        if count == 0 {
            let _ = orders.send(Order::InputEnd.encode(name));
            return;
        }
        let Ok(permits) = window.acquire_many(count as u32).await else { return };
        permits.forget();
        if orders.send(Order::Input(Bytes::copy_from_slice(&piece[..count])).encode(name)).is_err() {
            return;
        }
    }
}

/// A fork's end in the contract's words. What belongs to the whole sandbox is not known for one fork, and left out.
fn exit(ended: Ended, cancelled: bool) -> Exit {
    let status = ended.status as i32;
    let (code, signal) = if status & 0x7f == 0 { ((status >> 8) & 0xff, None) } else { (-1, Some(status & 0x7f)) };
    let over_cpu = (ended.over_cpu && signal.is_some()) || signal == Some(SIGXCPU);
    let killed_by = (!cancelled && over_cpu).then_some(LimitKind::Cpu);
    Exit {
        code,
        signal,
        timed_out: false,
        cancelled,
        truncated: false,
        killed_by,
        limits_hit: killed_by.into_iter().collect(),
        duration: Duration::ZERO,
        usage: Usage {
            cpu_seconds: ended.cpu_micros as f64 / 1e6,
            peak_memory_bytes: ended.peak_kib.checked_mul(1024),
            output_bytes: 0,
        },
    }
}
