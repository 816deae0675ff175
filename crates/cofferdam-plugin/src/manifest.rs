//! The manifest of a plugin.

use std::collections::BTreeMap;
use std::time::Duration;

use cofferdam_contract::{ByteSize, Level, serde_optional_duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The version of the format.
pub const MANIFEST_VERSION: u32 = 1;

/// The pattern of names of plugins and methods.
const NAME: &str = r"^[a-z][a-z0-9]*([._-][a-z0-9]+)*$";
/// The pattern of a semantic version (semver.org, 2.0.0).
const VERSION: &str = r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$";
/// The pattern of a time: a number with ms, s, m or h.
const TIME: &str = r"^[0-9]+(\.[0-9]+)? ?(ms|s|m|min|h)$";
/// The pattern of names of secrets.
const SECRET: &str = r"^[A-Za-z_][A-Za-z0-9_]*$";

/// The manifest of a plugin: `plugin.toml` or `plugin.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// The version of this format: 1.
    #[schemars(range(min = 1, max = 1))]
    pub manifest: u32,
    /// The name of the plugin: small letters, digits, and `.`, `_` or `-` between them.
    #[schemars(regex(pattern = NAME), length(max = 64))]
    pub name: String,
    /// The semantic version of the plugin, such as `1.2.0`.
    #[schemars(regex(pattern = VERSION), length(max = 64))]
    pub version: String,
    /// A description in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub description: Option<String>,
    /// The runtime.
    pub runtime: Runtime,
    /// The place where the plugin begins: `module:function` for Python, `path/of/module.js:export` for Node.js, the path of
    /// a `.wasm` file, or the words of a command.
    pub entry: Entry,
    /// The permissions. Everything else is denied.
    #[serde(default)]
    #[schemars(extend("uniqueItems" = true))]
    pub permissions: Vec<Permission>,
    /// The sandbox.
    #[serde(default)]
    pub sandbox: Sandbox,
    /// The JSON Schema of the plugin's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_schema: Option<Map<String, Value>>,
    /// The methods that others may call, by name.
    #[serde(default)]
    #[schemars(extend("propertyNames" = {"pattern": NAME, "maxLength": 64}))]
    pub methods: BTreeMap<String, Method>,
    /// The events.
    #[serde(default)]
    pub events: Events,
    /// The names of the secrets that the plugin may ask for.
    #[serde(default)]
    #[schemars(inner(regex(pattern = SECRET), length(max = 64)), extend("uniqueItems" = true))]
    pub secrets: Vec<String>,
}

/// The runtime of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Runtime {
    /// Python.
    Python,
    /// Node.js.
    Node,
    /// A component of WebAssembly.
    Wasm,
    /// A program.
    Command,
}

/// The place where a plugin begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Entry {
    /// A function or file.
    Name(#[schemars(length(min = 1, max = 256))] String),
    /// The words of a command.
    Command(#[schemars(length(min = 1, max = 64))] Vec<String>),
}

/// A permission of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Permission {
    /// Connections to the hosts of `sandbox.net`.
    #[serde(rename = "net")]
    Net,
    /// Reading the plugin's own secrets.
    #[serde(rename = "secrets.read")]
    SecretsRead,
    /// Writing the plugin's own secrets.
    #[serde(rename = "secrets.write")]
    SecretsWrite,
    /// Reading files below `sandbox.fsAccess.read`.
    #[serde(rename = "fs.read")]
    FsRead,
    /// Writing files below `sandbox.fsAccess.write`.
    #[serde(rename = "fs.write")]
    FsWrite,
    /// Publishing the events of `events.publish`.
    #[serde(rename = "events.publish")]
    EventsPublish,
    /// Subscribing to the events of `events.subscribe`.
    #[serde(rename = "events.subscribe")]
    EventsSubscribe,
    /// Creating timers.
    #[serde(rename = "scheduler.create")]
    SchedulerCreate,
    /// Cancelling the plugin's own timers.
    #[serde(rename = "scheduler.cancel")]
    SchedulerCancel,
    /// Reading the calendar.
    #[serde(rename = "calendar.read")]
    CalendarRead,
    /// Writing the calendar.
    #[serde(rename = "calendar.write")]
    CalendarWrite,
    /// Running code in a sandbox under the plugin's own limits.
    #[serde(rename = "sandbox.execute")]
    SandboxExecute,
    /// Reading artifacts.
    #[serde(rename = "artifacts.read")]
    ArtifactsRead,
    /// Writing artifacts.
    #[serde(rename = "artifacts.write")]
    ArtifactsWrite,
    /// Calling other plugins.
    #[serde(rename = "invoke")]
    Invoke,
}

impl Permission {
    /// Returns the name in a manifest, such as `fs.read`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::SecretsRead => "secrets.read",
            Self::SecretsWrite => "secrets.write",
            Self::FsRead => "fs.read",
            Self::FsWrite => "fs.write",
            Self::EventsPublish => "events.publish",
            Self::EventsSubscribe => "events.subscribe",
            Self::SchedulerCreate => "scheduler.create",
            Self::SchedulerCancel => "scheduler.cancel",
            Self::CalendarRead => "calendar.read",
            Self::CalendarWrite => "calendar.write",
            Self::SandboxExecute => "sandbox.execute",
            Self::ArtifactsRead => "artifacts.read",
            Self::ArtifactsWrite => "artifacts.write",
            Self::Invoke => "invoke",
        }
    }
}

/// The sandbox of a plugin.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Sandbox {
    /// The kind of sandbox. Default: `subprocess`, and `wasm` for that runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// The minimum isolation level. Default: that of the strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// The directories that the plugin may access with `fs.read` and `fs.write`.
    pub fs_access: FsAccess,
    /// The hosts that the plugin may reach with `net`, in the syntax of a network policy, such as `api.example.com:443`.
    #[schemars(length(max = 256))]
    pub net: Vec<String>,
    /// The limits.
    pub limits: Limits,
    /// The times.
    pub timeouts: Timeouts,
    /// The restarts after a crash.
    pub restart: Restart,
}

/// The kind of a plugin's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// A process sandbox.
    Subprocess,
    /// A container.
    Container,
    /// A VM.
    Vm,
    /// A WebAssembly sandbox in the host's process.
    Wasm,
    /// A thread of the host, without isolation. In development mode only.
    Thread,
    /// The host's own thread, without isolation. In development mode only.
    Inline,
}

/// Directories that a plugin may access. A path is relative to the plugin's data directory, or absolute.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct FsAccess {
    /// Directories and files to read.
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub read: Vec<String>,
    /// Directories and files to write.
    #[schemars(length(max = 64), inner(length(min = 1, max = 1024)))]
    pub write: Vec<String>,
}

/// The limits of a plugin. A missing limit has the host's default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Memory of all processes together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Bytes stored in the plugin's own directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    /// CPU time of one call.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME))]
    pub cpu_time: Option<Duration>,
    /// Live processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub pids: Option<u32>,
}

/// The times of a plugin. A missing one has the host's default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Timeouts {
    /// The maximum time of a call.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME))]
    pub call: Option<Duration>,
    /// The maximum time from the start of the plugin until it is ready.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME))]
    pub start: Option<Duration>,
    /// The time without a call after which the plugin ends.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME))]
    pub idle: Option<Duration>,
    /// The time between SIGTERM and SIGKILL.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME))]
    pub grace: Option<Duration>,
}

/// The restarts of a plugin. A missing value has the host's default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Restart {
    /// The maximum number of restarts within the time `within`. After that, calls fail until the plugin is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000))]
    pub max: Option<u32>,
    /// The time in which restarts are counted.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME))]
    pub within: Option<Duration>,
    /// The time before the first restart. It doubles with each further one.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME))]
    pub min_backoff: Option<Duration>,
    /// The maximum time before a restart.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME))]
    pub max_backoff: Option<Duration>,
}

/// A method of a plugin.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Method {
    /// A description in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 200))]
    pub description: Option<String>,
    /// The JSON Schema of the parameters. Default: anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Map<String, Value>>,
    /// The JSON Schema of the result. Default: anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Map<String, Value>>,
    /// The maximum time of a call, in place of the sandbox's.
    #[serde(with = "serde_optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", regex(pattern = TIME))]
    pub timeout: Option<Duration>,
    /// True if a call that was interrupted may be made again.
    pub idempotent: bool,
}

/// The events of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Events {
    /// Patterns of the events that the plugin publishes, such as `weather.changed` or `weather.*`.
    #[schemars(length(max = 64))]
    pub publish: Vec<String>,
    /// Patterns of the events that the plugin receives.
    #[schemars(length(max = 64))]
    pub subscribe: Vec<String>,
}
