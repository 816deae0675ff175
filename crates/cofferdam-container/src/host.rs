//! What all sandboxes of one backend share: the configuration, the engine once it was found, and what could not be
//! removed yet.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};

use cofferdam_contract::{Result, SandboxId};
use tokio::sync::{Mutex, Semaphore};

use crate::config::Checked;
use crate::container;
use crate::engine::Engine;
use crate::error;
use crate::image::PullProgress;
use crate::labels::Owner;
use crate::sweep::sweep;

/// Containers that are made at once. An engine makes them hardly faster side by side, and each has a deadline.
const MADE_AT_ONCE: usize = 8;

/// What all sandboxes of one backend share.
pub(crate) struct Host {
    pub config: Checked,
    pub progress: PullProgress,
    pub owner: Owner,
    pub makers: Semaphore,
    engine: Mutex<Option<Arc<Found>>>,
    doubted: AtomicBool,
    leftovers: Lock<BTreeSet<String>>,
}

/// An engine that was found, and what was found out about it since.
#[derive(Debug)]
pub(crate) struct Found {
    pub engine: Engine,
    /// Whether its volume holds the agent.
    pub has_agent: AtomicBool,
    /// Held while the volume is filled.
    pub filling: Mutex<()>,
}

impl Host {
    /// Contacts nobody.
    pub(crate) fn new(config: Checked, progress: PullProgress) -> Result<Arc<Self>> {
        let owner =
            Owner::this().map_err(|error| error::os("configure", "cannot find out about this process", error))?;
        Ok(Arc::new(Self {
            config,
            progress,
            owner,
            makers: Semaphore::new(MADE_AT_ONCE),
            engine: Mutex::new(None),
            doubted: AtomicBool::new(false),
            leftovers: Lock::default(),
        }))
    }

    /// The engine; looked for, and swept, at the first call, and again after it went away.
    pub(crate) async fn engine(&self) -> Result<Arc<Found>> {
        let mut known = self.engine.lock().await;
        if self.doubted.swap(false, Ordering::AcqRel) {
            *known = None;
        }
        if let Some(found) = known.as_ref() {
            return Ok(Arc::clone(found));
        }
        let engine = Engine::connect(&self.config).await?;
        engine.check_runtime(self.config.runtime.as_deref())?;
        // What cannot be swept now is no reason to make nothing.
        let _ = sweep(&engine, &self.owner).await;
        let found = Arc::new(Found { engine, has_agent: AtomicBool::new(false), filling: Mutex::new(()) });
        *known = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Has the engine looked for again: it went away, and may come back as another.
    pub(crate) fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    /// An id that no other sandbox has, on any engine.
    pub(crate) fn new_id(&self) -> SandboxId {
        SandboxId::new(format!("cofferdam-{:016x}{:08x}", fastrand::u64(..), fastrand::u32(..)))
    }

    fn leftovers(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A container that could not be removed.
    pub(crate) fn remember_leftover(&self, id: &str) {
        self.leftovers().insert(id.to_owned());
    }

    /// A container that is gone.
    pub(crate) fn forget_leftover(&self, id: &str) {
        self.leftovers().remove(id);
    }

    /// How many containers could not be removed so far.
    pub(crate) fn leftover_count(&self) -> usize {
        self.leftovers().len()
    }

    /// Tries once more to remove what could not be removed, without waiting for it.
    pub(crate) fn retry_leftovers(self: &Arc<Self>, engine: &Engine) {
        let waiting: Vec<String> = self.leftovers().iter().cloned().collect();
        for id in waiting {
            let (host, engine) = (Arc::clone(self), engine.clone());
            tokio::spawn(async move {
                if container::remove(&engine, &id).await.is_ok() {
                    host.forget_leftover(&id);
                }
            });
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("config", &self.config).field("owner", &self.owner).finish_non_exhaustive()
    }
}
