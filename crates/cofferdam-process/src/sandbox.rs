//! A running sandbox, from the side of its owner.
//!
//! ```text
//! created --Ready, posture holds--> open --close | drop | init gone--> closed --launcher done--> nothing left
//! ```

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use cofferdam_contract::{
    Connection, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, Mount, NetworkDenial, NetworkEvent,
    NetworkPolicy, NetworkUsage, NewEntry, Posture, Result, Sandbox, SandboxId, SandboxPath, SandboxUsage, Snapshot,
    Spec, WatchEvents, WatchOptions, WorkspaceChanges,
};
use cofferdam_linux::cgroup::Stats;
use parking_lot::Mutex;

use crate::core::Core;
use crate::{changes, connect, error, exec, files, network, put, watch};

/// A process sandbox. Dropping it ends everything in it.
pub struct ProcessSandbox {
    id: SandboxId,
    spec: Spec,
    posture: Posture,
    /// The network policy in force.
    network: Mutex<NetworkPolicy>,
    core: Arc<Core>,
}

impl ProcessSandbox {
    /// Wraps an accepted sandbox.
    pub fn new(id: SandboxId, spec: Spec, posture: Posture, core: Arc<Core>) -> Self {
        let network = Mutex::new(spec.network().clone());
        Self { id, spec, posture, network, core }
    }

    /// Returns the state that the sandbox shares with its execs.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Drop for ProcessSandbox {
    fn drop(&mut self) {
        self.core.end();
    }
}

impl fmt::Debug for ProcessSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessSandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ProcessSandbox {
    fn open(&self, operation: &'static str) -> Result<()> {
        if self.core.is_closed() { Err(Error::closed(operation)) } else { Ok(()) }
    }

    fn workspace_root(&self, operation: &'static str) -> Result<files::WorkspaceRoot> {
        self.open(operation)?;
        let dir = self.core.workspace.try_clone();
        let dir = dir.map_err(|error| error::os(operation, "cannot open the workspace", error))?;
        Ok(files::WorkspaceRoot { dir, owner: self.core.owner })
    }

    /// Refuses a path at or above a mount. The kernel protects only mounts of this process, and would detach the
    /// sandbox's.
    fn check_no_mount(&self, operation: &'static str, path: &SandboxPath) -> Result<()> {
        let inside = path.inside();
        let holds = |mount: &Mount| {
            let below = mount.target.as_str().strip_prefix(inside.as_str());
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // The workspace itself is refused for another reason.
        match !path.is_workspace() && self.spec.mounts().iter().any(holds) {
            true => Err(Error::new(ErrorKind::Conflict, operation, "something is mounted there")
                .with_context("path", path.to_string())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Sandbox for ProcessSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn posture(&self) -> &Posture {
        &self.posture
    }

    fn network_denials(&self) -> Vec<NetworkDenial> {
        self.core.gateway.as_ref().map(network::denials).unwrap_or_default()
    }

    fn network_usage(&self) -> Option<NetworkUsage> {
        self.core.gateway.as_ref().map(network::usage)
    }

    fn network_events(&self) -> Option<tokio::sync::broadcast::Receiver<NetworkEvent>> {
        self.core.gateway.as_ref().map(network::events)
    }

    fn network_policy(&self) -> NetworkPolicy {
        self.network.lock().clone()
    }

    async fn set_network(&self, policy: NetworkPolicy) -> Result<()> {
        self.open("set_network")?;
        match &self.core.gateway {
            Some(gateway) => {
                let mut own = self.network.lock();
                network::replace(gateway, &self.core.policy_ports, &policy)?;
                *own = policy;
                Ok(())
            }
            None => Err(Error::unsupported("set_network", "the sandbox was created without a network policy")
                .with_remedy("create another sandbox with a policy")),
        }
    }

    async fn connect(&self, port: u16) -> Result<Connection> {
        self.open("connect")?;
        connect::connect(&self.core, port).await
    }

    async fn start(&self, request: ExecRequest) -> Result<ExecHandle> {
        request.validate()?;
        self.open("start")?;
        exec::start(&self.core, request).await
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        self.read_file_from(path, 0).await
    }

    async fn read_file_from(&self, path: &SandboxPath, offset: u64) -> Result<FileReader> {
        files::read(self.workspace_root("read_file")?, path, offset).await
    }

    async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        let root = self.workspace_root("write_file")?;
        self.spec.workspace().check_change("write_file")?;
        files::write(root, path, contents).await
    }

    async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        let root = self.workspace_root("put")?;
        self.spec.workspace().check_change("put")?;
        put::put(root, path, entry).await
    }

    async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        files::list(self.workspace_root("list_dir")?, path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        let root = self.workspace_root("rename")?;
        self.spec.workspace().check_change("rename")?;
        self.check_no_mount("rename", from)?;
        self.check_no_mount("rename", to)?;
        files::rename(root, from, to).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        let root = self.workspace_root("remove")?;
        self.spec.workspace().check_change("remove")?;
        self.check_no_mount("remove", path)?;
        files::remove(root, path).await
    }

    async fn watch(&self, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
        options.validate()?;
        let root = self.workspace_root("watch")?;
        watch::watch(&self.core, root.dir, path, options).await
    }

    async fn changes(&self) -> Result<WorkspaceChanges> {
        changes::capture(Arc::clone(&self.core)).await
    }

    async fn snapshot(&self) -> Result<Snapshot> {
        Err(Error::unsupported("snapshot", "the process backend cannot freeze running programs")
            .with_remedy("use level vm for snapshots"))
    }

    async fn fork(&self) -> Result<Arc<dyn Sandbox>> {
        Err(Error::unsupported("fork", "the process backend cannot copy running programs")
            .with_remedy("use level vm for forks"))
    }

    async fn pause(&self) -> Result<()> {
        Err(Error::unsupported("pause", "the process backend cannot pause and resume programs"))
    }

    async fn resume(&self) -> Result<()> {
        Err(Error::unsupported("resume", "the process backend cannot pause and resume programs"))
    }

    async fn usage(&self) -> Result<SandboxUsage> {
        self.open("usage")?;
        let stats = self.core.stats.as_ref();
        let disk = rustix::fs::fstatvfs(&self.core.code).ok();
        Ok(SandboxUsage {
            cpu_seconds: self.core.cpu_used().map(|micros| micros as f64 / 1e6),
            memory_bytes: stats.and_then(Stats::memory).map(|bytes| bytes.saturating_sub(self.core.group_base.2)),
            peak_memory_bytes: self.core.peak_memory(),
            // The init does not belong to the guest.
            processes: stats.and_then(Stats::tasks).map(|tasks| (tasks as u32).saturating_sub(1)),
            disk_bytes: disk.map(|stat| (stat.f_blocks - stat.f_bfree) * stat.f_frsize),
        })
    }

    async fn close(&self) -> Result<()> {
        self.core.close().await
    }
}
