//! The state that both processes of a server use, which each one reads again while the other one lives.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, Result};

use crate::admission::Admission;
use crate::report;
use crate::snapshots::Snapshots;
use crate::store::Store;

/// The time between two reads of the state that the other process changes.
pub const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The state that both processes use.
#[derive(Debug, Clone)]
pub struct Shared {
    /// The database.
    pub store: Store,
    /// The usage of tenants, and reservations.
    pub admission: Arc<Admission>,
    /// The snapshots.
    pub snapshots: Arc<Snapshots>,
}

impl Shared {
    /// Counts the usage that the other process has recorded, and lists its snapshots.
    ///
    /// # Errors
    /// - `Unavailable` if the database fails.
    pub async fn refresh(&self) -> Result<()> {
        for row in self.store.usage_of_tenants(self.admission.today()).await? {
            self.admission.raise(&row);
        }
        self.snapshots.refresh().await
    }

    /// Follows the changes of a successor. Runs until it is dropped.
    pub async fn follow_successor(self) {
        let mut failing = Failing::default();
        loop {
            failing.note(self.refresh().await.err());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Reports the first of several failures.
#[derive(Default)]
pub struct Failing(bool);

impl Failing {
    /// Notes the error of an attempt, or its success.
    pub fn note(&mut self, error: Option<Error>) {
        if let Some(error) = error.as_ref().filter(|_| !self.0) {
            report::warning(&error.to_string());
        }
        self.0 = error.is_some();
    }
}
