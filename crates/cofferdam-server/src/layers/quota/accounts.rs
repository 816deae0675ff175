//! The accounts of all sandboxes: those that live, and those whose close failed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cofferdam_contract::{Error, Sandbox};
use futures_util::StreamExt as _;
use parking_lot::Mutex;

use super::super::is_gone;
use super::{Account, Held};
use crate::report;

/// The sandboxes that are measured, or closed again, at once.
const MAX_AT_ONCE: usize = 32;
/// Timeout of a repeated close, after which it begins again.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(180);

tokio::task_local! {
    /// The reservation of the sandbox that this task creates.
    pub(super) static RESERVED: Reserved;
}

/// A reservation, and the accounts that keep it if its sandbox cannot be closed.
#[derive(Debug)]
pub(super) struct Reserved {
    pub(super) accounts: Arc<SandboxAccounts>,
    /// The backend's name.
    pub(super) backend: String,
    pub(super) held: Arc<Held>,
}

impl Reserved {
    /// Keeps the reservation with its sandbox, whose close failed, and reports that once.
    pub(super) fn keep(&self, sandbox: Arc<dyn Sandbox>, error: &Error) {
        let (id, tenant, backend) = (sandbox.id().clone(), self.held.account.tenant.as_str(), &self.backend);
        if self.accounts.keep(&self.held, sandbox) {
            report::warning(&format!(
                "sandbox {id} of tenant {tenant} on backend {backend} may still exist and keeps its quota; it is closed \
                 again every few seconds: {error}"
            ));
        }
    }
}

/// Keeps a sandbox that was refused while it was created, and whose close failed.
pub fn keep_unclosed(sandbox: Arc<dyn Sandbox>, error: &Error) {
    // Without a reservation, this is part of no create: the layer of quotas itself refused the sandbox, and has it.
    let _ = RESERVED.try_with(|reserved| reserved.keep(sandbox, error));
}

/// The accounts of live sandboxes, and of those whose close failed.
#[derive(Debug, Default)]
pub struct SandboxAccounts {
    live: Mutex<Vec<Weak<Account>>>,
    unclosed: Mutex<Vec<Unclosed>>,
}

/// A sandbox whose close failed, and its reservation.
#[derive(Debug, Clone)]
struct Unclosed {
    held: Arc<Held>,
    sandbox: Arc<dyn Sandbox>,
}

impl SandboxAccounts {
    pub(super) fn add(&self, account: &Arc<Account>) {
        self.live.lock().push(Arc::downgrade(account));
    }

    /// Keeps a sandbox whose close failed, and its reservation. Returns false if it is kept already.
    fn keep(&self, held: &Arc<Held>, sandbox: Arc<dyn Sandbox>) -> bool {
        let mut unclosed = self.unclosed.lock();
        let is_new = !unclosed.iter().any(|other| Arc::ptr_eq(&other.held, held));
        if is_new {
            unclosed.push(Unclosed { held: Arc::clone(held), sandbox });
        }
        is_new
    }

    /// Returns true if the sandbox of a reservation is to be closed again.
    pub(super) fn keeps(&self, held: &Held) -> bool {
        self.unclosed.lock().iter().any(|unclosed| std::ptr::eq(&*unclosed.held, held))
    }

    /// Closes the sandboxes again whose close failed, and releases the reservations of those that are gone.
    pub async fn close_again(&self) {
        let unclosed = self.unclosed.lock().clone();
        let closed = futures_util::stream::iter(unclosed).for_each_concurrent(
            MAX_AT_ONCE,
            async |Unclosed { held, sandbox }| {
                let close = tokio::time::timeout(CLOSE_TIMEOUT, sandbox.close());
                if close.await.is_ok_and(|closed| is_gone(&closed)) {
                    held.account.release().await;
                    self.unclosed.lock().retain(|other| !Arc::ptr_eq(&other.held, &held));
                }
            },
        );
        closed.await;
    }

    /// Charges all sandboxes for what they have used since the last time. Returns when that is on the disk.
    pub async fn settle(&self) {
        let live: Vec<_> = {
            let mut accounts = self.live.lock();
            accounts.retain(|account| account.strong_count() > 0);
            accounts.iter().filter_map(Weak::upgrade).collect()
        };
        let settled =
            futures_util::stream::iter(live).for_each_concurrent(MAX_AT_ONCE, async |account| account.settle().await);
        settled.await;
    }
}
