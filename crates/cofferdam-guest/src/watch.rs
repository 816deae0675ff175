//! Watches of the workspace. The agent passes on the events of its kernel; this side maps them to paths, as for any
//! directory of the host.
//!
//! ```text
//! started --all directories watched--> watching --connection ended, stream dropped, directory gone--> ended
//!                                        |    ^
//!         the kernel's queue overflowed  v    | all directories watched again: Overflow
//!                                      restarting
//! ```
//!
//! The agent sends no more events than the window allows, and its kernel's queue is bounded. Pauses between two parts of
//! the work bound what a guest with many events costs the host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_contract::{
    Error, ErrorKind, MAX_WATCHED_DIRECTORIES, Result, SandboxPath, WatchChange, WatchEvents, WatchOptions,
    WatchPublisher,
};
use cofferdam_linux::inotify::{self, Entry, Event, Failure, List, Marked, Queue, Step, Tree};
use tokio::io::AsyncReadExt;

use crate::error;
use crate::files::{Forgotten, S_IFDIR, S_IFMT, shown, unexpected_answer};
use crate::flow::Reader;
use crate::inner::Inner;
use crate::link::Link;
use crate::slots::{Notifier, Reply, Slot};
use crate::window::{Inflow, READ_WINDOW};
use crate::wire::{MAX_WATCHES, Request};

const OPERATION: &str = "watch";
/// The number of bytes of events that are processed at once.
const BUFFER: usize = 32 * 1024;
/// The pause after a part of the work, in multiples of its time.
const PAUSE: u32 = 4;
/// Time for the second event of a rename to arrive.
const SETTLE: Duration = Duration::from_millis(250);
/// Time between an overflow of the kernel's queue and the restart.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);
/// Time to watch all directories at the start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of attempts of a request, and the time between them.
const TRIES: usize = 5;
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const ENOSPC: i32 = 28;
const EMFILE: i32 = 24;

/// Watches a directory of the workspace until the stream is dropped or the connection has ended.
pub async fn watch(inner: &Inner, path: &SandboxPath, options: WatchOptions) -> Result<WatchEvents> {
    let permit = Arc::clone(&inner.watches).try_acquire_owned().map_err(|_| {
        Error::new(ErrorKind::ResourceExhausted, OPERATION, format!("the sandbox has {MAX_WATCHES} watches already"))
            .with_remedy("drop a watch first")
    })?;
    let target = Target { link: Arc::clone(&inner.link), path: path.clone(), recursive: options.recursive };
    let watched = target.start().await?;
    let (publisher, events) = WatchEvents::channel(&options);
    tokio::spawn(async move {
        tokio::select! {
            () = publisher.dropped() => {}
            () = run(&target, watched, &publisher) => {}
        }
        drop(permit);
    });
    Ok(events)
}

/// The directory to watch.
struct Target {
    link: Arc<Link>,
    path: SandboxPath,
    recursive: bool,
}

/// The state of a watch on one instance of the agent.
struct Watched {
    id: u64,
    reader: Reader,
    tree: Tree,
    queue: Queue,
}

impl Target {
    /// Watches all directories.
    async fn start(&self) -> Result<Watched> {
        let mut watched = self.open().await?;
        let starting = async {
            while let Some(step) = watched.tree.next_step() {
                self.run(step, &mut watched).await?;
            }
            Ok(())
        };
        let started = tokio::time::timeout(START_TIMEOUT, starting).await;
        started.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, OPERATION, "cannot watch all directories within 60 s")
                .with_context("path", self.path.to_string())
                .with_remedy("watch a smaller directory"))
        })?;
        Ok(watched)
    }

    /// Watches the directory itself.
    async fn open(&self) -> Result<Watched> {
        let link = &self.link;
        let operation = link.operate(OPERATION)?;
        let (notifier, opened) = Notifier::new();
        let flow = Inflow::new();
        let id = link.enroll(OPERATION, |_| Slot::Watch { opened: notifier, flow: Arc::clone(&flow) })?;
        // Dropping the reader ends the instance.
        let reader = Reader::new(link, id, flow);
        link.send(id, &Request::Watch { window: READ_WINDOW as u32 });
        match link.wait(OPERATION, opened).await? {
            Reply::Opened { .. } => {}
            Reply::Done { errno, kind } => return Err(self.refused(errno, kind)),
            _ => return Err(unexpected_answer(OPERATION)),
        }
        let mut tree = Tree::new(self.path.as_str().as_bytes(), self.recursive, MAX_WATCHED_DIRECTORIES);
        drop(operation);
        if let Some(Step::Mark { node, path, list }) = tree.next_step() {
            let marked = self.mark(id, &path, list).await?;
            tree.marked(node, Ok(marked.map_err(|(errno, kind)| self.refused(errno, kind))?));
        }
        Ok(Watched { id, reader, tree, queue: Queue::default() })
    }

    fn refused(&self, errno: i32, kind: u32) -> Error {
        let what = match errno {
            EMFILE => "the sandbox's user has no free inotify instances",
            ENOSPC => "the sandbox's user has no free inotify watches",
            _ => return error::file(OPERATION, shown(self.path.as_str().as_bytes()), errno, kind),
        };
        Error::new(ErrorKind::ResourceExhausted, OPERATION, what)
            .with_remedy("end programs in the sandbox that watch files")
            .with_source(std::io::Error::from_raw_os_error(errno))
    }

    /// Watches a directory. The inner error is an error number and file type of the agent.
    async fn mark(&self, watch: u64, path: &[u8], list: List) -> Result<std::result::Result<Marked, (i32, u32)>> {
        let link = &self.link;
        let _operation = link.operate(OPERATION)?;
        let (notifier, done) = Notifier::new();
        let id = link.enroll(OPERATION, |_| Slot::Mark { done: notifier, wd: None, found: Vec::new(), bytes: 0 })?;
        let forgotten = Forgotten { link, id };
        let request = Request::Mark { watch, path, mask: inotify::MASK, list: list != List::Nothing };
        link.send_long(OPERATION, id, &request).await?;
        let reply = link.wait(OPERATION, done).await;
        drop(forgotten);
        match reply? {
            Reply::Marked { wd, found, complete } => {
                let entries = found
                    .into_iter()
                    .map(|entry| Entry { directory: entry.mode & S_IFMT == S_IFDIR, name: entry.name });
                let entries = entries.filter(|entry| entry.directory || list == List::All).collect();
                Ok(Ok(Marked { wd, entries, complete }))
            }
            Reply::Done { errno, kind } => Ok(Err((errno, kind))),
            _ => Err(unexpected_answer(OPERATION)),
        }
    }

    /// Carries out a step. Waits while the sandbox is stopped.
    async fn run(&self, step: Step, watched: &mut Watched) -> Result<()> {
        let (node, path, list) = match step {
            Step::Unmark { wd } => {
                self.link.send(watched.id, &Request::Unmark { wd });
                return Ok(());
            }
            Step::Mark { node, path, list } => (node, path, list),
        };
        let mut tries = 0;
        loop {
            self.link.wait_until_running().await;
            match self.mark(watched.id, &path, list).await {
                Ok(marked) => {
                    watched.tree.marked(node, marked.map_err(|(errno, _)| Failure::of(errno)));
                    return Ok(());
                }
                // It was stopped at this moment.
                Err(_) if tries < TRIES && self.link.is_open() => {
                    tries += 1;
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Publishes events until the connection has ended, or nothing can be watched any more.
async fn run(target: &Target, watched: Watched, publisher: &WatchPublisher) {
    let mut current = Some(watched);
    while let Some(watched) = current.take() {
        if !publish_until_stale(target, watched, publisher).await {
            return;
        }
        tokio::time::sleep(RESTART_INTERVAL).await;
        target.link.wait_until_running().await;
        current = target.start().await.ok();
        // After the restart, so that a list contains what is not reported.
        publisher.publish([WatchChange::Lost]);
    }
}

/// Publishes events. Returns true if the kernel lost some of them.
async fn publish_until_stale(target: &Target, mut watched: Watched, publisher: &WatchPublisher) -> bool {
    let mut buffer = vec![0; BUFFER];
    loop {
        publish(&mut watched.tree, publisher);
        if watched.tree.is_over() {
            return false;
        }
        if watched.tree.is_stale() {
            return true;
        }
        tokio::select! {
            read = watched.reader.read(&mut buffer) => match read {
                Ok(length) if length > 0 => watched.queue.push(&buffer[..length]),
                Ok(_) | Err(_) => return false,
            },
            () = tokio::time::sleep(SETTLE), if watched.tree.is_unsettled() => watched.tree.settle(),
        }
        let begun = Instant::now();
        loop {
            match watched.queue.take() {
                Ok(Some(raw)) => watched.tree.handle(raw),
                Ok(None) => break,
                // No kernel sends that.
                Err(_) => return false,
            }
        }
        // Before the steps, which may fail because the sandbox ends.
        publish(&mut watched.tree, publisher);
        while let Some(step) = watched.tree.next_step() {
            if target.run(step, &mut watched).await.is_err() {
                return false;
            }
            publish(&mut watched.tree, publisher);
        }
        tokio::time::sleep(begun.elapsed() * PAUSE).await;
    }
}

fn publish(tree: &mut Tree, publisher: &WatchPublisher) {
    publisher.publish(tree.take_events().into_iter().flat_map(changes));
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
