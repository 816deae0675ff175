//! Entries of a workspace with permissions: files, directories and symlinks.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use cofferdam_contract::{COPIED_MODE, Error, NewEntry};
use serde::Deserialize;
use tokio_util::io::StreamReader;
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::extract::{Path, Query};
use super::problem::Failure;
use super::upload::Upload;
use super::views::Written;
use crate::caller::Caller;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A regular file with the body as its contents.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Symlink,
}

/// Parameters of a new entry.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EntryQuery {
    /// The path, relative to the workspace or below `/workspace`.
    #[param(max_length = 4096)]
    path: String,
    /// The kind. Default: a file.
    #[serde(default = "file")]
    #[param(inline)]
    kind: Kind,
    /// The permissions, as a decimal number. Default: 420 for a file (0644) and 493 for a directory (0755).
    mode: Option<u32>,
    /// The time of the last change of a file, in seconds since 1970. Default: now.
    modified: Option<i64>,
    /// The target of a symlink.
    #[param(max_length = 4096)]
    target: Option<String>,
}

fn file() -> Kind {
    Kind::File
}

/// Create a file, directory or symlink with permissions.
///
/// Replaces a file or symlink at once when the whole body has arrived. Creates missing parent directories.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/files/entry", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), EntryQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Written)))]
pub async fn put(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(EntryQuery { path, kind, mode, modified, target }): Query<EntryQuery>,
    body: Body,
) -> Result<axum::Json<Written>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let path = cofferdam_contract::SandboxPath::new(path)?;
    let _use = live.keep();
    let (upload, watch) = Upload::new(body, app.bounds().file, app.bounds().stall_time);
    let contents = Box::new(StreamReader::new(upload));
    let permissions = |default: u32| mode.unwrap_or(default) & COPIED_MODE;
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let new = match kind {
        Kind::File => {
            let modified = modified.unwrap_or_else(|| i64::try_from(now()).unwrap_or(i64::MAX));
            NewEntry::File { mode: permissions(0o644), modified, contents }
        }
        Kind::Directory => NewEntry::Directory { mode: permissions(0o755) },
        Kind::Symlink => {
            let target = target.ok_or_else(|| Error::invalid("put", "a symlink needs a target"))?;
            NewEntry::Symlink { target }
        }
    };
    let written = live.used().put(&path, new).await;
    Ok(axum::Json(Written { bytes: watch.outcome(written)? }))
}
