//! The tail of a program's output.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Maximum number of retained bytes.
const MAX_RETAINED: usize = 16 << 10;
const CHUNK: usize = 4 << 10;

/// The last bytes of an output. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConsoleTail(Arc<Mutex<VecDeque<u8>>>);

impl ConsoleTail {
    fn add(&self, data: &[u8]) {
        let mut tail = self.0.lock();
        tail.extend(&data[data.len().saturating_sub(MAX_RETAINED)..]);
        let surplus = tail.len().saturating_sub(MAX_RETAINED);
        tail.drain(..surplus);
    }

    /// Reads to the end of the stream.
    pub(crate) async fn collect(self, mut from: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; CHUNK];
        // A stream that fails is at its end.
        while let Ok(length @ 1..) = from.read(&mut chunk).await {
            self.add(&chunk[..length]);
        }
    }

    pub(crate) fn text(&self) -> String {
        let tail = self.0.lock();
        let (first, second) = tail.as_slices();
        String::from_utf8_lossy(&[first, second].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Virtual machines): The supervisor stores only the tail of the console.
    #[tokio::test]
    async fn only_the_end_is_kept() {
        let tail = ConsoleTail::default();
        let output = format!("{}the end", "x".repeat(100_000));
        tail.clone().collect(output.as_bytes()).await;
        let text = tail.text();
        assert!(text.len() == MAX_RETAINED && text.ends_with("xthe end"), "{}", text.len());
    }
}
