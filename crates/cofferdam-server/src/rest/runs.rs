//! One command in a sandbox of its own.

use axum::Extension;
use axum::extract::State;
use cofferdam_contract::{ByteSize, Error, Stdin};

use super::App;
use super::extract::Json;
use super::problem::Failure;
use super::views::{RunResult, StartRun};
use crate::caller::Caller;

/// The most bytes of output of a run, which is held in memory.
const MAX_OUTPUT: ByteSize = ByteSize::from_mebibytes(8);

/// Run a command in a sandbox of its own.
///
/// Answers when it has ended and nothing of the sandbox is left. A client that disconnects ends it.
#[utoipa::path(post, path = "/v1/runs", tag = "runs", request_body = StartRun,
    responses((status = 200, body = RunResult)))]
pub async fn run(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<StartRun>,
) -> Result<axum::Json<RunResult>, Failure> {
    let StartRun { sandbox, exec } = request;
    if sandbox.snapshot.is_some() {
        return Err(Error::invalid("run", "a run starts from no snapshot")
            .with_remedy("create a sandbox from the snapshot and start an exec in it")
            .into());
    }
    if sandbox.workspace.is_some() {
        return Err(Error::invalid("run", "a run has a private workspace")
            .with_remedy("create a sandbox with the workspace and start an exec in it")
            .into());
    }
    if sandbox.name.is_some() || sandbox.idle.is_some() || sandbox.life.is_some() {
        return Err(Error::invalid("run", "the sandbox of a run has no name, idle time or lifetime").into());
    }
    let request = app.policy().exec(exec.into_request()?, app.bounds())?;
    if *request.stdin() == Stdin::Stream || request.terminal().is_some() {
        return Err(Error::invalid("run", "a run has neither a stream of input nor a terminal")
            .with_remedy("create a sandbox and start an exec in it")
            .into());
    }
    if request.max_output() > MAX_OUTPUT {
        return Err(Error::invalid("run", format!("the output of a run is at most {MAX_OUTPUT}"))
            .with_remedy("create a sandbox and follow the output of an exec in it")
            .into());
    }
    let (backend, new) = app.policy().sandbox(&caller, sandbox, app.bounds())?;
    let (completed, posture) = app.sandboxes().run(backend, new.spec, new.volumes, request).await?;
    Ok(axum::Json(RunResult::new(completed, posture)))
}
