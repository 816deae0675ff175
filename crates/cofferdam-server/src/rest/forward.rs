//! Requests for sandboxes of the process before this one, after an upgrade: they are forwarded to it until it has ended.
//!
//! The caller was recognised here. Its identity is passed on, and believed only by connections that this process opened.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, HOST, TE, TRAILER, UPGRADE};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, Version};
use axum::response::Response;
use cofferdam_contract::{Error, ErrorKind, TenantId};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry::Context;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::App;
use super::ports::{ByHost, Driver, is_upgrade, remove_hop_by_hop};
use super::problem::Failure;
use super::slots;
use crate::caller::{Caller, Proof, Scope};
use crate::handover::Predecessor;
use crate::refusal::overloaded;
use crate::trace::TraceContext;

/// The header with the caller of a forwarded request.
const CALLER: HeaderName = HeaderName::from_static("cofferdam-caller");
/// The header of a request whose host name led to the sandbox.
const BY_HOST: HeaderName = HeaderName::from_static("cofferdam-by-host");
/// The most bytes of a document of the process before.
const MAX_DOCUMENT: usize = 16 << 20;
/// The time after which a request to a process that is ending can be repeated.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// A caller on its way to another process, and the trace context of its request.
#[derive(Debug, Serialize, Deserialize)]
struct Passed {
    tenant: TenantId,
    scopes: Vec<String>,
    key: String,
    is_operator: bool,
    proof: Proof,
    trace: Option<TraceContext>,
}

impl Passed {
    fn header(caller: &Caller, trace: Option<TraceContext>) -> Result<HeaderValue, Failure> {
        // The process with the connection checks its certificate.
        let Caller { tenant, scopes, key, is_operator, proof, certificate: _ } = caller.clone();
        let scopes = scopes.iter().map(|scope| scope.as_str().to_owned()).collect();
        let text = serde_json::to_vec(&Self { tenant, scopes, key, is_operator, proof, trace }).unwrap_or_default();
        HeaderValue::from_bytes(&text).map_err(|_| Failure::bad_request("the caller has an invalid name"))
    }

    /// Reads a caller. Scopes that this version does not know grant nothing.
    fn read(value: &HeaderValue) -> Option<(Caller, Option<TraceContext>)> {
        let Self { tenant, scopes, key, is_operator, proof, trace } = serde_json::from_slice(value.as_bytes()).ok()?;
        let scopes: BTreeSet<Scope> = scopes.iter().filter_map(|scope| scope.parse().ok()).collect();
        Some((Caller { tenant, scopes, key, is_operator, proof, certificate: None }, trace))
    }
}

/// Takes the caller of a request of the process that took over, and the context of spans below that of the request.
pub fn forwarded_caller(scope: Scope, request: &mut Request) -> Result<(Caller, Context), Failure> {
    let passed = request.headers_mut().remove(CALLER).as_ref().and_then(Passed::read);
    let (caller, trace) = passed
        .filter(|(caller, _)| caller.may(scope))
        .ok_or_else(|| Failure::unauthorized("the request has no caller"))?;
    if request.headers_mut().remove(BY_HOST).is_some() {
        request.extensions_mut().insert(ByHost);
    }
    let context = trace.as_ref().map_or_else(Context::new, TraceContext::of_request);
    Ok((caller, context))
}

/// Returns the id or the name of the sandbox in the path of a request. Invalid UTF-8 is replaced, as no sandbox has it.
pub fn named_sandbox(endpoint: &str, path: &str) -> Option<String> {
    let before = endpoint.find("{sandbox}")?;
    let name = percent_decode_str(path.get(before..)?.split('/').next()?);
    Some(name.decode_utf8_lossy().into_owned())
}

/// Returns the process before this one if a request is for a sandbox that may be there.
pub fn owner<'a>(app: &'a App, caller: &Caller, endpoint: &str, path: &str) -> Option<&'a Arc<Predecessor>> {
    let predecessor = app.predecessor()?;
    let sandbox = named_sandbox(endpoint, path)?;
    app.sandboxes().find(&caller.tenant, &sandbox).is_err().then_some(predecessor)
}

/// Passes a request to the process before this one, and its answer back.
pub async fn forward(
    app: &App,
    predecessor: &Predecessor,
    caller: &Caller,
    endpoint: &str,
    request: Request,
) -> Result<Response, Failure> {
    if endpoint.ends_with("/rename") {
        let error = Error::new(ErrorKind::Conflict, "rename", "the sandbox belongs to the version before the upgrade");
        return Err(error.with_remedy("delete the sandbox, or use its id").into());
    }
    let takes_snapshot = endpoint.ends_with("/snapshot");
    let answer = pass(app, predecessor, caller, request).await?;
    if takes_snapshot && answer.status().is_success() {
        app.snapshots()?.refresh().await?;
    }
    Ok(answer)
}

async fn pass(
    app: &App,
    predecessor: &Predecessor,
    caller: &Caller,
    mut request: Request,
) -> Result<Response, Failure> {
    let upgrade = is_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
    let request = rewritten(caller, request, upgrade.is_some())?;
    let stream = predecessor.connect().await.map_err(|_| ending())?;
    let builder = http1::Builder::new().max_buf_size(app.bounds().head.max(8192)).handshake(TokioIo::new(stream));
    let (mut sender, connection) = builder.await.map_err(|_| ending())?;
    let (of, certified) = (app.clone(), caller.certificate.is_some().then(|| caller.clone()));
    let driver = Driver::new(tokio::spawn(async move {
        let ended = async {
            match &certified {
                // The other process does not know the certificate.
                Some(caller) => of.key_ended(caller).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The answer reports a failure.
            _ = connection.with_upgrades() => {}
            () = ended => {}
        }
    }));
    let mut answer = sender.send_request(request).await.map_err(|_| ending())?;
    let switched = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    let theirs = switched.then(|| hyper::upgrade::on(&mut answer));
    let (mut head, body) = answer.into_parts();
    let (protocol, trailer) = (head.headers.get(UPGRADE).cloned(), head.headers.get(TRAILER).cloned());
    remove_hop_by_hop(&mut head.headers);
    trailer.map(|trailer| head.headers.insert(TRAILER, trailer));
    let (Some(ours), Some(theirs)) = (upgrade, theirs) else {
        return Ok(slots::hold(Response::from_parts(head, Body::new(body)), driver));
    };
    head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    protocol.map(|protocol| head.headers.insert(UPGRADE, protocol));
    // The connection is no request any more, and is counted on its own.
    let permits = (app.request_permit()?, app.tenant_slot(&caller.tenant)?);
    let stream = app.stream("forward", caller, None);
    let (app, caller, stop) = (app.clone(), caller.clone(), app.stop_token());
    tokio::spawn(async move {
        let _held = (permits, driver, stream);
        let joined = async {
            let (ours, theirs) = tokio::try_join!(ours, theirs).ok()?;
            let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
            // A connection that breaks has ended.
            tokio::io::copy_bidirectional(&mut ours, &mut theirs).await.ok()
        };
        tokio::select! {
            _ = joined => {}
            () = stop.cancelled() => {}
            () = app.key_ended(&caller) => {}
        }
    });
    Ok(Response::from_parts(head, Body::empty()))
}

/// Returns the request that the process before gets.
fn rewritten(caller: &Caller, request: Request, is_upgrade: bool) -> Result<Request, Failure> {
    let (mut parts, body) = request.into_parts();
    if let Some(authority) = parts.uri.authority().filter(|_| !parts.headers.contains_key(HOST)) {
        let host = HeaderValue::from_str(authority.as_str());
        parts.headers.insert(HOST, host.unwrap_or(HeaderValue::from_static("localhost")));
    }
    parts.uri = parts.uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
    parts.version = Version::HTTP_11;
    remove_hop_by_hop(&mut parts.headers);
    parts.headers.insert(TE, HeaderValue::from_static("trailers"));
    if is_upgrade {
        parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    parts.headers.insert(CALLER, Passed::header(caller, parts.extensions.remove::<TraceContext>())?);
    parts.headers.remove(BY_HOST);
    if parts.extensions.get::<ByHost>().is_some() {
        parts.headers.insert(BY_HOST, HeaderValue::from_static("1"));
    }
    parts.extensions.clear();
    Ok(Request::from_parts(parts, if is_upgrade { Body::empty() } else { body }))
}

fn ending() -> Failure {
    overloaded("forward", "the version before the upgrade, which has the sandbox, is ending", AGAIN).into()
}

/// Reads a document of the process before. Returns `None` if it closes its sandboxes, has ended, or has no such object.
pub async fn document<T: DeserializeOwned>(
    app: &App,
    predecessor: &Predecessor,
    caller: &Caller,
    path: &str,
) -> Result<Option<T>, Failure> {
    let uri: Uri = path.parse().map_err(|_| Failure::bad_request("the path is malformed"))?;
    let mut request = Request::new(Body::empty());
    (*request.method_mut(), *request.uri_mut()) = (Method::GET, uri);
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    let answer = match pass(app, predecessor, caller, request).await {
        Ok(answer) => answer,
        Err(_) if predecessor.is_ending().await => return Ok(None),
        Err(failure) => return Err(failure),
    };
    let status = answer.status();
    if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
        return Ok(None);
    }
    let body = axum::body::to_bytes(answer.into_body(), MAX_DOCUMENT).await.map_err(|_| ending())?;
    match serde_json::from_slice(&body) {
        Ok(document) if status.is_success() => Ok(Some(document)),
        _ => Err(ending()),
    }
}

/// Refuses the name of a sandbox that the process before has.
pub async fn check_name_is_free(app: &App, caller: &Caller, name: Option<&str>) -> Result<(), Failure> {
    let (Some(predecessor), Some(name)) = (app.predecessor(), name) else { return Ok(()) };
    let name: String = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string();
    // A caller that creates sandboxes may not be one that reads them.
    let reader = Caller { scopes: BTreeSet::from([Scope::SandboxesRead]), ..caller.clone() };
    let path = format!("/v1/sandboxes/{name}");
    match document::<serde_json::Value>(app, predecessor, &reader, &path).await? {
        None => Ok(()),
        Some(_) => {
            let message = "there is a sandbox with this name in the version before the upgrade";
            let error = Error::new(ErrorKind::Conflict, "create", message);
            Err(error.with_remedy("use another name, or delete that sandbox").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::HEADER;
    use axum::http::HeaderMap;

    #[test]
    fn the_sandbox_of_a_path_is_decoded() {
        let endpoint = "/v1/sandboxes/{sandbox}/files/{*path}";
        for (path, expected) in [
            ("/v1/sandboxes/box/files/a/b", "box"),
            ("/v1/sandboxes/%62o%78/files/a", "box"),
            ("/v1/sandboxes/a%2Fb/files/a", "a/b"),
            ("/v1/sandboxes/%FF/files/a", "\u{fffd}"),
        ] {
            assert_eq!(named_sandbox(endpoint, path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(named_sandbox("/v1/sandboxes", "/v1/sandboxes"), None);
    }

    #[test]
    fn a_caller_arrives_with_its_proof_and_trace() {
        let trace = HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let trace = TraceContext::of(&HeaderMap::from_iter([(HeaderName::from_static(HEADER), trace)])).unwrap();
        assert!(trace.is_some());
        for (proof, trace) in [(Proof::Connection, None), (Proof::Key, trace.clone()), (Proof::Until(7), trace)] {
            let (tenant, key) = (TenantId::default(), "jwt:é".to_owned());
            let is_operator = proof == Proof::Connection;
            let caller = Caller { tenant, scopes: Scope::of_tenants(), key, is_operator, proof, certificate: None };
            let header = Passed::header(&caller, trace.clone()).ok().unwrap();
            assert_eq!(Passed::read(&header), Some((caller, trace)));
        }
    }
}
