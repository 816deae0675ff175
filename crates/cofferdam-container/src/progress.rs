//! Progress of pulls.

use std::fmt;
use std::sync::Arc;

/// A progress event of an engine that pulls an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullEvent {
    /// The layer, by the engine's short name; `None` for the image as a whole.
    pub layer: Option<String>,
    /// The current action, such as `Downloading` or `Extracting`.
    pub status: String,
    /// Completed bytes, if the engine reports them.
    pub current: Option<u64>,
    /// Total bytes, if the engine reports them.
    pub total: Option<u64>,
}

/// A callback for the progress of pulls. It is called often, so it must not block.
#[derive(Clone)]
pub struct PullProgress(Arc<dyn Fn(&PullEvent) + Send + Sync>);

impl PullProgress {
    /// Creates a callback that calls `report` for each event.
    pub fn new(report: impl Fn(&PullEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    /// Calls it.
    pub(crate) fn report(&self, event: &PullEvent) {
        (self.0)(event);
    }

    /// Creates a callback that ignores all events.
    pub fn silent() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for PullProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PullProgress")
    }
}
