//! A bounded review of the changes of a sandbox, for clients of a server.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use cofferdam_contract::{Error, ErrorKind, Result, WorkspaceChanges};
use cofferdam_linux::named::Directory;

use super::{blocking, received, to_error};
use crate::bounds::Bounds;
use crate::document::{Document, document};
use crate::error::ChangesError;
use crate::read::ChangeSet;
use crate::render::{RenderOptions, render};
use crate::text;

const OPERATION: &str = "changes";

/// A review of the changes of a sandbox.
#[derive(Debug)]
pub struct ChangesReview {
    /// The changes as data.
    pub document: Document,
    /// The changes as text, in the style of `git diff`. No control characters of the guest.
    pub diff: String,
    /// True if the text was cut.
    pub is_cut: bool,
}

/// Reviews the changes of a copy-on-write workspace over the host directory `workspace`. The text has at most
/// `max_diff` bytes.
///
/// # Errors
/// - `NotFound` if the directory cannot be opened any more.
/// - `Io` if the changes or the directory cannot be read.
pub async fn review(changes: WorkspaceChanges, workspace: &Path, max_diff: usize) -> Result<ChangesReview> {
    let file = received(changes.layer).await?;
    let directory = Directory::open(workspace).map_err(|error| {
        let message = format!("cannot open the directory '{}'", text::path(workspace));
        Error::new(ErrorKind::NotFound, OPERATION, message).with_source(error)
    })?;
    let reviewed = move || reviewed(file, &directory, max_diff).map_err(|error| to_error(OPERATION, &error));
    blocking(OPERATION, reviewed).await
}

fn reviewed(file: File, directory: &Directory, max_diff: usize) -> std::result::Result<ChangesReview, ChangesError> {
    let set = ChangeSet::read(file, &Bounds::default())?;
    let document = document(&set, directory.as_fd())?;
    let max = max_diff as u64;
    let options = RenderOptions { max_text: max, max_review: max, ..RenderOptions::default() };
    let mut diff = Vec::new();
    render(&set, directory.as_fd(), &options, &mut diff)?;
    let is_cut = diff.len() > max_diff;
    diff.truncate(max_diff);
    // Removes a character that was cut.
    let diff = String::from_utf8_lossy(&diff).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned();
    Ok(ChangesReview { document, diff, is_cut })
}
