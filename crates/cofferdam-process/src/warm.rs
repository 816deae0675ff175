//! A sandbox that waits for its request, walls up, empty.
//!
//! What the owner keeps (wall time, CPU time where a control group counts it, tenant, labels) is the claim's by itself.
//! Memory, processes and disk are bounds that the launcher can change while nothing runs inside. What was built into the
//! sandbox is fixed: its root, its workspace's kind and access, a share of the processors, and every limit that an init
//! inherits to its programs where there are no control groups.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{Error, ErrorKind, Limits, Posture, Result, Retry, Sandbox, Spec, SpecParts, Warm, Workspace};

use crate::backend::check;
use crate::client::Launcher;
use crate::protocol::Create;
use crate::raw::Raw;
use crate::sandbox::Made;

/// A process sandbox without a request.
#[derive(Debug)]
pub struct ProcessWarm {
    /// `None` once it was claimed or closed.
    raw: Option<Raw>,
    template: Spec,
    /// What was measured when it was made, held against the template.
    posture: Posture,
    /// Whether control groups bound memory and processes, so that the bounds can be changed from outside.
    has_groups: bool,
}

impl ProcessWarm {
    /// Has one made. Fails where a sandbox for the template itself would be refused.
    pub async fn make(launcher: Arc<Launcher>, create: Create, made: Made) -> Result<Self> {
        let has_groups = launcher.ready().await?.cgroup_version > 0;
        let template = made.spec.clone();
        let raw = Raw::make(launcher, create, made).await?;
        let posture = raw.posture(&template);
        if let Err(error) = posture.require(template.allow_weaker()) {
            return Err(error.with_failed_close(raw.close().await));
        }
        Ok(Self { raw: Some(raw), template, posture, has_groups })
    }
}

#[async_trait]
impl Warm for ProcessWarm {
    fn made_for(&self) -> &Spec {
        &self.template
    }

    fn fits(&self, spec: &Spec) -> bool {
        fits(&self.template, spec, self.has_groups)
    }

    fn is_alive(&self) -> bool {
        self.raw.as_ref().is_some_and(Raw::is_alive)
    }

    async fn claim(mut self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        check(&spec)?;
        if !self.fits(&spec) {
            return Err(Error::invalid("claim", "the spec asks for what is fixed in a sandbox made ahead"));
        }
        let died = || {
            Error::new(ErrorKind::Unavailable, "claim", "the sandbox died while it waited").with_retry(Retry::MayHelp)
        };
        let mut raw = self.raw.take().filter(Raw::is_alive).ok_or_else(died)?;
        if let Err(error) = raw.adapt(&spec).await {
            // A sandbox that is made for these bounds may well fit into them where this one does not.
            return Err(error.with_retry(Retry::MayHelp).with_failed_close(raw.close().await));
        }
        // What bounds it is as it was measured, unless it was just changed.
        let accepted = if spec.limits() == self.template.limits() {
            raw.accept_with(spec, self.posture.clone()).await?
        } else {
            raw.accept(spec).await?
        };
        Ok(Arc::new(accepted))
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        match self.raw.take() {
            Some(raw) => raw.close().await,
            None => Ok(()),
        }
    }
}

/// Whether a sandbox made for `template` can still become what `spec` asks for.
fn fits(template: &Spec, spec: &Spec, has_groups: bool) -> bool {
    let SpecParts { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        spec.parts();
    // Names and permissions: nothing was built from the template's.
    let (_, _, _) = (tenant, labels, allow_weaker);
    // This backend has none of its own, and ignores those of others.
    let _ = attributes;
    matches!(workspace, Workspace::Private { .. })
        && workspace == template.workspace()
        && root == template.root()
        && directories == template.directories()
        && network == template.network()
        && limits_fit(template.limits(), limits, has_groups)
}

fn limits_fit(template: &Limits, asked: &Limits, has_groups: bool) -> bool {
    let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = asked;
    // The owner's own clock.
    let _ = wall_time;
    // A bound that is there can be tightened. The size of a file was bounded for the template's, and cannot be raised.
    let bound_fits = match (template.disk, disk) {
        (Some(made), Some(asked)) => *asked <= made,
        (made, asked) => made == *asked,
    };
    // The limit of a single process was inherited from the template: it must not strike before the one that was asked.
    let cpu_fits = match (template.cpu_time, cpu_time) {
        (None, None) => true,
        (None, Some(_)) => has_groups,
        (Some(made), Some(asked)) => made == *asked || has_groups && made > *asked,
        (Some(_), None) => false,
    };
    let groups_fit = has_groups || (memory == &template.memory && pids == &template.pids);
    // The filter that asks for each process is in the template or is not.
    bound_fits && cpu_fits && groups_fit && *cpus == template.cpus && *processes == template.processes
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
    fn what_the_owner_or_a_control_group_keeps_can_come_late() {
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
            assert!(fits(&template, spec, true), "{spec:?}");
        }
        let without_groups: Vec<bool> = late.iter().map(|spec| fits(&template, spec, false)).collect();
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
            assert!(!fits(&template, spec, true), "{spec:?}");
        }
        let unbounded = with(|limits| limits.disk = None);
        assert!(!fits(&unbounded, &template, true));
    }
}
