//! The attached connection of a container as a pair of byte streams.
//!
//! The engine labels each chunk with its stream. The reader passes on the agent's standard output. It buffers the
//! beginning of standard error, for error messages when no agent starts.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bollard::container::LogOutput;
use bytes::{Buf, Bytes};
use cofferdam_util::text::excerpt;
use futures_core::Stream;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};

/// The maximum number of buffered bytes of standard error.
const MAX_STDERR: usize = 2000;

type Chunks = Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;

/// The beginning of standard error.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stderr(Arc<Mutex<Vec<u8>>>);

impl Stderr {
    fn add(&self, data: &[u8]) {
        let mut stderr = self.0.lock();
        let free = MAX_STDERR - stderr.len();
        stderr.extend_from_slice(&data[..data.len().min(free)]);
    }

    /// Returns the text without control characters.
    pub(crate) fn text(&self) -> String {
        excerpt(&String::from_utf8_lossy(&self.0.lock()))
    }
}

/// A reader of the standard output of the container's first process.
pub(crate) struct Reader {
    chunks: Chunks,
    rest: Bytes,
    stderr: Stderr,
}

impl Reader {
    pub(crate) fn new(chunks: Chunks) -> (Self, Stderr) {
        let stderr = Stderr::default();
        (Self { chunks, rest: Bytes::new(), stderr: stderr.clone() }, stderr)
    }
}

impl AsyncRead for Reader {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(self.chunks.as_mut().poll_next(context)) {
                Some(Ok(LogOutput::StdOut { message })) => self.rest = message,
                Some(Ok(LogOutput::StdErr { message } | LogOutput::Console { message })) => self.stderr.add(&message),
                Some(Ok(LogOutput::StdIn { .. })) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.rest.len().min(into.remaining());
        into.put_slice(&self.rest[..count]);
        self.rest.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("stderr", &self.stderr).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::AsyncReadExt;

    use super::*;

    struct Given(VecDeque<LogOutput>);

    impl Stream for Given {
        type Item = Result<LogOutput, bollard::errors::Error>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    #[tokio::test]
    async fn streams_are_separate_and_stderr_is_bounded() {
        let out = |text: &'static str| LogOutput::StdOut { message: Bytes::from_static(text.as_bytes()) };
        let err = |text: Vec<u8>| LogOutput::StdErr { message: text.into() };
        let chunks = [out("one "), err(b"oh\x1b no ".to_vec()), out(""), err(vec![b'x'; 10_000]), out("two")];
        let (mut reader, stderr) = Reader::new(Box::pin(Given(chunks.into())));
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "one two");
        let buffered = stderr.text();
        assert!(buffered.starts_with("oh  no x") && buffered.len() < 1100, "{buffered}");
    }
}
