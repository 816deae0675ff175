//! Frames and the limits of messages.

use std::io::{self, BufRead, Read, Write};

use serde_json::Value;

use crate::{Error, ErrorKind};

/// The maximum length of a body in bytes.
pub const MAX_BODY: usize = 8 * 1024 * 1024;
/// The maximum length of all headers with the empty line.
const MAX_HEADERS: u64 = 4096;
/// The maximum nesting of a body.
const MAX_DEPTH: usize = 64;

/// A breach of the protocol by the host, with its verdict. It ends the process.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

const BAD_FRAME: Broken = Broken("bad-frame");

/// Reads a frame. Returns `None` at the end of the input.
pub fn read(input: &mut impl BufRead) -> Result<Option<Value>, Broken> {
    let Some(length) = read_headers(input)? else { return Ok(None) };
    let mut body = Vec::new();
    // The body grows with the bytes that arrive, not with the length that the headers state.
    match input.take(length as u64).read_to_end(&mut body) {
        Ok(read) if read == length => decode(&body).map(Some),
        _ => Ok(None),
    }
}

/// Reads the headers and returns the length of the body.
fn read_headers(input: &mut impl BufRead) -> Result<Option<usize>, Broken> {
    let mut headers = input.take(MAX_HEADERS);
    let mut length = None;
    loop {
        let mut line = Vec::new();
        if headers.read_until(b'\n', &mut line).is_err() {
            return Ok(None);
        }
        if !line.ends_with(b"\n") {
            return if headers.limit() == 0 { Err(Broken("too-large")) } else { Ok(None) };
        }
        let line = line.strip_suffix(b"\r\n").ok_or(BAD_FRAME)?;
        if line.is_empty() {
            return length.ok_or(BAD_FRAME).map(Some);
        }
        read_header(std::str::from_utf8(line).map_err(|_| BAD_FRAME)?, &mut length)?;
    }
}

fn read_header(line: &str, length: &mut Option<usize>) -> Result<(), Broken> {
    let (name, value) = line.split_once(':').ok_or(BAD_FRAME)?;
    let value = value.trim_matches([' ', '\t']);
    if name.is_empty() || name.contains([' ', '\t', '\r']) || value.contains('\r') {
        return Err(BAD_FRAME);
    }
    if name.eq_ignore_ascii_case("content-type") {
        return check_charset(&value.to_ascii_lowercase());
    }
    if name.eq_ignore_ascii_case("content-length") {
        if length.is_some() || value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(BAD_FRAME);
        }
        *length = Some(value.parse().ok().filter(|length| *length <= MAX_BODY).ok_or(Broken("too-large"))?);
    }
    Ok(())
}

fn check_charset(content_type: &str) -> Result<(), Broken> {
    let Some((_, charset)) = content_type.split_once("charset=") else { return Ok(()) };
    let charset = charset.split(';').next().unwrap_or_default().trim_matches(['"', ' ']);
    if matches!(charset, "utf-8" | "utf8") { Ok(()) } else { Err(BAD_FRAME) }
}

/// Returns the message of a body.
fn decode(body: &[u8]) -> Result<Value, Broken> {
    if depth(body) > MAX_DEPTH {
        return Err(Broken("too-deep"));
    }
    serde_json::from_slice(body).map_err(|_| Broken("not-json"))
}

/// Returns the body of a message, if it keeps the limits of the protocol.
pub fn encode(message: &Value, max_body: usize) -> Result<Vec<u8>, Error> {
    let body = serde_json::to_vec(message)?;
    if body.len() > max_body {
        return Err(Error::new(ErrorKind::Limit, format!("a message has at most {max_body} bytes")));
    }
    if depth(&body) > MAX_DEPTH {
        return Err(Error::new(ErrorKind::Limit, format!("a message nests at most {MAX_DEPTH} levels")));
    }
    Ok(body)
}

/// Writes a frame.
pub fn write(output: &mut impl Write, body: &[u8]) -> io::Result<()> {
    let mut frame = format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    frame.extend_from_slice(body);
    output.write_all(&frame)?;
    output.flush()
}

/// Returns the nesting of JSON text.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(mut bytes: &[u8]) -> Result<Option<Value>, Broken> {
        read(&mut bytes)
    }

    #[test]
    fn a_frame_round_trips() {
        let message = serde_json::json!({"a": ["\"[", "\\", "ü"]});
        let mut bytes = Vec::new();
        write(&mut bytes, &encode(&message, MAX_BODY).unwrap()).unwrap();
        assert_eq!(read_all(&bytes), Ok(Some(message)));
        assert_eq!(read_all(&bytes[..bytes.len() - 1]), Ok(None));
        assert_eq!(read_all(b""), Ok(None));
    }

    #[test]
    fn headers_may_have_any_case_and_a_type() {
        let bytes = b"content-TYPE: x; charset=UTF-8\r\nCONTENT-length:2\r\n\r\n{}";
        assert_eq!(read_all(bytes), Ok(Some(serde_json::json!({}))));
    }

    #[test]
    fn broken_frames_have_a_verdict() {
        let cases: [(&[u8], &str); 10] = [
            (b"X: 1\r\n\r\n{}", "bad-frame"),
            (b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "bad-frame"),
            (b"Content-Length: -2\r\n\r\n{}", "bad-frame"),
            (b"Content-Length: +2\r\n\r\n{}", "bad-frame"),
            (b"Content-Length: 2\n\n{}", "bad-frame"),
            (b"Content-Length: 2\r\nContent-Type: a; charset=latin1\r\n\r\n{}", "bad-frame"),
            (b"Content-Length: 8388609\r\n\r\n", "too-large"),
            (b"Content-Length: 99999999999999999999999\r\n\r\n", "too-large"),
            (b"Content-Length: 1\r\n\r\n{", "not-json"),
            (b"Content-Length: 3\r\n\r\n\"\xff\"", "not-json"),
        ];
        for (bytes, verdict) in cases {
            assert_eq!(read_all(bytes), Err(Broken(verdict)), "{}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(read_all(&[b'x'; 5000]), Err(Broken("too-large")));
    }

    #[test]
    fn nesting_is_limited_in_both_directions() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(decode(nested(64).as_bytes()).is_ok());
        assert_eq!(decode(nested(65).as_bytes()), Err(Broken("too-deep")));
        let deep = serde_json::from_str(&nested(65)).unwrap();
        assert_eq!(encode(&deep, MAX_BODY).unwrap_err().kind, ErrorKind::Limit);
        assert_eq!(encode(&Value::from("xx"), 3).unwrap_err().kind, ErrorKind::Limit);
    }
}
