//! A sandbox of E2B.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, NewEntry, Posture, Result, Sandbox, SandboxId,
    SandboxPath, SandboxUsage, Snapshot, Spec,
};
use hyper::Method;

use crate::client::parsed;
use crate::core::{Core, Phase};
use crate::error::{Failure, gone};
use crate::wire::{CreatedSandbox, Metric, Timeout};
use crate::{exec, files};

/// A sandbox of E2B. Dropping it deletes it.
#[derive(Debug)]
pub(crate) struct E2bSandbox {
    core: Arc<Core>,
    id: SandboxId,
    spec: Spec,
    posture: Posture,
}

impl E2bSandbox {
    pub fn new(core: Arc<Core>, spec: Spec, posture: Posture) -> Self {
        Self { id: SandboxId::new(core.id.clone()), core, spec, posture }
    }
}

/// Does work in a task of its own, so that its result exists even if the caller gives up, and is then dropped.
pub(crate) async fn detached<T: Send + 'static>(
    operation: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, operation, "the request was interrupted")))
}

/// Pauses a sandbox. E2B writes its memory to its disk.
async fn pause(core: Arc<Core>) -> Result<()> {
    let _changing = core.changing.lock().await;
    let epoch = match core.phase() {
        Phase::Running(epoch) => epoch,
        Phase::Paused(_) => return Ok(()),
        Phase::Closed | Phase::Gone => return core.open("pause").map(drop),
    };
    // Before the request: connections that it cuts must not look like failures.
    core.enter(Phase::Paused(epoch));
    // A repeated request is refused with 409 if an earlier one was carried out.
    match core.client.call(Method::POST, &core.url("/pause"), Some(&serde_json::json!({})), true).await {
        Ok(_) => Ok(()),
        Err(Failure::Refused(refusal)) if refusal.status == 409 => Ok(()),
        Err(failure) => after_failed_pause(&core, epoch, failure).await,
    }
}

/// Asks E2B for the state after a pause that failed: it may have been carried out, and its answer lost.
async fn after_failed_pause(core: &Core, epoch: u64, failure: Failure) -> Result<()> {
    let error = failure.into_error("pause");
    match core.detail().await {
        Ok(detail) if detail.is_paused() => Ok(()),
        Ok(_) => {
            core.enter(Phase::Running(epoch + 1));
            Err(error)
        }
        Err(failure) if failure.is_gone() => {
            core.enter(Phase::Gone);
            Err(gone("pause"))
        }
        // A resume is right in both states.
        Err(_) => Err(error.with_remedy("resume the sandbox: it is not known whether it is paused")),
    }
}

/// Resumes a sandbox. Its connections must be opened again.
async fn resume(core: Arc<Core>) -> Result<()> {
    let _changing = core.changing.lock().await;
    let epoch = match core.phase() {
        Phase::Running(_) => return Ok(()),
        Phase::Paused(epoch) => epoch,
        Phase::Closed | Phase::Gone => return core.open("resume").map(drop),
    };
    let timeout = Timeout { timeout: core.client.config().lifetime.as_secs() };
    let path = format!("/v2{}", core.url("/connect"));
    let answer = core.client.call(Method::POST, &path, Some(&timeout), true).await;
    let answer = answer.map_err(|failure| core.failed("resume", failure))?;
    let created: CreatedSandbox = parsed(&answer).map_err(|failure| failure.into_error("resume"))?;
    core.set_agent(core.client.agent(&core.id, created.token.as_deref(), created.domain.as_deref())?);
    core.enter(Phase::Running(epoch + 1));
    Ok(())
}

#[async_trait]
impl Sandbox for E2bSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        self.core.open("start")?;
        let (core, wall_time) = (Arc::clone(&self.core), self.spec.limits().wall_time);
        detached("start", exec::start(core, request, wall_time)).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        files::read(&self.core, path, 0).await
    }

    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        files::read(&self.core, path, offset).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        files::write(&self.core, path, contents).await
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        files::put(&self.core, path, entry).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        files::list(&self.core, path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        files::rename(&self.core, from, to).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        files::remove(&self.core, path).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.core.open("snapshot")?;
        Err(Error::unsupported("snapshot", "the e2b backend takes no snapshots")
            .with_remedy("pause the sandbox, or use the backend vm"))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        self.core.open("fork")?;
        Err(Error::unsupported("fork", "the e2b backend does not fork sandboxes").with_remedy("use the backend vm"))
    }

    async fn pause(&self) -> Result<()> {
        detached("pause", pause(Arc::clone(&self.core))).await
    }

    async fn resume(&self) -> Result<()> {
        detached("resume", resume(Arc::clone(&self.core))).await
    }

    /// Returns the memory in use, as E2B measured it last. E2B measures nothing else that the contract has.
    async fn usage(&self) -> Result<SandboxUsage> {
        match self.core.phase() {
            Phase::Running(_) => {}
            Phase::Paused(_) => return Ok(SandboxUsage::default()),
            Phase::Closed | Phase::Gone => return self.core.open("usage").map(|_| SandboxUsage::default()),
        }
        let answer = self.core.client.call(Method::GET, &self.core.url("/metrics"), None::<&()>, true).await;
        let answer = answer.map_err(|failure| self.core.failed("usage", failure))?;
        let metrics: Vec<Metric> = parsed(&answer).map_err(|failure| failure.into_error("usage"))?;
        let last = metrics.into_iter().max_by_key(|metric| metric.timestamp_unix);
        Ok(SandboxUsage { memory_bytes: last.and_then(|metric| metric.mem_used), ..SandboxUsage::default() })
    }

    async fn close(&self) -> Result<()> {
        let core = Arc::clone(&self.core);
        core.enter(Phase::Closed);
        detached("close", async move { core.delete().await }).await
    }
}

impl Drop for E2bSandbox {
    fn drop(&mut self) {
        self.core.abandon();
    }
}
