//! Changes of a sandbox that ends, kept in a store.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use cofferdam_contract::{Error, ErrorKind, Result, Sandbox, Workspace};
use cofferdam_linux::named::Directory;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{blocking, received, to_error};
use crate::apply::is_applied;
use crate::bounds::Bounds;
use crate::error::ChangesError;
use crate::read::ChangeSet;
use crate::resolve;
use crate::store::{Store, StoreLimits};

const OPERATION: &str = "changes";

/// Changes of a sandbox that were kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptChanges {
    /// The id in the store, for `cofferdam changes`.
    pub id: String,
    /// The host directory.
    pub workspace: PathBuf,
    /// The number of changed files.
    pub files: usize,
    /// The number of changed files that could not be kept, such as devices.
    pub skipped: usize,
}

/// Keeps the changes of a sandbox in a store. Returns `None` without a copy-on-write workspace, without changes, and if
/// the host directory has all of them already.
///
/// # Errors
/// - Those of [`Sandbox::changes`].
/// - `Io` if the changes cannot be read or stored, `ResourceExhausted` if the store is full.
pub async fn keep(sandbox: &dyn Sandbox, store: PathBuf, limits: StoreLimits) -> Result<Option<KeptChanges>> {
    let Workspace::CopyOnWrite { path } = sandbox.spec().workspace() else { return Ok(None) };
    let (path, changes) = (path.clone(), sandbox.changes().await?);
    let file = received(changes.layer).await?;
    let stored = blocking(OPERATION, move || keep_file(&file, path, &store, limits)).await?;
    Ok(stored.map(|stored| KeptChanges { skipped: changes.skipped_count, ..stored }))
}

fn keep_file(file: &File, workspace: PathBuf, store: &Path, limits: StoreLimits) -> Result<Option<KeptChanges>> {
    let failed = |error: ChangesError| to_error(OPERATION, &error);
    let again = file.try_clone().map_err(|error| {
        Error::new(ErrorKind::Io, OPERATION, "cannot read the changes of the workspace").with_source(error)
    })?;
    let set = ChangeSet::read(again, &Bounds::default()).map_err(failed)?;
    if set.changes().is_empty() && set.cleared().is_empty() {
        return Ok(None);
    }
    // The directory may be gone. The changes are kept nevertheless.
    let directory = Directory::open(&workspace).ok();
    if directory.as_ref().is_some_and(|directory| is_applied(&set, directory.as_fd()).unwrap_or(false)) {
        return Ok(None);
    }
    let copied = |out: &mut dyn io::Write| {
        let mut file = file;
        let copied = file.seek(SeekFrom::Start(0)).and_then(|_| io::copy(&mut file, out));
        let path = "the changes".to_owned();
        copied.map(drop).map_err(|source| ChangesError::Io { operation: "store", path, source })
    };
    let (id, ()) = Store::open(store, limits).and_then(|store| store.keep(copied)).map_err(failed)?;
    let files = resolve::count(&set, directory.as_ref().map(AsFd::as_fd));
    Ok(Some(KeptChanges { id: id.as_str().to_owned(), workspace, files, skipped: 0 }))
}
