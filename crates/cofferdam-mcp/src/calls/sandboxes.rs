//! Sandboxes made, frozen, thawed, copied and closed.

use cofferdam_contract::{Error, Result};
use rmcp::model::CallToolResult;

use super::{Caller, structured};
use crate::arguments::{CloseSandbox, CreateSandbox, OfSandbox, RestoreSandbox};
use crate::policy;
use crate::results::{Closed, Made, Snapped};
use crate::server::Source;
use crate::store::InUse;

impl Caller<'_> {
    pub(super) async fn create_sandbox(self, arguments: CreateSandbox) -> Result<CallToolResult> {
        let spec = policy::spec(&self.server.config.spec, &arguments)?;
        self.made(&self.server.make(self.owner, Source::Spec(Box::new(spec))).await?)
    }

    pub(super) async fn snapshot_sandbox(self, arguments: OfSandbox) -> Result<CallToolResult> {
        let sandbox = self.server.store.enter(self.owner, &arguments.sandbox)?;
        let place = self.server.store.reserve_snapshot(self.owner)?;
        let snapshot = self.server.store.put_snapshot(place, sandbox.snapshot().await?)?;
        let idle_seconds = self.server.config.bounds.idle.as_secs_f64();
        structured(&Snapped { snapshot, sandbox: arguments.sandbox, idle_seconds }, Vec::new())
    }

    pub(super) async fn restore_sandbox(self, arguments: RestoreSandbox) -> Result<CallToolResult> {
        let snapshot = self.server.store.snapshot(self.owner, &arguments.snapshot)?;
        let spec = policy::tightened(&self.server.config.spec, &arguments.limits)?;
        self.made(&self.server.make(self.owner, Source::Snapshot(snapshot, Box::new(spec))).await?)
    }

    pub(super) async fn fork_sandbox(self, arguments: OfSandbox) -> Result<CallToolResult> {
        let sandbox = self.server.store.enter(self.owner, &arguments.sandbox)?;
        let working_dir = sandbox.working_dir();
        let fork = self.server.make(self.owner, Source::Fork(sandbox)).await?;
        fork.set_working_dir(working_dir);
        self.made(&fork)
    }

    pub(super) async fn close_sandbox(self, arguments: CloseSandbox) -> Result<CallToolResult> {
        let closed = match (arguments.sandbox, arguments.snapshot) {
            (Some(id), None) => {
                self.server.store.close(self.owner, &id).await?;
                id
            }
            (None, Some(id)) => {
                self.server.store.forget(self.owner, &id)?;
                id
            }
            _ => {
                return Err(Error::invalid("close", "close_sandbox needs the id of a sandbox or that of a snapshot")
                    .with_remedy("give exactly one of sandbox and snapshot"));
            }
        };
        structured(&Closed { closed }, Vec::new())
    }

    fn made(self, sandbox: &InUse) -> Result<CallToolResult> {
        let (backend, idle) = (&self.server.backend, self.server.config.bounds.idle);
        structured(&Made::new(sandbox.id(), backend.name(), backend.level(), &***sandbox, idle), Vec::new())
    }
}
