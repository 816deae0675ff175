//! Byte streams between an engine and files, with bounded buffers.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc;

/// The highest number of buffered chunks.
const WAITING: usize = 8;
/// The maximum size of a chunk.
pub(crate) const CHUNK: usize = 64 << 10;

/// Returns the next item of a stream.
pub(crate) async fn next<S: Stream + Unpin + ?Sized>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

/// Creates a bounded channel whose receiver is a stream.
pub(crate) fn channel() -> (ChunkWriter, Body) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (ChunkWriter { sender, chunk: Vec::with_capacity(CHUNK) }, Body(receiver))
}

/// The receiver of [`channel`].
#[derive(Debug)]
pub(crate) struct Body(mpsc::Receiver<io::Result<Bytes>>);

impl Stream for Body {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// The sender of [`channel`], a blocking writer for a separate thread.
#[derive(Debug)]
pub(crate) struct ChunkWriter {
    sender: mpsc::Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
}

impl ChunkWriter {
    fn send(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK));
        self.sender.blocking_send(Ok(chunk.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Ends the stream. An error reports to the reader that the stream is incomplete.
    pub(crate) fn finish(mut self, outcome: io::Result<()>) -> io::Result<()> {
        match outcome {
            Ok(()) => self.send(),
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                let _ = self.sender.blocking_send(Err(copy));
                Err(error)
            }
        }
    }
}

impl io::Write for ChunkWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = data.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&data[..count]);
        if self.chunk.len() == CHUNK {
            self.send()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn written_bytes_arrive_complete_in_chunks() {
        let (mut chunks, mut body) = channel();
        let data: Vec<u8> = (0..3 * CHUNK + 17).map(|n| n as u8).collect();
        let copy = data.clone();
        let writer = std::thread::spawn(move || {
            chunks.write_all(&copy).unwrap();
            chunks.finish(Ok(()))
        });
        let mut seen = Vec::new();
        while let Some(chunk) = next(&mut body).await {
            let chunk = chunk.unwrap();
            assert!(chunk.len() <= CHUNK);
            seen.extend_from_slice(&chunk);
        }
        writer.join().unwrap().unwrap();
        assert_eq!(seen, data);
    }

    #[tokio::test]
    async fn failure_reaches_the_reader() {
        let (chunks, mut body) = channel();
        let writer = std::thread::spawn(move || chunks.finish(Err(io::ErrorKind::PermissionDenied.into())));
        assert_eq!(next(&mut body).await.unwrap().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(next(&mut body).await.is_none());
        assert!(writer.join().unwrap().is_err());
    }

    #[test]
    fn a_reader_that_goes_away_ends_the_writer() {
        let (mut chunks, body) = channel();
        drop(body);
        assert_eq!(chunks.write_all(&vec![0; CHUNK * 2]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
