//! The client's end of a tunnel to a port of a sandbox.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cofferdam_contract::{Connection, Error, ErrorKind, Result};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::Client;
use crate::rest::TUNNEL_END;

/// Bytes that are passed at once.
const PIECE: usize = 64 << 10;
/// Bytes between a local end and its tunnel.
const BUFFER: usize = 64 << 10;

/// A connection to a port of a sandbox.
pub struct Tunnel(WebSocketStream<Connection>);

impl Client {
    /// Connects to a port of a sandbox, whose name is encoded.
    ///
    /// # Errors
    /// - Those of [`Client::send`].
    /// - `Unavailable` if no program listens on the port.
    pub async fn tunnel(&self, sandbox: &str, port: u16) -> Result<Tunnel> {
        self.websocket(&format!("/v1/sandboxes/{sandbox}/tcp/{port}")).await.map(Tunnel)
    }
}

impl Tunnel {
    /// Returns a connection through the tunnel. If the tunnel is cut, reads fail after the bytes that arrived: an end is
    /// one that the sandbox sent.
    pub fn into_connection(self) -> Connection {
        let (local, mut theirs) = tokio::io::duplex(BUFFER);
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&is_cut);
        tokio::spawn(async move {
            if self.join(&mut theirs).await.is_err() {
                // Before the local end sees an end.
                cut.store(true, Ordering::Release);
            }
        });
        Box::new(TunnelEnd { local, is_cut })
    }

    /// Passes bytes in both directions, until both have ended.
    ///
    /// # Errors
    /// - `Unavailable` if one of the two connections breaks.
    pub async fn join(self, local: impl AsyncRead + AsyncWrite + Unpin) -> Result<()> {
        let (mut from, mut to) = tokio::io::split(local);
        let (mut sending, mut receiving) = self.0.split();
        // Neither direction waits for the other.
        let up = async {
            let mut piece = vec![0; PIECE];
            loop {
                let count = from.read(&mut piece).await.map_err(|error| cut().with_source(error))?;
                let message = match count {
                    0 => Message::Text(TUNNEL_END.into()),
                    _ => Message::Binary(Bytes::copy_from_slice(&piece[..count])),
                };
                sending.send(message).await.map_err(|error| cut().with_source(error))?;
                if count == 0 {
                    return Ok(());
                }
            }
        };
        let down = async {
            loop {
                match tokio::time::timeout(super::SILENCE, receiving.next()).await.unwrap_or(None) {
                    Some(Ok(Message::Binary(data))) => {
                        to.write_all(&data).await.map_err(|error| cut().with_source(error))?;
                    }
                    Some(Ok(Message::Text(text))) if text.as_str() == TUNNEL_END => {
                        return to.shutdown().await.map_err(|error| cut().with_source(error));
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    _ => return Err(cut()),
                }
            }
        };
        tokio::try_join!(up, down).map(drop)
    }
}

/// The local end of a tunnel.
struct TunnelEnd {
    local: DuplexStream,
    is_cut: Arc<AtomicBool>,
}

impl AsyncRead for TunnelEnd {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (before, has_room) = (buffer.filled().len(), buffer.remaining() > 0);
        let read = ready!(Pin::new(&mut self.local).poll_read(cx, buffer));
        if read.is_ok() && has_room && buffer.filled().len() == before && self.is_cut.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, cut())));
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for TunnelEnd {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.local).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.local).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.local).poll_shutdown(cx)
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::Unavailable, "forward", "the connection was cut")
}
