//! Files of a workspace: read with ranges, write, list, stat, remove.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use cofferdam_contract::{EntryKind, Error, ErrorKind, FileReader, Sandbox, SandboxPath};
use futures_core::Stream;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio_util::io::{ReaderStream, StreamReader};
use utoipa::IntoParams;

use super::extract::{Json, Path, Query};
use super::pages::PageQuery;
use super::problem::Failure;
use super::ranges::{self, RequestedRange};
use super::sandboxes::no_content;
use super::upload::Upload;
use super::views::{FileList, FileStat, MoveFile, Written};
use super::{Answer, App};
use crate::caller::Caller;

/// Bytes read from a file at once.
const PIECE: usize = 64 << 10;

/// The path of a file.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct FileQuery {
    /// The path, relative to the workspace or below `/workspace`.
    #[param(max_length = 4096)]
    pub(super) path: String,
}

impl FileQuery {
    pub(super) fn path(&self) -> Result<SandboxPath, Failure> {
        Ok(SandboxPath::new(&self.path)?)
    }
}

/// Read a file.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), FileQuery,
        ("Range" = Option<String>, Header, description = "One range of bytes")),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, body = Vec<u8>, content_type = "application/octet-stream"), (status = 416)))]
pub async fn read(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<FileQuery>,
    headers: HeaderMap,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let path = query.path()?;
    let keep = live.keep();
    let sandbox = live.used();
    let requested = headers.get(RANGE).and_then(|value| value.to_str().ok()).and_then(ranges::parse);
    let (status, reader, range): (_, FileReader, _) = match requested {
        None => (StatusCode::OK, sandbox.read_file(&path).await?, None),
        Some(requested) => {
            let size = stat_of(&**sandbox, &path).await?.size;
            let Some((first, last)) = requested.within(size) else { return Ok(unsatisfiable(requested, size)) };
            let reader = sandbox.read_file_from(&path, first).await?.take(last - first + 1);
            (StatusCode::PARTIAL_CONTENT, Box::new(reader), Some((first, last, size)))
        }
    };
    // The file may grow or shrink meanwhile, so that only a range has a length.
    let stream = Kept { inner: ReaderStream::with_capacity(reader, PIECE), _use: keep };
    let mut response = (status, Body::from_stream(stream)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some((first, last, size)) = range {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(last - first + 1));
        headers.insert(CONTENT_RANGE, ascii(format!("bytes {first}-{last}/{size}")));
    }
    Ok(response)
}

fn ascii(text: String) -> HeaderValue {
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("bytes */*"))
}

fn unsatisfiable(_: RequestedRange, size: u64) -> Response {
    let error = Error::invalid("read_file", format!("the file has {size} bytes, and the range has none of them"));
    let mut response = Failure(StatusCode::RANGE_NOT_SATISFIABLE, error).into_response();
    response.headers_mut().insert(CONTENT_RANGE, ascii(format!("bytes */{size}")));
    response
}

/// Write a file.
///
/// Creates or replaces it at once when the whole body has arrived. Creates missing parent directories.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/files", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), FileQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Written)))]
pub async fn write(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<FileQuery>,
    body: Body,
) -> Result<axum::Json<Written>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let path = query.path()?;
    let _use = live.keep();
    let (upload, watch) = Upload::new(body, app.bounds().file, app.bounds().stall_time);
    let written = live.used().write_file(&path, Box::new(StreamReader::new(upload))).await;
    Ok(axum::Json(Written { bytes: watch.outcome(written)? }))
}

/// A stream that keeps its sandbox from being idle.
pub(super) struct Kept<S> {
    pub(super) inner: S,
    pub(super) _use: crate::live::Use,
}

impl<S: Stream + Unpin> Stream for Kept<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        Pin::new(&mut self.inner).poll_next(context)
    }
}

/// Remove a file or a directory with its contents.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/files", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), FileQuery),
    responses((status = 204)))]
pub async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<FileQuery>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    live.used().remove(&query.path()?).await?;
    Ok(no_content())
}

/// Move a file, symlink or directory in one step.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/files/move", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name")), request_body = MoveFile,
    responses((status = 204)))]
pub async fn rename(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(MoveFile { from, to }): Json<MoveFile>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    live.used().rename(&SandboxPath::new(from)?, &SandboxPath::new(to)?).await?;
    Ok(no_content())
}

/// Parameters of a list of files.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// The path, relative to the workspace or below `/workspace`.
    #[param(max_length = 4096)]
    path: String,
    /// The value of `next` of the page before.
    #[param(max_length = 255)]
    after: Option<String>,
    /// The most entries of the page. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// List a directory.
///
/// An entry that appears or disappears between two pages may be listed or not. All others are listed once.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/list", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), ListQuery),
    responses((status = 200, body = FileList)))]
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(ListQuery { path, after, limit }): Query<ListQuery>,
) -> Result<axum::Json<FileList>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let found = live.used().list_dir(&SandboxPath::new(&path)?).await?;
    let (entries, next) = PageQuery { after, limit }.page(found, |entry| &entry.name)?;
    Ok(axum::Json(FileList { entries, next }))
}

/// Describe a file or directory.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/files/stat", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), FileQuery),
    responses((status = 200, body = FileStat)))]
pub async fn stat(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<FileQuery>,
) -> Result<axum::Json<FileStat>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    Ok(axum::Json(stat_of(&**live.used(), &query.path()?).await?))
}

async fn stat_of(sandbox: &dyn Sandbox, path: &SandboxPath) -> Result<FileStat, Error> {
    if path.is_workspace() {
        sandbox.list_dir(path).await?;
        return Ok(FileStat { path: path.inside(), kind: EntryKind::Directory, size: 0 });
    }
    let (parent, name) = path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()));
    let entries = sandbox.list_dir(&SandboxPath::new(parent)?).await?;
    let found = entries.into_iter().find(|entry| entry.name == name);
    let entry = found.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "stat", "there is no such file").with_context("path", path.to_string())
    })?;
    Ok(FileStat { path: path.inside(), kind: entry.kind, size: entry.size })
}
