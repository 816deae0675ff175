//! The reader of what a plugin writes, for fuzz targets.

use serde_json::Value;

use super::message::{Body, Message, answer, parse, request};
use super::{Decoder, Violation};

/// The correlation identifier of messages without one.
const CORRELATION: &str = "fuzz";

/// A decoder of frames and messages.
#[derive(Debug)]
pub struct Wire(Decoder);

impl Wire {
    /// Creates a decoder of bodies of at most `max_body` bytes.
    pub fn new(max_body: usize) -> Self {
        Self(Decoder::new(max_body))
    }

    /// Adds bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.0.feed(bytes);
    }

    /// Returns the number of bytes that wait for the rest of their frame.
    pub fn buffered(&self) -> usize {
        self.0.buffered()
    }

    /// Returns the messages of the next body, encoded again.
    ///
    /// # Errors
    /// The rule that the bytes break.
    pub fn next_messages(&mut self) -> Result<Option<Vec<Value>>, Violation> {
        let Some(body) = self.0.next_body()? else { return Ok(None) };
        let messages = match parse(&body)? {
            Body::Single(message) => vec![message],
            Body::Batch(messages) => messages,
        };
        Ok(Some(messages.into_iter().map(encoded).collect()))
    }
}

fn encoded(message: Message) -> Value {
    let sent = |method: String, params: Value, correlation: Option<String>| {
        let message = request(None, &method, &params, correlation.as_deref().unwrap_or(CORRELATION));
        serde_json::to_value(message).unwrap_or_default()
    };
    match message {
        Message::Notification { method, params, correlation } => sent(method, params, correlation),
        Message::Response { id, outcome } => answer(&id, outcome, CORRELATION),
        Message::Request { id, method, params, correlation } => {
            let mut message = sent(method, params, correlation);
            message["id"] = id.to_json();
            message
        }
    }
}
