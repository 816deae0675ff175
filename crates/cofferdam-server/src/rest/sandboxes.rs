//! Sandboxes: create, list, get, delete, extend, pause, resume, usage.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use cofferdam_audit::{Action, Text};
use cofferdam_contract::{Error, ErrorKind};
use opentelemetry::trace::FutureExt as _;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::oneshot;
use tracing::Instrument;
use utoipa::IntoParams;

use super::extract::{Json, Path, Query};
use super::forward::{self, check_name_is_free};
use super::pages::PageSize;
use super::problem::Failure;
use super::snapshots::Start;
use super::views::{
    CreateSandbox, DeletedSandbox, ExtendSandbox, RenameSandbox, SandboxDetails, SandboxList, SandboxView, StatsView,
};
use super::{Answer, App, actions};
use crate::caller::Caller;
use crate::live::{LiveSandbox, Unkept};
use crate::policy::check_time;

/// Create a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateSandbox,
    params(("Idempotency-Key" = Option<String>, Header, max_length = 128,
        description = "A repeated request with the same key gets the first one's answer")),
    responses((status = 201, body = SandboxDetails)))]
pub async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Json(mut request): Json<CreateSandbox>,
) -> Answer {
    check_name_is_free(&app, &caller, request.name.as_deref()).await?;
    let start = Start::find(&app, &caller, &mut request)?;
    let (backend, mut new) = app.policy().sandbox(&caller, request, app.bounds())?;
    if let Some(start) = start {
        new.parent = Some(start.id().to_owned());
        new.snapshot = Some(start.load(&app, new.spec.limits()).await?);
    }
    let Some(snapshot) = new.parent.clone() else {
        return created(app.clone(), async move { app.sandboxes().create(&backend, new).await }).await;
    };
    created(app.clone(), async move {
        let about = |action: &mut Action| action.snapshot = Some(Text::new(&snapshot));
        let recorded = actions::begin(&app, &caller, "restore", about).await?;
        let created = app.sandboxes().create(&backend, new).await;
        recorded.end(&created, |action, live| action.created = Some(Text::new(&live.id))).await;
        created
    })
    .await
}

/// Answers with a new sandbox. The work continues if the client leaves, and the sandbox is closed then. A request with
/// an Idempotency-Key never leaves.
pub(super) async fn created(
    app: App,
    work: impl Future<Output = cofferdam_contract::Result<Arc<LiveSandbox>>> + Send + 'static,
) -> Answer {
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(
        async move {
            let created = work.await;
            if let Err(Ok(live)) = sender.send(created) {
                // A failed close is the backend's to report.
                let _ = app.sandboxes().delete(&live.tenant, &live.id, Unkept::Report).await;
            }
        }
        .with_current_context()
        .in_current_span(),
    );
    let live = receiver.await.map_err(|_| Error::new(ErrorKind::Internal, "create", "the create ended early"))??;
    Ok((StatusCode::CREATED, axum::Json(SandboxDetails::of(&live))).into_response())
}

/// Parameters of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// The value of `next` of the page before.
    #[param(max_length = 128)]
    after: Option<String>,
    /// The most sandboxes of the page. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Labels that the sandboxes have, as `key=value`, separated by commas.
    #[param(max_length = 4096)]
    labels: Option<String>,
}

/// List sandboxes.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", params(ListQuery),
    responses((status = 200, body = SandboxList)))]
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    Query(query): Query<ListQuery>,
) -> Result<axum::Json<SandboxList>, Failure> {
    let size = PageSize::of(query.limit)?;
    let pairs = query.labels.as_deref().unwrap_or_default().split(',').filter(|pair| !pair.is_empty());
    let labels: Vec<(&str, &str)> = pairs
        .map(|pair| pair.split_once('=').ok_or_else(|| Failure::bad_request("labels must be KEY=VALUE,…")))
        .collect::<Result<_, _>>()?;
    let found = app.sandboxes().list(&caller.tenant, query.after.as_deref(), size.wanted(), |live| {
        let own = live.inner().spec().labels();
        labels.iter().all(|(key, value)| own.get(*key).is_some_and(|own| own == value))
    });
    let mut found: Vec<_> = found.iter().map(|live| SandboxView::of(live)).collect();
    let mut others_next = None;
    if let Some(predecessor) = app.predecessor() {
        let path = uri.path_and_query().map_or("/v1/sandboxes", |path| path.as_str());
        if let Some(other) = forward::document::<SandboxList>(&app, predecessor, &caller, path).await? {
            found.extend(other.sandboxes);
            found.sort_by(|a, b| a.id.cmp(&b.id));
            others_next = other.next;
        }
    }
    let (sandboxes, next) = size.cut(found, |view| &view.id);
    Ok(axum::Json(SandboxList { sandboxes, next: next.or(others_next) }))
}

/// Describe a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes",
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, body = SandboxDetails)))]
pub async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<SandboxDetails>, Failure> {
    Ok(axum::Json(SandboxDetails::of(&*app.sandboxes().find(&caller.tenant, &id)?)))
}

/// Parameters of a deletion.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct DeleteQuery {
    /// The treatment of the changes of a copy-on-write workspace. Default: `keep`.
    #[serde(default)]
    changes: UnkeptChanges,
}

/// The treatment of changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UnkeptChanges {
    /// Keeps them, for `cofferdam changes`.
    #[default]
    Keep,
    /// Discards them.
    Discard,
}

/// Close a sandbox.
///
/// Returns when nothing of the sandbox is left. Changes of a copy-on-write workspace that its directory does not have are
/// kept, and the answer has their id. If they cannot be kept, the sandbox remains.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}", tag = "sandboxes",
    params(("sandbox" = String, Path, description = "The id or name"), DeleteQuery),
    responses((status = 204), (status = 200, body = DeletedSandbox)))]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Answer {
    let unkept = match query.changes {
        UnkeptChanges::Keep => Unkept::Keep,
        UnkeptChanges::Discard => Unkept::Discard,
    };
    let stored = app.sandboxes().delete(&caller.tenant, &id, unkept).await?;
    Ok(stored.map_or_else(no_content, |changes| axum::Json(DeletedSandbox { changes }).into_response()))
}

/// Change the lifetime or the idle time of a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/extend", tag = "sandboxes", request_body = ExtendSandbox,
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, body = SandboxView)))]
pub async fn extend(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(request): Json<ExtendSandbox>,
) -> Result<axum::Json<SandboxView>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    if request.life.is_none() && request.idle.is_none() {
        return Err(Error::invalid("extend", "life, idle or both are needed").into());
    }
    let life = check_time("the lifetime", request.life, app.bounds())?;
    let idle = check_time("the idle time", request.idle, app.bounds())?;
    live.extend(life, idle);
    Ok(axum::Json(SandboxView::of(&live)))
}

/// Rename a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/rename", tag = "sandboxes", request_body = RenameSandbox,
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, body = SandboxView)))]
pub async fn rename(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(request): Json<RenameSandbox>,
) -> Result<axum::Json<SandboxView>, Failure> {
    check_name_is_free(&app, &caller, request.name.as_deref()).await?;
    let live = app.sandboxes().rename(&caller.tenant, &id, request.name)?;
    app.store()?.rename_sandbox(&live.id, live.name().as_deref()).await?;
    Ok(axum::Json(SandboxView::of(&live)))
}

/// Pause every program of a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/pause", tag = "sandboxes",
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, body = SandboxView)))]
pub async fn pause(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<SandboxView>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    live.pause().await?;
    Ok(axum::Json(SandboxView::of(&live)))
}

/// Resume every program of a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/resume", tag = "sandboxes",
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, body = SandboxView)))]
pub async fn resume(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<SandboxView>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    live.resume().await?;
    Ok(axum::Json(SandboxView::of(&live)))
}

/// Measure the resource usage of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/stats", tag = "sandboxes",
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, body = StatsView)))]
pub async fn stats(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<StatsView>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let sandbox = live.inner();
    let (usage, network) = (sandbox.usage().await?, sandbox.network_usage());
    Ok(axum::Json(StatsView { usage, network, limits: sandbox.spec().limits().clone() }))
}

/// Turns an answer without content into a response.
pub(super) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}
