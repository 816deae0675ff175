//! The state shared by all sandboxes of one backend: the configuration, the connected engine, and the containers that
//! could not be removed yet.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam_contract::{Result, SandboxId};
use parking_lot::{Mutex as Lock, MutexGuard};
use tokio::sync::{Mutex, Semaphore};

use crate::config::Checked;
use crate::disks;
use crate::engine::Engine;
use crate::error;
use crate::labels::Owner;
use crate::load::ImageSource;
use crate::progress::PullProgress;
use crate::removal::remove;
use crate::sweep::sweep;

/// The highest number of concurrent creations. More are hardly faster for an engine, and each has a deadline.
const MAX_CONCURRENT_CREATIONS: usize = 8;

/// The state shared by all sandboxes of one backend.
pub(crate) struct BackendState {
    pub config: Checked,
    pub progress: PullProgress,
    /// Another store of images.
    pub source: Option<Arc<dyn ImageSource>>,
    pub owner: Owner,
    pub creation_slots: Semaphore,
    engine: Mutex<Option<Arc<ConnectedEngine>>>,
    stale: AtomicBool,
    leftovers: Lock<BTreeSet<String>>,
}

/// A connected engine and the state of its agent volume.
#[derive(Debug)]
pub(crate) struct ConnectedEngine {
    pub engine: Engine,
    /// True if the volume is known to contain the agent.
    pub has_agent: AtomicBool,
    /// The lock for filling the volume.
    pub filling: Mutex<()>,
    /// True if the engine did not see an overlay that this process had mounted.
    pub lacks_mounts: AtomicBool,
}

impl BackendState {
    /// Creates the state without contacting an engine.
    pub(crate) fn new(
        config: Checked,
        progress: PullProgress,
        source: Option<Arc<dyn ImageSource>>,
    ) -> Result<Arc<Self>> {
        let owner = Owner::this().map_err(|error| error::os("configure", "cannot identify this process", error))?;
        Ok(Arc::new(Self {
            config,
            progress,
            source,
            owner,
            creation_slots: Semaphore::new(MAX_CONCURRENT_CREATIONS),
            engine: Mutex::new(None),
            stale: AtomicBool::new(false),
            leftovers: Lock::default(),
        }))
    }

    /// Returns the engine. Connects and sweeps at the first call, and again after the engine went away.
    pub(crate) async fn engine(&self) -> Result<Arc<ConnectedEngine>> {
        let mut known = self.engine.lock().await;
        if self.stale.swap(false, Ordering::AcqRel) {
            *known = None;
        }
        if let Some(connected) = known.as_ref() {
            return Ok(Arc::clone(connected));
        }
        let engine = Engine::connect(&self.config).await?;
        engine.check_runtime(self.config.runtime.as_deref())?;
        // A failed sweep does not prevent new sandboxes.
        let _ = sweep(&engine, &self.owner).await;
        disks::sweep(&self.owner);
        let connected = Arc::new(ConnectedEngine {
            engine,
            has_agent: AtomicBool::new(false),
            filling: Mutex::new(()),
            lacks_mounts: AtomicBool::new(false),
        });
        *known = Some(Arc::clone(&connected));
        Ok(connected)
    }

    /// Marks the connection as stale, so that the next call connects again. The engine may have been replaced.
    pub(crate) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Returns an id that is unique on all engines.
    pub(crate) fn new_id(&self) -> SandboxId {
        SandboxId::new(format!("cofferdam-{:016x}{:08x}", fastrand::u64(..), fastrand::u32(..)))
    }

    fn leftovers(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.leftovers.lock()
    }

    /// Adds a container that could not be removed.
    pub(crate) fn remember_leftover(&self, id: &str) {
        self.leftovers().insert(id.to_owned());
    }

    /// Removes a container that is gone.
    pub(crate) fn forget_leftover(&self, id: &str) {
        self.leftovers().remove(id);
    }

    /// Returns the number of containers that could not be removed so far.
    pub(crate) fn leftover_count(&self) -> usize {
        self.leftovers().len()
    }

    /// Starts removing the containers that could not be removed before. Does not wait for it.
    pub(crate) fn retry_leftovers(self: &Arc<Self>, engine: &Engine) {
        let waiting: Vec<String> = self.leftovers().iter().cloned().collect();
        for id in waiting {
            let (state, engine) = (Arc::clone(self), engine.clone());
            tokio::spawn(async move {
                if remove(&engine, &id).await.is_ok() {
                    state.forget_leftover(&id);
                }
            });
        }
    }
}

impl fmt::Debug for BackendState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendState").field("config", &self.config).field("owner", &self.owner).finish_non_exhaustive()
    }
}
