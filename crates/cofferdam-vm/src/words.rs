//! The end of what somebody says, however much it is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes that are kept.
const KEPT: usize = 16 << 10;
const PIECE: usize = 4 << 10;

/// The last bytes that were said. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Words(Arc<Mutex<VecDeque<u8>>>);

impl Words {
    fn add(&self, data: &[u8]) {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        words.extend(&data[data.len().saturating_sub(KEPT)..]);
        let surplus = words.len().saturating_sub(KEPT);
        words.drain(..surplus);
    }

    /// Listens until there is no more to hear.
    pub(crate) async fn listen(self, mut from: impl AsyncRead + Unpin) {
        let mut piece = vec![0; PIECE];
        // A stream that breaks is at its end.
        while let Ok(length @ 1..) = from.read(&mut piece).await {
            self.add(&piece[..length]);
        }
    }

    pub(crate) fn text(&self) -> String {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, second) = words.as_slices();
        String::from_utf8_lossy(&[first, second].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_end_is_kept() {
        let words = Words::default();
        let said = format!("{}the end", "x".repeat(100_000));
        words.clone().listen(said.as_bytes()).await;
        let text = words.text();
        assert!(text.len() == KEPT && text.ends_with("xthe end"), "{}", text.len());
    }
}
