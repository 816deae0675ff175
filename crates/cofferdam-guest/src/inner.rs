//! The state of a guest on the host, shared by its execs and operations.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cofferdam_contract::{ErrorKind, ExecHandle, ExecId, Result, SandboxPath};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::error;
use crate::evidence::Evidence;
use crate::link::Link;
use crate::running::Running;
use crate::settings::{Groups, Meter, Settings};
use crate::slots::Reply;
use crate::streams::{MAX_CONNECTS, Queries};
use crate::wire::{MAX_WATCHES, Request};

/// Time limit for an answer on which a limit of an exec depends.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// CPU microseconds that a VMM may use for itself, in addition to as much again as its guest uses.
const VMM_MICROS: u64 = 5_000_000;
/// The highest number of processors that an agent may report.
const MAX_PROCESSORS: u32 = 4096;

/// The state shared by execs and operations.
pub struct Inner {
    pub link: Arc<Link>,
    pub workspace: String,
    pub code: String,
    pub path: String,
    pub env: Vec<(String, String)>,
    pub answer_timeout: Duration,
    pub groups: Groups,
    /// True if the agent counts CPU time and can report it while an exec runs.
    agent_counts: bool,
    processors: u32,
    /// The host's own counter.
    pub meter: OnceLock<Meter>,
    pub running: Arc<Running>,
    /// Handles of the execs of a former host, until the caller takes them.
    pub reattached: Mutex<BTreeMap<ExecId, ExecHandle>>,
    pub frozen: AtomicBool,
    /// The queries to the resolver, until the network is started.
    pub queries: Mutex<Option<Queries>>,
    /// One permit for each further connection of the host.
    pub connects: Arc<Semaphore>,
    /// One permit for each further watch.
    pub watches: Arc<Semaphore>,
}

impl Inner {
    /// Creates the state of a guest after its measurement.
    pub fn new(link: Arc<Link>, settings: Settings, evidence: &Evidence, queries: Option<Queries>) -> Self {
        let Settings { workspace, code, path, env, groups, answer_timeout, meter, .. } = settings;
        Self {
            link,
            workspace,
            code,
            path,
            env,
            answer_timeout,
            groups,
            agent_counts: evidence.counts_cpu,
            processors: evidence.processors.clamp(1, MAX_PROCESSORS),
            meter: meter.map_or_else(OnceLock::new, OnceLock::from),
            running: Arc::default(),
            reattached: Mutex::default(),
            frozen: AtomicBool::new(false),
            queries: Mutex::new(queries),
            connects: Arc::new(Semaphore::new(MAX_CONNECTS)),
            watches: Arc::new(Semaphore::new(MAX_WATCHES)),
        }
    }

    /// Returns a path as programs inside see it.
    pub fn inside(&self, path: &SandboxPath) -> String {
        if path.is_workspace() { self.workspace.clone() } else { format!("{}/{}", self.workspace, path.as_str()) }
    }

    /// Returns true if a counter of CPU time can be read while an exec runs.
    pub fn counts_cpu(&self) -> bool {
        self.agent_counts || self.meter.get().is_some()
    }

    /// Returns the number of processors on which guests can run at once.
    pub fn processors(&self) -> u32 {
        match self.meter.get() {
            // If an agent reports too few processors, polls come too late.
            Some(Meter::Same(_)) => self.processors.max(cofferdam_linux::process::processors()),
            _ => self.processors,
        }
    }

    /// Reads the host's own counter in microseconds.
    pub async fn metered(&self) -> Option<u64> {
        let (Meter::Same(read) | Meter::Around(read)) = self.meter.get()?;
        tokio::time::timeout(ANSWER_TIMEOUT, read()).await.ok().flatten()
    }

    /// Returns true if the host reads the counter that the agent reads.
    pub fn is_metered_alike(&self) -> bool {
        matches!(self.meter.get(), Some(Meter::Same(_)))
    }

    /// Reads the host's own counter if it is the counter that the agent reads.
    pub async fn metered_alike(&self) -> Option<u64> {
        if self.is_metered_alike() { self.metered().await } else { None }
    }

    /// Returns the CPU time of the enclosure together with its VMM since the count of `base`.
    pub async fn metered_around(&self, base: Option<u64>) -> Option<u64> {
        match self.meter.get() {
            Some(Meter::Around(_)) => Some(self.metered().await?.saturating_sub(base?)),
            _ => None,
        }
    }

    /// Returns the CPU time that counts against an exec's limit. `used` is what the agent's counter counted since the
    /// exec began, and `around` the host's count of the enclosure.
    pub fn effective_cpu(&self, used: Option<u64>, around: Option<u64>) -> Option<u64> {
        // The VMM's own CPU time is not the guest's, but it has an upper bound.
        let certain = around.map(|around| around.saturating_sub(VMM_MICROS) / 2);
        match used {
            Some(used) => Some(used.max(certain.unwrap_or(0))),
            None if self.agent_counts => around,
            None => certain,
        }
    }

    /// Sends a request that supervises execs. Returns `None` if the answer does not arrive in time.
    pub async fn answer(&self, request: &Request<'_>) -> Option<Reply> {
        loop {
            self.link.wait_until_running().await;
            match tokio::time::timeout(ANSWER_TIMEOUT, self.link.call("exit", request)).await {
                Ok(Ok(reply)) => return Some(reply),
                // The guest was quiesced at this moment.
                Ok(Err(error)) if error.kind() == ErrorKind::Conflict => {}
                Ok(Err(_)) => return None,
                Err(_) if self.link.is_stopped() => {}
                Err(_) => return None,
            }
        }
    }

    /// Returns an error if the agent cannot take requests.
    pub fn ready(&self, operation: &'static str) -> Result<()> {
        self.link.check(operation)?;
        if self.link.is_paused() { Err(error::paused(operation)) } else { Ok(()) }
    }
}

/// A guard that ends the connection when the last clone is dropped.
pub struct Owner(pub Arc<Link>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.close();
    }
}
