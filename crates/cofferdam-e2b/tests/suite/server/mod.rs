//! A local server that speaks E2B's published protocol, and runs commands in process sandboxes.
//!
//! ```text
//! client --X-API-KEY--> control.rs: sandboxes, their time, pause, metrics
//!        --E2b-Sandbox-Id, X-Access-Token--> process.rs: process.Process;  files.rs: /files, filesystem.Filesystem
//! ```
//!
//! E2B's own SDK tests it: see `sdk.rs`. It does not watch directories, build templates or serve ports.
#![expect(clippy::result_large_err, reason = "a refusal is the answer, which is sent at once")]

mod control;
mod faults;
mod files;
mod process;
mod reply;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use cofferdam_contract::{Backend, Sandbox};
use cofferdam_process::{ProcessBackend, ProcessConfig};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;

pub use faults::{Fault, Faults};
use process::Process;

/// The key of the server.
pub const KEY: &str = "e2b_0123456789abcdef";
/// The version of the agent that the server claims.
pub const AGENT: &str = "0.6.13";

/// The state of the server.
pub struct State {
    backend: Arc<dyn Backend>,
    guests: Mutex<BTreeMap<String, Arc<Guest>>>,
    next: AtomicU32,
    pub faults: Faults,
}

/// A sandbox.
pub struct Guest {
    id: String,
    token: String,
    metadata: serde_json::Value,
    internet: bool,
    sandbox: Arc<dyn Sandbox>,
    paused: AtomicBool,
    end_at: Mutex<Instant>,
    processes: Mutex<BTreeMap<u32, Arc<Process>>>,
    next_pid: AtomicU32,
    /// Cuts all streams.
    cut: broadcast::Sender<()>,
}

/// A running server.
pub struct LocalE2b {
    pub url: String,
    pub state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

impl LocalE2b {
    pub async fn start() -> Self {
        let backend = Arc::new(ProcessBackend::new(ProcessConfig::default()).expect("the backend starts"));
        let state =
            Arc::new(State { backend, guests: Mutex::default(), next: AtomicU32::new(1), faults: Faults::default() });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let app = router(Arc::clone(&state));
        let task = tokio::spawn(async move { axum::serve(listener, app).await.expect("served") });
        Self { url, state, task }
    }

    /// Cuts the streams of all sandboxes.
    pub fn cut(&self) -> usize {
        self.state.guests.lock().values().map(|guest| guest.cut.send(()).unwrap_or(0)).sum()
    }

    /// Returns the ids of the sandboxes.
    pub fn living(&self) -> Vec<String> {
        self.state.guests.lock().keys().cloned().collect()
    }

    /// Returns the number of running processes of all sandboxes.
    pub fn running(&self) -> usize {
        let guests = self.state.guests.lock();
        guests.values().map(|guest| guest.processes.lock().values().filter(|one| one.is_running()).count()).sum()
    }

    /// Returns the metadata of a sandbox.
    pub fn metadata(&self, id: &str) -> serde_json::Value {
        self.state.guests.lock()[id].metadata.clone()
    }

    /// Ends a sandbox as if its time were over.
    pub async fn expire(&self, id: &str) {
        self.state.remove(id).await;
    }

    /// Forgets all processes that have ended, as E2B does after some time.
    pub fn forget_ended(&self) {
        for guest in self.state.guests.lock().values() {
            guest.processes.lock().retain(|_, process| process.is_running());
        }
    }

    /// Returns the time until a sandbox ends.
    pub fn left(&self, id: &str) -> Duration {
        self.state.guests.lock()[id].end_at.lock().saturating_duration_since(Instant::now())
    }

    pub async fn stop(self) {
        assert_eq!(self.living(), Vec::<String>::new(), "sandboxes are left");
        self.task.abort();
    }
}

impl Drop for LocalE2b {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn guest(&self, id: &str) -> Option<Arc<Guest>> {
        self.guests.lock().get(id).cloned()
    }

    /// Ends a sandbox. Returns false if there is none.
    async fn remove(&self, id: &str) -> bool {
        let Some(guest) = self.guests.lock().remove(id) else { return false };
        let _ = guest.cut.send(());
        guest.sandbox.close().await.expect("closed");
        true
    }

    fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

fn router(state: Arc<State>) -> Router {
    Router::new()
        .route("/sandboxes", post(control::create))
        .route("/v2/sandboxes", post(control::create).get(control::list))
        .route("/sandboxes/{id}", get(control::detail).delete(control::kill))
        .route("/sandboxes/{id}/timeout", post(control::timeout))
        .route("/sandboxes/{id}/pause", post(control::pause))
        .route("/sandboxes/{id}/connect", post(control::connect))
        .route("/v2/sandboxes/{id}/connect", post(control::connect))
        .route("/sandboxes/{id}/metrics", get(control::metrics))
        .route("/health", get(files::health))
        .route("/files", get(files::download).post(files::upload))
        .route("/process.Process/{method}", post(process::call))
        .route("/filesystem.Filesystem/{method}", post(files::call))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&state), faults::inject))
        .layer(DefaultBodyLimit::disable())
        .with_state(state)
}
