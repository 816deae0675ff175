//! A prepared container: its agent has greeted, and no program has run.
//!
//! The supervisor enforces wall time, and CPU time if a control group counts it, so a claim may have other values. The
//! engine changes the limits of memory, processes and CPU, if it can, and they are read back. Labels and mounts are
//! fixed, so a claim must have those of the template, including its tenant.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{Error, ErrorKind, Limits, PreparedSandbox, Result, Retry, Sandbox, Spec};

use crate::pending::PendingSandbox;
use crate::plan::{Changeable, Plan};
use crate::sandbox::ContainerSandbox;
use crate::state::BackendState;

/// A prepared container.
#[derive(Debug)]
pub(crate) struct PreparedContainer {
    /// The pending sandbox; `None` once it is claimed or closed.
    pending: Option<PendingSandbox>,
    template: Spec,
    changeable: Changeable,
}

impl PreparedContainer {
    /// Creates a prepared container. Fails if a sandbox of the template itself would be refused.
    pub(crate) async fn create(state: &Arc<BackendState>, template: Spec) -> Result<Self> {
        let pending = PendingSandbox::create(state, &template, None).await?;
        pending.verify_posture(&template).await?;
        let bounds = pending.evidence.bounds.version > 0 && pending.container.engine.facts.can_update();
        let changeable = Changeable { bounds, cpu_time: pending.evidence.counts_cpu };
        Ok(Self { pending: Some(pending), template, changeable })
    }
}

#[async_trait]
impl PreparedSandbox for PreparedContainer {
    fn template(&self) -> &Spec {
        &self.template
    }

    fn is_compatible(&self, spec: &Spec) -> bool {
        is_compatible(&self.template, spec, self.changeable)
    }

    fn is_alive(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.guest.is_alive())
    }

    async fn claim(mut self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        Plan::of(&spec)?;
        if !self.is_compatible(&spec) {
            return Err(Error::invalid("claim", "the spec differs from the prepared sandbox in a fixed property"));
        }
        let died = || {
            Error::new(ErrorKind::Unavailable, "claim", "the prepared sandbox died before it was claimed")
                .with_retry(Retry::MayHelp)
        };
        let mut pending = self.pending.take().filter(|pending| pending.guest.is_alive()).ok_or_else(died)?;
        if !same_bounds(self.template.limits(), spec.limits())
            && let Err(error) = pending.adapt(spec.limits()).await
        {
            // A container that is created with these limits may succeed.
            return Err(error.with_retry(Retry::MayHelp).with_failed_close(pending.close().await));
        }
        let posture = pending.verify_posture(&spec).await?;
        Ok(Arc::new(ContainerSandbox::new(pending, spec, posture)))
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        match self.pending.take() {
            Some(pending) => pending.close().await,
            None => Ok(()),
        }
    }
}

fn same_bounds(template: &Limits, requested: &Limits) -> bool {
    (template.memory, template.pids, template.cpus) == (requested.memory, requested.pids, requested.cpus)
}

/// Returns true if a container of `template` can be changed to match `spec`.
fn is_compatible(template: &Spec, spec: &Spec, changeable: Changeable) -> bool {
    match (Plan::of(template), Plan::of(spec)) {
        (Ok(prepared), Ok(requested)) => prepared.can_become(&requested, changeable),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cofferdam_contract::{Access, ByteSize, RootFs, TenantId, Workspace};

    use super::*;

    const ALL: Changeable = Changeable { bounds: true, cpu_time: true };
    const NOTHING: Changeable = Changeable { bounds: false, cpu_time: false };

    fn with(change: impl FnOnce(&mut Limits)) -> Spec {
        let mut limits = Limits::default();
        change(&mut limits);
        Spec::builder().limits(limits).build().unwrap()
    }

    #[test]
    fn limits_of_supervisor_and_control_groups_can_change_at_claim() {
        let template = Spec::default();
        let late = [
            with(|limits| limits.wall_time = Duration::from_secs(1)),
            with(|limits| limits.memory = Some(ByteSize::from_mebibytes(64))),
            with(|limits| limits.pids = Some(3)),
            with(|limits| limits.cpu_time = Some(Duration::from_secs(1))),
            with(|limits| limits.cpu_time = None),
        ];
        let fit = |changeable| late.iter().map(|spec| is_compatible(&template, spec, changeable)).collect::<Vec<_>>();
        assert_eq!(fit(ALL), [true; 5]);
        assert_eq!(fit(NOTHING), [true, false, false, false, false]);
        assert!(is_compatible(&template, &template, NOTHING));
    }

    #[test]
    fn other_properties_are_fixed() {
        let template = Spec::default();
        let fixed = [
            with(|limits| limits.disk = Some(ByteSize::from_mebibytes(1))),
            with(|limits| limits.disk = None),
            with(|limits| limits.memory = None),
            with(|limits| limits.pids = None),
            with(|limits| limits.cpus = Some("1".parse().unwrap())),
            Spec::builder().tenant(TenantId::new("other").unwrap()).build().unwrap(),
            Spec::builder().label("a", "b").build().unwrap(),
            Spec::builder().root(RootFs::Image { reference: "other".to_owned() }).build().unwrap(),
            Spec::builder().workspace(Workspace::Private { access: Access::ReadOnly }).build().unwrap(),
            Spec::builder()
                .workspace(Workspace::HostDir { path: "/tmp".into(), access: Access::ReadOnly })
                .build()
                .unwrap(),
        ];
        for spec in &fixed {
            assert!(!is_compatible(&template, spec, ALL), "{spec:?}");
        }
    }
}
