//! Holding a guest still, so that what it is in can be copied, and taking a copy over.
//!
//! ```text
//! open --hold: nothing under way, all programs stopped, the agent's last frame--> held --release--> open
//!                                                                                  '--copied, elsewhere: adopt--> open
//! ```

use std::time::Instant;

use cofferdam_contract::{Error, ExecId, Result};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::evidence::Evidence;
use crate::guest::Guest;
use crate::record::Record;
use crate::renewal::Renewal;
use crate::settings::Settings;

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
        Err(Error::unsupported("snapshot", "nothing can be held yet"))
    }

    /// Lets a held guest go on, on this connection.
    ///
    /// # Behavior
    /// - No byte of any program's input or output is lost.
    /// - Fails with `Conflict` where the guest is not held.
    pub async fn release(&self) -> Result<()> {
        Err(Error::unsupported("resume", "nothing can be held yet"))
    }

    /// Takes over a copy of a held guest, by streams on which nobody has said anything since; as [`Self::connect`].
    ///
    /// # Behavior
    /// - Before any program goes on, the machine gets a clock that is right, random numbers of its own, and another id,
    ///   boot id and name; what the former host gave is forgotten; and everything is measured again.
    /// - Execs of the record go on without a handle: their input is at its end, their output is discarded, and their
    ///   limits hold, the time before they were held included.
    /// - Fails with `Unsupported` where nobody inside may renew a machine, as in a container, and for an agent of
    ///   another version; with `InvalidInput` for a record that is not this copy's.
    /// - When it fails, no program went on, and the connection is closed, which ends the agent.
    pub async fn adopt(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        settings: Settings,
        record: Record,
        renewal: Renewal,
        deadline: Instant,
    ) -> Result<(Self, Evidence)> {
        let _ = (reader, writer, settings, record, renewal, deadline);
        Err(Error::unsupported("restore", "nothing can be adopted yet"))
    }

    /// Execs of the former host that still run.
    #[must_use]
    pub fn adopted(&self) -> Vec<ExecId> {
        Vec::new()
    }
}
