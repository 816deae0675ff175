//! Pools of prepared sandboxes, as the operator sees them.

use std::collections::BTreeMap;

use cofferdam_contract::{ErrorKind, Level};
use cofferdam_server::{HostPool, HostPools, Scope};
use http_body_util::BodyExt;
use serde_json::json;

use crate::support::{Method, Over, bounds, get, start};

/// A pool of sandboxes that cannot be refilled, and one of interpreters.
#[derive(Debug)]
pub struct Two;

impl HostPools for Two {
    fn pools(&self) -> Vec<HostPool> {
        let sandboxes = HostPool {
            backend: "simulated".to_owned(),
            level: Level::Simulated,
            pool: "sandboxes".to_owned(),
            idle: 1,
            target: 4,
            refilling: 2,
            claimed: 3,
            waiting: 5,
            claims: BTreeMap::from([("warm".to_owned(), 8), ("cold-empty".to_owned(), 6)]),
            failures: 7,
            refills: 9,
            refill_failures: 10,
            refill_error: Some("no room".to_owned()),
        };
        let python = HostPool { pool: "python".to_owned(), idle: 11, refill_error: None, ..sandboxes.clone() };
        vec![sandboxes, python]
    }
}

/// Promise (Server): Operators see the levels of pools, their failures, and the numbers of warm and cold creates, in a
/// document and as metrics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_are_shown_to_the_operator() {
    let server = start(Over::Tls, bounds()).await;
    let (operator, _) = server.keyed("ops", &[Scope::Admin]).await;
    let listed = get(&operator, "/v1/admin/pools").await.unwrap();
    let expected = json!({
        "backend": "simulated", "level": "simulated", "pool": "sandboxes", "idle": 1, "target": 4, "refilling": 2,
        "claimed": 3, "waiting": 5, "claims": { "warm": 8, "cold-empty": 6 }, "failures": 7, "refills": 9,
        "refill_failures": 10, "refill_error": "no room"
    });
    assert_eq!((&listed["pools"][0], &listed["pools"][1]["pool"]), (&expected, &json!("python")));

    let answer = operator.send(Method::GET, "/v1/metrics", cofferdam_server::client::Content::None).await.unwrap();
    let text = String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let pool = r#"backend="simulated",level="simulated",pool="sandboxes""#;
    for line in [
        format!("cofferdam_pool_idle{{{pool}}} 1"),
        format!("cofferdam_pool_target{{{pool}}} 4"),
        format!("cofferdam_pool_refilling{{{pool}}} 2"),
        format!("cofferdam_pool_claimed{{{pool}}} 3"),
        format!("cofferdam_pool_waiting{{{pool}}} 5"),
        format!("cofferdam_pool_failures_total{{{pool}}} 7"),
        format!("cofferdam_pool_refills_total{{{pool}}} 9"),
        format!("cofferdam_pool_refill_failures_total{{{pool}}} 10"),
        format!("cofferdam_pool_claims_total{{{pool},kind=\"warm\"}} 8"),
        format!("cofferdam_pool_claims_total{{{pool},kind=\"cold-empty\"}} 6"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    assert!(text.contains(r#"pool="python"} 11"#), "{text}");
    let (tenant, _) = server.keyed("acme", &[Scope::SandboxesRead]).await;
    assert_eq!(get(&tenant, "/v1/admin/pools").await.unwrap_err().kind(), ErrorKind::Denied);
    server.stop().await;
}
