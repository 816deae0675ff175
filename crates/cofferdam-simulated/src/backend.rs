//! The backend of simulated sandboxes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cofferdam_contract::{
    Backend, Capabilities, Capability, Error, ErrorKind, Level, PreparedSandbox, Result, Sandbox, SandboxId, Snapshot,
    Spec,
};

use crate::fault::FaultPoint;
use crate::host::SimulatedHost;
use crate::plan::SpecPlan;
use crate::posture::posture;
use crate::prepared::PreparedSimulatedSandbox;
use crate::sandbox::SimulatedSandbox;
use crate::state::Shared;
use crate::tree::Tree;
use crate::{FaultPlan, NAME, SimulatedConfig};

/// The simulated backend. Needs a tokio runtime with time enabled.
#[derive(Debug)]
pub struct SimulatedBackend {
    host: Arc<SimulatedHost>,
    created: AtomicU64,
}

impl Default for SimulatedBackend {
    fn default() -> Self {
        Self::new(SimulatedConfig::default())
    }
}

impl SimulatedBackend {
    /// Creates a backend that simulates the host in `config`.
    pub fn new(config: SimulatedConfig) -> Self {
        let mut config = config;
        config.capabilities.retain(|capability| SimulatedConfig::KNOWN.contains(capability));
        Self { host: Arc::new(SimulatedHost::new(config)), created: AtomicU64::new(0) }
    }

    /// Creates a backend with all capabilities and these faults.
    pub fn with_faults(faults: FaultPlan) -> Self {
        Self::new(SimulatedConfig { faults, ..SimulatedConfig::default() })
    }

    /// Returns the ids of live sandboxes, prepared ones included: created, and neither closed nor dropped.
    pub fn living(&self) -> BTreeSet<SandboxId> {
        self.host.living().clone()
    }

    fn share(&self, spec: Spec, tree: impl FnOnce(&SpecPlan<'_>) -> Result<Tree>) -> Result<Shared> {
        let plan = SpecPlan::of(&spec)?;
        let posture = posture(&spec, &self.host.config);
        posture.require(spec.allow_weaker())?;
        let tree = tree(&plan)?;
        let id = SandboxId::new(format!("{NAME}-{}", self.created.fetch_add(1, Ordering::Relaxed) + 1));
        Ok(Shared::new(id, spec, posture, tree, Arc::clone(&self.host)))
    }

    fn make(&self, spec: Spec, tree: impl FnOnce(&SpecPlan<'_>) -> Result<Tree>) -> Result<Arc<dyn Sandbox>> {
        let shared = Arc::new(self.share(spec, tree)?);
        Ok(Arc::new(SimulatedSandbox::new(shared, Arc::new(ForkContext::new(Arc::clone(&self.host))))))
    }
}

/// The state that a sandbox needs to create a fork of itself.
#[derive(Debug)]
pub(crate) struct ForkContext {
    host: Arc<SimulatedHost>,
    forks: AtomicU64,
}

impl ForkContext {
    pub(crate) fn new(host: Arc<SimulatedHost>) -> Self {
        Self { host, forks: AtomicU64::new(0) }
    }

    pub(crate) fn fork(self: &Arc<Self>, origin: &Shared, tree: Tree) -> Arc<dyn Sandbox> {
        let number = self.forks.fetch_add(1, Ordering::Relaxed) + 1;
        let id = SandboxId::new(format!("{}-fork-{number}", origin.id));
        let shared = Shared::new(id, origin.spec.clone(), origin.posture.clone(), tree, Arc::clone(&self.host));
        Arc::new(SimulatedSandbox::new(Arc::new(shared), Arc::new(Self::new(Arc::clone(&self.host)))))
    }
}

/// A snapshot of a workspace.
pub(crate) struct Frozen(pub(crate) Tree);

#[async_trait]
impl Backend for SimulatedBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn level(&self) -> Level {
        Level::Simulated
    }

    fn capabilities(&self) -> Capabilities {
        self.host.config.capabilities.clone()
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        self.host.faults.pass(FaultPoint::Create).await?;
        self.make(spec, |plan| Ok(Tree::new(plan.disk_limit())))
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        if !self.host.config.capabilities.contains(&Capability::Snapshot) {
            return Err(Error::unsupported("restore", "this backend does not support snapshots"));
        }
        self.host.faults.pass(FaultPoint::Restore).await?;
        let frozen = snapshot.payload::<Frozen>().filter(|_| snapshot.backend() == NAME);
        let frozen = frozen.ok_or_else(|| Error::invalid("restore", "the snapshot belongs to another backend"))?;
        spec.check_tenant(snapshot.tenant())?;
        self.make(spec, |plan| {
            frozen.0.with_limit(plan.disk_limit()).ok_or_else(|| {
                Error::new(ErrorKind::ResourceExhausted, "restore", "the snapshot is larger than the disk limit")
            })
        })
    }

    async fn prepare(&self, spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        if !self.host.config.capabilities.contains(&Capability::Warm) {
            return Err(Error::unsupported("warm", "this backend does not support prepared sandboxes"));
        }
        let nth = self.host.faults.pass(FaultPoint::Warm).await?;
        let shared = self.share(spec, |plan| Ok(Tree::new(plan.disk_limit())))?;
        Ok(Box::new(PreparedSimulatedSandbox::new(shared, self.host.faults.death(nth))))
    }
}
