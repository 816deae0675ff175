//! The arguments of `cofferdam plugins`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use cofferdam_plugin::scaffold::Template;

const PLUGINS_HELP: &str = "\
Examples:
  cofferdam plugins new hello
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
    /// Manifests, or directories with a plugin.toml or plugin.json
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
}
