//! A prepared sandbox: isolated and empty, without a request.
//!
//! Limits that the owner enforces (wall time, and CPU time if a control group counts it), the tenant and the labels are
//! those of the claim. The launcher can change limits on memory, processes and disk while no program runs. Other
//! settings are fixed: the root, the kind and access of the workspace, a share of the processors, and, without control
//! groups, every limit that programs inherit from the init.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{Error, ErrorKind, Posture, PreparedSandbox, Result, Retry, Sandbox, Spec};

use crate::client::Launcher;
use crate::pending::{PendingSandbox, SandboxInputs};
use crate::plan::SpecPlan;
use crate::protocol::Create;

/// A prepared process sandbox.
#[derive(Debug)]
pub struct PreparedProcessSandbox {
    /// The sandbox. `None` once it was claimed or closed.
    pending: Option<PendingSandbox>,
    template: Spec,
    /// The posture of its measurements for the template.
    posture: Posture,
    /// True if control groups limit memory and processes, so that the limits can be changed from outside.
    has_groups: bool,
}

impl PreparedProcessSandbox {
    /// Prepares a sandbox. Fails if a sandbox for the template itself would be refused.
    pub async fn prepare(launcher: Arc<Launcher>, create: Create, inputs: SandboxInputs) -> Result<Self> {
        let has_groups = launcher.ready().await?.cgroup_version > 0;
        let template = inputs.spec.clone();
        let pending = PendingSandbox::create(launcher, create, inputs).await?;
        let posture = pending.posture(&template);
        if let Err(error) = posture.require(template.allow_weaker()) {
            return Err(error.with_failed_close(pending.close().await));
        }
        Ok(Self { pending: Some(pending), template, posture, has_groups })
    }
}

#[async_trait]
impl PreparedSandbox for PreparedProcessSandbox {
    fn template(&self) -> &Spec {
        &self.template
    }

    fn is_compatible(&self, spec: &Spec) -> bool {
        is_compatible(&self.template, spec, self.has_groups)
    }

    fn is_alive(&self) -> bool {
        self.pending.as_ref().is_some_and(PendingSandbox::is_alive)
    }

    async fn claim(mut self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        SpecPlan::of(&spec)?;
        if !self.is_compatible(&spec) {
            return Err(Error::invalid("claim", "the spec differs from the template in a fixed setting")
                .with_remedy("create the sandbox on request"));
        }
        let died =
            || Error::new(ErrorKind::Unavailable, "claim", "the prepared sandbox has ended").with_retry(Retry::MayHelp);
        let mut pending = self.pending.take().filter(PendingSandbox::is_alive).ok_or_else(died)?;
        if let Err(error) = pending.adapt(&spec).await {
            // A sandbox that is created with these limits may work, even though this one cannot be changed.
            return Err(error.with_retry(Retry::MayHelp).with_failed_close(pending.close().await));
        }
        // The measured limits still apply, unless they were just changed.
        let accepted = if spec.limits() == self.template.limits() {
            pending.accept_with(spec, self.posture.clone()).await?
        } else {
            pending.accept(spec).await?
        };
        Ok(Arc::new(accepted))
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        match self.pending.take() {
            Some(pending) => pending.close().await,
            None => Ok(()),
        }
    }
}

/// Returns true if a sandbox prepared for `template` can be used for `spec`.
fn is_compatible(template: &Spec, spec: &Spec, has_groups: bool) -> bool {
    match (SpecPlan::of(template), SpecPlan::of(spec)) {
        (Ok(prepared), Ok(requested)) => prepared.can_become(&requested, has_groups),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{Access, ByteSize, Limits, TenantId, Workspace};
    use std::time::Duration;

    fn with(change: impl FnOnce(&mut Limits)) -> Spec {
        let mut limits = Limits::default();
        change(&mut limits);
        Spec::builder().limits(limits).build().unwrap()
    }

    /// Promise (Warm sandboxes and pools): A warm process sandbox is compatible with specs that differ only in what the
    /// owner or a control group enforces.
    #[test]
    fn limits_of_the_owner_or_a_control_group_are_applied_at_the_claim() {
        let template = Spec::default();
        let late = [
            with(|limits| limits.wall_time = Duration::from_secs(1)),
            with(|limits| limits.memory = Some(ByteSize::from_bytes(1 << 26))),
            with(|limits| limits.memory = None),
            with(|limits| limits.pids = Some(3)),
            with(|limits| limits.disk = Some(ByteSize::from_bytes(1 << 20))),
            with(|limits| limits.cpu_time = Some(Duration::from_secs(1))),
            Spec::builder().tenant(TenantId::new("other").unwrap()).label("a", "b").build().unwrap(),
        ];
        for spec in &late {
            assert!(is_compatible(&template, spec, true), "{spec:?}");
        }
        let without_groups: Vec<bool> = late.iter().map(|spec| is_compatible(&template, spec, false)).collect();
        assert_eq!(without_groups, [true, false, false, false, true, false, true]);
    }

    #[test]
    fn settings_fixed_when_warm_are_incompatible() {
        let template = Spec::default();
        let fixed = [
            with(|limits| limits.cpu_time = Some(Duration::from_secs(3600))),
            with(|limits| limits.cpu_time = None),
            with(|limits| limits.disk = None),
            with(|limits| limits.disk = Some(ByteSize::from_bytes(1 << 40))),
            Spec::builder().workspace(Workspace::Private { access: Access::ReadOnly }).build().unwrap(),
            Spec::builder()
                .workspace(Workspace::HostDir { path: "/tmp".into(), access: Access::ReadOnly })
                .build()
                .unwrap(),
        ];
        for spec in &fixed {
            assert!(!is_compatible(&template, spec, true), "{spec:?}");
        }
        let unbounded = with(|limits| limits.disk = None);
        assert!(!is_compatible(&unbounded, &template, true));
    }
}
