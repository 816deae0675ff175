//! Volumes: create, list, get, delete.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cofferdam_contract::Error;
use cofferdam_volume::Name;

use super::extract::{Json, Path, Query};
use super::pages::{PageQuery, PageSize};
use super::problem::Failure;
use super::sandboxes::no_content;
use super::views::{CreateVolume, VolumeList, VolumeView};
use super::{Answer, App, detached};
use crate::caller::Caller;
use crate::volumes::refused;

fn name(text: &str) -> Result<Name, Error> {
    text.parse().map_err(refused)
}

/// Create a volume.
///
/// It is empty, and outlives sandboxes and the server.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = CreateVolume,
    params(("Idempotency-Key" = Option<String>, Header, max_length = 128,
        description = "A repeated request with the same key gets the first one's answer")),
    responses((status = 201, body = VolumeView)))]
pub async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<CreateVolume>,
) -> Answer {
    let (name, size) = (name(&request.name)?, app.policy().volume(&caller, &request, app.bounds())?);
    let (volumes, quota) = (app.volumes()?.clone(), app.services().admission.state_of(&caller.tenant).0);
    let created = detached(async move { volumes.create(&caller.tenant, name, size, &quota).await });
    Ok((StatusCode::CREATED, axum::Json(VolumeView::of(&created.await?))).into_response())
}

/// List volumes.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", params(PageQuery),
    responses((status = 200, body = VolumeList)))]
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<VolumeList>, Failure> {
    let size = PageSize::of(query.limit)?;
    let found = app.volumes()?.list(&caller.tenant, query.after, size.wanted()).await?;
    let (page, next) = size.cut(found, |volume| volume.name.as_str());
    Ok(axum::Json(VolumeList { volumes: page.iter().map(VolumeView::of).collect(), next }))
}

/// Describe a volume.
#[utoipa::path(get, path = "/v1/volumes/{volume}", tag = "volumes",
    params(("volume" = String, Path, description = "The name")),
    responses((status = 200, body = VolumeView)))]
pub async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<VolumeView>, Failure> {
    Ok(axum::Json(VolumeView::of(&app.volumes()?.find(&caller.tenant, name(&id)?).await?)))
}

/// Delete a volume and its files.
///
/// A volume that a sandbox uses is not deleted.
#[utoipa::path(delete, path = "/v1/volumes/{volume}", tag = "volumes",
    params(("volume" = String, Path, description = "The name")),
    responses((status = 204)))]
pub async fn delete(State(app): State<App>, Extension(caller): Extension<Caller>, Path(id): Path<String>) -> Answer {
    let (volumes, name) = (app.volumes()?.clone(), name(&id)?);
    detached(async move { volumes.delete(&caller.tenant, name).await }).await?;
    Ok(no_content())
}
