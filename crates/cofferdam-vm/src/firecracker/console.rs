//! The output of Firecracker and, by default, of its guest's console: read to the end, with only the tail retained.

use std::io::PipeWriter;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;

/// Maximum number of retained bytes.
const MAX_RETAINED: usize = 64 * 1024;

/// The tail of the output.
#[derive(Debug, Clone)]
pub(super) struct Console {
    last: Arc<Mutex<Vec<u8>>>,
    over: watch::Receiver<bool>,
}

impl Console {
    /// Creates a console and its writing end. It is over when all copies of that end are closed.
    pub(super) fn new() -> std::io::Result<(Self, PipeWriter)> {
        let (reader, writer) = std::io::pipe()?;
        let reader = Receiver::from_owned_fd(reader.into())?;
        let last = Arc::new(Mutex::new(Vec::new()));
        let (sender, over) = watch::channel(false);
        tokio::spawn(read(reader, Arc::clone(&last), sender));
        Ok((Self { last, over }, writer))
    }

    /// Returns the tail in a printable form.
    pub(super) fn text(&self) -> String {
        let bytes = self.last.lock();
        let text = String::from_utf8_lossy(&bytes);
        text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
    }

    /// Waits until all writing ends are closed.
    pub(super) async fn over(&self) {
        // The reader ends only after it has reported the end.
        let _ = self.over.clone().wait_for(|over| *over).await;
    }
}

async fn read(mut reader: Receiver, last: Arc<Mutex<Vec<u8>>>, over: watch::Sender<bool>) {
    let mut piece = vec![0; 8192];
    while let Ok(count @ 1..) = reader.read(&mut piece).await {
        let mut last = last.lock();
        last.extend_from_slice(&piece[..count]);
        let excess = last.len().saturating_sub(MAX_RETAINED);
        last.drain(..excess);
    }
    over.send_replace(true);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn only_the_last_bytes_are_retained_without_blocking() {
        let (console, mut writer) = Console::new().unwrap();
        let written = tokio::task::spawn_blocking(move || {
            for _ in 0..100 {
                writer.write_all(&[b'x'; 8192]).unwrap();
            }
            writer.write_all(b"\x1b[2Jthe end\n").unwrap();
        });
        written.await.unwrap();
        console.over().await;
        let text = console.text();
        assert!(text.len() <= MAX_RETAINED && text.ends_with(" [2Jthe end\n"), "{} bytes", text.len());
    }
}
