//! Quotas, rates and fair sharing. Pure: no I/O, no lock and no clock of its own; times are arguments.
//!
//! ```text
//! request --rate--> 429                                     exec --rate--> 429
//! create --tenant's quota--> 429
//!        --room on the host--> reserved --> settled when it ends
//!        --no room--> queue (weighted, with a deadline) --> reserved | 503
//! ```
//!
//! - `bucket.rs`: token buckets for rates.
//! - `fair.rs`: the weighted fair queue.
//! - `book.rs`: what is reserved and what was used, by tenant and in total.
//! - `file.rs`: the operator's file of quotas and prices. `prices.rs`: the cost of usage.

mod book;
mod bucket;
mod fair;
mod file;
mod prices;

use cofferdam_contract::{ByteSize, Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use book::{Book, Demand, Refused, Reservation, day_of};
pub use bucket::Bucket;
pub use fair::{FairQueue, Ticket};
pub use file::{QuotaFile, Total};
pub use prices::Prices;

/// The most that a tenant may have. `None` means no bound. By default, only the audit records are bounded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Sandboxes at once.
    pub sandboxes: Option<u32>,
    /// Memory of all sandboxes together, by their limits.
    pub memory: Option<ByteSize>,
    /// Disk of all sandboxes together, by their limits.
    pub disk: Option<ByteSize>,
    /// Snapshots at once.
    pub snapshots: Option<u32>,
    /// Bytes of all snapshots together.
    pub snapshot_bytes: Option<ByteSize>,
    /// Volumes at once.
    pub volumes: Option<u32>,
    /// Bytes of all volumes together, by their sizes.
    pub volume_bytes: Option<ByteSize>,
    /// CPU seconds of a day (UTC).
    pub cpu_seconds_per_day: Option<u64>,
    /// Memory in GiB times seconds of a day (UTC), by the limits of sandboxes.
    pub memory_gib_seconds_per_day: Option<u64>,
    /// Bytes sent and received of a day (UTC).
    pub egress_per_day: Option<ByteSize>,
    /// Bytes of audit records of a day (UTC). Calls beyond it are refused: they would have no record. Default: 1 GiB.
    pub audit_per_day: Option<ByteSize>,
    /// Requests in a second.
    pub requests_per_second: Option<u32>,
    /// Execs that start in a second.
    pub execs_per_second: Option<u32>,
    /// The share of a full host, in comparison with other tenants.
    pub weight: u32,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            sandboxes: None,
            memory: None,
            disk: None,
            snapshots: None,
            snapshot_bytes: None,
            volumes: None,
            volume_bytes: None,
            cpu_seconds_per_day: None,
            memory_gib_seconds_per_day: None,
            egress_per_day: None,
            audit_per_day: Some(ByteSize::from_mebibytes(1024)),
            requests_per_second: None,
            execs_per_second: None,
            weight: 1,
        }
    }
}

/// The greatest weight.
const MAX_WEIGHT: u32 = 1000;

impl Quota {
    /// Parses a document.
    ///
    /// # Errors
    /// - `InvalidInput` for a malformed document, a rate of 0, or a weight out of 1 to 1000.
    pub fn parse(text: &str) -> Result<Self> {
        let quota: Self = serde_json::from_str(text)
            .map_err(|error| Error::invalid("read quota", format!("the quota is malformed: {error}")))?;
        quota.check()
    }

    /// Checks the values.
    ///
    /// # Errors
    /// Those of [`Self::parse`].
    pub fn check(self) -> Result<Self> {
        if self.requests_per_second == Some(0) || self.execs_per_second == Some(0) {
            return Err(Error::invalid("read quota", "a rate must be at least 1 in a second"));
        }
        if !(1..=MAX_WEIGHT).contains(&self.weight) {
            return Err(Error::invalid("read quota", format!("a weight must be 1 to {MAX_WEIGHT}")));
        }
        Ok(self)
    }
}

/// The capacity of the host for all tenants together. `None` means no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Sandboxes at once.
    pub sandboxes: Option<u32>,
    /// Memory of all sandboxes together, by their limits.
    pub memory: Option<ByteSize>,
}
