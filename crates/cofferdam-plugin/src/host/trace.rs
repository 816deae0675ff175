//! Spans of calls and requests, in the JSON form of the OpenTelemetry protocol.
//!
//! Each line is an `ExportTraceServiceRequest` (opentelemetry-proto 1.x), which the OpenTelemetry Collector reads with its
//! receiver `otlpjsonfile`. A span continues the trace of the caller's `traceparent` (W3C Trace Context, version 00).

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::log::Sink;
use crate::wire::CallError;

/// The kinds of spans: the side that serves a request, and the side that makes one.
const SERVER: u8 = 2;
const CLIENT: u8 = 3;
/// The code of a status that is an error.
const ERROR: u8 = 2;

/// The trace and span that a span belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parent {
    trace: String,
    span: String,
    flags: String,
}

impl Parent {
    /// Reads a `traceparent`. Returns `None` if it is malformed.
    fn read(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('-').collect();
        let [version, trace, span, flags] = parts[..] else { return None };
        let is_hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
        let is_valid = version == "00" && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
        (is_valid && !is_zero(trace) && !is_zero(span)).then(|| Self {
            trace: trace.to_owned(),
            span: span.to_owned(),
            flags: flags.to_owned(),
        })
    }
}

/// A span that has begun.
#[derive(Debug)]
pub struct Span {
    parent: Option<Parent>,
    trace: String,
    id: String,
    flags: String,
    kind: u8,
    begun: SystemTime,
}

impl Span {
    /// Begins the span of a call of a plugin.
    pub fn call(traceparent: Option<&str>) -> Self {
        Self::begin(traceparent, CLIENT)
    }

    /// Begins the span of a request of a plugin, which the host serves.
    pub fn request(traceparent: Option<&str>) -> Self {
        Self::begin(traceparent, SERVER)
    }

    fn begin(traceparent: Option<&str>, kind: u8) -> Self {
        let parent = traceparent.and_then(Parent::read);
        let trace = parent.as_ref().map_or_else(|| random(16), |parent| parent.trace.clone());
        let flags = parent.as_ref().map_or_else(|| "01".to_owned(), |parent| parent.flags.clone());
        Self { parent, trace, id: random(8), flags, kind, begun: SystemTime::now() }
    }

    /// Returns the `traceparent` of what happens within the span.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{}", self.trace, self.id, self.flags)
    }

    /// Ends the span and writes it.
    pub fn end(self, sink: &Sink, name: &str, attributes: &[(&str, &str)], error: Option<&CallError>) {
        let attribute = |(key, value): &(&str, &str)| json!({"key": key, "value": {"stringValue": value}});
        let status = error.map_or_else(|| json!({}), |error| json!({"code": ERROR, "message": error.message}));
        let span = json!({
            "traceId": self.trace,
            "spanId": self.id,
            "parentSpanId": self.parent.map(|parent| parent.span).unwrap_or_default(),
            "name": name,
            "kind": self.kind,
            "startTimeUnixNano": nanoseconds(self.begun),
            "endTimeUnixNano": nanoseconds(SystemTime::now()),
            "attributes": attributes.iter().map(attribute).collect::<Vec<_>>(),
            "status": status,
        });
        let service = json!({"attributes": [attribute(&("service.name", "cofferdam"))]});
        let scope = json!({"scope": {"name": "cofferdam.plugins"}, "spans": [span]});
        sink(&json!({"resourceSpans": [{"resource": service, "scopeSpans": [scope]}]}));
    }
}

/// Returns a time as text, because JSON has no integers of 64 bits.
fn nanoseconds(time: SystemTime) -> Value {
    json!(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string())
}

/// Returns random bytes in hexadecimal digits.
fn random(count: usize) -> String {
    // Without randomness, spans cannot be distinguished, and nothing else fails.
    cofferdam_util::hex::random(count).unwrap_or_else(|_| "00".repeat(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_continues_the_trace_of_its_parent() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let span = Span::call(Some(parent));
        let own = span.traceparent();
        assert!(own.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && own.ends_with("-00") && own != parent);
        for bad in
            ["", "x", "00-0-0-0", "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", &parent.to_uppercase()]
        {
            assert_eq!(Parent::read(bad), None, "{bad}");
        }
        assert_eq!(Parent::read(&format!("00-{}-b7ad6b7169203331-00", "0".repeat(32))), None);
    }
}
