//! A line in the audit log for each sandbox that is made from another's state. What runs in it afterwards is screened and
//! logged as anything; what ran before and goes on in it cannot be: the line says that there may be such programs.

use std::time::Instant;

use cofferdam_audit::{Digest, Program, ProgramKind};
use cofferdam_contract::{Error, Level, Result, Sandbox, SandboxId, Snapshot, Spec};

use crate::audit::{Entry, Made};
use crate::result::{posture_digest, random_id};
use crate::{CodeRequest, Executor, Place};

/// What a sandbox goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    digest: Digest,
    from: Option<SandboxId>,
}

impl Origin {
    /// A snapshot: by its digest, where it has one, else by a name that is one snapshot's alone, of which the log has the
    /// hash.
    pub fn snapshot(snapshot: &Snapshot, name: &str) -> Self {
        let digest = snapshot.digest().and_then(|digest| digest.parse().ok());
        Self { digest: digest.unwrap_or_else(|| Digest::of(name)), from: None }
    }

    /// A sandbox as it is, which is forked.
    pub fn sandbox(sandbox: &SandboxId) -> Self {
        Self { digest: Digest::of(sandbox.as_str()), from: Some(sandbox.clone()) }
    }

    /// The same, with the sandbox whose state it is.
    #[must_use]
    pub fn of(mut self, sandbox: &SandboxId) -> Self {
        self.from = Some(sandbox.clone());
        self
    }
}

/// A sandbox that is about to go on from another's state. Dropped, it ends its line as cancelled.
#[derive(Debug)]
pub struct Restoring {
    entry: Option<Entry>,
    origin: Origin,
    place: Place,
    begun: Instant,
}

impl Executor {
    /// Says in the audit log that a sandbox is about to be made from another's state.
    ///
    /// # Errors
    /// `Unavailable` where the log is mandatory and cannot be written: then none must be made.
    pub async fn begin_restore(&self, place: &Place, spec: &Spec, origin: Origin) -> Result<Restoring> {
        let program = Program { of: ProgramKind::Snapshot, sha256: origin.digest, bytes: 0 };
        let request = CodeRequest::new("", "").timeout(spec.limits().wall_time);
        let entry = self.entry(&random_id()?, place, spec, &request, program, None).await?;
        Ok(Restoring { entry, origin, place: place.clone(), begun: Instant::now() })
    }
}

impl Restoring {
    /// It is there.
    ///
    /// # Errors
    /// `Unavailable` where the log is mandatory and cannot be written: then the sandbox must be closed.
    pub async fn made(mut self, sandbox: &dyn Sandbox) -> Result<()> {
        let Some(entry) = self.entry.take() else { return Ok(()) };
        let made = Made {
            sandbox: sandbox.id().clone(),
            from: self.origin.from.clone(),
            // Only a machine's state is more than files.
            programs: self.place.level == Level::Vm,
            posture: posture_digest(sandbox.posture()),
            duration: self.begun.elapsed(),
        };
        entry.made(made).await
    }

    /// There is none; what it held may have run for a moment. Gives the error to answer with.
    pub async fn failed(mut self, error: Error) -> Error {
        if let Some(entry) = self.entry.take() {
            entry.failed(error.kind()).await;
        }
        error
    }
}
