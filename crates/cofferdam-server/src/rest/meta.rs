//! The server itself: health, readiness, version, backends, the OpenAPI document.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::App;
use super::problem::Failure;
use super::views::{BackendList, BackendView, Health, Version};
use crate::caller::Caller;

/// Report that the server answers.
#[utoipa::path(get, path = "/v1/health", tag = "server", responses((status = 200, body = Health)))]
pub async fn health() -> axum::Json<Health> {
    axum::Json(Health { status: "ok".to_owned() })
}

/// Report whether the server accepts work.
#[utoipa::path(get, path = "/v1/ready", tag = "server",
    responses((status = 200, body = Health), (status = 503, body = Health)))]
pub async fn ready(State(app): State<App>) -> Response {
    if app.sandboxes().is_stopping() {
        return (StatusCode::SERVICE_UNAVAILABLE, axum::Json(Health { status: "stopping".to_owned() })).into_response();
    }
    health().await.into_response()
}

/// Report the version.
#[utoipa::path(get, path = "/v1/version", tag = "server", responses((status = 200, body = Version)))]
pub async fn version() -> axum::Json<Version> {
    axum::Json(Version { version: env!("CARGO_PKG_VERSION").to_owned(), api: vec!["v1".to_owned()] })
}

/// List the backends of the server.
#[utoipa::path(get, path = "/v1/backends", tag = "server", responses((status = 200, body = BackendList)))]
pub async fn backends(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<axum::Json<BackendList>, Failure> {
    let policy = app.policy();
    let backends = policy.backends.iter().map(|(name, served)| BackendView {
        name: name.clone(),
        level: served.backend.level(),
        default: *name == policy.default_backend,
        capabilities: policy.capabilities(served, &caller).into_iter().collect(),
    });
    Ok(axum::Json(BackendList { backends: backends.collect() }))
}

/// Return this document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "server",
    responses((status = 200, body = Object, content_type = "application/json")))]
pub async fn openapi(State(app): State<App>) -> Response {
    ([(CONTENT_TYPE, "application/json")], app.document()).into_response()
}
