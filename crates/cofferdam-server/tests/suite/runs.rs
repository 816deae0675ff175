use std::sync::Arc;
use std::time::Duration;

use cofferdam_server::client::{Content, Method};
use cofferdam_server::{Scope, ServedBackend};
use cofferdam_simulated::{FaultPlan, FaultPoint, SimulatedBackend, Step};
use http_body_util::BodyExt as _;
use serde_json::json;

use crate::networked::{BYTES, CONNECTIONS, Networked};
use crate::support::{Over, bounds, get, post, start_with, steps};

/// Promise (Server): The bytes that a run sends and receives count, whether it ends or its caller leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_pays_for_its_network() {
    let server = start_with(Over::Tls, bounds(), |config| {
        let backend = Arc::new(Networked(Default::default()));
        config
            .policy
            .backends
            .insert("simulated".to_owned(), ServedBackend { backend, attributes: Vec::new(), archive: None });
    })
    .await;
    let (acme, _) = server.keyed("acme", Scope::ALL).await;
    post(&acme, "/v1/runs", json!({ "exec": steps(vec![Step::Exit(0)]) })).await.unwrap();
    let row = get(&acme, "/v1/usage").await.unwrap()["usage"][0].clone();
    assert_eq!((&row["egress_bytes"], &row["sandboxes"], &row["execs"]), (&json!(2 * BYTES), &json!(1), &json!(1)));
    let (operator, _) = server.keyed("operator", &[Scope::Admin]).await;
    let response = operator.send(Method::GET, "/v1/metrics", Content::None).await.unwrap();
    let metrics = response.into_body().collect().await.unwrap().to_bytes();
    let metrics = String::from_utf8_lossy(&metrics);
    for direction in ["sent", "received"] {
        let line =
            format!("cofferdam_network_bytes_total{{backend=\"simulated\",direction=\"{direction}\"}} {BYTES}\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    for (name, count) in [("connections", CONNECTIONS), ("refused", 1)] {
        let line = format!("cofferdam_network_{name}_total{{backend=\"simulated\"}} {count}\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    let body = json!({ "exec": steps(vec![Step::SleepForever]) });
    let left = tokio::time::timeout(Duration::from_millis(300), post(&acme, "/v1/runs", body)).await;
    assert!(left.is_err());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let row = get(&acme, "/v1/usage").await.unwrap()["usage"][0].clone();
        if row["egress_bytes"] == json!(4 * BYTES) && row["sandboxes"] == json!(2) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{row}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let sandbox = crate::support::create(&acme, json!({})).await;
    let stats = get(&acme, &format!("/v1/sandboxes/{sandbox}/stats")).await.unwrap();
    assert_eq!((&stats["network"]["sent_bytes"], &stats["network"]["received_bytes"]), (&json!(BYTES), &json!(BYTES)));
    server.stop().await;
}

/// Promise (Server): The reservation of a run whose caller leaves ends after its sandbox, not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_keeps_its_reservation_until_its_sandbox_is_gone() {
    let server = start_with(Over::Tls, bounds(), |config| {
        let faults = FaultPlan::none().delay(FaultPoint::Close, 1, Duration::from_millis(1500));
        let backend = Arc::new(SimulatedBackend::with_faults(faults));
        config
            .policy
            .backends
            .insert("simulated".to_owned(), ServedBackend { backend, attributes: Vec::new(), archive: None });
    })
    .await;
    let (acme, _) = server.keyed("acme", Scope::ALL).await;
    let body = json!({ "exec": steps(vec![Step::SleepForever]) });
    let left = tokio::time::timeout(Duration::from_millis(300), post(&acme, "/v1/runs", body)).await;
    assert!(left.is_err());
    let begun = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(get(&acme, "/v1/quota").await.unwrap()["sandboxes"], 1, "the sandbox is still being closed");
    while get(&acme, "/v1/quota").await.unwrap()["sandboxes"] != 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "the reservation is never released");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}
