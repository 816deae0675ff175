//! What a backend holds of an enclosure with an agent in it.
//!
//! ```text
//! connecting --hello, probes, configure, probes--> open --close, last clone dropped--> ended
//!                                                   '--stream ends, rubbish, silence--> ended by itself
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cofferdam_contract::{
    DirEntry, Error, ErrorKind, ExecHandle, ExecId, ExecRequest, FileReader, Limits, Result, SandboxPath, SandboxUsage,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::archive::{self, Archive};
use crate::evidence::{Bounds, Evidence};
use crate::ledger::Ledger;
use crate::link::Link;
use crate::running::Running;
use crate::settings::{Ending, Groups, Settings};
use crate::slots::Reply;
use crate::wire::{Order, Root};
use crate::{exec, files, probes};

/// Time that an agent has to end by itself.
const END_LIMIT: Duration = Duration::from_secs(2);

/// What execs and operations need.
pub(crate) struct Inner {
    pub link: Arc<Link>,
    pub workspace: String,
    pub code: String,
    pub path: String,
    pub env: Vec<(String, String)>,
    pub patience: Duration,
    pub groups: Groups,
    /// Whether somebody counts CPU time who can be asked while an exec runs.
    pub counts_cpu: bool,
    pub processors: u32,
    pub running: Arc<Running>,
    pub ledger: Arc<Ledger>,
    /// Execs of a former host, until they are attached to.
    pub adopted: Mutex<BTreeMap<ExecId, ExecHandle>>,
    pub frozen: AtomicBool,
}

impl Inner {
    /// Of a guest that was measured.
    pub fn new(link: Arc<Link>, settings: Settings, evidence: &Evidence) -> Self {
        let Settings { workspace, code, path, env, groups, patience, .. } = settings;
        Self {
            link,
            workspace,
            code,
            path,
            env,
            patience,
            groups,
            counts_cpu: evidence.counts_cpu,
            processors: evidence.processors,
            running: Arc::default(),
            ledger: Arc::default(),
            adopted: Mutex::default(),
            frozen: AtomicBool::new(false),
        }
    }

    /// A path as programs inside see it.
    pub fn inside(&self, path: &SandboxPath) -> String {
        if path.is_workspace() { self.workspace.clone() } else { format!("{}/{}", self.workspace, path.as_str()) }
    }

    /// Looks who used the CPU time that was counted. With an exec that has ended comes what was reaped of it.
    pub async fn tell_apart(&self, ended: Option<(u64, u64)>) {
        loop {
            self.link.going().await;
            match self.link.call("exit", &Order::Shares).await {
                Ok(reply) => return self.ledger.take_in(&reply, ended),
                // It was held in this moment.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(_) => return,
            }
        }
    }

    /// The error where an operation cannot be asked for.
    pub fn ready(&self, operation: &'static str) -> Result<()> {
        self.link.check(operation)?;
        if self.link.is_paused() { Err(exec::paused(operation)) } else { Ok(()) }
    }
}

/// Ends the connection with the last clone.
pub(crate) struct Owner(pub Arc<Link>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.close();
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
    /// Greets an agent, configures it and measures where it is. Needs a tokio runtime with time.
    ///
    /// # Behavior
    /// - `reader` is what the agent writes to its descriptor 1, `writer` what it reads from its descriptor 0.
    /// - Fails with `Unavailable` when the agent does not greet, greets in another version, or is not done by `deadline`;
    ///   the error's context has `stage`: `greeting` until the agent has greeted and, if asked, shown its program, `configuring` afterwards.
    /// - When it fails, the connection is closed, which ends the agent.
    pub async fn connect(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        settings: Settings,
        deadline: Instant,
    ) -> Result<(Self, Evidence)> {
        let Settings { patience, reason, .. } = settings;
        let settings = Settings { reason: None, ..settings };
        let link = Link::begin(reader, writer, patience, reason, (0, HashMap::new()));
        let owner = Arc::new(Owner(Arc::clone(&link)));
        let mut stage = "greeting";
        let making = async {
            probes::greet(&link).await?;
            if let Some(path) = &settings.program
                && !probes::is_program(&link, path, crate::AGENT).await?
            {
                return Err(Error::new(ErrorKind::Unavailable, "create", "the agent is not what it should be"));
            }
            stage = "configuring";
            probes::configure(&link, &settings).await
        };
        let made = match tokio::time::timeout_at(deadline.into(), making).await {
            Ok(made) => made,
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "create", "the agent was not ready in time")
                .with_remedy("the host may be overloaded; try again")),
        };
        let evidence = made.map_err(|error| error.with_context("stage", stage))?;
        let inner = Inner::new(link, settings, &evidence);
        Ok((Self { inner: Arc::new(inner), _owner: owner }, evidence))
    }

    /// Starts a command under these limits' wall time and CPU time; as `Sandbox::start`.
    pub async fn start(&self, request: &ExecRequest, limits: &Limits) -> Result<ExecHandle> {
        request.validate()?;
        self.inner.ready("start")?;
        let _operation = self.inner.link.operate("start")?;
        if self.inner.frozen.load(Ordering::Acquire) {
            return Err(exec::paused("start"));
        }
        exec::start(&self.inner, request, limits).await
    }

    /// As `Sandbox::read_file`.
    pub async fn read_file(&self, path: &SandboxPath) -> Result<FileReader> {
        let _operation = self.inner.link.operate("read_file")?;
        let (reader, _) = files::read(&self.inner, "read_file", path.as_str().as_bytes()).await?;
        Ok(Box::new(reader))
    }

    /// As `Sandbox::write_file`.
    pub async fn write_file(&self, path: &SandboxPath, contents: FileReader) -> Result<u64> {
        if path.is_workspace() {
            return Err(Error::new(ErrorKind::Conflict, "write_file", "it is a directory, not a plain file"));
        }
        let path = path.as_str().as_bytes();
        let target = files::Target { root: Root::Workspace, path, strict: false, mode: 0o644, modified: None };
        let _operation = self.inner.link.operate("write_file")?;
        files::write(&self.inner, "write_file", &target, contents).await
    }

    /// As `Sandbox::list_dir`.
    pub async fn list_dir(&self, path: &SandboxPath) -> Result<Vec<DirEntry>> {
        let _operation = self.inner.link.operate("list_dir")?;
        files::list(&self.inner, path).await
    }

    /// As `Sandbox::remove`.
    pub async fn remove(&self, path: &SandboxPath) -> Result<()> {
        if path.is_workspace() {
            return Err(Error::invalid("remove", "the workspace itself cannot be removed"));
        }
        let order = Order::Remove { root: Root::Workspace, path: path.as_str().as_bytes() };
        let _operation = self.inner.link.operate("remove")?;
        files::simple(&self.inner, "remove", &path.inside(), &order).await
    }

    /// As `Sandbox::usage`: what the enclosure's own control groups say, and where there are none only what is stored.
    pub async fn usage(&self) -> Result<SandboxUsage> {
        self.inner.ready("usage")?;
        let _operation = self.inner.link.operate("usage")?;
        let Reply::Counted(counts) = self.inner.link.call("usage", &Order::Count).await? else {
            return Err(Error::new(ErrorKind::Internal, "usage", "the agent answered another question"));
        };
        Ok(SandboxUsage {
            cpu_seconds: counts.cpu_micros.map(|micros| micros as f64 / 1e6),
            memory_bytes: counts.memory,
            peak_memory_bytes: counts.peak,
            // The agent is not the guest's.
            processes: counts.tasks.map(|tasks| u32::try_from(tasks.saturating_sub(1)).unwrap_or(u32::MAX)),
            disk_bytes: counts.stored,
        })
    }

    /// The bounds of the enclosure's control groups as they are now, for who has just changed them from outside.
    pub async fn bounds(&self) -> Result<Bounds> {
        self.inner.ready("usage")?;
        let _operation = self.inner.link.operate("usage")?;
        match self.inner.groups {
            Groups::Look => probes::bounds(&self.inner.link).await,
            Groups::Never => Ok(Bounds::default()),
        }
    }

    /// Stops every process but the agent: by their control group where somebody inside may, else by signals. Nothing is started until [`Self::thaw`]; the file API goes on.
    pub async fn freeze(&self) -> Result<()> {
        let _operation = self.inner.link.operate("pause")?;
        self.inner.frozen.store(true, Ordering::Release);
        let frozen = files::simple(&self.inner, "pause", "", &Order::Freeze { on: true }).await;
        if frozen.is_err() {
            self.inner.frozen.store(false, Ordering::Release);
        }
        frozen
    }

    /// Lets go on what [`Self::freeze`] stopped.
    pub async fn thaw(&self) -> Result<()> {
        let _operation = self.inner.link.operate("resume")?;
        files::simple(&self.inner, "resume", "", &Order::Freeze { on: false }).await?;
        self.inner.frozen.store(false, Ordering::Release);
        Ok(())
    }

    /// Says that the whole enclosure, agent included, was stopped from outside, or goes on again. While it is stopped,
    /// operations are refused with `Conflict` and nobody minds that the agent is silent.
    pub fn set_paused(&self, paused: bool) {
        self.inner.link.set_paused(paused);
    }

    /// Whether that was said.
    pub fn is_paused(&self) -> bool {
        self.inner.link.is_paused()
    }

    /// Writes the workspace as an archive of one layer: entries `workspace/…`, sorted, with modes, times and links and
    /// without owners. The same contents give the same bytes.
    ///
    /// # Behavior
    /// - Sockets, fifos and devices are left out.
    /// - Should be called while nothing runs, or frozen: what changes meanwhile may be in any state. A file that becomes
    ///   shorter or longer while it is read fails the export.
    pub async fn export(&self, into: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<Archive> {
        let _operation = self.inner.link.operate("snapshot")?;
        archive::export(&self.inner, into).await
    }

    /// Puts the contents of an archive, as [`Self::export`] makes it, into the workspace.
    ///
    /// # Behavior
    /// - Refuses with `InvalidInput`, at the first entry that is not in order, an archive with entries outside
    ///   `workspace/`, with `..`, absolute paths, devices, hard links to what is not in it, or cut short.
    /// - No entry is put through a link, so that no order of entries leads anywhere else.
    /// - After a failure, what was put there before is left there.
    pub async fn import(&self, from: &mut (dyn AsyncRead + Send + Unpin)) -> Result<Archive> {
        let _operation = self.inner.link.operate("restore")?;
        archive::import(&self.inner, from).await
    }

    /// Whether the connection has not ended. Cheap: it asks nobody.
    pub fn is_alive(&self) -> bool {
        self.inner.link.is_open()
    }

    /// Waits until the connection has ended; gives why, or `None` if this side ended it.
    pub async fn closed(&self) -> Option<Ending> {
        self.inner.link.closed().await
    }

    /// Waits for the same without keeping the connection: it is over as well once the last clone is dropped.
    pub fn until_closed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.inner.link.until_closed()
    }

    /// Has the agent end, and the connection. Everything that waits fails. Idempotent.
    pub async fn close(&self) {
        self.inner.link.end(END_LIMIT).await;
    }
}
