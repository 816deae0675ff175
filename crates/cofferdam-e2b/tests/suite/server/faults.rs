//! Faults of the server, each of which happens to one request; and the requests that the server has seen.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State as Axum};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;

use super::State;
use super::reply::refused;

/// A fault.
#[derive(Debug, Clone)]
pub enum Fault {
    Status(u16, &'static str),
    Limited(&'static str),
    /// The answer is this text.
    Says(&'static [u8]),
    /// The answer has this many bytes.
    Oversized(usize),
    /// The answer ends without its end.
    Cut,
    /// The request is handled, and its answer is lost.
    Lost,
    /// The request is handled, and its answer is this text instead.
    Replaced(&'static [u8]),
    /// The request is handled later.
    Slow(Duration),
}

/// A request that the server has seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub path: String,
    pub has_key: bool,
    pub has_token: bool,
}

#[derive(Default)]
pub struct Faults {
    waiting: Mutex<Vec<(&'static str, Fault)>>,
    seen: Mutex<Vec<Seen>>,
}

impl Faults {
    /// Adds a fault for the next request whose path has this part.
    pub fn add(&self, part: &'static str, fault: Fault) {
        self.waiting.lock().push((part, fault));
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    fn take(&self, path: &str) -> Option<Fault> {
        let mut waiting = self.waiting.lock();
        let index = waiting.iter().position(|(part, _)| path.contains(part))?;
        Some(waiting.remove(index).1)
    }
}

/// Lets the fault of a request happen.
pub async fn inject(Axum(state): Axum<Arc<State>>, request: Request, next: Next) -> Response {
    let path = format!("{} {}", request.method(), request.uri().path());
    let (has_key, has_token) = {
        let has = |name| request.headers().contains_key(name);
        (has("x-api-key"), has("x-access-token"))
    };
    state.faults.seen.lock().push(Seen { path: path.clone(), has_key, has_token });
    let fault = state.faults.take(&path);
    let ok = |body: Body| (StatusCode::OK, body).into_response();
    let cut = || {
        let pieces = [Ok(Bytes::from_static(b"{")), Err(std::io::Error::other("cut"))];
        ok(Body::from_stream(futures_util::stream::iter(pieces)))
    };
    match fault {
        None => next.run(request).await,
        Some(Fault::Status(status, message)) => refused(status, message),
        Some(Fault::Limited(after)) => {
            let mut response = refused(429, "too many requests");
            response.headers_mut().insert("retry-after", after.parse().unwrap());
            response
        }
        Some(Fault::Says(text)) => ok(Body::from(text)),
        Some(Fault::Oversized(bytes)) => ok(Body::from(vec![b' '; bytes])),
        Some(Fault::Cut) => cut(),
        Some(Fault::Lost) => {
            drop(next.run(request).await);
            cut()
        }
        Some(Fault::Replaced(text)) => {
            drop(next.run(request).await);
            ok(Body::from(text))
        }
        Some(Fault::Slow(time)) => {
            tokio::time::sleep(time).await;
            next.run(request).await
        }
    }
}
