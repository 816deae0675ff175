//! The simulated backend's entry in the registry.

use std::sync::Arc;

use cofferdam_conformance::Target;
use cofferdam_contract::{Backend, Result};
use cofferdam_simulated::{SimulatedBackend, SimulatedConfig, SimulatedPrograms};

use super::Setup;
use super::table::{Creation, Examination, Implementation};

pub(super) static IMPLEMENTATION: Implementation = Implementation {
    target: |backend| Target::new(backend, SimulatedPrograms),
    ..Implementation::new(create, examine)
};

fn create(_: Creation<'_>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(SimulatedBackend::new(SimulatedConfig::default())))
}

/// Finds nothing: the backend needs nothing of the host.
fn examine(_: &Setup) -> Examination<'_> {
    Box::pin(std::future::ready(Vec::new()))
}
