//! The e2b backend's entry in the registry.

use std::sync::Arc;

use cofferdam_contract::configuration::Variables;
use cofferdam_contract::{Backend, Finding, Result};
use cofferdam_e2b::{E2bBackend, E2bConfig, E2bSettings};

use super::Setup;
use super::table::{Creation, Examination, Implementation};

pub(super) static IMPLEMENTATION: Implementation = Implementation {
    qualified: |name| Setup {
        e2b: E2bSettings { template: Some(name.to_owned()), ..E2bSettings::default() },
        ..Setup::default()
    },
    qualifier: |setup| setup.e2b.template.clone(),
    fingerprint: |setup| Some(format!("{:?}", setup.e2b)),
    // A sandbox costs money.
    is_tried: false,
    ..Implementation::new(create, examine)
};

fn create(creation: Creation<'_>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(E2bBackend::new(config(creation.setup)?)?))
}

/// Reads the key only here: it is of no concern to other backends.
fn config(setup: &Setup) -> Result<E2bConfig> {
    let lookup = |name: &str| std::env::var_os(name);
    setup.e2b.config(Variables::new(&lookup))
}

fn examine(setup: &Setup) -> Examination<'_> {
    Box::pin(async move {
        match config(setup) {
            Ok(config) => cofferdam_e2b::doctor(config).await,
            Err(error) => vec![Finding::missing("E2B", &error)],
        }
    })
}
