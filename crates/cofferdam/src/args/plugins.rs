//! The arguments of `cofferdam plugins`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use cofferdam_plugin::scaffold::Template;

#[cfg(feature = "server")]
use super::ClientArgs;

const PLUGINS_HELP: &str = "\
Examples:
  cofferdam plugins new hello
  cofferdam plugins call ./hello hello '{\"name\": \"Ada\"}'
  cofferdam plugins keygen author.key
  cofferdam plugins package hello --key author.key
  cofferdam plugins install hello-0.1.0.cplugin --trust author.key.pub --yes
  cofferdam plugins list
  cofferdam plugins uninstall hello

Plugins are installed in $XDG_DATA_HOME/cofferdam/plugins or ~/.local/share/cofferdam/plugins, and
those of root in /var/lib/cofferdam/plugins.";

/// `cofferdam plugins`.
#[derive(Debug, Args)]
#[command(after_help = PLUGINS_HELP)]
pub struct PluginsArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: PluginsCommand,
}

/// The subcommands of `cofferdam plugins`.
#[derive(Debug, Subcommand)]
pub enum PluginsCommand {
    /// Check manifests, and report every problem at once; exit status 1 if a plugin cannot be used
    Validate(ValidateArgs),
    /// Print the JSON Schema of manifests
    Schema,
    /// Create a plugin that has one method and a test
    New(NewArgs),
    /// Call a method of a plugin, and print its result
    Call(Box<CallArgs>),
    /// Run plugins: their timers and events, and the calls on standard input
    Run(Box<RunPluginsArgs>),
    /// Show the log of plugins
    Logs(LogsArgs),
    /// Describe a plugin: what it may do, its methods and limits
    Inspect(InspectPluginArgs),
    /// Set or remove a secret of a plugin
    Secret(SecretArgs),
    /// Create a key that signs packages
    Keygen(KeygenArgs),
    /// Pack a plugin into a signed package
    Package(PackageArgs),
    /// Install a package, after showing what the plugin may do
    Install(InstallArgs),
    /// Uninstall a plugin
    Uninstall(UninstallArgs),
    /// List the installed plugins
    List(ListArgs),
}

/// `cofferdam plugins validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Check these manifests, or directories with a plugin.toml or plugin.json
    #[arg(value_name = "PATH", default_value = ".")]
    pub paths: Vec<PathBuf>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam plugins new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// Name the plugin
    pub name: String,

    /// Create a plugin for this runtime
    #[arg(long, value_name = "RUNTIME", value_enum, default_value_t = NewRuntime::Python)]
    pub runtime: NewRuntime,

    /// Create it in this directory [default: the name]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// The runtime of a new plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NewRuntime {
    /// Python, with the SDK
    Python,
    /// Node.js, with the SDK
    Node,
    /// A program without an SDK
    Command,
}

impl From<NewRuntime> for Template {
    fn from(runtime: NewRuntime) -> Self {
        match runtime {
            NewRuntime::Python => Self::Python,
            NewRuntime::Node => Self::Node,
            NewRuntime::Command => Self::Command,
        }
    }
}

/// `cofferdam plugins keygen`.
#[derive(Debug, Args)]
pub struct KeygenArgs {
    /// Write the private key to this file, and the public key to FILE.pub
    pub file: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam plugins package`.
#[derive(Debug, Args)]
pub struct PackageArgs {
    /// Pack this directory
    #[arg(value_name = "DIR", default_value = ".")]
    pub directory: PathBuf,

    /// Sign with the private key in this file
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,

    /// Write to this file, which ends in .cplugin [default: NAME-VERSION.cplugin]
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam plugins install`.
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Install this package
    pub file: PathBuf,

    /// Install without asking; the key of the package must be trusted
    #[arg(long)]
    pub yes: bool,

    /// Trust the public key in this file, with which the package must be signed
    #[arg(long, value_name = "FILE")]
    pub trust: Option<PathBuf>,

    /// Accept another key than that of the installed version
    #[arg(long)]
    pub replace_key: bool,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam plugins uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Uninstall the plugin of this name
    pub name: String,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam plugins list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    /// The server of the plugins.
    #[cfg(feature = "server")]
    #[command(flatten)]
    pub client: ClientArgs,
}

/// The plugins of `cofferdam serve`.
#[cfg(feature = "server")]
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Plugins")]
pub struct ServePluginsArgs {
    /// Let clients call the methods of this plugin: an installed one, or a directory; repeatable
    #[arg(long, value_name = "PLUGIN")]
    pub plugin: Vec<String>,

    /// Configure a plugin with the JSON object in this file; repeatable
    #[arg(long, value_name = "PLUGIN=FILE", requires = "plugin")]
    pub plugin_config: Vec<String>,

    /// Keep the state of plugins in this directory [default: the user's directory for data]
    #[arg(long, value_name = "DIR", requires = "plugin")]
    pub plugin_state: Option<PathBuf>,

    /// Encrypt secrets of plugins with the key from env:NAME, file:PATH or keyring:SERVICE/USER [default: a key file in
    /// the state]
    #[arg(long, value_name = "SOURCE", requires = "plugin")]
    pub plugin_key: Option<String>,
}

/// The options of a host of plugins.
#[derive(Debug, Default, PartialEq, Args)]
pub struct HostArgs {
    /// Load this plugin too, so that plugins can invoke it: an installed one, or a directory; repeatable
    #[arg(long, value_name = "PLUGIN")]
    pub with: Vec<String>,

    /// Configure the plugin with the JSON object in this file
    #[arg(long, value_name = "FILE")]
    pub plugin_config: Option<PathBuf>,

    /// Run the plugin in this kind of sandbox, in place of the manifest's
    #[arg(long, value_name = "STRATEGY", value_enum)]
    pub strategy: Option<StrategyArg>,

    /// Run containers and VMs from this image
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,

    /// Accept that these protections are weaker than requested or absent
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub allow_weaker: Vec<cofferdam::Protection>,

    /// Allow strategies without isolation and --debug, for plugins that you wrote; COFFERDAM_PLUGIN_DEV_MODE=1 does, too
    #[arg(long)]
    pub development: bool,

    /// Debug the plugin, in development mode and with the strategy thread
    #[arg(long, value_name = "MODE", value_enum)]
    pub debug: Option<DebugArg>,

    /// Write profiles to this directory [default: the current directory]
    #[arg(long, value_name = "DIR", requires = "debug")]
    pub profile_dir: Option<PathBuf>,

    /// Keep the state of plugins in this directory [default: the user's directory for data]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Encrypt secrets with the key from env:NAME, file:PATH or keyring:SERVICE/USER [default: a key file in the state]
    #[arg(long, value_name = "SOURCE")]
    pub key: Option<String>,

    /// Append a span for each call and request to this file, in the JSON form of the OpenTelemetry protocol
    #[arg(long, value_name = "FILE")]
    pub traces: Option<PathBuf>,

    /// Print the log on standard error, too
    #[arg(short, long)]
    pub verbose: bool,
}

/// The strategy of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StrategyArg {
    /// A process sandbox
    Subprocess,
    /// A container
    Container,
    /// A VM
    Vm,
    /// WebAssembly
    Wasm,
    /// A child of this process, without isolation
    Thread,
    /// Like thread, and restarted when a file of the plugin changes
    Inline,
}

/// The kind of debugging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DebugArg {
    /// Reserve a port for a debugger, and print how to attach it; no time limit ends the plugin
    Inspect,
    /// Write a profile in a format of Chrome when the plugin ends
    Profile,
}

/// `cofferdam plugins call`.
#[derive(Debug, Args)]
pub struct CallArgs {
    /// Call this plugin: an installed one, or a directory
    pub plugin: String,

    /// Call this method
    pub method: String,

    /// Pass this JSON as the input; `-` reads it from standard input
    #[arg(value_name = "INPUT", default_value = "{}")]
    pub input: String,

    /// Limit the call's time, below the manifest's limit
    #[arg(long, value_name = "DURATION", value_parser = cofferdam::parse_duration)]
    pub timeout: Option<std::time::Duration>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    /// The options of the host.
    #[command(flatten)]
    pub host: HostArgs,

    /// The server of the plugin.
    #[cfg(feature = "server")]
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam plugins run`.
#[derive(Debug, Args)]
pub struct RunPluginsArgs {
    /// Run these plugins: installed ones, or directories
    #[arg(required = true, value_name = "PLUGIN")]
    pub plugins: Vec<String>,

    /// Serve the counters on this address, for Prometheus
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<std::net::SocketAddr>,

    /// Wait at most this long for running calls when the plugins are stopped
    #[arg(long, value_name = "DURATION", value_parser = cofferdam::parse_duration)]
    pub drain: Option<std::time::Duration>,

    /// The options of the host.
    #[command(flatten)]
    pub host: HostArgs,
}

/// `cofferdam plugins logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Show the log of this plugin [default: all]
    pub plugin: Option<String>,

    /// Show the last N lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub lines: usize,

    /// Show new lines as they come
    #[arg(short, long)]
    pub follow: bool,

    /// Print the lines as they are, in JSON
    #[arg(long)]
    pub json: bool,

    /// Keep the state of plugins in this directory [default: the user's directory for data]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

/// `cofferdam plugins inspect`.
#[derive(Debug, Args)]
pub struct InspectPluginArgs {
    /// Describe this plugin: an installed one, or a directory
    pub plugin: String,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam plugins secret`.
#[derive(Debug, Args)]
pub struct SecretArgs {
    /// Change a secret of this plugin
    pub plugin: String,

    /// Name the secret, as in the manifest
    pub name: String,

    /// Remove it; otherwise the new value is read from standard input
    #[arg(long)]
    pub remove: bool,

    /// Keep the state of plugins in this directory [default: the user's directory for data]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Encrypt secrets with the key from env:NAME, file:PATH or keyring:SERVICE/USER [default: a key file in the state]
    #[arg(long, value_name = "SOURCE")]
    pub key: Option<String>,
}
