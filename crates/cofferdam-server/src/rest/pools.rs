//! Pools of prepared sandboxes, for the operator.

use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::App;
use crate::pools::HostPool;

/// The pools of the server.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PoolList {
    /// The pools.
    pub pools: Vec<HostPool>,
}

/// List the pools of prepared sandboxes and interpreters.
#[utoipa::path(get, path = "/v1/admin/pools", tag = "admin", responses((status = 200, body = PoolList)))]
pub async fn list(State(app): State<App>) -> axum::Json<PoolList> {
    axum::Json(PoolList { pools: app.services().pools.as_ref().map(|pools| pools.pools()).unwrap_or_default() })
}
