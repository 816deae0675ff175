//! The rest of a request's body after an early refusal. A client that still sends its body would see a broken connection in
//! place of the answer, so a bounded rest is read and discarded before the answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header::EXPECT;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;

/// The most bytes that are discarded.
const MAX_DISCARDED: u64 = 64 << 20;
/// The most time that is spent on it.
const MAX_TIME: Duration = Duration::from_secs(5);

/// The body of a request.
struct Slot {
    body: Body,
    /// True if the client sends the body only when it is read.
    is_awaited: bool,
}

type Shared = Arc<Mutex<Slot>>;

/// The body that a handler reads.
struct HandlerBody(Shared);

/// The rest of the body.
pub struct Rest(Shared);

/// Keeps a hold of the body of a request.
pub fn hold(request: Request) -> (Request, Rest) {
    let (parts, body) = request.into_parts();
    let is_awaited = parts.headers.contains_key(EXPECT);
    let shared = Arc::new(Mutex::new(Slot { body, is_awaited }));
    (Request::from_parts(parts, Body::new(HandlerBody(Arc::clone(&shared)))), Rest(shared))
}

impl Rest {
    /// Reads and discards what the handler left, within the bounds. A body that is still read, such as for a server in a
    /// sandbox, is left to its reader.
    pub async fn discard(self) {
        let Some(Slot { mut body, is_awaited: false }) = Arc::into_inner(self.0).map(Mutex::into_inner) else { return };
        let rest = async {
            let mut left = MAX_DISCARDED;
            while let Some(Ok(frame)) = body.frame().await {
                let size = frame.data_ref().map_or(0, |data| data.len() as u64);
                match left.checked_sub(size) {
                    Some(less) => left = less,
                    None => return,
                }
            }
        };
        let _ = tokio::time::timeout(MAX_TIME, rest).await;
    }
}

impl HttpBody for HandlerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut slot = self.0.lock();
        slot.is_awaited = false;
        Pin::new(&mut slot.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};

    use super::*;

    /// Returns a request whose body counts its chunks of 1 MiB.
    fn request(chunks: usize) -> (Request, Arc<Mutex<usize>>) {
        let read = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&read);
        let chunks = stream::iter(0..chunks).map(move |_| {
            *counted.lock() += 1;
            Ok::<_, std::io::Error>(Bytes::from(vec![0; 1 << 20]))
        });
        (Request::new(Body::from_stream(chunks)), read)
    }

    #[tokio::test]
    async fn a_bounded_rest_is_read() {
        let (request, read) = request(20);
        let (request, rest) = hold(request);
        let mut body = request.into_body();
        assert!(body.frame().await.is_some());
        drop(body);
        rest.discard().await;
        assert_eq!(*read.lock(), 20);

        let (request, read) = self::request(1000);
        let (request, rest) = hold(request);
        drop(request);
        rest.discard().await;
        assert_eq!(*read.lock(), 65);
    }

    #[tokio::test]
    async fn a_body_that_is_read_or_awaited_is_left() {
        let (request, read) = request(20);
        let (request, rest) = hold(request);
        let mut body = request.into_body();
        rest.discard().await;
        assert_eq!(*read.lock(), 0);
        for _ in 0..20 {
            assert!(body.frame().await.is_some_and(|frame| frame.is_ok()));
        }
        assert!(body.frame().await.is_none());

        let (mut request, read) = self::request(20);
        request.headers_mut().insert(EXPECT, axum::http::HeaderValue::from_static("100-continue"));
        let (request, rest) = hold(request);
        drop(request);
        rest.discard().await;
        assert_eq!(*read.lock(), 0, "the client waits to be asked for its body");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_send_is_not_waited_for() {
        let request = Request::new(Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>()));
        let (request, rest) = hold(request);
        drop(request);
        rest.discard().await;
    }
}
