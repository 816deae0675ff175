//! Connections to servers in the sandbox of a run.
//!
//! The client sends one end of a new pair of sockets with its request. The server answers on that end, and then passes
//! the bytes of the connection there. So connections and the messages of the run never wait for each other.

use std::os::fd::OwnedFd;
use std::time::Duration;

use cofferdam_contract::{Connection, Error, ErrorData, ErrorKind, Result};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::error;
use crate::frame::decode;

/// The time in which the server must answer: longer than that in which its backend must.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
/// The maximum size of an answer in bytes.
const MAX_ANSWER: u32 = 64 * 1024;
/// The maximum number of requests that wait to be sent.
pub const REQUESTS: usize = 16;

/// A request to connect, and the server's end of the connection.
#[derive(Debug)]
pub struct ConnectRequest {
    pub port: u16,
    pub socket: OwnedFd,
}

/// Requests a connection, and waits until the server in the sandbox has accepted it.
pub async fn connect(requests: &mpsc::Sender<ConnectRequest>, port: u16) -> Result<Connection> {
    let failed = |error| Error::new(ErrorKind::Io, "connect", "cannot create a socket").with_source(error);
    let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
    let socket = theirs.into_std().map_err(failed)?.into();
    requests.send(ConnectRequest { port, socket }).await.map_err(|_| Error::closed("connect"))?;
    let answered = timeout(ANSWER_TIMEOUT, answer(&mut ours)).await;
    match answered.map_err(|_| error::lost("connect"))? {
        Ok(Ok(())) => Ok(Box::new(ours)),
        Ok(Err(refused)) => Err(refused.into()),
        // The run has ended meanwhile.
        Err(_) => Err(Error::closed("connect")),
    }
}

/// Reads the answer, and no byte of the connection.
async fn answer(stream: &mut UnixStream) -> std::io::Result<std::result::Result<(), ErrorData>> {
    let length = stream.read_u32_le().await?;
    if length > MAX_ANSWER {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await?;
    decode(&body)
}
