//! Holding a guest still, so that what it is in can be copied, and taking a copy over.
//!
//! ```text
//! open --hold: nothing under way, all programs stopped, the agent's last frame--> held --release--> open
//!                                                                                  '--copied, elsewhere: adopt--> open
//! ```

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Instant, UNIX_EPOCH};

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, ExecHandle, ExecId, Result};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::evidence::Evidence;
use crate::guest::{Guest, Inner, Owner};
use crate::link::Link;
use crate::record::{Record, RunningExec};
use crate::renewal::Renewal;
use crate::settings::Settings;
use crate::slots::Reply;
use crate::wire::{MAX_EXECS, Order, Renew, VERSION};
use crate::{exec, probes};

const ADOPT: &str = "restore";
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
const EBUSY: i32 = 16;

/// That a guest is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    record: Record,
}

impl Held {
    /// What whoever takes a copy over needs.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The same.
    #[must_use]
    pub fn into_record(self) -> Record {
        self.record
    }
}

impl Guest {
    /// Stops all programs inside, and the connection between two frames: nothing of the host's is half written, and the
    /// agent says nothing until [`Self::release`]. What the guest is in can then be copied.
    ///
    /// # Behavior
    /// - While it is held, operations are refused with `Conflict`, nobody minds that the agent is silent, and no time
    ///   counts against the limits of execs. What is written to a program, or wished of it, waits.
    /// - Fails with `Conflict` while a file is read or written, or another operation does not end soon; and where the
    ///   guest is held, paused or frozen already. Whatever it fails with, the guest goes on if it is alive.
    pub async fn hold(&self) -> Result<Held> {
        self.inner.ready("snapshot")?;
        if self.inner.frozen.load(Ordering::Acquire) {
            return Err(exec::paused("snapshot"));
        }
        if self.inner.ledger.is_shared() {
            // Whoever takes a copy over gets to know only what is charged to each.
            self.inner.tell_apart(None).await;
        }
        let running = &self.inner.running;
        let (ids, last, since) = self.inner.link.hold(|id| running.is_known(id)).await?;
        let execs = running.record(&ids, since).into_iter().map(|exec| {
            let cpu_base = self.inner.ledger.base(exec.id).or(exec.cpu_base);
            RunningExec { cpu_base, ..exec }
        });
        Ok(Held { record: Record::new(last, execs.collect()) })
    }

    /// Whether it is held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.inner.link.is_held()
    }

    /// Lets a held guest go on, on this connection.
    ///
    /// # Behavior
    /// - No byte of any program's input or output is lost.
    /// - Fails with `Conflict` where the guest is not held.
    pub async fn release(&self) -> Result<()> {
        self.inner.link.release().await
    }

    /// Takes over a copy of a held guest, by streams on which nobody has said anything since; as [`Self::connect`].
    ///
    /// # Behavior
    /// - Before any program goes on, the machine gets a clock that is right, random numbers of its own, and another id,
    ///   boot id and name; what the former host gave is forgotten; and everything is measured again. Where `known` is what
    ///   was measured in the guest that this is a copy of, by this program and under the same settings, only what a copy can
    ///   differ in is: what its kernel calls itself. What the agent is confined by is asked for as well.
    /// - Execs of the record resume, with a handle by [`Self::attach`]: their input is at its end, of their output the
    ///   newest is kept, and their limits hold, the time before they were held included. Those of the settings hold as well: nothing goes on for
    ///   longer than their wall time from now, or with more CPU time in all than theirs.
    /// - Fails with `Unsupported` where nobody inside may renew a machine, as in a container, and for an agent of
    ///   another version; with `InvalidInput` for a record that is not this copy's.
    /// - When it fails, no program went on, and the connection is closed, which ends the agent.
    pub async fn adopt(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        settings: Settings,
        (record, known): (Record, Option<&Evidence>),
        renewal: Renewal,
        deadline: Instant,
    ) -> Result<(Self, Evidence)> {
        let begun = Instant::now();
        renewal.check()?;
        if record.version() != VERSION {
            let what = format!("its agent speaks version {} of the protocol, this program {VERSION}", record.version());
            return Err(Error::unsupported(ADOPT, what).with_remedy("restore it with the release that held it"));
        }
        let Settings { patience, reason, .. } = settings;
        let settings = Settings { reason: None, ..settings };
        let mut slots = HashMap::new();
        let mut ends = Vec::new();
        for exec in record.execs() {
            let (slot, adopted) = exec::adopt(exec)?;
            slots.insert(exec.id, slot);
            ends.push(adopted);
        }
        let link = Link::begin(reader, writer, patience, reason, (record.last(), slots));
        let owner = Arc::new(Owner(Arc::clone(&link)));
        let mut stage = "renewing";
        let taking_over = async {
            renew(&link, &settings, &record, &renewal, begun).await?;
            stage = "measuring";
            let evidence = match known {
                Some(known) => probes::differences(&link, known).await?,
                None => probes::again(&link, &settings).await?,
            };
            let first = first_count(&link, &record).await?;
            stage = "releasing";
            match link.call(ADOPT, &Order::Release).await? {
                Reply::Done { errno: 0, .. } => Ok((evidence, first)),
                Reply::Done { errno, .. } => Err(failed("what runs inside could not be let go on", errno)),
                _ => Err(odd()),
            }
        };
        let evidence = match tokio::time::timeout_at(deadline.into(), taking_over).await {
            Ok(taken) => taken,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, ADOPT, "the agent was not ready in time")
                .with_remedy("the host may be overloaded; try again")),
        };
        let (evidence, first) = evidence.map_err(|error| error.with_context("stage", stage))?;
        let limits = settings.limits.clone();
        let inner = Arc::new(Inner::new(link, settings, &evidence));
        inner.ledger.resume(first, record.execs());
        let handles = record.execs().iter().zip(ends).map(|(exec, adopted)| {
            let handle = exec::keep_limits(&inner, exec, &limits, first, adopted);
            (handle.id(), handle)
        });
        inner.adopted.lock().unwrap_or_else(PoisonError::into_inner).extend(handles);
        Ok((Self { inner, _owner: owner }, evidence))
    }

    /// Takes the handle of an exec of the former host; `None` where there is none, or it was taken. Its output since the
    /// restore is there, as far as it is kept.
    #[must_use]
    pub fn attach(&self, exec: ExecId) -> Option<ExecHandle> {
        self.inner.adopted.lock().unwrap_or_else(PoisonError::into_inner).remove(&exec)
    }

    /// Execs of the former host that still run.
    #[must_use]
    pub fn adopted(&self) -> Vec<ExecId> {
        self.inner.running.adopted()
    }
}

fn odd() -> Error {
    Error::new(ErrorKind::Internal, ADOPT, "the agent answered another question")
}

fn failed(what: &'static str, errno: i32) -> Error {
    Error::new(ErrorKind::Unavailable, ADOPT, what)
        .with_remedy("restore it once more; its record may be of another version")
        .with_source(io::Error::from_raw_os_error(errno))
}

/// Has the machine become another one, whose agent and record agree. `begun` is when the renewal was true.
async fn renew(
    link: &Arc<Link>,
    settings: &Settings,
    record: &Record,
    renewal: &Renewal,
    begun: Instant,
) -> Result<()> {
    let now = renewal.now.duration_since(UNIX_EPOCH).unwrap_or_default() + begun.elapsed();
    let renew = Renew {
        silence: settings.silence.as_micros() as u64,
        now: (now.as_secs(), now.subsec_nanos()),
        entropy: &renewal.entropy,
        machine_id: &renewal.machine_id,
        boot_id: &renewal.boot_id,
        hostname: renewal.hostname.as_bytes(),
    };
    match link.call(ADOPT, &Order::Renew(renew)).await? {
        Reply::Renewed { version: VERSION, execs } if ids(&execs) == Some(known(record)) => Ok(()),
        Reply::Renewed { .. } => Err(Error::invalid(ADOPT, "the record is not this copy's: other programs run in it")
            .with_remedy("restore the copy with the record that was made with it")),
        Reply::Done { errno: ENOSYS, .. } => {
            Err(Error::unsupported(ADOPT, "nobody inside may give this machine another identity")
                .with_remedy("only machines with an init of Cofferdam's can be copied, and no containers"))
        }
        Reply::Done { errno: EBUSY, .. } => Err(Error::new(ErrorKind::Conflict, ADOPT, "nobody held this copy")),
        Reply::Done { errno: ENOENT, .. } => {
            let what = "its image has no plain file /etc/machine-id, in whose place a new id could be put: copies of the \
                        machine would all have the same";
            Err(Error::unsupported(ADOPT, what)
                .with_remedy("make the image from a root file system in which /etc is a directory, and no link"))
        }
        Reply::Done { errno, .. } => Err(failed("the machine could not be given another identity", errno)),
        _ => Err(odd()),
    }
}

/// The CPU time that is counted while nothing runs, where something is to go on.
async fn first_count(link: &Arc<Link>, record: &Record) -> Result<Option<u64>> {
    if record.execs().is_empty() {
        return Ok(None);
    }
    match link.call(ADOPT, &Order::Count).await? {
        Reply::Counted(counts) => Ok(counts.cpu_micros),
        _ => Err(odd()),
    }
}

fn known(record: &Record) -> BTreeSet<u64> {
    record.execs().iter().map(|exec| exec.id).collect()
}

/// Ids as the agent sends them; `None` for what no agent sends.
fn ids(encoded: &Bytes) -> Option<BTreeSet<u64>> {
    let (words, rest) = encoded.as_chunks::<8>();
    let ids: BTreeSet<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    (rest.is_empty() && words.len() <= MAX_EXECS && ids.len() == words.len()).then_some(ids)
}
