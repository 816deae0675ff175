//! A connection to a server whose first bytes are inspected.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::sniff::is_unchecked_answer;

/// The number of bytes that show the protocol of an answer.
const SHOWN: usize = 5;

/// A connection that fails with `InvalidData` if the server's first bytes show that it understood a request that was not
/// checked.
#[derive(Debug)]
pub struct Inspected {
    server: TcpStream,
    first: Vec<u8>,
}

impl Inspected {
    /// Wraps a connection whose server has already sent these bytes.
    pub fn new(server: TcpStream, first: &[u8]) -> Self {
        Self { server, first: first.iter().take(SHOWN).copied().collect() }
    }
}

impl AsyncRead for Inspected {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.server).poll_read(cx, buffer))?;
        if self.first.len() < SHOWN {
            let missing = SHOWN - self.first.len();
            self.first.extend(buffer.filled()[before..].iter().take(missing));
            if is_unchecked_answer(&self.first) {
                buffer.set_filled(before);
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Inspected {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.server).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.server).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.server).poll_shutdown(cx)
    }
}
