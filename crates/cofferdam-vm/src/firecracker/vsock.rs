//! Streams into a VM: Firecracker offers the guest's vsock as one Unix socket on the host.
//!
//! ```text
//! connect --"CONNECT port\n"--> Firecracker --> guest --"OK host-port\n"--> stream
//! ```
//!
//! Firecracker closes the connection if no process inside listens. The bytes after the line belong to the guest:
//! exactly one line is read.

use std::io;
use std::path::Path;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, Retry};
use cofferdam_util::text::excerpt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::socket;

/// Length of `OK `, the longest number of 32 bits, and the end of the line.
const MAX_LINE: usize = 14;

/// The reason for a missing stream.
#[derive(Debug)]
enum Failed {
    /// The socket cannot be connected to.
    Unreachable(io::Error),
    /// No process inside listens at the port, or the VM ended.
    HungUp,
    /// The answer is not `OK port`.
    Malformed(Vec<u8>),
    /// No answer, or an incomplete one.
    Silent,
}

/// Connects to a port of a guest through the socket of its VM's vsock. Fails after `limit`.
pub async fn connect(socket: &Path, port: u32, limit: Duration) -> Result<UnixStream> {
    let stream = timeout(limit, handshake(socket, port)).await.unwrap_or(Err(Failed::Silent));
    stream.map_err(|failed| failed.into_error(socket, port, limit))
}

async fn handshake(path: &Path, port: u32) -> std::result::Result<UnixStream, Failed> {
    let mut stream = socket::connect(path).await.map_err(Failed::Unreachable)?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).await.map_err(|_| Failed::HungUp)?;
    let mut line = Vec::with_capacity(MAX_LINE);
    // Byte by byte: the following bytes belong to the caller.
    while line.last() != Some(&b'\n') {
        if line.len() == MAX_LINE {
            return Err(Failed::Malformed(line));
        }
        match stream.read_u8().await {
            Ok(byte) => line.push(byte),
            Err(_) if line.is_empty() => return Err(Failed::HungUp),
            Err(_) => return Err(Failed::Malformed(line)),
        }
    }
    if is_greeting(&line) { Ok(stream) } else { Err(Failed::Malformed(line)) }
}

/// Returns true if a line confirms the stream. The host's port number in it does not matter.
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
                "run as the user that Firecracker runs as, or as root",
            ),
            Self::Unreachable(error) => (
                format!("its socket cannot be reached ({error})"),
                Retry::MayHelp,
                "the VM was not started, or has ended: read Firecracker's log",
            ),
            Self::HungUp => (
                "no process inside listens, or the VM has ended".to_owned(),
                Retry::MayHelp,
                "wait until the guest has started; its console shows the progress",
            ),
            Self::Malformed(line) => (
                format!("the answer is malformed ({})", excerpt(&String::from_utf8_lossy(line))),
                Retry::Never,
                "check that this is the socket of a vsock of Firecracker",
            ),
            Self::Silent => (
                format!("no answer within {} s", limit.as_secs_f64()),
                Retry::MayHelp,
                "the VM hangs, or its host is overloaded: its console shows the progress",
            ),
        };
        Error::new(ErrorKind::Unavailable, "create", format!("cannot connect to port {port} of the VM: {why}"))
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
