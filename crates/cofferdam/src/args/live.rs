//! The commands of servers and their clients, and the arguments of those for live sandboxes.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Subcommand};
use cofferdam::parse_duration;

use super::{
    ClientArgs, CodeArgs, CopyFilesArgs, CreateArgs, ExecArgs, KernelArgs, KeysArgs, ListSandboxesArgs,
    OutputOfExecArgs, RemoveArgs,
};
use crate::values::parse_label;

/// The commands of servers and of their clients.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Create, list, rotate and revoke keys of a server
    Keys(KeysArgs),
    /// Create a sandbox on a server
    Create(Box<CreateArgs>),
    /// List the sandboxes of a server
    Ls(ListSandboxesArgs),
    /// Run a command in a sandbox of a server
    Exec(Box<ExecArgs>),
    /// Run code of a language in a sandbox of a server
    Code(CodeArgs),
    /// Start, list, interrupt and stop interpreters in a sandbox of a server
    Kernel(KernelArgs),
    /// Connect again to a command in a sandbox of a server
    Attach(AttachArgs),
    /// Print the output of a command in a sandbox of a server
    Logs(OutputOfExecArgs),
    /// Copy a file or directory into or out of a sandbox of a server
    Cp(CopyFilesArgs),
    /// Show, apply or save the changes of the workspace of a sandbox of a server
    Diff(DiffArgs),
    /// Print changes of files in a sandbox of a server as they occur
    Watch(WatchArgs),
    /// Forward a local address to a port of a sandbox of a server
    Port(PortArgs),
    /// Copy a sandbox of a server; the copy resumes from its state
    Fork(ForkArgs),
    /// Pause all programs in sandboxes of a server
    Pause(SandboxesArgs),
    /// Resume all programs in sandboxes of a server
    Resume(SandboxesArgs),
    /// Change the lifetime or the idle time of a sandbox of a server
    Extend(ExtendArgs),
    /// Rename a sandbox of a server
    Rename(RenameArgs),
    /// Print the resource usage of sandboxes of a server
    Stats(StatsArgs),
    /// Close sandboxes of a server
    Rm(RemoveArgs),
    /// Close the sandboxes of a server that are not in use
    Prune(PruneArgs),
}

/// `cofferdam pause` and `resume`.
#[derive(Debug, Args)]
pub struct SandboxesArgs {
    /// Select the sandboxes by their ids or names
    #[arg(required = true, add = crate::completion::sandboxes())]
    pub sandboxes: Vec<String>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam extend`.
#[derive(Debug, Args)]
pub struct ExtendArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Close it after this time from now
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, required_unless_present = "idle")]
    pub life: Option<Duration>,
    /// Close it when it was not used for this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub idle: Option<Duration>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam fork`.
#[derive(Debug, Args)]
pub struct ForkArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Name the copy
    #[arg(long)]
    pub name: Option<String>,
    /// Close the copy when it was not used for this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub idle: Option<Duration>,
    /// Close the copy after this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub life: Option<Duration>,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam rename`.
#[derive(Debug, Args)]
pub struct RenameArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Give the sandbox this name
    pub name: String,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

const STATS_HELP: &str = "\
Examples:
  cofferdam stats                      all sandboxes, again each second on a terminal until Ctrl-C
  cofferdam stats --once build         measure for a second, print and exit";

/// `cofferdam stats`.
#[derive(Debug, Args)]
#[command(after_help = STATS_HELP)]
pub struct StatsArgs {
    /// Select the sandboxes by their ids or names [default: all]
    #[arg(add = crate::completion::sandboxes())]
    pub sandboxes: Vec<String>,
    /// Print once, also on a terminal
    #[arg(long)]
    pub once: bool,
    /// Print a JSON document, once
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

const PRUNE_HELP: &str = "\
Examples:
  cofferdam prune --unused 10m         close sandboxes that were not used for 10 minutes
  cofferdam prune --label job=7 --yes  close those with a label, without a question

A sandbox in which a command runs, or that a client uses, remains unless --running is given.";

/// `cofferdam prune`.
#[derive(Debug, Args)]
#[command(after_help = PRUNE_HELP)]
pub struct PruneArgs {
    /// Close sandboxes with this label only; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    pub label: Vec<(String, String)>,
    /// Close sandboxes only that were not used for this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub unused: Option<Duration>,
    /// Close sandboxes in which commands run, too
    #[arg(long, conflicts_with = "unused")]
    pub running: bool,
    /// Close them without a question
    #[arg(long)]
    pub yes: bool,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

const ATTACH_HELP: &str = "\
Examples:
  cofferdam attach build               the newest command that runs in the sandbox
  cofferdam attach build ex-0192…      another one

In a terminal, Ctrl-] leaves the command running and stops this client. Elsewhere, Ctrl-C does.";

/// `cofferdam attach`.
#[derive(Debug, Args)]
#[command(after_help = ATTACH_HELP)]
pub struct AttachArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Select the exec by its id [default: the newest that runs]
    pub exec: Option<String>,
    /// Skip this number of bytes of output, which were read before
    #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    pub offset: u64,
    /// Pass no input to the command
    #[arg(long)]
    pub no_stdin: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

const PORT_HELP: &str = "\
Examples:
  cofferdam port build 8000            forward 127.0.0.1:8000
  cofferdam port build 5432 --listen 127.0.0.1:15432

All protocols over TCP work. Ctrl-C stops the forwarding.";

/// `cofferdam port`.
#[derive(Debug, Args)]
#[command(after_help = PORT_HELP)]
pub struct PortArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Forward to this port in the sandbox
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Listen on this address [default: the same port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    #[command(flatten)]
    pub client: ClientArgs,
}

const DIFF_HELP: &str = "\
Examples:
  cofferdam diff fix                   print the differences to the directory
  cofferdam diff --apply fix           write the changes to the directory
  cofferdam diff --save fix.tar fix    save them for `cofferdam changes show` and `apply`

The sandbox was created with `cofferdam create --workspace`. Exit status 1: files that the host
changed meanwhile, or that programs of the host obey, were not overwritten.";

/// `cofferdam diff`.
#[derive(Debug, Args)]
#[command(after_help = DIFF_HELP)]
pub struct DiffArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Write the changes to the directory instead of printing them
    #[arg(long)]
    pub apply: bool,
    /// Save the changes as a layer of an OCI image instead of printing them
    #[arg(long, value_name = "FILE")]
    pub save: Option<std::path::PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Select the sandbox by its id or name
    #[arg(add = crate::completion::sandboxes())]
    pub sandbox: String,
    /// Watch this directory, with all beneath it [default: the workspace]
    #[arg(default_value = "", hide_default_value = true)]
    pub path: String,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub client: ClientArgs,
}
