//! Frames with `Content-Length`, from hostile bytes. Pure: no input or output.

use bytes::{Buf, Bytes, BytesMut};

use super::Violation;

/// The maximum size of all headers of a frame.
const MAX_HEADERS: usize = 4096;
/// The maximum number of headers of a frame.
const MAX_HEADER_COUNT: usize = 8;
/// The end of the headers.
const END: &[u8] = b"\r\n\r\n";

/// A decoder of frames. It takes bytes in any portions and returns whole bodies.
#[derive(Debug)]
pub struct Decoder {
    max_body: usize,
    buffer: BytesMut,
    /// Bytes of headers that were searched for their end.
    searched: usize,
    /// The size of the body whose headers were read.
    body: Option<usize>,
}

impl Decoder {
    /// Creates a decoder of bodies of at most `max_body` bytes.
    pub fn new(max_body: usize) -> Self {
        Self { max_body, buffer: BytesMut::new(), searched: 0, body: None }
    }

    /// Adds bytes. The caller reads all bodies before it adds more, so that at most one body is buffered.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns true if a frame has begun.
    pub fn is_inside_frame(&self) -> bool {
        self.body.is_some() || !self.buffer.is_empty()
    }

    /// Returns the number of buffered bytes.
    #[cfg(feature = "fuzz")]
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next complete body.
    ///
    /// # Errors
    /// The rule that the bytes break. The decoder is of no use after that.
    pub fn next_body(&mut self) -> Result<Option<Bytes>, Violation> {
        let length = match self.body {
            Some(length) => length,
            None => match self.headers()? {
                Some(length) => *self.body.insert(length),
                None => return Ok(None),
            },
        };
        if self.buffer.len() < length {
            return Ok(None);
        }
        self.body = None;
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    /// Removes the headers from the buffer, and returns the length of the body.
    fn headers(&mut self) -> Result<Option<usize>, Violation> {
        let limit = self.buffer.len().min(MAX_HEADERS);
        // The end may have begun in the bytes that were searched before.
        let from = self.searched.saturating_sub(END.len() - 1);
        let end = self.buffer[from..limit].windows(END.len()).position(|window| window == END).map(|at| from + at);
        let text = &self.buffer[..end.map_or(limit, |end| end + END.len())];
        check_lines(text)?;
        let Some(end) = end else {
            self.searched = limit;
            return if self.buffer.len() >= MAX_HEADERS {
                Err(Violation::BadFrame("the headers have more than 4096 bytes"))
            } else {
                Ok(None)
            };
        };
        let length = content_length(&self.buffer[..end + END.len()])?;
        if length > self.max_body {
            return Err(Violation::TooLarge(length));
        }
        self.buffer.advance(end + END.len());
        self.searched = 0;
        Ok(Some(length))
    }
}

/// Refuses bytes that cannot be the beginning of headers, so that a plugin that prints to the wire is found at once.
fn check_lines(text: &[u8]) -> Result<(), Violation> {
    let lone = text.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || text[at - 1] != b'\r'));
    if lone || text.contains(&0) {
        return Err(Violation::BadFrame("a header does not end with CR LF"));
    }
    Ok(())
}

fn content_length(headers: &[u8]) -> Result<usize, Violation> {
    let mut parsed = [httparse::EMPTY_HEADER; MAX_HEADER_COUNT];
    let Ok(httparse::Status::Complete((_, parsed))) = httparse::parse_headers(headers, &mut parsed) else {
        return Err(Violation::BadFrame("the headers cannot be parsed"));
    };
    let mut length = None;
    for header in parsed {
        if header.name.eq_ignore_ascii_case("content-length") {
            let digits = header.value;
            if digits.is_empty() || digits.len() > 15 || !digits.iter().all(u8::is_ascii_digit) {
                return Err(Violation::BadFrame("Content-Length is not a number"));
            }
            let value = digits.iter().fold(0usize, |value, digit| value * 10 + usize::from(digit - b'0'));
            if length.replace(value).is_some() {
                return Err(Violation::BadFrame("Content-Length is repeated"));
            }
        } else if header.name.eq_ignore_ascii_case("content-type") {
            let text = String::from_utf8_lossy(header.value).to_ascii_lowercase();
            let charset = text.split(';').find_map(|part| part.trim().strip_prefix("charset="));
            if charset.is_some_and(|charset| !matches!(charset.trim_matches('"'), "utf-8" | "utf8")) {
                return Err(Violation::BadFrame("the charset is not utf-8"));
            }
        }
    }
    length.ok_or(Violation::BadFrame("Content-Length is missing"))
}

/// Returns the frame of a body.
pub fn encode(body: &[u8]) -> Bytes {
    let mut frame = format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    frame.extend_from_slice(body);
    frame.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(bytes: &[u8], portions: &[usize]) -> Result<Vec<Bytes>, Violation> {
        let mut decoder = Decoder::new(100);
        let (mut found, mut rest, mut sizes) = (Vec::new(), bytes, portions.iter().cycle());
        while !rest.is_empty() {
            let size = (*sizes.next().unwrap_or(&1)).clamp(1, rest.len());
            decoder.feed(&rest[..size]);
            rest = &rest[size..];
            while let Some(body) = decoder.next_body()? {
                found.push(body);
            }
        }
        Ok(found)
    }

    proptest! {
        /// Promise (Plugins): Frames arrive whole, however their bytes are split or joined.
        #[test]
        fn frames_arrive_whole_however_their_bytes_are_split(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..8),
            portions in prop::collection::vec(1usize..50, 1..8),
        ) {
            let bytes: Vec<u8> = bodies.iter().flat_map(|body| encode(body).to_vec()).collect();
            prop_assert_eq!(decode(&bytes, &portions).unwrap(), bodies);
        }

        /// Promise (Plugins): No bytes crash the decoder, and it never buffers more than one frame and a portion.
        #[test]
        fn no_bytes_crash_the_decoder(bytes in prop::collection::vec(any::<u8>(), 0..6000)) {
            let mut decoder = Decoder::new(100);
            for portion in bytes.chunks(64) {
                decoder.feed(portion);
                loop {
                    match decoder.next_body() {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => return Ok(()),
                    }
                }
                prop_assert!(decoder.buffer.len() <= MAX_HEADERS + 100 + 64);
            }
        }
    }

    /// Promise (Plugins): A frame with wrong, repeated, missing or huge lengths is refused with the rule that it breaks.
    #[test]
    fn hostile_headers_are_refused() {
        let refused = |text: &str| decode(text.as_bytes(), &[7]).unwrap_err();
        assert_eq!(refused("Content-Length: 101\r\n\r\n"), Violation::TooLarge(101));
        assert_eq!(refused("Content-Length: 999999999999999\r\n\r\n"), Violation::TooLarge(999_999_999_999_999));
        let bad = [
            "Content-Length: 1\r\nContent-Length: 1\r\n\r\n{",
            "Content-Length: -1\r\n\r\n",
            "Content-Length: +1\r\n\r\n",
            "Content-Length: 0x10\r\n\r\n",
            "Content-Length: 1e2\r\n\r\n",
            "Content-Length:\r\n\r\n",
            "Content-Length: 1 1\r\n\r\n",
            "Content-Length: 99999999999999999999\r\n\r\n",
            "Content-Type: text/plain\r\n\r\n",
            "Content-Length: 1\r\nContent-Type: x; charset=utf-16\r\n\r\n",
            "Content-Length: 1\n\n{",
            "hello\n",
            "\r\n\r\n",
            "Content Length: 1\r\n\r\n",
            "A: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\nE: 1\r\nF: 1\r\nG: 1\r\nH: 1\r\nContent-Length: 1\r\n\r\n",
        ];
        for text in bad {
            assert!(matches!(refused(text), Violation::BadFrame(_)), "{text:?}");
        }
        assert!(matches!(refused(&"x".repeat(5000)), Violation::BadFrame(_)));
        assert!(decode(b"content-length: 2\r\nContent-Type: a; charset=\"UTF-8\"\r\n\r\n{}", &[3]).is_ok());
    }
}
