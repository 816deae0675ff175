//! Searches of the audit log.

use std::sync::Arc;

use cofferdam_contract::{Backend, ErrorKind};
use cofferdam_server::{Scope, ServedBackend, ServerConfig};
use cofferdam_simulated::Step;
use serde_json::{Value, json};

use crate::networked::{Networked, Uncounted};
use crate::support::{Method, Over, Running, bounds, create, exec, get, post, send, start, start_with, steps};

fn seqs(page: &Value) -> Vec<u64> {
    page["lines"].as_array().unwrap().iter().map(|line| line["seq"].as_u64().unwrap()).collect()
}

/// Promise (Server): A tenant finds its own lines of the audit log, by sandbox, kind, execution, time and text, and no
/// others.
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
    // A text is searched before pages are made of the lines.
    let page = get(&acme, "/v1/audit?text=POST&limit=1").await.unwrap();
    let older = get(&acme, &format!("/v1/audit?text=post&limit=1&before={}", page["before"])).await.unwrap();
    for page in [&page, &older] {
        let record = &page["lines"][0]["record"];
        assert_eq!(
            (&record["kind"], &record["method"], &record["tenant"]),
            (&json!("call"), &json!("POST"), &json!("acme"))
        );
    }
    assert_ne!(seqs(&page), seqs(&older));
    assert_eq!(seqs(&get(&acme, &format!("/v1/audit?text={}&kind=end", id.to_uppercase())).await.unwrap()).len(), 1);
    let others = get(&acme, "/v1/audit?text=other").await.unwrap();
    assert_eq!(seqs(&others), [0; 0], "a text finds no lines of other tenants: {others}");
    let long = format!("text={}", "x".repeat(257));
    for bad in [
        "text=",
        &long,
        "kind=x",
        "from=yesterday",
        "limit=0",
        "limit=1001",
        "after=1&before=2",
        "id=/",
        "tenant=other",
        "x=1",
    ] {
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
    for path in ["/v1/audit", "/v1/audit/verify", "/v1/admin/audit", "/v1/admin/audit/verify"] {
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

/// Returns the records of a kind, the oldest first.
fn records(server: &Running, kind: &str) -> Vec<Value> {
    let filter = cofferdam_audit::Filter { kind: Some(kind.to_owned()), ..Default::default() };
    let found = cofferdam_audit::query(&server.directory.path().join("audit"), filter).unwrap();
    found.map(|entry| serde_json::to_value(entry.unwrap().record).unwrap()).collect()
}

/// Promise (Server): A network that a backend cannot report to the audit log, or count for a quota, is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncounted_network_is_refused() {
    let networked = json!({ "network": { "kind": "allow", "hosts": ["allowed.example"] } });
    let server = with_backend(Arc::new(Uncounted(Default::default())), |_| ()).await;
    let (acme, _) = server.keyed("acme", Scope::ALL).await;
    let refused = post(&acme, "/v1/sandboxes", networked.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(refused.to_string().contains("audit log"), "{refused}");
    create(&acme, json!({})).await;
    server.stop().await;

    let server = with_backend(Arc::new(Uncounted(Default::default())), |config| config.audit = None).await;
    let (acme, _) = server.keyed("acme", Scope::ALL).await;
    create(&acme, networked.clone()).await;
    send(&acme, Method::PUT, "/v1/admin/quotas/acme", Some(json!({ "egress_per_day": "1G" }))).await.unwrap();
    let refused = post(&acme, "/v1/sandboxes", networked.clone()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(refused.to_string().contains("quota"), "{refused}");
    let run = json!({ "exec": steps(vec![Step::Exit(0)]), "sandbox": networked });
    let refused = post(&acme, "/v1/runs", run).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    let quota = get(&acme, "/v1/admin/quotas/acme").await.unwrap();
    assert_eq!(quota["sandboxes"], 1, "a refused sandbox holds nothing: {quota}");
    server.stop().await;
}

/// Starts a server whose default backend reports a network.
async fn with_network() -> Running {
    with_backend(Arc::new(Networked(Default::default())), |_| ()).await
}

/// Starts a server with this default backend, whose tenants may use the network.
async fn with_backend(backend: Arc<dyn Backend>, change: impl FnOnce(&mut ServerConfig)) -> Running {
    let with_network = |config: &mut ServerConfig| {
        let served = ServedBackend { backend, attributes: Vec::new(), archive: None };
        config.policy.backends.insert("simulated".to_owned(), served);
        config.policy.network = true;
        change(config);
    };
    start_with(Over::Tls, bounds(), with_network).await
}

/// Promise (Server): A sandbox loses its network when its tenant may write no more audit records, so that nothing is
/// unaudited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_ends_with_the_quota_of_audit_records() {
    let server = with_network().await;
    let ((acme, _), (operator, _)) = (server.keyed("acme", Scope::ALL).await, server.keyed("op", Scope::ALL).await);
    create(&acme, json!({ "name": "a", "network": { "kind": "allow", "hosts": ["allowed.example"] } })).await;
    let run = async || {
        let started = exec(&acme, "a", &steps(vec![Step::Exit(0)])).await?;
        get(&acme, &format!("/v1/sandboxes/a/execs/{}/wait", started.id)).await
    };
    run().await.unwrap();
    let quota = "/v1/admin/quotas/acme";
    let written = get(&operator, quota).await.unwrap()["today"]["audit_bytes"].as_u64().unwrap();
    send(&operator, Method::PUT, quota, Some(json!({ "audit_per_day": written + 1 }))).await.unwrap();
    // The call is admitted. Its records reach the quota, so that the wait for its end may be refused.
    let _ = run().await;
    while get(&operator, quota).await.unwrap()["sandboxes"] == 1 && records(&server, "network").len() < 4 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(run().await.is_err());
    send(&operator, Method::DELETE, quota, None).await.unwrap();
    let network = json!({ "kind": "allow", "hosts": ["allowed.example"] });
    let opened = send(&acme, Method::PUT, "/v1/sandboxes/a/network", Some(network)).await.unwrap_err();
    assert_eq!(opened.kind(), ErrorKind::Denied, "the tenant cannot open it again: {opened}");
    assert_eq!(get(&acme, "/v1/sandboxes/a/network").await.unwrap(), json!({ "kind": "none" }));
    send(&acme, Method::PUT, "/v1/sandboxes/a/network", Some(json!({ "kind": "none" }))).await.unwrap();
    // What was written last may still be examined.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    run().await.unwrap();
    send(&acme, Method::DELETE, "/v1/sandboxes/a", None).await.unwrap();
    assert_eq!(records(&server, "network").len(), 4, "no connection after the quota was reached");
    server.stop().await;
}

/// Promise (Server): Each connection of a sandbox is in the audit log with its tenant, from the first command on until the
/// close, and an exec has what was denied in its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_network_of_sandboxes_is_audited() {
    let server = with_network().await;
    let (acme, _) = server.keyed("acme", Scope::ALL).await;
    let network = json!({ "kind": "allow", "hosts": ["allowed.example"] });
    let body = json!({ "sandbox": { "network": network }, "exec": steps(vec![Step::Exit(0)]) });
    post(&acme, "/v1/runs", body).await.unwrap();
    let hosts = |records: &[Value]| -> Vec<String> {
        records.iter().map(|record| record["host"].as_str().unwrap().to_owned()).collect()
    };
    let all = ["allowed.example", "denied.example", "late.example"];
    let found = records(&server, "network");
    assert_eq!(hosts(&found), all, "a run has all of them when it is answered");
    assert_eq!(
        (&found[1]["tenant"], &found[1]["allowed"], &found[1]["reason"]),
        (&json!("acme"), &json!(false), &json!("no rule"))
    );
    let sandbox = create(&acme, json!({ "name": "a", "network": network })).await;
    for _ in 0..2 {
        let started = exec(&acme, "a", &steps(vec![Step::Exit(0)])).await.unwrap();
        get(&acme, &format!("/v1/sandboxes/a/execs/{}/wait", started.id)).await.unwrap();
    }
    send(&acme, Method::DELETE, "/v1/sandboxes/a", None).await.unwrap();
    let own: Vec<_> = records(&server, "network").into_iter().filter(|one| one["sandbox"] == json!(sandbox)).collect();
    assert_eq!(hosts(&own), [&all[..2], &all[..]].concat());
    for end in records(&server, "end") {
        let denied = json!({ "count": 1, "first": [{ "by": "network", "what": "denied.example", "times": 1 }] });
        assert_eq!(end["denials"], denied);
    }
    server.stop().await;
}

/// Promise (Server): A snapshot, a restore and a fork are in the audit log with their caller and what they made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_and_their_sandboxes_are_audited() {
    let server = start(Over::Tls, bounds()).await;
    let (acme, key) = server.keyed("acme", Scope::ALL).await;
    let first = create(&acme, json!({ "name": "a" })).await;
    let taken = post(&acme, "/v1/sandboxes/a/snapshot", json!({ "name": "base" })).await.unwrap();
    let restored = create(&acme, json!({ "snapshot": "base" })).await;
    let forked = post(&acme, "/v1/sandboxes/a/fork", json!({})).await.unwrap();
    assert!(post(&acme, "/v1/sandboxes/a/fork", json!({ "name": "a" })).await.is_err());
    let found = records(&server, "action");
    let shown: Vec<_> =
        found.iter().map(|one| [&one["action"], &one["state"], &one["made"]].map(Clone::clone)).collect();
    let pair = |action: &str, target: &Value| {
        [[json!(action), json!("begun"), Value::Null], [json!(action), json!("ended"), target.clone()]]
    };
    let expected =
        [pair("snapshot", &taken["id"]), pair("restore", &json!(restored)), pair("fork", &forked["id"])].concat();
    assert_eq!(shown[..6], expected[..], "{found:?}");
    for one in &found {
        assert_eq!((&one["tenant"], &one["key"]), (&json!("acme"), &json!(key)));
    }
    assert_eq!(
        (&found[0]["sandbox"], &found[2]["snapshot"], &found[4]["sandbox"]),
        (&json!(first), &taken["id"], &json!(first))
    );
    assert_eq!(found[0]["id"], found[1]["id"]);
    server.stop().await;
}

/// Promise (Server): A call of an unknown caller is in the audit log with the public part of its key and without the
/// secret, and no tenant finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_callers_are_audited_without_their_secrets() {
    let server = start(Over::Tls, bounds()).await;
    let key = server.key("acme", &[Scope::SandboxesRead]).await;
    let (start, secret) = key.rsplit_once('_').unwrap();
    let wrong = format!("{start}_{}", "0".repeat(64));
    let refused = [Some(&*wrong), Some("hunter2"), None];
    for key in refused {
        assert_eq!(get(&server.with_key(key), "/v1/sandboxes").await.unwrap_err().kind(), ErrorKind::Denied);
    }
    for _ in 0..100 {
        assert!(get(&server.with_key(None), "/v1/sandboxes").await.is_err());
    }
    let calls = records(&server, "call");
    assert_eq!(calls.len(), 20, "further ones are only counted");
    let shown: Vec<_> = calls.iter().take(3).map(|call| call["key"].clone()).collect();
    assert_eq!(shown, [json!(start.strip_prefix("cfd_").unwrap()), json!(""), json!("")]);
    assert!(calls.iter().all(|call| call["status"] == 401 && call["tenant"] == ""), "{calls:?}");
    let text = std::fs::read_to_string(server.directory.path().join("audit/audit-00000001.jsonl")).unwrap();
    assert!(!text.contains(secret) && !text.contains("hunter2"));
    let (acme, _) = server.keyed("acme", Scope::ALL).await;
    assert_eq!(get(&acme, "/v1/audit?kind=call").await.unwrap()["lines"], json!([]));
    server.stop().await;
}

/// Promise (Server): A tenant verifies its part of the log, learns nothing of other tenants, and learns of a changed line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_verifies_its_part() {
    let server = start(Over::Tls, bounds()).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", Scope::ALL).await, server.keyed("other", Scope::ALL).await);
    create(&acme, json!({})).await;
    for _ in 0..5 {
        create(&other, json!({})).await;
    }
    let lines = get(&acme, "/v1/audit").await.unwrap();
    let hash = |line: &Value| line["hash"].clone();
    let part = get(&acme, "/v1/audit/verify").await.unwrap();
    // The search is a call, too.
    let newest = get(&acme, "/v1/audit").await.unwrap();
    assert_eq!(lines["lines"].as_array().unwrap().len(), 1);
    let expected = json!({ "is_whole": true, "records": 2, "first": hash(&lines["lines"][0]),
        "last": hash(&newest["lines"][1]), "network_lost": 0 });
    assert_eq!(part, expected);
    let file = server.directory.path().join("audit/audit-00000001.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("\"status\":201", "\"status\":202", 1)).unwrap();
    assert_eq!(get(&acme, "/v1/audit/verify").await.unwrap()["is_whole"], false);
    server.stop().await;
}
