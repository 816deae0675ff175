//! Frames: four bytes of length, little endian, and a message in postcard's encoding. A frame is processed only when it
//! is complete, and is at most [`MAX_BYTES`] long.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The maximum length of a frame's body, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// Size of the length field, in bytes.
const HEAD: usize = 4;
/// Size of a buffer extension, in bytes.
const ROOM: usize = 16 * 1024;

/// Encodes a message as a frame.
pub(crate) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = postcard::to_extend(message, vec![0; HEAD]).map_err(io::Error::other)?;
    let length = frame.len() - HEAD;
    if length > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long for a frame"));
    }
    frame[..HEAD].copy_from_slice(&u32::try_from(length).map_err(io::Error::other)?.to_le_bytes());
    Ok(frame)
}

/// Removes the first complete frame from `buffer`, if there is one.
pub(crate) fn split(buffer: &mut BytesMut) -> io::Result<Option<Bytes>> {
    let Some(head) = buffer.first_chunk::<HEAD>() else { return Ok(None) };
    let length = u32::from_le_bytes(*head) as usize;
    if length > MAX_BYTES {
        return Err(bad("a frame is too long"));
    }
    if buffer.len() < HEAD + length {
        return Ok(None);
    }
    buffer.advance(HEAD);
    Ok(Some(buffer.split_to(length).freeze()))
}

/// Decodes the message in a frame's body. Nothing may follow it.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(bad("trailing bytes in a frame")),
        Err(_) => Err(bad("invalid message in a frame")),
    }
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A reader of frames. Dropping a call loses no data.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    reader: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, buffer: BytesMut::new() }
    }

    /// Returns the underlying reader.
    pub(crate) fn reader(&mut self) -> &mut R {
        &mut self.reader
    }

    /// Returns the next frame's body, or `None` if the other side has closed the stream between two frames.
    pub(crate) async fn body(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(body) = split(&mut self.buffer)? {
                return Ok(Some(body));
            }
            self.buffer.reserve(ROOM);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Returns the next message.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        self.body().await?.map(|body| decode(&body)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ClientHello, ServerHello, ToClient, ToServer};
    use proptest::prelude::*;

    /// Promise (Server): The size of a frame is limited in both directions.
    #[test]
    fn a_frame_is_bounded_both_ways() {
        assert!(encode(&vec![0u8; MAX_BYTES]).is_err());
        let mut buffer = BytesMut::from(&u32::MAX.to_le_bytes()[..]);
        assert!(split(&mut buffer).is_err());
        assert!(decode::<u8>(&[1, 2]).is_err());
    }

    proptest! {
        /// Frames are found whole, wherever the stream is split.
        ///
        /// Promise (Server): Frames are found wherever the stream is split.
        #[test]
        fn frames_are_found_wherever_the_stream_is_cut(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            cut in 1usize..64,
        ) {
            let stream: Vec<u8> = parts.iter().flat_map(|part| encode(part).unwrap()).collect();
            let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
            for piece in stream.chunks(cut) {
                buffer.extend_from_slice(piece);
                while let Some(body) = split(&mut buffer).unwrap() {
                    found.push(decode::<Vec<u8>>(&body).unwrap());
                }
            }
            prop_assert_eq!(found, parts);
            prop_assert!(buffer.is_empty());
        }

        /// Arbitrary bytes are a message or an error, and never decode to more than was sent.
        ///
        /// Promise (Server): Arbitrary bytes are a message or an error.
        #[test]
        fn garbage_is_refused_without_harm(garbage in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = decode::<ToServer>(&garbage);
            let _ = decode::<ToClient>(&garbage);
            let _ = decode::<ClientHello>(&garbage);
            let _ = decode::<ServerHello>(&garbage);
            let mut buffer = BytesMut::from(&garbage[..]);
            while let Ok(Some(body)) = split(&mut buffer) {
                prop_assert!(body.len() <= garbage.len());
            }
        }
    }
}
