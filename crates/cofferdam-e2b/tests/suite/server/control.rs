//! The API: sandboxes, their time, pause and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State as Axum};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use cofferdam_contract::{ExecRequest, Limits, Protection, Spec};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::reply::{keyed, refused};
use super::{AGENT, Guest, State};

const DATE: &str = "2026-01-01T00:00:00Z";
/// Programs of a test.
const LIMITS: Limits = Limits {
    cpu_time: None,
    memory: None,
    disk: None,
    wall_time: Duration::from_secs(86_400),
    pids: None,
    processes: None,
    cpus: None,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(default = "default_timeout")]
    timeout: u64,
    #[serde(default, rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

fn default_timeout() -> u64 {
    300
}

#[derive(Deserialize)]
pub struct Timeout {
    #[serde(default = "default_timeout")]
    timeout: u64,
}

type Answer = Result<Response, Response>;

fn parsed<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Response> {
    serde_json::from_slice(body).map_err(|error| refused(400, &error.to_string()))
}

fn found(state: &State, headers: &HeaderMap, id: &str) -> Result<Arc<Guest>, Response> {
    keyed(headers)?;
    state.guest(id).ok_or_else(|| refused(404, "sandbox not found"))
}

fn view(guest: &Guest) -> Value {
    json!({
        "templateID": "base", "sandboxID": guest.id, "clientID": "local", "envdVersion": AGENT,
        "envdAccessToken": guest.token, "domain": null,
    })
}

fn details(guest: &Guest) -> Value {
    let paused = guest.paused.load(Ordering::Acquire);
    json!({
        "templateID": "base", "sandboxID": guest.id, "clientID": "local", "envdVersion": AGENT,
        "startedAt": DATE, "endAt": DATE, "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024,
        "state": if paused { "paused" } else { "running" }, "metadata": guest.metadata,
        "allowInternetAccess": guest.internet,
    })
}

pub async fn create(Axum(state): Axum<Arc<State>>, headers: HeaderMap, body: Bytes) -> Answer {
    keyed(&headers)?;
    let new: NewSandbox = parsed(&body)?;
    if new.template_id != "base" {
        return Err(refused(404, "template not found"));
    }
    let spec = Spec::builder().limits(LIMITS).allow_weaker(Protection::Seccomp).build().unwrap();
    let sandbox = state.backend.create(spec).await.map_err(|error| refused(500, &error.to_string()))?;
    let number = state.number();
    let guest = Arc::new(Guest {
        id: format!("local{number}"),
        token: format!("token-{number}-of-sandbox"),
        metadata: json!(new.metadata.unwrap_or_default()),
        internet: new.allow_internet_access.unwrap_or(true),
        sandbox,
        paused: AtomicBool::new(false),
        end_at: Mutex::new(Instant::now() + Duration::from_secs(new.timeout)),
        processes: Mutex::default(),
        next_pid: AtomicU32::new(100),
        cut: broadcast::channel(1).0,
    });
    state.guests.lock().insert(guest.id.clone(), Arc::clone(&guest));
    tokio::spawn(expire(Arc::clone(&state), Arc::clone(&guest)));
    Ok((StatusCode::CREATED, Json(view(&guest))).into_response())
}

/// Ends a sandbox when its time is over.
async fn expire(state: Arc<State>, guest: Arc<Guest>) {
    loop {
        let end = *guest.end_at.lock();
        tokio::time::sleep_until(end).await;
        if *guest.end_at.lock() <= Instant::now() && !guest.paused.load(Ordering::Acquire) {
            state.remove(&guest.id).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub async fn list(Axum(state): Axum<Arc<State>>, headers: HeaderMap) -> Answer {
    keyed(&headers)?;
    let all: Vec<Value> = state.guests.lock().values().map(|guest| details(guest)).collect();
    Ok(Json(all).into_response())
}

pub async fn detail(Axum(state): Axum<Arc<State>>, headers: HeaderMap, Path(id): Path<String>) -> Answer {
    Ok(Json(details(&*found(&state, &headers, &id)?)).into_response())
}

pub async fn kill(Axum(state): Axum<Arc<State>>, headers: HeaderMap, Path(id): Path<String>) -> Answer {
    keyed(&headers)?;
    match state.remove(&id).await {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(refused(404, "sandbox not found")),
    }
}

pub async fn timeout(Axum(state): Axum<Arc<State>>, headers: HeaderMap, Path(id): Path<String>, body: Bytes) -> Answer {
    let guest = found(&state, &headers, &id)?;
    let Timeout { timeout } = parsed(&body)?;
    *guest.end_at.lock() = Instant::now() + Duration::from_secs(timeout);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Sends a signal to all processes of a sandbox.
async fn signal_all(guest: &Guest, signal: &str) {
    let line = format!("kill -{signal} -1 || :");
    guest.sandbox.exec(ExecRequest::shell(line).build().unwrap()).await.expect("signalled");
}

pub async fn pause(Axum(state): Axum<Arc<State>>, headers: HeaderMap, Path(id): Path<String>) -> Answer {
    let guest = found(&state, &headers, &id)?;
    if guest.paused.swap(true, Ordering::AcqRel) {
        return Err(refused(409, "already paused"));
    }
    signal_all(&guest, "STOP").await;
    // The connections of a VM do not survive its snapshot.
    let _ = guest.cut.send(());
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub async fn connect(Axum(state): Axum<Arc<State>>, headers: HeaderMap, Path(id): Path<String>, body: Bytes) -> Answer {
    let guest = found(&state, &headers, &id)?;
    let Timeout { timeout } = parsed(&body)?;
    *guest.end_at.lock() = Instant::now() + Duration::from_secs(timeout);
    if !guest.paused.load(Ordering::Acquire) {
        return Ok(Json(view(&guest)).into_response());
    }
    signal_all(&guest, "CONT").await;
    guest.paused.store(false, Ordering::Release);
    Ok((StatusCode::CREATED, Json(view(&guest))).into_response())
}

pub async fn metrics(Axum(state): Axum<Arc<State>>, headers: HeaderMap, Path(id): Path<String>) -> Answer {
    found(&state, &headers, &id)?;
    let one = |time: i64, used: u64| {
        json!({
            "timestamp": DATE, "timestampUnix": time, "cpuCount": 2, "cpuUsedPct": 1.5, "memUsed": used,
            "memTotal": 512 << 20, "memCache": 0, "diskUsed": 1 << 20, "diskTotal": 1 << 30,
        })
    };
    Ok(Json([one(2, 200 << 20), one(1, 100 << 20)]).into_response())
}
