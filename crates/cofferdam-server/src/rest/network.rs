//! The network policy of a live sandbox: read, replace.

use axum::Extension;
use axum::extract::State;
use cofferdam_audit::{Action, Listed, PolicySet, Text};
use cofferdam_contract::{NetworkPolicy, NetworkProtocol, NetworkRule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::extract::{Json, Path};
use super::problem::Failure;
use super::{App, actions, detached};
use crate::caller::Caller;

/// The network policy of a sandbox, as in a create. Secrets are refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SandboxNetwork(pub NetworkPolicy);

/// Read the network policy of a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{sandbox}/network", tag = "sandboxes",
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, body = SandboxNetwork)))]
pub async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<axum::Json<SandboxNetwork>, Failure> {
    Ok(axum::Json(SandboxNetwork(app.sandboxes().find(&caller.tenant, &id)?.inner().network_policy())))
}

/// Replace the network policy of a sandbox.
///
/// Connections that the new policy does not allow are closed. A sandbox that was created without a network gets none, and
/// the new policy can have no ports that the first one did not have. A refused policy leaves the old one in force.
#[utoipa::path(put, path = "/v1/sandboxes/{sandbox}/network", tag = "sandboxes", request_body = SandboxNetwork,
    params(("sandbox" = String, Path, description = "The id or name")),
    responses((status = 200, body = SandboxNetwork)))]
pub async fn set(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(SandboxNetwork(policy)): Json<SandboxNetwork>,
) -> Result<axum::Json<SandboxNetwork>, Failure> {
    let live = app.sandboxes().find(&caller.tenant, &id)?;
    let policy = app.policy().network("set_network", policy)?;
    let work = async move {
        let _use = live.keep();
        let about = |action: &mut Action| {
            (action.sandbox, action.network) = (Some(Text::new(&live.id)), Some(audited(&policy)));
        };
        let recorded = actions::begin(&app, &caller, "network", about).await?;
        let set = live.used().set_network(policy).await;
        recorded.end(&set, |_, ()| {}).await;
        set.map(|()| live.inner().network_policy())
    };
    // A started operation completes without its client.
    Ok(axum::Json(SandboxNetwork(detached(work).await?)))
}

/// Returns what the audit log has of a policy. Secrets are left out.
fn audited(policy: &NetworkPolicy) -> PolicySet {
    let (kind, rules) = match policy {
        NetworkPolicy::None => ("none", Listed::default()),
        NetworkPolicy::Allow { hosts } => ("allow", hosts.iter().map(Text::new).collect()),
        NetworkPolicy::Rules(rules) => ("rules", rules.allow.iter().map(rule).collect()),
        // The server accepts no others.
        _ => ("other", Listed::default()),
    };
    PolicySet { kind: Text::new(kind), rules }
}

fn rule(rule: &NetworkRule) -> Text<256> {
    let protocol = match rule.protocol {
        NetworkProtocol::Tls => "tls",
        NetworkProtocol::Https => "https",
        NetworkProtocol::Http => "http",
        _ => "",
    };
    let (methods, paths) = (rule.methods.join(","), rule.paths.join(","));
    let words: Vec<_> = [&rule.host, protocol, &methods, &paths].into_iter().filter(|word| !word.is_empty()).collect();
    Text::new(words.join(" "))
}
