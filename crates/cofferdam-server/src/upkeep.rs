//! Work at intervals: reads changed quotas, records that sandboxes live, charges them, closes those again whose close
//! failed, and forgets old answers.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};

use crate::admission::Admission;
use crate::layers::quota::SandboxAccounts;
use crate::metering::AuditBytes;
use crate::quota::QuotaFile;
use crate::recorder::Recorder;
use crate::report;
use crate::rest::{FORGET_AFTER, QUOTA_RELOAD, load_quotas};
use crate::store::{Store, now};

/// The time between two records that the sandboxes live, two charges for what they use, and two attempts to close one.
const SEEN: Duration = Duration::from_secs(5);
/// The time between two removals of old answers.
const FORGET: Duration = Duration::from_secs(60 * 60);

/// Reads the operator's quotas.
pub type ReadQuotas = Arc<dyn Fn() -> Result<QuotaFile> + Send + Sync>;

/// The operator's quotas, which are read again at intervals.
pub struct Followed {
    read: ReadQuotas,
    current: QuotaFile,
    is_failing: bool,
}

impl Followed {
    /// Reads the quotas for the first time.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn new(read: ReadQuotas) -> Result<Self> {
        Ok(Self { current: read()?, read, is_failing: false })
    }

    /// Returns the quotas as they were read last.
    pub fn current(&self) -> &QuotaFile {
        &self.current
    }

    /// Reads the quotas again. If they cannot be read, the old ones remain, which is reported once.
    pub async fn reload(&mut self, admission: &Arc<Admission>) {
        let read = Arc::clone(&self.read);
        let read = tokio::task::spawn_blocking(move || read()).await;
        let read = read.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, "read quota", "the work ended early").with_source(error))
        });
        match read {
            Ok(file) => {
                self.is_failing = false;
                if file != self.current {
                    admission.set_default(&file);
                    self.current = file;
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    report::warning(&format!("the quotas remain as they were: {error}"));
                }
            }
        }
    }
}

/// Reads changed quotas, records that the sandboxes live, and forgets old answers. Runs until it is dropped.
pub async fn keep_up(store: Store, admission: Arc<Admission>, instance: String, mut followed: Option<Followed>) {
    let mut quotas = tokio::time::interval(QUOTA_RELOAD);
    let mut seen = tokio::time::interval(SEEN);
    let mut forget = tokio::time::interval(FORGET);
    for interval in [&mut quotas, &mut seen, &mut forget] {
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    }
    let mut is_failing = false;
    loop {
        let done = tokio::select! {
            _ = quotas.tick() => {
                if let Some(followed) = &mut followed {
                    followed.reload(&admission).await;
                }
                load_quotas(&store).await.map(|quotas| admission.set_quotas(quotas))
            }
            _ = seen.tick() => store.see_sandboxes(&instance, now()).await,
            _ = forget.tick() => forget_old(&store, now().saturating_sub(FORGET_AFTER)).await,
        };
        match done {
            Ok(()) => is_failing = false,
            // The next try reports it if it still fails then, once.
            Err(error) if !is_failing => {
                report::warning(&error.to_string());
                is_failing = true;
            }
            Err(_) => {}
        }
    }
}

/// Charges all sandboxes and audit records at intervals. Runs until it is dropped.
pub async fn charge(accounts: Arc<SandboxAccounts>, audit: Arc<AuditBytes>, recorder: Recorder) {
    let mut ticks = tokio::time::interval(SEEN);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        accounts.settle().await;
        audit.flush(&recorder).await;
    }
}

/// Closes sandboxes again whose close failed. Runs until it is dropped.
pub async fn close_again(accounts: Arc<SandboxAccounts>) {
    let mut ticks = tokio::time::interval(SEEN);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        accounts.close_again().await;
    }
}

async fn forget_old(store: &Store, before: i64) -> Result<()> {
    store.forget_answers(before).await?;
    store.forget_lost(before).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::QueueBounds;
    use crate::quota::{Capacity, Quota};
    use cofferdam_contract::TenantId;
    use parking_lot::Mutex;

    /// Promise (Server): A changed file of quotas takes effect without a restart, and a broken one changes nothing.
    #[tokio::test]
    async fn a_changed_file_takes_effect_and_a_broken_one_does_not() {
        let text = Arc::new(Mutex::new(r#"{"sandboxes":1}"#));
        let shared = Arc::clone(&text);
        let mut followed = Followed::new(Arc::new(move || QuotaFile::parse(*shared.lock()))).unwrap();
        let admission = Admission::new(followed.current().quota, Capacity::default(), QueueBounds::default());
        let tenant = TenantId::default();
        let mut quota = async |new: &'static str| -> Quota {
            *text.lock() = new;
            followed.reload(&admission).await;
            admission.state_of(&tenant).0
        };
        assert_eq!(quota(r#"{"sandboxes":1}"#).await.sandboxes, Some(1));
        assert_eq!(quota(r#"{"sandboxes":2,"prices":{"currency":"EUR"}}"#).await.sandboxes, Some(2));
        assert_eq!(quota("{").await.sandboxes, Some(2));
        assert_eq!(quota("{}").await, Quota::default());
        assert_eq!(admission.prices(), None);
    }
}
