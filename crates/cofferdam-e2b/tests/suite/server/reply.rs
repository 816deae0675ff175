//! Answers and refusals, in the forms of E2B's API and of the Connect protocol.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Guest, KEY, State};

/// A refusal of the API.
pub fn refused(status: u16, message: &str) -> Response {
    (StatusCode::from_u16(status).unwrap(), Json(json!({ "code": status, "message": message }))).into_response()
}

/// A refusal of the agent.
pub struct Refused(pub &'static str, pub String);

impl Refused {
    pub fn json(&self) -> Value {
        json!({ "code": self.0, "message": self.1 })
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match self.0 {
            "invalid_argument" => 400,
            "unauthenticated" => 401,
            "not_found" => 404,
            "already_exists" => 409,
            "unimplemented" => 501,
            _ => 500,
        };
        (StatusCode::from_u16(status).unwrap(), Json(self.json())).into_response()
    }
}

/// Checks the key of a request.
pub fn keyed(headers: &HeaderMap) -> Result<(), Response> {
    let key = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    match key {
        Some(KEY) => Ok(()),
        // It repeats the key, as a careless server may.
        other => Err(refused(401, &format!("invalid key {}", other.unwrap_or("none")))),
    }
}

/// Finds the sandbox of a request to the agent, and the user.
pub fn guest(state: &State, headers: &HeaderMap) -> Result<(Arc<Guest>, String), Response> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let found = state.guest(text("e2b-sandbox-id"));
    let is_there = |guest: &Arc<Guest>| !guest.paused.load(std::sync::atomic::Ordering::Acquire);
    let Some(guest) = found.filter(is_there) else { return Err(refused(502, "The sandbox was not found")) };
    if text("x-access-token") != guest.token {
        return Err(Refused("unauthenticated", "wrong token".to_owned()).into_response());
    }
    let basic = text("authorization").strip_prefix("Basic ").and_then(|basic| STANDARD.decode(basic).ok());
    let user = basic.map_or_else(|| "user".to_owned(), |basic| String::from_utf8_lossy(&basic).replace(':', ""));
    match user.as_str() {
        "user" | "root" => Ok((guest, user)),
        _ => Err(Refused("unauthenticated", format!("invalid username: '{user}'")).into_response()),
    }
}

/// Returns one frame of a stream.
pub fn frame(flags: u8, message: &Value) -> Bytes {
    let text = message.to_string();
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    [&[flags], &length[..], text.as_bytes()].concat().into()
}

/// Reads the one message of a request with frames.
pub fn framed(body: &[u8]) -> Option<Value> {
    let length = u32::from_be_bytes(body.get(1..5)?.try_into().ok()?) as usize;
    serde_json::from_slice(body.get(5..5 + length)?).ok()
}

/// Answers with a stream.
pub fn stream(receiver: tokio::sync::mpsc::Receiver<std::io::Result<Bytes>>) -> Response {
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|frame| (frame, receiver))
    });
    Response::builder().header("content-type", "application/connect+json").body(Body::from_stream(frames)).unwrap()
}

/// Answers a streaming call with an error only.
pub fn stream_error(refused: &Refused) -> Response {
    let last = frame(2, &json!({ "error": refused.json() }));
    Response::builder().header("content-type", "application/connect+json").body(Body::from(last)).unwrap()
}
