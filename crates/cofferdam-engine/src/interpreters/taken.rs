//! A prepared interpreter with the request that it was taken for, and a view of its sandbox with the request's spec.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    DirEntry, ExecHandle, ExecRequest, FileReader, Posture, PostureItem, Protection, ProtectionState, Result, Sandbox,
    SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec,
};
use cofferdam_interpreter::WarmInterpreter;

/// A prepared interpreter that was taken for one request. Dropping it ends it.
#[derive(Debug)]
pub struct Taken {
    pub(super) interpreter: WarmInterpreter,
    pub(super) spec: Spec,
    pub(super) request: ExecRequest,
}

impl Taken {
    /// Passes the request to the interpreter. Returns when the code is about to run.
    ///
    /// # Behavior
    /// - Fails as [`WarmInterpreter::start`] does. In that case no code has run outside of a sandbox that is gone,
    ///   so the caller may perform a cold start.
    /// - The sandbox has the request's spec. Its posture is the measured one: the limit on processes is the
    ///   interpreter's, which is [`cofferdam_interpreter::EXTRA_PROCESSES`] above the limit on the code. The row of the
    ///   wall time is that of the request, which the supervisor of the interpreter enforces.
    pub async fn start(self) -> Result<(ExecHandle, Arc<dyn Sandbox>)> {
        let sandbox = Arc::clone(self.interpreter.sandbox());
        match self.interpreter.start(self.request).await {
            Ok(handle) => {
                let posture = posture(sandbox.posture(), sandbox.spec(), &self.spec);
                Ok((handle, Arc::new(Named { sandbox, spec: self.spec, posture })))
            }
            Err(error) => Err(error.with_failed_close(sandbox.close().await)),
        }
    }
}

/// Returns the posture with the wall time of the request instead of the template's. The supervisor enforces this timer,
/// not the backend.
fn posture(measured: &Posture, made_for: &Spec, asked: &Spec) -> Posture {
    let time = asked.limits().wall_time;
    if time == made_for.limits().wall_time {
        return measured.clone();
    }
    let mechanism = format!("timer of the supervisor, {} s, then SIGKILL to the tree", time.as_secs_f64());
    Posture::new(measured.items().iter().cloned().map(|item| match item.protection {
        Protection::WallTime => {
            PostureItem { state: ProtectionState::Enforced, mechanism: mechanism.clone(), probed: false, ..item }
        }
        _ => item,
    }))
}

/// A sandbox with the spec and posture of another request.
#[derive(Debug)]
struct Named {
    sandbox: Arc<dyn Sandbox>,
    spec: Spec,
    posture: Posture,
}

#[async_trait]
impl Sandbox for Named {
    fn id(&self) -> &SandboxId {
        self.sandbox.id()
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        self.sandbox.start(request).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.sandbox.read_file(path).await
    }

    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        self.sandbox.read_file_from(path, offset).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        self.sandbox.write_file(path, contents).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        self.sandbox.list_dir(path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.sandbox.remove(path).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.sandbox.snapshot().await
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        self.sandbox.fork().await
    }

    async fn pause(&self) -> Result<()> {
        self.sandbox.pause().await
    }

    async fn resume(&self) -> Result<()> {
        self.sandbox.resume().await
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.sandbox.usage().await
    }

    async fn close(&self) -> Result<()> {
        self.sandbox.close().await
    }
}
