//! A snapshot of a sandbox.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::TenantId;

/// A snapshot of a sandbox of one backend. Cheap to clone. Only the backend that created it can restore it.
#[derive(Clone)]
pub struct Snapshot {
    backend: String,
    tenant: Option<TenantId>,
    digest: Option<String>,
    payload: Arc<dyn Any + Send + Sync>,
}

impl Snapshot {
    /// Creates a snapshot of the backend named `backend`.
    pub fn new(backend: impl Into<String>, payload: impl Any + Send + Sync) -> Self {
        Self { backend: backend.into(), tenant: None, digest: None, payload: Arc::new(payload) }
    }

    /// Sets the tenant whose work the snapshot contains. Only this tenant can restore it.
    #[must_use]
    pub fn with_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = Some(tenant);
        self
    }

    /// Returns the tenant whose work the snapshot contains. `None` if it contains no tenant's work, or was read from a
    /// file without a tenant.
    pub fn tenant(&self) -> Option<&TenantId> {
        self.tenant.as_ref()
    }

    /// Sets the SHA-256 digest of the content, in hexadecimal. The backend defines which bytes it covers.
    #[must_use]
    pub fn with_digest(mut self, digest: impl Into<String>) -> Self {
        self.digest = Some(digest.into());
        self
    }

    /// Returns the SHA-256 digest of the content, in hexadecimal. `None` if the content has not been read completely,
    /// such as directly after a VM snapshot.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// Returns the name of the backend that created the snapshot.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Returns the backend's own data if it has type `T`.
    pub fn payload<T: Any>(&self) -> Option<&T> {
        self.payload.downcast_ref()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("backend", &self.backend)
            .field("tenant", &self.tenant)
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}
