//! A backend that wraps the simulated one and violates the contract in one way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cofferdam_contract::{
    Access, Backend, BackendLayer, ByteSize, Capabilities, Capability, DirEntry, Error, ErrorKind, ExecControl,
    ExecHandle, ExecRequest, ExecRequestBuilder, Exit, FileReader, NewEntry, OutputEvent, OutputStream, Posture,
    PreparedSandbox, Protection, Result, RootFs, Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec,
    StdinWriter, TerminalSize, Workspace,
};
use cofferdam_simulated::SimulatedBackend;
use parking_lot::Mutex;

/// The file of an image, in the workspace, which is all that a simulated sandbox has.
pub const IMAGE_FILE: &str = "of-the-image";

/// The violation of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// No violation: the wrapper by itself must not fail a case.
    Sound,
    IgnoresReadOnly,
    DoesNotTruncate,
    SaysNothingOfTruncation,
    ForgetsTimedOut,
    TimesOutWithCodeZero,
    ExitCodeIsAlwaysZero,
    ForgetsCancelled,
    CancelIsTermOnly,
    CancelIsKillAtOnce,
    KillsNothing,
    SwapsStreams,
    LosesTheLastByte,
    OutputOnlyAtTheEnd,
    ReplaysToLateSubscribers,
    InheritsAVariable,
    IgnoresWorkingDir,
    SharesStdin,
    FollowsLinksOutside,
    ReadsFifosForEver,
    WritesPiecemeal,
    ListsUnsorted,
    RemovesNothing,
    StartsAfterClose,
    CloseFailsTheSecondTime,
    LiesAboutTerminals,
    DoesMoreThanDeclared,
    LosesLabels,
    AcceptsUnknownAttributes,
    SkipsValidation,
    /// Images without a violation: a sandbox of one begins with [`IMAGE_FILE`].
    SoundImages,
    /// Every reference is an image without files.
    ImagesAreEmpty,
    ImagesShareARoot,
    HasNoMemoryLimit,
    HasNoCpuLimit,
    HasNoProcessLimit,
    HasNoDiskLimit,
    HasAWeakPosture,
    LeavesRowsOut,
    ForksShareFiles,
    RestoresAnything,
    PausesNothing,
    WarmForgetsLimits,
    WarmForgetsAccess,
    WarmKeepsItsTemplate,
    WarmInheritsAVariable,
    WarmFitsEverything,
    WarmAcceptsWeaker,
    WarmDoesMoreThanDeclared,
    WarmLeaksWhenClosed,
    ClaimsShareASandbox,
    Panics,
    Hangs,
}

#[derive(Debug)]
pub struct Broken {
    pub inner: SimulatedBackend,
    pub defect: Defect,
    /// The sandbox that claims share.
    pub shared: Arc<Mutex<Option<Arc<dyn Sandbox>>>>,
}

#[derive(Debug)]
struct BrokenSandbox {
    inner: Arc<dyn Sandbox>,
    defect: Defect,
    /// The spec that the sandbox reports.
    spec: Spec,
    posture: Posture,
    spare: Option<Arc<dyn Sandbox>>,
    closes: AtomicU64,
    last_input: Mutex<Bytes>,
}

/// Returns a backend that violates the contract in one way and otherwise forwards to `inner`.
pub fn broken(inner: SimulatedBackend, defect: Defect) -> Broken {
    Broken { inner, defect, shared: Arc::default() }
}

fn loosened(spec: &Spec, defect: Defect) -> Spec {
    let mut limits = spec.limits().clone();
    let mut builder = spec.to_builder();
    match defect {
        Defect::IgnoresReadOnly => {
            builder = builder.workspace(Workspace::Private { access: Access::ReadWrite });
        }
        Defect::HasNoMemoryLimit => limits.memory = None,
        Defect::HasNoCpuLimit => limits.cpu_time = None,
        Defect::HasNoProcessLimit => limits.pids = None,
        Defect::HasNoDiskLimit => limits.disk = None,
        Defect::SkipsValidation => return Spec::default(),
        Defect::AcceptsUnknownAttributes => return Spec::builder().limits(limits).build().unwrap(),
        _ => {}
    }
    // A spec that a defective backend accepts may be invalid, which the simulated one reports.
    builder.limits(limits).build().unwrap_or_else(|_| spec.clone())
}

impl Broken {
    async fn wrap(&self, inner: Arc<dyn Sandbox>, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let spare = match self.defect {
            Defect::StartsAfterClose => Some(self.inner.create(Spec::default()).await?),
            _ => None,
        };
        let spec = match self.defect {
            Defect::LosesLabels => Spec::builder().limits(spec.limits().clone()).build()?,
            _ => spec,
        };
        let mut items = inner.posture().items().to_vec();
        match self.defect {
            Defect::LeavesRowsOut => items.retain(|item| item.protection != Protection::Network),
            Defect::HasAWeakPosture => items[0].state = cofferdam_contract::ProtectionState::Absent,
            _ => {}
        }
        Ok(Arc::new(BrokenSandbox {
            inner,
            defect: self.defect,
            spec,
            posture: Posture::new(items),
            spare,
            closes: AtomicU64::new(0),
            last_input: Mutex::default(),
        }))
    }
}

impl Broken {
    async fn of_image(&self, reference: &str, spec: &Spec) -> Result<Arc<dyn Sandbox>> {
        let plain = spec.to_builder().root(RootFs::Default).build()?;
        if self.defect == Defect::ImagesAreEmpty {
            return self.wrap(self.inner.create(plain).await?, spec.clone()).await;
        }
        if reference != "test:latest" {
            return Err(
                Error::new(ErrorKind::NotFound, "create", format!("no image {reference}")).with_remedy("pull it")
            );
        }
        let shared = self.shared.lock().clone();
        if let Some(shared) = shared {
            return self.wrap(shared, spec.clone()).await;
        }
        let inner = self.inner.create(plain).await?;
        inner.write_bytes(&SandboxPath::new(IMAGE_FILE)?, "of the image").await?;
        if self.defect == Defect::ImagesShareARoot {
            *self.shared.lock() = Some(Arc::clone(&inner));
        }
        self.wrap(inner, spec.clone()).await
    }
}

#[async_trait]
impl BackendLayer for Broken {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        match self.defect {
            Defect::DoesMoreThanDeclared => drop(capabilities.remove(&Capability::Fork)),
            Defect::WarmDoesMoreThanDeclared => drop(capabilities.remove(&Capability::Warm)),
            Defect::SoundImages | Defect::ImagesAreEmpty | Defect::ImagesShareARoot => {
                capabilities.insert(Capability::Image);
            }
            _ => {}
        }
        capabilities
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        if let RootFs::Image { reference } = spec.root()
            && BackendLayer::capabilities(self).contains(&Capability::Image)
        {
            return self.of_image(reference, &spec).await;
        }
        self.wrap(self.inner.create(loosened(&spec, self.defect)).await?, spec).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let restored = self.inner.restore(snapshot, spec.clone()).await;
        match (restored, self.defect) {
            (Err(_), Defect::RestoresAnything) => self.inner.create(spec).await,
            (restored, _) => self.wrap(restored?, spec).await,
        }
    }

    async fn prepare(&self, spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        let inner = self.inner.prepare(spec).await?;
        Ok(Box::new(BrokenWarm { inner: Some(inner), defect: self.defect, shared: Arc::clone(&self.shared) }))
    }
}

#[derive(Debug)]
struct BrokenWarm {
    inner: Option<Box<dyn PreparedSandbox>>,
    defect: Defect,
    shared: Arc<Mutex<Option<Arc<dyn Sandbox>>>>,
}

impl BrokenWarm {
    fn inner(&self) -> &dyn PreparedSandbox {
        self.inner.as_deref().unwrap()
    }

    /// Returns the spec for the inner claim, in place of the requested one.
    fn claimed(&self, spec: &Spec) -> Spec {
        let template = self.inner().template();
        let builder = match self.defect {
            Defect::WarmForgetsLimits => spec.to_builder().limits(template.limits().clone()),
            Defect::WarmForgetsAccess => spec.to_builder().workspace(template.workspace().clone()),
            Defect::WarmKeepsItsTemplate => template.to_builder(),
            Defect::WarmFitsEverything if !self.inner().is_compatible(spec) => template.to_builder(),
            Defect::WarmAcceptsWeaker => spec.to_builder().allow_weaker(Protection::Cpus),
            _ => spec.to_builder(),
        };
        // An invalid spec is passed on unchanged, to be refused.
        builder.build().unwrap_or_else(|_| spec.clone())
    }
}

#[async_trait]
impl PreparedSandbox for BrokenWarm {
    fn template(&self) -> &Spec {
        self.inner().template()
    }

    fn is_compatible(&self, spec: &Spec) -> bool {
        self.defect == Defect::WarmFitsEverything || self.inner().is_compatible(spec)
    }

    fn is_alive(&self) -> bool {
        self.inner().is_alive()
    }

    async fn claim(mut self: Box<Self>, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        let (wanted, defect) = (self.claimed(&spec), self.defect);
        if defect == Defect::ClaimsShareASandbox
            && let Some(shared) = self.shared.lock().clone()
        {
            return Ok(shared);
        }
        let inner = self.inner.take().unwrap().claim(wanted).await?;
        let posture = inner.posture().clone();
        let (defect, spec) = match defect {
            Defect::WarmInheritsAVariable => (Defect::InheritsAVariable, spec),
            Defect::WarmKeepsItsTemplate => (Defect::Sound, inner.spec().clone()),
            _ => (Defect::Sound, spec),
        };
        let sandbox: Arc<dyn Sandbox> = Arc::new(BrokenSandbox {
            inner,
            defect,
            spec,
            posture,
            spare: None,
            closes: AtomicU64::new(0),
            last_input: Mutex::default(),
        });
        if self.defect == Defect::ClaimsShareASandbox {
            *self.shared.lock() = Some(Arc::clone(&sandbox));
        }
        Ok(sandbox)
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        let inner = self.inner.take().unwrap();
        if self.defect == Defect::WarmLeaksWhenClosed {
            std::mem::forget(inner);
            return Ok(());
        }
        inner.close().await
    }
}

/// Forwards control requests, or drops them.
struct Control {
    inner: Arc<ExecHandle>,
    defect: Defect,
}

impl ExecControl for Control {
    fn cancel(&self, grace: Duration) {
        match self.defect {
            Defect::CancelIsTermOnly => self.inner.request_cancel(Duration::from_secs(1 << 30)),
            Defect::CancelIsKillAtOnce => self.kill(),
            _ => self.inner.request_cancel(grace),
        }
    }

    fn kill(&self) {
        if self.defect == Defect::KillsNothing {
            return;
        }
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move { inner.close().await });
    }

    fn resize(&self, size: TerminalSize) -> Result<()> {
        self.inner.resize(size)
    }
}

fn changed(defect: Defect, mut exit: Exit) -> Exit {
    match defect {
        Defect::ForgetsTimedOut => exit.timed_out = false,
        Defect::TimesOutWithCodeZero if exit.timed_out => exit.code = 0,
        Defect::ExitCodeIsAlwaysZero => exit.code = 0,
        Defect::ForgetsCancelled => exit.cancelled = false,
        _ => {}
    }
    exit
}

impl BrokenSandbox {
    fn request(&self, request: ExecRequest) -> Result<ExecRequest> {
        let builder = match self.defect {
            Defect::SaysNothingOfTruncation => request.to_builder(),
            // The proxy truncates, so that it can also omit that.
            _ => wide(&request),
        };
        match self.defect {
            Defect::InheritsAVariable => builder.env("LEAKED", "from the host"),
            Defect::IgnoresWorkingDir => builder.working_dir(SandboxPath::default()),
            _ => builder,
        }
        .build()
    }

    /// Returns a handle of the wrapper in front of the inner one.
    async fn proxy(&self, request: &ExecRequest, inner: ExecHandle) -> Result<ExecHandle> {
        let defect = self.defect;
        let mut output = inner.output();
        let stdin = inner.stdin().map(StdinWriter::new);
        let inner = Arc::new(inner);
        let outer = match defect {
            Defect::DoesNotTruncate | Defect::SaysNothingOfTruncation => wide(request).build()?,
            _ => request.clone(),
        };
        let control = Arc::new(Control { inner: Arc::clone(&inner), defect });
        let (handle, driver) = ExecHandle::new(inner.id(), &outer, stdin, control);
        tokio::spawn(async move {
            let mut held = Vec::new();
            let mut first = true;
            while let Some(event) = output.next().await {
                let OutputEvent::Chunk(chunk) = event else { continue };
                let stream = match (defect, chunk.stream) {
                    (Defect::SwapsStreams, OutputStream::Stdout) => OutputStream::Stderr,
                    (Defect::SwapsStreams, OutputStream::Stderr) => OutputStream::Stdout,
                    (_, stream) => stream,
                };
                match defect {
                    Defect::OutputOnlyAtTheEnd => held.push((stream, chunk.data)),
                    Defect::LosesTheLastByte => {
                        driver.publisher().publish(stream, chunk.data.slice(..chunk.data.len() - 1))
                    }
                    Defect::ReplaysToLateSubscribers => {
                        // Earlier output is repeated before later output.
                        if !first {
                            for (stream, data) in held.clone() {
                                driver.publisher().publish(stream, data);
                            }
                        }
                        held.push((stream, chunk.data.clone()));
                        driver.publisher().publish(stream, chunk.data);
                    }
                    _ => driver.publisher().publish(stream, chunk.data),
                }
                first = false;
            }
            if defect == Defect::OutputOnlyAtTheEnd {
                for (stream, data) in held {
                    driver.publisher().publish(stream, data);
                }
            }
            let exit = inner.exit().await.map(|exit| changed(defect, exit));
            driver.finish(exit);
        });
        Ok(handle)
    }
}

#[async_trait]
impl Sandbox for BrokenSandbox {
    fn id(&self) -> &SandboxId {
        self.inner.id()
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        match self.defect {
            Defect::Panics => panic!("a deliberate panic"),
            Defect::Hangs => std::future::pending().await,
            Defect::LiesAboutTerminals if request.terminal().is_some() => {
                return Err(Error::unsupported("start", "no terminals after all"));
            }
            _ => {}
        }
        let mut wanted = self.request(request.clone())?;
        if self.defect == Defect::SharesStdin {
            let mut last = self.last_input.lock();
            if let cofferdam_contract::Stdin::Bytes(bytes) = request.stdin() {
                *last = [&last[..], bytes].concat().into();
                wanted = wanted.to_builder().stdin(cofferdam_contract::Stdin::Bytes(last.clone())).build()?;
            }
        }
        let inner = match (&self.spare, self.inner.start(wanted.clone()).await) {
            (Some(spare), Err(error)) if error.kind() == ErrorKind::Closed => spare.start(wanted).await?,
            (_, started) => started?,
        };
        self.proxy(&request, inner).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        match (self.defect, self.inner.read_file(path).await) {
            (Defect::FollowsLinksOutside, Err(error)) if error.kind() == ErrorKind::PathEscape => {
                Ok(Box::new(std::io::Cursor::new(b"secret of the host".to_vec())))
            }
            (Defect::ReadsFifosForEver, Err(error)) if error.kind() == ErrorKind::Conflict => {
                std::future::pending().await
            }
            (_, read) => read,
        }
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        if self.defect == Defect::WritesPiecemeal {
            self.inner.write_file(path, Box::new(std::io::Cursor::new(b"half".to_vec()))).await?;
        }
        self.inner.write_file(path, contents).await
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        self.inner.put(path, entry).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        let mut entries = self.inner.list_dir(path).await?;
        if self.defect == Defect::ListsUnsorted {
            entries.reverse();
        }
        Ok(entries)
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.inner.rename(from, to).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        match self.defect {
            Defect::RemovesNothing => Ok(()),
            _ => self.inner.remove(path).await,
        }
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.inner.snapshot().await
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        match self.defect {
            Defect::ForksShareFiles => Ok(Arc::clone(&self.inner)),
            _ => self.inner.fork().await,
        }
    }

    async fn pause(&self) -> Result<()> {
        match self.defect {
            Defect::PausesNothing => Ok(()),
            _ => self.inner.pause().await,
        }
    }

    async fn resume(&self) -> Result<()> {
        self.inner.resume().await
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.inner.usage().await
    }

    async fn close(&self) -> Result<()> {
        if self.closes.fetch_add(1, Ordering::Relaxed) > 0 && self.defect == Defect::CloseFailsTheSecondTime {
            return Err(Error::closed("close"));
        }
        self.inner.close().await
    }
}

/// Returns the request without a limit on its output.
fn wide(request: &ExecRequest) -> ExecRequestBuilder {
    let size = ByteSize::from_mebibytes(1024);
    request.to_builder().max_output(size).output_buffer(size)
}

/// Returns the names of the failed cases.
pub fn failed(report: &cofferdam_conformance::Report) -> BTreeSet<&str> {
    report.failures().map(|case| case.name.as_str()).collect()
}
