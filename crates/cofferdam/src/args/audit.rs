//! `cofferdam audit`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const AUDIT_HELP: &str = "\
Examples:
  cofferdam audit verify               whether every line is as it was written; exit status 1 if not,
                                       3 if lines are known to be lost
  cofferdam audit query --tenant acme --last 20
  cofferdam audit verify /var/log/cofferdam --head 04b5d868…

Without DIR it is the directory that [audit] in the configuration names.";

/// `cofferdam audit`.
#[derive(Debug, Args)]
#[command(after_help = AUDIT_HELP)]
pub struct AuditArgs {
    /// What to do
    #[command(subcommand)]
    pub command: AuditCommand,
}

/// What to do with a log.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Tell whether lines were changed, removed, added or moved
    Verify(VerifyArgs),
    /// Print lines, as JSON
    Query(QueryArgs),
}

/// `cofferdam audit verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The log's directory
    pub directory: Option<PathBuf>,
    /// File of the key that signs the lines [default: that of the configuration]
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Hash of a line that was once the last, kept elsewhere
    #[arg(long, value_name = "HASH")]
    pub head: Option<String>,
    /// Read the artifacts, too, compare them with their hashes, and find those that no line names
    #[arg(long)]
    pub artifacts: bool,
    /// Print a JSON document
    #[arg(long)]
    pub json: bool,
}

/// `cofferdam audit query`.
#[derive(Debug, Args)]
pub struct QueryArgs {
    /// The log's directory
    pub directory: Option<PathBuf>,
    /// Only the execution of this id
    #[arg(long)]
    pub id: Option<String>,
    /// Only those of this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only those that began then or later, such as 2026-11-22T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub from: Option<String>,
    /// Only those that began before
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only so many, the last ones
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
}
