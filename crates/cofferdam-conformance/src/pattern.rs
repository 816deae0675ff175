//! Large contents that are generated and checked in pieces, so that the suite never holds them whole.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

const BLOCK: usize = 65_536;

/// Returns the block of this number: its number, then bytes that differ from their neighbours.
fn block(number: u64) -> Vec<u8> {
    let mut data: Vec<u8> = (0..BLOCK).map(|at| (at * 31 + at / 251) as u8).collect();
    data[..8].copy_from_slice(&number.to_le_bytes());
    data
}

/// A reader of `total` bytes of the pattern. It fails after `fail_at` bytes if that is set.
pub(crate) struct PatternReader {
    at: u64,
    total: u64,
    fail_at: Option<u64>,
    block: Vec<u8>,
}

impl PatternReader {
    pub(crate) fn new(total: u64) -> Self {
        Self { at: 0, total, fail_at: None, block: block(0) }
    }

    pub(crate) fn failing_at(total: u64, fail_at: u64) -> Self {
        Self { fail_at: Some(fail_at), ..Self::new(total) }
    }
}

impl AsyncRead for PatternReader {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.fail_at.is_some_and(|limit| this.at >= limit) {
            return Poll::Ready(Err(io::Error::other("cannot read the source")));
        }
        let offset = (this.at % BLOCK as u64) as usize;
        if offset == 0 {
            this.block[..8].copy_from_slice(&(this.at / BLOCK as u64).to_le_bytes());
        }
        let left = usize::try_from(this.total - this.at).unwrap_or(usize::MAX);
        let size = buf.remaining().min(BLOCK - offset).min(left);
        buf.put_slice(&this.block[offset..offset + size]);
        this.at += size as u64;
        Poll::Ready(Ok(()))
    }
}

/// Reads to the end and compares with the pattern. Returns the length, or the offset of the first difference.
pub(crate) async fn verify(mut reader: impl AsyncRead + Unpin) -> io::Result<Result<u64, u64>> {
    let mut expected = block(0);
    let mut buffer = vec![0; BLOCK];
    let mut at = 0u64;
    loop {
        let offset = (at % BLOCK as u64) as usize;
        let size = reader.read(&mut buffer[..BLOCK - offset]).await?;
        if size == 0 {
            return Ok(Ok(at));
        }
        expected[..8].copy_from_slice(&(at / BLOCK as u64).to_le_bytes());
        if buffer[..size] != expected[offset..offset + size] {
            return Ok(Err(at));
        }
        at += size as u64;
    }
}

/// Returns the first `total` bytes of the pattern, in memory.
pub(crate) fn bytes(total: usize) -> Vec<u8> {
    (0..total.div_ceil(BLOCK) as u64).flat_map(block).take(total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn written_logs_verify_and_a_change_is_detected() {
        for total in [0, 1, BLOCK as u64, 3 * BLOCK as u64 + 17] {
            assert_eq!(verify(PatternReader::new(total)).await.unwrap(), Ok(total));
        }
        let mut data = bytes(BLOCK * 2 + 5);
        assert_eq!(verify(&data[..]).await.unwrap(), Ok(data.len() as u64));
        data[BLOCK + 3] ^= 1;
        assert!(verify(&data[..]).await.unwrap().is_err());
        assert!(verify(PatternReader::failing_at(100_000, 70_000)).await.is_err());
    }
}
