//! Snapshots: take, list, get, delete, download, upload; forks.

use std::io::Write;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_audit::{Action, Text};
use cofferdam_contract::{Error, ErrorKind, Limits};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio_util::io::ReaderStream;
use utoipa::IntoParams;

use super::extract::{Json, Path, Query};
use super::forward::check_name_is_free;
use super::pages::{PageQuery, PageSize};
use super::problem::Failure;
use super::sandboxes::no_content;
use super::upload::Upload;
use super::views::{CreateSandbox, ForkSandbox, SandboxDetails, SnapshotList, SnapshotView, TakeSnapshot};
use super::{Answer, App, actions, detached};
use crate::caller::{Caller, Scope};
use crate::live::NewFork;
use crate::policy::times;
use crate::snapshots::{NewSnapshot, SnapshotArchive};
use crate::store::SnapshotRecord;

/// Bytes read from a file at once.
const PIECE: usize = 256 << 10;

/// Take a snapshot of a sandbox.
///
/// Answers when it is stored.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/snapshot", tag = "snapshots", request_body = TakeSnapshot,
    params(("sandbox" = String, Path, description = "The id or name"),
        ("Idempotency-Key" = Option<String>, Header, max_length = 128,
        description = "A repeated request with the same key gets the first one's answer")),
    responses((status = 201, body = SnapshotView)))]
pub async fn take(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(request): Json<TakeSnapshot>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let archive = Arc::clone(app.policy().archive(&live.backend)?);
    let snapshots = Arc::clone(app.snapshots()?);
    let new = snapshots.begin(&caller.tenant, request.name)?;
    let record = detached(async move {
        let _turn = snapshots.turn(&caller.tenant).await?;
        let _use = live.keep();
        let about = |action: &mut Action| action.sandbox = Some(Text::new(&live.id));
        let recorded = actions::begin(&app, &caller, "snapshot", about).await?;
        let taken = async {
            let limits = live.inner().spec().limits().clone();
            let snapshot = live.used().snapshot().await?;
            let saved = archive.save(&snapshot, &limits, Box::new(new.writer())).await;
            saved.map_err(|error| new.failure(error))?;
            new.finish(&live.backend, &limits, Some(live.id.clone())).await
        };
        let taken = taken.await;
        recorded.end(&taken, |action, record| action.created = Some(Text::new(&record.id))).await;
        taken
    });
    Ok((StatusCode::CREATED, axum::Json(SnapshotView::of(&*record.await?))).into_response())
}

/// Create a copy of a sandbox, which resumes from its state.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/fork", tag = "sandboxes", request_body = ForkSandbox,
    params(("sandbox" = String, Path, description = "The id or name"),
        ("Idempotency-Key" = Option<String>, Header, max_length = 128,
        description = "A repeated request with the same key gets the first one's answer")),
    responses((status = 201, body = SandboxDetails)))]
pub async fn fork(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(request): Json<ForkSandbox>,
) -> Answer {
    let ForkSandbox { name, life, idle } = request;
    check_name_is_free(&app, &caller, name.as_deref()).await?;
    let from = app.sandboxes().find(&caller.tenant, &id)?.id.clone();
    let (life, idle) = times(life, idle, app.bounds())?;
    super::sandboxes::created(app.clone(), async move {
        let about = |action: &mut Action| action.sandbox = Some(Text::new(&from));
        let recorded = actions::begin(&app, &caller, "fork", about).await?;
        let forked = app.sandboxes().fork(&caller.tenant, &id, NewFork { name, life, idle }).await;
        recorded.end(&forked, |action, live| action.created = Some(Text::new(&live.id))).await;
        forked
    })
    .await
}

/// List snapshots.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", params(PageQuery),
    responses((status = 200, body = SnapshotList)))]
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<SnapshotList>, Failure> {
    let size = PageSize::of(query.limit)?;
    let found = app.snapshots()?.list(&caller.tenant, query.after.as_deref(), size.wanted());
    let (page, next) = size.cut(found, |record| &record.id);
    Ok(axum::Json(SnapshotList { snapshots: page.iter().map(|record| SnapshotView::of(record)).collect(), next }))
}

/// Describe a snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}", tag = "snapshots",
    params(("snapshot" = String, Path, description = "The id or name")),
    responses((status = 200, body = SnapshotView)))]
pub async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<SnapshotView>, Failure> {
    Ok(axum::Json(SnapshotView::of(&*app.snapshots()?.find(&caller.tenant, &id)?)))
}

/// Delete a snapshot.
///
/// Sandboxes that were created from it remain.
#[utoipa::path(delete, path = "/v1/snapshots/{snapshot}", tag = "snapshots",
    params(("snapshot" = String, Path, description = "The id or name")),
    responses((status = 204)))]
pub async fn delete(State(app): State<App>, Extension(caller): Extension<Caller>, Path(id): Path<String>) -> Answer {
    app.snapshots()?.find(&caller.tenant, &id)?;
    detached(async move { app.snapshots().map_err(|failure| failure.1)?.delete(&caller.tenant, &id).await }).await?;
    Ok(no_content())
}

/// Download a snapshot.
///
/// The header `Repr-Digest` has the SHA-256.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}/content", tag = "snapshots",
    params(("snapshot" = String, Path, description = "The id or name")),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub async fn download(State(app): State<App>, Extension(caller): Extension<Caller>, Path(id): Path<String>) -> Answer {
    let snapshots = app.snapshots()?;
    let record = snapshots.find(&caller.tenant, &id)?;
    let file = tokio::fs::File::from_std(snapshots.open_file(&record).await?);
    let mut response = Body::from_stream(ReaderStream::with_capacity(file, PIECE)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(record.bytes));
    let mut digest = [0; 32];
    if cofferdam_util::hex::decode(record.sha256.as_bytes(), &mut digest).is_some()
        && let Ok(value) = HeaderValue::from_str(&format!("sha-256=:{}:", STANDARD.encode(digest)))
    {
        headers.insert(HeaderName::from_static("repr-digest"), value);
    }
    Ok(response)
}

/// Parameters of an upload.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UploadQuery {
    /// The backend of the snapshot. Default: the server's own.
    #[param(max_length = 64)]
    backend: Option<String>,
    /// A name, unique for the tenant.
    #[param(max_length = 64)]
    name: Option<String>,
}

/// Upload a snapshot.
///
/// The body is a snapshot that was downloaded. It is verified before it is listed.
#[utoipa::path(post, path = "/v1/snapshots", tag = "snapshots", params(UploadQuery,
        ("Idempotency-Key" = Option<String>, Header, max_length = 128,
        description = "A repeated request with the same key and body gets the first one's answer")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = SnapshotView)))]
pub async fn upload(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<UploadQuery>,
    body: Body,
) -> Answer {
    let policy = app.policy();
    let backend = query.backend.unwrap_or_else(|| policy.default_backend.clone());
    let archive = Arc::clone(policy.archive(&backend)?);
    if !archive.accepts_uploads() {
        let message =
            format!("a snapshot of the backend '{backend}' has states of devices, and is not taken from clients");
        return Err(Error::new(ErrorKind::Denied, "upload snapshot", message).into());
    }
    let snapshots = Arc::clone(app.snapshots()?);
    let new = snapshots.begin(&caller.tenant, query.name)?;
    let (upload, watch) = Upload::new(body, app.bounds().snapshot, app.bounds().stall_time);
    watch.outcome(receive(upload, &new).await)?;
    let limits = policy.max_limits.clone();
    let record = detached(async move {
        let _turn = snapshots.turn(&caller.tenant).await?;
        let file = new.written().await?;
        archive.load(file, &caller.tenant, &limits).await?;
        new.finish(&backend, &limits, None).await
    });
    Ok((StatusCode::CREATED, axum::Json(SnapshotView::of(&*record.await?))).into_response())
}

/// Writes an upload to the file of a snapshot.
async fn receive(mut upload: Upload, new: &NewSnapshot) -> Result<(), Error> {
    let broken =
        |error| Error::new(ErrorKind::Unavailable, "upload snapshot", "cannot write the file").with_source(error);
    let mut writer = new.writer();
    while let Some(data) = upload.next().await {
        let data = data.map_err(broken)?;
        let written = tokio::task::spawn_blocking(move || writer.write_all(&data).map(|()| writer)).await;
        writer = match written {
            Ok(written) => written.map_err(|error| new.failure(broken(error)))?,
            Err(error) => {
                return Err(Error::new(ErrorKind::Internal, "upload snapshot", "it ended early").with_source(error));
            }
        };
    }
    Ok(())
}

/// The snapshot of a new sandbox.
pub(super) struct Start {
    record: Arc<SnapshotRecord>,
    archive: Arc<dyn SnapshotArchive>,
}

impl Start {
    /// Finds the snapshot that a request names, and adds its backend and limits to the request.
    pub(super) fn find(app: &App, caller: &Caller, request: &mut CreateSandbox) -> Result<Option<Self>, Failure> {
        let Some(name) = &request.snapshot else { return Ok(None) };
        if !caller.may(Scope::SnapshotsRead) {
            let message = format!("the key lacks the scope {}", Scope::SnapshotsRead);
            return Err(Error::new(ErrorKind::Denied, "authorize", message).into());
        }
        let record = app.snapshots()?.find(&caller.tenant, name)?;
        let archive = Arc::clone(app.policy().archive(&record.backend)?);
        if request.backend.as_ref().is_some_and(|backend| *backend != record.backend) {
            let message = format!("the snapshot is one of the backend '{}'", record.backend);
            return Err(Error::invalid("create", message).with_remedy("leave out the backend").into());
        }
        if request.image.is_some() && archive.has_root() {
            let message = "the snapshot has its own root";
            return Err(Error::invalid("create", message).with_remedy("leave out the image").into());
        }
        request.backend = Some(record.backend.clone());
        if request.limits.is_none() {
            let limits: Option<Limits> = serde_json::from_str(&record.limits).ok();
            request.limits = limits;
        }
        Ok(Some(Self { record, archive }))
    }

    /// Returns the id of the snapshot.
    pub(super) fn id(&self) -> &str {
        &self.record.id
    }

    /// Reads the snapshot.
    pub(super) async fn load(&self, app: &App, max: &Limits) -> Result<cofferdam_contract::Snapshot, Failure> {
        Ok(app.snapshots()?.load(&self.record, &*self.archive, max).await?)
    }
}
