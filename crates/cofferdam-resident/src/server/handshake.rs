//! A connection, from the handshake to its request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use cofferdam_contract::{ErrorData, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::conversation;
use super::service::Service;
use crate::directories::{self, Receiver};
use crate::frame::{Frames, encode};
use crate::message::{Accepted, ClientHello, MAX_REQUEST, PROTOCOL, RunRequest, ToClient, ToServer};
use crate::peer::{Caller, Peer};

/// The time for the handshake and for the request. Clients send both at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The server's ends of a connection.
pub struct Ends {
    pub frames: Frames<Receiver>,
    pub writer: OwnedWriteHalf,
}

impl Ends {
    pub async fn send(&mut self, message: &ToClient) -> io::Result<()> {
        self.writer.write_all(&encode(message)?).await
    }
}

/// Serves one connection. `room` is its permit to run something.
pub async fn receive(stream: UnixStream, peer: Peer, service: Arc<Service>, room: Option<OwnedSemaphorePermit>) {
    let (reader, writer) = stream.into_split();
    let mut ends = Ends { frames: Frames::new(Receiver::new(reader)), writer };
    // A client that disconnects, is too slow or sends an invalid message is dropped without an answer.
    let Ok(Ok((same_build, first))) = timeout(REQUEST_TIMEOUT, greet(&mut ends, &service, room.is_some())).await else {
        return;
    };
    match first {
        ToServer::Status => {
            let status = serde_json::to_string(&service.status()).unwrap_or_default();
            let _ = timeout(REQUEST_TIMEOUT, ends.send(&ToClient::Status(status))).await;
        }
        ToServer::Stop => {
            service.stop();
            let _ = timeout(REQUEST_TIMEOUT, ends.send(&ToClient::Stopping)).await;
        }
        ToServer::RunRequest { part, last } if same_build && room.is_some() => {
            let Ok(Ok(request)) = timeout(REQUEST_TIMEOUT, gather(&mut ends, BytesMut::from(&part[..]), last)).await
            else {
                return;
            };
            // The run has this process's view and limits.
            match peer.confined_alike(Caller::Peer) {
                Ok(()) => run(ends, &service, &request).await,
                Err(error) => {
                    let _ = timeout(REQUEST_TIMEOUT, ends.send(&ToClient::Failed(ErrorData::from(&error)))).await;
                }
            }
        }
        _ => {}
    }
    drop(room);
}

/// Performs the handshake. Returns whether the builds are equal, and the first message.
async fn greet(ends: &mut Ends, service: &Service, room: bool) -> io::Result<(bool, ToServer)> {
    let hello = service.hello(room);
    ends.writer.write_all(&encode(&hello)?).await?;
    let theirs: ClientHello = ends.frames.next().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if theirs.protocol != PROTOCOL {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let first = ends.frames.next().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((theirs.build == hello.build, first))
}

/// Reads the remaining parts of a request.
async fn gather(ends: &mut Ends, mut whole: BytesMut, mut last: bool) -> io::Result<BytesMut> {
    while !last {
        match ends.frames.next().await? {
            Some(ToServer::RunRequest { part, last: end }) if whole.len() + part.len() <= MAX_REQUEST => {
                whole.extend_from_slice(&part);
                last = end;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(whole)
}

async fn run(mut ends: Ends, service: &Arc<Service>, encoded: &[u8]) {
    let _running = service.running();
    // Held to the end: until then the inode numbers belong to nothing else.
    let directories = ends.frames.reader().take_descriptors();
    let begun = async {
        let (spec, request) = RunRequest::decode(encoded)?;
        directories::check(&spec, &directories)?;
        service.begin(spec, request).await
    };
    let begun = tokio::select! {
        begun = begun => begun,
        // The client disconnected or violated the protocol: the pending run is dropped.
        _ = ends.frames.body() => return,
    };
    let accepted = begun.and_then(|begun| {
        let accepted = Accepted::new(begun.sandbox.id().clone(), begun.handle.id().0, begun.sandbox.posture())?;
        Ok((accepted, begun))
    });
    match accepted {
        Ok((accepted, begun)) => conversation::serve(ends, begun, accepted).await,
        Err(error) => {
            let _ = timeout(REQUEST_TIMEOUT, ends.send(&ToClient::Failed(ErrorData::from(&error)))).await;
        }
    }
}

/// Converts the result of a close to a message.
pub fn closed(outcome: &Result<()>) -> ToClient {
    ToClient::Closed(outcome.as_ref().err().map(ErrorData::from))
}
