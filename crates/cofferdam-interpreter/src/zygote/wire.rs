//! The frames between the host and a zygote's relay, on the standard input and output of one exec.
//!
//! ```text
//! u32 length of the payload | u8 kind | u32 fork | payload
//! ```
//!
//! Numbers are big-endian. Whatever comes from inside is hostile: a frame is bounded, and one that is not understood is
//! the end of the zygote. The other side is `bootstrap/python/relay.py`.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use cofferdam_contract::OutputStream;

/// Bytes before the payload.
const HEAD: usize = 9;
/// The largest payload from inside; the relay reads pipes in pieces of half of it.
const MOST_PAYLOAD: usize = 1 << 16;
/// The largest piece of input in one frame.
pub const INPUT_PIECE: usize = 1 << 14;

/// What the host tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Takes the next fork that is ready under this name.
    Open,
    /// Bytes for its standard input, the request first.
    Input(Bytes),
    /// The end of its standard input.
    InputEnd,
    /// SIGTERM to all of its processes.
    Terminate,
    /// SIGKILL to all of its processes.
    Kill,
    /// So many bytes of output were read.
    Room(u32),
}

impl Order {
    /// The frame for one fork.
    pub fn encode(&self, fork: u32) -> Bytes {
        let (kind, payload) = match self {
            Self::Open => (1, Bytes::new()),
            Self::Input(data) => (2, data.clone()),
            Self::InputEnd => (3, Bytes::new()),
            Self::Terminate => (4, Bytes::from_static(b"t")),
            Self::Kill => (4, Bytes::from_static(b"k")),
            Self::Room(bytes) => (5, Bytes::copy_from_slice(&bytes.to_be_bytes())),
        };
        let mut frame = BytesMut::with_capacity(HEAD + payload.len());
        frame.put_u32(payload.len() as u32);
        frame.put_u8(kind);
        frame.put_u32(fork);
        frame.put_slice(&payload);
        frame.freeze()
    }
}

/// How a fork ended, and what it used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// As `wait` gives it.
    pub status: u32,
    /// CPU time of all its processes that somebody waited for.
    pub cpu_micros: u64,
    /// The most memory of its largest process.
    pub peak_kib: u64,
    /// It was killed because its CPU time was used up.
    pub over_cpu: bool,
}

/// What comes from inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A fork printed this.
    Output(OutputStream, Bytes),
    /// So many bytes of input are on their way to it, and more may come.
    Taken(u32),
    /// It does not read its input any more.
    InputClosed,
    /// It ended, and nothing of it is left.
    Ended(Ended),
    /// The zygote cannot go on.
    Failed(String),
}

/// Something came that no relay sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonsense;

/// Cuts a stream into frames. Holds at most one that is not whole.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Takes more of the stream.
    pub fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// The next frame, if all of it is here.
    pub fn next(&mut self) -> Result<Option<(u32, Report)>, Nonsense> {
        let Some(head) = self.buffer.first_chunk::<HEAD>() else { return Ok(None) };
        let mut head = &head[..];
        let (size, kind, fork) = (head.get_u32() as usize, head.get_u8(), head.get_u32());
        if size > MOST_PAYLOAD {
            return Err(Nonsense);
        }
        if self.buffer.len() < HEAD + size {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let payload = self.buffer.split_to(size).freeze();
        report(kind, payload).map(|report| Some((fork, report))).ok_or(Nonsense)
    }
}

fn report(kind: u8, mut payload: Bytes) -> Option<Report> {
    Some(match (kind, payload.len()) {
        (1 | 2, 0) => return None,
        (1, _) => Report::Output(OutputStream::Stdout, payload),
        (2, _) => Report::Output(OutputStream::Stderr, payload),
        (3, 4) => Report::Taken(payload.get_u32()),
        (4, 0) => Report::InputClosed,
        (5, 21) => {
            let (status, cpu_micros, peak_kib) = (payload.get_u32(), payload.get_u64(), payload.get_u64());
            Report::Ended(Ended { status, cpu_micros, peak_kib, over_cpu: payload.get_u8() != 0 })
        }
        (6, _) => Report::Failed(String::from_utf8_lossy(&payload).into_owned()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, fork: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes().to_vec();
        frame.push(kind);
        frame.extend(fork.to_be_bytes());
        frame.extend(payload);
        frame
    }

    #[test]
    fn orders_are_as_the_relay_reads_them() {
        assert_eq!(Order::Open.encode(7), frame(1, 7, b""));
        assert_eq!(Order::Input(Bytes::from_static(b"ab")).encode(7), frame(2, 7, b"ab"));
        assert_eq!(Order::InputEnd.encode(7), frame(3, 7, b""));
        assert_eq!(Order::Terminate.encode(7), frame(4, 7, b"t"));
        assert_eq!(Order::Kill.encode(7), frame(4, 7, b"k"));
        assert_eq!(Order::Room(258).encode(7), frame(5, 7, &[0, 0, 1, 2]));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            frame(0, 1, b""),
            frame(7, 1, b""),
            frame(1, 1, b""),
            frame(3, 1, b"abc"),
            frame(4, 1, b"x"),
            frame(5, 1, &[0; 20]),
            (MOST_PAYLOAD as u32 + 1).to_be_bytes().into_iter().chain([1; 5]).collect(),
        ] {
            let mut decoder = Decoder::default();
            decoder.push(&bad);
            assert_eq!(decoder.next(), Err(Nonsense), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn frames_are_found_wherever_the_stream_is_cut(
            frames in prop::collection::vec((1u8..=2, any::<u32>(), prop::collection::vec(any::<u8>(), 1..40)), 0..20),
            cut in 1usize..17,
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(|(kind, fork, data)| frame(*kind, *fork, data)).collect();
            let (mut decoder, mut found) = (Decoder::default(), Vec::new());
            for piece in stream.chunks(cut) {
                decoder.push(piece);
                while let Some((fork, report)) = decoder.next().unwrap() {
                    let Report::Output(stream, data) = report else { panic!("{report:?}") };
                    found.push((if stream == OutputStream::Stdout { 1 } else { 2 }, fork, data.to_vec()));
                }
            }
            prop_assert_eq!(found, frames);
        }

        #[test]
        fn no_bytes_make_it_panic_or_keep_more_than_a_frame(stream in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut decoder = Decoder::default();
            decoder.push(&stream);
            while let Ok(Some(_)) = decoder.next() {}
            prop_assert!(decoder.buffer.len() <= stream.len());
        }
    }
}
