//! Helpers of the pool tests. They run on tokio's paused clock, which advances when every task waits.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Cpus, ExecRequest, Limits, Spec, TenantId};
use cofferdam_engine::{Pool, PoolConfig};
use cofferdam_simulated::{FaultPlan, OnTerm, Program, SimulatedBackend, SimulatedConfig, Step};

pub const SECOND: Duration = Duration::from_secs(1);

/// Creates a pool over a simulated backend with faults. Returns the backend and the pool.
pub fn pool(config: PoolConfig, faults: FaultPlan) -> (Arc<SimulatedBackend>, Pool) {
    pool_over(SimulatedConfig { faults, ..SimulatedConfig::default() }, config)
}

pub fn pool_over(backend: SimulatedConfig, config: PoolConfig) -> (Arc<SimulatedBackend>, Pool) {
    let backend = Arc::new(SimulatedBackend::new(backend));
    let pool = Pool::new(Arc::clone(&backend) as _, Spec::default(), config).unwrap();
    (backend, pool)
}

/// Returns the configuration of a small pool that refills one sandbox at a time.
pub fn small() -> PoolConfig {
    PoolConfig { min_warm: 2, max_warm: 3, max: 4, ..PoolConfig::default() }
}

/// Lets all pending tasks make progress.
pub async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

pub fn of_tenant(name: &str) -> Spec {
    Spec::builder().tenant(TenantId::new(name).unwrap()).build().unwrap()
}

/// Returns a spec that is not compatible with a simulated sandbox prepared for the default spec.
pub fn unfit() -> Spec {
    let limits = Limits { cpus: Some(Cpus::from_millis(500)), ..Limits::default() };
    Spec::builder().limits(limits).build().unwrap()
}

pub fn program(steps: impl IntoIterator<Item = Step>) -> ExecRequest {
    Program::new(steps).request().build().unwrap()
}

pub fn print(text: &str) -> ExecRequest {
    program([Step::Print { stream: cofferdam_contract::OutputStream::Stdout, text: text.into() }])
}

pub fn sleep_forever() -> ExecRequest {
    program([Step::OnTerm(OnTerm::Exit(3)), Step::SleepForever])
}
