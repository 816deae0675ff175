//! The changes of a copy-on-write workspace.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use cofferdam_changes::sandbox::review;
use cofferdam_contract::{Error, Result, Workspace, WorkspaceChanges};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::io::ReaderStream;
use utoipa::IntoParams;

use super::extract::{Path, Query};
use super::files::Kept;
use super::views::ChangesReport;
use super::{Answer, App, CHANGES_SKIPPED};
use crate::caller::Caller;
use crate::live::LiveSandbox;

/// Bytes of a layer that are read at once.
const PIECE: usize = 256 << 10;
/// The most bytes of the differences as text.
const MAX_DIFF: usize = 8 << 20;
/// The most bytes of the header with skipped files.
const MAX_SKIPPED: usize = 4 << 10;
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The form of changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChangesForm {
    /// An uncompressed layer of an OCI image.
    #[default]
    Tar,
    /// A JSON document without contents.
    Json,
    /// The differences as text, as of `git diff`, at most 8 MiB.
    Diff,
}

/// Parameters of changes.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ChangesQuery {
    /// The form. Default: `tar`.
    #[serde(default)]
    form: ChangesForm,
}

/// Files that are missing in a layer, in a header.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SkippedChanges {
    /// The number of files.
    pub(crate) count: usize,
    /// The first ones, with the reason.
    pub(crate) first: Vec<String>,
}

/// Read the changes of a copy-on-write workspace so far.
///
/// The header `Cofferdam-Changes-Skipped` of a layer has the files that are missing in it, as JSON.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/changes", tag = "files",
    params(("sandbox" = String, Path, description = "The id or name"), ChangesQuery),
    responses((status = 200, content((Vec<u8> = "application/vnd.oci.image.layer.v1.tar"),
        (ChangesReport = "application/json"), (String = "text/plain")))))]
pub async fn read(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ChangesQuery>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let kept = live.keep();
    let changes = live.used().changes().await?;
    if query.form == ChangesForm::Tar {
        let skipped = skipped(&changes);
        let stream = Kept { inner: ReaderStream::with_capacity(changes.layer, PIECE), _use: kept };
        let mut response = Response::new(Body::from_stream(stream));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(LAYER));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.extend(skipped.map(|value| (CHANGES_SKIPPED, value)));
        return Ok(response);
    }
    let (listed, count) = (changes.skipped.clone(), changes.skipped_count);
    let review = review(changes, workspace(&live)?, MAX_DIFF).await?;
    if query.form == ChangesForm::Json {
        let report = ChangesReport { changes: review.document, skipped: listed, skipped_count: count };
        return Ok(axum::Json(report).into_response());
    }
    // Text of a guest is never a page.
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, review.diff).into_response())
}

fn workspace(live: &LiveSandbox) -> Result<&std::path::Path> {
    match live.inner().spec().workspace() {
        Workspace::CopyOnWrite { path } => Ok(path),
        _ => Err(Error::invalid("changes", "the sandbox has no copy-on-write workspace")),
    }
}

fn skipped(changes: &WorkspaceChanges) -> Option<HeaderValue> {
    let mut skipped = SkippedChanges { count: changes.skipped_count, first: changes.skipped.clone() };
    loop {
        let text = serde_json::to_vec(&skipped).ok().filter(|_| skipped.count > 0)?;
        if text.len() <= MAX_SKIPPED || skipped.first.is_empty() {
            return HeaderValue::from_bytes(&text).ok();
        }
        skipped.first.truncate(skipped.first.len() / 2);
    }
}
