//! Bounds of the requests that are answered at once. A stream counts until its end.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use cofferdam_contract::TenantId;
use parking_lot::Mutex;

/// The requests of each tenant that are answered now.
pub struct Slots {
    max: usize,
    total: usize,
    taken: Mutex<Taken>,
}

/// The taken slots.
#[derive(Default)]
struct Taken {
    of: BTreeMap<TenantId, usize>,
    all: usize,
}

/// The slot of one request of a tenant. It is free again when it is dropped.
pub struct TenantSlot {
    of: Arc<Slots>,
    tenant: TenantId,
}

impl Slots {
    /// Creates a bound of `max` requests for each tenant.
    pub fn new(max: usize) -> Self {
        Self::shared(max, usize::MAX)
    }

    /// Creates a bound of `max` requests for each tenant and `total` for all. A tenant takes at most as many as it leaves
    /// to others, so that no tenants take all.
    pub fn shared(max: usize, total: usize) -> Self {
        Self { max, total, taken: Mutex::default() }
    }

    /// Takes a slot. Returns `None` if the tenant has no more.
    pub fn take(self: &Arc<Self>, tenant: &TenantId) -> Option<TenantSlot> {
        let mut taken = self.taken.lock();
        let count = taken.of.get(tenant).copied().unwrap_or(0);
        if count >= self.max.min(self.total - taken.all) {
            return None;
        }
        taken.of.insert(tenant.clone(), count + 1);
        taken.all += 1;
        Some(TenantSlot { of: Arc::clone(self), tenant: tenant.clone() })
    }
}

impl Drop for TenantSlot {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        taken.all -= 1;
        if let Some(count) = taken.of.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                taken.of.remove(&self.tenant);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (Server): No tenants take all calls of plugins: each leaves at least as many to others as it has.
    #[test]
    fn a_tenant_leaves_slots_to_others() {
        let slots = Arc::new(Slots::shared(4, 6));
        let take = |name: &str| -> Vec<_> {
            let tenant = TenantId::new(name).unwrap();
            std::iter::from_fn(|| slots.take(&tenant)).collect()
        };
        let (first, second, third) = (take("a"), take("b"), take("c"));
        assert_eq!((first.len(), second.len(), third.len()), (3, 2, 1));
        assert_eq!(take("d").len(), 0);
        drop((second, third));
        assert_eq!(take("d").len(), 2, "slots are free again");
        drop(first);
        assert_eq!(take("a").len(), 3);
    }

    #[test]
    fn the_bound_of_one_tenant_holds_alone() {
        let slots = Arc::new(Slots::new(2));
        let tenant = TenantId::new("a").unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| slots.take(&tenant)).collect();
        assert_eq!(taken.len(), 2);
    }
}
