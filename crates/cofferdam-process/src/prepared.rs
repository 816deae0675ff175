//! A prepared sandbox: isolated and empty, without a request.
//!
//! Limits that the owner enforces (wall time, and CPU time if a control group counts it), the tenant and the labels are
//! those of the claim. The launcher can change limits on memory, processes and disk while no program runs. Other
//! settings are fixed: the root, the kind and access of the workspace, a share of the processors, and, without control
//! groups, every limit that programs inherit from the init.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Error, ErrorKind, Limits, Posture, PreparedSandbox, Result, Retry, Sandbox, Spec, SpecParts, Workspace,
};

use crate::client::Launcher;
use crate::pending::{PendingSandbox, SandboxInputs};
use crate::protocol::Create;
use crate::supported::check;

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
        check(&spec)?;
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
    let SpecParts { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        spec.parts();
    // Names and permissions do not affect the prepared sandbox.
    let (_, _, _) = (tenant, labels, allow_weaker);
    // This backend has no attributes of its own, and ignores those of others.
    let _ = attributes;
    matches!(workspace, Workspace::Private { .. })
        && workspace == template.workspace()
        && root == template.root()
        && directories == template.directories()
        && network == template.network()
        && are_limits_compatible(template.limits(), limits, has_groups)
}

fn are_limits_compatible(template: &Limits, asked: &Limits, has_groups: bool) -> bool {
    let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = asked;
    // The owner enforces it.
    let _ = wall_time;
    // An existing limit can be lowered. The maximum file size was set for the template, and cannot be raised.
    let is_disk_compatible = match (template.disk, disk) {
        (Some(prepared), Some(asked)) => *asked <= prepared,
        (prepared, asked) => prepared == *asked,
    };
    // A process inherits its limit from the template: it must not take effect before the requested limit.
    let is_cpu_time_compatible = match (template.cpu_time, cpu_time) {
        (None, None) => true,
        (None, Some(_)) => has_groups,
        (Some(prepared), Some(asked)) => prepared == *asked || has_groups && prepared > *asked,
        (Some(_), None) => false,
    };
    let are_groups_compatible = has_groups || (memory == &template.memory && pids == &template.pids);
    // The filter that reports each new process is part of the template or not.
    is_disk_compatible
        && is_cpu_time_compatible
        && are_groups_compatible
        && *cpus == template.cpus
        && *processes == template.processes
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{Access, ByteSize, TenantId};
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
    fn what_was_built_in_is_fixed() {
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
