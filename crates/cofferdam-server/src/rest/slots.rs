//! Bounds of the requests that are answered at once. A stream counts until its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use cofferdam_contract::TenantId;
use parking_lot::Mutex;

/// The requests of each tenant that are answered now.
pub struct Slots {
    most: usize,
    taken: Mutex<BTreeMap<TenantId, usize>>,
}

/// The place of one request of a tenant. It is free again when it is dropped.
pub struct TenantSlot {
    of: Arc<Slots>,
    tenant: TenantId,
}

impl Slots {
    /// Creates a bound of `most` requests for each tenant.
    pub fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// Takes a place. Returns `None` if the tenant has no more.
    pub fn take(self: &Arc<Self>, tenant: &TenantId) -> Option<TenantSlot> {
        let mut taken = self.taken.lock();
        let count = taken.get(tenant).copied().unwrap_or(0);
        if count >= self.most {
            return None;
        }
        taken.insert(tenant.clone(), count + 1);
        Some(TenantSlot { of: Arc::clone(self), tenant: tenant.clone() })
    }
}

impl Drop for TenantSlot {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        if let Some(count) = taken.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

/// Holds a permit until the end of a response.
pub fn hold(response: Response, permit: impl Send + Unpin + 'static) -> Response {
    response.map(|body| Body::new(Counted { inner: body, _permit: permit }))
}

/// A body that holds a permit.
struct Counted<P> {
    inner: Body,
    _permit: P,
}

impl<P: Unpin> hyper::body::Body for Counted<P> {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, axum::Error>>> {
        std::pin::Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.inner.size_hint()
    }
}
