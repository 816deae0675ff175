//! The position of a request in a distributed trace: the header `traceparent` of W3C Trace Context. Its parsing is pure.

use axum::http::HeaderMap;
use cofferdam_contract::Result;
use cofferdam_util::hex;
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use serde::{Deserialize, Serialize};

use crate::ids::random;

/// The header, and the variable of guests.
pub const HEADER: &str = "traceparent";
pub const VARIABLE: &str = "TRACEPARENT";
/// The bytes of a value of version 00. Later versions may add to it.
const LENGTH: usize = 55;

/// The span of a request in the trace of its client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceContext {
    /// The trace.
    pub trace: String,
    /// The client's span. Empty if the trace begins here.
    pub parent: String,
    /// The span of the request.
    pub span: String,
    flags: String,
}

impl TraceContext {
    /// Returns the context of a request. `None` if its client sent none, several, or a malformed one.
    ///
    /// # Errors
    /// - `Unavailable` if the kernel has no random bytes.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>> {
        let mut values = headers.get_all(HEADER).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return Ok(None) };
        let Some((trace, parent, flags)) = value.to_str().ok().and_then(parse) else { return Ok(None) };
        let span = hex::encode(random::<8>()?);
        Ok(Some(Self { trace: trace.to_owned(), parent: parent.to_owned(), span, flags: flags.to_owned() }))
    }

    /// Returns the context of a request whose span has these ids.
    pub fn with_span(client: Option<Self>, ids: &SpanContext) -> Self {
        Self {
            trace: ids.trace_id().to_string(),
            parent: client.map(|client| client.parent).unwrap_or_default(),
            span: ids.span_id().to_string(),
            flags: format!("{:02x}", ids.trace_flags().to_u8()),
        }
    }

    /// Returns the context of spans below the client's.
    pub fn of_client(&self) -> Context {
        self.below(&self.parent)
    }

    /// Returns the context of spans below that of the request.
    pub fn of_request(&self) -> Context {
        self.below(&self.span)
    }

    fn below(&self, span: &str) -> Context {
        // The ids were checked when they were read. One that is invalid nevertheless is no parent.
        let trace = TraceId::from_hex(&self.trace).unwrap_or(TraceId::INVALID);
        let span = SpanId::from_hex(span).unwrap_or(SpanId::INVALID);
        let flags = TraceFlags::new(u8::from_str_radix(&self.flags, 16).unwrap_or(0));
        Context::new().with_remote_span_context(SpanContext::new(trace, span, flags, true, TraceState::default()))
    }
}

/// Returns the value of the header, and of the variable, for spans below the one with these ids.
pub fn traceparent(ids: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", ids.trace_id(), ids.span_id(), ids.trace_flags().to_u8())
}

/// Returns true for a value of the header.
pub fn is_valid(text: &str) -> bool {
    parse(text).is_some()
}

/// Returns trace, parent and flags.
fn parse(text: &str) -> Option<(&str, &str, &str)> {
    let (known, more) = text.split_at_checked(LENGTH)?;
    let mut parts = known.split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let digits =
        |part: &str, count| part.len() == count && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_set = |part: &str| part.bytes().any(|byte| byte != b'0');
    let is_version = digits(version, 2) && version != "ff";
    let is_end = more.is_empty() || (version != "00" && more.starts_with('-'));
    let is_whole = parts.next().is_none() && digits(trace, 32) && digits(parent, 16) && digits(flags, 2);
    (is_version && is_end && is_whole && is_set(trace) && is_set(parent)).then_some((trace, parent, flags))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_specification_is_read() {
        let expected = Some(("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "01"));
        assert_eq!(parse(VALID), expected);
        assert_eq!(parse(&format!("cc{}-more", &VALID[2..])), expected, "a later version");
        let mut headers = HeaderMap::new();
        headers.append(HEADER, HeaderValue::from_static(VALID));
        let context = TraceContext::of(&headers).unwrap().unwrap();
        assert_ne!(context.span, context.parent);
        let (below, expected) = (context.of_request(), Some((&*context.trace, &*context.span, "01")));
        assert_eq!(parse(&traceparent(below.span().span_context())), expected);
        assert_eq!(TraceContext::with_span(Some(context.clone()), below.span().span_context()), context);
        assert_eq!(context.of_client().span().span_context().span_id().to_string(), context.parent);
        headers.append(HEADER, HeaderValue::from_static(VALID));
        assert_eq!(TraceContext::of(&headers).unwrap(), None, "two of them");
    }

    #[test]
    fn malformed_contexts_are_ignored() {
        for text in [
            String::new(),
            VALID[..54].to_owned(),
            format!("{VALID}-more"),
            format!("{VALID}0"),
            format!("cc{}0", &VALID[2..]),
            format!("ff{}", &VALID[2..]),
            VALID.to_uppercase(),
            VALID.replace('-', "_"),
            VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
            VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            VALID.replace("-01", "-0g"),
            VALID.replace("4bf9", "4b-9"),
            "é".repeat(40),
        ] {
            assert_eq!(parse(&text), None, "{text}");
        }
    }
}
