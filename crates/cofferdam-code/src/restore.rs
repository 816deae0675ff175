//! An audit record for each sandbox that is created from the state of another one. Programs started in it later are
//! analyzed and logged like any other. Programs that resume in it cannot be; the record states that there may be some.

use std::sync::Arc;
use std::time::Instant;

use cofferdam_audit::{Digest, Program, ProgramKind};
use cofferdam_contract::{Level, Result, Sandbox, SandboxId, Snapshot, Spec};

use crate::audit::RestoredSandbox;
use crate::result::{posture_digest, random_id};
use crate::{BackendProfile, CodeRequest, Executor};

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

impl Executor {
    /// Creates a sandbox from the state of another one, with a record in the audit log. `create` returns the sandbox
    /// and any other value. Dropping the future ends the record as cancelled.
    ///
    /// # Errors
    /// - Those of `create`. Programs of the state may have run for a moment.
    /// - `Unavailable` if the log is mandatory and cannot be written. The sandbox is then not created, or closed.
    pub async fn restore<T>(
        &self,
        profile: &BackendProfile,
        spec: &Spec,
        origin: Origin,
        create: impl Future<Output = Result<(Arc<dyn Sandbox>, T)>>,
    ) -> Result<(Arc<dyn Sandbox>, T)> {
        let program = Program { of: ProgramKind::Snapshot, sha256: origin.digest, bytes: 0 };
        let request = CodeRequest::new("", "").timeout(spec.limits().wall_time);
        let entry = self.entry(&random_id()?, profile, spec, &request, program, None).await?;
        let begun = Instant::now();
        let created = match create.await {
            Ok((sandbox, other)) => self.record_network(sandbox).await.map(|sandbox| (sandbox, other)),
            Err(error) => Err(error),
        };
        let Some(entry) = entry else { return created };
        let (sandbox, other) = match created {
            Ok(created) => created,
            Err(error) => {
                entry.failed(error.kind()).await;
                return Err(error);
            }
        };
        let restored = RestoredSandbox {
            sandbox: sandbox.id().clone(),
            from: origin.from,
            // Only the state of a VM contains running programs.
            programs: profile.level == Level::Vm,
            posture: posture_digest(sandbox.posture()),
            duration: begun.elapsed(),
        };
        if let Err(error) = entry.restored(restored).await {
            // The error of the log takes precedence over one of closing.
            let _ = sandbox.close().await;
            return Err(error);
        }
        Ok((sandbox, other))
    }
}
