//! Searches of the audit log.

use cofferdam_contract::ErrorKind;
use cofferdam_server::Scope;
use cofferdam_simulated::Step;
use serde_json::{Value, json};

use crate::support::{Over, bounds, create, exec, get, start, start_with, steps};

fn seqs(page: &Value) -> Vec<u64> {
    page["lines"].as_array().unwrap().iter().map(|line| line["seq"].as_u64().unwrap()).collect()
}

/// Promise (Server): A tenant finds its own lines of the audit log, by sandbox, kind, execution and time, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_finds_its_own_lines() {
    let server = start(Over::Tls, bounds()).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", Scope::ALL).await, server.keyed("other", Scope::ALL).await);
    let sandbox = create(&acme, json!({ "name": "a" })).await;
    create(&other, json!({ "name": "a" })).await;
    for _ in 0..3 {
        let started = exec(&acme, "a", &steps(vec![Step::Exit(3)])).await.unwrap();
        get(&acme, &format!("/v1/sandboxes/a/execs/{}/wait", started.id)).await.unwrap();
    }
    let all = get(&acme, "/v1/audit").await.unwrap();
    let lines = all["lines"].as_array().unwrap();
    assert!(lines.len() >= 13, "{all}");
    assert!(lines.iter().all(|line| line["record"]["tenant"] == "acme"), "{all}");
    assert!(seqs(&all).is_sorted_by(|one, next| one > next), "the newest first: {all}");
    // Pages of both directions have the same lines.
    let end = seqs(&all)[0];
    for (direction, start) in [("before", u64::MAX), ("after", 0)] {
        let (mut found, mut at) = (Vec::new(), Some(start));
        while let Some(from) = at {
            let page = get(&acme, &format!("/v1/audit?limit=2&{direction}={from}")).await.unwrap();
            found.extend(seqs(&page).into_iter().filter(|seq| *seq <= end));
            at = page[direction].as_u64();
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        assert_eq!(found, seqs(&all), "{direction}");
    }
    let ends = get(&acme, "/v1/audit?kind=end").await.unwrap();
    assert_eq!(seqs(&ends).len(), 3);
    let inner = ends["lines"][0]["record"]["sandbox"].as_str().unwrap();
    assert_eq!(seqs(&get(&acme, &format!("/v1/audit?sandbox={inner}&kind=end")).await.unwrap()).len(), 3, "{sandbox}");
    let id = ends["lines"][0]["record"]["id"].as_str().unwrap();
    assert_eq!(seqs(&get(&acme, &format!("/v1/audit?id={id}")).await.unwrap()).len(), 2, "its begin and end");
    assert_eq!(seqs(&get(&acme, "/v1/audit?until=2020-01-01T00:00:00Z").await.unwrap()), [0; 0]);
    for bad in ["kind=x", "from=yesterday", "limit=0", "limit=1001", "after=1&before=2", "id=/", "tenant=other", "x=1"]
    {
        let error = get(&acme, &format!("/v1/audit?{bad}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
    }
    let everything = get(&acme, "/v1/admin/audit?kind=call").await.unwrap();
    let tenant = |line: &Value| line["record"]["tenant"].as_str().map(str::to_owned);
    let tenants: std::collections::BTreeSet<_> =
        everything["lines"].as_array().unwrap().iter().filter_map(tenant).collect();
    assert_eq!(tenants, ["acme", "other"].map(str::to_owned).into());
    let others = get(&acme, "/v1/admin/audit?tenant=other").await.unwrap();
    assert!(others["lines"].as_array().unwrap().iter().all(|line| line["record"]["tenant"] == "other"));
    let report = get(&acme, "/v1/admin/audit/verify").await.unwrap();
    assert_eq!((&report["verdict"], &report["breaches"]), (&json!("whole"), &json!(0)));
    server.stop().await;
}

/// Promise (Server): A search without an audit log, and one that meets a changed line, fail instead of finding nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_or_damaged_log_is_an_error() {
    let server = start_with(Over::Socket, bounds(), |config| config.audit = None).await;
    for path in ["/v1/audit", "/v1/admin/audit", "/v1/admin/audit/verify"] {
        assert_eq!(get(&server.client(), path).await.unwrap_err().kind(), ErrorKind::Unsupported, "{path}");
    }
    server.stop().await;
    let server = start(Over::Socket, bounds()).await;
    create(&server.client(), json!({})).await;
    let file = server.directory.path().join("audit/audit-00000001.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("\"status\":201", "\"status\":202", 1)).unwrap();
    let error = get(&server.client(), "/v1/audit").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(get(&server.client(), "/v1/admin/audit/verify").await.unwrap()["verdict"], "broken");
    server.stop().await;
}
