//! The e2b backend's entry in the registry. Its settings are in the environment variables of E2B's own clients.

use std::sync::Arc;

use cofferdam_contract::{Backend, Error, ErrorKind, Finding, Result};
use cofferdam_e2b::{E2bBackend, E2bConfig, Key};

use super::Setup;
use super::table::{Creation, Examination, Implementation};

/// The key.
const KEY: &str = "E2B_API_KEY";
/// The domain of the API and the sandboxes.
const DOMAIN: &str = "E2B_DOMAIN";
/// The address of the API.
const API_URL: &str = "E2B_API_URL";
/// One address for all sandboxes.
const SANDBOX_URL: &str = "E2B_SANDBOX_URL";

pub(super) static IMPLEMENTATION: Implementation = Implementation {
    qualified: |name| Setup { e2b: Some(name.to_owned()), ..Setup::default() },
    qualifier: |setup| setup.e2b.clone(),
    // A sandbox costs money.
    is_tried: false,
    ..Implementation::new(create, examine)
};

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn create(creation: Creation<'_>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(E2bBackend::new(config(creation.setup)?)?))
}

fn config(setup: &Setup) -> Result<E2bConfig> {
    let key = variable(KEY).ok_or_else(|| {
        Error::new(ErrorKind::Denied, "select backend", format!("{KEY} is not set"))
            .with_remedy("set it to a key of the E2B dashboard")
    })?;
    let mut config = E2bConfig::new(Key::new(key)?);
    (config.api_url, config.sandbox_url) = (variable(API_URL), variable(SANDBOX_URL));
    config.domain = variable(DOMAIN).unwrap_or(config.domain);
    config.template = setup.e2b.clone().unwrap_or(config.template);
    Ok(config)
}

/// Asks E2B whether it takes the key.
fn examine(setup: &Setup) -> Examination<'_> {
    Box::pin(async move {
        match config(setup) {
            Ok(config) => cofferdam_e2b::examine(config).await,
            Err(error) => vec![Finding::missing("E2B", &error)],
        }
    })
}
