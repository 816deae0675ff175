//! The documents of plugins.

use std::time::Duration;

use cofferdam_contract::serde_optional_duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::plugins::{HostPlugin, PluginError};
use crate::rest::events::StreamEvent;
use crate::rest::problem::Problem;

/// The plugins of the server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PluginList {
    /// The plugins, by name.
    pub plugins: Vec<HostPlugin>,
}

/// A call of a plugin's method.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallPlugin {
    /// The input, which the method's schema describes.
    #[serde(default = "no_input")]
    pub input: Value,
    /// The limit on wall-clock time. Default: that of the plugin, which is also the maximum.
    #[serde(default, with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub timeout: Option<Duration>,
}

fn no_input() -> Value {
    Value::Object(Map::new())
}

/// The outcome of a call: a result, or the method's failure.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PluginOutcome {
    /// The id of the call in the plugin's log.
    pub id: String,
    /// The result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<PluginError>,
    /// The items of a streaming result. A stream of events has none here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Value>,
    /// True if there were more items than an answer has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// An event of a call.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum PluginEvent {
    /// Progress.
    Progress {
        /// The progress, as the plugin reports it.
        progress: Value,
    },
    /// The next item of a streaming result.
    Item {
        /// The item.
        item: Value,
    },
    /// The outcome, and the end of the stream.
    Result {
        /// The outcome.
        outcome: PluginOutcome,
    },
    /// The failure of the request, and the end of the stream.
    Error {
        /// The failure.
        error: Problem,
    },
}

impl StreamEvent for PluginEvent {
    fn name(&self) -> &'static str {
        match self {
            Self::Progress { .. } => "progress",
            Self::Item { .. } => "item",
            Self::Result { .. } => "result",
            Self::Error { .. } => "error",
        }
    }

    fn failed(error: Problem) -> Self {
        Self::Error { error }
    }
}
