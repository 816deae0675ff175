//! The documents of snapshots and forks.

use std::time::Duration;

use cofferdam_contract::serde_optional_duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A new snapshot.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TakeSnapshot {
    /// A name, unique for the tenant, which can be used in place of the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A copy of a sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ForkSandbox {
    /// A name, unique for the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The time without use after which the sandbox is closed.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub idle: Option<Duration>,
    /// The lifetime.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub life: Option<Duration>,
}

/// A snapshot.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotView {
    /// The id.
    pub id: String,
    /// The name, if it has one.
    pub name: Option<String>,
    /// The backend, which can restore it.
    pub backend: String,
    /// The time of creation, in seconds since 1970.
    pub created: i64,
    /// The size of the file.
    pub bytes: u64,
    /// The SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// The id of the sandbox that it was taken of, which may be gone. `null` for an upload.
    #[serde(default)]
    pub parent: Option<String>,
}

impl SnapshotView {
    pub(in crate::rest) fn of(record: &crate::store::SnapshotRecord) -> Self {
        let crate::store::SnapshotRecord { id, name, backend, created, bytes, sha256, parent, .. } = record.clone();
        Self { id, name, backend, created, bytes, sha256, parent }
    }
}

/// A page of snapshots.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotList {
    /// The snapshots, oldest first.
    pub snapshots: Vec<SnapshotView>,
    /// The value of `after` for the next page, if there is one.
    pub next: Option<String>,
}
