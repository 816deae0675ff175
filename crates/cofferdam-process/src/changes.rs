//! The changes of a copy-on-write workspace.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use cofferdam_changes::{Bounds, Header, Marks, Summary, capture_overlay, text};
use cofferdam_contract::{ByteSize, Error, ErrorKind, Result, WorkspaceChanges};

use crate::core::{Core, Layer};
use crate::error;

/// The maximum number of skipped files that are listed.
const MAX_LISTED: usize = 20;

/// Captures the changes so far. The sandbox may have ended.
pub async fn capture(core: Arc<Core>) -> Result<WorkspaceChanges> {
    let captured = tokio::task::spawn_blocking(move || layer(&core)).await;
    let (file, summary) =
        captured.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "changes", "the task ended early")))?;
    let listed = summary.skipped.iter().take(MAX_LISTED);
    Ok(WorkspaceChanges {
        layer: Box::new(tokio::fs::File::from_std(file)),
        skipped: listed.map(|skipped| format!("{}: {}", text::path(&skipped.path), skipped.reason)).collect(),
        skipped_count: summary.skipped_count,
    })
}

/// Writes the changes to a file without a name.
fn layer(core: &Core) -> Result<(File, Summary)> {
    let Some(Layer { base, upper }) = &core.layer else {
        return Err(Error::invalid("changes", "the workspace is not copy-on-write")
            .with_remedy("create the sandbox with a copy-on-write workspace"));
    };
    let failed = |error| error::os("changes", "cannot read the changes of the workspace", error);
    let not_captured = |error: cofferdam_changes::ChangesError| {
        Error::new(ErrorKind::Io, "changes", format!("cannot capture the changes of the workspace: {error}"))
    };
    let mut file = tempfile::tempfile().map_err(failed)?;
    let started = core.requested.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let started = i64::try_from(started).unwrap_or(i64::MAX);
    let header = Header::of(base.path(), base.as_fd(), started).map_err(not_captured)?;
    // Sparse files may be larger than what the disk limit lets a guest store.
    let disk = core.limits.get().and_then(|limits| limits.disk).map_or(u64::MAX, ByteSize::as_bytes);
    let bounds = Bounds { max_bytes: disk.min(Bounds::default().max_bytes), ..Bounds::default() };
    let marks = if core.facts.privileged { Marks::Trusted } else { Marks::User };
    let summary = capture_overlay(upper.as_fd(), base.as_fd(), marks, &header, &mut file, &bounds);
    let summary = summary.map_err(not_captured)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok((file, summary))
}
