//! Calls that create, snapshot, restore, fork and close sandboxes.

use cofferdam_contract::{Error, ErrorKind, Result, Sandbox};
use rmcp::model::CallToolResult;

use super::{Caller, structured};
use crate::arguments::{CloseSandbox, CreateSandbox, OfSandbox, RestoreSandbox};
use crate::policy;
use crate::results::{Closed, CreatedSandbox, Snapped};
use crate::server::{Source, State};
use crate::store::{Frozen, InUse, random};

impl Caller<'_> {
    pub(super) async fn create_sandbox(self, arguments: CreateSandbox) -> Result<CallToolResult> {
        let spec = policy::spec(&self.server.config.spec, &arguments)?;
        self.created(&self.server.create(self.account(), Source::Spec(Box::new(spec))).await?)
    }

    pub(super) async fn snapshot_sandbox(self, arguments: OfSandbox) -> Result<CallToolResult> {
        let sandbox = self.server.store.enter(self.owner, &arguments.sandbox)?;
        let reserved = self.server.store.reserve_snapshot(self.account())?;
        let from = Sandbox::id(&**sandbox).clone();
        let (spec, working_dir) = (sandbox.spec().clone(), sandbox.working_dir());
        // A cancelled call does not interrupt the snapshot: the task completes it and drops the result.
        let task = tokio::spawn(async move { (sandbox.snapshot().await, reserved) });
        let died = |_| Error::new(ErrorKind::Internal, "snapshot", "the task that takes the snapshot was aborted");
        let (snapshot, reserved) = task.await.map_err(died)?;
        let frozen = Frozen { snapshot: snapshot?, name: random()?, from, spec, working_dir };
        let snapshot = self.server.store.put_snapshot(reserved, frozen)?;
        let idle_seconds = self.server.config.bounds.idle.as_secs_f64();
        structured(&Snapped { snapshot, sandbox: arguments.sandbox, idle_seconds }, Vec::new())
    }

    pub(super) async fn restore_sandbox(self, arguments: RestoreSandbox) -> Result<CallToolResult> {
        let frozen = self.server.store.snapshot(self.owner, &arguments.snapshot)?;
        let spec = policy::tightened(&frozen.spec, &arguments.limits)?;
        let working_dir = frozen.working_dir.clone();
        let restored = self
            .server
            .create(self.account(), Source::State(State::Snapshot(Box::new(frozen), Box::new(spec))))
            .await?;
        restored.set_working_dir(working_dir);
        self.created(&restored)
    }

    pub(super) async fn fork_sandbox(self, arguments: OfSandbox) -> Result<CallToolResult> {
        let sandbox = self.server.store.enter(self.owner, &arguments.sandbox)?;
        let working_dir = sandbox.working_dir();
        let fork = self.server.create(self.account(), Source::State(State::Fork(sandbox))).await?;
        fork.set_working_dir(working_dir);
        self.created(&fork)
    }

    pub(super) async fn close_sandbox(self, arguments: CloseSandbox) -> Result<CallToolResult> {
        let closed = match (arguments.sandbox, arguments.snapshot, arguments.session) {
            (sandbox, None, Some(name)) => {
                self.existing(sandbox.as_deref()).await?.interpreters().close(&name).await?;
                name
            }
            (Some(id), None, None) => {
                self.server.store.close(self.owner, &id).await?;
                id
            }
            (None, Some(id), None) => {
                self.server.store.delete_snapshot(self.owner, &id)?;
                id
            }
            _ => {
                let what = "close_sandbox needs the id of a sandbox or a snapshot, or the name of a session";
                return Err(Error::invalid("close", what)
                    .with_remedy("pass exactly one of sandbox and snapshot, or session with its sandbox"));
            }
        };
        structured(&Closed { closed }, Vec::new())
    }

    fn created(self, sandbox: &InUse) -> Result<CallToolResult> {
        let (backend, idle) = (&self.server.backend, self.server.config.bounds.idle);
        structured(&CreatedSandbox::new(sandbox.id(), backend.name(), backend.level(), &***sandbox, idle), Vec::new())
    }
}
