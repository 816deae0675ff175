//! Records of calls: denied requests of plugins, and calls of a server's API.

use serde::{Deserialize, Serialize};

use crate::{Listed, MAX_FILES, Text, Timestamp};

/// The maximum number of listed rules of a network policy.
pub const MAX_RULES: usize = 32;

/// A request of a plugin that its manifest does not permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginDenied {
    /// The plugin.
    pub plugin: Text<64>,
    /// The tenant of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Text<128>>,
    /// The time.
    pub time: Timestamp,
    /// The correlation identifier.
    pub correlation: Text<128>,
    /// The method of the request, such as `fs.read`.
    pub method: Text<64>,
    /// The permission that is missing, or that does not list the target.
    pub permission: Text<32>,
    /// The object of the request, such as a path.
    pub target: Text<256>,
}

/// A call of a server's API by an authenticated caller, or one that was refused because its caller is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiCall {
    /// The tenant of the caller; empty for an unknown caller.
    pub tenant: Text<128>,
    /// The public part of the key, or `local`. For an unknown caller, the public part as it was presented, or empty.
    pub key: Text<64>,
    /// The address of the client, or its user for a Unix socket.
    pub peer: Text<64>,
    /// The time of the request.
    pub time: Timestamp,
    /// The HTTP method.
    pub method: Text<16>,
    /// The endpoint, such as `/v1/sandboxes/{sandbox}`.
    pub endpoint: Text<128>,
    /// The sandbox that the caller named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Text<128>>,
    /// The HTTP status of the answer.
    pub status: u16,
    /// The time until the answer began, in microseconds.
    pub duration_us: u64,
    /// Earlier calls of unknown callers that have no record of their own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// An action of a caller, which continues if the client leaves: changes that are applied, a snapshot, a sandbox that is
/// restored or forked, an image of the host. It has a record at its begin and another one at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// The id, which both records have.
    pub id: Text<64>,
    /// The tenant of the caller.
    pub tenant: Text<128>,
    /// The public part of the key, or `local`.
    pub key: Text<64>,
    /// The time of the record.
    pub time: Timestamp,
    /// `apply`, `snapshot`, `restore`, `fork`, `network`, `image-pull`, `image-load`, `image-rm` or `image-prune`.
    pub action: Text<16>,
    /// The state.
    pub state: ActionState,
    /// The sandbox that it is done to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Text<128>>,
    /// The snapshot that is restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Text<128>>,
    /// The snapshot or sandbox that it created.
    #[serde(rename = "made", default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Text<128>>,
    /// The name of the image that is pulled, loaded or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Text<256>>,
    /// The digest of the changes that were reviewed, as the caller gave it, or of the first image that was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Text<80>>,
    /// True if the changes are only tried.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The changes that were applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Listed<Text<256>, MAX_FILES>>,
    /// The number of changes that were not applied, because of conflicts or rules.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unapplied: u64,
    /// The network policy that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<PolicySet>,
    /// The reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Text<256>>,
}

/// A network policy, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySet {
    /// `none`, `allow`, `rules` or `other`.
    pub kind: Text<16>,
    /// The rules: host, protocol, methods and paths.
    pub rules: Listed<Text<256>, MAX_RULES>,
}

/// The state of an [`Action`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionState {
    /// It begins.
    Begun,
    /// It has ended.
    Ended,
    /// It has failed, perhaps after a part of it.
    Failed,
}
