//! Host directories named in a run request, which the client sends along as descriptors.
//!
//! A path can be redirected, and the inode number of a removed directory is reused. While both sides hold the client's
//! directory open, its device and inode number belong to nothing else. So a backend that opens the path and compares
//! them uses that very directory, or fails. This module does not decide whether a directory may be mounted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use cofferdam_contract::{DirectoryId, Error, ErrorKind, Result, RootFs, Spec};
use cofferdam_linux::message;
use cofferdam_linux::named::{Directory, UntrustedLink};
use rustix::fs::FileType;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;

/// The maximum number of descriptors that wait to be taken: the workspace and the root of a request, or the sockets of
/// two connections.
const MAX_DESCRIPTORS: usize = 2;

/// Returns the host directories that a spec names.
fn named(spec: &Spec) -> impl Iterator<Item = &Path> {
    let root = match spec.root() {
        RootFs::Directory { path } => Some(&**path),
        RootFs::Default | RootFs::Image { .. } => None,
    };
    spec.workspace().host_directory().into_iter().chain(root)
}

/// Opens the directories that a spec names. Returns them, and the spec with the identity of each.
pub(crate) fn open(spec: &Spec) -> Result<(Spec, Vec<Directory>)> {
    let (mut builder, mut directories) = (spec.to_builder(), Vec::new());
    for path in named(spec) {
        let opened = Directory::open(path).map_err(|error| cannot_open(path, error))?;
        let (device, inode) = opened.identity();
        let id = DirectoryId { device, inode };
        spec.check_directory(path, id)?;
        builder = builder.directory(path, id);
        directories.push(opened);
    }
    Ok((builder.build()?, directories))
}

fn cannot_open(path: &Path, error: io::Error) -> Error {
    let failed = match UntrustedLink::of(&error) {
        Some(link) => Error::new(ErrorKind::PathEscape, "create", format!("cannot open a directory: {link}"))
            .with_remedy(UntrustedLink::REMEDY),
        None if error.kind() == io::ErrorKind::NotADirectory => {
            Error::new(ErrorKind::InvalidInput, "create", "the path in the spec is not a directory")
        }
        None => Error::new(ErrorKind::NotFound, "create", "cannot open a directory of the spec"),
    };
    failed.with_context("path", path.display().to_string()).with_source(error)
}

/// Checks that a descriptor arrived for each directory that a spec names.
pub(crate) fn check(spec: &Spec, received: &[OwnedFd]) -> Result<()> {
    let identity = |fd: &OwnedFd| {
        let stat = rustix::fs::fstat(fd).ok()?;
        let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
        is_directory.then_some(DirectoryId { device: stat.st_dev, inode: stat.st_ino })
    };
    let received: Vec<_> = received.iter().filter_map(identity).collect();
    for path in named(spec) {
        let recorded = spec.directories().get(path);
        if !recorded.is_some_and(|recorded| received.contains(recorded)) {
            return Err(Error::invalid("run", "the server received the path of a directory without its descriptor")
                .with_context("path", path.display().to_string()));
        }
    }
    Ok(())
}

/// Sends the first byte of a frame together with the descriptors that belong to it, such as the directories of a
/// request. Returns the number of bytes sent.
pub(crate) async fn send(stream: &UnixStream, frame: &[u8], descriptors: &[impl AsFd]) -> io::Result<usize> {
    if descriptors.is_empty() || frame.is_empty() {
        return Ok(0);
    }
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let send = || message::send(stream.as_fd(), &frame[..1], &descriptors);
    stream.async_io(Interest::WRITABLE, send).await?;
    Ok(1)
}

/// The reading half of a client's connection, and the descriptors that arrived on it.
#[derive(Debug)]
pub(crate) struct Receiver {
    half: OwnedReadHalf,
    received: Vec<OwnedFd>,
}

impl Receiver {
    pub(crate) fn new(half: OwnedReadHalf) -> Self {
        Self { half, received: Vec::new() }
    }

    /// Takes the descriptors that have arrived so far.
    pub(crate) fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.received)
    }

    /// Takes the descriptor that arrived first.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        (!self.received.is_empty()).then(|| self.received.remove(0))
    }
}

impl AsyncRead for Receiver {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { half, received } = self.get_mut();
        let stream: &UnixStream = (*half).as_ref();
        loop {
            ready!(stream.poll_read_ready(cx))?;
            let mut receive = || message::receive(stream.as_fd(), buffer.initialize_unfilled());
            match stream.try_io(Interest::READABLE, &mut receive) {
                Ok((_, descriptors)) if received.len() + descriptors.len() > MAX_DESCRIPTORS => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors")));
                }
                Ok((count, descriptors)) => {
                    received.extend(descriptors);
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{Access, Workspace};
    use std::path::PathBuf;
    use tokio::io::AsyncReadExt;

    fn spec(path: &Path) -> Spec {
        let workspace = Workspace::HostDir { path: path.to_owned(), access: Access::ReadWrite };
        Spec::builder().workspace(workspace).build().unwrap()
    }

    fn temp_path() -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().canonicalize().unwrap();
        (temp, path)
    }

    #[test]
    fn a_name_without_its_directory_is_refused() {
        let (_temp, top) = temp_path();
        for name in ["named", "other"] {
            std::fs::create_dir(top.join(name)).unwrap();
        }
        let (recorded, named) = open(&spec(&top.join("named"))).unwrap();
        let (_, other) = open(&spec(&top.join("other"))).unwrap();
        let descriptors = |directories: Vec<Directory>| directories.into_iter().map(OwnedFd::from).collect::<Vec<_>>();
        let (named, other) = (descriptors(named), descriptors(other));
        check(&recorded, &named).unwrap();
        check(&Spec::default(), &[]).unwrap();
        for (spec, received) in [(&recorded, &[][..]), (&recorded, &other[..]), (&spec(&top.join("named")), &named[..])]
        {
            let error = check(spec, received).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }

    /// Some file systems give the inode number of a removed directory to the next one created.
    #[test]
    fn inode_of_an_open_directory_is_not_reused() {
        let (_temp, top) = temp_path();
        let path = top.join("named");
        std::fs::create_dir(&path).unwrap();
        let (recorded, held) = open(&spec(&path)).unwrap();
        for _ in 0..64 {
            std::fs::remove_dir(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            assert_eq!(open(&recorded).unwrap_err().kind(), ErrorKind::NotFound);
        }
        drop(held);
    }

    #[tokio::test]
    async fn descriptors_come_with_the_bytes_and_are_bounded() {
        let (_temp, top) = temp_path();
        let (_, one) = open(&spec(&top)).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut receiver = Receiver::new(theirs.into_split().0);
        let mut text = [0; 3];
        assert_eq!(send(&ours, b"abc", &one).await.unwrap(), 1);
        assert_eq!(ours.try_write(b"bc").unwrap(), 2);
        receiver.read_exact(&mut text).await.unwrap();
        assert_eq!((&text, receiver.take_descriptors().len()), (b"abc", 1));
        for _ in 0..MAX_DESCRIPTORS {
            send(&ours, b"x", &one).await.unwrap();
            receiver.read_exact(&mut text[..1]).await.unwrap();
        }
        send(&ours, b"x", &one).await.unwrap();
        let error = receiver.read_exact(&mut text[..1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
