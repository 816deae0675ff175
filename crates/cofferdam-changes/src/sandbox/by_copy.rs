//! Copy-on-write workspaces of backends without an overlay: the host directory is copied into a private workspace when
//! the sandbox is created, and its changes are found by comparison.
//!
//! ```text
//! create --inner backend, private workspace--> empty --copy of the directory--> filled, with a fingerprint and digest
//! of each file --changes: files that differ are read--> change set
//! ```
//!
//! The cost of a creation and of the changes grows with the directory, unlike that of an overlay. The semantics are the
//! same: the guest sees the directory as it was at creation, and never changes it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use cofferdam_contract::{
    Access, Backend, BackendLayer, Capabilities, Capability, DirectoryId, Error, ErrorKind, ExecHandle, ExecRequest,
    LayeredSandbox, Posture, PostureItem, PreparedSandbox, Protection, Result, Sandbox, SandboxLayer, SandboxPath,
    Snapshot, Spec, Workspace, WorkspaceChanges,
};
use cofferdam_linux::named::{Directory, UntrustedLink};

use super::comparison::Comparison;
use super::host_tree::{HostContent, HostEntry, HostTree};
use super::{blocking, to_error};
use crate::fingerprint::Fingerprint;
use crate::header::Header;
use crate::text;

/// The maximum number of skipped files that are listed.
const MAX_LISTED: usize = 20;

/// A backend whose copy-on-write workspaces are copies, unless the inner backend has its own and can use them.
#[derive(Debug)]
pub struct CopyOnWriteByCopy {
    inner: Arc<dyn Backend>,
}

impl CopyOnWriteByCopy {
    /// Wraps a backend.
    #[must_use]
    pub fn wrap(inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Self { inner })
    }

    /// Returns true if the inner backend has copy-on-write workspaces of its own.
    fn is_native(&self) -> bool {
        self.inner.capabilities().contains(&Capability::CopyOnWrite)
    }

    /// Creates a sandbox with a copy of the directory. `refused` is the reason why the inner backend did not.
    async fn copied(&self, spec: Spec, refused: Option<&Error>) -> Result<Arc<dyn Sandbox>> {
        let Workspace::CopyOnWrite { path } = spec.workspace() else { return self.inner.create(spec).await };
        let directory = open(&spec, path)?;
        // The clock of file systems is late by up to a tick.
        let started = nanoseconds(SystemTime::now()) - 20_000_000;
        let header = Header::of(directory.path(), directory.as_fd(), started);
        let header = header.map_err(|error| to_error("create", &error))?;
        let own = spec.to_builder().workspace(Workspace::Private { access: Access::ReadWrite }).build()?;
        let sandbox = self.inner.create(own).await?;
        let base = match fill(&*sandbox, directory, header, &spec).await {
            Ok(base) => base,
            Err(error) => return Err(error.with_failed_close(sandbox.close().await)),
        };
        let posture = posture(sandbox.posture(), refused);
        Ok(Copied { spec, posture, base: Arc::new(base) }.around(sandbox))
    }
}

/// Opens the directory of a workspace, and checks that it is the one that the caller named.
fn open(spec: &Spec, path: &Path) -> Result<Directory> {
    let opened = Directory::open(path).map_err(|error| {
        let failed = match UntrustedLink::of(&error) {
            Some(link) => Error::new(ErrorKind::PathEscape, "create", format!("cannot open the workspace: {link}"))
                .with_remedy(UntrustedLink::REMEDY),
            None => Error::new(ErrorKind::NotFound, "create", "the workspace directory cannot be opened"),
        };
        failed.with_context("path", path.display().to_string()).with_source(error)
    })?;
    let (device, inode) = opened.identity();
    spec.check_directory(path, DirectoryId { device, inode })?;
    Ok(opened)
}

fn nanoseconds(time: SystemTime) -> i64 {
    i64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

/// The state of the directory when it was copied.
#[derive(Debug)]
pub(super) struct Base {
    pub header: Header,
    /// Stays open, so that no other directory gets its inode number.
    _directory: OwnedFd,
    pub files: BTreeMap<PathBuf, BaseFile>,
    /// Printable paths of the first files that were not copied, with the reason.
    skipped: Vec<String>,
    skipped_count: usize,
}

/// A file of the directory that was copied.
#[derive(Debug)]
pub(super) struct BaseFile {
    pub fingerprint: Fingerprint,
    pub content: BaseContent,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum BaseContent {
    Directory,
    File([u8; 32]),
    Link(OsString),
}

/// Copies the directory into the workspace.
async fn fill(sandbox: &dyn Sandbox, directory: Directory, header: Header, spec: &Spec) -> Result<Base> {
    let shown = text::path(directory.path());
    let copy = directory.as_fd().try_clone_to_owned().map_err(|error| {
        Error::new(ErrorKind::Io, "create", "cannot open the workspace directory again").with_source(error)
    })?;
    let files = Arc::new(Mutex::new(BTreeMap::new()));
    let noted = Arc::clone(&files);
    let note = move |entry: Option<HostEntry<'_>>, _: u64| {
        if let Some((path, file)) = entry.and_then(base_file) {
            noted.lock().unwrap_or_else(PoisonError::into_inner).insert(path, file);
        }
    };
    let copied = HostTree::contents(copy).send(sandbox, &SandboxPath::default(), note).await;
    let (sent, report) = copied.map_err(|error| does_not_fit(error, &shown, spec))?;
    let mut skipped = sent.skipped;
    skipped.extend(report.skipped.iter().filter(|skipped| !is_retained(skipped.reason)).map(ToString::to_string));
    let retained = report.skipped.iter().filter(|skipped| is_retained(skipped.reason)).count() as u64;
    let count = sent.skipped_count + report.skipped_count.saturating_sub(retained);
    let files = std::mem::take(&mut *files.lock().unwrap_or_else(PoisonError::into_inner));
    let skipped_count = usize::try_from(count).unwrap_or(usize::MAX);
    Ok(Base { header, _directory: directory.into(), files, skipped, skipped_count })
}

/// Returns true for a remark about a file that was copied nevertheless.
fn is_retained(reason: cofferdam_contract::CopySkipped) -> bool {
    reason == cofferdam_contract::CopySkipped::SetId
}

/// Returns a file that the sandbox accepts. Others are missing inside, which is no deletion.
fn base_file(entry: HostEntry<'_>) -> Option<(PathBuf, BaseFile)> {
    let HostEntry { path, stat, content } = entry;
    SandboxPath::default().join(path.to_str()?).ok()?;
    let content = match content {
        HostContent::Directory => BaseContent::Directory,
        HostContent::File(digest) => BaseContent::File(digest),
        HostContent::Link(target) => {
            target.to_str()?;
            BaseContent::Link(target)
        }
    };
    Some((path.to_owned(), BaseFile { fingerprint: Fingerprint::of(stat), content }))
}

fn does_not_fit(error: Error, directory: &str, spec: &Spec) -> Error {
    if error.kind() != ErrorKind::ResourceExhausted {
        return error;
    }
    let limits = spec.limits();
    let shown =
        |limit: Option<cofferdam_contract::ByteSize>| limit.map_or("none".to_owned(), |limit| limit.to_string());
    let message = format!(
        "'{directory}' does not fit into the workspace, which is a copy of it at this level: {} (disk limit {}, memory \
         limit {})",
        error.message(),
        shown(limits.disk),
        shown(limits.memory)
    );
    Error::new(ErrorKind::ResourceExhausted, "create", message).with_source(error).with_remedy(
        "raise --disk (at level wasm --memory, too), name a smaller directory, or use level process, which copies nothing",
    )
}

/// Returns the posture of a sandbox with a copy of the directory.
fn posture(inner: &Posture, refused: Option<&Error>) -> Posture {
    let how = match refused {
        Some(error) => format!("a copy of the host directory, since an overlay was refused: {}", error.message()),
        None => "a copy of the host directory".to_owned(),
    };
    Posture::new(inner.items().iter().cloned().map(|item| match item.protection {
        Protection::Workspace => PostureItem { mechanism: format!("{how}; {}", item.mechanism), ..item },
        _ => item,
    }))
}

#[async_trait]
impl BackendLayer for CopyOnWriteByCopy {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let mut all = self.inner.capabilities();
        if all.contains(&Capability::Files) {
            all.insert(Capability::CopyOnWrite);
        }
        all
    }

    async fn create(&self, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        if !matches!(spec.workspace(), Workspace::CopyOnWrite { .. }) {
            return self.inner.create(spec).await;
        }
        if !self.is_native() {
            return self.copied(spec, None).await;
        }
        match self.inner.create(spec.clone()).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => self.copied(spec, Some(&error)).await,
            created => created,
        }
    }

    async fn start_one(&self, spec: Spec, request: ExecRequest) -> Result<(Arc<dyn Sandbox>, ExecHandle)> {
        let is_copy = matches!(spec.workspace(), Workspace::CopyOnWrite { .. });
        let refused = match (is_copy, self.is_native()) {
            (false, _) => return self.inner.start_one(spec, request).await,
            (true, false) => None,
            (true, true) => match self.inner.start_one(spec.clone(), request.clone()).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => Some(error),
                started => return started,
            },
        };
        request.validate()?;
        self.copied(spec, refused.as_ref()).await?.start_or_close(request).await
    }

    async fn restore(&self, snapshot: Snapshot, spec: Spec) -> Result<Arc<dyn Sandbox>> {
        if matches!(spec.workspace(), Workspace::CopyOnWrite { .. }) && !self.is_native() {
            return Err(Error::unsupported("restore", "a snapshot cannot be restored over a host directory")
                .with_remedy("restore it with a private workspace"));
        }
        self.inner.restore(snapshot, spec).await
    }

    /// Prepares no copies: they would be outdated when they are claimed.
    async fn prepare(&self, spec: Spec) -> Result<Box<dyn PreparedSandbox>> {
        if matches!(spec.workspace(), Workspace::CopyOnWrite { .. }) && !self.is_native() {
            return Err(Error::invalid("warm", "cannot prepare a sandbox with a copy of a host directory")
                .with_remedy("use a template with a private workspace; other sandboxes are created on request"));
        }
        self.inner.prepare(spec).await
    }
}

/// A layer with the state of the directory when it was copied.
#[derive(Debug, Clone)]
struct Copied {
    spec: Spec,
    posture: Posture,
    base: Arc<Base>,
}

impl Copied {
    fn around(self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        Arc::new(LayeredSandbox::new(sandbox, self))
    }
}

#[async_trait]
impl SandboxLayer for Copied {
    fn spec<'a>(&'a self, _inner: &'a dyn Sandbox) -> &'a Spec {
        &self.spec
    }

    fn posture<'a>(&'a self, _inner: &'a dyn Sandbox) -> &'a Posture {
        &self.posture
    }

    async fn changes(&self, inner: &Arc<dyn Sandbox>) -> Result<WorkspaceChanges> {
        let (base, sandbox) = (Arc::clone(&self.base), Arc::clone(inner));
        let disk = self.spec.limits().disk;
        let runtime = tokio::runtime::Handle::current();
        let compare = move || Comparison::run(&base, &*sandbox, disk, &runtime);
        let (file, summary) = blocking("changes", compare).await?;
        let found = summary.skipped.iter().map(|skipped| format!("{}: {}", text::path(&skipped.path), skipped.reason));
        Ok(WorkspaceChanges {
            layer: Box::new(tokio::fs::File::from_std(file)),
            skipped: found.chain(self.base.skipped.iter().cloned()).take(MAX_LISTED).collect(),
            skipped_count: summary.skipped_count.saturating_add(self.base.skipped_count),
        })
    }

    async fn snapshot(&self, _inner: &dyn Sandbox) -> Result<Snapshot> {
        Err(Error::unsupported("snapshot", "a snapshot of a copy-on-write workspace would lack its host directory")
            .with_remedy("fork the sandbox, or use a private workspace"))
    }

    async fn fork(&self, inner: &Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        Ok(self.clone().around(inner.fork().await?))
    }
}
