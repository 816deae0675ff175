//! A sandbox of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use cofferdam_contract::{
    Connection, CopyReport, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, NetworkPolicy, NewEntry,
    Posture, Result, Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot, Spec, TenantId, WatchEvents,
    WatchOptions,
};
use hyper::Method;
use parking_lot::Mutex;

use super::{NAME, exec, files, watch};
use crate::client::{Client, Content, Tunnel, detached, encoded};
use crate::rest::views::{
    ExecView, FileList, ForkSandbox, MoveFile, SandboxDetails, SnapshotView, StartExec, StatsView, TakeSnapshot,
};

/// The most entries of a directory that are listed, as at level process.
const MAX_ENTRIES: usize = 100_000;

/// A sandbox of a server. Dropping it deletes it.
#[derive(Debug)]
pub(super) struct RemoteSandbox {
    client: Client,
    spec: Spec,
    id: SandboxId,
    posture: Posture,
    /// The network policy in force, as the server last reported it.
    network: Mutex<NetworkPolicy>,
    closed: AtomicBool,
    /// True once the server has deleted it.
    deleted: AtomicBool,
}

/// A snapshot on a server, which is deleted with its last copy.
#[derive(Debug)]
pub(super) struct RemoteSnapshot {
    client: Client,
    pub(super) id: String,
    pub(super) tenant: TenantId,
}

impl Drop for RemoteSnapshot {
    fn drop(&mut self) {
        delete(&self.client, format!("/v1/snapshots/{}", encoded(&self.id)));
    }
}

/// Deletes an object in the background, if there is a runtime for that.
fn delete(client: &Client, path: String) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let client = client.clone();
        // A sandbox that cannot be deleted now ends by its timeout on the server.
        runtime.spawn(async move { client.send(Method::DELETE, &path, Content::None).await.map(drop) });
    }
}

impl RemoteSandbox {
    pub(super) fn new(client: Client, spec: Spec, details: SandboxDetails) -> Self {
        let SandboxDetails { sandbox, posture, network, .. } = details;
        Self {
            client,
            spec,
            id: SandboxId::new(sandbox.id),
            posture,
            network: Mutex::new(network),
            closed: AtomicBool::new(false),
            deleted: AtomicBool::new(false),
        }
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", encoded(self.id.as_str()))
    }

    fn open(&self, operation: &'static str) -> Result<&Client> {
        if self.closed.load(Ordering::Acquire) { Err(Error::closed(operation)) } else { Ok(&self.client) }
    }

    /// Sends a request without an answer's document.
    async fn change(&self, operation: &'static str, method: Method, rest: &str) -> Result<()> {
        let sent = self.open(operation)?.send(method, &self.path(rest), Content::None).await;
        sent.map(drop).map_err(|error| self.described(operation, error))
    }

    /// Replaces the error for a sandbox that is not on the server any more.
    fn described(&self, operation: &'static str, error: Error) -> Error {
        if error.kind() == ErrorKind::NotFound && error.operation() == "find sandbox" {
            return Error::closed(operation).with_source(error);
        }
        error
    }
}

#[async_trait]
impl Sandbox for RemoteSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    fn network_policy(&self) -> NetworkPolicy {
        self.network.lock().clone()
    }

    async fn set_network(&self, policy: NetworkPolicy) -> Result<()> {
        let sent = self.open("set_network")?.call(Method::PUT, &self.path("/network"), Some(&policy)).await;
        *self.network.lock() = sent.map_err(|error| self.described("set_network", error))?;
        Ok(())
    }

    async fn connect(&self, port: u16) -> Result<Connection> {
        let tunnel = self.open("connect")?.tunnel(self.id.as_str(), port).await;
        tunnel.map(Tunnel::into_connection).map_err(|error| self.described("connect", error))
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        let client = self.open("start")?.clone();
        let body = StartExec::of(&request)?;
        let (sandbox, path) = (self.id.clone(), self.path("/execs"));
        // An exec whose caller gave up is killed.
        let started = detached("start", async move {
            let view: ExecView = client.call(Method::POST, &path, Some(&body)).await?;
            Ok(exec::follow(client, sandbox, &view.id, &request))
        });
        started.await.map_err(|error| self.described("start", error))
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        let read = files::read(self.open("read_file")?, &self.path(""), path, 0).await;
        read.map_err(|error| self.described("read_file", error))
    }

    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        let read = files::read(self.open("read_file")?, &self.path(""), path, offset).await;
        read.map_err(|error| self.described("read_file", error))
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        let written = files::write(self.open("write_file")?, &self.path(""), path, contents).await;
        written.map_err(|error| self.described("write_file", error))
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        let put = files::put(self.open("put")?, &self.path(""), path, entry).await;
        put.map_err(|error| self.described("put", error))
    }

    async fn copy_in(&self, destination: &SandboxPath, tar: FileReader) -> Result<CopyReport> {
        let (tar, failure) = crate::client::noticed(tar);
        let copied = self.open("copy_in")?.copy_in(self.id.as_str(), &destination.inside(), Box::new(tar)).await;
        match failure.take() {
            Some(error) => Err(Error::new(ErrorKind::Io, "copy_in", "cannot read the archive").with_source(error)),
            None => copied.map_err(|error| self.described("copy_in", error)),
        }
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        let (url, mut after) = (format!("/files/list?limit=1000&path={}", encoded(&path.inside())), String::new());
        let mut all = Vec::new();
        loop {
            let page =
                self.open("list_dir")?.call(Method::GET, &self.path(&format!("{url}{after}")), None::<&()>).await;
            let FileList { entries, next } = page.map_err(|error| self.described("list_dir", error))?;
            let Some(next) = next.filter(|_| !entries.is_empty()) else {
                all.extend(entries);
                return Ok(all);
            };
            all.extend(entries);
            // Pages without end would fill the memory.
            if all.len() > MAX_ENTRIES {
                let message = format!("the directory has more than {MAX_ENTRIES} entries");
                return Err(Error::new(ErrorKind::ResourceExhausted, "list_dir", message));
            }
            after = format!("&after={}", encoded(&next));
        }
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let body = MoveFile { from: from.inside(), to: to.inside() };
        let sent = self.open("rename")?.call_unanswered(Method::POST, &self.path("/files/move"), &body).await;
        sent.map_err(|error| self.described("rename", error))
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.change("remove", Method::DELETE, &format!("/files?path={}", encoded(&path.inside()))).await
    }

    async fn watch(&self, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
        let watched = watch::watch(self.open("watch")?, &self.path(""), path, &options).await;
        watched.map_err(|error| self.described("watch", error))
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        let client = self.open("snapshot")?.clone();
        let (url, tenant) = (self.path("/snapshot"), self.spec.tenant().clone());
        let taken = detached("snapshot", async move {
            let taken: SnapshotView = client.call(Method::POST, &url, Some(&TakeSnapshot::default())).await?;
            Ok(RemoteSnapshot { client, id: taken.id, tenant })
        });
        let taken = taken.await.map_err(|error| self.described("snapshot", error))?;
        Ok(Snapshot::new(NAME, taken).with_tenant(self.spec.tenant().clone()))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        let (client, url, spec) = (self.open("fork")?.clone(), self.path("/fork"), self.spec.to_builder());
        let forked = detached("fork", async move {
            let details: SandboxDetails = client.call(Method::POST, &url, Some(&ForkSandbox::default())).await?;
            let spec = spec.network(details.network.clone()).build()?;
            Ok(Self::new(client, spec, details))
        });
        Ok(Arc::new(forked.await.map_err(|error| self.described("fork", error))?))
    }

    async fn pause(&self) -> Result<()> {
        self.change("pause", Method::POST, "/pause").await
    }

    async fn resume(&self) -> Result<()> {
        self.change("resume", Method::POST, "/resume").await
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        let stats = self.open("usage")?.call(Method::GET, &self.path("/stats"), None::<&()>).await;
        let StatsView { usage, .. } = stats.map_err(|error| self.described("usage", error))?;
        Ok(usage)
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        match self.client.send(Method::DELETE, &self.path(""), Content::None).await {
            // It was closed before, or its time on the server was over.
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.deleted.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for RemoteSandbox {
    fn drop(&mut self) {
        if !self.deleted.load(Ordering::Acquire) {
            delete(&self.client, self.path(""));
        }
    }
}
