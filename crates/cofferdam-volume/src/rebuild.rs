//! The file system that a guest may have written directly, recreated from its files.
//!
//! Only the files are kept: names, contents, modes, times and symbolic links. The kernel that mounts the result parses
//! nothing that a guest wrote.

use crate::bounds::Bounds;
use crate::error::{Result, VolumeError, io};
use crate::name::Name;
use crate::pending::Pending;
use crate::store::{Found, Store};
use crate::{files, import};

/// Replaces the file system of a volume. The caller has the volume's exclusive lock.
pub(crate) fn rebuild(store: &Store, name: &Name, found: &Found, size: u64) -> Result<()> {
    let pending = Pending::new(store)?;
    let failed = |error: std::io::Error| io("recreate the file system in", store.path())(error);
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    // The files of the volume fit into it, and holes take no space.
    let bounds = Bounds { max_bytes: size.saturating_mul(16), ..Bounds::default() };
    let (exported, filled) = std::thread::scope(|scope| {
        // The writer is dropped with the closure, so that the reader finds the end of the stream.
        let export = scope.spawn(|| store.export_opened(name, writer, &bounds, &mut |_| ()));
        let filled = import::fill(store, &pending.directory, Some(size), reader, &bounds, &mut |_| ());
        let exported = export.join().unwrap_or_else(|_| Err(unreadable(name)));
        (exported, filled)
    });
    // The reader fails if the writer does. The writer knows why.
    match (exported, filled) {
        (Err(VolumeError::Stream { .. }), Err(error)) => return Err(error),
        (Err(error), _) | (_, Err(error)) => return Err(error),
        (Ok(_), Ok(_)) => {}
    }
    let renamed = rustix::fs::renameat(&pending.directory, files::DISK, &found.directory, files::DISK);
    renamed.and_then(|()| rustix::fs::fsync(&found.directory)).map_err(|error| failed(error.into()))?;
    let record = found.record.with_disk(false);
    files::replace(&found.directory, files::RECORD, &record.encode()).map_err(failed)
}

fn unreadable(name: &Name) -> VolumeError {
    VolumeError::Damaged { name: name.to_string(), reason: "its file system cannot be read".to_owned() }
}
