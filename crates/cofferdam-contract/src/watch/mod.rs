//! Events of a watched directory: options, the stream that a caller reads, and the publisher of a backend.
//!
//! ```text
//! backend: changes --> WatchPublisher --Coalescer, bounded--> WatchEvents --batches, one for each interval--> caller
//!                            '-- dropped: rest, then the end       '-- dropped: the backend ends the watch
//! ```

mod coalesce;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::{Error, Result, SandboxPath};

use coalesce::Coalescer;
pub use coalesce::WatchChange;

/// The maximum number of watches of one sandbox at the same time.
pub const MAX_WATCHES: usize = 8;
/// The maximum number of directories that one watch includes.
pub const MAX_WATCHED_DIRECTORIES: usize = 8192;
/// The default of [`WatchOptions::coalesce`].
pub const DEFAULT_COALESCE: Duration = Duration::from_millis(100);
/// The maximum of [`WatchOptions::coalesce`].
pub const MAX_COALESCE: Duration = Duration::from_secs(60);
/// The default of [`WatchOptions::max_pending`].
pub const DEFAULT_MAX_PENDING: usize = 4096;
/// The maximum of [`WatchOptions::max_pending`].
pub const MAX_MAX_PENDING: usize = 65_536;

/// The options of [`crate::Sandbox::watch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchOptions {
    /// Watch all directories beneath, too, also new ones. Default: true.
    pub recursive: bool,
    /// The time from the first change of a batch until its events are delivered. Default: [`DEFAULT_COALESCE`].
    pub coalesce: Duration,
    /// The number of paths with undelivered changes above which the events are replaced by [`WatchEvent::Overflow`].
    /// Default: [`DEFAULT_MAX_PENDING`].
    pub max_pending: usize,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { recursive: true, coalesce: DEFAULT_COALESCE, max_pending: DEFAULT_MAX_PENDING }
    }
}

impl WatchOptions {
    /// Fails with `InvalidInput` for values beyond the maxima, and for no pending path.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid("watch", message));
        if self.coalesce > MAX_COALESCE {
            return invalid(format!("coalesce must be at most {} seconds", MAX_COALESCE.as_secs()));
        }
        if !(1..=MAX_MAX_PENDING).contains(&self.max_pending) {
            return invalid(format!("max_pending must be from 1 to {MAX_MAX_PENDING}"));
        }
        Ok(())
    }
}

/// An event of a watch. The guest chooses the names in its paths: treat them as untrusted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A file, link or directory has appeared at this path. It may have replaced a file.
    Created(SandboxPath),
    /// Contents or attributes have changed.
    Changed(SandboxPath),
    /// The file, link or directory at this path has disappeared, with all beneath it. It may never have been reported
    /// as created.
    Removed(SandboxPath),
    /// A file, link or directory has moved, with all beneath it. What was at the new path is gone. A move from or to an
    /// unwatched directory is reported as removed or created.
    Renamed {
        /// The former path.
        from: SandboxPath,
        /// The new path.
        to: SandboxPath,
    },
    /// Events or watches of directories were lost. Replaces all undelivered events: list the directory again.
    Overflow,
}

#[derive(Debug)]
struct State {
    coalescer: Coalescer,
    /// The time of the first undelivered change.
    since: Option<Instant>,
    ended: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the first change of a batch arrives, and at the end.
    news: Notify,
}

/// The events of a watched directory. Dropping it ends the watch.
pub struct WatchEvents {
    shared: Arc<Shared>,
    batch: VecDeque<WatchEvent>,
    coalesce: Duration,
    /// Its end notifies the publisher.
    _wanted: mpsc::Receiver<Infallible>,
}

impl fmt::Debug for WatchEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchEvents").finish_non_exhaustive()
    }
}

impl WatchEvents {
    /// Creates a stream and its publisher. Called by backends.
    pub fn channel(options: &WatchOptions) -> (WatchPublisher, Self) {
        let state = State { coalescer: Coalescer::new(options.max_pending), since: None, ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), news: Notify::new() });
        let (wanted, receiver) = mpsc::channel(1);
        let events =
            Self { shared: Arc::clone(&shared), batch: VecDeque::new(), coalesce: options.coalesce, _wanted: receiver };
        (WatchPublisher { shared, wanted }, events)
    }

    /// Waits for the next event. Returns `None` once the sandbox has ended, the watched directory is removed or
    /// renamed, or the host cannot watch any more, and all events were delivered.
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        loop {
            if let Some(event) = self.batch.pop_front() {
                return Some(event);
            }
            let due = {
                let mut state = self.shared.state.lock();
                let due = state.since.map(|since| since + self.coalesce);
                if state.ended || due.is_some_and(|due| due <= Instant::now()) {
                    state.since = None;
                    self.batch = state.coalescer.take().into();
                    if self.batch.is_empty() && state.ended {
                        return None;
                    }
                    continue;
                }
                due
            };
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                () = self.shared.news.notified() => {}
            }
        }
    }
}

/// The backend's side of a watch. Dropping it ends the stream.
#[derive(Debug)]
pub struct WatchPublisher {
    shared: Arc<Shared>,
    wanted: mpsc::Sender<Infallible>,
}

impl WatchPublisher {
    /// Adds changes, in the order in which they happened. Never waits.
    pub fn publish(&self, changes: impl IntoIterator<Item = WatchChange>) {
        let mut state = self.shared.state.lock();
        changes.into_iter().for_each(|change| state.coalescer.add(change));
        if state.since.is_none() && !state.coalescer.is_empty() {
            state.since = Some(Instant::now());
            self.shared.news.notify_one();
        }
    }

    /// Waits until the stream is dropped.
    pub async fn dropped(&self) {
        self.wanted.closed().await;
    }
}

impl Drop for WatchPublisher {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.news.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> SandboxPath {
        SandboxPath::new(text).unwrap()
    }

    #[tokio::test]
    async fn a_batch_is_delivered_after_its_interval() {
        let (publisher, mut events) = WatchEvents::channel(&WatchOptions::default());
        let begun = Instant::now();
        publisher.publish([WatchChange::Created(path("f"))]);
        publisher.publish([WatchChange::Changed(path("f"))]);
        assert_eq!(events.next().await, Some(WatchEvent::Created(path("f"))));
        assert!(begun.elapsed() >= DEFAULT_COALESCE);
        let waiting = tokio::time::timeout(DEFAULT_COALESCE * 3, events.next()).await;
        assert!(waiting.is_err(), "{waiting:?}");
        publisher.publish([WatchChange::Removed(path("f"))]);
        assert_eq!(events.next().await, Some(WatchEvent::Removed(path("f"))));
    }

    #[tokio::test]
    async fn the_rest_precedes_the_end() {
        let (publisher, mut events) = WatchEvents::channel(&WatchOptions::default());
        publisher.publish([WatchChange::Created(path("f")), WatchChange::Created(path("g"))]);
        drop(publisher);
        assert_eq!(events.next().await, Some(WatchEvent::Created(path("f"))));
        assert_eq!(events.next().await, Some(WatchEvent::Created(path("g"))));
        assert_eq!(events.next().await, None);
        assert_eq!(events.next().await, None);
    }

    #[tokio::test]
    async fn a_dropped_stream_notifies_the_publisher() {
        let (publisher, events) = WatchEvents::channel(&WatchOptions::default());
        drop(events);
        publisher.dropped().await;
        publisher.publish([WatchChange::Created(path("f"))]);
    }

    #[test]
    fn options_have_bounds() {
        let good = WatchOptions::default();
        good.validate().unwrap();
        for bad in [
            WatchOptions { coalesce: MAX_COALESCE + Duration::from_millis(1), ..good.clone() },
            WatchOptions { max_pending: 0, ..good.clone() },
            WatchOptions { max_pending: MAX_MAX_PENDING + 1, ..good.clone() },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }
}
