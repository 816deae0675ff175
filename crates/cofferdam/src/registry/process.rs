//! The process backend's entry in the registry.

use std::sync::Arc;

use cofferdam_contract::{Backend, Result};
use cofferdam_process::{Images, LauncherStart, ProcessBackend, ProcessConfig};

use super::Setup;
use super::table::{Creation, Examination, Implementation};

pub(super) static IMPLEMENTATION: Implementation = Implementation::new(create, examine);

fn create(creation: Creation<'_>) -> Result<Arc<dyn Backend>> {
    let launcher = creation.launcher.map_or(LauncherStart::Execute, LauncherStart::Forked);
    let config = ProcessConfig {
        prepare_ahead: !creation.is_single,
        launcher,
        images: images(creation.setup),
        ..ProcessConfig::default()
    };
    Ok(Arc::new(ProcessBackend::new(config)?))
}

#[cfg(feature = "images")]
fn images(setup: &Setup) -> Images {
    Images(Some(Arc::new(super::roots::StoredRoots(setup.images.clone()))))
}

#[cfg(not(feature = "images"))]
fn images(_: &Setup) -> Images {
    Images::default()
}

fn examine(_: &Setup) -> Examination<'_> {
    Box::pin(cofferdam_process::doctor())
}
