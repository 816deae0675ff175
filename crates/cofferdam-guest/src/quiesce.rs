//! Quiescing a guest, so that its container or VM can be copied, and reattaching to a copy.
//!
//! ```text
//! open --quiesce: no pending request, all programs stopped, the agent's last frame--> quiesced --release--> open
//!                                                                                     '--copied: reattach--> open
//! ```

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, UNIX_EPOCH};

use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, ExecHandle, ExecId, Result};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::evidence::Evidence;
use crate::guest::{Guest, listen};
use crate::inner::{Inner, Owner};
use crate::link::Link;
use crate::record::Record;
use crate::reseed::Reseed;
use crate::settings::Settings;
use crate::slots::Reply;
use crate::wire::{MAX_EXECS, Request, VERSION};
use crate::{error, exec, probes, wire};

const RESTORE: &str = "restore";
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;
const EBUSY: i32 = 16;

/// The state of a quiesced guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quiesced {
    record: Record,
}

impl Quiesced {
    /// Returns the record that a host needs to reattach to a copy.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Returns the record by value.
    #[must_use]
    pub fn into_record(self) -> Record {
        self.record
    }
}

impl Guest {
    /// Stops all programs inside, and the connection between two frames. No request is half written, and the agent
    /// sends nothing until [`Self::release`]. The VM can then be copied.
    ///
    /// # Behavior
    /// - Connections of guests, and to guests, stop as well. They continue after a release. A copy gets none of them.
    /// - While the guest is quiesced, operations fail with `Conflict`, the agent may be silent for any time, and no
    ///   time counts against the limits of execs. Input of programs and stop requests wait.
    /// - Fails with `Conflict` while a file is read or written, if another operation does not end soon, and if the
    ///   guest is already quiesced, paused or frozen. After a failure the guest resumes if it is alive.
    pub async fn quiesce(&self) -> Result<Quiesced> {
        self.inner.ready("snapshot")?;
        if self.inner.frozen.load(Ordering::Acquire) {
            return Err(error::paused("snapshot"));
        }
        let running = &self.inner.running;
        let (ids, last, since) = self.inner.link.quiesce(|id| running.is_known(id)).await?;
        Ok(Quiesced { record: Record::new(last, running.record(&ids, since)) })
    }

    /// Returns true if the guest is quiesced.
    #[must_use]
    pub fn is_quiesced(&self) -> bool {
        self.inner.link.is_quiesced()
    }

    /// Resumes a quiesced guest on this connection.
    ///
    /// # Behavior
    /// - No byte of any program's input or output is lost.
    /// - Fails with `Conflict` if the guest is not quiesced.
    pub async fn release(&self) -> Result<()> {
        self.inner.link.release().await
    }

    /// Reattaches to a copy of a quiesced guest, as [`Self::connect`] does to a new one. The streams must have carried
    /// no byte since.
    ///
    /// # Behavior
    /// - Before any program resumes, the VM gets a correct clock, new random numbers, and another id, boot id and host
    ///   name. The agent discards all state of the former host, and everything is measured again. `known` is the
    ///   evidence of the original guest, measured by this program under the same settings. With it, only the boot id,
    ///   in which a copy can differ, and the agent's confinement are measured.
    /// - Execs of the record resume, and [`Self::attach`] returns their handles. Their input is at its end, and the
    ///   newest part of their output is buffered. Their limits still apply, and include the time before the guest was
    ///   quiesced. The limits of the settings apply as well: no exec runs for longer than their wall time from now, or
    ///   uses more CPU time in all than theirs.
    /// - Fails with `Unsupported` if no process inside can reseed the VM, as in a container, and for an agent of
    ///   another version. Fails with `InvalidInput` for a record of another copy.
    /// - If it fails, no program has resumed, and the connection is closed, which ends the agent.
    pub async fn reattach(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        settings: Settings,
        (record, known): (Record, Option<&Evidence>),
        identity: Reseed,
        deadline: Instant,
    ) -> Result<(Self, Evidence)> {
        let begun = Instant::now();
        identity.check()?;
        if record.version() != VERSION {
            let what = format!("the guest agent speaks protocol {}, this program speaks {VERSION}", record.version());
            return Err(Error::unsupported(RESTORE, what).with_remedy("restore it with the release that saved it"));
        }
        let Settings { answer_timeout, reason, .. } = settings;
        let settings = Settings { reason: None, ..settings };
        let mut slots = HashMap::new();
        let mut ends = Vec::new();
        for exec in record.execs() {
            let (slot, reattached) = exec::reattach(exec)?;
            slots.insert(exec.id, slot);
            ends.push(reattached);
        }
        let link = Link::begin(reader, writer, answer_timeout, reason, (record.last(), slots));
        let owner = Arc::new(Owner(Arc::clone(&link)));
        let mut stage = "reseeding";
        let reattaching = async {
            reseed(&link, &settings, &record, &identity, begun).await?;
            stage = "measuring";
            let evidence = match known {
                Some(known) => probes::differences(&link, known).await?,
                None => probes::measure_again(&link, &settings).await?,
            };
            let first = first_count(&link, &record).await?;
            // The agent has dropped the sockets for the former host.
            let queries = listen(&link, &settings).await?;
            stage = "releasing";
            match link.call(RESTORE, &Request::Release).await? {
                Reply::Done { errno: 0, .. } => Ok((evidence, first, queries)),
                Reply::Done { errno, .. } => Err(failed("cannot resume the programs in the sandbox", errno)),
                _ => Err(unexpected_answer()),
            }
        };
        let evidence = match tokio::time::timeout_at(deadline.into(), reattaching).await {
            Ok(taken) => taken,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, RESTORE, "the agent was not ready in time")
                .with_remedy("the host may be overloaded; try again")),
        };
        let (evidence, first, queries) = evidence.map_err(|error| error.with_context("stage", stage))?;
        let limits = settings.limits.clone();
        let inner = Arc::new(Inner::new(link, settings, &evidence, queries));
        let handles = record.execs().iter().zip(ends).map(|(exec, reattached)| {
            let handle = exec::enforce_limits(&inner, exec, &limits, first, reattached);
            (handle.id(), handle)
        });
        inner.reattached.lock().extend(handles);
        Ok((Self { inner, _owner: owner }, evidence))
    }

    /// Takes the handle of an exec of the former host. Returns `None` if there is none, or if it was taken already. The
    /// handle has the output since the restore, as far as it is buffered.
    #[must_use]
    pub fn attach(&self, exec: ExecId) -> Option<ExecHandle> {
        self.inner.reattached.lock().remove(&exec)
    }

    /// Returns the execs of the former host that still run.
    #[must_use]
    pub fn reattached(&self) -> Vec<ExecId> {
        self.inner.running.reattached()
    }
}

fn unexpected_answer() -> Error {
    Error::new(ErrorKind::Internal, RESTORE, "the agent sent an unexpected answer")
}

fn failed(what: &'static str, errno: i32) -> Error {
    Error::new(ErrorKind::Unavailable, RESTORE, what)
        .with_remedy("restore it again; its record may be of another version")
        .with_source(io::Error::from_raw_os_error(errno))
}

/// Gives the VM a new identity, and checks that its agent and record agree. `begun` is the instant at which the
/// time of `identity` was correct.
async fn reseed(
    link: &Arc<Link>,
    settings: &Settings,
    record: &Record,
    identity: &Reseed,
    begun: Instant,
) -> Result<()> {
    let now = identity.now.duration_since(UNIX_EPOCH).unwrap_or_default() + begun.elapsed();
    let reseed = wire::Reseed {
        silence: settings.silence.as_micros() as u64,
        now: (now.as_secs(), now.subsec_nanos()),
        entropy: &identity.entropy,
        machine_id: &identity.machine_id,
        boot_id: &identity.boot_id,
        hostname: identity.hostname.as_bytes(),
    };
    match link.call(RESTORE, &Request::Reseed(reseed)).await? {
        Reply::Reseeded { version: VERSION, execs } if ids(&execs) == Some(known(record)) => Ok(()),
        Reply::Reseeded { .. } => {
            Err(Error::invalid(RESTORE, "the record belongs to another copy: other programs run in this one")
                .with_remedy("restore the copy with the record that was saved with it"))
        }
        Reply::Done { errno: ENOSYS, .. } => {
            Err(Error::unsupported(RESTORE, "no process inside can give this VM another identity")
                .with_remedy("copy only VMs with Cofferdam's init; containers cannot be copied"))
        }
        Reply::Done { errno: EBUSY, .. } => Err(Error::new(ErrorKind::Conflict, RESTORE, "this copy was not quiesced")),
        Reply::Done { errno: ENOENT, .. } => {
            let what =
                "the image has no regular file /etc/machine-id to replace: all copies of the VM would have the same id";
            Err(Error::unsupported(RESTORE, what).with_remedy(
                "build the image from a root file system in which /etc is a directory, not a symbolic link",
            ))
        }
        Reply::Done { errno, .. } => Err(failed("cannot give the VM another identity", errno)),
        _ => Err(unexpected_answer()),
    }
}

/// Returns the count of CPU time before the execs of the record resume, if there are any.
async fn first_count(link: &Arc<Link>, record: &Record) -> Result<Option<u64>> {
    if record.execs().is_empty() {
        return Ok(None);
    }
    match link.call(RESTORE, &Request::Count).await? {
        Reply::Counted(counts) => Ok(counts.cpu_micros),
        _ => Err(unexpected_answer()),
    }
}

fn known(record: &Record) -> BTreeSet<u64> {
    record.execs().iter().map(|exec| exec.id).collect()
}

/// Decodes ids as the agent sends them. Returns `None` for invalid bytes.
fn ids(encoded: &Bytes) -> Option<BTreeSet<u64>> {
    let (numbers, rest) = encoded.as_chunks::<8>();
    let ids: BTreeSet<u64> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
    (rest.is_empty() && numbers.len() <= MAX_EXECS && ids.len() == numbers.len()).then_some(ids)
}
