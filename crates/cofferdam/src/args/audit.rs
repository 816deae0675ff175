//! `cofferdam audit`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[cfg(feature = "server")]
use super::ClientArgs;

const AUDIT_HELP: &str = "\
Examples:
  cofferdam audit verify               check that no line was changed; exit status 1 if one was,
                                       3 if lines are known to be lost
  cofferdam audit query --tenant acme --last 20
  cofferdam audit verify /var/log/cofferdam --head 04b5d868…

  cofferdam audit query --server https://sandboxes.example --kind call

The default directory is the one in [audit] of the configuration file. With --server, `query` prints
lines of your tenant, or with the scope admin and --tenant those of another one, and `verify` needs
the scope admin.";

/// `cofferdam audit`.
#[derive(Debug, Args)]
#[command(after_help = AUDIT_HELP)]
pub struct AuditArgs {
    /// The command
    #[command(subcommand)]
    pub command: AuditCommand,
}

/// Commands for an audit log.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Check that no line was changed, removed, added or moved
    Verify(VerifyArgs),
    /// Print lines as JSON
    Query(QueryArgs),
}

/// `cofferdam audit verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Read the log in this directory
    pub directory: Option<PathBuf>,
    /// Use the signing key in this file [default: the key of the configuration file]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Require the line with this hash, which was the last one when it was stored elsewhere
    #[arg(long, value_name = "HASH")]
    pub head: Option<String>,
    /// Compare artifacts with their hashes, and find artifacts that no line names
    #[arg(long)]
    pub artifacts: bool,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
    #[cfg(feature = "server")]
    #[command(flatten)]
    pub client: ClientArgs,
}

/// `cofferdam audit query`.
#[derive(Debug, Args)]
pub struct QueryArgs {
    /// Read the log in this directory
    pub directory: Option<PathBuf>,
    /// Select the execution with this id
    #[arg(long)]
    pub id: Option<String>,
    /// Select executions of this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Select executions that began at this time or later, such as 2026-11-22T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Select executions that began before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Select lines that name this sandbox
    #[arg(long)]
    pub sandbox: Option<String>,
    /// Select lines of this kind, such as call or end
    #[arg(long, value_parser = cofferdam_audit::Record::KINDS.to_vec())]
    pub kind: Option<String>,
    /// Select lines with this text in a text or number of the record, in upper or lower case
    #[arg(long)]
    pub text: Option<String>,
    /// Print only the last N lines
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    #[cfg(feature = "server")]
    #[command(flatten)]
    pub client: ClientArgs,
}
