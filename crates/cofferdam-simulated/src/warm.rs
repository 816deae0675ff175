//! A prepared simulated sandbox.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{
    Error, ErrorKind, Limits, PreparedSandbox, Protection, Result, Sandbox, Spec, SpecParts, Workspace,
};
use tokio::time::Instant;

use crate::backend::{ForkContext, check, disk_limit};
use crate::fault::FaultPoint;
use crate::posture::posture;
use crate::sandbox::SimulatedSandbox;
use crate::state::Shared;

/// A sandbox without a request. No exec has ever run in it.
#[derive(Debug)]
pub(crate) struct SimulatedWarm {
    /// `None` once the sandbox was claimed.
    shared: Option<Box<Shared>>,
    template: Spec,
    /// The time at which the fault plan lets the sandbox die.
    death: Option<Instant>,
}

impl SimulatedWarm {
    pub(crate) fn new(shared: Shared, dies_after: Option<Duration>) -> Self {
        let template = shared.spec.clone();
        Self { shared: Some(Box::new(shared)), template, death: dies_after.map(|after| Instant::now() + after) }
    }
}

impl Drop for SimulatedWarm {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.shut();
        }
    }
}

#[async_trait]
impl PreparedSandbox for SimulatedWarm {
    fn template(&self) -> &Spec {
        &self.template
    }

    fn is_compatible(&self, spec: &Spec) -> bool {
        let fixed = |protection| self.shared.as_ref().is_none_or(|it| fixed(it, protection));
        fits(&self.template, spec, fixed)
    }

    fn is_alive(&self) -> bool {
        self.shared.is_some() && self.death.is_none_or(|death| Instant::now() < death)
    }

    async fn claim(mut self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        check(&spec)?;
        if !self.is_compatible(&spec) {
            return Err(Error::invalid("claim", "the spec differs in a setting that is fixed in a prepared sandbox"));
        }
        let alive = self.is_alive();
        let host = self.shared.as_ref().map(|shared| Arc::clone(&shared.host));
        let (Some(host), true) = (host, alive) else {
            return Err(Error::new(ErrorKind::Unavailable, "claim", "the prepared sandbox died"));
        };
        host.faults.pass(FaultPoint::Claim).await?;
        let posture = posture(&spec, &host.config);
        posture.require(spec.allow_weaker())?;
        let Some(mut shared) = self.shared.take() else { return Err(Error::closed("claim")) };
        shared.apply_claim(posture, disk_limit(&spec), spec);
        let forks = ForkContext::new(host);
        Ok(Arc::new(SimulatedSandbox::new(Arc::new(*shared), Arc::new(forks))))
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        let Some(shared) = self.shared.take() else { return Ok(()) };
        shared.shut();
        shared.host.faults.pass(FaultPoint::Close).await.map(drop)
    }
}

fn fixed(shared: &Shared, protection: Protection) -> bool {
    shared.host.config.fixed_when_warm.contains(&protection)
}

/// Returns true if a sandbox prepared for `template` can be changed to match `spec`.
fn fits(template: &Spec, spec: &Spec, fixed: impl Fn(Protection) -> bool) -> bool {
    let SpecParts { workspace, root, limits, network, tenant, labels, allow_weaker, attributes, directories } =
        spec.parts();
    // These are names and permissions, from which nothing was created.
    let (_, _, _) = (tenant, labels, allow_weaker);
    // The backend has no attributes of its own, and ignores those of others.
    let _ = attributes;
    matches!(workspace, Workspace::Private { .. })
        && (workspace.access() == template.workspace().access() || !fixed(Protection::Workspace))
        && root == template.root()
        && directories == template.directories()
        && network == template.network()
        && limits_fit(template.limits(), limits, fixed)
}

fn limits_fit(template: &Limits, asked: &Limits, fixed: impl Fn(Protection) -> bool) -> bool {
    let Limits { cpu_time, memory, disk, wall_time, pids, processes, cpus } = asked;
    [
        (Protection::CpuTime, *cpu_time == template.cpu_time),
        (Protection::Memory, *memory == template.memory),
        (Protection::Disk, *disk == template.disk),
        (Protection::WallTime, *wall_time == template.wall_time),
        (Protection::Processes, *pids == template.pids && *processes == template.processes),
        (Protection::Cpus, *cpus == template.cpus),
    ]
    .into_iter()
    .all(|(protection, same)| same || !fixed(protection))
}
