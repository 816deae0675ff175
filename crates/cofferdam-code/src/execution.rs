//! Execution of a program whose output the caller follows while it runs.
//!
//! ```text
//! Executor::start: bounds -> audit record -> static analysis -> sandbox -> start --> Execution
//! Execution: output as it arrives --> result, and the end of the audit record
//! ```

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use cofferdam_audit::Redactor;
use cofferdam_contract::{
    Backend, Completed, Error, ErrorKind, ExecHandle, ExecRequest, Exit, NetworkPolicy, OutputEvent, OutputStream,
    OutputSubscription, Result, Sandbox, Spec,
};
use parking_lot::Mutex;

use crate::executor::Call;
use crate::{BackendProfile, CodeRequest, CodeResult, Executor, Screened, Secrets, Want};

/// A callback for the findings of the static analysis. It is called before anything starts.
pub type OnScreened<'a> = &'a (dyn Fn(&Screened) + Send + Sync);

/// The checks of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oversight {
    /// The static analysis only. The execution has no result besides its output and exit.
    Analysis,
    /// Bounds, audit record and static analysis. The execution has a result.
    Full,
}

/// A program to start.
pub struct Job<'a> {
    /// The exec to start. Full oversight replaces its timeout and maximum output by those of the call.
    pub exec: ExecRequest,
    /// The same program as code; `None` for a command. If it wants results, the executor starts the code in its wrapper
    /// instead, with the standard input of `exec`.
    pub code: Option<CodeRequest>,
    /// The secrets of a command. Their values are removed from artifacts.
    pub secrets: Secrets,
    /// The checks.
    pub oversight: Oversight,
    /// The language whose minimum version is checked before the start.
    pub checked_version: Option<String>,
    /// The receiver of findings.
    pub on_screened: OnScreened<'a>,
}

impl fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("oversight", &self.oversight).finish_non_exhaustive()
    }
}

/// The outcome of a start.
#[derive(Debug)]
pub enum Started<T> {
    /// The program runs.
    Running(Box<Execution>),
    /// The caller cancelled the start, for this reason.
    Cancelled(T),
}

/// A running program. Dropping it kills the program, and its audit record ends as cancelled.
pub struct Execution {
    sandbox: Arc<dyn Sandbox>,
    handle: ExecHandle,
    exec: ExecRequest,
    call: Option<Call>,
    /// The output for the artifact of the audit log.
    prefix: Mutex<OutputPrefix>,
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// The output of an execution as it arrives.
pub struct ExecutionOutput<'a> {
    output: OutputSubscription,
    prefix: &'a Mutex<OutputPrefix>,
}

impl fmt::Debug for ExecutionOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExecutionOutput")
    }
}

impl Executor {
    /// Starts a program in a new sandbox of `backend`. The caller closes the sandbox.
    ///
    /// # Behavior
    /// - Nothing is created for a program that may not run.
    /// - If `cancelled` completes first, the start ends and leaves nothing behind.
    ///
    /// # Errors
    /// - Those of [`Self::execute`] before anything is started.
    /// - Those of [`Backend::start_one`].
    pub async fn start<T>(
        &self,
        backend: &dyn Backend,
        spec: &Spec,
        job: Job<'_>,
        cancelled: impl Future<Output = T>,
    ) -> Result<Started<T>> {
        let profile = BackendProfile::of(backend);
        let start = async |admitted: &mut AdmittedJob| {
            let redactor = admitted.redactor.clone();
            // The log must follow the network before a program uses it.
            let is_followed = self.0.audit.is_some() && *spec.network() != NetworkPolicy::None;
            if !admitted.needs_sandbox() && !is_followed {
                let (sandbox, handle) = backend.start_one(spec.clone(), admitted.exec.clone()).await?;
                return Ok((self.record_network_without(sandbox, redactor).await?, handle));
            }
            let sandbox = self.record_network_without(backend.create(spec.clone()).await?, redactor).await?;
            match admitted.start(self, &profile, &*sandbox).await {
                Ok(handle) => Ok((sandbox, handle)),
                Err(error) => Err(error.with_failed_close(sandbox.close().await)),
            }
        };
        self.admit_job(&profile, spec, job).await?.started(self, cancelled, start).await
    }

    /// Starts a program like [`Self::start`], in the sandbox that `create` returns. `create` is polled only if the
    /// program may run.
    pub async fn start_in<T>(
        &self,
        profile: &BackendProfile,
        spec: &Spec,
        job: Job<'_>,
        cancelled: impl Future<Output = T>,
        create: impl Future<Output = Result<Arc<dyn Sandbox>>>,
    ) -> Result<Started<T>> {
        let start = async |admitted: &mut AdmittedJob| {
            let sandbox = create.await?;
            let handle = admitted.start(self, profile, &*sandbox).await?;
            Ok((sandbox, handle))
        };
        self.admit_job(profile, spec, job).await?.started(self, cancelled, start).await
    }

    async fn admit_job(&self, profile: &BackendProfile, spec: &Spec, job: Job<'_>) -> Result<AdmittedJob> {
        let Job { exec, code, secrets, oversight, checked_version, on_screened } = job;
        let redactor = self.redactor(code.as_ref().map_or(&secrets, |code| &code.secrets))?;
        if oversight == Oversight::Analysis {
            if let Some(code) = code {
                self.analyze(&code.language, &code.code).await?.iter().for_each(on_screened);
            }
            return Ok(AdmittedJob { call: None, exec, checked_version, redactor });
        }
        let wrapped = code.as_ref().is_some_and(|code| code.results == Want::Yes);
        let call = match code {
            Some(code) => self.begin(profile, spec, code).await?,
            None => self.begin_command(profile, spec, exec.clone(), secrets).await?,
        };
        let exec = match wrapped {
            true => call.exec.to_builder().stdin(exec.stdin().clone()).build(),
            false => bounded(&exec, &call.exec),
        };
        match exec {
            Ok(exec) => {
                call.screened.iter().for_each(on_screened);
                Ok(AdmittedJob { call: Some(call), exec, checked_version, redactor })
            }
            Err(error) => Err(call.not_started(error).await),
        }
    }
}

/// A job that may start.
struct AdmittedJob {
    call: Option<Call>,
    exec: ExecRequest,
    checked_version: Option<String>,
    /// Leaves the secrets of the job out of the audit log.
    redactor: Redactor,
}

impl AdmittedJob {
    /// Returns true if the sandbox must be queried before the program starts in it.
    fn needs_sandbox(&self) -> bool {
        self.checked_version.is_some() || self.call.as_ref().is_some_and(Call::lists_files)
    }

    async fn start(
        &mut self,
        executor: &Executor,
        profile: &BackendProfile,
        sandbox: &dyn Sandbox,
    ) -> Result<ExecHandle> {
        if let Some(call) = &mut self.call {
            call.denied = sandbox.network_denials();
        }
        match (self.call.as_mut().filter(|call| call.lists_files()), &self.checked_version) {
            (Some(call), _) => call.prepare(sandbox).await?,
            (None, Some(language)) => drop(executor.detect(profile, sandbox, language).await?),
            (None, None) => {}
        }
        sandbox.start(self.exec.clone()).await
    }

    /// Starts the job with `start`. A job that does not start gets the end of its audit record.
    async fn started<T>(
        mut self,
        executor: &Executor,
        cancelled: impl Future<Output = T>,
        start: impl AsyncFnOnce(&mut Self) -> Result<(Arc<dyn Sandbox>, ExecHandle)>,
    ) -> Result<Started<T>> {
        let started = tokio::select! {
            started = start(&mut self) => started,
            reason = cancelled => {
                if let Some(call) = self.call {
                    call.failed(abandoned()).await;
                }
                return Ok(Started::Cancelled(reason));
            }
        };
        let Self { call, exec, .. } = self;
        match (started, call) {
            (Ok((sandbox, handle)), call) => {
                let artifact = executor.config().audit.as_ref().and_then(|audit| audit.artifact_bytes);
                let prefix = Mutex::new(OutputPrefix::new(artifact.filter(|_| call.is_some()).unwrap_or_default()));
                Ok(Started::Running(Box::new(Execution { sandbox, handle, exec, call, prefix })))
            }
            (Err(error), Some(call)) => Err(call.not_started(error).await),
            (Err(error), None) => Err(error),
        }
    }
}

impl Execution {
    /// Returns the sandbox.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// Returns the exec, to control it. [`Self::output`] returns its output.
    pub fn handle(&self) -> &ExecHandle {
        &self.handle
    }

    /// Returns the exec request that was started.
    pub fn request(&self) -> &ExecRequest {
        &self.exec
    }

    /// Subscribes to the output, as [`ExecHandle::output`] does.
    pub fn output(&self) -> ExecutionOutput<'_> {
        ExecutionOutput { output: self.handle.output(), prefix: &self.prefix }
    }

    /// Waits for the exit and returns the result. Returns `None` for a job without full oversight. The result has only
    /// the output that fits into an artifact and that the caller has read by [`Self::output`].
    ///
    /// # Errors
    /// - The error of the exec.
    /// - `Unavailable` if a mandatory audit log cannot be written.
    pub async fn result(self) -> Result<Option<CodeResult>> {
        let Some(call) = self.call else { return Ok(None) };
        match self.handle.exit().await {
            Ok(exit) => call.finish(&*self.sandbox, self.prefix.into_inner().completed(exit)).await.map(Some),
            Err(error) => Err(call.failed(error).await),
        }
    }

    /// Ends the execution because of an error of its sandbox or its caller. Returns the error.
    pub async fn failed(self, error: Error) -> Error {
        match self.call {
            Some(call) => call.failed(error).await,
            None => error,
        }
    }

    /// Ends an execution whose result is not wanted.
    pub async fn abandon(self) {
        // The caller reports the reason.
        let _ = self.failed(abandoned()).await;
    }
}

fn abandoned() -> Error {
    Error::new(ErrorKind::Closed, "run", "the call was abandoned before it ended")
}

impl ExecutionOutput<'_> {
    /// Waits for the next event. Returns `None` when the exec has ended.
    pub async fn next(&mut self) -> Option<OutputEvent> {
        let event = self.output.next().await?;
        self.prefix.lock().put(&event);
        Some(event)
    }
}

/// Returns the request with the timeout and the maximum output of another one.
fn bounded(request: &ExecRequest, bounds: &ExecRequest) -> Result<ExecRequest> {
    let max_output = bounds.max_output();
    let builder = request.to_builder().max_output(max_output).output_buffer(request.output_buffer().min(max_output));
    match bounds.timeout() {
        Some(time) => builder.timeout(time).build(),
        None => builder.build(),
    }
}

/// The beginning of the output, up to a maximum size.
#[derive(Debug)]
pub(crate) struct OutputPrefix {
    left: usize,
    /// True if output was dropped.
    pub(crate) cut: bool,
    stdout: BytesMut,
    stderr: BytesMut,
}

impl OutputPrefix {
    pub(crate) fn new(max_bytes: u64) -> Self {
        let left = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        Self { left, cut: false, stdout: BytesMut::new(), stderr: BytesMut::new() }
    }

    pub(crate) fn put(&mut self, event: &OutputEvent) {
        let OutputEvent::Chunk(chunk) = event else {
            self.cut = true;
            return;
        };
        let data = &chunk.data[..self.left.min(chunk.data.len())];
        self.left -= data.len();
        self.cut |= data.len() < chunk.data.len();
        match chunk.stream {
            OutputStream::Stdout => self.stdout.extend_from_slice(data),
            OutputStream::Stderr => self.stderr.extend_from_slice(data),
        }
    }

    pub(crate) fn completed(self, exit: Exit) -> Completed {
        Completed { exit, stdout: self.stdout.freeze(), stderr: self.stderr.freeze() }
    }
}
