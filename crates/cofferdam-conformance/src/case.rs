//! Conformance cases: the row of a case in the table, its verdict, and its context.

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use cofferdam_contract::{
    Backend, ByteSize, Capability, Completed, Error, ErrorKind, ExecHandle, ExecRequestBuilder, Limits, OutputEvent,
    OutputSubscription, Sandbox, SandboxPath, Spec, SpecBuilder, Stdin,
};
use parking_lot::Mutex;

use crate::{GuestProgram, Options, Programs, READY, Target, TestImage};

/// A reason to end a case early.
#[derive(Debug)]
pub(crate) enum Stop {
    Fail(String),
    Skip(String),
}

impl Stop {
    pub(crate) fn fail(message: impl Into<String>) -> Self {
        Self::Fail(message.into())
    }

    pub(crate) fn skip(reason: impl Into<String>) -> Self {
        Self::Skip(reason.into())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fail(format!("unexpected error: {error}"))
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Fail(format!("unexpected I/O error: {error}"))
    }
}

pub(crate) type Outcome<T> = Result<T, Stop>;
pub(crate) type Verdict = Outcome<()>;
pub(crate) type CaseFuture = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// Fails the case with a formatted message unless the condition holds.
macro_rules! check {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::case::Stop::fail(format!($($message)+)));
        }
    };
}
pub(crate) use check;

/// Fails the case unless both values are equal.
macro_rules! check_eq {
    ($got:expr, $expected:expr, $what:expr) => {
        match (&$got, &$expected) {
            (got, expected) if *got == *expected => {}
            (got, expected) => {
                return Err($crate::case::Stop::fail(format!("{}: expected {expected:?}, got {got:?}", $what)));
            }
        }
    };
}
pub(crate) use check_eq;

/// Fails the case unless `result` is an error of one of `kinds`.
pub(crate) fn expect_error<T>(result: Result<T, Error>, kinds: &[ErrorKind], what: &str) -> Verdict {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    match result {
        Err(error) if kinds.contains(&error.kind()) => Ok(()),
        Err(error) => {
            Err(Stop::fail(format!("{what}: expected {}, got {}: {error}", names.join(" or "), error.kind().as_str())))
        }
        Ok(_) => Err(Stop::fail(format!("{what}: expected {}, but it succeeded", names.join(" or ")))),
    }
}

/// A row of the table.
pub(crate) struct Case {
    pub(crate) info: CaseInfo,
    pub(crate) run: fn(Context) -> CaseFuture,
}

/// The description of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaseInfo {
    /// The name, such as `exit/timeout`.
    pub name: &'static str,
    /// The requirement that the case tests.
    pub requirement: &'static str,
    /// Capabilities without which the case is skipped.
    pub needs: &'static [Capability],
}

/// The resources of a case. Sandboxes created through it are closed after the case, even if it fails.
#[derive(Clone)]
pub(crate) struct Context {
    target: Target,
    large_file: ByteSize,
    open: Arc<Mutex<Vec<Arc<dyn Sandbox>>>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn new(target: &Target, options: &Options) -> Self {
        Self { target: target.clone(), large_file: options.large_file, open: Arc::default() }
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.target.backend
    }

    pub(crate) fn declares(&self, capability: Capability) -> bool {
        self.target.backend.capabilities().contains(&capability)
    }

    /// Returns a root file system that the caller provides.
    pub(crate) fn root(&self) -> Outcome<&Path> {
        self.target.root.as_deref().ok_or_else(|| Stop::skip("no root directory was provided"))
    }

    /// Returns an image that the host has.
    pub(crate) fn image(&self) -> Outcome<&TestImage> {
        self.target.image.as_ref().ok_or_else(|| Stop::skip("no image was provided"))
    }

    pub(crate) fn large_file(&self) -> ByteSize {
        self.large_file
    }

    /// Returns a builder that begins with the target's spec.
    pub(crate) fn spec(&self) -> SpecBuilder {
        self.target.spec.to_builder()
    }

    /// Returns the target's spec with changed limits.
    pub(crate) fn limited(&self, change: impl FnOnce(&mut Limits)) -> Outcome<Spec> {
        let mut limits = self.target.spec.limits().clone();
        change(&mut limits);
        Ok(self.spec().limits(limits).build()?)
    }

    pub(crate) fn programs(&self) -> &dyn Programs {
        &*self.target.programs
    }

    /// Returns a request for a guest program. Skips the case if the guests cannot run it.
    pub(crate) fn request(&self, program: &GuestProgram) -> Outcome<ExecRequestBuilder> {
        self.target
            .programs
            .request(program)
            .ok_or_else(|| Stop::skip(format!("the backend's guest programs do not include {}", program.name())))
    }

    pub(crate) async fn sandbox(&self) -> Outcome<Arc<dyn Sandbox>> {
        self.sandbox_of(self.spec().build()?).await
    }

    pub(crate) async fn sandbox_of(&self, spec: Spec) -> Outcome<Arc<dyn Sandbox>> {
        let sandbox = self.target.backend.create(spec).await?;
        Ok(self.keep(sandbox))
    }

    /// Registers a sandbox that the case created itself, to close it after the case.
    pub(crate) fn keep(&self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        self.open.lock().push(Arc::clone(&sandbox));
        sandbox
    }

    /// Runs a program in a sandbox to its end.
    pub(crate) async fn exec(&self, sandbox: &Arc<dyn Sandbox>, program: GuestProgram) -> Outcome<Completed> {
        Ok(sandbox.exec(self.request(&program)?.build()?).await?)
    }

    /// Runs a program in a sandbox to its end. Fails the case if the program fails.
    pub(crate) async fn exec_ok(&self, sandbox: &Arc<dyn Sandbox>, program: GuestProgram) -> Outcome<Completed> {
        let name = program.name();
        let done = self.exec(sandbox, program).await?;
        check!(done.exit.success(), "{name} failed: {:?}, stderr: {}", done.exit, text(&done.stderr));
        Ok(done)
    }

    /// Runs a program to its end in a sandbox of its own.
    pub(crate) async fn run(&self, program: GuestProgram) -> Outcome<Completed> {
        let request = self.request(&program)?;
        self.run_request(request).await
    }

    /// Runs a request to its end in a sandbox of its own.
    pub(crate) async fn run_request(&self, request: ExecRequestBuilder) -> Outcome<Completed> {
        Ok(self.sandbox().await?.exec(request.build()?).await?)
    }

    /// Starts a program that prints [`READY`], and waits for that.
    pub(crate) async fn start_ready(&self, sandbox: &Arc<dyn Sandbox>, program: GuestProgram) -> Outcome<ExecHandle> {
        let request = self.request(&program)?;
        start_ready(sandbox, request).await
    }

    /// Closes the sandboxes that the case left open.
    pub(crate) async fn close_all(&self) -> Verdict {
        let open = std::mem::take(&mut *self.open.lock());
        for sandbox in open {
            sandbox.close().await.map_err(|error| Stop::fail(format!("cannot close the sandbox: {error}")))?;
        }
        Ok(())
    }
}

/// Starts a request and waits until its program has printed [`READY`].
pub(crate) async fn start_ready(sandbox: &Arc<dyn Sandbox>, request: ExecRequestBuilder) -> Outcome<ExecHandle> {
    let handle = sandbox.start(request.build()?).await?;
    wait_for(&mut handle.output(), READY).await?;
    Ok(handle)
}

/// Reads stdout and stderr until the output contains `wanted`. Returns all output read.
pub(crate) async fn wait_for(output: &mut OutputSubscription, wanted: &str) -> Outcome<String> {
    let mut seen = Vec::new();
    while let Some(event) = output.next().await {
        if let OutputEvent::Chunk(chunk) = event {
            seen.extend_from_slice(&chunk.data);
            if text(&seen).contains(wanted) {
                return Ok(text(&seen));
            }
        }
    }
    Err(Stop::fail(format!("the output ended without {wanted:?}; got {:?}", text(&seen))))
}

/// Reads output to its end.
pub(crate) async fn read_all(output: &mut OutputSubscription) -> (Vec<u8>, u64) {
    let (mut seen, mut lost) = (Vec::new(), 0);
    while let Some(event) = output.next().await {
        match event {
            OutputEvent::Chunk(chunk) => seen.extend_from_slice(&chunk.data),
            OutputEvent::Lost { bytes, .. } => lost += bytes,
        }
    }
    (seen, lost)
}

pub(crate) fn path(text: &str) -> Outcome<SandboxPath> {
    Ok(SandboxPath::new(text)?)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn stdin_bytes(bytes: impl Into<bytes::Bytes>) -> Stdin {
    Stdin::Bytes(bytes.into())
}

/// Reads a small file through the file API.
pub(crate) async fn read_small(sandbox: &Arc<dyn Sandbox>, name: &str) -> Outcome<Vec<u8>> {
    Ok(sandbox.read_file_to_end(&path(name)?, ByteSize::from_mebibytes(4)).await?)
}

/// Writes a small file through the file API.
pub(crate) async fn write_small(sandbox: &Arc<dyn Sandbox>, name: &str, contents: impl Into<bytes::Bytes>) -> Verdict {
    sandbox.write_bytes(&path(name)?, contents).await?;
    Ok(())
}
