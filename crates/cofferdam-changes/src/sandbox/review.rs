//! A bounded review of the changes of a sandbox, for clients of a server.

use std::fs::File;
use std::io::Seek;
use std::os::fd::AsFd;
use std::path::Path;

use cofferdam_contract::{Error, ErrorKind, Result, WorkspaceChanges};
use cofferdam_linux::named::Directory;
use cofferdam_util::sha256;

use super::{blocking, received, to_error};
use crate::apply::{Applied, ApplyOptions, apply};
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
    /// The changes as text, in the style of `git diff`. No control characters of the guest. Empty without changes.
    pub diff: String,
    /// True if the text was cut.
    pub is_cut: bool,
    /// The digest of the changes, for [`apply_reviewed`].
    pub digest: String,
}

/// Reviews the changes of a copy-on-write workspace over the host directory `workspace`. The text has at most
/// `max_diff` bytes.
///
/// # Errors
/// - `NotFound` if the directory cannot be opened any more.
/// - `Io` if the changes or the directory cannot be read.
pub async fn review(changes: WorkspaceChanges, workspace: &Path, max_diff: usize) -> Result<ChangesReview> {
    let file = received(changes.layer).await?;
    let directory = open(workspace)?;
    let reviewed = move || reviewed(file, &directory, max_diff).map_err(|error| to_error(OPERATION, &error));
    blocking(OPERATION, reviewed).await
}

/// Applies changes that a person has reviewed to the host directory `workspace`.
///
/// # Errors
/// - `Conflict` if the changes are not those with this digest any more.
/// - Those of [`review`], and of [`apply`].
pub async fn apply_reviewed(
    changes: WorkspaceChanges,
    workspace: &Path,
    digest: String,
    options: ApplyOptions,
) -> Result<Applied> {
    let file = received(changes.layer).await?;
    let directory = open(workspace)?;
    let applied = move || {
        let to_error = |error: ChangesError| to_error(OPERATION, &error);
        if digest_of(&file).map_err(to_error)? != digest {
            let message = "the changes are not those that were reviewed";
            return Err(Error::new(ErrorKind::Conflict, OPERATION, message).with_remedy("review them again"));
        }
        let set = ChangeSet::read(file, &Bounds::default()).map_err(to_error)?;
        apply(&set, directory.as_fd(), &options).map_err(to_error)
    };
    blocking(OPERATION, applied).await
}

fn open(workspace: &Path) -> Result<Directory> {
    Directory::open(workspace).map_err(|error| {
        let message = format!("cannot open the directory '{}'", text::path(workspace));
        Error::new(ErrorKind::NotFound, OPERATION, message).with_source(error)
    })
}

/// Returns the digest of a layer, which is read from its start again afterwards.
fn digest_of(mut file: &File) -> std::result::Result<String, ChangesError> {
    let failed = |source| ChangesError::Io { operation: "read", path: "the changes".to_owned(), source };
    file.rewind().map_err(failed)?;
    let digest = sha256::of_reader(file).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(digest)
}

fn reviewed(file: File, directory: &Directory, max_diff: usize) -> std::result::Result<ChangesReview, ChangesError> {
    let digest = digest_of(&file)?;
    let set = ChangeSet::read(file, &Bounds::default())?;
    let document = document(&set, directory.as_fd())?;
    let max = max_diff as u64;
    let options = RenderOptions { max_text: max, max_review: max, ..RenderOptions::default() };
    let mut diff = Vec::new();
    if !document.changes.is_empty() {
        render(&set, directory.as_fd(), &options, &mut diff)?;
    }
    let is_cut = diff.len() > max_diff;
    diff.truncate(max_diff);
    // Removes a character that was cut.
    let diff = String::from_utf8_lossy(&diff).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned();
    Ok(ChangesReview { document, diff, is_cut, digest })
}
