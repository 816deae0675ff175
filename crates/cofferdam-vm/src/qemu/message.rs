//! Parsing of QEMU's messages over QMP: pure. A guest that took over QEMU may send anything.

use serde::Deserialize;
use serde_json::Value;

/// Maximum length of a line.
pub(crate) const MAX_LINE: usize = 64 << 10;
/// Maximum length of a text in a message.
const MAX_TEXT: usize = 300;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The greeting.
    Greeting,
    /// The result of the command with this ID.
    Done(u64, Value),
    /// The error of the command with this ID.
    Failed(u64, String),
    /// The VM stops, for this reason.
    Shutdown(String),
    /// Another event.
    Other,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    id: Option<u64>,
    #[serde(rename = "return")]
    returned: Option<Value>,
    error: Option<Refusal>,
    event: Option<String>,
    data: Option<Value>,
}

#[derive(Deserialize)]
struct Refusal {
    desc: Option<String>,
}

impl Message {
    /// Parses a line; returns `None` if QEMU never sends such a line.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let line: Line = serde_json::from_slice(line).ok()?;
        match line {
            Line { greeting: Some(_), .. } => Some(Self::Greeting),
            Line { event: Some(event), data, .. } if event == "SHUTDOWN" => {
                let reason = data.as_ref().and_then(|data| data.get("reason")).and_then(Value::as_str);
                Some(Self::Shutdown(short(reason.unwrap_or_default())))
            }
            Line { event: Some(_), .. } => Some(Self::Other),
            Line { id: Some(id), returned: Some(value), .. } => Some(Self::Done(id, value)),
            Line { id: Some(id), error: Some(error), .. } => {
                Some(Self::Failed(id, short(error.desc.as_deref().unwrap_or_default())))
            }
            _ => None,
        }
    }
}

fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_of_qemu_are_understood() {
        for (line, message) in [
            (r#"{"QMP": {"version": {}, "capabilities": []}}"#, Message::Greeting),
            (r#"{"return": {"status": "paused"}, "id": 7}"#, Message::Done(7, json!({"status": "paused"}))),
            (r#"{"id": 8, "error": {"class": "X", "desc": "no\n"}}"#, Message::Failed(8, "no".to_owned())),
            (
                r#"{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}"#,
                Message::Shutdown("guest-reset".to_owned()),
            ),
            (r#"{"event": "STOP"}"#, Message::Other),
        ] {
            assert_eq!(Message::parse(line.as_bytes()), Some(message), "{line}");
        }
        for odd in ["", "[]", "{}", r#"{"return": {}}"#, r#"{"id": -1, "return": {}}"#, r#"{"id": 1}"#] {
            assert_eq!(Message::parse(odd.as_bytes()), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_understood_or_refused(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::parse(&line);
        }
    }
}
