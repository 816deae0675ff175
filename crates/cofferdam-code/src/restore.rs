//! An audit record for each sandbox that is created from the state of another one. Programs started in it later are
//! analyzed and logged like any other. Programs that resume in it cannot be; the record states that there may be some.

use std::time::Instant;

use cofferdam_audit::{Digest, Program, ProgramKind};
use cofferdam_contract::{Error, Level, Result, Sandbox, SandboxId, Snapshot, Spec};

use crate::audit::{Entry, Made};
use crate::result::{posture_digest, random_id};
use crate::{CodeRequest, Executor, Place};

/// The origin of a sandbox's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    digest: Digest,
    from: Option<SandboxId>,
}

impl Origin {
    /// Describes a snapshot, identified by its digest. If it has none, the log contains the hash of `name`, which must
    /// be unique to the snapshot.
    pub fn snapshot(snapshot: &Snapshot, name: &str) -> Self {
        let digest = snapshot.digest().and_then(|digest| digest.parse().ok());
        Self { digest: digest.unwrap_or_else(|| Digest::of(name)), from: None }
    }

    /// Describes a running sandbox that is forked.
    pub fn sandbox(sandbox: &SandboxId) -> Self {
        Self { digest: Digest::of(sandbox.as_str()), from: Some(sandbox.clone()) }
    }

    /// Sets the sandbox that the state was taken from.
    #[must_use]
    pub fn of(mut self, sandbox: &SandboxId) -> Self {
        self.from = Some(sandbox.clone());
        self
    }
}

/// A sandbox that is being created from the state of another one. If it is dropped, its audit record ends as cancelled.
#[derive(Debug)]
pub struct Restoring {
    entry: Option<Entry>,
    origin: Origin,
    place: Place,
    begun: Instant,
}

impl Executor {
    /// Records in the audit log that a sandbox is about to be created from the state of another one.
    ///
    /// # Errors
    /// - `Unavailable` if the log is mandatory and cannot be written. The caller must not create the sandbox.
    pub async fn begin_restore(&self, place: &Place, spec: &Spec, origin: Origin) -> Result<Restoring> {
        let program = Program { of: ProgramKind::Snapshot, sha256: origin.digest, bytes: 0 };
        let request = CodeRequest::new("", "").timeout(spec.limits().wall_time);
        let entry = self.entry(&random_id()?, place, spec, &request, program, None).await?;
        Ok(Restoring { entry, origin, place: place.clone(), begun: Instant::now() })
    }
}

impl Restoring {
    /// Records that the sandbox was created.
    ///
    /// # Errors
    /// - `Unavailable` if the log is mandatory and cannot be written. The caller must close the sandbox.
    pub async fn made(mut self, sandbox: &dyn Sandbox) -> Result<()> {
        let Some(entry) = self.entry.take() else { return Ok(()) };
        let made = Made {
            sandbox: sandbox.id().clone(),
            from: self.origin.from.clone(),
            // Only the state of a VM contains running programs.
            programs: self.place.level == Level::Vm,
            posture: posture_digest(sandbox.posture()),
            duration: self.begun.elapsed(),
        };
        entry.made(made).await
    }

    /// Records that the sandbox could not be created, although programs of the state may have run for a moment. Returns
    /// the error for the caller.
    pub async fn failed(mut self, error: Error) -> Error {
        if let Some(entry) = self.entry.take() {
            entry.failed(error.kind()).await;
        }
        error
    }
}
