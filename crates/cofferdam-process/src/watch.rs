//! Watches of the workspace: inotify in this process, on the file system that the guest writes to.
//!
//! ```text
//! started --all directories watched--> watching --sandbox gone, stream dropped, directory gone--> ended
//!                                        |    ^
//!         the kernel's queue overflowed  v    | all directories watched again: Overflow
//!                                      restarting
//! ```
//!
//! A guest decides how many events and directories there are. The work is done in slices, with pauses in proportion to
//! it between them, so that a watch uses at most a tenth of a processor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{
    Error, ErrorKind, MAX_WATCHED_DIRECTORIES, MAX_WATCHES, Result, SandboxPath, WatchChange, WatchEvents,
    WatchOptions, WatchPublisher,
};
use cofferdam_linux::inotify::{Event, Inotify, Queue, Step, Tree};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::sync::watch as flag;

use crate::core::Core;
use crate::files::{blocking, failed};
use crate::sys;

const OPERATION: &str = "watch";
/// Time of one slice of work.
const SLICE: Duration = Duration::from_millis(20);
/// The pause after a slice, in multiples of its time.
const PAUSE: u32 = 9;
/// Time for the second event of a rename to arrive.
const SETTLE: Duration = Duration::from_millis(100);
/// Time between an overflow of the kernel's queue and the restart.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);
/// Time to watch all directories at the start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Watches a directory of the workspace until the stream is dropped or the sandbox is gone.
pub async fn watch(core: &Core, root: OwnedFd, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
    let permit = Arc::clone(&core.watches).try_acquire_owned().map_err(|_| {
        Error::new(ErrorKind::ResourceExhausted, OPERATION, format!("the sandbox has {MAX_WATCHES} watches already"))
            .with_remedy("drop a watch first")
    })?;
    let target = Target { root, path: path.clone(), recursive: options.recursive };
    let (target, watched) = blocking(OPERATION, move || {
        let watched = target.start()?;
        Ok((target, watched))
    })
    .await?;
    let (publisher, events) = WatchEvents::channel(&options);
    let gone = core.gone.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = publisher.dropped() => {}
            () = run(target, watched, gone, &publisher) => {}
        }
        drop(permit);
    });
    Ok(events)
}

/// The directory to watch.
struct Target {
    root: OwnedFd,
    path: SandboxPath,
    recursive: bool,
}

impl Target {
    /// Watches all directories.
    fn start(&self) -> Result<Watched> {
        let begun = Instant::now();
        let mut watched = self.open()?;
        while watched.tree.has_steps() {
            watched.slice(true).map_err(|error| failed(OPERATION, &self.path, error))?;
            if begun.elapsed() > START_TIMEOUT {
                return Err(Error::new(ErrorKind::Unavailable, OPERATION, "cannot watch all directories within 60 s")
                    .with_context("path", self.path.to_string())
                    .with_remedy("watch a smaller directory"));
            }
        }
        Ok(watched)
    }

    /// Watches the directory itself.
    fn open(&self) -> Result<Watched> {
        let fail = |error: io::Error| failed(OPERATION, &self.path, error);
        let inotify = Inotify::new(self.root.try_clone().map_err(fail)?).map_err(|error| self.refused(error))?;
        let mut tree = Tree::new(self.path.as_str().as_bytes(), self.recursive, MAX_WATCHED_DIRECTORIES);
        if let Some(Step::Mark { node, path, list }) = tree.next_step() {
            tree.marked(node, Ok(inotify.mark(&path, list).map_err(|error| self.refused(error))?));
        }
        Ok(Watched { inotify, tree, queue: Queue::default() })
    }

    fn refused(&self, error: io::Error) -> Error {
        let (what, setting) = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE) => ("inotify instances", "fs.inotify.max_user_instances"),
            Some(Errno::NOSPC) => ("inotify watches", "fs.inotify.max_user_watches"),
            _ => return failed(OPERATION, &self.path, error),
        };
        Error::new(ErrorKind::ResourceExhausted, OPERATION, format!("this user has no free {what}"))
            .with_remedy(format!("end other programs that watch files, or raise the limit with sysctl {setting}"))
            .with_source(error)
    }
}

/// The state of a watch on one inotify instance.
struct Watched {
    inotify: Inotify,
    tree: Tree,
    queue: Queue,
}

impl Watched {
    /// Works until nothing is left to do or the slice is over. Returns true in the first case. With `settle`, the first
    /// event of a rename does not wait for the second.
    fn slice(&mut self, settle: bool) -> io::Result<bool> {
        let begun = Instant::now();
        let mut settled = !settle;
        loop {
            while let Some(step) = self.tree.next_step() {
                self.inotify.run(step, &mut self.tree);
                if begun.elapsed() > SLICE {
                    return Ok(false);
                }
            }
            if self.tree.is_stale() || self.tree.is_over() {
                return Ok(true);
            }
            if begun.elapsed() > SLICE {
                return Ok(false);
            }
            if self.inotify.read(&mut self.queue)? {
                while let Some(raw) = self.queue.take().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))? {
                    self.tree.handle(raw);
                }
            } else if settled {
                return Ok(true);
            } else {
                self.tree.settle();
                settled = true;
            }
        }
    }
}

/// Publishes events until the sandbox is gone, or nothing can be watched any more.
async fn run(target: Target, watched: Watched, mut gone: flag::Receiver<bool>, publisher: &WatchPublisher) {
    let target = Arc::new(target);
    let mut current = Some(watched);
    while let Some(watched) = current.take() {
        if !publish_until_stale(watched, &mut gone, publisher).await {
            return;
        }
        tokio::time::sleep(RESTART_INTERVAL).await;
        let target = Arc::clone(&target);
        current = blocking(OPERATION, move || target.start()).await.ok();
        // After the restart, so that a list contains what is not reported.
        publisher.publish([WatchChange::Lost]);
    }
}

/// Publishes events. Returns true if the kernel lost some of them.
async fn publish_until_stale(
    mut watched: Watched,
    gone: &mut flag::Receiver<bool>,
    publisher: &WatchPublisher,
) -> bool {
    let readable =
        watched.inotify.as_fd().try_clone_to_owned().and_then(|fd| sys::watch::watch(fd, Interest::READABLE));
    let Ok(readable) = readable else { return false };
    let (mut idle, mut is_last, mut pause) = (true, false, Duration::ZERO);
    loop {
        publisher.publish(watched.tree.take_events().into_iter().flat_map(changes));
        if watched.tree.is_over() || (is_last && idle) {
            return false;
        }
        if watched.tree.is_stale() {
            return !is_last;
        }
        if !is_last {
            tokio::time::sleep(pause).await;
        }
        is_last |= *gone.borrow();
        // The kernel reports no new readiness for events that wait already.
        if idle && !is_last {
            tokio::select! {
                ready = readable.readable() => match ready {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => return false,
                },
                _ = gone.wait_for(|gone| *gone) => is_last = true,
                () = tokio::time::sleep(SETTLE), if watched.tree.is_unsettled() => {}
            }
        }
        let begun = Instant::now();
        let settle = is_last || watched.tree.is_unsettled();
        let done = tokio::task::spawn_blocking(move || {
            let done = watched.slice(settle);
            (watched, done)
        });
        let Ok((returned, Ok(done))) = done.await else { return false };
        (watched, idle, pause) = (returned, done, begun.elapsed() * PAUSE);
    }
}

fn changes(event: Event) -> Vec<WatchChange> {
    match event {
        Event::Created(path) => vec![WatchChange::of(&path, WatchChange::Created)],
        Event::Changed(path) => vec![WatchChange::of(&path, WatchChange::Changed)],
        Event::Removed(path) => vec![WatchChange::of(&path, WatchChange::Removed)],
        Event::Renamed { from, to, directory } => WatchChange::of_rename(&from, &to, directory),
        Event::Lost => vec![WatchChange::Lost],
    }
}
