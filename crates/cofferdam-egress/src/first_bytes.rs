//! The first bytes of a connection, which show its protocol.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::sniff::{MAX_FIRST, Protocol, protocol};

/// Time in which a client must complete what it has begun: its first message, or a query.
pub const FIRST_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum of reads of a first message. Each parses everything again.
const MAX_READS: usize = 64;

/// The first bytes of a connection: their sender and their protocol.
pub enum FirstBytes {
    /// The client sent a first message of this protocol.
    Client(Protocol),
    /// The server sent first: another protocol than those that are checked.
    Server,
    /// The client did not complete its first message.
    Incomplete,
    /// A side closed the connection before anything was sent.
    Closed,
}

/// Reads the client's first bytes until they show the protocol, or the server's if it sends first.
pub async fn recognise(
    client: &mut (impl AsyncRead + Unpin),
    server: &TcpStream,
    first: &mut Vec<u8>,
    greeting: &mut Vec<u8>,
) -> FirstBytes {
    loop {
        tokio::select! {
            biased;
            read = client.read_buf(first) => match read {
                Ok(1..) => break,
                _ => return FirstBytes::Closed,
            },
            _ = server.readable() => match server.try_read_buf(greeting) {
                Ok(1..) => return FirstBytes::Server,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return FirstBytes::Closed,
            },
        }
    }
    let complete = async {
        for _ in 0..MAX_READS {
            if let Some(protocol) = protocol(first) {
                return FirstBytes::Client(protocol);
            }
            if first.len() > MAX_FIRST {
                return FirstBytes::Incomplete;
            }
            match client.read_buf(first).await {
                Ok(1..) => {}
                // The client sends no more. A text without an end of its line is no request.
                Ok(0) if first[0].is_ascii_graphic() => return FirstBytes::Client(Protocol::Other),
                _ => return FirstBytes::Incomplete,
            }
        }
        FirstBytes::Incomplete
    };
    timeout(FIRST_TIMEOUT, complete).await.unwrap_or(FirstBytes::Incomplete)
}
