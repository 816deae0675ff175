//! Repeated requests with the same `Idempotency-Key` get the answer of the first one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, TenantId};
use cofferdam_util::{hex, sha256};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::extract::read;
use super::problem::Failure;
use super::upload::Upload;
use super::views::SnapshotView;
use super::{App, detached};
use crate::caller::Caller;
use crate::store::{StoredAnswer, now};

const HEADER: &str = "idempotency-key";
/// The most bytes of a key.
const MAX_KEY: usize = 128;
/// The most keys of a tenant. The oldest are forgotten first.
const MAX_KEYS: usize = 1024;
/// The time for which an answer is repeated.
const KEPT: Duration = Duration::from_secs(super::FORGET_AFTER.unsigned_abs());
/// The most bytes of an answer that is repeated.
const MAX_ANSWER: usize = 256 << 10;

/// A request that was answered, or is being answered.
#[derive(Debug, Clone)]
enum Known {
    Running { fingerprint: String, since: Instant },
    Answered { fingerprint: String, since: Instant, status: StatusCode, body: Bytes },
}

impl Known {
    fn since(&self) -> Instant {
        match self {
            Self::Running { since, .. } | Self::Answered { since, .. } => *since,
        }
    }
}

/// The known keys of all tenants.
#[derive(Debug, Default)]
pub struct Idempotency(Mutex<BTreeMap<TenantId, BTreeMap<String, Known>>>);

/// The next step for a request with a key.
enum Step {
    First,
    Repeat(StatusCode, Bytes),
    Refuse(Error),
}

impl Idempotency {
    fn enter(&self, tenant: &TenantId, key: &str, fingerprint: &str) -> Step {
        let mut all = self.0.lock();
        let own = all.entry(tenant.clone()).or_default();
        let now = Instant::now();
        own.retain(|_, known| now < known.since() + KEPT);
        while own.len() >= MAX_KEYS && !own.contains_key(key) {
            let oldest = own.iter().min_by_key(|(_, known)| known.since()).map(|(key, _)| key.clone());
            oldest.and_then(|key| own.remove(&key));
        }
        match own.entry(key.to_owned()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Known::Running { fingerprint: fingerprint.to_owned(), since: now });
                Step::First
            }
            Entry::Occupied(known) => match known.get() {
                Known::Running { fingerprint: first, .. } | Known::Answered { fingerprint: first, .. }
                    if first != fingerprint =>
                {
                    Step::Refuse(used_otherwise())
                }
                Known::Running { .. } => Step::Refuse(
                    Error::new(
                        ErrorKind::Conflict,
                        "repeat request",
                        "the first request with this Idempotency-Key still runs",
                    )
                    .with_remedy("repeat it later"),
                ),
                Known::Answered { status, body, .. } => Step::Repeat(*status, body.clone()),
            },
        }
    }

    fn leave(&self, tenant: &TenantId, key: &str, answer: Option<(StatusCode, Bytes)>) {
        let mut all = self.0.lock();
        let Some(own) = all.get_mut(tenant) else { return };
        match (answer, own.get_mut(key)) {
            (Some((status, body)), Some(known)) => {
                if let Known::Running { fingerprint, since } = known.clone() {
                    *known = Known::Answered { fingerprint, since, status, body };
                }
            }
            // A request that failed may be tried again.
            (None, _) => drop(own.remove(key)),
            (Some(_), None) => {}
        }
    }
}

/// Answers a request once for its key.
pub async fn once(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let Some(key) = key_of(&request)? else { return Ok(next.run(request).await) };
    let (parts, body) = request.into_parts();
    let body = read(body, app.bounds().json, app.bounds().body_time).await?;
    match Running::enter(&app, caller.tenant, key, fingerprint(&parts, &body)).await? {
        Entered::Answered(status, body) => Ok(repeat(status, body)),
        Entered::Runs(running) => running.answer(Request::from_parts(parts, Body::from(body)), next).await,
    }
}

/// Answers an upload of a snapshot once for its key. Its body is too large for the memory: that of a repeated upload is
/// compared with the digest in the first answer.
pub async fn once_uploaded(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let Some(key) = key_of(&request)? else { return Ok(next.run(request).await) };
    let (parts, body) = request.into_parts();
    match Running::enter(&app, caller.tenant, key, fingerprint(&parts, &[])).await? {
        Entered::Answered(status, answer) => {
            let (upload, watch) = Upload::new(body, app.bounds().snapshot, app.bounds().stall_time);
            let digest = watch.outcome(digest(upload).await)?;
            let first: Option<SnapshotView> = serde_json::from_slice(&answer).ok();
            match first.is_some_and(|first| first.sha256 == digest) {
                true => Ok(repeat(status, answer)),
                false => Err(used_otherwise().into()),
            }
        }
        Entered::Runs(running) => running.answer(Request::from_parts(parts, body), next).await,
    }
}

fn key_of(request: &Request) -> Result<Option<String>, Failure> {
    let Some(key) = request.headers().get(HEADER) else { return Ok(None) };
    let plain = key.to_str().ok().filter(|key| (1..=MAX_KEY).contains(&key.len()));
    let key = plain.ok_or_else(|| Failure::bad_request("an Idempotency-Key must be 1 to 128 printable characters"))?;
    Ok(Some(key.to_owned()))
}

fn fingerprint(parts: &Parts, body: &[u8]) -> String {
    let target = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
    sha256::of([parts.method.as_str().as_bytes(), target.as_bytes(), body].join(&0))
}

async fn digest(mut upload: Upload) -> Result<String, Error> {
    let mut hash = Sha256::new();
    while let Some(data) = upload.next().await {
        hash.update(
            data.map_err(|error| Error::invalid("upload snapshot", "cannot read the body").with_source(error))?,
        );
    }
    Ok(hex::encode(hash.finalize()))
}

fn used_otherwise() -> Error {
    Error::invalid("repeat request", "this Idempotency-Key was used for another request")
        .with_remedy("choose another key for each request")
}

/// The outcome of entering a request.
enum Entered {
    /// An earlier request with its key was answered so.
    Answered(StatusCode, Bytes),
    /// The request is the first with its key, and runs.
    Runs(Running),
}

/// A first request that runs. Its key is free again if it ends without an answer.
struct Running {
    app: App,
    tenant: TenantId,
    key: String,
    fingerprint: String,
    answer: Option<(StatusCode, Bytes)>,
}

impl Running {
    /// Enters a request. Returns the answer of an earlier one with its key.
    async fn enter(app: &App, tenant: TenantId, key: String, fingerprint: String) -> Result<Entered, Failure> {
        match app.0.idempotency.enter(&tenant, &key, &fingerprint) {
            Step::Refuse(error) => return Err(error.into()),
            Step::Repeat(status, body) => return Ok(Entered::Answered(status, body)),
            Step::First => {}
        }
        let mut running = Self { app: app.clone(), tenant, key, fingerprint, answer: None };
        let Some(stored) = stored(app, &running.tenant, &running.key).await? else { return Ok(Entered::Runs(running)) };
        if stored.fingerprint != running.fingerprint {
            return Err(used_otherwise().into());
        }
        let status = u16::try_from(stored.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
        let (status, body) = (status.unwrap_or(StatusCode::OK), Bytes::from(stored.body));
        running.answered(status, body.clone());
        Ok(Entered::Answered(status, body))
    }

    /// Answers the request. It runs to its end even if its client goes away, so that a repeated one gets its answer.
    async fn answer(mut self, request: Request, next: Next) -> Result<Response, Failure> {
        let answered = detached(async move {
            let response = next.run(request).await;
            if !response.status().is_success() {
                return Ok::<_, Error>(response);
            }
            let (parts, body) = response.into_parts();
            let body = axum::body::to_bytes(body, MAX_ANSWER).await.map_err(|error| {
                Error::new(ErrorKind::Internal, "repeat request", "the answer is too large to be repeated")
                    .with_source(error)
            })?;
            self.keep(parts.status, &body).await?;
            self.answered(parts.status, body.clone());
            Ok(Response::from_parts(parts, Body::from(body)))
        });
        Ok(answered.await?)
    }

    fn answered(&mut self, status: StatusCode, body: Bytes) {
        self.answer = Some((status, body));
    }

    /// Keeps an answer for later processes of the server.
    async fn keep(&self, status: StatusCode, body: &Bytes) -> Result<(), Error> {
        let Some(store) = &self.app.services().store else { return Ok(()) };
        let answer = StoredAnswer {
            fingerprint: self.fingerprint.clone(),
            created: now(),
            status: i64::from(status.as_u16()),
            body: String::from_utf8_lossy(body).into_owned(),
        };
        store.add_answer(&self.tenant, &self.key, &answer).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.app.0.idempotency.leave(&self.tenant, &self.key, self.answer.take());
    }
}

/// Finds the answer that an earlier process of the server gave.
async fn stored(app: &App, tenant: &TenantId, key: &str) -> Result<Option<StoredAnswer>, Error> {
    let Some(store) = &app.services().store else { return Ok(None) };
    let oldest = now().saturating_sub(super::FORGET_AFTER);
    Ok(store.answer(tenant, key).await?.filter(|answer| answer.created > oldest))
}

fn repeat(status: StatusCode, body: Bytes) -> Response {
    let mut response = (status, body).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    response
}
