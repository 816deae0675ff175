//! The host of plugins.
//!
//! ```text
//! Host::call --> Loaded (schemas, timeouts) --> Supervisor --ready--> Instance --frames--> plugin in its sandbox
//!                                                                        |
//!      Services, Files, Extensions <-- permission <-- Requests <---------+
//! ```
//!
//! A plugin runs in a sandbox of a backend of the contract, which its strategy selects. Everything that it sends is
//! hostile: it is bounded, and ends in a verdict on that plugin.
//!
//! Code map: `call.rs` has the steps of a call, `plugin.rs` the supervisor's task, `instance.rs` one process,
//! `requests.rs` what a plugin may ask for, `permission.rs` the permissions for that.

mod call;
mod context;
mod copy;
mod debug;
mod files;
mod instance;
mod launch;
mod load;
mod local;
mod log;
mod metrics;
mod permission;
mod plugin;
mod requests;
mod trace;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cofferdam_audit::PluginDenied;
use cofferdam_contract::{Backend, Result, Sandbox, SpecBuilder, TenantId};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::services::{AccessLog, Caller, Deliver, Delivery, Drained, SecretAccess, Services, ServicesConfig};
use crate::wire::{CallError, ErrorKind};
use crate::{Manifest, Strategy};
use load::Loaded;
use log::{Log, Severity};
use metrics::{Metrics, PluginState};

pub use crate::wire::StreamItem;
pub use call::{Call, CallOptions};
pub use context::Context;
pub use debug::{Debugging, Port};
pub use load::LoadOptions;
pub use log::Sink;
pub use permission::denied;

/// The time for the delivery of queued events when the host drains.
const DEFAULT_DRAIN: Duration = Duration::from_secs(10);

/// The time for the end of plugins after the time for their calls.
const DRAIN_SLACK: Duration = Duration::from_secs(5);

/// The mode of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Plugins run in sandboxes only.
    #[default]
    Production,
    /// The strategies `thread` and `inline` are allowed. They have no isolation.
    Development,
}

impl Mode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Production => "production",
            Self::Development => "development",
        }
    }
}

/// Code that a plugin runs with `sandbox.execute`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Execution {
    /// The language, such as `python`.
    pub language: String,
    /// The code.
    pub code: String,
    /// The maximum time, such as `5s`.
    #[serde(default)]
    pub timeout: Option<String>,
}

/// An HTTP request of a plugin.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fetch {
    /// The URL.
    pub url: String,
    /// The method. Default: `GET`.
    #[serde(default)]
    pub method: Option<String>,
    /// The headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The body.
    #[serde(default)]
    pub body: Option<crate::services::Content>,
    /// The maximum time, such as `5s`.
    #[serde(default)]
    pub timeout: Option<String>,
}

/// The services that the program around the host provides.
#[async_trait]
pub trait Extensions: Send + Sync + 'static {
    /// Returns the backend of a strategy.
    ///
    /// # Errors
    /// The strategy is not available here, with the remedy.
    async fn backend(&self, strategy: Strategy) -> Result<Arc<dyn Backend>>;

    /// Completes the spec of a plugin's sandbox, such as with an image.
    fn spec(&self, strategy: Strategy, spec: SpecBuilder) -> SpecBuilder {
        let _ = strategy;
        spec
    }

    /// Returns a new sandbox with the layers of the program, such as an audit log of its network.
    ///
    /// # Errors
    /// A layer refuses the sandbox, which is closed then.
    async fn observe(&self, sandbox: Arc<dyn Sandbox>) -> Result<Arc<dyn Sandbox>> {
        Ok(sandbox)
    }

    /// Records a denied request in the program's audit log.
    async fn denied(&self, denial: PluginDenied) {
        let _ = denial;
    }

    /// Runs code for a plugin, under the plugin's limits and without a network.
    async fn execute(&self, manifest: &Manifest, execution: Execution) -> Result<Value, CallError>;

    /// Makes an HTTP request for a plugin, to the hosts of its manifest.
    async fn fetch(&self, manifest: &Manifest, fetch: Fetch) -> Result<Value, CallError>;
}

/// The configuration of a host.
pub struct HostConfig {
    /// The directory of the host's state: database, secrets, artifacts, files of plugins.
    pub state: PathBuf,
    /// Directories of the host that no plugin may reach, besides the state.
    pub protected: Vec<PathBuf>,
    /// The source of the key of secrets, as in [`ServicesConfig`].
    pub key: Option<String>,
    /// The mode.
    pub mode: Mode,
    /// The tenant of the plugins' sandboxes.
    pub tenant: Option<TenantId>,
    /// The receiver of the log.
    pub sink: Sink,
    /// The receiver of spans in the JSON form of the OpenTelemetry protocol, one export in each line.
    pub traces: Option<Sink>,
    /// The services that the program provides.
    pub extensions: Arc<dyn Extensions>,
}

/// The host.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

pub(crate) struct Inner {
    config: HostConfig,
    services: Arc<Services>,
    plugins: RwLock<BTreeMap<String, Arc<Loaded>>>,
    pub(crate) metrics: Metrics,
}

/// The state of a loaded plugin.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// The name.
    pub name: String,
    /// The version.
    pub version: String,
    /// The strategy.
    pub strategy: Strategy,
    /// The state.
    pub state: &'static str,
    /// The number of starts, restarts included.
    pub starts: u64,
    /// The number of running calls.
    pub running: usize,
    /// The reason of the last crash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_crash: Option<String>,
}

impl Host {
    /// Opens the state of a host, and starts its services. Call it within a runtime of tokio.
    ///
    /// # Errors
    /// Another host uses the state directory, or the key does not fit its secrets.
    pub fn open(config: HostConfig) -> Result<Self> {
        let mut services =
            ServicesConfig::new(config.state.join("services"), Arc::new(SecretsLog(Arc::clone(&config.sink))));
        services.key = config.key.clone();
        let services = Services::open(services)?;
        let inner = Arc::new(Inner { config, services, plugins: RwLock::default(), metrics: Metrics::default() });
        inner.services.start(Arc::new(Deliveries(Arc::downgrade(&inner))));
        Ok(Self(inner))
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.0.config.mode
    }

    /// Calls a method of a plugin. Dropping the call cancels it.
    pub fn call(&self, plugin: &str, method: &str, input: Value, options: CallOptions) -> Call {
        self.0.call(plugin, method, input, options)
    }

    /// Checks the input of a call without making it.
    ///
    /// # Errors
    /// `NotFound` for a plugin that is not loaded, `MethodNotFound`, and `InvalidParams` if the schema does not fit.
    pub fn check_input(&self, plugin: &str, method: &str, input: &Value) -> Result<(), CallError> {
        self.0.find(plugin)?.check_input(method, input)
    }

    /// Starts a plugin before its first call.
    ///
    /// # Errors
    /// `NotFound` for a plugin that is not loaded.
    pub async fn prepare(&self, plugin: &str) -> Result<(), CallError> {
        let loaded = self.0.find(plugin)?;
        loaded.supervisor().want().await;
        Ok(())
    }

    /// Sets a secret of a plugin, or removes it. Only the host's operator may call this: nothing is checked.
    ///
    /// # Errors
    /// The value is too long, or the state cannot be written.
    pub async fn set_secret(&self, plugin: &str, name: &str, value: Option<&str>) -> Result<(), CallError> {
        let caller = Caller { plugin: plugin.to_owned(), tenant: None, correlation: "operator".to_owned() };
        let (method, params) = match value {
            Some(value) => ("secrets.set", json!({"name": name, "value": value})),
            None => ("secrets.delete", json!({"name": name})),
        };
        self.0.services.call(&caller, method, params).await.map(drop)
    }

    /// Returns the states of all plugins.
    pub fn plugins(&self) -> Vec<PluginStatus> {
        self.0.plugins.read().values().map(|loaded| loaded.status()).collect()
    }

    /// Returns the manifests of all plugins, with the states.
    pub fn manifests(&self) -> Vec<(Arc<Manifest>, &'static str)> {
        let plugins = self.0.plugins.read();
        plugins.values().map(|loaded| (Arc::clone(&loaded.manifest), loaded.status().state)).collect()
    }

    /// Returns the counters in the text format of OpenMetrics.
    pub fn metrics(&self) -> String {
        let states: Vec<_> = self
            .plugins()
            .into_iter()
            .map(|status| PluginState {
                plugin: status.name,
                state: status.state,
                starts: status.starts,
                running: status.running,
            })
            .collect();
        self.0.metrics.render(&states)
    }

    /// Ends everything: running calls may end within `within` (default 10 s), queued events are delivered, and all
    /// plugins shut down.
    pub async fn drain(&self, within: Option<Duration>) -> Drained {
        let within = within.unwrap_or(DEFAULT_DRAIN);
        let drained = self.0.services.drain(within).await;
        let plugins: Vec<_> = std::mem::take(&mut *self.0.plugins.write()).into_values().collect();
        let mut tasks = tokio::task::JoinSet::new();
        for loaded in plugins {
            // A process that does not end in time is killed when its supervisor is dropped.
            tasks.spawn(tokio::time::timeout(within + DRAIN_SLACK, async move {
                loaded.supervisor().drain(within).await;
            }));
        }
        while tasks.join_next().await.is_some() {}
        drained
    }

    /// Shuts down one plugin and removes it.
    ///
    /// # Errors
    /// `NotFound` for a plugin that is not loaded.
    pub async fn unload(&self, plugin: &str, within: Duration) -> Result<(), CallError> {
        let loaded = self.0.plugins.write().remove(plugin).ok_or_else(|| not_loaded(plugin))?;
        loaded.supervisor().drain(within).await;
        self.0.services.forget(plugin);
        Ok(())
    }
}

impl Inner {
    fn find(&self, plugin: &str) -> Result<Arc<Loaded>, CallError> {
        self.plugins.read().get(plugin).cloned().ok_or_else(|| not_loaded(plugin))
    }
}

fn not_loaded(plugin: &str) -> CallError {
    CallError::not_found(format!("the plugin '{}' is not loaded", permission::shown(plugin)))
}

/// Delivers events and timers to plugins.
struct Deliveries(std::sync::Weak<Inner>);

#[async_trait]
impl Deliver for Deliveries {
    async fn deliver(&self, delivery: Delivery) -> Result<(), CallError> {
        let host = self.0.upgrade().ok_or_else(|| CallError::new(ErrorKind::Unavailable, "the host shuts down"))?;
        host.find(&delivery.plugin)?.deliver(delivery.method, &delivery.params, delivery.tenant).await
    }
}

/// Logs each access to a secret, with its name and never with its value.
struct SecretsLog(Sink);

impl AccessLog for SecretsLog {
    fn secret_accessed(&self, access: &SecretAccess) {
        let log = Log::new(Arc::clone(&self.0), &access.plugin);
        log.write(Severity::Info, "plugin.secret", Some(&access.correlation), json!(access));
    }
}
