//! The changes of a copy-on-write workspace.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use cofferdam_audit::{Action, Text};
use cofferdam_changes::sandbox::{ChangesReview, apply_reviewed, review};
use cofferdam_changes::{Applied, ApplyOptions, Globs};
use cofferdam_contract::{Error, Result as Done, Workspace, WorkspaceChanges};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::io::ReaderStream;
use utoipa::IntoParams;

use super::extract::{Json, Path, Query};
use super::files::Kept;
use super::problem::Failure;
use super::views::{AppliedChanges, ApplyChanges, ChangesReport};
use super::{Answer, App, CHANGES_SKIPPED, actions, detached};
use crate::caller::Caller;
use crate::live::LiveSandbox;

/// Bytes of a layer that are read at once.
const PIECE: usize = 256 << 10;
/// The most bytes of the differences as text.
const MAX_DIFF: usize = 8 << 20;
/// The most bytes of the header with skipped files.
const MAX_SKIPPED: usize = 4 << 10;
/// The header with the digest of reviewed changes.
const CHANGES_DIGEST: HeaderName = HeaderName::from_static("cofferdam-changes-digest");
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
/// The header `Cofferdam-Changes-Skipped` of a layer has the files that are missing in it, as JSON. The header
/// `Cofferdam-Changes-Digest` of the differences, and `digest` of the document, name what was reviewed. Differences that
/// are too long have no digest.
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
    let guard = live.keep();
    let changes = live.used().changes().await?;
    if query.form == ChangesForm::Tar {
        let skipped = skipped(&changes);
        let stream = Kept { inner: ReaderStream::with_capacity(changes.layer, PIECE), _use: guard };
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
        let ChangesReview { document: changes, digest, .. } = review;
        let report = ChangesReport { changes, skipped: listed, skipped_count: count, digest };
        return Ok(axum::Json(report).into_response());
    }
    // Text of a guest is never a page.
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    // Changes that are not shown are not reviewed.
    let digest = (!review.is_cut).then_some([(CHANGES_DIGEST, review.digest)]);
    Ok((headers, digest, review.diff).into_response())
}

/// Write reviewed changes of a copy-on-write workspace to its directory.
///
/// Files that the host changed meanwhile are conflicts: both versions stay. Links that lead out, set-id files and files
/// that other programs run by themselves are refused, the last ones unless `allow` names them. The request is refused if
/// the changes are not those that were reviewed.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/changes/apply", tag = "files", request_body = ApplyChanges,
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, body = AppliedChanges)))]
pub async fn apply(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(request): Json<ApplyChanges>,
) -> Result<axum::Json<AppliedChanges>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let turn = live.begin_apply()?;
    let work = async move {
        let (_use, _turn) = (live.keep(), turn);
        let ApplyChanges { digest, only, allow, dry_run } = request;
        let recorded = actions::begin(&app, &caller, "apply", |action| {
            action.sandbox = Some(Text::new(&live.id));
            (action.digest, action.dry_run) = (Some(Text::new(&digest)), dry_run);
        });
        let recorded = recorded.await?;
        let options =
            ApplyOptions { only: Globs::new(only), allow: Globs::new(allow), dry_run, ..ApplyOptions::default() };
        let applied = async { apply_reviewed(live.used().changes().await?, workspace(&live)?, digest, options).await };
        let applied = applied.await;
        recorded.end(&applied, audited).await;
        applied
    };
    // A started operation completes without its client.
    Ok(axum::Json(AppliedChanges::of(&detached(work).await?)))
}

/// Adds the changes that were applied to the record of an application.
fn audited(action: &mut Action, applied: &Applied) {
    action.files = Some(applied.applied.iter().map(|path| Text::new(path.as_os_str().as_encoded_bytes())).collect());
    action.unapplied = u64::try_from(applied.conflicts.len() + applied.refused.len()).unwrap_or(u64::MAX);
    if applied.failed.is_some() {
        actions::fail(action, "an error ended the application");
    }
}

fn workspace(live: &LiveSandbox) -> Done<&std::path::Path> {
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
