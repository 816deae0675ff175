//! The connection held still between two frames.
//!
//! ```text
//! open --hold--> draining: nothing new begins --nothing under way: Hold--> held --Held--> silent
//!   ^              '--too long: Conflict--v                                  |              |
//!   '-------------------------------------<---- refused, no answer: Release--<---release----'
//! ```
//!
//! What is sent meanwhile waits with the writer, behind the frame that ends it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use super::{Link, Outgoing, encode};
use crate::error;
use crate::slots::{Reply, Slot, Telling};
use crate::wire::Order;

const HOLD: &str = "snapshot";
const RELEASE: &str = "resume";
/// Time for what is under way to end.
const QUIET_LIMIT: Duration = Duration::from_secs(2);
/// Time between looks whether it has.
const LOOK: Duration = Duration::from_millis(2);
/// Time that the agent has to stop everything.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How far the holding has come.
pub enum State {
    Open,
    /// Nothing new begins.
    Draining,
    /// The agent was told, by a frame with this id; `wake` lets the writer go on.
    Held {
        asked: u64,
        wake: Option<oneshot::Sender<Vec<u8>>>,
        silent: bool,
    },
}

impl State {
    /// Whether the agent said its last word.
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Held { silent: true, .. })
    }

    /// Takes in that it did.
    pub fn fall_silent(&mut self, id: u64) -> Result<(), &'static str> {
        match self {
            Self::Held { asked, silent, .. } if *asked == id => {
                *silent = true;
                Ok(())
            }
            _ => Err("that it is held, which nobody asked for"),
        }
    }
}

/// The error for an operation on what is held.
pub fn is_held(operation: &'static str) -> Error {
    Error::new(ErrorKind::Conflict, operation, "the sandbox is held still while it is copied")
        .with_remedy("release it first")
}

fn is_busy() -> Error {
    Error::new(ErrorKind::Conflict, HOLD, "something is under way that does not end: a file is read or written, say")
        .with_remedy("end reading and writing files, and try again")
}

/// An operation of the owner's, until it is dropped.
pub struct Operation<'a>(&'a Link);

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.table().operations -= 1;
    }
}

impl Link {
    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        matches!(self.table().hold, State::Held { .. })
    }

    /// Begins an operation, which nothing is held during.
    pub fn operate(&self, operation: &'static str) -> Result<Operation<'_>> {
        let mut table = self.table();
        self.check(operation)?;
        if !matches!(table.hold, State::Open) {
            return Err(is_held(operation));
        }
        table.operations += 1;
        Ok(Operation(self))
    }

    /// Holds it. `is_known` says of a running exec whether all is known of it that there is to know. Gives the ids of
    /// execs that run, the highest id that was used, and when time stood still.
    pub async fn hold(&self, is_known: impl Fn(u64) -> bool) -> Result<(Vec<u64>, u64, Instant)> {
        {
            let mut table = self.table();
            self.check(HOLD)?;
            if !matches!(table.hold, State::Open) {
                return Err(is_held(HOLD));
            }
            table.hold = State::Draining;
        }
        let undoing = Undoing(Some(self));
        let by = Instant::now() + QUIET_LIMIT;
        let answer = loop {
            match self.tell_to_hold(&is_known)? {
                Some(answer) => break answer,
                None if Instant::now() >= by => return Err(is_busy()),
                None => tokio::time::sleep(LOOK).await,
            }
        };
        let limit = self.patience.min(STOP_LIMIT);
        let reply = tokio::time::timeout(limit, answer).await;
        match reply.map_err(|_| error::silent(HOLD))? {
            Ok(Reply::Held) => {}
            Ok(Reply::Done { errno, .. }) => {
                let source = std::io::Error::from_raw_os_error(errno);
                return Err(
                    Error::new(ErrorKind::Unavailable, HOLD, "what runs inside cannot be stopped").with_source(source)
                );
            }
            Ok(_) => return Err(Error::new(ErrorKind::Internal, HOLD, "the agent answered another question")),
            Err(_) => {
                let ending = self.closed().await;
                return Err(error::ended(HOLD, ending.as_ref()));
            }
        }
        let table = self.table();
        let running = table.slots.iter().filter(|(_, slot)| matches!(slot, Slot::Exec(_) | Slot::Adopted(_)));
        let running = running.map(|(id, _)| *id).collect();
        let since = self.paused.borrow().held.unwrap_or_else(Instant::now);
        undoing.keep();
        Ok((running, table.last, since))
    }

    /// Tells the agent to hold, if nothing is under way.
    fn tell_to_hold(&self, is_known: &impl Fn(u64) -> bool) -> Result<Option<oneshot::Receiver<Reply>>> {
        let mut table = self.table();
        self.check(HOLD)?;
        let quiet = table.slots.iter().all(|(id, slot)| match slot {
            Slot::Exec(exec) => exec.started.was_told() && is_known(*id),
            Slot::Adopted(_) => is_known(*id),
            Slot::Call(_) | Slot::Read { .. } | Slot::Write { .. } | Slot::List { .. } => false,
        });
        if table.operations > 0 || !quiet {
            return Ok(None);
        }
        let (call, answer) = Telling::new();
        table.last += 1;
        let asked = table.last;
        table.slots.insert(asked, Slot::Call(call));
        let (wake, then) = oneshot::channel();
        table.hold = State::Held { asked, wake: Some(wake), silent: false };
        self.paused.send_modify(|pause| pause.held = Some(Instant::now()));
        let _ = self.out.send(Outgoing { then: Some(then), ..Outgoing::new(encode(asked, &Order::Hold)) });
        Ok(Some(answer))
    }

    /// Tells the agent to go on, and the writer after that; `None` where nothing is held.
    fn tell_to_release(&self) -> Option<oneshot::Receiver<Reply>> {
        let mut table = self.table();
        let State::Held { asked, wake, silent } = &mut table.hold else { return None };
        let (asked, wake) = (*asked, wake.take()?);
        *silent = false;
        // Where the answer did not come, nobody waits for it any more.
        table.slots.remove(&asked);
        let (call, answer) = Telling::new();
        table.last += 1;
        let id = table.last;
        table.slots.insert(id, Slot::Call(call));
        let _ = wake.send(encode(id, &Order::Release));
        Some(answer)
    }

    /// Time goes on, and operations are taken.
    fn open_up(&self) {
        self.table().hold = State::Open;
        self.paused.send_modify(|pause| pause.held = None);
    }

    /// Lets the agent go on. Where it does not, the connection ends.
    pub async fn release(self: &Arc<Self>) -> Result<()> {
        self.check(RELEASE)?;
        if !self.table().hold.is_silent() {
            return Err(Error::new(ErrorKind::Conflict, RELEASE, "the sandbox is not held"));
        }
        let undoing = Undoing(Some(self));
        let answer = self.tell_to_release().ok_or_else(|| is_held(RELEASE))?;
        let released = self.wait(RELEASE, answer).await;
        drop(undoing);
        match released? {
            Reply::Done { errno: 0, .. } => Ok(()),
            Reply::Done { errno, .. } => {
                self.close();
                let source = std::io::Error::from_raw_os_error(errno);
                Err(Error::new(ErrorKind::Unavailable, RELEASE, "what runs inside could not be let go on")
                    .with_remedy("make another sandbox")
                    .with_source(source))
            }
            _ => Err(Error::new(ErrorKind::Internal, RELEASE, "the agent answered another question")),
        }
    }
}

/// Undoes a holding when whoever asked for it goes away, or it fails.
struct Undoing<'a>(Option<&'a Link>);

impl Undoing<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Undoing<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            // Nobody waits for the answer.
            let _ = link.tell_to_release();
            link.open_up();
        }
    }
}
