//! `cofferdam snapshot`: saves a VM to a file, restores it from the file, and prints the contents of the file. The
//! snapshots of a server are in `server/stored.rs`.

#[cfg(feature = "vm")]
mod inspect;
#[cfg(feature = "vm")]
mod restore;
#[cfg(feature = "vm")]
mod save;

#[cfg(feature = "vm")]
use std::path::Path;
use std::path::PathBuf;

#[cfg(feature = "vm")]
use cofferdam::Result;
#[cfg(feature = "vm")]
use cofferdam::registry::vms::ArchiveKey;

#[cfg(feature = "vm")]
use super::work::{Outcome, Work};
use crate::args::{SnapshotArgs, SnapshotCommand};
#[cfg(feature = "vm")]
use crate::report;
use crate::report::Form;

/// Runs the command. The exit status is that of a command in the VM, if there is one.
pub fn main(args: SnapshotArgs, config: Option<PathBuf>) -> u8 {
    let form = Form::of(args.command.json());
    #[cfg(not(feature = "vm"))]
    drop(config);
    #[cfg(feature = "vm")]
    let ended = |done: Result<u8>| report::finish(done, form);
    match args.command {
        #[cfg(feature = "vm")]
        SnapshotCommand::Save(args) => ended(save::carry_out(*args, config, form)),
        #[cfg(feature = "vm")]
        SnapshotCommand::Restore(args) => ended(restore::carry_out(*args, config, form)),
        #[cfg(feature = "vm")]
        SnapshotCommand::Inspect(args) => ended(inspect::carry_out(&args, form)),
        #[cfg(feature = "server")]
        SnapshotCommand::Stored(command) => super::server::stored::main(command, form),
    }
}

#[cfg(feature = "vm")]
pub(super) fn key(path: Option<&Path>) -> Result<Option<ArchiveKey>> {
    path.map(ArchiveKey::read).transpose()
}
