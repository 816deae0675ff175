//! Cases: events of watched directories.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cofferdam_contract::{
    Access, ErrorKind, Limits, MAX_WATCHES, Sandbox, WatchEvent, WatchEvents, WatchOptions, Workspace,
};

use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Stop, Verdict, check, check_eq, expect_error, path, write_small};

/// Time for an event to arrive.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for an event that may have been replaced by another one.
const SOON: Duration = Duration::from_secs(5);
const COALESCE: Duration = Duration::from_millis(50);

fn options() -> WatchOptions {
    WatchOptions { coalesce: COALESCE, ..WatchOptions::default() }
}

async fn watch(sandbox: &Arc<dyn Sandbox>) -> Outcome<WatchEvents> {
    Ok(sandbox.watch(&path("")?, options()).await?)
}

fn created(name: &str) -> Outcome<WatchEvent> {
    Ok(WatchEvent::Created(path(name)?))
}

fn removed(name: &str) -> Outcome<WatchEvent> {
    Ok(WatchEvent::Removed(path(name)?))
}

async fn next(events: &mut WatchEvents) -> Outcome<Option<WatchEvent>> {
    let next = tokio::time::timeout(EVENT_TIMEOUT, events.next()).await;
    next.map_err(|_| Stop::fail("no event arrived in time"))
}

/// Reads events until one is `wanted`. Returns all of them.
async fn until(events: &mut WatchEvents, wanted: &WatchEvent) -> Outcome<Vec<WatchEvent>> {
    let mut seen = Vec::new();
    loop {
        match tokio::time::timeout(EVENT_TIMEOUT, events.next()).await {
            Ok(Some(event)) => seen.push(event),
            Ok(None) => return Err(Stop::fail(format!("the watch ended without {wanted:?}, after {seen:?}"))),
            Err(_) => return Err(Stop::fail(format!("{wanted:?} was not reported, but {seen:?}"))),
        }
        if seen.last() == Some(wanted) {
            return Ok(seen);
        }
    }
}

pub(super) async fn changes_are_reported(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let mut events = watch(&sandbox).await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "f".into(), contents: "one".into() }).await?;
    until(&mut events, &created("f")?).await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "f".into(), contents: "two".into() }).await?;
    until(&mut events, &WatchEvent::Changed(path("f")?)).await?;
    cx.exec_ok(&sandbox, P::Rename { from: "f".into(), to: "g".into() }).await?;
    until(&mut events, &WatchEvent::Renamed { from: path("f")?, to: path("g")? }).await?;
    cx.exec_ok(&sandbox, P::MakeDirectory { path: "d".into() }).await?;
    until(&mut events, &created("d")?).await?;
    cx.exec_ok(&sandbox, P::Rename { from: "g".into(), to: "d/g".into() }).await?;
    until(&mut events, &WatchEvent::Renamed { from: path("g")?, to: path("d/g")? }).await?;
    cx.exec_ok(&sandbox, P::Rename { from: "d".into(), to: "e".into() }).await?;
    until(&mut events, &WatchEvent::Renamed { from: path("d")?, to: path("e")? }).await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "e/g".into(), contents: "three".into() }).await?;
    until(&mut events, &WatchEvent::Changed(path("e/g")?)).await?;
    cx.exec_ok(&sandbox, P::Remove { path: "e/g".into() }).await?;
    until(&mut events, &removed("e/g")?).await?;
    cx.exec_ok(&sandbox, P::Remove { path: "e".into() }).await?;
    until(&mut events, &removed("e")?).await.map(drop)
}

pub(super) async fn new_directories_are_included(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    cx.exec_ok(&sandbox, P::MakeDirectory { path: "old".into() }).await?;
    let mut events = watch(&sandbox).await?;
    let program = P::Sequence(vec![
        P::MakeDirectory { path: "old/a".into() },
        P::MakeDirectory { path: "old/a/b".into() },
        P::MakeDirectory { path: "old/a/b/c".into() },
        P::WriteFile { path: "old/a/b/c/f".into(), contents: "at once".into() },
    ]);
    cx.exec_ok(&sandbox, program).await?;
    until(&mut events, &created("old/a/b/c/f")?).await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "old/a/b/g".into(), contents: "later".into() }).await?;
    until(&mut events, &created("old/a/b/g")?).await.map(drop)
}

pub(super) async fn single_directory(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let make = ["d", "d/e"].map(|path| P::MakeDirectory { path: path.into() });
    cx.exec_ok(&sandbox, P::Sequence(make.into())).await?;
    let mut events = sandbox.watch(&path("d")?, WatchOptions { recursive: false, ..options() }).await?;
    let write = ["f", "d/e/f", "d/f"].map(|path| P::WriteFile { path: path.into(), contents: "x".into() });
    cx.exec_ok(&sandbox, P::Sequence(write.into())).await?;
    let seen = until(&mut events, &created("d/f")?).await?;
    check_eq!(seen.len(), 1, format!("the number of events, which are {seen:?}"));
    Ok(())
}

pub(super) async fn file_api_is_reported(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let mut events = watch(&sandbox).await?;
    write_small(&sandbox, "d/f", "by the host").await?;
    until(&mut events, &created("d/f")?).await?;
    sandbox.remove(&path("d")?).await?;
    until(&mut events, &removed("d")?).await.map(drop)
}

pub(super) async fn writes_are_coalesced(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "f".into(), contents: "x".into() }).await?;
    let coalesce = Duration::from_millis(500);
    let mut events = sandbox.watch(&path("")?, WatchOptions { coalesce, ..options() }).await?;
    let begun = Instant::now();
    let program = P::Sequence(vec![
        P::Append { path: "f".into(), count: 10_000 },
        P::WriteFile { path: "last".into(), contents: "x".into() },
    ]);
    cx.exec_ok(&sandbox, program).await?;
    let seen = until(&mut events, &created("last")?).await?;
    let max = begun.elapsed().as_millis() / coalesce.as_millis() + 2;
    let count = seen.iter().filter(|event| matches!(event, WatchEvent::Changed(_))).count();
    check!(count > 0 && count as u128 <= max, "10,000 writes became {count} events, not 1 to {max}");
    check!(!seen.contains(&WatchEvent::Overflow), "writes to one file became an overflow");
    Ok(())
}

pub(super) async fn overflow_is_reported_once(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let coalesce = Duration::from_secs(1);
    let mut events = sandbox.watch(&path("")?, WatchOptions { coalesce, max_pending: 10, ..options() }).await?;
    let make = P::Sequence(vec![P::MakeDirectory { path: "d".into() }, P::MakeFiles { path: "d".into(), count: 300 }]);
    cx.exec_ok(&sandbox, make).await?;
    check_eq!(next(&mut events).await?, Some(WatchEvent::Overflow), "the event of 300 files");
    // The rest of the files may be in other batches.
    tokio::time::sleep(coalesce).await;
    cx.exec_ok(&sandbox, P::WriteFile { path: "after".into(), contents: "x".into() }).await?;
    let seen = until(&mut events, &created("after")?).await?;
    let again = seen.iter().filter(|event| **event == WatchEvent::Overflow).count();
    check!(again <= 1, "the overflow was reported {} times", again + 1);
    let many = P::WriteFile { path: "d/f0".into(), contents: "x".into() };
    cx.exec_ok(&sandbox, many).await?;
    until(&mut events, &WatchEvent::Changed(path("d/f0")?)).await.map(drop)
}

pub(super) async fn copy_on_write(cx: Context) -> Verdict {
    let directory = tempfile::tempdir()?;
    std::fs::create_dir(directory.path().join("sub"))?;
    for name in ["given", "sub/given", "sub/gone"] {
        std::fs::write(directory.path().join(name), "by the host")?;
    }
    let workspace = Workspace::CopyOnWrite { path: directory.path().canonicalize()? };
    let sandbox = cx.sandbox_of(cx.spec().workspace(workspace).build()?).await?;
    let mut events = watch(&sandbox).await?;
    for name in ["given", "sub/given"] {
        cx.exec_ok(&sandbox, P::Append { path: name.into(), count: 1 }).await?;
        until(&mut events, &WatchEvent::Changed(path(name)?)).await?;
    }
    cx.exec_ok(&sandbox, P::WriteFile { path: "sub/made".into(), contents: "x".into() }).await?;
    until(&mut events, &created("sub/made")?).await?;
    cx.exec_ok(&sandbox, P::Remove { path: "sub/gone".into() }).await?;
    until(&mut events, &removed("sub/gone")?).await?;
    cx.exec_ok(&sandbox, P::Rename { from: "given".into(), to: "sub/given".into() }).await?;
    until(&mut events, &WatchEvent::Renamed { from: path("given")?, to: path("sub/given")? }).await.map(drop)
}

pub(super) async fn host_directory(cx: Context) -> Verdict {
    let directory = tempfile::tempdir()?;
    let workspace = Workspace::HostDir { path: directory.path().canonicalize()?, access: Access::ReadWrite };
    let limits = Limits { disk: None, ..cx.spec().build()?.limits().clone() };
    let sandbox = cx.sandbox_of(cx.spec().limits(limits).workspace(workspace).build()?).await?;
    let mut events = watch(&sandbox).await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "f".into(), contents: "by the guest".into() }).await?;
    until(&mut events, &created("f")?).await?;
    drop(events);
    let mut events = watch(&sandbox).await?;
    sandbox.close().await?;
    check_eq!(next(&mut events).await?, None, "the end of the watch");
    check!(directory.path().join("f").is_file(), "the host's file is gone");
    Ok(())
}

pub(super) async fn ends_with_the_sandbox(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let mut idle = watch(&sandbox).await?;
    let mut events = sandbox.watch(&path("")?, WatchOptions { coalesce: EVENT_TIMEOUT * 2, ..options() }).await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "f".into(), contents: "x".into() }).await?;
    until(&mut idle, &created("f")?).await?;
    sandbox.close().await?;
    while let Some(event) = next(&mut idle).await? {
        check!(event != removed("")?, "the end of the sandbox was reported as {event:?}");
    }
    // The interval does not delay the end.
    until(&mut events, &created("f")?).await?;
    while next(&mut events).await?.is_some() {}
    expect_error(watch_again(&sandbox).await?, &[ErrorKind::Closed], "watch after close")
}

async fn watch_again(sandbox: &Arc<dyn Sandbox>) -> Outcome<cofferdam_contract::Result<WatchEvents>> {
    Ok(sandbox.watch(&path("")?, options()).await)
}

pub(super) async fn dropped_watches_are_free(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let deadline = Instant::now() + EVENT_TIMEOUT;
    for _ in 0..3 {
        let mut open = Vec::new();
        while open.len() < MAX_WATCHES {
            match watch_again(&sandbox).await? {
                Ok(events) => open.push(events),
                // The backend may free those of the round before a moment later.
                Err(error) if error.kind() == ErrorKind::ResourceExhausted && Instant::now() < deadline => {
                    tokio::time::sleep(COALESCE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        expect_error(watch_again(&sandbox).await?, &[ErrorKind::ResourceExhausted], "one watch too many")?;
    }
    Ok(())
}

pub(super) async fn invalid_paths_are_refused(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    cx.exec_ok(&sandbox, P::WriteFile { path: "f".into(), contents: "x".into() }).await?;
    for (name, kind) in [("missing", ErrorKind::NotFound), ("f", ErrorKind::Conflict), ("f/g", ErrorKind::Conflict)] {
        expect_error(sandbox.watch(&path(name)?, options()).await, &[kind], &format!("watching {name}"))?;
    }
    let unbounded = WatchOptions { max_pending: usize::MAX, ..options() };
    expect_error(sandbox.watch(&path("")?, unbounded).await, &[ErrorKind::InvalidInput], "unbounded events")
}

/// Creates a host directory with a directory in it, and changes files there until the value is dropped.
struct Outside {
    directory: tempfile::TempDir,
    done: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Outside {
    fn new() -> Outcome<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::create_dir(directory.path().join("secret"))?;
        let (inside, done) = (directory.path().join("secret"), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = std::fs::write(inside.join("secret-file"), "x");
                let _ = std::fs::remove_file(inside.join("secret-file"));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Ok(Self { directory, done, thread: Some(thread) })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn is_secret(event: &WatchEvent) -> bool {
    format!("{event:?}").contains("secret")
}

pub(super) async fn links_are_not_followed(cx: Context) -> Verdict {
    let outside = Outside::new()?;
    let sandbox = cx.sandbox().await?;
    let absolute = outside.path().display().to_string();
    let targets = [absolute.clone(), format!("{}{}", "../".repeat(20), &absolute[1..]), "d".to_owned(), "/".to_owned()];
    cx.exec_ok(&sandbox, P::MakeDirectory { path: "d".into() }).await?;
    cx.exec_ok(&sandbox, P::MakeDirectory { path: "d/secret".into() }).await?;
    for (number, target) in targets.into_iter().enumerate() {
        let link = format!("link{number}");
        cx.exec_ok(&sandbox, P::MakeSymlink { path: link.clone(), target }).await?;
        for name in [link.clone(), format!("{link}/secret")] {
            let watched = sandbox.watch(&path(&name)?, options()).await;
            expect_error(watched, &[ErrorKind::PathEscape], &format!("watching {name}"))?;
        }
    }
    cx.exec_ok(&sandbox, P::Remove { path: "d".into() }).await?;
    let mut events = watch(&sandbox).await?;
    tokio::time::sleep(COALESCE * 4).await;
    cx.exec_ok(&sandbox, P::WriteFile { path: "last".into(), contents: "x".into() }).await?;
    let seen = until(&mut events, &created("last")?).await?;
    check_eq!(seen.len(), 1, format!("the number of events, which are {seen:?}"));
    Ok(())
}

pub(super) async fn swapped_directory_is_not_followed(cx: Context) -> Verdict {
    let outside = Outside::new()?;
    let sandbox = cx.sandbox().await?;
    let swap = P::SwapDirectoryForever { path: "d".into(), target: outside.path().display().to_string() };
    let swapping = cx.start_ready(&sandbox, swap).await?;
    let until_done = Instant::now() + Duration::from_secs(3);
    let mut seen = 0;
    while Instant::now() < until_done {
        let mut events = watch(&sandbox).await?;
        for _ in 0..100 {
            let Ok(event) = tokio::time::timeout(SOON, events.next()).await else { break };
            let Some(event) = event else {
                return Err(Stop::fail("the watch ended while its directory was there"));
            };
            check!(!is_secret(&event), "a watch reported {event:?}, which is outside the workspace");
            seen += 1;
            if Instant::now() >= until_done {
                break;
            }
        }
    }
    check!(seen > 0, "no event was reported");
    drop(swapping);
    // The end of the guest is asynchronous, and its last events precede this one.
    let mut events = watch(&sandbox).await?;
    let deadline = Instant::now() + EVENT_TIMEOUT;
    for number in 0.. {
        let name = format!("after{number}");
        cx.exec_ok(&sandbox, P::WriteFile { path: name.clone(), contents: "x".into() }).await?;
        // On a busy host a file may be created in a directory that is about to be watched again.
        while let Ok(event) = tokio::time::timeout(SOON, events.next()).await {
            match event {
                Some(WatchEvent::Created(path)) if path.as_str() == name => return Ok(()),
                Some(WatchEvent::Overflow) => break,
                Some(event) => check!(!is_secret(&event), "a watch reported {event:?}"),
                None => return Err(Stop::fail("the watch ended early")),
            }
        }
        check!(Instant::now() < deadline, "no file that was created afterwards was reported");
    }
    Ok(())
}
