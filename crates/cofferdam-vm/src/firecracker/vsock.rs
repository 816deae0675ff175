//! Streams into a machine: Firecracker offers the guest's vsock as one Unix socket on the host.
//!
//! ```text
//! connect --"CONNECT port\n"--> Firecracker --> guest --"OK host-port\n"--> stream
//! ```
//!
//! Firecracker hangs up where nobody inside listens. What comes after the line belongs to the guest: the line is read to
//! its end and not a byte further.

use std::io;
use std::path::Path;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::error::shown;
use super::socket;

/// `OK `, the longest number of 32 bits, and the end of the line.
const MAX_LINE: usize = 14;

/// Why there is no stream.
#[derive(Debug)]
enum Failed {
    /// The socket cannot be connected to.
    Unreachable(io::Error),
    /// Nobody inside listens at the port, or the machine ended.
    HungUp,
    /// What came is not `OK port`.
    Nonsense(Vec<u8>),
    /// Nothing came, or not enough.
    Silent,
}

/// Connects to a port of a guest by the socket that its machine was given. Gives up after `limit`.
pub async fn connect(socket: &Path, port: u32, limit: Duration) -> Result<UnixStream> {
    let stream = timeout(limit, greeted(socket, port)).await.unwrap_or(Err(Failed::Silent));
    stream.map_err(|failed| failed.into_error(socket, port, limit))
}

async fn greeted(path: &Path, port: u32) -> std::result::Result<UnixStream, Failed> {
    let mut stream = socket::connect(path).await.map_err(Failed::Unreachable)?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).await.map_err(|_| Failed::HungUp)?;
    let mut line = Vec::with_capacity(MAX_LINE);
    // Byte by byte: what follows is not ours to take.
    while line.last() != Some(&b'\n') {
        if line.len() == MAX_LINE {
            return Err(Failed::Nonsense(line));
        }
        match stream.read_u8().await {
            Ok(byte) => line.push(byte),
            Err(_) if line.is_empty() => return Err(Failed::HungUp),
            Err(_) => return Err(Failed::Nonsense(line)),
        }
    }
    if is_greeting(&line) { Ok(stream) } else { Err(Failed::Nonsense(line)) }
}

/// Whether a line says that the stream stands. Which port the host's end has does not matter.
fn is_greeting(line: &[u8]) -> bool {
    let number = line.strip_prefix(b"OK ").and_then(|rest| rest.strip_suffix(b"\n")).unwrap_or_default();
    number.iter().all(u8::is_ascii_digit) && std::str::from_utf8(number).is_ok_and(|text| text.parse::<u32>().is_ok())
}

impl Failed {
    fn into_error(self, socket: &Path, port: u32, limit: Duration) -> Error {
        let (why, retry, remedy) = match &self {
            Self::Unreachable(error) if error.kind() == io::ErrorKind::PermissionDenied => (
                "this user may not open its socket".to_owned(),
                Retry::Never,
                "be the user that Firecracker runs as, or root",
            ),
            Self::Unreachable(error) => (
                format!("its socket cannot be reached ({error})"),
                Retry::MayHelp,
                "the machine was not started, or has ended: Firecracker's log says why",
            ),
            Self::HungUp => (
                "nobody inside listens, or the machine has ended".to_owned(),
                Retry::MayHelp,
                "wait until the guest has started; its console says how far it is",
            ),
            Self::Nonsense(line) => (
                format!("the answer is no greeting ({})", shown(&String::from_utf8_lossy(line))),
                Retry::Never,
                "is this the socket of a vsock of Firecracker's?",
            ),
            Self::Silent => (
                format!("no answer within {} s", limit.as_secs_f64()),
                Retry::MayHelp,
                "the machine hangs, or its host is overloaded: its console says how far it is",
            ),
        };
        Error::new(ErrorKind::Unavailable, "create", format!("cannot connect to port {port} of the machine: {why}"))
            .with_retry(retry)
            .with_remedy(remedy)
            .with_context("socket", socket.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ok_and_a_number_is_a_greeting() {
        for good in ["OK 0\n", "OK 1073741824\n", "OK 4294967295\n"] {
            assert!(is_greeting(good.as_bytes()), "{good:?}");
            assert!(good.len() <= MAX_LINE);
        }
        for bad in
            ["", "\n", "OK\n", "OK \n", "OK 1", "OK x\n", "OK +1\n", "OK -1\n", "OK 4294967296\n", "ok 1\n", " OK 1\n"]
        {
            assert!(!is_greeting(bad.as_bytes()), "{bad:?}");
        }
    }
}
