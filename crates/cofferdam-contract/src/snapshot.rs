//! A frozen sandbox.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A frozen sandbox of one backend. Cheap to clone; only the backend that made it can read it.
#[derive(Clone)]
pub struct Snapshot {
    backend: String,
    payload: Arc<dyn Any + Send + Sync>,
}

impl Snapshot {
    /// A snapshot that `backend` made.
    pub fn new(backend: impl Into<String>, payload: impl Any + Send + Sync) -> Self {
        Self { backend: backend.into(), payload: Arc::new(payload) }
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
        f.debug_struct("Snapshot").field("backend", &self.backend).finish_non_exhaustive()
    }
}
