//! The bytes of audit records by tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_contract::TenantId;
use parking_lot::Mutex;

use crate::admission::Admission;
use crate::recorder::{Entry, Recorder};
use crate::store::Usage;

/// Counts the bytes of audit records, at once for quotas and at intervals for the database.
#[derive(Debug)]
pub struct AuditBytes {
    admission: Arc<Admission>,
    /// The bytes that the database lacks.
    pending: Mutex<BTreeMap<TenantId, i64>>,
}

impl AuditBytes {
    /// Creates a counter.
    pub fn new(admission: Arc<Admission>) -> Self {
        Self { admission, pending: Mutex::default() }
    }

    /// Counts a record. Those of unknown callers have no tenant and are not counted.
    pub fn count(&self, tenant: &str, bytes: usize) {
        let Ok(tenant) = TenantId::new(tenant) else { return };
        let audit_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.admission.add(&usage(&tenant, audit_bytes).row);
        let mut pending = self.pending.lock();
        let sum = pending.entry(tenant).or_default();
        *sum = sum.saturating_add(audit_bytes);
    }

    /// Writes what was counted since the last time.
    pub async fn flush(&self, recorder: &Recorder) {
        let pending = std::mem::take(&mut *self.pending.lock());
        // Together, so that they share transactions.
        let write = |(tenant, bytes)| recorder.record_counted(usage(&tenant, bytes));
        futures_util::future::join_all(pending.into_iter().map(write)).await;
    }
}

fn usage(tenant: &TenantId, audit_bytes: i64) -> Entry {
    Entry::usage(tenant, "", Usage { audit_bytes, ..Usage::default() })
}
