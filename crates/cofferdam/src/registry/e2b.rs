//! The e2b backend's entry in the registry.

use std::sync::Arc;

use cofferdam_contract::configuration::Variables;
use cofferdam_contract::{Backend, Finding, Result};
use cofferdam_e2b::{E2bBackend, E2bConfig};

use super::Setup;
use super::table::{Creation, Examination, Implementation};

pub(super) static IMPLEMENTATION: Implementation = Implementation {
    qualified: |name| Setup { e2b: Some(name.to_owned()), ..Setup::default() },
    qualifier: |setup| setup.e2b.clone(),
    // A sandbox costs money.
    is_tried: false,
    ..Implementation::new(create, examine)
};

fn create(creation: Creation<'_>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(E2bBackend::new(config(creation.setup)?)?))
}

/// Reads the environment only here: the key is of no concern to other backends.
fn config(setup: &Setup) -> Result<E2bConfig> {
    let lookup = |name: &str| std::env::var_os(name);
    E2bConfig::from_environment(Variables::new(&lookup), setup.e2b.clone())
}

fn examine(setup: &Setup) -> Examination<'_> {
    Box::pin(async move {
        match config(setup) {
            Ok(config) => cofferdam_e2b::doctor(config).await,
            Err(error) => vec![Finding::missing("E2B", &error)],
        }
    })
}
