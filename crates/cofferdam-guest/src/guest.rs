//! A backend's handle of an enclosure with an agent in it.
//!
//! ```text
//! connecting --hello, probes, configure, probes--> open --close, last clone dropped--> ended
//!                                                   '--stream ends, invalid frame, silence--> failed
//! ```

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cofferdam_contract::{
    Connection, DirEntry, Error, ErrorKind, ExecHandle, ExecRequest, FileReader, Limits, NewEntry, Result, SandboxPath,
    SandboxUsage, WatchEvents, WatchOptions,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::archive::{self, ArchiveSummary};
use crate::evidence::{Bounds, Evidence};
use crate::inner::{Inner, Owner};
use crate::link::Link;
use crate::settings::{Groups, Meter, Settings, Termination};
use crate::slots::Reply;
use crate::streams::{self, Queries, Stream};
use crate::wire::{Request, Root};
use crate::{error, exec, files, probes, watch};

/// Time limit for the agent's exit on request.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Lets the agent listen, if the settings have ports.
pub(crate) async fn listen(link: &Arc<Link>, settings: &Settings) -> Result<Option<Queries>> {
    match &settings.ports {
        Some(ports) => streams::listen(link, ports).await.map(Some),
        None => Ok(None),
    }
}

/// An enclosure with an agent in it. Cheap to clone; dropping the last clone ends the connection, and with it the agent
/// and everything in its pid namespace.
#[derive(Clone)]
pub struct Guest {
    pub(crate) inner: Arc<Inner>,
    pub(crate) _owner: Arc<Owner>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("alive", &self.is_alive()).finish_non_exhaustive()
    }
}

impl Guest {
    /// Greets an agent, configures it and measures its environment. Needs a tokio runtime with time.
    ///
    /// # Behavior
    /// - `reader` carries the output of the agent's descriptor 1, `writer` the input of its descriptor 0.
    /// - Fails with `Unavailable` if the agent does not greet, greets with another version, or is not ready by
    ///   `deadline`. The error's context has `stage`: `greeting` until the agent has greeted and its program is
    ///   compared, `configuring` afterwards.
    /// - If it fails, the connection is closed, which ends the agent.
    pub async fn connect(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        settings: Settings,
        deadline: Instant,
    ) -> Result<(Self, Evidence)> {
        let Settings { answer_timeout, reason, .. } = settings;
        let settings = Settings { reason: None, ..settings };
        let link = Link::begin(reader, writer, answer_timeout, reason, (0, HashMap::new()));
        let owner = Arc::new(Owner(Arc::clone(&link)));
        let mut stage = "greeting";
        let connecting = async {
            probes::greet(&link).await?;
            if let Some(path) = &settings.program
                && !probes::is_program(&link, path, crate::AGENT).await?
            {
                return Err(Error::new(ErrorKind::Unavailable, "create", "the agent's program is damaged"));
            }
            stage = "configuring";
            // Before the agent enforces quotas, which count its own calls as well.
            let queries = listen(&link, &settings).await?;
            Ok((probes::configure(&link, &settings).await?, queries))
        };
        let connected = match tokio::time::timeout_at(deadline.into(), connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "create", "the agent was not ready in time")
                .with_remedy("the host may be overloaded; try again")),
        };
        let (evidence, queries) = connected.map_err(|error: Error| error.with_context("stage", stage))?;
        let inner = Inner::new(link, settings, &evidence, queries);
        Ok((Self { inner: Arc::new(inner), _owner: owner }, evidence))
    }

    /// Sets the host's own counter, from the next exec on. Has no effect if the settings named one.
    pub fn set_meter(&self, meter: Meter) {
        let _ = self.inner.meter.set(meter);
    }

    /// Starts a command under the wall time and CPU time of these limits, like `Sandbox::start`.
    pub async fn start(&self, request: &ExecRequest, limits: &Limits) -> Result<ExecHandle> {
        request.validate()?;
        self.inner.ready("start")?;
        let _operation = self.inner.link.operate("start")?;
        if self.inner.frozen.load(Ordering::Acquire) {
            return Err(error::paused("start"));
        }
        exec::start(&self.inner, request, limits).await
    }

    /// Reads a file, like `Sandbox::read_file`.
    pub async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        let _operation = self.inner.link.operate("read_file")?;
        let (reader, _) = files::read(&self.inner, "read_file", path.as_str().as_bytes()).await?;
        Ok(Box::new(reader))
    }

    /// Writes a file, like `Sandbox::write_file`.
    pub async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        if path.is_workspace() {
            return Err(Error::new(ErrorKind::Conflict, "write_file", "it is a directory, not a plain file"));
        }
        let path = path.as_str().as_bytes();
        let target = files::Target { root: Root::Workspace, path, strict: false, mode: 0o644, modified: None };
        let _operation = self.inner.link.operate("write_file")?;
        files::write(&self.inner, "write_file", &target, contents).await
    }

    /// Creates a file, directory or symlink, like `Sandbox::put`.
    pub async fn put(&self, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
        if path.is_workspace() {
            return Err(Error::new(ErrorKind::Conflict, "put", "the workspace itself cannot be replaced"));
        }
        let _operation = self.inner.link.operate("put")?;
        files::put(&self.inner, path, entry).await
    }

    /// Lists a directory, like `Sandbox::list_dir`.
    pub async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        let _operation = self.inner.link.operate("list_dir")?;
        files::list(&self.inner, path).await
    }

    /// Renames a file or directory, like `Sandbox::rename`.
    pub async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        if from.is_workspace() || to.is_workspace() {
            return Err(Error::invalid("rename", "the workspace itself cannot be renamed or replaced"));
        }
        let (path, to) = (from.as_str().as_bytes(), to.as_str().as_bytes());
        let request = Request::Rename { root: Root::Workspace, path, to };
        let _operation = self.inner.link.operate("rename")?;
        files::simple(&self.inner, "rename", &from.inside(), &request).await
    }

    /// Removes a file or directory, like `Sandbox::remove`.
    pub async fn remove(&self, path: &SandboxPath) -> Result<()> {
        if path.is_workspace() {
            return Err(Error::invalid("remove", "the workspace itself cannot be removed"));
        }
        let request = Request::Remove { root: Root::Workspace, path: path.as_str().as_bytes() };
        let _operation = self.inner.link.operate("remove")?;
        files::simple(&self.inner, "remove", &path.inside(), &request).await
    }

    /// Watches a directory, like `Sandbox::watch`.
    pub async fn watch(&self, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
        options.validate()?;
        self.inner.ready("watch")?;
        watch::watch(&self.inner, path, options).await
    }

    /// Returns the usage, like `Sandbox::usage`: the counts of the enclosure's own control groups, or only the disk
    /// usage if there are none. The agent's counts are cut to these limits, and to the CPU time that the host counts
    /// itself.
    pub async fn usage(&self, limits: &Limits) -> Result<SandboxUsage> {
        self.inner.ready("usage")?;
        let _operation = self.inner.link.operate("usage")?;
        let Reply::Counted(counts) = self.inner.link.call("usage", &Request::Count).await? else {
            return Err(Error::new(ErrorKind::Internal, "usage", "the agent sent an unexpected answer"));
        };
        let cpu_micros = match (self.inner.meter.get(), self.inner.metered().await) {
            (Some(Meter::Same(_)), Some(metered)) => Some(metered),
            (_, Some(metered)) => counts.cpu_micros.map(|micros| micros.min(metered)),
            (_, None) => counts.cpu_micros,
        };
        let capped = |value: Option<u64>, limit: Option<u64>| value.map(|value| value.min(limit.unwrap_or(u64::MAX)));
        let memory = limits.memory.map(|size| size.as_bytes());
        // The agent itself is not a process of the guest.
        let processes = counts.tasks.map(|tasks| u32::try_from(tasks.saturating_sub(1)).unwrap_or(u32::MAX));
        Ok(SandboxUsage {
            cpu_seconds: cpu_micros.map(|micros| micros as f64 / 1e6),
            memory_bytes: capped(counts.memory, memory),
            peak_memory_bytes: capped(counts.peak, memory),
            processes,
            disk_bytes: counts.stored,
        })
    }

    /// Connects to a TCP port of the loopback address, like `Sandbox::connect`.
    pub async fn connect_to(&self, port: u16) -> Result<Connection> {
        if port == 0 {
            return Err(Error::invalid("connect", "0 is not the port of a server"));
        }
        self.inner.ready("connect")?;
        let operation = self.inner.link.operate("connect")?;
        if self.inner.frozen.load(Ordering::Acquire) {
            return Err(error::paused("connect"));
        }
        let permit = Arc::clone(&self.inner.connects).try_acquire_owned().map_err(|_| {
            Error::new(ErrorKind::ResourceExhausted, "connect", "too many connections to this sandbox are open")
                .with_remedy("close some of them")
        })?;
        Ok(Box::new(streams::connect(&self.inner.link, port, permit, operation).await?))
    }

    /// Waits for a connection of a program to a port of the settings. Returns it with its destination.
    ///
    /// # Behavior
    /// - The agent accepts a connection only while a call waits for it. Further ones wait in the short queues of its
    ///   kernel, or fail.
    /// - Fails with `Closed` once the connection to the agent has ended.
    pub async fn accept(&self) -> Result<(Stream, SocketAddrV4)> {
        streams::accept(&self.inner.link, None).await
    }

    /// Takes the queries of programs to the resolver. Returns `None` if the settings had no ports, and the second time.
    pub fn take_queries(&self) -> Option<Queries> {
        self.inner.queries.lock().take()
    }

    /// Returns the current bounds of the enclosure's control groups, for a caller that has just changed them from
    /// outside.
    pub async fn bounds(&self) -> Result<Bounds> {
        self.inner.ready("usage")?;
        let _operation = self.inner.link.operate("usage")?;
        match self.inner.groups {
            Groups::Detect => probes::bounds(&self.inner.link).await,
            Groups::Never => Ok(Bounds::default()),
        }
    }

    /// Stops every process but the agent: by their control group if a process inside can, else by signals. No command
    /// can start until [`Self::thaw`]. The file API keeps working.
    pub async fn freeze(&self) -> Result<()> {
        let _operation = self.inner.link.operate("pause")?;
        self.inner.frozen.store(true, Ordering::Release);
        let frozen = files::simple(&self.inner, "pause", "", &Request::Freeze { on: true }).await;
        if frozen.is_err() {
            self.inner.frozen.store(false, Ordering::Release);
        }
        frozen
    }

    /// Resumes the processes that [`Self::freeze`] stopped.
    pub async fn thaw(&self) -> Result<()> {
        let _operation = self.inner.link.operate("resume")?;
        files::simple(&self.inner, "resume", "", &Request::Freeze { on: false }).await?;
        self.inner.frozen.store(false, Ordering::Release);
        Ok(())
    }

    /// Records that the whole enclosure, agent included, was stopped from outside, or has resumed. While it is stopped,
    /// operations fail with `Conflict` and the agent may be silent for any time.
    pub fn set_paused(&self, paused: bool) {
        self.inner.link.set_paused(paused);
    }

    /// Returns true if [`Self::set_paused`] recorded a stop.
    pub fn is_paused(&self) -> bool {
        self.inner.link.is_paused()
    }

    /// Writes the workspace as an archive of one layer: entries `workspace/…`, sorted, with modes, times and links and
    /// without owners. The same contents result in the same bytes.
    ///
    /// # Behavior
    /// - Skips sockets, fifos and devices.
    /// - Call it while no program runs, or while the guest is frozen. A file that changes meanwhile is in an undefined
    ///   state in the archive. A file that becomes shorter or longer while it is read fails the export.
    pub async fn export(&self, into: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<ArchiveSummary> {
        let _operation = self.inner.link.operate("snapshot")?;
        archive::export(&self.inner, into).await
    }

    /// Extracts an archive of [`Self::export`] into the workspace.
    ///
    /// # Behavior
    /// - Fails with `InvalidInput` at the first entry outside `workspace/`, with `..` or an absolute path, of a device,
    ///   or of a hard link to a path outside `workspace/`, and for a truncated archive.
    /// - No entry is written through a link, so that no sequence of entries leads out of the workspace.
    /// - After a failure, the entries before it stay in the workspace.
    pub async fn import(&self, from: &mut (dyn AsyncRead + Send + Unpin)) -> Result<ArchiveSummary> {
        let _operation = self.inner.link.operate("restore")?;
        archive::import(&self.inner, from).await
    }

    /// Returns true until the connection has ended. Cheap: it sends no request.
    pub fn is_alive(&self) -> bool {
        self.inner.link.is_open()
    }

    /// Waits until the connection has ended. Returns the reason, or `None` if this side ended it.
    pub async fn closed(&self) -> Option<Termination> {
        self.inner.link.closed().await
    }

    /// Waits for the same without keeping the connection alive. Returns as well once the last clone is dropped.
    pub fn until_closed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.inner.link.until_closed()
    }

    /// Ends the agent and the connection. All pending operations fail. Idempotent.
    pub async fn close(&self) {
        self.inner.link.end(END_TIMEOUT).await;
    }
}
