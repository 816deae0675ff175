//! Quiescing of the connection between two frames.
//!
//! ```text
//! open --quiesce--> draining: no new requests --none pending: Quiesce--> quiesced --Quiesced--> silent
//!   ^                 '--too long: Conflict--v                               |                    |
//!   '----------------------------------------<-- refused, no answer: Release-<------release-------'
//! ```
//!
//! Frames sent meanwhile wait in the writer's queue, behind the frame that resumes the guest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{Error, ErrorKind, Result};
use tokio::sync::oneshot;

use super::{Link, Outgoing, encode};
use crate::error;
use crate::slots::{Notifier, Reply, Slot};
use crate::wire::Request;

const SNAPSHOT: &str = "snapshot";
const RELEASE: &str = "resume";
/// Time limit for pending requests to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between checks for pending requests.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Time limit for the agent to stop all programs.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// The progress of quiescing.
pub enum State {
    Open,
    /// No new operation begins.
    Draining,
    /// The agent was asked by a frame with this id; `wake` resumes the writer.
    Quiesced {
        request: u64,
        wake: Option<oneshot::Sender<Vec<u8>>>,
        silent: bool,
    },
}

impl State {
    /// Returns true if the agent sent its last frame.
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Quiesced { silent: true, .. })
    }

    /// Records the agent's last frame.
    pub fn set_silent(&mut self, id: u64) -> Result<(), &'static str> {
        match self {
            Self::Quiesced { request, silent, .. } if *request == id => {
                *silent = true;
                Ok(())
            }
            _ => Err("that it is quiesced without a request"),
        }
    }
}

/// Creates the error for an operation on a quiesced guest.
pub fn quiesced(operation: &'static str) -> Error {
    Error::new(ErrorKind::Conflict, operation, "the sandbox is quiesced while it is copied")
        .with_remedy("wait until the copy is complete")
}

fn is_busy() -> Error {
    Error::new(ErrorKind::Conflict, SNAPSHOT, "an operation does not end: a file may be being read or written")
        .with_remedy("finish reading and writing files, then try again")
}

/// An operation of the owner, until the value is dropped.
pub struct Operation<'a>(&'a Link);

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.table().operations -= 1;
    }
}

impl Link {
    /// Returns true if the guest is quiesced.
    pub fn is_quiesced(&self) -> bool {
        matches!(self.table().quiescing, State::Quiesced { .. })
    }

    /// Begins an operation. The guest cannot be quiesced until it ends.
    pub fn operate(&self, operation: &'static str) -> Result<Operation<'_>> {
        let mut table = self.table();
        self.check(operation)?;
        if !matches!(table.quiescing, State::Open) {
            return Err(quiesced(operation));
        }
        table.operations += 1;
        Ok(Operation(self))
    }

    /// Quiesces the guest. `is_known` returns true for an exec whose record is complete. Returns the ids of the running
    /// execs, the highest id in use so far, and the instant at which time stopped.
    pub async fn quiesce(&self, is_known: impl Fn(u64) -> bool) -> Result<(Vec<u64>, u64, Instant)> {
        {
            let mut table = self.table();
            self.check(SNAPSHOT)?;
            if !matches!(table.quiescing, State::Open) {
                return Err(quiesced(SNAPSHOT));
            }
            table.quiescing = State::Draining;
        }
        let rollback = Rollback(Some(self));
        let by = Instant::now() + DRAIN_TIMEOUT;
        let answer = loop {
            match self.ask_to_quiesce(&is_known)? {
                Some(answer) => break answer,
                None if Instant::now() >= by => return Err(is_busy()),
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        };
        let limit = self.answer_timeout.min(STOP_TIMEOUT);
        let reply = tokio::time::timeout(limit, answer).await;
        match reply.map_err(|_| error::silent(SNAPSHOT))? {
            Ok(Reply::Quiesced) => {}
            Ok(Reply::Done { errno, .. }) => {
                let source = std::io::Error::from_raw_os_error(errno);
                return Err(Error::new(ErrorKind::Unavailable, SNAPSHOT, "cannot stop the programs in the sandbox")
                    .with_source(source));
            }
            Ok(_) => return Err(Error::new(ErrorKind::Internal, SNAPSHOT, "the agent sent an unexpected answer")),
            Err(_) => {
                let termination = self.closed().await;
                return Err(error::ended(SNAPSHOT, termination.as_ref()));
            }
        }
        let table = self.table();
        let running = table.slots.iter().filter(|(_, slot)| matches!(slot, Slot::Exec(_) | Slot::Reattached(_)));
        let running = running.map(|(id, _)| *id).collect();
        let since = self.paused.borrow().quiesced.unwrap_or_else(Instant::now);
        rollback.disarm();
        Ok((running, table.last, since))
    }

    /// Asks the agent to quiesce the guest, if no request is pending.
    fn ask_to_quiesce(&self, is_known: &impl Fn(u64) -> bool) -> Result<Option<oneshot::Receiver<Reply>>> {
        let mut table = self.table();
        self.check(SNAPSHOT)?;
        let quiet = table.slots.iter().all(|(id, slot)| match slot {
            Slot::Exec(exec) => exec.started.is_notified() && is_known(*id),
            Slot::Reattached(_) => is_known(*id),
            // Their bytes wait. Another host does not get them.
            Slot::Connection(_) | Slot::Listener(_) | Slot::Watch { .. } => true,
            Slot::Call(_) | Slot::Read { .. } | Slot::Write { .. } | Slot::List { .. } | Slot::Mark { .. } => false,
        });
        if table.operations > 0 || !quiet {
            return Ok(None);
        }
        let (call, answer) = Notifier::new();
        table.last += 1;
        let request = table.last;
        table.slots.insert(request, Slot::Call(call));
        let (wake, then) = oneshot::channel();
        table.quiescing = State::Quiesced { request, wake: Some(wake), silent: false };
        self.paused.send_modify(|pause| pause.quiesced = Some(Instant::now()));
        let _ = self.out.send(Outgoing { then: Some(then), ..Outgoing::new(encode(request, &Request::Quiesce)) });
        Ok(Some(answer))
    }

    /// Asks the agent to resume, and the writer after that. Returns `None` if the guest is not quiesced.
    fn ask_to_release(&self) -> Option<oneshot::Receiver<Reply>> {
        let mut table = self.table();
        let State::Quiesced { request, wake, silent } = &mut table.quiescing else { return None };
        let (request, wake) = (*request, wake.take()?);
        *silent = false;
        // If the answer did not arrive, its receiver is gone.
        table.slots.remove(&request);
        let (call, answer) = Notifier::new();
        table.last += 1;
        let id = table.last;
        table.slots.insert(id, Slot::Call(call));
        let _ = wake.send(encode(id, &Request::Release));
        Some(answer)
    }

    /// Resumes time and accepts operations.
    fn reopen(&self) {
        self.table().quiescing = State::Open;
        self.paused.send_modify(|pause| pause.quiesced = None);
    }

    /// Resumes the agent. Ends the connection if the agent fails to resume.
    pub async fn release(self: &Arc<Self>) -> Result<()> {
        self.check(RELEASE)?;
        if !self.table().quiescing.is_silent() {
            return Err(Error::new(ErrorKind::Conflict, RELEASE, "the sandbox is not quiesced"));
        }
        let rollback = Rollback(Some(self));
        let answer = self.ask_to_release().ok_or_else(|| quiesced(RELEASE))?;
        let released = self.wait(RELEASE, answer).await;
        drop(rollback);
        match released? {
            Reply::Done { errno: 0, .. } => Ok(()),
            Reply::Done { errno, .. } => {
                self.close();
                let source = std::io::Error::from_raw_os_error(errno);
                Err(Error::new(ErrorKind::Unavailable, RELEASE, "cannot resume the programs in the sandbox")
                    .with_remedy("create another sandbox")
                    .with_source(source))
            }
            _ => Err(Error::new(ErrorKind::Internal, RELEASE, "the agent sent an unexpected answer")),
        }
    }
}

/// A guard that undoes quiescing if the caller drops the future, or if it fails.
struct Rollback<'a>(Option<&'a Link>);

impl Rollback<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Rollback<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            // The answer has no receiver.
            let _ = link.ask_to_release();
            link.reopen();
        }
    }
}
