//! A prepared VM without a request: restored from a snapshot of a VM that had only booted, with an identity of its own.
//! No tenant's code has run in it.
//!
//! Its limits were set by its init, which is gone: a spec with other limits is incompatible. The supervisor enforces
//! the claim's wall time and CPU time. Tenant and labels are the claim's as well; the VM does not depend on them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{
    Error, ErrorKind, ExecRequest, Limits, PreparedSandbox, Result, Retry, RootFs, Sandbox, Spec, after_close,
};

use crate::create::PendingSandbox;
use crate::plan::{Plan, SpecPlan};
use crate::sandbox::VmSandbox;
use crate::snapshot::VmSnapshot;
use crate::state::BackendState;
use crate::templates::Kind;

/// Time limit of the program that does nothing.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// A prepared VM without a request.
#[derive(Debug)]
pub(crate) struct PreparedVm {
    /// `None` once it was claimed or closed.
    pending: Option<PendingSandbox>,
    backend: Arc<BackendState>,
    template: Spec,
    /// True if a control group inside counts CPU time; false if the agent, which got the limit at the start, does.
    counts_cpu: bool,
}

impl PreparedVm {
    /// Creates one. Fails if a sandbox for the template itself would be refused.
    pub(crate) async fn create(backend: &Arc<BackendState>, template: Spec) -> Result<Self> {
        let plan = Plan::of(&template, &backend.config)?;
        let pending = match template.root() {
            // A disk of the template is no disk of other sandboxes.
            RootFs::Default if template.mounts().is_empty() => {
                let kind = Kind::new(plan, template.workspace().access());
                let snapshot =
                    backend.templates.get(kind, take_template(backend, &template)).await.and_then(|snapshot| {
                        snapshot.lease_all().map_err(|error| error.into_error("warm"))?;
                        Ok(snapshot)
                    });
                match snapshot {
                    Ok(snapshot) => PendingSandbox::restore(backend, &template, &snapshot).await?,
                    // Without memory for more snapshots, VMs are booted in advance.
                    Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
                        PendingSandbox::create(backend, &template).await?
                    }
                    Err(error) => return Err(error),
                }
            }
            // The contents of a directory may change from one VM to the next.
            _ => PendingSandbox::create(backend, &template).await?,
        };
        pending.verify_posture(&template).await?;
        warm_up(&pending).await;
        let counts_cpu = pending.evidence.counts_cpu;
        Ok(Self { pending: Some(pending), backend: Arc::clone(backend), template, counts_cpu })
    }
}

/// Runs a program that does nothing, so that the code that starts programs is translated, and read from the disk,
/// before a client waits for it. If the program is missing, the first request takes longer.
async fn warm_up(pending: &PendingSandbox) {
    let limits = Limits { wall_time: WARM_UP_TIMEOUT, ..Limits::default() };
    if let Ok(request) = ExecRequest::argv(["true"]).build()
        && let Ok(handle) = pending.guest.start(&request, &limits).await
    {
        // It exits, or is killed at its limit.
        let _ = handle.exit().await;
    }
}

/// Takes a snapshot of a VM that only booted.
async fn take_template(backend: &Arc<BackendState>, template: &Spec) -> Result<VmSnapshot> {
    let sandbox = VmSandbox::create(backend, template.clone()).await?;
    let taken = sandbox.take_snapshot("warm").await;
    after_close(taken, sandbox.close().await)
}

#[async_trait]
impl PreparedSandbox for PreparedVm {
    fn template(&self) -> &Spec {
        &self.template
    }

    fn is_compatible(&self, spec: &Spec) -> bool {
        is_compatible(&self.template, spec, self.counts_cpu)
    }

    fn is_alive(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.guest.is_alive())
    }

    async fn claim(mut self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Plan::of(&spec, &self.backend.config)?;
        if !self.is_compatible(&spec) {
            return Err(Error::invalid("claim", "the spec differs from the prepared sandbox in a fixed property"));
        }
        let died = || {
            Error::new(ErrorKind::Unavailable, "claim", "the prepared sandbox died before it was claimed")
                .with_retry(Retry::MayHelp)
        };
        let pending = self.pending.take().filter(|pending| pending.guest.is_alive()).ok_or_else(died)?;
        let pending = pending.claimed(spec.limits().clone());
        Ok(Arc::new(VmSandbox::of(pending, spec).await?))
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        match self.pending.take() {
            Some(pending) => pending.close().await,
            None => Ok(()),
        }
    }
}

/// Returns true if a VM that was prepared for `template` can become a sandbox for `spec`.
fn is_compatible(template: &Spec, spec: &Spec, counts_cpu: bool) -> bool {
    match (SpecPlan::of(template), SpecPlan::of(spec)) {
        (Ok(prepared), Ok(requested)) => prepared.can_become(&requested, counts_cpu),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::{Access, ByteSize, TenantId, Workspace};

    use super::*;

    fn with(change: impl FnOnce(&mut Limits)) -> Spec {
        let mut limits = Limits::default();
        change(&mut limits);
        Spec::builder().limits(limits).build().unwrap()
    }

    /// Promise (Virtual machines): A warm VM is compatible with specs that differ only in what the supervisor enforces.
    #[test]
    fn warm_vm_accepts_settings_that_the_supervisor_enforces() {
        let template = Spec::default();
        let tenant = Spec::builder().tenant(TenantId::new("other").unwrap()).label("a", "b").build().unwrap();
        for spec in [template.clone(), tenant, with(|limits| limits.wall_time = Duration::from_secs(1))] {
            assert!(is_compatible(&template, &spec, false), "{spec:?}");
        }
        let late = with(|limits| limits.cpu_time = Some(Duration::from_secs(1)));
        assert!(is_compatible(&template, &late, true) && !is_compatible(&template, &late, false));
    }

    /// Promise (Virtual machines): A warm VM is not compatible with a spec that changes its fixed settings.
    #[test]
    fn settings_fixed_when_warm_are_incompatible() {
        let fixed = [
            with(|limits| limits.memory = Some(ByteSize::from_mebibytes(64))),
            with(|limits| limits.memory = None),
            with(|limits| limits.disk = None),
            with(|limits| limits.pids = Some(3)),
            with(|limits| limits.cpus = Some("1".parse().unwrap())),
            Spec::builder().root(RootFs::Directory { path: "/x".into() }).build().unwrap(),
            Spec::builder().workspace(Workspace::Private { access: Access::ReadOnly }).build().unwrap(),
        ];
        for spec in &fixed {
            assert!(!is_compatible(&Spec::default(), spec, true), "{spec:?}");
        }
    }
}
