//! A backend of a local server.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, Limits, Protection, Sandbox, Spec};
use cofferdam_e2b::{E2bBackend, E2bConfig, Key};

use crate::server::{KEY, LocalE2b};

pub fn config(server: &LocalE2b) -> E2bConfig {
    E2bConfig {
        api_url: Some(server.url.clone()),
        sandbox_url: Some(server.url.clone()),
        ..E2bConfig::new(Key::new(KEY).unwrap())
    }
}

pub fn backend(server: &LocalE2b) -> Arc<E2bBackend> {
    Arc::new(E2bBackend::new(config(server)).expect("a backend"))
}

/// Returns a spec that E2B can satisfy.
pub fn spec() -> Spec {
    let limits = Limits { cpu_time: None, memory: None, disk: None, pids: None, ..Limits::default() };
    Spec::builder().limits(limits).build().expect("valid")
}

/// Returns a spec like [`spec`], whose limits may be weaker.
pub fn weaker_spec() -> Spec {
    let weaker = [Protection::Memory, Protection::CpuTime, Protection::Disk, Protection::Processes];
    weaker.into_iter().fold(spec().to_builder(), |spec, one| spec.allow_weaker(one)).build().expect("valid")
}

pub async fn create(server: &LocalE2b) -> Arc<dyn Sandbox> {
    backend(server).create(spec()).await.expect("created")
}

pub async fn eventually(mut is_true: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not happen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
