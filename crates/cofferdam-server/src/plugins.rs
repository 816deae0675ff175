//! Plugins that tenants may call. The program hosts them: the server knows neither their state nor their processes.

use std::time::Duration;

use async_trait::async_trait;
use cofferdam_contract::{Result, TenantId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

/// A plugin of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostPlugin {
    /// The name.
    pub name: String,
    /// The version.
    pub version: String,
    /// A description in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The state, such as `ready`.
    pub state: String,
    /// The methods, by name.
    pub methods: Vec<PluginMethod>,
}

/// A method of a plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PluginMethod {
    /// The name.
    pub name: String,
    /// A description in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON Schema of the input. Without one, any input is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Map<String, Value>>,
    /// The JSON Schema of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Map<String, Value>>,
}

/// A call of a method for a tenant.
#[derive(Debug, Clone)]
pub struct PluginCall {
    /// The plugin.
    pub plugin: String,
    /// The method.
    pub method: String,
    /// The input.
    pub input: Value,
    /// The maximum time, if that is shorter than the plugin's own.
    pub timeout: Option<Duration>,
    /// The tenant.
    pub tenant: TenantId,
    /// The caller's span, as W3C Trace Context writes it.
    pub traceparent: Option<String>,
}

/// A value that a call returns before its result.
#[derive(Debug, Clone, PartialEq)]
pub enum PluginItem {
    /// Progress, as the plugin reports it.
    Progress(Value),
    /// The next item of a streaming result.
    Item(Value),
}

/// The failure of a method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PluginError {
    /// The code, as in the plugin protocol.
    pub code: i64,
    /// The failure and its reason.
    pub message: String,
    /// Further members, such as `kind` and `remedy`.
    #[serde(default)]
    pub data: Map<String, Value>,
}

/// The end of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginAnswer {
    /// The id of the call in the plugin's log.
    pub id: String,
    /// The result.
    pub result: std::result::Result<Value, PluginError>,
}

/// The plugins of the host.
#[async_trait]
pub trait HostPlugins: Send + Sync + std::fmt::Debug + 'static {
    /// Returns all plugins.
    fn plugins(&self) -> Vec<HostPlugin>;

    /// Calls a method. Sends its items to `items`, which may be slow. Dropping the future cancels the call.
    ///
    /// # Errors
    /// - `InvalidInput` if the input does not fit the method's schema.
    async fn call(&self, call: PluginCall, items: mpsc::Sender<PluginItem>) -> Result<PluginAnswer>;

    /// Ends all plugins. The server calls it after its requests have ended, and if it cannot start.
    async fn close(&self);
}
