//! The host's ends of a program's descriptors 0, 1 and 2.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWrite, Interest};

use crate::sys::watch::watch;

/// The number of bytes to read at once.
const CHUNK: usize = 64 * 1024;

/// A non-blocking descriptor that the runtime watches: a pipe's end or a terminal's controlling end.
#[derive(Debug)]
pub struct Stream {
    fd: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

/// The result of a read.
#[derive(Debug)]
pub enum Read {
    /// Bytes.
    Data(Bytes),
    /// The end of the stream.
    End,
}

impl Stream {
    /// Creates a stream for reading.
    pub fn reader(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: watched(fd, Interest::READABLE)?, buffer: Vec::new() })
    }

    /// Waits for the next bytes.
    pub async fn read(&mut self) -> Read {
        loop {
            let Ok(mut ready) = self.fd.readable().await else { return Read::End };
            match read_some(self.fd.get_ref(), &mut self.buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                other => return end_or_data(other),
            }
        }
    }

    /// Reads available bytes without waiting. Returns `None` if there are none.
    pub fn read_now(&mut self) -> Option<Read> {
        match read_some(self.fd.get_ref(), &mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            other => Some(end_or_data(other)),
        }
    }
}

fn read_some(fd: &OwnedFd, buffer: &mut Vec<u8>) -> io::Result<Bytes> {
    buffer.clear();
    buffer.reserve(CHUNK);
    rustix::io::retry_on_intr(|| rustix::io::read(fd, rustix::buffer::spare_capacity(buffer)))?;
    Ok(Bytes::copy_from_slice(buffer))
}

fn end_or_data(result: io::Result<Bytes>) -> Read {
    match result {
        Ok(data) if !data.is_empty() => Read::Data(data),
        // A terminal's controlling end returns EIO if no process has the other end open.
        Ok(_) | Err(_) => Read::End,
    }
}

fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    watch(fd, interest)
}

/// A writer to standard input. It closes a pipe as end-of-file; to a terminal it sends the end-of-file character.
#[derive(Debug)]
pub struct Writer {
    fd: Option<Arc<AsyncFd<OwnedFd>>>,
    terminal: bool,
}

/// The character that ends input on a terminal in its usual mode.
const END_OF_TRANSMISSION: u8 = 4;

impl Writer {
    /// Creates a writer to a pipe.
    pub fn pipe(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: Some(Arc::new(watched(fd, Interest::WRITABLE)?)), terminal: false })
    }

    /// Creates a writer to a terminal's controlling end.
    pub fn terminal(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: Some(Arc::new(watched(fd, Interest::WRITABLE)?)), terminal: true })
    }
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let Some(fd) = &self.fd else { return Poll::Ready(Err(io::Error::from(io::ErrorKind::BrokenPipe))) };
        loop {
            let mut guard = ready!(fd.poll_write_ready(context))?;
            let written = guard.try_io(|fd| Ok(rustix::io::retry_on_intr(|| rustix::io::write(fd.get_ref(), data))?));
            match written {
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.terminal && self.fd.is_some() {
            ready!(self.as_mut().poll_write(context, &[END_OF_TRANSMISSION]))?;
        }
        self.fd = None;
        Poll::Ready(Ok(()))
    }
}

/// Creates a pipe. Returns the ends for reading and for writing. Both block until they are registered with the runtime.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// Returns the readable end of a pipe with these bytes, if they fit into a pipe.
pub fn prefilled(data: &[u8]) -> io::Result<Option<OwnedFd>> {
    if data.is_empty() {
        return null().map(Some);
    }
    // A pipe has 16 pages on every supported kernel. A user at the limit of pipe pages gets fewer.
    let (reader, writer) = pipe()?;
    if rustix::pipe::fcntl_getpipe_size(&writer)? < data.len() {
        return Ok(None);
    }
    let mut rest = data;
    while !rest.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::write(&writer, rest))?;
        rest = &rest[count..];
    }
    Ok(Some(reader))
}

/// Returns the null device. It is opened once, because a copy of the descriptor costs less.
fn null() -> io::Result<OwnedFd> {
    static NULL: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(null) = NULL.get() {
        return null.try_clone();
    }
    let opened = OwnedFd::from(std::fs::File::open("/dev/null")?);
    NULL.get_or_init(|| opened).try_clone()
}

/// Sets the size of a terminal through its controlling end.
pub fn resize(terminal: &impl AsFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = rustix::termios::Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_input_needs_no_writer() {
        let reader = prefilled(b"hello").unwrap().unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut std::fs::File::from(reader), &mut text).unwrap();
        assert_eq!(text, "hello");
        assert!(prefilled(&vec![0; 2 << 20]).unwrap().is_none());
        assert!(prefilled(b"").unwrap().is_some());
    }
}
