//! Execs: start, list, get, wait, signal, input.

use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cofferdam_contract::DEFAULT_CANCEL_GRACE;
use serde::Deserialize;
use utoipa::IntoParams;

use super::extract::{self, Json, Path, Query};
use super::pages::PageQuery;
use super::problem::Failure;
use super::sandboxes::no_content;
use super::views::{ExecList, ExecView, Signal, SignalExec, StartExec};
use super::{Answer, App, detached};
use crate::caller::Caller;

/// Start a command.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/execs", tag = "execs", request_body = StartExec,
    params(("sandbox" = String, Path, description = "The id or name"),
        ("Idempotency-Key" = Option<String>, Header, max_length = 128,
        description = "A repeated request with the same key gets the first one's answer")),
    responses((status = 201, body = ExecView)))]
pub async fn start(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(request): Json<StartExec>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let request = app.policy().exec(request.into_request()?, app.bounds())?;
    let exec = detached(async move { live.start(request, app.bounds()).await }).await?;
    Ok((StatusCode::CREATED, axum::Json(ExecView::of(&exec))).into_response())
}

/// List the execs of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs", tag = "execs",
    params(("sandbox" = String, Path, description = "The id or name"), PageQuery),
    responses((status = 200, body = ExecList)))]
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<ExecList>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let (execs, next) = query.page(live.execs(), |exec| &exec.id)?;
    Ok(axum::Json(ExecList { execs: execs.iter().map(|exec| ExecView::of(exec)).collect(), next }))
}

/// Describe an exec.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs/{exec}", tag = "execs",
    params(("sandbox" = String, Path, description = "The id or name"), ("exec" = String, Path)),
    responses((status = 200, body = ExecView)))]
pub async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, exec)): Path<(String, String)>,
) -> Result<axum::Json<ExecView>, Failure> {
    Ok(axum::Json(ExecView::of(&*app.sandboxes().find(&caller.tenant, &id)?.exec(&exec)?)))
}

/// Parameters of a wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct WaitQuery {
    /// The longest time to wait, in seconds. Default, and at most: 60.
    #[param(minimum = 0, maximum = 60)]
    timeout: Option<f64>,
}

/// Wait for the exit of an exec.
///
/// Answers with the exec, still in the state `running` if the time was over first.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/execs/{exec}/wait", tag = "execs",
    params(("sandbox" = String, Path, description = "The id or name"), ("exec" = String, Path), WaitQuery),
    responses((status = 200, body = ExecView)))]
pub async fn wait(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<WaitQuery>,
) -> Result<axum::Json<ExecView>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let exec = live.exec(&exec)?;
    let max = app.bounds().wait_time;
    let limit = match query.timeout {
        None => max,
        Some(seconds) => Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|limit| *limit <= max)
            .ok_or_else(|| Failure::bad_request(format!("timeout must be between 0 and {} s", max.as_secs())))?,
    };
    let _use = live.keep();
    exec.exit_within(limit).await;
    Ok(axum::Json(ExecView::of(&exec)))
}

/// Signal an exec.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/execs/{exec}/signal", tag = "execs", request_body = SignalExec,
    params(("sandbox" = String, Path, description = "The id or name"), ("exec" = String, Path)),
    responses((status = 204)))]
pub async fn signal(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, exec)): Path<(String, String)>,
    Json(request): Json<SignalExec>,
) -> Answer {
    let exec = app.sandboxes().find(&caller.tenant, &id)?.exec(&exec)?;
    exec.signal(match request.signal {
        Signal::Term => request.grace.unwrap_or(DEFAULT_CANCEL_GRACE).min(app.bounds().wait_time),
        Signal::Kill => Duration::ZERO,
    });
    Ok(no_content())
}

/// Parameters of input.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct StdinQuery {
    /// True ends the input after the bytes.
    #[serde(default)]
    eof: bool,
}

/// Write to the input of an exec.
///
/// The body is the bytes. Answers when the program has taken them, or its pipe has room for them.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/execs/{exec}/stdin", tag = "execs",
    params(("sandbox" = String, Path, description = "The id or name"), ("exec" = String, Path), StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 204)))]
pub async fn stdin(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<StdinQuery>,
    body: Body,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let exec = live.exec(&exec)?;
    let data = extract::read(body, app.bounds().stdin, app.bounds().body_time).await?;
    let _use = live.keep();
    if !data.is_empty() {
        let write = exec.write_stdin(&data);
        tokio::time::timeout(app.bounds().wait_time, write).await.map_err(|_| {
            Failure::from(cofferdam_contract::Error::new(
                cofferdam_contract::ErrorKind::Conflict,
                "write input",
                "the program does not read its input; an unknown part of the bytes was written",
            ))
        })??;
    }
    if query.eof {
        exec.close_stdin().await?;
    }
    Ok(no_content())
}
