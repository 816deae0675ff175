//! Recognition of a connection's protocol by its first bytes.

use std::io::Cursor;

use rustls::server::Acceptor;

/// The maximum length of a first message of TLS, and of a first line of HTTP.
pub const MAX_FIRST: usize = 32 << 10;
/// The type of a TLS record with a handshake message.
const HANDSHAKE: u8 = 0x16;
/// The maximum length of an HTTP method. A longer word is another protocol's.
const MAX_METHOD: usize = 32;

/// The protocol of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Protocol {
    /// TLS, with the server name that the client sent.
    Tls(Option<String>),
    /// HTTP/1.
    Http,
    /// HTTP/2 without TLS.
    Http2,
    /// A first message that claims to be TLS, and is not.
    InvalidTls,
    Other,
}

/// Returns the protocol of a client that sent these bytes first. Returns `None` if more are needed.
pub fn protocol(first: &[u8]) -> Option<Protocol> {
    match first {
        [] | [HANDSHAKE] => None,
        _ if is_tls(first) => tls(first),
        _ => http(first),
    }
}

/// Returns true if bytes begin a TLS handshake.
pub fn is_tls(first: &[u8]) -> bool {
    matches!(first, [HANDSHAKE] | [HANDSHAKE, 3, ..])
}

fn tls(first: &[u8]) -> Option<Protocol> {
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

fn http(first: &[u8]) -> Option<Protocol> {
    // Some servers skip empty lines before a request.
    let start = first.iter().position(|byte| !matches!(byte, b'\r' | b'\n'));
    let Some(line) = start.map(|start| &first[start..]) else {
        return (first.len() > MAX_METHOD).then_some(Protocol::Other);
    };
    let method = line.iter().position(|byte| !is_token(*byte)).unwrap_or(line.len());
    if method == 0 || method > MAX_METHOD || line.get(method).is_some_and(|byte| *byte != b' ') {
        return Some(Protocol::Other);
    }
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        return (first.len() >= MAX_FIRST).then_some(Protocol::Other);
    };
    let line = line[..end].trim_ascii_end();
    Some(match line.rsplit(|byte| *byte == b' ').next() {
        Some(b"HTTP/2.0") => Protocol::Http2,
        Some(version) if version.starts_with(b"HTTP/") => Protocol::Http,
        _ => Protocol::Other,
    })
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
            (b"\r\n\r\nGET / HTTP/1.1\r\n", Some(Protocol::Http)),
            (b"get / HTTP/1.0\n", Some(Protocol::Http)),
            (b"GET /\n", Some(Protocol::Other)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Protocol::Http2)),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Some(Protocol::Other)),
            (b"PING\r\n", Some(Protocol::Other)),
            (b"*1\r\n$4\r\nPING\r\n", Some(Protocol::Other)),
            (b"\0\0\0\x08", Some(Protocol::Other)),
            (b"\x16", None),
            (b"\x16\x03\x01", None),
            (b"\x16\x03\x01\0\x04\x02\0\0\0", Some(Protocol::InvalidTls)),
            (b"\x16\x02", Some(Protocol::Other)),
        ] {
            assert_eq!(protocol(first), expected, "{}", first.escape_ascii());
        }
        assert_eq!(protocol(&[b'\n'; 100]), Some(Protocol::Other));
        assert_eq!(protocol(&[b'A'; 100]), Some(Protocol::Other));
        let mut long = b"GET /".to_vec();
        long.resize(MAX_FIRST, b'a');
        assert_eq!(protocol(&long), Some(Protocol::Other));
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
