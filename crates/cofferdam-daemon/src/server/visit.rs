//! One connection, from the greeting to what it wants.

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
use crate::message::{Accepted, ClientHello, MAX_ORDER, Order, PROTOCOL, ToClient, ToServer};
use crate::peer::{Caller, Peer};

/// Time for the greeting and for the order. Clients say both at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// The daemon's ends of a connection.
pub struct Ends {
    pub frames: Frames<Receiver>,
    pub writer: OwnedWriteHalf,
}

impl Ends {
    pub async fn say(&mut self, message: &ToClient) -> io::Result<()> {
        self.writer.write_all(&encode(message)?).await
    }
}

/// Serves one connection; `room` is its right to run something.
pub async fn receive(stream: UnixStream, peer: Peer, service: Arc<Service>, room: Option<OwnedSemaphorePermit>) {
    let (reader, writer) = stream.into_split();
    let mut ends = Ends { frames: Frames::new(Receiver::new(reader)), writer };
    // Who breaks off, is too slow or talks nonsense is let go without a word.
    let Ok(Ok((same_build, first))) = timeout(PATIENCE, greet(&mut ends, &service, room.is_some())).await else {
        return;
    };
    match first {
        ToServer::Status => {
            let status = serde_json::to_string(&service.status()).unwrap_or_default();
            let _ = timeout(PATIENCE, ends.say(&ToClient::Status(status))).await;
        }
        ToServer::Stop => {
            service.stop();
            let _ = timeout(PATIENCE, ends.say(&ToClient::Stopping)).await;
        }
        ToServer::Order { part, last } if same_build && room.is_some() => {
            let Ok(Ok(order)) = timeout(PATIENCE, gather(&mut ends, BytesMut::from(&part[..]), last)).await else {
                return;
            };
            // What it asks for is done with our view and limits.
            match peer.confined_alike(Caller::Peer) {
                Ok(()) => run(ends, &service, &order).await,
                Err(error) => {
                    let _ = timeout(PATIENCE, ends.say(&ToClient::Failed(ErrorData::from(&error)))).await;
                }
            }
        }
        _ => {}
    }
    drop(room);
}

/// Exchanges greetings; gives whether the build is ours, and the first message.
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

/// Takes in the rest of an order.
async fn gather(ends: &mut Ends, mut whole: BytesMut, mut last: bool) -> io::Result<BytesMut> {
    while !last {
        match ends.frames.next().await? {
            Some(ToServer::Order { part, last: end }) if whole.len() + part.len() <= MAX_ORDER => {
                whole.extend_from_slice(&part);
                last = end;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(whole)
}

async fn run(mut ends: Ends, service: &Arc<Service>, order: &[u8]) {
    let _running = service.running();
    // Held to the end: until then their numbers are nothing else's.
    let directories = ends.frames.reader().take_descriptors();
    let begun = async {
        let (spec, request) = Order::decode(order)?;
        directories::check(&spec, &directories)?;
        service.begin(spec, request).await
    };
    let begun = tokio::select! {
        begun = begun => begun,
        // Gone, or speaking out of turn: what was begun is dropped.
        _ = ends.frames.body() => return,
    };
    let accepted = begun.and_then(|begun| {
        let accepted = Accepted::new(begun.sandbox.id().clone(), begun.handle.id().0, begun.sandbox.posture())?;
        Ok((accepted, begun))
    });
    match accepted {
        Ok((accepted, begun)) => conversation::hold(ends, begun, accepted).await,
        Err(error) => {
            let _ = timeout(PATIENCE, ends.say(&ToClient::Failed(ErrorData::from(&error)))).await;
        }
    }
}

/// How closing went, as data.
pub fn closed(outcome: &Result<()>) -> ToClient {
    ToClient::Closed(outcome.as_ref().err().map(ErrorData::from))
}
