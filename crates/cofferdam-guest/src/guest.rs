//! What a backend holds of an enclosure with an agent in it.
//!
//! ```text
//! connecting --hello, probes, configure, probes--> open --close, last clone dropped--> ended
//!                                                   '--stream ends, rubbish, silence--> ended by itself
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
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
use crate::settings::{Ending, Groups, Meter, Settings};
use crate::slots::Reply;
use crate::wire::{Counts, Order, Root};
use crate::{exec, files, probes};

/// Time that an agent has to end by itself.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Time that the agent has for an answer on which a limit depends.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// CPU microseconds that a monitor may need for itself, besides as much again as its guest.
const MONITOR_MICROS: u64 = 5_000_000;
/// No agent sees more processors.
const MAX_PROCESSORS: u32 = 4096;

/// What execs and operations need.
pub(crate) struct Inner {
    pub link: Arc<Link>,
    pub workspace: String,
    pub code: String,
    pub path: String,
    pub env: Vec<(String, String)>,
    pub patience: Duration,
    pub groups: Groups,
    /// Whether the agent counts CPU time and can be asked for it while an exec runs.
    agent_counts: bool,
    processors: u32,
    /// What the host counts itself.
    meter: OnceLock<Meter>,
    pub running: Arc<Running>,
    pub ledger: Arc<Ledger>,
    /// Execs of a former host, until they are attached to.
    pub adopted: Mutex<BTreeMap<ExecId, ExecHandle>>,
    pub frozen: AtomicBool,
}

impl Inner {
    /// Of a guest that was measured.
    pub fn new(link: Arc<Link>, settings: Settings, evidence: &Evidence) -> Self {
        let Settings { workspace, code, path, env, groups, patience, meter, .. } = settings;
        Self {
            link,
            workspace,
            code,
            path,
            env,
            patience,
            groups,
            agent_counts: evidence.counts_cpu,
            processors: evidence.processors.clamp(1, MAX_PROCESSORS),
            meter: meter.map_or_else(OnceLock::new, OnceLock::from),
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

    /// Whether CPU time is counted by anything that can be asked while an exec runs.
    pub fn counts_cpu(&self) -> bool {
        self.agent_counts || self.meter.get().is_some()
    }

    /// Processors on which guests can run at once.
    pub fn processors(&self) -> u32 {
        match self.meter.get() {
            // Looks come too late where an agent says that there are fewer than there are.
            Some(Meter::Same(_)) => self.processors.max(cofferdam_linux::process::processors()),
            _ => self.processors,
        }
    }

    /// CPU microseconds that the host counts itself.
    pub async fn metered(&self) -> Option<u64> {
        let (Meter::Same(read) | Meter::Around(read)) = self.meter.get()?;
        tokio::time::timeout(ANSWER_TIMEOUT, read()).await.ok().flatten()
    }

    /// Whether the host reads the counter that the agent reads.
    pub fn is_metered_alike(&self) -> bool {
        matches!(self.meter.get(), Some(Meter::Same(_)))
    }

    /// The same where it is the counter that the agent reads.
    pub async fn metered_alike(&self) -> Option<u64> {
        if self.is_metered_alike() { self.metered().await } else { None }
    }

    /// What the host counts of the enclosure together with its monitor, since it counted `base`.
    pub async fn metered_around(&self, base: Option<u64>) -> Option<u64> {
        match self.meter.get() {
            Some(Meter::Around(_)) => Some(self.metered().await?.saturating_sub(base?)),
            _ => None,
        }
    }

    /// The CPU time to judge an exec by, from what is charged to it and what the host counted around it.
    pub fn judged(&self, used: Option<u64>, around: Option<u64>) -> Option<u64> {
        // What a monitor needs for itself is not the guest's, but it is no more than that.
        let certain = around.map(|around| around.saturating_sub(MONITOR_MICROS) / 2);
        match used {
            Some(used) => Some(used.max(certain.unwrap_or(0))),
            None if self.agent_counts => around,
            None => certain,
        }
    }

    /// Asks the agent a question of supervision. An answer that does not come in time is none.
    pub async fn answer(&self, order: &Order<'_>) -> Option<Reply> {
        loop {
            self.link.going().await;
            match tokio::time::timeout(ANSWER_TIMEOUT, self.link.call("exit", order)).await {
                Ok(Ok(reply)) => return Some(reply),
                // It was held in this moment.
                Ok(Err(error)) if error.kind() == ErrorKind::Conflict => {}
                Ok(Err(_)) => return None,
                Err(_) if self.link.is_still() => {}
                Err(_) => return None,
            }
        }
    }

    /// Looks who used the CPU time that was counted. With an exec that has ended comes what was reaped of it.
    pub async fn tell_apart(&self, ended: Option<(u64, u64)>) {
        if let Some(reply) = self.answer(&Order::Shares).await {
            self.take_in(reply, ended).await;
        }
    }

    /// Takes in who used what, by the host's own count where there is one.
    pub async fn take_in(&self, reply: Reply, ended: Option<(u64, u64)>) {
        let reply = match (reply, self.metered_alike().await) {
            (Reply::Shares { counts, used }, Some(micros)) => {
                Reply::Shares { counts: Counts { cpu_micros: Some(micros), ..counts }, used }
            }
            (reply, _) => reply,
        };
        self.ledger.take_in(&reply, ended);
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

    /// Has CPU time judged by what the host counts itself, from the next exec on, where the settings named nothing.
    pub fn set_meter(&self, meter: Meter) {
        let _ = self.inner.meter.set(meter);
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

    /// As `Sandbox::usage`: what the enclosure's own control groups say, and where there are none only what is stored. What
    /// the agent says is cut to these limits, and to the CPU time that the host counts itself.
    pub async fn usage(&self, limits: &Limits) -> Result<SandboxUsage> {
        self.inner.ready("usage")?;
        let _operation = self.inner.link.operate("usage")?;
        let Reply::Counted(counts) = self.inner.link.call("usage", &Order::Count).await? else {
            return Err(Error::new(ErrorKind::Internal, "usage", "the agent answered another question"));
        };
        let cpu_micros = match (self.inner.meter.get(), self.inner.metered().await) {
            (Some(Meter::Same(_)), Some(metered)) => Some(metered),
            (_, Some(metered)) => counts.cpu_micros.map(|micros| micros.min(metered)),
            (_, None) => counts.cpu_micros,
        };
        let most = |value: Option<u64>, limit: Option<u64>| value.map(|value| value.min(limit.unwrap_or(u64::MAX)));
        let memory = limits.memory.map(|size| size.as_bytes());
        // The agent is not the guest's.
        let processes = counts.tasks.map(|tasks| u32::try_from(tasks.saturating_sub(1)).unwrap_or(u32::MAX));
        Ok(SandboxUsage {
            cpu_seconds: cpu_micros.map(|micros| micros as f64 / 1e6),
            memory_bytes: most(counts.memory, memory),
            peak_memory_bytes: most(counts.peak, memory),
            processes,
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
