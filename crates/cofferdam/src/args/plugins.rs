//! The arguments of `cofferdam plugins`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `cofferdam plugins`.
#[derive(Debug, Args)]
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
