//! A frozen sandbox.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A frozen sandbox of one backend. Cheap to clone; only the backend that made it can read it.
#[derive(Clone)]
pub struct Snapshot {
    backend: String,
    digest: Option<String>,
    payload: Arc<dyn Any + Send + Sync>,
}

impl Snapshot {
    /// A snapshot that `backend` made.
    pub fn new(backend: impl Into<String>, payload: impl Any + Send + Sync) -> Self {
        Self { backend: backend.into(), digest: None, payload: Arc::new(payload) }
    }

    /// The same with the SHA-256 of what it holds, in hexadecimal digits, as the backend defines and shows it.
    #[must_use]
    pub fn with_digest(mut self, digest: impl Into<String>) -> Self {
        self.digest = Some(digest.into());
        self
    }

    /// The SHA-256 of what it holds, in hexadecimal digits; `None` where nobody has read all of it, as of a machine that was
    /// frozen just now.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// The backend that made it.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// The backend's own data, if it is of type `T`.
    pub fn payload<T: Any>(&self) -> Option<&T> {
        self.payload.downcast_ref()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("backend", &self.backend).field("digest", &self.digest).finish_non_exhaustive()
    }
}
