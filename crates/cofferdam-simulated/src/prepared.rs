//! A prepared simulated sandbox.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{Error, ErrorKind, PreparedSandbox, Protection, Result, Sandbox, Spec};
use tokio::time::Instant;

use crate::backend::ForkContext;
use crate::fault::FaultPoint;
use crate::plan::SpecPlan;
use crate::posture::posture;
use crate::sandbox::SimulatedSandbox;
use crate::state::Shared;

/// A sandbox without a request. No exec has ever run in it.
#[derive(Debug)]
pub(crate) struct PreparedSimulatedSandbox {
    /// `None` once the sandbox was claimed.
    shared: Option<Box<Shared>>,
    template: Spec,
    /// The time at which the fault plan lets the sandbox die.
    death: Option<Instant>,
}

impl PreparedSimulatedSandbox {
    pub(crate) fn new(shared: Shared, dies_after: Option<Duration>) -> Self {
        let template = shared.spec.clone();
        Self { shared: Some(Box::new(shared)), template, death: dies_after.map(|after| Instant::now() + after) }
    }
}

impl Drop for PreparedSimulatedSandbox {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.shut();
        }
    }
}

#[async_trait]
impl PreparedSandbox for PreparedSimulatedSandbox {
    fn template(&self) -> &Spec {
        &self.template
    }

    fn is_compatible(&self, spec: &Spec) -> bool {
        let fixed = |protection| self.shared.as_ref().is_none_or(|it| fixed(it, protection));
        match (SpecPlan::of(&self.template), SpecPlan::of(spec)) {
            (Ok(prepared), Ok(requested)) => prepared.can_become(&requested, fixed),
            _ => false,
        }
    }

    fn is_alive(&self) -> bool {
        self.shared.is_some() && self.death.is_none_or(|death| Instant::now() < death)
    }

    async fn claim(mut self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let disk = SpecPlan::of(&spec)?.disk_limit();
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
        shared.apply_claim(posture, disk, spec);
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
