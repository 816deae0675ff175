//! Code execution in a sandbox, and kernels: interpreters that keep variables between calls. A client that accepts
//! `text/event-stream` gets output as it arrives, then the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_code::{BackendProfile, CodeRequest, CodeResult, CodeSession, OnOutput};
use cofferdam_contract::{Capabilities, Chunk, Error, ErrorKind};
use opentelemetry::KeyValue;
use opentelemetry::trace::FutureExt as _;

use super::events::{self, EventSender, accepts_events};
use super::extract::{Json, Path, Query};
use super::pages::PageQuery;
use super::problem::Failure;
use super::sandboxes::no_content;
use super::views::{CodeEvent, CodeOutcome, KernelList, KernelView, OpenKernel, RunCode};
use super::{Answer, App};
use crate::caller::Caller;
use crate::live::LiveSandbox;
use crate::tracer::{LANGUAGE, SANDBOX};

/// Events of output that wait for a slow client. More are left out of the stream; the result has the output.
const QUEUE: usize = 16;

/// Run code in a sandbox.
///
/// A failure of the code is a result. A client that disconnects ends the code. With `Accept: text/event-stream`, the
/// answer is a stream of the events `output` and `lost`, and at the end `result` or `error`.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/code", tag = "code", request_body = RunCode,
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, content((CodeOutcome = "application/json"), (CodeEvent = "text/event-stream")))))]
pub async fn execute(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(request): Json<RunCode>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let language = request.language.clone().ok_or_else(|| Failure::bad_request("the request names no language"))?;
    check_timeout(&app, &request)?;
    let profile = profile(&app, &live);
    let work = Work { app, caller, live, request: request.into_request(language), by: By::Sandbox(profile) };
    work.answer(&headers).await
}

/// Start a kernel in a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/kernels", tag = "code", request_body = OpenKernel,
    params(("sandbox" = String, Path, description = "The id or name"),
        ("Idempotency-Key" = Option<String>, Header, max_length = 128,
        description = "A repeated request with the same key gets the first one's answer")),
    responses((status = 201, body = KernelView)))]
pub async fn open(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(request): Json<OpenKernel>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let _use = live.keep();
    let profile = profile(&app, &live);
    let kernel = live.kernels(app.code())?.open(&profile, live.used(), &request.language).await?;
    Ok((StatusCode::CREATED, axum::Json(view(&kernel))).into_response())
}

/// List the kernels of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/kernels", tag = "code",
    params(("sandbox" = String, Path, description = "The id or name"), PageQuery),
    responses((status = 200, body = KernelList)))]
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<KernelList>, Failure> {
    let kernels = app.sandboxes().find(&caller.tenant, &id)?.kernels(app.code())?;
    // A kernel may end meanwhile.
    let kernels = kernels.ids().iter().filter_map(|id| kernels.find(id).ok()).map(|kernel| view(&kernel)).collect();
    let (kernels, next) = query.page(kernels, |kernel| &kernel.id)?;
    Ok(axum::Json(KernelList { kernels, next }))
}

/// Run code in a kernel.
///
/// A kernel runs one call at a time. A client that disconnects ends the kernel. With `Accept: text/event-stream`, the
/// answer is a stream, as that of code in a sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/kernels/{kernel}/code", tag = "code", request_body = RunCode,
    params(("sandbox" = String, Path, description = "The id or name"), ("kernel" = String, Path)),
    responses((status = 200, content((CodeOutcome = "application/json"), (CodeEvent = "text/event-stream")))))]
pub async fn call(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, kernel)): Path<(String, String)>,
    headers: HeaderMap,
    Json(request): Json<RunCode>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let kernel = live.kernels(app.code())?.find(&kernel)?;
    check_timeout(&app, &request)?;
    if request.language.as_ref().is_some_and(|language| language != kernel.language()) {
        return Err(Failure::bad_request("the kernel is one of another language"));
    }
    let request = request.into_request(kernel.language().to_owned());
    Work { app, caller, live, request, by: By::Kernel(kernel) }.answer(&headers).await
}

/// Interrupt the call of a kernel, as Ctrl-C does.
#[utoipa::path(post, path = "/v1/sandboxes/{sandbox}/kernels/{kernel}/interrupt", tag = "code",
    params(("sandbox" = String, Path, description = "The id or name"), ("kernel" = String, Path)),
    responses((status = 204)))]
pub async fn interrupt(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, kernel)): Path<(String, String)>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    live.kernels(app.code())?.find(&kernel)?.interrupt().await?;
    Ok(no_content())
}

/// End a kernel.
#[utoipa::path(delete, path = "/v1/sandboxes/{sandbox}/kernels/{kernel}", tag = "code",
    params(("sandbox" = String, Path, description = "The id or name"), ("kernel" = String, Path)),
    responses((status = 204)))]
pub async fn close(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, kernel)): Path<(String, String)>,
) -> Answer {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    live.kernels(app.code())?.find(&kernel)?.close().await;
    Ok(no_content())
}

/// Code to run.
struct Work {
    app: App,
    caller: Caller,
    live: Arc<LiveSandbox>,
    request: CodeRequest,
    by: By,
}

/// The interpreter of code.
enum By {
    /// A new one in the sandbox.
    Sandbox(BackendProfile),
    /// One that keeps its variables.
    Kernel(Arc<CodeSession>),
}

impl Work {
    async fn answer(self, headers: &HeaderMap) -> Answer {
        if !accepts_events(headers) {
            return Ok(axum::Json(CodeOutcome::of(&self.run(&|_| {}).await?)).into_response());
        }
        let (app, caller) = (self.app.clone(), self.caller.clone());
        events::answer(app, caller, QUEUE, |sender| self.stream(sender)).await
    }

    async fn run(self, on_output: OnOutput<'_>) -> cofferdam_contract::Result<CodeResult> {
        let Self { app, live, request, by, .. } = self;
        let _use = live.keep();
        let language = request.language.clone();
        let span = app.services().tracer.start("code", [KeyValue::new(SANDBOX, live.id.clone())]);
        let call = async {
            match by {
                By::Kernel(kernel) => kernel.call_live(request, on_output).await,
                By::Sandbox(profile) => {
                    let kernels = live.kernels(app.code())?;
                    kernels.executor().execute_live(&profile, &**live.used(), request, on_output).await
                }
            }
        };
        let result = call.with_context(span.context()).await;
        match &result {
            // Now it is known to be one of the server's languages.
            Ok(_) => span.set(LANGUAGE, language),
            Err(error) => span.fail(error.kind().as_str()),
        }
        result
    }

    /// Runs the code, and sends its output. Returns the result.
    async fn stream(self, sender: Arc<EventSender<CodeEvent>>) -> Result<CodeEvent, Failure> {
        let (sent, lost) = (AtomicU64::new(0), AtomicU64::new(0));
        let on_output = |chunk: &Chunk| {
            let size = chunk.data.len() as u64;
            let offset = sent.fetch_add(size, Ordering::Relaxed);
            let data = STANDARD.encode(&chunk.data);
            if !sender.offer(&CodeEvent::Output { stream: chunk.stream, offset, data }) {
                lost.fetch_add(size, Ordering::Relaxed);
            }
        };
        let result = self.run(&on_output).await;
        let bytes = lost.into_inner();
        if bytes > 0 {
            sender.send(&CodeEvent::Lost { bytes, offset: sent.into_inner() }).await;
        }
        Ok(CodeEvent::Result { result: CodeOutcome::of(&result?) })
    }
}

fn view(kernel: &CodeSession) -> KernelView {
    KernelView { id: kernel.id().to_owned(), language: kernel.language().to_owned() }
}

fn profile(app: &App, live: &LiveSandbox) -> BackendProfile {
    let served = app.policy().backends.get(&live.backend);
    let capabilities = served.map_or_else(Capabilities::new, |served| served.backend.capabilities());
    BackendProfile { backend: live.backend.clone(), level: live.level, capabilities }
}

fn check_timeout(app: &App, request: &RunCode) -> Result<(), Failure> {
    let max = app.bounds().max_life;
    if request.timeout.is_some_and(|timeout| timeout > max) {
        let message = format!("the timeout is at most {} s here", max.as_secs());
        return Err(Error::new(ErrorKind::Denied, "execute", message).into());
    }
    Ok(())
}
