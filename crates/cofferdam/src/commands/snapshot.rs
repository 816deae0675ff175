//! `cofferdam snapshot`: saves a VM to a file, restores it from the file, and prints the contents of the file.

mod inspect;
mod restore;
mod save;

use std::path::{Path, PathBuf};

use cofferdam::Result;
use cofferdam::registry::machines::ArchiveKey;

use super::work::{Outcome, Work};
use crate::args::{SnapshotArgs, SnapshotCommand};
use crate::report::{self, Form};

/// Runs the command. The exit status is that of a command in the VM, if there is one.
pub fn main(args: SnapshotArgs, config: Option<PathBuf>) -> u8 {
    let form = if args.command.json() { Form::Json } else { Form::Text };
    let done = match args.command {
        SnapshotCommand::Save(args) => save::carry_out(*args, config, form),
        SnapshotCommand::Restore(args) => restore::carry_out(*args, config, form),
        SnapshotCommand::Inspect(args) => inspect::carry_out(&args, form),
    };
    done.unwrap_or_else(|error| report::error(&error, form))
}

pub(super) fn key(path: Option<&Path>) -> Result<Option<ArchiveKey>> {
    path.map(ArchiveKey::read).transpose()
}
