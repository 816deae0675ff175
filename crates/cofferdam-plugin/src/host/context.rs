//! The execution context of a call: what crosses to the plugin besides the input.

use std::time::{Duration, SystemTime};

use cofferdam_audit::Timestamp;
use serde_json::{Map, Value, json};

/// The maximum size of the metadata as JSON.
const MAX_METADATA: usize = 64 << 10;
/// The maximum depth of nested invocations.
pub const MAX_DEPTH: u32 = 16;

/// The context of a call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Context {
    /// The identifier of the request. It is also the correlation identifier. Empty means a random one.
    pub request_id: String,
    /// The tenant.
    pub tenant: Option<String>,
    /// The trace of the caller, as in W3C Trace Context.
    pub traceparent: Option<String>,
    /// Further values. Those beyond 64 KiB are dropped, and named in the context.
    pub metadata: Map<String, Value>,
    /// Pointers to values that the caller dropped, because they cannot cross.
    pub dropped: Vec<String>,
    /// The plugins whose invocations led here, the first one first.
    pub path: Vec<String>,
}

impl Context {
    /// Returns the context as the plugin receives it.
    pub fn to_json(&self, timeout: Duration) -> Value {
        let (metadata, too_large) = bounded(&self.metadata);
        let dropped: Vec<&String> = self.dropped.iter().chain(&too_large).collect();
        json!({
            "requestId": self.request_id,
            "tenant": self.tenant,
            "traceparent": self.traceparent,
            "deadline": Timestamp::from(SystemTime::now() + timeout),
            "metadata": metadata,
            "depth": self.path.len(),
            "dropped": dropped,
        })
    }
}

/// Returns the members that fit, and pointers to the others.
fn bounded(metadata: &Map<String, Value>) -> (Map<String, Value>, Vec<String>) {
    let (mut retained, mut dropped, mut size) = (Map::new(), Vec::new(), 0);
    for (name, value) in metadata {
        let length = name.len() + value.to_string().len();
        if size + length > MAX_METADATA {
            dropped.push(format!("/metadata/{}", name.replace('~', "~0").replace('/', "~1")));
        } else {
            size += length;
            retained.insert(name.clone(), value.clone());
        }
    }
    (retained, dropped)
}

/// Returns a random identifier of a request.
pub fn random_id() -> String {
    // Without randomness the identifier is less useful, not less safe.
    cofferdam_util::hex::random(8).unwrap_or_else(|_| "0".repeat(16))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Plugins): A value that is too large for the context of a call is dropped, and the context names it.
    #[test]
    fn large_metadata_is_dropped_and_named() {
        let mut context = Context { request_id: "r".into(), ..Context::default() };
        context.metadata.insert("a/b".into(), json!("x".repeat(MAX_METADATA)));
        context.metadata.insert("c".into(), json!({"d": 1}));
        let value = context.to_json(Duration::from_secs(1));
        assert_eq!(value["dropped"], json!(["/metadata/a~1b"]));
        assert_eq!(value["metadata"], json!({"c": {"d": 1}}));
    }
}
