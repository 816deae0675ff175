//! Sandboxes for tests.

use std::sync::Arc;

use cofferdam_code::{BackendProfile, CodeConfig, CodeRequest, CodeResult, Executor};
use cofferdam_contract::{Backend, ByteSize, Limits, Protection, Result, Sandbox, Spec, SpecBuilder};
use cofferdam_process::{ProcessBackend, ProcessConfig};

/// Returns a spec that accepts weaker protections, because an ordinary user's host may be unable to enforce them.
pub fn spec() -> SpecBuilder {
    use Protection as P;
    let weaker = [P::Memory, P::CpuTime, P::Processes, P::Disk];
    // Node needs several threads in addition to other processes.
    let limits = Limits { pids: Some(32), memory: Some(ByteSize::from_mebibytes(1024)), ..Limits::default() };
    weaker.into_iter().fold(Spec::builder().limits(limits), |spec, item| spec.allow_weaker(item))
}

pub fn backend() -> Arc<ProcessBackend> {
    Arc::new(ProcessBackend::new(ProcessConfig::default()).expect("the backend starts"))
}

/// A sandbox and an executor.
pub struct World {
    pub profile: BackendProfile,
    pub sandbox: Arc<dyn Sandbox>,
    pub executor: Executor,
    _backend: Arc<ProcessBackend>,
}

impl World {
    pub async fn new() -> Self {
        Self::with(CodeConfig::default(), spec()).await
    }

    pub async fn with(config: CodeConfig, spec: SpecBuilder) -> Self {
        let backend = backend();
        let sandbox = backend.create(spec.build().expect("valid")).await.expect("a sandbox");
        let executor = Executor::new(config).expect("an executor");
        Self { profile: BackendProfile::of(&*backend), sandbox, executor, _backend: backend }
    }

    pub async fn try_run(&self, request: CodeRequest) -> Result<CodeResult> {
        self.executor.execute(&self.profile, &*self.sandbox, request).await
    }

    pub async fn run(&self, language: &str, code: &str) -> CodeResult {
        self.try_run(CodeRequest::new(language, code)).await.expect("it runs")
    }
}
