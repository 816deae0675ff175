//! The examination of the backend: the server, and its backend.

use cofferdam_contract::{Backend, Finding, FindingState};

use super::backend::RemoteBackend;
use super::config::RemoteConfig;

/// Asks the server for its backend. Creates no sandbox.
pub async fn doctor(config: &RemoteConfig) -> Vec<Finding> {
    const NAME: &str = "server";
    vec![match RemoteBackend::connect(config).await {
        Ok(backend) => {
            let what = format!("{} answers; its backend has level {}", config.server, backend.level());
            Finding::new(NAME, FindingState::Ok, what, None)
        }
        Err(error) => Finding::missing(NAME, &error),
    }]
}
