//! Messages of JSON-RPC 2.0 from hostile bytes. Pure: no input or output.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{CallError, Violation};

/// The maximum nesting of a body.
const MAX_DEPTH: usize = 64;
/// The maximum number of values of a body.
const MAX_VALUES: usize = 500_000;
/// The maximum number of messages of a batch.
const MAX_BATCH: usize = 100;
/// The maximum length of an identifier, a method or a correlation identifier.
const MAX_NAME: usize = 128;
/// The largest integer that every implementation of JSON represents.
const MAX_INTEGER: u64 = (1 << 53) - 1;

/// The identifier of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Id {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

impl Id {
    fn of(value: &Value) -> Result<Self, Violation> {
        match value {
            Value::Number(number) if number.as_u64().is_some_and(|number| number <= MAX_INTEGER) => {
                Ok(Self::Number(number.as_u64().unwrap_or_default()))
            }
            Value::String(text) if text.len() <= MAX_NAME => Ok(Self::Text(text.clone())),
            _ => Err(Violation::BadMessage("the id is neither an integer from 0 to 2^53-1 nor a text of 128 bytes")),
        }
    }

    /// Returns the identifier as JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Number(number) => json!(number),
            Self::Text(text) => json!(text),
        }
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// A request.
    Request { id: Id, method: String, params: Value, correlation: Option<String> },
    /// A notification.
    Notification { method: String, params: Value, correlation: Option<String> },
    /// A response.
    Response { id: Id, outcome: Result<Value, CallError> },
}

/// The messages of a body.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// One message.
    Single(Message),
    /// A batch.
    Batch(Vec<Message>),
}

/// Parses a body.
///
/// # Errors
/// The rule that the body breaks.
pub fn parse(body: &[u8]) -> Result<Body, Violation> {
    check_shape(body)?;
    let value: Value = serde_json::from_slice(body).map_err(|_| Violation::NotJson)?;
    match value {
        Value::Array(items) if items.is_empty() => Err(Violation::BadMessage("the batch is empty")),
        Value::Array(items) if items.len() > MAX_BATCH => {
            Err(Violation::BadMessage("the batch has more than 100 messages"))
        }
        Value::Array(items) => items.into_iter().map(message).collect::<Result<_, _>>().map(Body::Batch),
        value => message(value).map(Body::Single),
    }
}

/// Refuses deep nesting and too many values before a parser sees them. A value takes far more memory than its text.
fn check_shape(body: &[u8]) -> Result<(), Violation> {
    let (mut depth, mut values, mut in_text, mut escaped) = (0usize, 0usize, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                values += 1;
                if depth > MAX_DEPTH {
                    return Err(Violation::TooDeep);
                }
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            b',' if !in_text => values += 1,
            _ => {}
        }
    }
    if values > MAX_VALUES { Err(Violation::TooComplex) } else { Ok(()) }
}

fn message(value: Value) -> Result<Message, Violation> {
    let Value::Object(mut members) = value else { return Err(Violation::BadMessage("a message is not an object")) };
    if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(Violation::BadMessage("jsonrpc is not \"2.0\""));
    }
    let correlation = text(&mut members, "correlationId")?;
    let id = members.get("id").filter(|id| !id.is_null()).map(Id::of).transpose()?;
    let Some(method) = text(&mut members, "method")? else { return response(id, &mut members) };
    if members.contains_key("result") || members.contains_key("error") {
        return Err(Violation::BadMessage("a request has a result or an error"));
    }
    let params = members.remove("params").unwrap_or_default();
    if !matches!(params, Value::Object(_) | Value::Array(_) | Value::Null) {
        return Err(Violation::BadMessage("params is neither an object nor an array"));
    }
    Ok(match id {
        Some(id) => Message::Request { id, method, params, correlation },
        None if members.contains_key("id") => return Err(Violation::BadMessage("the id of a request is null")),
        None => Message::Notification { method, params, correlation },
    })
}

fn response(id: Option<Id>, members: &mut Map<String, Value>) -> Result<Message, Violation> {
    let id = id.ok_or(Violation::BadMessage("a message has neither a method nor an id"))?;
    let outcome = match (members.remove("result"), members.remove("error")) {
        (Some(result), None | Some(Value::Null)) => Ok(result),
        (None | Some(Value::Null), Some(error)) => {
            Err(CallError::from_json(&error).ok_or(Violation::BadMessage("the error of a response is malformed"))?)
        }
        _ => return Err(Violation::BadMessage("a response has not exactly one of result and error")),
    };
    Ok(Message::Response { id, outcome })
}

/// Takes a short text.
fn text(members: &mut Map<String, Value>, name: &'static str) -> Result<Option<String>, Violation> {
    match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() && text.len() <= MAX_NAME => Ok(Some(text)),
        Some(_) => Err(Violation::BadMessage("method or correlationId is not a text of 1 to 128 bytes")),
    }
}

/// A request to the plugin, or a notification without `id`.
#[derive(Debug, Serialize)]
pub struct Outgoing<'a> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    #[serde(skip_serializing_if = "Value::is_null")]
    params: &'a Value,
    #[serde(rename = "correlationId")]
    correlation: &'a str,
}

/// Returns a request, or a notification without `id`.
pub fn request<'a>(id: Option<u64>, method: &'a str, params: &'a Value, correlation: &'a str) -> Outgoing<'a> {
    Outgoing { jsonrpc: "2.0", id, method, params, correlation }
}

/// Returns the response to a request.
pub fn answer(id: &Id, outcome: Result<Value, CallError>, correlation: &str) -> Value {
    let mut message = json!({"jsonrpc": "2.0", "id": id.to_json(), "correlationId": correlation});
    match outcome {
        Ok(result) => message["result"] = result,
        Err(error) => message["error"] = error.to_json(),
    }
    message
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::ErrorKind;

    fn single(text: &str) -> Result<Message, Violation> {
        match parse(text.as_bytes())? {
            Body::Single(message) => Ok(message),
            Body::Batch(_) => panic!("a batch"),
        }
    }

    #[test]
    fn message_kinds_are_distinguished() {
        let request = single(r#"{"jsonrpc":"2.0","id":"a","method":"m","params":[1],"correlationId":"c"}"#).unwrap();
        let Message::Request { id, correlation, .. } = request else { panic!("{request:?}") };
        assert_eq!((id, correlation.as_deref()), (Id::Text("a".into()), Some("c")));
        assert!(matches!(single(r#"{"jsonrpc":"2.0","method":"m"}"#), Ok(Message::Notification { .. })));
        let response = single(r#"{"jsonrpc":"2.0","id":3,"result":null}"#).unwrap();
        assert_eq!(response, Message::Response { id: Id::Number(3), outcome: Ok(Value::Null) });
        let response = single(r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32800,"message":"x"}}"#).unwrap();
        let Message::Response { outcome: Err(error), .. } = response else { panic!("{response:?}") };
        assert_eq!(error.kind, ErrorKind::Cancelled);
    }

    /// Promise (Plugins): A message that is no JSON-RPC 2.0 is refused with the rule that it breaks.
    #[test]
    fn hostile_messages_are_refused() {
        for text in ["", "{", "nul", "{} {}", "\u{feff}{}"] {
            assert_eq!(single(text), Err(Violation::NotJson), "{text}");
        }
        assert_eq!(parse(&[0xff, 0xfe]), Err(Violation::NotJson));
        let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"m"}}"#, "x".repeat(129));
        let many = format!("[{}]", vec![r#"{"jsonrpc":"2.0","method":"m"}"#; 101].join(","));
        for text in [
            "[]",
            "1",
            "{}",
            r#"{"jsonrpc":"1.0","method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":-1,"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":9007199254740992,"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":"x"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"m","result":1}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","result":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":7}"#,
            &long,
            &many,
        ] {
            assert!(matches!(parse(text.as_bytes()), Err(Violation::BadMessage(_))), "{text}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(parse(deep.as_bytes()), Err(Violation::TooDeep));
        let many = format!("[{}]", vec!["{}"; 400_000].join(","));
        assert_eq!(parse(many.as_bytes()), Err(Violation::TooComplex));
        let text = format!(r#"{{"jsonrpc":"2.0","method":"m","params":["\"{}"]}}"#, "[".repeat(1000));
        assert!(single(&text).is_ok(), "brackets in a text have no depth");
    }

    proptest! {
        #[test]
        fn no_bytes_crash_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }
    }
}
