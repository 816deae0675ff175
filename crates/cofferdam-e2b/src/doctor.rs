//! The examination of the backend: the address of the API, and the key.

use cofferdam_contract::{ErrorKind, Finding, FindingState};
use hyper::Method;

use crate::client::Client;
use crate::config::E2bConfig;
use crate::error::Failure;

/// Asks E2B whether it takes the key. Creates no sandbox.
pub async fn doctor(config: E2bConfig) -> Vec<Finding> {
    const NAME: &str = "E2B";
    let api = config.api();
    let client = match Client::new(config) {
        Ok(client) => client,
        Err(error) => return vec![Finding::missing(NAME, &error)],
    };
    let finding = match client.call(Method::GET, "/v2/sandboxes?limit=1", None::<&()>, true).await {
        Ok(_) => Finding::new(NAME, FindingState::Ok, format!("{api} takes the key"), None),
        // This request is about no sandbox.
        Err(Failure::Refused(refusal)) if refusal.status == 404 => {
            let error =
                cofferdam_contract::Error::new(ErrorKind::Unavailable, "connect", "the address is not E2B's API")
                    .with_remedy("check E2B_DOMAIN and E2B_API_URL");
            Finding::missing(NAME, &error)
        }
        Err(failure) => Finding::missing(NAME, &failure.into_error("connect")),
    };
    vec![finding]
}
