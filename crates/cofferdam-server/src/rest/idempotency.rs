//! Repeated requests with the same `Idempotency-Key` get the answer of the first one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, TenantId};
use cofferdam_util::sha256;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::extract::read;
use super::problem::Failure;
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
                    Step::Refuse(Error::invalid("create", "this Idempotency-Key was used for another request"))
                }
                Known::Running { .. } => Step::Refuse(
                    Error::new(ErrorKind::Conflict, "create", "the first request with this Idempotency-Key still runs")
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
    let Some(key) = request.headers().get(HEADER) else { return Ok(next.run(request).await) };
    let plain = key.to_str().ok().filter(|key| (1..=MAX_KEY).contains(&key.len()));
    let key = plain.ok_or_else(|| Failure::bad_request("an Idempotency-Key must be 1 to 128 printable characters"))?;
    let (key, tenant) = (key.to_owned(), caller.tenant);
    let (parts, body) = request.into_parts();
    let body = read(body, app.bounds().json, app.bounds().body_time).await?;
    let fingerprint = sha256::of([parts.method.as_str().as_bytes(), parts.uri.path().as_bytes(), &body].join(&0));
    match app.0.idempotency.enter(&tenant, &key, &fingerprint) {
        Step::Refuse(error) => return Err(error.into()),
        Step::Repeat(status, body) => return Ok(repeat(status, body)),
        Step::First => {}
    }
    let mut running = Running { app: app.clone(), tenant: tenant.clone(), key: key.clone(), answer: None };
    if let Some(stored) = stored(&app, &tenant, &key).await? {
        let status = u16::try_from(stored.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
        let (status, body) = (status.unwrap_or(StatusCode::OK), Bytes::from(stored.body));
        if stored.fingerprint != fingerprint {
            return Err(Error::invalid("create", "this Idempotency-Key was used for another request").into());
        }
        running.answered(status, body.clone());
        return Ok(repeat(status, body));
    }
    // The first request runs to its end even if its client goes away, so that a repeated one gets its answer.
    let answered = detached(async move {
        let response = next.run(Request::from_parts(parts, Body::from(body))).await;
        if !response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, MAX_ANSWER).await.map_err(|error| {
            Error::new(ErrorKind::Internal, "create", "the answer is too large to be repeated").with_source(error)
        })?;
        keep(&app, &tenant, &key, &fingerprint, parts.status, &body).await?;
        running.answered(parts.status, body.clone());
        Ok(Response::from_parts(parts, Body::from(body)))
    });
    Ok(answered.await?)
}

/// A first request that runs. Its key is free again if it ends without an answer.
struct Running {
    app: App,
    tenant: TenantId,
    key: String,
    answer: Option<(StatusCode, Bytes)>,
}

impl Running {
    fn answered(&mut self, status: StatusCode, body: Bytes) {
        self.answer = Some((status, body));
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

/// Keeps an answer for later processes of the server.
async fn keep(
    app: &App,
    tenant: &TenantId,
    key: &str,
    fingerprint: &str,
    status: StatusCode,
    body: &Bytes,
) -> Result<(), Error> {
    let Some(store) = &app.services().store else { return Ok(()) };
    let answer = StoredAnswer {
        fingerprint: fingerprint.to_owned(),
        created: now(),
        status: i64::from(status.as_u16()),
        body: String::from_utf8_lossy(body).into_owned(),
    };
    store.add_answer(tenant, key, &answer).await
}

fn repeat(status: StatusCode, body: Bytes) -> Response {
    let mut response = (status, body).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    response
}
