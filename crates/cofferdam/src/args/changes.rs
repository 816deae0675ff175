//! The arguments of `cofferdam changes`, and of runs with a copy-on-write workspace.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const CHANGES_HELP: &str = "\
Examples:
  cofferdam run --workspace . -- make test    the guest changes a copy of this directory
  cofferdam changes ls                        list the changes that were kept
  cofferdam changes show                      show the only kept changes of this directory
  cofferdam changes show 3f8a                 show the differences
  cofferdam changes apply 3f8a --only 'src/**'
  cofferdam changes discard 3f8a --only '*.log'
  cofferdam changes discard 3f8a

CHANGES is the id that a run printed, its beginning, or a file of `run --save-changes`. A file
takes precedence over an id. Kept changes are in $XDG_STATE_HOME/cofferdam/changes or
~/.local/state/cofferdam/changes, those of root in /var/lib/cofferdam/changes: at most 4 GiB, for
30 days.";

/// `cofferdam changes`.
#[derive(Debug, Args)]
#[command(after_help = CHANGES_HELP)]
pub struct ChangesArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: ChangesCommand,
}

/// The subcommands of `cofferdam changes`.
#[derive(Debug, Subcommand)]
pub enum ChangesCommand {
    /// List the kept changes
    Ls(ListChangesArgs),
    /// Show the differences to the directory
    Show(ShowChangesArgs),
    /// Write changes to the directory; exit status 1 if one was not written
    Apply(ApplyChangesArgs),
    /// Delete kept changes, a part of them, or a file of changes
    Discard(DiscardChangesArgs),
    /// Delete the oldest kept changes
    Prune(PruneChangesArgs),
}

/// `cofferdam changes ls`.
#[derive(Debug, Args)]
pub struct ListChangesArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam changes show`.
#[derive(Debug, Args)]
pub struct ShowChangesArgs {
    /// Select the changes by their id, the beginning of it, or a file [default: the only kept changes of
    /// the current directory]
    #[arg(value_name = "CHANGES")]
    pub changes: Option<String>,

    /// Compare with this directory [default: the one that the guest saw]
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,

    /// Show only paths that match this pattern, such as 'src/**/*.rs'; repeatable
    #[arg(long, value_name = "GLOB")]
    pub only: Vec<String>,

    /// Print only paths, kinds and counts
    #[arg(long)]
    pub stat: bool,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam changes apply`.
#[derive(Debug, Args)]
pub struct ApplyChangesArgs {
    /// Select the changes by their id, the beginning of it, or a file [default: the only kept changes of
    /// the current directory]
    #[arg(value_name = "CHANGES")]
    pub changes: Option<String>,

    /// Write to this directory [default: the one that the guest saw]
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,

    /// Write only paths that match this pattern, such as 'src/**/*.rs'; repeatable
    #[arg(long, value_name = "GLOB")]
    pub only: Vec<String>,

    /// Write also this file, which other programs run by themselves, such as .envrc; repeatable
    #[arg(long, value_name = "PATH")]
    pub allow: Vec<String>,

    /// Write nothing, and print what would happen to each path
    #[arg(long)]
    pub dry_run: bool,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam changes discard`.
#[derive(Debug, Args)]
pub struct DiscardChangesArgs {
    /// Delete the changes with these ids, beginnings of ids, or files
    #[arg(value_name = "CHANGES", required = true)]
    pub changes: Vec<String>,

    /// Delete only paths that match this pattern, such as 'src/**/*.rs', and keep the others; repeatable
    #[arg(long, value_name = "GLOB")]
    pub only: Vec<String>,

    /// With --only, compare with this directory [default: the one that the guest saw]
    #[arg(long, value_name = "DIR", requires = "only")]
    pub to: Option<PathBuf>,

    /// Delete nothing, and print what would be deleted
    #[arg(long)]
    pub dry_run: bool,
}

/// `cofferdam changes prune`.
#[derive(Debug, Args)]
pub struct PruneChangesArgs {
    /// Delete those that are older than this
    #[arg(long, value_name = "DURATION", value_parser = cofferdam::parse_duration)]
    pub older_than: Option<std::time::Duration>,

    /// Keep at most this size in total
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<cofferdam::ByteSize>,
}

/// The use of the changes of a copy-on-write workspace after a run.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Changes of the workspace")]
pub struct ReviewArgs {
    /// Print the differences to the directory at the end
    #[arg(long)]
    pub diff: bool,

    /// Write the changes to the directory at the end
    #[arg(long, conflicts_with = "apply_if_ok")]
    pub apply: bool,

    /// Write the changes to the directory if the command succeeded
    #[arg(long)]
    pub apply_if_ok: bool,

    /// Save the changes as a layer of an OCI image
    #[arg(long, value_name = "FILE")]
    pub save_changes: Option<PathBuf>,
}
