//! Recognises the caller of a request and checks its scope.

use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cofferdam_audit::{ApiCall, Log, SandboxRecord, Text, Timestamp};
use cofferdam_contract::{Error, ErrorKind};
use opentelemetry::trace::FutureExt as _;
use tracing::Instrument;

use super::App;
use super::forward;
use super::problem::Failure;
use super::refused::{Refused, record_refused};
use super::{attach, browser, linger, slots};
use crate::caller::{Caller, Scope};
use crate::identity::Peer;
use crate::layers::audit::blocking;
use crate::report;
use crate::tasks::{Task, TaskKind, TaskState};
use crate::trace::TraceContext;
use crate::tracer::{Span, method_name};

/// The status in the records of a call whose client left before its answer.
const CLIENT_LEFT: u16 = 499;

/// Answers a request of a caller with the scope. The answer begins within `limit`.
pub async fn require(app: App, scope: Scope, limit: Duration, request: Request, next: Next) -> Response {
    let ((mut parts, body), begun) = (request.into_parts(), Instant::now());
    let peer = match Extension::<Peer>::from_request_parts(&mut parts, &app).await {
        Ok(Extension(peer)) => peer,
        Err(_) => return Failure::unauthorized("the connection has no peer").into_response(),
    };
    if matches!(peer, Peer::Successor) {
        // It has recognised, counted and recorded the caller.
        let mut request = Request::from_parts(parts, body);
        let answer = match forward::forwarded_caller(scope, &mut request) {
            Ok((caller, context)) => within(limit, handle(&app, caller, request, next).with_context(context)).await,
            Err(failure) => Err(failure),
        };
        return answer.unwrap_or_else(IntoResponse::into_response);
    }
    let endpoint = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    let header = parts.headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap_or_default().to_owned());
    let bearer = match header {
        None if endpoint == attach::PATH => browser::take_bearer(&mut parts.headers),
        header => header,
    };
    // A browser presents the certificate of its user unasked. A server with TLS has a name of its own.
    let is_certified = matches!(peer, Peer::Certified(..));
    let recognised = if bearer.is_none() && browser::is_of_another_origin(&parts.uri, &parts.headers, is_certified) {
        Err(Failure::unauthorized("a web page needs a key"))
    } else {
        within(app.bounds().answer_time, app.gate().recognise(&peer, bearer.as_deref())).await.and_then(|caller| caller)
    };
    let recognised = recognised.map_err(|failure| (None, failure));
    // An operator can always raise the quota.
    let admitted = recognised.and_then(|caller| match app.services().admission.audit(&caller.tenant) {
        Err(error) if scope != Scope::Admin => Err((Some(caller), Failure::from(error))),
        _ => Ok(caller),
    });
    let caller = match admitted {
        Ok(caller) => caller,
        Err((caller, failure)) => {
            app.services().metrics.denied(if caller.is_some() { "quota" } else { "key" });
            if failure.0.is_client_error() {
                let (method, bearer, status) = (method_name(&parts.method), bearer.as_deref(), failure.0.as_u16());
                let caller = caller.as_ref();
                let refused = Refused { caller, peer: &peer, method, endpoint: &endpoint, bearer, status, begun };
                record_refused(&app, refused).await;
            }
            return failure.into_response();
        }
    };
    let method = parts.method.clone();
    let sandbox = forward::named_sandbox(&endpoint, parts.uri.path()).map(Text::new);
    let client = match TraceContext::of(&parts.headers) {
        Ok(client) => client,
        Err(error) => return Failure::from(error).into_response(),
    };
    let traced = app.services().tracer.request(client.as_ref(), method_name(&method), &endpoint, &caller.tenant);
    let (context, ids) = (traced.context(), traced.ids());
    let trace = ids.is_valid().then(|| TraceContext::with_span(client, &ids));
    let task = Task::new(TaskKind::Request, format!("{} {endpoint}", method_name(&method)), Some(&caller.tenant));
    let task = app.services().tasks.add(Task { trace: trace.as_ref().map(|trace| trace.trace.clone()), ..task });
    let tenant = caller.tenant.as_str().to_owned();
    let [trace_id, parent, id] = trace.as_ref().map_or(["", "", ""], |at| [&at.trace, &at.parent, &at.span]);
    let span = tracing::info_span!("request", %method, endpoint, tenant, key = caller.key, trace_id, parent, id);
    if let Some(context) = trace {
        parts.extensions.insert(context);
    }
    let call = ApiCall {
        tenant: Text::new(caller.tenant.as_str()),
        key: Text::new(&caller.key),
        peer: Text::new(peer.to_string()),
        time: Timestamp::now(),
        method: Text::new(method.as_str()),
        endpoint: Text::new(&endpoint),
        sandbox,
        status: CLIENT_LEFT,
        duration_us: 0,
        unrecorded: 0,
    };
    let call = Call { app: app.clone(), begun: Instant::now(), call: Some(call), span: Some(traced) };
    let answer = answer(&app, scope, caller, Request::from_parts(parts, body), next).with_context(context);
    let response = within(limit, answer.instrument(span)).await.unwrap_or_else(IntoResponse::into_response);
    match call.end(response.status().as_u16()).await {
        Ok(()) => {
            task.set(TaskState::Answering);
            slots::hold(response, task)
        }
        Err(error) => Failure::from(error).into_response(),
    }
}

/// Does work within a time.
async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(limit, work).await.map_err(|_| {
        let message = format!("the operation took longer than {} s", limit.as_secs_f64());
        Error::new(ErrorKind::Unavailable, "answer", message).into()
    })
}

/// A call that is counted and recorded at its end. If it is dropped before, its client has left.
struct Call {
    app: App,
    begun: Instant,
    call: Option<ApiCall>,
    span: Option<Span>,
}

impl Call {
    /// Counts the call, and returns its record.
    fn finish(&mut self, status: u16) -> Option<ApiCall> {
        let mut call = self.call.take()?;
        let time = self.begun.elapsed();
        self.app.services().metrics.answered(call.method.as_str(), call.endpoint.as_str(), status, time);
        if let Some(span) = self.span.take() {
            match status {
                CLIENT_LEFT => span.fail("cancelled"),
                _ => span.answered(status),
            }
        }
        (call.status, call.duration_us) = (status, u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        Some(call)
    }

    /// Ends an answered call.
    async fn end(mut self, status: u16) -> Result<(), Error> {
        let (Some(call), Some(log)) = (self.finish(status), self.app.services().audit.clone()) else { return Ok(()) };
        blocking(move || record(&log, call)).await
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let (Some(call), Some(log)) = (self.finish(CLIENT_LEFT), self.app.services().audit.clone()) else { return };
        let work = move || {
            if let Err(error) = record(&log, call) {
                report::warning(&format!("a call of a client that left could not be recorded: {error}"));
            }
        };
        // Without a runtime, the thread that drops it does the work.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(work)),
            Err(_) => work(),
        }
    }
}

pub(super) fn record(log: &Log, call: ApiCall) -> cofferdam_audit::Result<()> {
    log.record_network(vec![SandboxRecord::Call(Box::new(call))])
}

/// Reports why a sandbox is not there any more, if it ended with a process of the server.
async fn explained(app: &App, caller: &Caller, sandbox: &str, response: Response) -> Response {
    let Some(store) = app.services().store.as_ref().filter(|_| app.sandboxes().find(&caller.tenant, sandbox).is_err())
    else {
        return response;
    };
    // If the database fails, the plain answer is still right.
    match store.lost_sandbox(&caller.tenant, sandbox).await {
        Ok(Some(reason)) => {
            let error = Error::new(ErrorKind::Closed, "find sandbox", format!("the sandbox is gone: {reason}"));
            Failure::from(error.with_remedy("create it again")).into_response()
        }
        _ => response,
    }
}

/// Runs the handler of an endpoint.
async fn handle(app: &App, caller: Caller, mut request: Request, next: Next) -> Response {
    let endpoint = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let sandbox = forward::named_sandbox(endpoint, request.uri().path());
    request.extensions_mut().insert::<Caller>(caller.clone());
    let response = next.run(request).await;
    match sandbox.filter(|_| response.status() == StatusCode::NOT_FOUND) {
        Some(sandbox) => explained(app, &caller, &sandbox, response).await,
        None => response,
    }
}

/// Answers a recognised caller.
async fn answer(app: &App, scope: Scope, caller: Caller, mut request: Request, next: Next) -> Response {
    let metrics = &app.services().metrics;
    // All that follows, also the rest of a refused body, counts for the tenant.
    let slot = match app.tenant_slot(&caller.tenant) {
        Ok(slot) => slot,
        Err(failure) => {
            metrics.denied("requests");
            return failure.into_response();
        }
    };
    // The key must not reach handlers.
    request.headers_mut().remove(AUTHORIZATION);
    let (request, rest) = linger::hold(request);
    let response = match refusal(app, scope, &caller) {
        Some((reason, error)) => {
            metrics.denied(reason);
            drop(request);
            Failure::from(error).into_response()
        }
        None => {
            let response = admitted(app, caller, request, next).await;
            match response.status() {
                StatusCode::TOO_MANY_REQUESTS => metrics.denied("quota"),
                StatusCode::FORBIDDEN => metrics.denied("policy"),
                _ => {}
            }
            response
        }
    };
    if response.status().is_client_error() || response.status().is_server_error() {
        rest.discard().await;
    }
    slots::hold(response, slot)
}

/// Returns the reason why a caller is refused before its request is read, for the metrics and for the answer.
fn refusal(app: &App, scope: Scope, caller: &Caller) -> Option<(&'static str, Error)> {
    if let Err(error) = app.services().admission.request(&caller.tenant) {
        return Some(("rate", error));
    }
    let missing = || {
        Error::new(ErrorKind::Denied, "authorize", format!("the key lacks the scope {scope}"))
            .with_remedy("use a key with this scope; cofferdam keys create --scope makes one")
    };
    (!caller.may(scope)).then(|| ("scope", missing()))
}

/// Answers a caller that has the scope, here or in the process before.
async fn admitted(app: &App, caller: Caller, request: Request, next: Next) -> Response {
    let endpoint = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str).to_owned();
    match forward::owner(app, &caller, &endpoint, request.uri().path()) {
        Some(predecessor) => forward::forward(app, predecessor, &caller, &endpoint, request)
            .await
            .unwrap_or_else(IntoResponse::into_response),
        None => handle(app, caller, request, next).await,
    }
}
