//! The frames of a stream of the Connect protocol: one byte of flags, four bytes of length, then a message.
//!
//! Pure: bytes go in, frames come out. A frame beyond the bound is refused as soon as its length is known.

use bytes::{Buf, Bytes, BytesMut};

/// The most bytes of a message. E2B's agent sends at most 32 KiB of output in one.
pub(crate) const MAX_FRAME: usize = 1 << 20;
/// The bytes before a message.
const HEADER: usize = 5;
const END: u8 = 2;

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Message(Bytes),
    /// The last frame, with the stream's error, if there is one.
    End(Bytes),
}

/// The reason why bytes are no frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadFrame {
    TooLarge(usize),
    /// Flags that were not asked for, such as compression.
    Flags(u8),
}

impl std::fmt::Display for BadFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge(length) => write!(f, "a message has {length} bytes, and the most is {MAX_FRAME}"),
            Self::Flags(flags) => write!(f, "a message has the unknown flags {flags:#04x}"),
        }
    }
}

/// Bytes of a stream that are no complete frame yet.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: BytesMut,
}

impl Frames {
    /// Adds bytes. The caller takes all frames before it adds more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the next frame, if it is complete.
    pub fn next(&mut self) -> Result<Option<Frame>, BadFrame> {
        let Some((header, rest)) = self.buffer.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [flags, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        if flags & !END != 0 {
            return Err(BadFrame::Flags(flags & !END));
        }
        if length > MAX_FRAME {
            return Err(BadFrame::TooLarge(length));
        }
        if rest.len() < length {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        let message = self.buffer.split_to(length).freeze();
        Ok(Some(if flags & END == 0 { Frame::Message(message) } else { Frame::End(message) }))
    }
}

/// Returns the frame of a message.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(frames: &mut Frames) -> Vec<Frame> {
        std::iter::from_fn(|| frames.next().unwrap()).collect()
    }

    #[test]
    fn oversized_and_compressed_frames_are_refused_by_their_header() {
        let mut frames = Frames::default();
        frames.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(frames.next(), Err(BadFrame::TooLarge(u32::MAX as usize)));
        for flags in [1, 3, 4, 0x80] {
            let mut frames = Frames::default();
            frames.push(&[flags, 0, 0, 0, 0]);
            assert!(matches!(frames.next(), Err(BadFrame::Flags(_))), "{flags}");
        }
    }

    proptest! {
        /// Promise (E2B): Messages arrive unchanged, however the bytes of a stream are split.
        #[test]
        fn frames_do_not_depend_on_how_bytes_arrive(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8),
            sizes in proptest::collection::vec(1usize..64, 1..64),
        ) {
            let mut bytes: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
            bytes.extend([END, 0, 0, 0, 2, b'{', b'}']);
            let (mut frames, mut seen, mut sizes) = (Frames::default(), Vec::new(), sizes.into_iter().cycle());
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(sizes.next().unwrap().min(rest.len()));
                frames.push(piece);
                seen.extend(all(&mut frames));
                rest = after;
            }
            let expected = messages.into_iter().map(|message| Frame::Message(message.into()));
            prop_assert_eq!(seen, expected.chain([Frame::End(Bytes::from_static(b"{}"))]).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_frames_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::default();
            frames.push(&bytes);
            while let Ok(Some(_)) = frames.next() {}
            prop_assert!(frames.buffer.len() <= bytes.len());
        }
    }
}
