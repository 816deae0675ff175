//! The container backend's entry in the registry.

use std::sync::Arc;

use cofferdam_container::{ContainerBackend, ContainerSettings, PullPolicy};
use cofferdam_contract::{Backend, Result};

use super::table::{Creation, Examination, Implementation};
use super::{Setup, images};

pub(super) static IMPLEMENTATION: Implementation = Implementation {
    qualified: |runtime| ContainerSettings { runtime: Some(runtime.to_owned()), ..ContainerSettings::default() }.into(),
    qualifier: |setup| setup.containers.runtime.clone(),
    fingerprint: |setup| Some(format!("{:?}", setup.containers.config())),
    ..Implementation::new(create, examine)
};

/// Returns the settings in command-line options.
pub(super) fn settings(pull: Option<PullPolicy>) -> ContainerSettings {
    ContainerSettings { pull, ..ContainerSettings::default() }
}

/// Does not contact the engine, which the first sandbox does.
fn create(creation: Creation<'_>) -> Result<Arc<dyn Backend>> {
    let config = creation.setup.containers.config();
    let source = Arc::new(images::StoredImages::new(&creation.setup.images));
    Ok(Arc::new(ContainerBackend::with_source(&config, images::pulling(creation.progress), source)?))
}

fn examine(setup: &Setup) -> Examination<'_> {
    let source = Arc::new(images::StoredImages::new(&setup.images));
    Box::pin(async move { cofferdam_container::doctor_with_source(&setup.containers.config(), Some(source)).await })
}
