//! The end of sandboxes with a copy-on-write workspace: their changes are kept first.
//!
//! ```text
//! live --delete--> removed --changes kept--> closed
//!  ^                  |
//!  '-- cannot be kept-'      at the end of its time, or of the server: reported, then closed
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cofferdam_changes::StoreLimits;
use cofferdam_changes::sandbox::{KeptChanges, keep};
use cofferdam_contract::{Error, ErrorKind, Result, Workspace};

use super::{LiveSandbox, Sandboxes};
use crate::report;

/// The time for execs to end before the changes are read.
const EXEC_TIMEOUT: Duration = Duration::from_secs(5);
/// The time to keep changes.
const KEEP_TIMEOUT: Duration = Duration::from_secs(120);

/// The treatment of changes when a sandbox ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unkept {
    /// Keeps them. If that fails, the sandbox remains.
    Keep,
    /// Keeps them. If that fails, the loss is reported, and the sandbox ends.
    Report,
    /// Discards them, as the caller asked.
    Discard,
}

impl Sandboxes {
    /// Ends a sandbox that was removed from the table.
    pub(super) async fn end(&self, live: Arc<LiveSandbox>, unkept: Unkept) -> Result<Option<KeptChanges>> {
        let stored = match self.keep_changes(&live, unkept).await {
            Ok(stored) => stored,
            Err(error) if unkept == Unkept::Keep && self.put_back(&live) => {
                let message = format!("the sandbox remains, because its changes cannot be kept: {}", error.message());
                return Err(Error::new(error.kind(), "close", message)
                    .with_source(error)
                    .with_remedy("free space, apply the changes, or delete it with changes=discard"));
            }
            Err(error) => {
                report::warning(&format!("the changes of sandbox {} are lost: {error}", live.id));
                None
            }
        };
        if let Some(KeptChanges { id, workspace, .. }) = stored.as_ref().filter(|_| unkept == Unkept::Report) {
            let directory = workspace.display();
            report::warning(&format!(
                "sandbox {} ended; 'cofferdam changes show {id}' shows its changes of {directory}",
                live.id
            ));
        }
        live.close().await?;
        Ok(stored)
    }

    async fn keep_changes(&self, live: &LiveSandbox, unkept: Unkept) -> Result<Option<KeptChanges>> {
        let is_copy = matches!(live.inner().spec().workspace(), Workspace::CopyOnWrite { .. });
        let Some(store) = self.changes.as_ref().filter(|_| is_copy && unkept != Unkept::Discard) else {
            return Ok(None);
        };
        let stored = async {
            if live.is_paused() {
                // Files of a paused sandbox cannot be read.
                live.resume().await?;
            }
            live.end_execs(EXEC_TIMEOUT).await;
            keep(&**live.inner(), store.clone(), StoreLimits::default()).await
        };
        tokio::time::timeout(KEEP_TIMEOUT, stored).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "changes", "the changes could not be read in time"))
        })
    }

    /// Puts a sandbox back whose changes could not be kept. Returns false if the server stops.
    fn put_back(&self, live: &Arc<LiveSandbox>) -> bool {
        let mut table = self.table.lock();
        if self.stopping.load(Ordering::SeqCst) {
            return false;
        }
        if let Some(name) = live.name() {
            let owner = table.names.entry((live.tenant.clone(), name)).or_insert_with(|| live.id.clone());
            if *owner != live.id {
                // A newer sandbox has the name.
                live.set_name(None);
            }
        }
        table.live.insert((live.tenant.clone(), live.id.clone()), Arc::clone(live));
        true
    }
}
