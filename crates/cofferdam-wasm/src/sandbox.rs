//! A WebAssembly sandbox.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use cofferdam_contract::{
    DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, NewEntry, Posture, Result, Sandbox, SandboxId,
    SandboxPath, SandboxUsage, Snapshot, Spec, WORKSPACE_PATH, WatchEvents, WatchOptions, Workspace,
};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::NAME;
use crate::fs::{Base, Contents, FsError, Ino, LastLink};
use crate::run;
use crate::state::Shared;
use crate::time::since_1970;

/// The maximum number of entries of a listed directory.
const MAX_ENTRIES: usize = 100_000;
const PIECE: usize = 64 << 10;

/// A sandbox. Execs reference only the shared state, so dropping the sandbox ends them.
#[derive(Debug)]
pub(crate) struct WasmSandbox(Arc<Shared>);

impl WasmSandbox {
    /// Creates the sandbox that owns this state.
    pub(crate) fn create(shared: Arc<Shared>) -> Arc<dyn Sandbox> {
        Arc::new(Self(shared))
    }

    fn base(&self) -> Base<'static> {
        Base { ino: self.0.workspace, name: Some(WORKSPACE_PATH) }
    }
}

impl Drop for WasmSandbox {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

/// Converts a path for the tree, where the workspace itself is a dot.
fn relative(path: &SandboxPath) -> &str {
    if path.is_workspace() { "." } else { path.as_str() }
}

#[async_trait]
impl Sandbox for WasmSandbox {
    fn id(&self) -> &SandboxId {
        &self.0.id
    }

    fn spec(&self) -> &Spec {
        &self.0.spec
    }

    fn posture(&self) -> &Posture {
        &self.0.posture
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        run::start(&self.0, request).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.read_file_from(path, 0).await
    }

    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        let contents = self.0.tree("read_file")?.file(self.base(), relative(path));
        let contents = contents.map_err(|error| error.into_error("read_file", path.as_str()))?;
        Ok(Box::new(Reader { contents, at: offset }))
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        self.check_private_workspace("write_file")?;
        let (file, written) = self.received("write_file", path, contents).await?;
        let now = self.now();
        let linked = self.0.tree("write_file")?.link_file(self.base(), relative(path), file.ino, now);
        linked.map_err(|error| error.into_error("write_file", path.as_str()))?;
        Ok(written)
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        self.check_private_workspace("put")?;
        let (now, top) = (self.now(), self.base().ino);
        let failed = |error: FsError| error.into_error("put", path.as_str());
        match entry {
            NewEntry::File { mode, modified, contents } => {
                let (file, written) = self.received("put", path, contents).await?;
                let mut tree = self.0.tree("put")?;
                tree.put_file(top, path.as_str(), file.ino, (mode, modified), now).map_err(failed)?;
                drop(tree);
                Ok(written)
            }
            NewEntry::Directory { mode } => {
                self.0.tree("put")?.put_directory(top, path.as_str(), mode, now).map(|()| 0).map_err(failed)
            }
            NewEntry::Symlink { target } => {
                self.0.tree("put")?.put_symlink(top, path.as_str(), &target, now).map(|()| 0).map_err(failed)
            }
        }
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        let tree = self.0.tree("list_dir")?;
        let entries = tree.lookup(self.base(), relative(path), LastLink::Follow);
        let entries = entries.and_then(|ino| tree.list(ino, MAX_ENTRIES));
        let entries = entries.map_err(|error| error.into_error("list_dir", path.as_str()))?;
        entries.ok_or_else(|| Error::new(ErrorKind::ResourceExhausted, "list_dir", "more than 100,000 entries"))
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.check_private_workspace("rename")?;
        if from.is_workspace() || to.is_workspace() {
            return Err(Error::invalid("rename", "the workspace itself cannot be renamed or replaced"));
        }
        let (old, new) = ((self.base(), relative(from)), (self.base(), relative(to)));
        let renamed = self.0.tree("rename")?.rename(old, new, self.now());
        renamed.map_err(|error| error.into_error("rename", to.as_str()))
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.check_private_workspace("remove")?;
        let now = self.now();
        let removed = self.0.tree("remove")?.remove_all(self.base(), relative(path), now);
        removed.map_err(|error| error.into_error("remove", path.as_str()))
    }

    async fn watch(&self, _path: &SandboxPath, _options: WatchOptions) -> Result<WatchEvents> {
        Err(Error::unsupported(
            "watch",
            "the files of a WebAssembly sandbox are values in memory, which report no changes",
        )
        .with_remedy("list the directory after each exec, or use level process"))
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        self.check_idle("snapshot")?;
        Ok(Snapshot::new(NAME, self.0.freeze_files("snapshot")?).with_tenant(self.0.spec.tenant().clone()))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        self.check_idle("fork")?;
        let shared = Shared::copied(&self.0.common, self.0.spec.clone(), &self.0.freeze_files("fork")?)?;
        Ok(Self::create(Arc::new(shared)))
    }

    async fn pause(&self) -> Result<()> {
        Err(Error::unsupported("pause", "the wasm backend does not support pausing"))
    }

    async fn resume(&self) -> Result<()> {
        Err(Error::unsupported("resume", "the wasm backend does not support pausing"))
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        let disk = self.0.tree("usage")?.disk();
        Ok(SandboxUsage {
            cpu_seconds: Some(self.0.cpu().as_secs_f64()),
            memory_bytes: Some(self.0.account.used()),
            peak_memory_bytes: Some(self.0.account.peak()),
            processes: Some(u32::try_from(self.0.running()).unwrap_or(u32::MAX)),
            disk_bytes: Some(disk),
        })
    }

    async fn close(&self) -> Result<()> {
        self.0.shut_down();
        self.0.wait_and_clear().await;
        Ok(())
    }
}

impl WasmSandbox {
    /// Reads the contents of a new file, which has no name yet.
    async fn received(
        &self,
        operation: &'static str,
        path: &SandboxPath,
        mut contents: FileReader,
    ) -> Result<(Nameless<'_>, u64)> {
        let failed = |error: FsError| error.into_error(operation, path.as_str());
        let file = Nameless::new(&self.0).map_err(failed)?;
        let mut piece = vec![0; PIECE];
        let mut written = 0u64;
        loop {
            let read = contents.read(&mut piece).await.map_err(|error| {
                Error::new(ErrorKind::Io, operation, "cannot read the new contents").with_source(error)
            })?;
            if read == 0 {
                return Ok((file, written));
            }
            self.0.tree(operation)?.write(file.ino, written, &piece[..read], 0).map_err(failed)?;
            written += read as u64;
        }
    }

    /// Fails while an exec runs, since the copy would silently lack it.
    fn check_idle(&self, operation: &'static str) -> Result<()> {
        if self.0.running() == 0 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, operation, "an exec is running in the sandbox")
            .with_remedy("wait until it ends, or use a session, whose snapshots include the guest"))
    }

    /// Refuses to change the copy of a host directory, since the change would not reach the directory.
    fn check_private_workspace(&self, operation: &'static str) -> Result<()> {
        match self.0.spec.workspace() {
            Workspace::Private { .. } => Ok(()),
            Workspace::HostDir { .. } | Workspace::CopyOnWrite { .. } => {
                Err(Error::new(ErrorKind::Denied, operation, "the workspace is a read-only copy of a host directory")
                    .with_remedy("change the directory itself before creating the sandbox"))
            }
        }
    }

    /// Returns the time for timestamps that guests can read.
    fn now(&self) -> u64 {
        if self.0.policy.seed.is_some() { 0 } else { since_1970() }
    }
}

/// A file that is being written. It is removed when dropped, unless it has a name by then.
struct Nameless<'a> {
    shared: &'a Shared,
    ino: Ino,
}

impl<'a> Nameless<'a> {
    fn new(shared: &'a Shared) -> Result<Self, FsError> {
        Ok(Self { ino: shared.files.lock().nameless_file(0)?, shared })
    }
}

impl Drop for Nameless<'_> {
    fn drop(&mut self) {
        self.shared.files.lock().release(self.ino);
    }
}

/// A reader of a file's content at the time of opening.
struct Reader {
    contents: Contents,
    at: u64,
}

impl AsyncRead for Reader {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buffer.remaining().min(PIECE);
        let read = self.contents.read(self.at, buffer.initialize_unfilled_to(room));
        buffer.advance(read);
        self.at += read as u64;
        Poll::Ready(Ok(()))
    }
}
