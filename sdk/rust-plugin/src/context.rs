//! The context of a call, an event or a timer.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{Error, ErrorKind, Result};

/// A request of the host while it runs.
#[derive(Debug)]
pub(crate) struct Call {
    pub id: Value,
    pub correlation_id: String,
    pub cancelled: AtomicBool,
    /// The number of items sent.
    pub sent: AtomicU64,
    /// The number of items that the host consumed.
    pub acknowledged: AtomicU64,
}

impl Call {
    pub fn new(id: Value, correlation_id: String) -> Self {
        let (cancelled, sent, acknowledged) = Default::default();
        Self { id, correlation_id, cancelled, sent, acknowledged }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}

/// The other side of a plugin: a connection, or the test harness.
pub(crate) trait Host: Send + Sync {
    /// Sends a request and waits for its result.
    fn request(&self, call: &Call, method: &str, params: Value) -> Result<Value>;
    /// Sends a notification.
    fn notify(&self, call: &Call, method: &str, params: Value) -> Result<()>;
    /// Waits until the stream of a call may send an item.
    fn wait_for_credit(&self, call: &Call);
    /// Returns the plugin's configuration.
    fn config(&self) -> Value;
}

/// The members of `context` of a call.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct CallContext {
    request_id: Option<String>,
    tenant: Option<String>,
    traceparent: Option<String>,
    deadline: Option<String>,
    metadata: Map<String, Value>,
    depth: u64,
    dropped: Vec<String>,
}

/// The context of a call, an event or a timer: its origin, and the services of the host.
pub struct Context {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) call: Arc<Call>,
    fields: CallContext,
    temporary: Mutex<Vec<PathBuf>>,
}

impl Drop for Context {
    /// Removes the temporary files. The plugin may have removed some.
    fn drop(&mut self) {
        for path in self.temporary.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Context {
    pub(crate) fn new(host: Arc<dyn Host>, call: Arc<Call>, fields: CallContext) -> Self {
        Self { host, call, fields, temporary: Mutex::default() }
    }

    /// Adds a temporary file.
    pub(crate) fn keep_until_end(&self, path: PathBuf) {
        self.temporary.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }

    /// Returns the identifier of the caller's request.
    pub fn request_id(&self) -> Option<&str> {
        self.fields.request_id.as_deref()
    }

    /// Returns the tenant.
    pub fn tenant(&self) -> Option<&str> {
        self.fields.tenant.as_deref()
    }

    /// Returns the trace of the call, as in W3C Trace Context.
    pub fn traceparent(&self) -> Option<&str> {
        self.fields.traceparent.as_deref()
    }

    /// Returns the time at which the call ends, as in RFC 3339.
    pub fn deadline(&self) -> Option<&str> {
        self.fields.deadline.as_deref()
    }

    /// Returns the caller's metadata.
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.fields.metadata
    }

    /// Returns the number of nested invocations.
    pub fn depth(&self) -> u64 {
        self.fields.depth
    }

    /// Returns JSON pointers to values that could not cross.
    pub fn dropped(&self) -> &[String] {
        &self.fields.dropped
    }

    /// Returns the correlation identifier of the call.
    pub fn correlation_id(&self) -> &str {
        &self.call.correlation_id
    }

    /// Returns the plugin's configuration.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(serde_json::from_value(self.host.config())?)
    }

    /// Returns true if the call was cancelled. On WASI, this changes during requests of services and streams only.
    pub fn is_cancelled(&self) -> bool {
        self.call.is_cancelled()
    }

    /// Returns an error of the kind [`ErrorKind::Cancelled`] if the call was cancelled.
    pub fn check_cancelled(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::new(ErrorKind::Cancelled, "the request was cancelled")) } else { Ok(()) }
    }

    /// Reports progress, such as `json!({"percent": 50})`.
    pub fn progress(&self, value: impl Serialize) -> Result<()> {
        let params = json!({"token": self.call.id, "value": serde_json::to_value(value)?});
        self.host.notify(&self.call, "$/progress", params)
    }

    /// Sends an item of the call's stream. Waits while the host has too many items to consume.
    pub fn stream(&self, value: impl Serialize) -> Result<()> {
        let value = serde_json::to_value(value)?;
        self.host.wait_for_credit(&self.call);
        self.check_cancelled()?;
        let seq = self.call.sent.fetch_add(1, Ordering::SeqCst);
        let sent = self.host.notify(&self.call, "$/stream", json!({"id": self.call.id, "seq": seq, "value": value}));
        sent.inspect_err(|_| self.call.sent.store(seq, Ordering::SeqCst))
    }

    /// Returns the log.
    pub fn log(&self) -> Log<'_> {
        Log(self)
    }

    /// Sends a request to the host. The services call this.
    pub fn request<T: DeserializeOwned>(&self, method: &str, params: Value) -> Result<T> {
        Ok(serde_json::from_value(self.host.request(&self.call, method, params)?)?)
    }
}

/// The log of a plugin. `fields` is a JSON object.
pub struct Log<'a>(&'a Context);

impl Log<'_> {
    /// Logs a message for the plugin's developers.
    pub fn debug(&self, message: &str, fields: Value) -> Result<()> {
        self.write("debug", message, fields)
    }

    /// Logs a message.
    pub fn info(&self, message: &str, fields: Value) -> Result<()> {
        self.write("info", message, fields)
    }

    /// Logs a warning.
    pub fn warn(&self, message: &str, fields: Value) -> Result<()> {
        self.write("warn", message, fields)
    }

    /// Logs an error.
    pub fn error(&self, message: &str, fields: Value) -> Result<()> {
        self.write("error", message, fields)
    }

    fn write(&self, level: &str, message: &str, fields: Value) -> Result<()> {
        let params = json!({"level": level, "message": message, "fields": fields});
        self.0.host.notify(&self.0.call, "log", params)
    }
}
