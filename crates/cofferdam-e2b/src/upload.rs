//! Uploads of files: a streamed body, and a bound on the time in which E2B takes no data of it.
//!
//! The time of a whole upload is not bounded: it grows with the file. The time in which the source has no data is its
//! owner's, and does not count.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::FileReader;
use hyper::body::{Body, Frame};
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::error::Failure;

/// Bytes of a file that are read at once.
const PIECE: usize = 64 << 10;

/// The body of an upload.
pub(crate) struct Upload {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    progress: Progress,
}

/// The progress of an upload.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

struct State {
    bytes: u64,
    failure: Option<io::Error>,
    /// The time since when the transport has taken no data. `None` while it waits for the source.
    silent_since: Option<Instant>,
}

impl Upload {
    /// Creates the upload of a file. Reads ahead in the background.
    pub fn new(mut contents: FileReader) -> Self {
        let (sender, pieces) = mpsc::channel(2);
        let state = State { bytes: 0, failure: None, silent_since: Some(Instant::now()) };
        let progress = Progress(Arc::new(Mutex::new(state)));
        let noted = progress.clone();
        tokio::spawn(async move {
            loop {
                let mut piece = Vec::with_capacity(PIECE);
                let mut part = (&mut contents).take(PIECE as u64);
                let read = tokio::select! {
                    read = part.read_to_end(&mut piece) => read,
                    () = sender.closed() => return,
                };
                match read {
                    Ok(0) => return,
                    Ok(count) => {
                        noted.0.lock().bytes += count as u64;
                        if sender.send(Ok(piece.into())).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        let shown = io::Error::new(error.kind(), "the source of the upload cannot be read");
                        noted.0.lock().failure = Some(error);
                        let _ = sender.send(Err(shown)).await;
                        return;
                    }
                }
            }
        });
        Self { pieces, progress }
    }

    /// Returns the progress, which remains after the upload.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = self.pieces.poll_recv(context);
        self.progress.0.lock().silent_since = piece.is_ready().then(Instant::now);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

impl Progress {
    /// Returns the number of bytes that were read from the source.
    pub fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    /// Takes the error of the source, if it failed.
    pub fn take_failure(&self) -> Option<io::Error> {
        self.0.lock().failure.take()
    }

    /// Waits for the answer to an upload. Fails if E2B takes no data, or does not answer, for `timeout`.
    pub async fn bounded<T>(
        &self,
        timeout: Duration,
        sending: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            sent = sending => sent,
            () = self.stalled(timeout) => {
                Err(Failure::Cut(format!("E2B took no data of the upload for {} s", timeout.as_secs())))
            }
        }
    }

    async fn stalled(&self, timeout: Duration) {
        loop {
            let since = self.0.lock().silent_since;
            tokio::time::sleep_until(since.unwrap_or_else(Instant::now) + timeout).await;
            if since.is_some() && self.0.lock().silent_since == since {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Takes pieces as a connection does, with a pause before each, and answers with the number of bytes.
    async fn transport(mut upload: Upload, pause: Duration) -> Result<u64, Failure> {
        let mut bytes = 0;
        loop {
            tokio::time::sleep(pause).await;
            match upload.frame().await {
                Some(Ok(frame)) => bytes += frame.into_data().expect("data").len() as u64,
                Some(Err(error)) => return Err(Failure::Cut(error.to_string())),
                None => return Ok(bytes),
            }
        }
    }

    async fn sent(contents: FileReader, pause: Duration) -> Result<u64, Failure> {
        let upload = Upload::new(contents);
        let progress = upload.progress();
        progress.bounded(TIMEOUT, transport(upload, pause)).await
    }

    /// Promise (E2B): An upload may take any time as long as E2B takes data, and fails when it stops.
    #[tokio::test(start_paused = true)]
    async fn slow_uploads_succeed_and_stalled_ones_fail() {
        let size = 10 * PIECE;
        let contents = || -> FileReader { Box::new(io::Cursor::new(vec![7; size])) };
        let begun = Instant::now();
        assert_eq!(sent(contents(), TIMEOUT * 3 / 4).await.ok(), Some(size as u64));
        assert!(begun.elapsed() > TIMEOUT * 5, "the transport was not slow");
        let failure = sent(contents(), TIMEOUT * 2).await.expect_err("stalled");
        assert!(matches!(&failure, Failure::Cut(reason) if reason.contains("60 s")), "{failure:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_sources_are_waited_for() {
        let (mut writer, reader) = tokio::io::duplex(16);
        tokio::spawn(async move {
            for _ in 0..3 {
                tokio::time::sleep(TIMEOUT * 3).await;
                writer.write_all(&[7; 8]).await.expect("read");
            }
        });
        assert_eq!(sent(Box::new(reader), Duration::ZERO).await.ok(), Some(24));
    }
}
