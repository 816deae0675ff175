//! Copies of files between the host and sandboxes, and copy-on-write workspaces by copy.
//!
//! ```text
//! host files --HostTree::copy_in--> sandbox
//! sandbox --copy_out--> change set in a file without a name --apply--> directory of the host
//! host directory --CopyOnWrite::create--> private workspace --changes--> change set
//! ```
//!
//! Files from a sandbox become a change set first, so that its files reach the host by the one way that checks
//! paths, links, permissions and files that programs of the host execute or obey.

mod by_copy;
mod comparison;
mod copy_end;
mod host_tree;
mod keep;
mod outgoing;
mod overlay_layer;
mod review;

pub use by_copy::CopyOnWriteByCopy;
pub use copy_end::CopyEnd;
pub use host_tree::{HostTree, Sent};
pub use keep::{KeptChanges, keep};
pub use outgoing::{CopiedOut, copy_out, copy_out_with};
pub use overlay_layer::OverlayLayer;
pub use review::{ChangesReview, apply_reviewed, review};

use std::fs::File;
use std::io::{Seek, SeekFrom};

use cofferdam_contract::{Error, ErrorKind, FileReader, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::bounds::Bounds;
use crate::error::ChangesError;

/// Stores the changes of a sandbox in a file without a name, in the directory for temporary files.
///
/// # Errors
/// - `Io` if the changes cannot be read or stored.
pub async fn received(layer: FileReader) -> Result<File> {
    let failed =
        |error| Error::new(ErrorKind::Io, "changes", "cannot read the changes of the workspace").with_source(error);
    let mut file = tokio::fs::File::from_std(tempfile::tempfile().map_err(failed)?);
    let mut layer = layer.take(Bounds::default().max_bytes.saturating_mul(2));
    tokio::io::copy(&mut layer, &mut file).await.map_err(failed)?;
    file.flush().await.map_err(failed)?;
    let mut file = file.into_std().await;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

/// Converts an error of change sets.
#[must_use]
pub fn to_error(operation: &'static str, error: &ChangesError) -> Error {
    let kind = match error {
        ChangesError::NotFound { .. } | ChangesError::NoMatch => ErrorKind::NotFound,
        ChangesError::NoSpace { .. } | ChangesError::TooLarge { .. } => ErrorKind::ResourceExhausted,
        ChangesError::Busy { .. } => ErrorKind::Conflict,
        ChangesError::Malformed { .. }
        | ChangesError::NotAChangeSet { .. }
        | ChangesError::WrongDirectory { .. }
        | ChangesError::Ambiguous { .. } => ErrorKind::InvalidInput,
        _ => ErrorKind::Io,
    };
    Error::new(kind, operation, error.to_string())
}

/// Runs work that may wait for a disk on a thread for blocking tasks.
async fn blocking<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, operation, "the task ended early")))
}
