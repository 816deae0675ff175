//! The proxy that the gateway offers: SOCKS5, CONNECT of HTTP, and requests of HTTP with the address of their server. It
//! only finds the server that a client names. Everything after that is as for a direct connection.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use cofferdam_contract::{Connection, Duplex};
use fast_socks5::server::Socks5ServerProtocol;
use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{ReplyError, Socks5Command};
use tokio::io::{AsyncReadExt, AsyncWriteExt, join};

/// The maximum size of the head of a request.
const MAX_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 100;
const SOCKS5: u8 = 5;
const HTTP: u16 = 80;

/// The server that a client names.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    Name(String, u16),
    Address(SocketAddr),
}

/// A request of a client, to be accepted or refused.
pub enum ClientRequest {
    Socks(Socks5ServerProtocol<Connection, fast_socks5::server::states::CommandRead>),
    /// The bytes after the request.
    Connect(Connection, Vec<u8>),
    /// The request and the bytes after it, which are for the server.
    Forward(Connection, Vec<u8>),
}

/// Reads a client's request for a server. Returns `None` if there is none.
pub async fn read(mut client: Connection) -> Option<(Wanted, ClientRequest)> {
    let mut first = [0];
    client.read_exact(&mut first).await.ok()?;
    match first[0] {
        SOCKS5 => socks(replayed(client, first.to_vec())).await,
        _ => http(client, first.to_vec()).await,
    }
}

async fn socks(client: Connection) -> Option<(Wanted, ClientRequest)> {
    let accepted = Socks5ServerProtocol::accept_no_auth(client).await.ok()?;
    let (protocol, command, target) = accepted.read_command().await.ok()?;
    if !matches!(command, Socks5Command::TCPConnect) {
        let _ = protocol.reply_error(&ReplyError::CommandNotSupported).await;
        return None;
    }
    let wanted = match target {
        TargetAddr::Ip(address) => Wanted::Address(address),
        TargetAddr::Domain(name, port) => match name.parse() {
            Ok(address) => Wanted::Address(SocketAddr::new(address, port)),
            Err(_) => Wanted::Name(name, port),
        },
    };
    Some((wanted, ClientRequest::Socks(protocol)))
}

async fn http(mut client: Connection, mut head: Vec<u8>) -> Option<(Wanted, ClientRequest)> {
    loop {
        match parse(&head) {
            Head::Complete(wanted, Some(length)) => {
                let rest = head.split_off(length);
                return Some((wanted, ClientRequest::Connect(client, rest)));
            }
            Head::Complete(wanted, None) => return Some((wanted, ClientRequest::Forward(client, head))),
            Head::Partial if head.len() < MAX_HEAD => {}
            _ => {
                let text = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                let _ = client.write_all(text).await;
                return None;
            }
        }
        if client.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
}

enum Head {
    Partial,
    /// With the length of the head of a CONNECT.
    Complete(Wanted, Option<usize>),
    Invalid,
}

fn parse(head: &[u8]) -> Head {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(head) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Head::Partial,
        Err(_) => return Head::Invalid,
    };
    let (Some(method), Some(target)) = (request.method, request.path) else { return Head::Invalid };
    let Ok(uri) = target.parse::<hyper::Uri>() else { return Head::Invalid };
    let is_connect = method == "CONNECT";
    let port = match (uri.port(), uri.scheme_str()) {
        (Some(port), _) => Some(port.as_u16()),
        (None, Some("http")) if !is_connect => Some(HTTP),
        _ => None,
    };
    let scheme = if is_connect { None } else { Some("http") };
    let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    match (uri.host(), port) {
        (Some(host), Some(port)) if port != 0 && plain && uri.scheme_str() == scheme => {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let wanted = match bare.parse() {
                Ok(address) => Wanted::Address(SocketAddr::new(address, port)),
                Err(_) => Wanted::Name(host.to_owned(), port),
            };
            Head::Complete(wanted, is_connect.then_some(length))
        }
        _ => Head::Invalid,
    }
}

impl ClientRequest {
    /// Tells the client that its connection begins, and returns it.
    pub async fn accept(self) -> Option<Connection> {
        match self {
            Self::Socks(protocol) => {
                let none = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
                protocol.reply_success(none.into()).await.ok()
            }
            Self::Connect(mut client, rest) => {
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.ok()?;
                Some(replayed(client, rest))
            }
            Self::Forward(client, first) => Some(replayed(client, first)),
        }
    }

    /// Tells the client that the policy refuses the server.
    pub async fn refuse(self, why: &str) {
        match self {
            Self::Socks(protocol) => drop(protocol.reply_error(&ReplyError::ConnectionNotAllowed).await),
            Self::Connect(mut client, _) | Self::Forward(mut client, _) => {
                let body = format!("refused by the sandbox's network policy: {why}\n");
                let length = body.len();
                let head = "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Type: text/plain";
                let answer = format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}");
                let _ = client.write_all(answer.as_bytes()).await;
            }
        }
    }
}

/// Returns a connection from which these bytes are read first.
pub fn replayed(client: impl Duplex + 'static, first: Vec<u8>) -> Connection {
    let (reader, writer) = tokio::io::split(client);
    Box::new(join(io::Cursor::new(first).chain(reader), writer))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::duplex;

    use super::*;

    async fn wanted(bytes: &[u8]) -> Option<Wanted> {
        let (mut client, server) = duplex(1 << 16);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        read(Box::new(server)).await.map(|(wanted, _)| wanted)
    }

    #[tokio::test]
    async fn servers_of_requests_are_found() {
        let name = |name: &str, port| Some(Wanted::Name(name.to_owned(), port));
        for (bytes, expected) in [
            (&b"CONNECT a.example:443 HTTP/1.1\r\nHost: b.example\r\n\r\n"[..], name("a.example", 443)),
            (b"GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n", name("a.example", 80)),
            (b"GET http://a.example:8080/x HTTP/1.1\r\n\r\n", name("a.example", 8080)),
            (b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n", Some(Wanted::Address("[::1]:443".parse().unwrap()))),
            (b"\x05\x01\0\x05\x01\0\x03\x09a.example\x01\xbb", name("a.example", 443)),
            (b"\x05\x01\0\x05\x01\0\x01\x0a\0\0\x07\0\x50", Some(Wanted::Address("10.0.0.7:80".parse().unwrap()))),
            (b"\x05\x01\0\x05\x01\0\x03\x0810.0.0.7\0\x50", Some(Wanted::Address("10.0.0.7:80".parse().unwrap()))),
            (b"CONNECT a.example HTTP/1.1\r\n\r\n", None),
            (b"CONNECT a.example:0 HTTP/1.1\r\n\r\n", None),
            (b"CONNECT http://a.example:443/ HTTP/1.1\r\n\r\n", None),
            (b"CONNECT u@a.example:443 HTTP/1.1\r\n\r\n", None),
            (b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", None),
            (b"GET https://a.example/ HTTP/1.1\r\n\r\n", None),
            (b"GET http://a.example/ HTTP/1.1\r\n", None),
            (b"\x05\x01\0\x05\x02\0\x03\x09a.example\x01\xbb", None),
            (b"\x05\x01\x02\x05\x01\0\x03\x09a.example\x01\xbb", None),
            (b"\x04\x01", None),
            (b"", None),
        ] {
            assert_eq!(wanted(bytes).await, expected, "{}", bytes.escape_ascii());
        }
        assert_eq!(wanted(&[b"GET /".as_slice(), &[b'a'; 2 * MAX_HEAD]].concat()).await, None);
    }

    proptest! {
        #[test]
        fn bytes_of_a_guest_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), first in 0..3_usize) {
            let begin: &[u8] = [&b"\x05\x01\0\x05"[..], b"CONNECT ", b""][first];
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(wanted(&[begin, &bytes].concat()));
        }
    }
}
