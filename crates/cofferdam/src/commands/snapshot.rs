//! `cofferdam snapshot`: freezes a machine to a file, lets it go on from one, shows what is in one.

mod inspect;
mod restore;
mod save;

use std::path::{Path, PathBuf};

use cofferdam::Result;
use cofferdam::registry::machines::ArchiveKey;

use super::work::{Outcome, Work};
use crate::args::{SnapshotArgs, SnapshotCommand};
use crate::report::{self, Form};

/// Does what is asked for; the exit status is that of a command inside, if there was one.
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
