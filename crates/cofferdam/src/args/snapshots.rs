//! The commands of `cofferdam snapshot`, and the arguments of those for snapshots of a server.

#[cfg(feature = "server")]
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[cfg(feature = "server")]
use super::ClientArgs;
#[cfg(feature = "vm")]
use super::{InspectArgs, RestoreArgs, SaveArgs};

const SNAPSHOT_HELP: &str = "\
Examples:
  cofferdam snapshot save --out m.snap --when-prints ready -- python3 -c '...'
  cofferdam snapshot inspect --verify m.snap
  cofferdam snapshot restore m.snap -- cat counter
  cofferdam snapshot restore m.snap --attach
  cofferdam snapshot restore m.snap --lang python --code 'print(1)'
  cofferdam snapshot restore m.snap --for 10s
  cofferdam snapshot take build --name base && cofferdam create --snapshot base

The file of save holds the memory of the VM, with passwords and keys. Only its owner can read it.
With --key-file it is encrypted, and restore accepts only files that were written with the same key:
  (umask 077; head -c 32 /dev/urandom > m.key)";

/// `cofferdam snapshot`.
#[derive(Debug, Args)]
#[command(after_help = SNAPSHOT_HELP)]
pub struct SnapshotArgs {
    /// The command
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

/// Commands for snapshots.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Run a command in a VM and save the VM to a file
    #[cfg(feature = "vm")]
    Save(Box<SaveArgs>),
    /// Restore a VM from a snapshot file
    #[cfg(feature = "vm")]
    Restore(Box<RestoreArgs>),
    /// Print the contents of a snapshot file without starting a VM
    #[cfg(feature = "vm")]
    Inspect(InspectArgs),
    /// Snapshots of a server.
    #[cfg(feature = "server")]
    #[command(flatten)]
    Stored(StoredCommand),
}

/// Commands for the snapshots of a server.
#[cfg(feature = "server")]
#[derive(Debug, Subcommand)]
pub enum StoredCommand {
    /// Take a snapshot of a sandbox of a server
    Take {
        /// Select the sandbox by its id or name
        #[arg(add = crate::completion::sandboxes())]
        sandbox: String,
        /// Name the snapshot
        #[arg(long)]
        name: Option<String>,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// List the snapshots of a server
    Ls {
        /// Print a JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Delete snapshots of a server
    Rm {
        /// Select the snapshots by their ids or names
        #[arg(required = true)]
        snapshots: Vec<String>,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Write a snapshot of a server to a file
    Download {
        /// Select the snapshot by its id or name
        snapshot: String,
        /// Write to this file, which appears complete or not at all
        file: PathBuf,
        /// Replace the file if it exists
        #[arg(long)]
        force: bool,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Send a file that was downloaded to a server
    Upload {
        /// Send this file
        file: PathBuf,
        /// Select the backend of the snapshot [default: the server's own]
        #[arg(long, value_name = "NAME")]
        backend: Option<String>,
        /// Name the snapshot
        #[arg(long)]
        name: Option<String>,
        /// Print a JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
}

impl SnapshotCommand {
    /// Returns true if the result is printed as JSON.
    pub fn json(&self) -> bool {
        match self {
            #[cfg(feature = "vm")]
            Self::Save(args) => args.answer.json,
            #[cfg(feature = "vm")]
            Self::Restore(args) => args.answer.json,
            #[cfg(feature = "vm")]
            Self::Inspect(args) => args.json,
            #[cfg(feature = "server")]
            Self::Stored(
                StoredCommand::Take { json, .. }
                | StoredCommand::Ls { json, .. }
                | StoredCommand::Rm { json, .. }
                | StoredCommand::Download { json, .. }
                | StoredCommand::Upload { json, .. },
            ) => *json,
        }
    }
}
