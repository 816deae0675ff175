//! Records of calls: denied requests of plugins, and calls of a server's API.

use serde::{Deserialize, Serialize};

use crate::{Text, Timestamp};

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

/// A call of a server's API by an authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiCall {
    /// The tenant of the caller.
    pub tenant: Text<128>,
    /// The public part of the key, or `local`.
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
}
