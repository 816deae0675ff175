//! The file API. Each operation is a request to the agent, which resolves the path inside, beneath the workspace.

use std::sync::Arc;

use cofferdam_contract::{
    COPIED_MODE, DirEntry, EntryKind, Error, ErrorKind, FileReader, NewEntry, Result, SandboxPath,
};
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;

use crate::error;
use crate::flow::Reader;
use crate::inner::Inner;
use crate::link::Link;
use crate::slots::{Listed, MAX_ENTRIES, Notifier, Reply, Slot};
use crate::window::{Inflow, READ_WINDOW, Taken, Window};
use crate::wire::{MAX_DATA, Make, Request, Root};

/// The bits of a mode that contain the file type.
pub const S_IFMT: u32 = 0o170_000;
pub const S_IFREG: u32 = 0o100_000;
/// The type of a directory in a mode.
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFLNK: u32 = 0o120_000;

/// A guard that drops a request if its future is dropped.
pub struct Forgotten<'a> {
    pub link: &'a Link,
    pub id: u64,
}

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        self.link.forget(self.id);
    }
}

/// Creates the error for an answer that does not fit the request.
pub fn unexpected_answer(operation: &'static str) -> Error {
    Error::new(ErrorKind::Internal, operation, "the agent sent an unexpected answer")
}

/// Returns a path for messages.
pub fn shown(path: &[u8]) -> String {
    format!("/workspace/{}", String::from_utf8_lossy(path)).escape_debug().to_string()
}

/// Sends a request that succeeds or fails.
pub async fn simple(inner: &Inner, operation: &'static str, path: &str, request: &Request<'_>) -> Result<()> {
    inner.ready(operation)?;
    match inner.link.call(operation, request).await? {
        Reply::Done { errno: 0, .. } => Ok(()),
        Reply::Done { errno, kind } => Err(error::file(operation, path.escape_debug().to_string(), errno, kind)),
        _ => Err(unexpected_answer(operation)),
    }
}

/// Opens a regular file for reading.
pub async fn read(inner: &Inner, operation: &'static str, path: &[u8]) -> Result<(Reader, u64)> {
    inner.ready(operation)?;
    let (notifier, opened) = Notifier::new();
    let flow = Inflow::new();
    let link = &inner.link;
    let id = link.enroll(operation, |_| Slot::Read { opened: notifier, flow: Arc::clone(&flow) })?;
    // Dropping the reader closes the file.
    let reader = Reader::new(link, id, flow);
    let request = Request::Read { root: Root::Workspace, path, window: READ_WINDOW as u32 };
    link.send_long(operation, id, &request).await?;
    match link.wait(operation, opened).await? {
        Reply::Opened { size } => Ok((reader, size)),
        Reply::Done { errno, kind } => Err(error::file(operation, shown(path), errno, kind)),
        _ => Err(unexpected_answer(operation)),
    }
}

/// A file to write.
pub struct Target<'a> {
    pub root: Root,
    pub path: &'a [u8],
    /// True if no link is followed.
    pub strict: bool,
    pub mode: u32,
    pub modified: Option<(i64, u32)>,
}

/// Creates or replaces a regular file.
pub async fn write(
    inner: &Inner,
    operation: &'static str,
    target: &Target<'_>,
    mut contents: FileReader,
) -> Result<u64> {
    let mut writing = Writing::begin(inner, operation, target).await?;
    let mut written = 0;
    let mut buffer = vec![0; MAX_DATA];
    while let Some(mut room) = writing.room(MAX_DATA).await? {
        let read = tokio::select! {
            read = contents.read(&mut buffer[..room.bytes()]) => read,
            // Writing has failed, so that the rest of the contents is not needed.
            () = writing.failed() => break,
        };
        let count = read
            .map_err(|error| Error::new(ErrorKind::Io, operation, "cannot read the new contents").with_source(error))?;
        room.shrink(count);
        if count == 0 {
            break;
        }
        writing.data(&buffer[..count], room).await?;
        written += count as u64;
    }
    writing.finish().await.map(|()| written)
}

/// A file that is being written. It disappears unless it is finished.
pub struct Writing<'a> {
    inner: &'a Inner,
    operation: &'static str,
    target: &'a Target<'a>,
    forgotten: Forgotten<'a>,
    window: Arc<Window>,
    done: oneshot::Receiver<Reply>,
    /// The answer, once it is known; `Some(None)` if there will be none.
    reply: Option<Option<Reply>>,
}

impl<'a> Writing<'a> {
    /// Requests the file. Failures to create it are reported later.
    pub async fn begin(inner: &'a Inner, operation: &'static str, target: &'a Target<'a>) -> Result<Self> {
        inner.ready(operation)?;
        let link: &Link = &inner.link;
        let (notifier, done) = Notifier::new();
        let window = Window::new();
        let id = link.enroll(operation, |_| Slot::Write { done: notifier, window: Arc::clone(&window) })?;
        let forgotten = Forgotten { link, id };
        let Target { root, path, strict, .. } = *target;
        link.send_long(operation, id, &Request::Write { root, path, strict }).await?;
        Ok(Self { inner, operation, target, forgotten, window, done, reply: None })
    }

    /// Returns credit for the bytes that can be sent now, or `None` if writing has failed.
    pub async fn room(&self, max: usize) -> Result<Option<Taken>> {
        timed(self.inner, self.operation, self.window.take(max)).await
    }

    /// Waits until writing has failed.
    async fn failed(&mut self) {
        self.reply = Some((&mut self.done).await.ok());
    }

    /// Sends as many bytes as the credit that [`Self::room`] returned.
    pub async fn data(&self, data: &[u8], room: Taken) -> Result<()> {
        let (link, id) = (self.forgotten.link, self.forgotten.id);
        link.send_queued(self.operation, id, &Request::Data { data }, Some(room)).await
    }

    /// Gives the file its name, unless writing has failed.
    pub async fn finish(mut self) -> Result<()> {
        let (link, id) = (self.forgotten.link, self.forgotten.id);
        let Target { mode, modified, path, .. } = *self.target;
        if self.reply.is_none() {
            link.send(id, &Request::Finish { mode, modified });
            self.reply = Some(timed(self.inner, self.operation, &mut self.done).await?.ok());
        }
        match self.reply.flatten() {
            Some(Reply::Done { errno: 0, .. }) => Ok(()),
            Some(Reply::Done { errno, kind }) => Err(error::file(self.operation, shown(path), errno, kind)),
            Some(_) => Err(unexpected_answer(self.operation)),
            None => {
                let termination = link.closed().await;
                Err(error::ended(self.operation, termination.as_ref()))
            }
        }
    }
}

async fn timed<T>(inner: &Inner, operation: &'static str, work: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(inner.answer_timeout, work).await.map_err(|_| error::silent(operation))
}

/// Lists a directory in the order of the agent.
pub async fn entries(inner: &Inner, operation: &'static str, path: &[u8]) -> Result<Vec<Listed>> {
    inner.ready(operation)?;
    let link = &inner.link;
    let (notifier, done) = Notifier::new();
    let id = link.enroll(operation, |_| Slot::List { done: notifier, found: Vec::new(), bytes: 0 })?;
    let forgotten = Forgotten { link, id };
    link.send_long(operation, id, &Request::List { root: Root::Workspace, path }).await?;
    let reply = link.wait(operation, done).await;
    drop(forgotten);
    match reply? {
        Reply::Listed(found) => Ok(found),
        Reply::Done { errno, kind } => Err(error::file(operation, shown(path), errno, kind)),
        Reply::TooMany => Err(Error::new(
            ErrorKind::ResourceExhausted,
            operation,
            format!("the directory has more than {MAX_ENTRIES} entries"),
        )
        .with_context("path", shown(path))),
        _ => Err(unexpected_answer(operation)),
    }
}

/// Lists a directory, sorted by name.
pub async fn list(inner: &Inner, path: &SandboxPath) -> Result<Vec<DirEntry>> {
    let mut found: Vec<DirEntry> =
        entries(inner, "list_dir", path.as_str().as_bytes()).await?.iter().map(entry).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn entry(listed: &Listed) -> DirEntry {
    let kind = match listed.mode & S_IFMT {
        S_IFREG => EntryKind::File,
        S_IFDIR => EntryKind::Directory,
        S_IFLNK => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let size = if kind == EntryKind::File { listed.size } else { 0 };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let target = (kind == EntryKind::Symlink).then(|| text(&listed.target));
    let (mode, modified) = (listed.mode & 0o7777, listed.modified.0);
    DirEntry { name: text(&listed.name), kind, size, mode, modified, target }
}

/// Creates a file, directory or symlink, without following links.
pub async fn put(inner: &Inner, path: &SandboxPath, entry: NewEntry) -> Result<u64> {
    const PUT: &str = "put";
    let shown = path.inside();
    let path = path.as_str().as_bytes();
    let make = |make| Request::Make { root: Root::Workspace, path, make };
    let file = |mode, modified| Target { root: Root::Workspace, path, strict: true, mode, modified };
    match entry {
        NewEntry::File { mode, modified, contents } => {
            write(inner, PUT, &file(mode & COPIED_MODE, Some((modified, 0))), contents).await
        }
        NewEntry::Directory { mode } => {
            let mode = mode & COPIED_MODE;
            simple(inner, PUT, &shown, &make(Make::Directory { mode })).await?;
            let adjust = Request::Adjust { root: Root::Workspace, path, mode: Some(mode), modified: None };
            simple(inner, PUT, &shown, &adjust).await.map(|()| 0)
        }
        NewEntry::Symlink { target } => {
            let link = make(Make::Symlink { target: target.as_bytes() });
            match simple(inner, PUT, &shown, &link).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                created => return created.map(|()| 0),
            }
            // Fails unless a file or link is there, which is removed then.
            write(inner, PUT, &file(0o600, None), Box::new(tokio::io::empty())).await?;
            simple(inner, PUT, &shown, &Request::Remove { root: Root::Workspace, path }).await?;
            simple(inner, PUT, &shown, &link).await.map(|()| 0)
        }
    }
}
