//! Export of a workspace to an archive of one layer, and import.

mod export;
mod import;

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use cofferdam_contract::{Error, ErrorKind};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub use export::export;
pub use import::import;

/// The top directory of an archive.
const TOP: &str = "workspace";
/// An archive that was written or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveSummary {
    /// The length in bytes.
    pub bytes: u64,
    /// The number of files, directories and links.
    pub entries: u64,
    /// The SHA-256, which is the `diff_id` of an uncompressed layer.
    pub sha256: [u8; 32],
}

/// A stream that hashes and counts its bytes.
struct Hashing<T> {
    inner: T,
    hash: Sha256,
    bytes: u64,
}

impl<T> Hashing<T> {
    fn new(inner: T) -> Self {
        Self { inner, hash: Sha256::new(), bytes: 0 }
    }

    fn finish(self, entries: u64) -> ArchiveSummary {
        ArchiveSummary { bytes: self.bytes, entries, sha256: self.hash.finalize().into() }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Hashing<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.inner).poll_write(context, data))?;
        self.hash.update(&data[..count]);
        self.bytes += count as u64;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Hashing<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, into))?;
        let this = &mut *self;
        this.hash.update(&into.filled()[before..]);
        this.bytes += (into.filled().len() - before) as u64;
        Poll::Ready(Ok(()))
    }
}

fn too_large(operation: &'static str) -> Error {
    Error::new(ErrorKind::ResourceExhausted, operation, "the archive has too many entries")
}
