//! A stream with a write timeout, which disconnects clients that do not read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream with a write timeout.
pub struct Stalling<S> {
    inner: S,
    timeout: Duration,
    /// Set while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalling<S> {
    /// Creates a stream whose writes fail after waiting for `timeout`.
    pub fn new(inner: S, timeout: Duration) -> Self {
        Self { inner, timeout, deadline: None }
    }

    fn watched<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.deadline = None;
            return polled;
        }
        let timeout = self.timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(timeout)));
        if deadline.as_mut().poll(context).is_ready() {
            deadline.as_mut().reset(Instant::now() + timeout);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalling<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalling<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, data);
        self.watched(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.watched(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_shutdown(context);
        self.watched(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(context, data);
        self.watched(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn stalled_write_fails_and_slow_write_succeeds() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut stream = Stalling::new(ours, Duration::from_secs(30));
        let writer = tokio::spawn(async move {
            let slow = stream.write_all(&[0; 64]).await.map_err(|error| error.kind());
            (slow, stream.write_all(&[0; 64]).await.map_err(|error| error.kind()))
        });
        let mut buffer = [0; 16];
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_secs(20)).await;
            theirs.read_exact(&mut buffer).await.unwrap();
        }
        assert_eq!(writer.await.unwrap(), (Ok(()), Err(io::ErrorKind::TimedOut)));
    }
}
