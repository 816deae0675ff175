//! Recognition of a connection's protocol by its first bytes.

use std::io::Cursor;

use rustls::server::Acceptor;

/// The maximum length of a first message of TLS, and of a first line of HTTP.
pub const MAX_FIRST: usize = 32 << 10;
/// Types of TLS records.
const RECORDS: std::ops::RangeInclusive<u8> = 0x14..=0x18;
const HANDSHAKE: u8 = 0x16;

/// The protocol of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Protocol {
    /// TLS, with the server name that the client sent.
    Tls(Option<String>),
    /// HTTP/1, or text that a lenient server might read as HTTP.
    Http,
    /// HTTP/2 without TLS.
    Http2,
    /// A first message that claims to be TLS, and is not valid.
    InvalidTls,
    Other,
}

/// Returns the protocol of a client that sent these bytes first. Returns `None` if more are needed.
pub fn protocol(first: &[u8]) -> Option<Protocol> {
    match first {
        [] => None,
        [kind] if RECORDS.contains(kind) => None,
        [kind, 3, ..] if RECORDS.contains(kind) => tls(first),
        // A hello of SSL 2.
        [length, ..] if length & 0x80 != 0 && !is_blank(*length) => Some(match first.get(2) {
            None => return None,
            Some(1) => Protocol::InvalidTls,
            Some(_) => Protocol::Other,
        }),
        _ => http(first),
    }
}

/// Returns true if a server's first bytes are an answer of HTTP, HTTP/2 or TLS. Such a server understood a request that
/// was not recognised, or speaks HTTP/2.
pub fn is_unchecked_answer(first: &[u8]) -> bool {
    let is_settings = first.len() >= 5 && first[..2] == [0, 0] && first[3] == 4 && first[4] <= 1;
    first.starts_with(b"HTTP/") || matches!(first, [0x15 | HANDSHAKE, 3, ..]) || is_settings
}

fn tls(first: &[u8]) -> Option<Protocol> {
    if first[0] != HANDSHAKE {
        return Some(Protocol::InvalidTls);
    }
    let mut acceptor = Acceptor::default();
    let mut bytes = Cursor::new(first);
    loop {
        match acceptor.read_tls(&mut bytes) {
            Ok(0) | Err(_) => return (first.len() >= MAX_FIRST).then_some(Protocol::InvalidTls),
            Ok(_) => {}
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_owned);
                return Some(Protocol::Tls(name));
            }
            Err(_) => return Some(Protocol::InvalidTls),
        }
    }
}

/// Recognises HTTP more widely than it is defined: servers skip empty lines, accept other blanks, and guess versions.
fn http(first: &[u8]) -> Option<Protocol> {
    let is_full = first.len() >= MAX_FIRST;
    let undecided = is_full.then_some(Protocol::Http);
    let Some(start) = first.iter().position(|byte| !is_blank(*byte) && !matches!(byte, b'\r' | b'\n')) else {
        return undecided;
    };
    let line = &first[start..];
    let Some(word) = line.iter().position(|byte| !is_token(*byte)) else { return undecided };
    if word == 0 || line.starts_with(b"SSH-") || is_git(line) {
        return Some(Protocol::Other);
    }
    if !is_blank(line[word]) {
        return Some(Protocol::Other);
    }
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else { return undecided };
    match line[..end].trim_ascii_end().ends_with(b"HTTP/2.0") {
        true => Some(Protocol::Http2),
        false => Some(Protocol::Http),
    }
}

/// Returns true for a request of git's own protocol: its length in four digits, and a command.
fn is_git(line: &[u8]) -> bool {
    line.len() >= 8 && line[..4].iter().all(u8::is_ascii_hexdigit) && line[4..].starts_with(b"git-")
}

/// Returns true for bytes that some server of HTTP takes for a blank.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn protocols_are_recognised() {
        for (first, expected) in [
            (&b""[..], None),
            (b"GET", None),
            (b"GET / HT", None),
            (b"GET / HTTP/1.1\r\n", Some(Protocol::Http)),
            (b"\r\n\r\n \tGET / HTTP/1.1\r\n", Some(Protocol::Http)),
            (b"get / HTTP/1.0\n", Some(Protocol::Http)),
            (b"GET\t/\tHTTP/1.1\r\n", Some(Protocol::Http)),
            (b"GET /\r\n", Some(Protocol::Http)),
            (b"GET /\0x\r\n", Some(Protocol::Http)),
            (b"GET\x1c/\r\n", Some(Protocol::Http)),
            (b"\x85\xa0\x1fGET /\r\n", Some(Protocol::Http)),
            (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", Some(Protocol::Http)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Protocol::Http2)),
            (b"SSH-2.0-OpenSSH_9.2 comment\r\n", Some(Protocol::Other)),
            (b"003agit-upload-pack /repo\0host=a\0", Some(Protocol::Other)),
            (b"PING\r\n", Some(Protocol::Other)),
            (b"*1\r\n$4\r\nPING\r\n", Some(Protocol::Other)),
            (b"\0\0\0\x08", Some(Protocol::Other)),
            (b"\x16", None),
            (b"\x16\x03\x01", None),
            (b"\x16\x03\x01\0\x04\x02\0\0\0", Some(Protocol::InvalidTls)),
            (b"\x15\x03\x01\0\x02\x01\0", Some(Protocol::InvalidTls)),
            (b"\x16\x02", Some(Protocol::Other)),
            (b"\x80", None),
            (b"\x80\x2e\x01", Some(Protocol::InvalidTls)),
        ] {
            assert_eq!(protocol(first), expected, "{}", first.escape_ascii());
        }
        for byte in [b'\n', b' ', b'A'] {
            assert_eq!(protocol(&vec![byte; MAX_FIRST - 1]), None);
            assert_eq!(protocol(&vec![byte; MAX_FIRST]), Some(Protocol::Http));
        }
    }

    #[test]
    fn answers_to_unchecked_requests_are_recognised() {
        for first in [&b"HTTP/1.1 200"[..], b"\x16\x03\x03", b"\x15\x03\x03", b"\0\0\x12\x04\0", b"\0\0\0\x04\x01"] {
            assert!(is_unchecked_answer(first), "{}", first.escape_ascii());
        }
        for first in [&b""[..], b"banner\n", b"SSH-2.0-x", b"\0\0", b"+PONG"] {
            assert!(!is_unchecked_answer(first), "{}", first.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn every_long_beginning_is_decided(bytes in proptest::collection::vec(any::<u8>(), MAX_FIRST), tls in any::<bool>()) {
            let mut bytes = bytes;
            if tls {
                bytes[..3].copy_from_slice(&[0x16, 3, 1]);
            }
            prop_assert!(protocol(&bytes).is_some());
        }
    }
}
