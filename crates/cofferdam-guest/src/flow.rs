//! Streams over a connection: the input of an exec, and the contents of a file.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::link::Link;
use crate::window::{Inflow, READ_WINDOW, Window};
use crate::wire::Request;

/// An exec's standard input.
pub struct Input {
    link: Weak<Link>,
    id: u64,
    window: Arc<Window>,
    ended: bool,
}

impl Input {
    /// Creates the input of an exec.
    pub fn new(link: &Arc<Link>, id: u64, window: Arc<Window>) -> Self {
        Self { link: Arc::downgrade(link), id, window, ended: false }
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true)
            && let Some(link) = self.link.upgrade()
        {
            link.send_taken(self.id, &Request::InputEnd, self.window.take_nothing());
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.end();
    }
}

impl AsyncWrite for Input {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.ended || data.is_empty() {
            let result = if self.ended { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(0) };
            return Poll::Ready(result);
        }
        let Poll::Ready(taken) = self.window.poll_take(context, data.len()) else { return Poll::Pending };
        let sent = taken.zip(self.link.upgrade()).and_then(|(taken, link)| {
            let count = taken.bytes();
            link.send_taken(self.id, &Request::Input { data: &data[..count] }, taken);
            link.is_open().then_some(count)
        });
        Poll::Ready(sent.ok_or_else(|| io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}

/// A reader of a file in a guest. Dropping it closes the file.
pub struct Reader {
    link: Weak<Link>,
    id: u64,
    flow: Arc<Inflow>,
    /// Bytes read since the last request for more.
    taken: usize,
}

impl Reader {
    /// Creates the reader of the file with this id.
    pub fn new(link: &Arc<Link>, id: u64, flow: Arc<Inflow>) -> Self {
        Self { link: Arc::downgrade(link), id, flow, taken: 0 }
    }
}

impl AsyncRead for Reader {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let count = match ready!(self.flow.poll_take(context, into))? {
            0 => return Poll::Ready(Ok(())),
            count => count,
        };
        self.taken += count;
        if self.taken >= READ_WINDOW / 2 && self.flow.expect(self.taken) {
            if let Some(link) = self.link.upgrade() {
                link.send(self.id, &Request::More { bytes: self.taken as u32 });
            }
            self.taken = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.forget(self.id);
        }
    }
}
