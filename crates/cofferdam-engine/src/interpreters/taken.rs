//! One interpreter together with the request that it was taken for, and its sandbox as the request's spec names it.

use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    DirEntry, ExecHandle, ExecRequest, FileReader, Posture, Result, Sandbox, SandboxId, SandboxPath, SandboxUsage,
    Snapshot, Spec,
};
use cofferdam_interpreter::WaitingInterpreter;

/// A waiting interpreter that was taken for one request. Dropping it ends it.
#[derive(Debug)]
pub struct Taken {
    pub(super) interpreter: WaitingInterpreter,
    pub(super) spec: Spec,
    pub(super) request: ExecRequest,
}

impl Taken {
    /// Gives the interpreter its request; returns when the code is about to run.
    ///
    /// # Behavior
    /// - Fails as [`WaitingInterpreter::start`] does. None of the code has run then, outside of a sandbox that is gone:
    ///   the caller may start cold.
    /// - The sandbox carries the request's spec. Its posture is what was measured: the bound on processes is the
    ///   interpreter's, which is [`cofferdam_interpreter::EXTRA_PROCESSES`] above what the code can have.
    pub async fn start(self) -> Result<(ExecHandle, Arc<dyn Sandbox>)> {
        let sandbox = Arc::clone(self.interpreter.sandbox());
        match self.interpreter.start(self.request).await {
            Ok(handle) => Ok((handle, Arc::new(Named { sandbox, spec: self.spec }))),
            Err(error) => {
                sandbox.close().await?;
                Err(error)
            }
        }
    }
}

/// A sandbox under the names of another spec.
#[derive(Debug)]
struct Named {
    sandbox: Arc<dyn Sandbox>,
    spec: Spec,
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
        self.sandbox.posture()
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        self.sandbox.start(request).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.sandbox.read_file(path).await
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

    async fn usage(&self) -> Result<SandboxUsage> {
        self.sandbox.usage().await
    }

    async fn close(&self) -> Result<()> {
        self.sandbox.close().await
    }
}
