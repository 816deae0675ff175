use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ByteSize, ErrorKind, Limits};
use cofferdam_server::client::{Client, Content, Method};
use cofferdam_server::{
    Capacity, QueueBounds, Quota, QuotaFile, Scope, ServedBackend, Server, ServerConfig, Usage, UsageRow,
};
use cofferdam_simulated::{FaultPlan, FaultPoint, SimulatedBackend, Step};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection as _, Executor as _};

use crate::support::{Over, bounds, create, exec, get, post, send, start, start_made, start_with, steps};

const ALL: &[Scope] = Scope::ALL;

fn wait_of(error: &cofferdam_contract::Error) -> Option<&str> {
    error.context().find(|(key, _)| *key == "quota").map(|(_, value)| value)
}

/// Promise (Server): A tenant's quota bounds its sandboxes and rates, changes at once, and leaves other tenants alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_bounds_a_tenant() {
    let server = start(Over::Tls, bounds()).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", ALL).await, server.keyed("other", ALL).await);
    let quota = json!({ "sandboxes": 2, "execs_per_second": 2 });
    send(&acme, Method::PUT, "/v1/admin/quotas/acme", Some(quota)).await.unwrap();
    for name in ["a", "b"] {
        create(&acme, json!({ "name": name })).await;
    }
    let refused = post(&acme, "/v1/sandboxes", json!({})).await.unwrap_err();
    assert_eq!((refused.kind(), wait_of(&refused)), (ErrorKind::ResourceExhausted, Some("sandboxes")));
    create(&other, json!({})).await;
    send(&acme, Method::DELETE, "/v1/sandboxes/a", None).await.unwrap();
    create(&acme, json!({ "name": "a" })).await;

    let mut refusals = 0;
    for _ in 0..8 {
        let started = exec(&acme, "a", &steps(vec![Step::Exit(0)])).await;
        refusals += u32::from(started.is_err_and(|error| wait_of(&error) == Some("execs_per_second")));
    }
    assert!((1..=6).contains(&refusals), "{refusals}");
    let state = get(&acme, "/v1/quota").await.unwrap();
    assert_eq!((&state["sandboxes"], &state["quota"]["sandboxes"]), (&json!(2), &json!(2)));
    send(&acme, Method::DELETE, "/v1/admin/quotas/acme", None).await.unwrap();
    create(&acme, json!({ "name": "c" })).await;
    for bad in [json!({ "weight": 0 }), json!({ "requests_per_second": 0 }), json!({ "nonsense": 1 })] {
        let error = send(&acme, Method::PUT, "/v1/admin/quotas/acme", Some(bad)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    server.stop().await;
}

/// Promise (Server): An answer to a request beyond a rate says when to retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_is_refused_with_the_time_of_a_retry() {
    let quota = Quota { requests_per_second: Some(3), ..Quota::default() };
    let server = start_with(Over::Tcp, bounds(), |config| config.quota = quota).await;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut answers = Vec::new();
    for _ in 0..6 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = "GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answers.push(answer);
    }
    assert!(answers[0].starts_with("HTTP/1.1 200"), "{}", answers[0]);
    let refused = answers.iter().find(|answer| answer.starts_with("HTTP/1.1 429")).expect("a refusal");
    assert!(refused.contains("retry-after: 1\r\n") && refused.contains("application/problem+json"), "{refused}");
    server.stop().await;
}

/// Promise (Server): While the server is full, a create waits for its turn, and is refused when its time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_waits_while_the_server_is_full() {
    let server = start_with(Over::Tls, bounds(), |config| {
        config.capacity = Capacity { sandboxes: Some(1), memory: None };
        config.queue = QueueBounds { wait: Duration::from_millis(600), ..QueueBounds::default() };
    })
    .await;
    let ((one, _), (two, _)) = (server.keyed("one", ALL).await, server.keyed("two", ALL).await);
    create(&one, json!({ "name": "a" })).await;
    let refused = post(&two, "/v1/sandboxes", json!({})).await.unwrap_err();
    assert_eq!((refused.kind(), refused.message()), (ErrorKind::Unavailable, "the server stayed full for too long"));
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { post(&two, "/v1/sandboxes", json!({ "name": "b" })).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let waiting_now = metric(&one, "cofferdam_waiting ").await;
    assert_eq!(waiting_now, 1.0);
    send(&one, Method::DELETE, "/v1/sandboxes/a", None).await.unwrap();
    waiting.await.unwrap().unwrap();
    server.stop().await;
}

/// Promise (Server): A client that leaves before its create is answered leaves no sandbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_leaves_no_sandbox() {
    let server = start_with(Over::Tls, bounds(), |config| {
        config.capacity = Capacity { sandboxes: Some(1), memory: None };
    })
    .await;
    let ((one, _), (two, _)) = (server.keyed("one", ALL).await, server.keyed("two", ALL).await);
    create(&one, json!({ "name": "a" })).await;
    let answer = tokio::time::timeout(Duration::from_millis(300), post(&two, "/v1/sandboxes", json!({}))).await;
    assert!(answer.is_err(), "the server is full");
    send(&one, Method::DELETE, "/v1/sandboxes/a", None).await.unwrap();
    // The next create gets the room, because the other one is closed at once.
    create(&one, json!({ "name": "b" })).await;
    assert_eq!(get(&two, "/v1/sandboxes").await.unwrap()["sandboxes"], json!([]));
    assert_eq!(server.simulated.living().len(), 1);
    server.stop().await;
}

async fn text_of(client: &Client, path: &str) -> String {
    let response = client.send(Method::GET, path, Content::None).await.unwrap();
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Returns the value of the first line that starts so.
async fn metric(client: &Client, start: &str) -> f64 {
    let all = text_of(client, "/v1/metrics").await;
    let line = all.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start} in {all}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Promise (Server): Usage counts by tenant, day and label, and is on the disk before the exit is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_counted_before_an_exit_is_reported() {
    let server = start(Over::Tls, bounds()).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", ALL).await, server.keyed("other", ALL).await);
    create(&acme, json!({ "name": "a", "backend": "process", "labels": { "project": "=x" } })).await;
    let line = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; printf 12345";
    let started = crate::support::shell(&acme, "a", line).await.unwrap();
    get(&acme, &format!("/v1/sandboxes/a/execs/{}/wait", started.id)).await.unwrap();
    // Read from the database directly: nothing in memory counts.
    let day = 0..=i64::MAX / 2;
    let rows = server.store.usage(None, *day.start(), *day.end()).await.unwrap();
    assert_eq!((rows.len(), rows[0].tenant.as_str(), rows[0].label.as_str()), (1, "acme", "=x"));
    assert_eq!((rows[0].usage.execs, rows[0].usage.output_bytes), (1, 5));
    assert!(rows[0].usage.cpu_us > 1000, "{rows:?}");
    let body = json!({ "sandbox": { "backend": "process" }, "exec": { "argv": ["true"] } });
    post(&acme, "/v1/runs", body).await.unwrap();
    send(&acme, Method::DELETE, "/v1/sandboxes/a", None).await.unwrap();
    let usage = get(&acme, "/v1/usage").await.unwrap();
    let (sandboxes, execs): (i64, i64) =
        usage["usage"].as_array().unwrap().iter().fold((0, 0), |sum, row| {
            (sum.0 + row["sandboxes"].as_i64().unwrap(), sum.1 + row["execs"].as_i64().unwrap())
        });
    assert_eq!((sandboxes, execs), (2, 2), "{usage}");
    assert!(usage["usage"][0]["memory_mib_ms"].as_i64().unwrap() > 0 || usage["usage"][1]["memory_mib_ms"] != 0);
    assert_eq!(get(&other, "/v1/usage").await.unwrap()["usage"], json!([]));
    let csv = text_of(&acme, "/v1/admin/usage?format=csv").await;
    assert!(csv.contains(",\"'=x\",") && csv.lines().count() == 3, "{csv}");
    server.stop().await;
}

/// Promise (Server): A tenant beyond its quota of audit records is refused, with a remedy, and the operator can raise it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_without_room_for_audit_records_is_refused() {
    let server = start(Over::Tls, bounds()).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", ALL).await, server.keyed("other", ALL).await);
    send(&acme, Method::PUT, "/v1/admin/quotas/acme", Some(json!({ "audit_per_day": "4K" }))).await.unwrap();
    let mut answered = 0;
    let refused = loop {
        match get(&acme, "/v1/sandboxes").await {
            Ok(_) => answered += 1,
            Err(error) => break error,
        }
        assert!(answered < 100, "4 KiB have room for few records");
    };
    assert_eq!((refused.kind(), wait_of(&refused)), (ErrorKind::ResourceExhausted, Some("audit_per_day")));
    assert!(refused.remedy().is_some_and(|remedy| remedy.contains("operator")), "{refused:?}");
    get(&other, "/v1/sandboxes").await.unwrap();
    let state = get(&acme, "/v1/admin/quotas/acme").await.unwrap();
    assert!(state["today"]["audit_bytes"].as_i64().unwrap() >= 4096, "{state}");
    assert_eq!(
        state["quota"]["audit_per_day"],
        get(&other, "/v1/admin/quotas").await.unwrap()["quotas"]["acme"]["audit_per_day"]
    );
    for _ in 0..100 {
        assert!(get(&acme, "/v1/sandboxes").await.is_err());
    }
    let filter = cofferdam_audit::Filter { kind: Some("call".to_owned()), ..Default::default() };
    let calls = cofferdam_audit::query(&server.directory.path().join("audit"), filter).unwrap();
    let refusals = calls.filter(|entry| {
        let record = serde_json::to_value(&entry.as_ref().unwrap().record).unwrap();
        record["status"] == 429 && record["tenant"] == "acme"
    });
    assert_eq!(refusals.count(), 20, "few of them have records");
    // Those of a tenant take no record of an unknown caller.
    assert!(get(&server.with_key(None), "/v1/sandboxes").await.is_err());
    let filter = cofferdam_audit::Filter { kind: Some("call".to_owned()), ..Default::default() };
    let calls = cofferdam_audit::query(&server.directory.path().join("audit"), filter).unwrap();
    let last = serde_json::to_value(calls.last().unwrap().unwrap().record).unwrap();
    assert_eq!((&last["status"], &last["tenant"]), (&json!(401), &json!("")));
    send(&acme, Method::DELETE, "/v1/admin/quotas/acme", None).await.unwrap();
    get(&acme, "/v1/sandboxes").await.unwrap();
    server.stop().await;
}

/// Promise (Server): The disk of a tenant's sandboxes, by their limits, is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disk_of_sandboxes_is_bounded() {
    let quota = Quota { disk: Some(ByteSize::from_mebibytes(100)), ..Quota::default() };
    let server = start_with(Over::Tls, bounds(), |config| config.quota = quota).await;
    let (acme, _) = server.keyed("acme", ALL).await;
    let body = |name: &str, disk: &str| {
        let limits = Limits { disk: Some(disk.parse().unwrap()), ..Limits::default() };
        json!({ "name": name, "limits": limits })
    };
    create(&acme, body("a", "60M")).await;
    let refused = post(&acme, "/v1/sandboxes", body("b", "41M")).await.unwrap_err();
    assert_eq!((refused.kind(), wait_of(&refused)), (ErrorKind::ResourceExhausted, Some("disk")));
    create(&acme, body("b", "40M")).await;
    assert_eq!(get(&acme, "/v1/quota").await.unwrap()["disk_mib"], 100);
    send(&acme, Method::DELETE, "/v1/sandboxes/a", None).await.unwrap();
    assert_eq!(get(&acme, "/v1/quota").await.unwrap()["disk_mib"], 40);
    server.stop().await;
}

/// Promise (Server): Usage has a cost by the operator's prices, in JSON and CSV, and none without prices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_has_a_cost_by_prices() {
    let server = start(Over::Tls, bounds()).await;
    let (acme, _) = server.keyed("acme", ALL).await;
    post(&acme, "/v1/runs", json!({ "exec": steps(vec![Step::Exit(0)]) })).await.unwrap();
    let list = get(&acme, "/v1/usage").await.unwrap();
    assert!(list.get("cost").is_none() && list["usage"][0].get("cost_micros").is_none(), "{list}");
    server.stop().await;

    let text = r#"{ "sandboxes": 1, "prices": { "currency": "EUR", "cpu_second": "0.5" } }"#;
    let with_prices = move |config: ServerConfig| Server::new(config)?.with_quotas(move || QuotaFile::parse(text));
    let server = start_made(Over::Tls, bounds(), with_prices).await;
    let (acme, _) = server.keyed("acme", ALL).await;
    assert_eq!(get(&acme, "/v1/quota").await.unwrap()["quota"]["sandboxes"], 1);
    let tenant = cofferdam_contract::TenantId::new("acme").unwrap();
    let usage = Usage { cpu_us: 3_000_000, ..Usage::default() };
    for (day, label) in [(5, "x"), (6, "y")] {
        let row = UsageRow { tenant: tenant.as_str().to_owned(), day, label: label.to_owned(), usage };
        server.store.settle(&[row], &[]).await.unwrap();
    }
    let list = get(&acme, "/v1/usage?from=5&to=6").await.unwrap();
    assert_eq!(list["cost"], json!({ "currency": "EUR", "micros": 3_000_000 }));
    assert_eq!(list["usage"][1]["cost_micros"], 1_500_000);
    let csv = text_of(&acme, "/v1/usage?from=5&to=6&format=csv").await;
    let lines: Vec<_> = csv.lines().collect();
    assert!(lines[0].ends_with(",audit_bytes,cost_micros,currency") && lines[2].ends_with(",0,1500000,EUR"), "{csv}");
    server.stop().await;
}

/// Promise (Server): The pages of usage and of quotas have each row once, and a CSV has all rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_and_quotas_have_pages() {
    let server = start(Over::Tls, bounds()).await;
    let (admin, _) = server.keyed("acme", ALL).await;
    let row = |tenant: &str, day, label: &str| UsageRow {
        tenant: tenant.to_owned(),
        day,
        label: label.to_owned(),
        usage: Usage { execs: 1, ..Usage::default() },
    };
    let rows = [row("acme", 5, ""), row("acme", 5, "a,b"), row("b", 5, "x"), row("acme", 6, "a"), row("b", 6, "")];
    server.store.settle(&rows, &[]).await.unwrap();
    let pages = async |path: &str| {
        let (mut pages, mut after) = (Vec::new(), String::new());
        loop {
            let page = get(&admin, &format!("{path}limit=2{after}")).await.unwrap();
            let Some(next) = page["next"].as_str().map(str::to_owned) else {
                pages.push(page);
                return pages;
            };
            after = format!("&after={next}");
            pages.push(page);
        }
    };
    let listed = pages("/v1/admin/usage?from=5&to=6&").await;
    let listed: Vec<UsageRow> = listed
        .iter()
        .flat_map(|page| serde_json::from_value::<Vec<UsageRow>>(page["usage"].clone()).unwrap())
        .collect();
    assert_eq!(listed, rows);
    let own: Vec<_> = pages("/v1/usage?from=5&to=6&").await.iter().map(|page| page["usage"].clone()).collect();
    let labels = own.iter().flat_map(|page| page.as_array().unwrap()).map(|row| row["label"].as_str().unwrap());
    assert_eq!(labels.collect::<Vec<_>>(), ["", "a,b", "a"]);
    assert_eq!(text_of(&admin, "/v1/admin/usage?from=5&to=6&format=csv").await.lines().count(), 1 + rows.len());
    for bad in ["limit=0", "limit=1001", "after=x", "format=csv&limit=2", "format=csv&after=5,b,x"] {
        let error = get(&admin, &format!("/v1/usage?{bad}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad}");
    }

    let tenants = ["a", "b", "c", "d", "e"];
    for tenant in tenants {
        send(&admin, Method::PUT, &format!("/v1/admin/quotas/{tenant}"), Some(json!({}))).await.unwrap();
    }
    let listed = pages("/v1/admin/quotas?").await;
    let listed: Vec<_> = listed.iter().flat_map(|page| page["quotas"].as_object().unwrap().keys()).collect();
    assert_eq!(listed, tenants);
    server.stop().await;
}

/// Promise (Server): A quota of memory and seconds charges no sandbox nothing: one without a limit is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_without_a_memory_limit_has_none_for_free() {
    let server = start_with(Over::Tls, bounds(), |config| config.policy.max_limits.memory = None).await;
    let (acme, _) = server.keyed("acme", ALL).await;
    let unlimited = json!({ "limits": Limits { memory: None, ..Limits::default() } });
    create(&acme, unlimited.clone()).await;
    let quota = json!({ "memory_gib_seconds_per_day": 1000 });
    send(&acme, Method::PUT, "/v1/admin/quotas/acme", Some(quota)).await.unwrap();
    let refused = post(&acme, "/v1/sandboxes", unlimited).await.unwrap_err();
    assert_eq!((refused.kind(), refused.remedy()), (ErrorKind::Denied, Some("set the limit memory")), "{refused}");
    create(&acme, json!({ "limits": Limits::default() })).await;
    server.stop().await;
}

/// Promise (Server): A caller that leaves in the middle of a run pays for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_pays() {
    let server = start(Over::Tls, bounds()).await;
    let (acme, _) = server.keyed("acme", ALL).await;
    let body = json!({ "exec": steps(vec![Step::Spin { processes: 3 }]) });
    let answer = tokio::time::timeout(Duration::from_millis(1000), post(&acme, "/v1/runs", body)).await;
    assert!(answer.is_err());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let usage = get(&acme, "/v1/usage").await.unwrap();
        let cpu = usage["usage"][0]["cpu_us"].as_i64().unwrap_or(0);
        // Three processors were busy, and each is measured.
        if cpu > 600_000 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{usage}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(get(&acme, "/v1/quota").await.unwrap()["sandboxes"], 0);
    server.stop().await;
}

/// Promise (Server): Each call of a caller and each exec is in the audit log, with its tenant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_execs_are_audited() {
    use cofferdam_audit::{Expect, Filter, Record, Text, query, verify};
    let server = start(Over::Tls, bounds()).await;
    let ((acme, key), (reader, _)) =
        (server.keyed("acme", ALL).await, server.keyed("acme", &[Scope::SandboxesRead]).await);
    create(&acme, json!({ "name": "a" })).await;
    let started = exec(&acme, "a", &steps(vec![Step::Exit(3)])).await.unwrap();
    get(&acme, &format!("/v1/sandboxes/a/execs/{}/wait", started.id)).await.unwrap();
    assert!(send(&reader, Method::DELETE, "/v1/sandboxes/a", None).await.is_err());
    let log = server.directory.path().join("audit");
    let filter = Filter { tenant: Some(Text::new("acme")), ..Filter::default() };
    let records: Vec<_> = query(&log, filter).unwrap().map(|entry| entry.unwrap().record).collect();
    let calls: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Call(call) => Some((call.method.as_str(), call.endpoint.as_str(), call.status)),
            _ => None,
        })
        .collect();
    assert_eq!(
        calls,
        [
            ("POST", "/v1/sandboxes", 201),
            ("POST", "/v1/sandboxes/{sandbox}/execs", 201),
            ("GET", "/v1/sandboxes/{sandbox}/execs/{exec}/wait", 200),
            ("DELETE", "/v1/sandboxes/{sandbox}", 403),
        ]
    );
    let Some(Record::Call(second)) = records.iter().filter(|record| matches!(record, Record::Call(_))).nth(1) else {
        panic!("a call")
    };
    assert_eq!((second.key.as_str(), second.sandbox.as_ref().map(Text::as_str)), (key.as_str(), Some("a")));
    let ends = records.iter().filter(|record| matches!(record, Record::End(end) if end.outcome.exit.code == Some(3)));
    assert_eq!(ends.count(), 1);
    assert!(verify(&log, &Expect::default()).unwrap().verdict == cofferdam_audit::Verdict::Whole);
    server.stop().await;
}

/// Promise (Server): A call whose client leaves, and one that takes too long, are in the audit log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_an_answer_are_audited() {
    use cofferdam_audit::{Filter, Record, query};
    let mut quick = bounds();
    quick.answer_time = Duration::from_millis(400);
    let server = start(Over::Tls, quick).await;
    let (acme, _) = server.keyed("acme", ALL).await;
    create(&acme, json!({ "name": "a" })).await;
    let started = exec(&acme, "a", &steps(vec![Step::SleepForever])).await.unwrap();
    let slow = get(&acme, &format!("/v1/sandboxes/a/execs/{}/wait", started.id)).await.unwrap_err();
    assert_eq!(slow.message(), "the operation took longer than 0.4 s");
    let body = json!({ "exec": steps(vec![Step::SleepForever]) });
    let left = tokio::time::timeout(Duration::from_millis(300), post(&acme, "/v1/runs", body)).await;
    assert!(left.is_err());
    let log = server.directory.path().join("audit");
    let status = |endpoint: &str| {
        query(&log, Filter::default()).unwrap().find_map(|entry| match entry.unwrap().record {
            Record::Call(call) if call.endpoint.as_str() == endpoint => Some(call.status),
            _ => None,
        })
    };
    assert_eq!(status("/v1/sandboxes/{sandbox}/execs/{exec}/wait"), Some(503));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while status("/v1/runs") != Some(499) {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", status("/v1/runs"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}

/// Promise (Server): Metrics count creates, execs, requests and denials, with labels of few values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count() {
    let server = start(Over::Tls, bounds()).await;
    let ((acme, _), (reader, _)) =
        (server.keyed("acme", ALL).await, server.keyed("acme", &[Scope::SandboxesRead]).await);
    for name in ["a", "b"] {
        create(&acme, json!({ "name": name })).await;
    }
    let started = exec(&acme, "a", &steps(vec![Step::Exit(1)])).await.unwrap();
    get(&acme, &format!("/v1/sandboxes/a/execs/{}/wait", started.id)).await.unwrap();
    send(&acme, Method::DELETE, "/v1/sandboxes/b", None).await.unwrap();
    assert!(post(&reader, "/v1/sandboxes", json!({})).await.is_err());
    for (start, value) in [
        ("cofferdam_creates_total{backend=\"simulated\",outcome=\"ok\"}", 2.0),
        ("cofferdam_sandboxes{backend=\"simulated\"}", 1.0),
        ("cofferdam_execs_total{backend=\"simulated\",outcome=\"failed\"}", 1.0),
        ("cofferdam_requests_total{method=\"POST\",endpoint=\"/v1/sandboxes\",status=\"201\"}", 2.0),
        ("cofferdam_denials_total{reason=\"scope\"}", 1.0),
        ("cofferdam_create_seconds_count{backend=\"simulated\"}", 2.0),
    ] {
        assert_eq!(metric(&acme, start).await, value, "{start}");
    }
    let all = text_of(&acme, "/v1/metrics").await;
    assert!(!all.contains("acme") && !all.contains("sb-"), "labels have few values: {all}");
    assert!(get(&reader, "/v1/metrics").await.is_err());
    server.stop().await;
}

/// Returns all usage of a database.
async fn sums(store: &cofferdam_server::Store) -> Value {
    let rows = store.usage(None, 0, i64::MAX / 2).await.unwrap();
    let sum = |of: fn(&cofferdam_server::Usage) -> i64| rows.iter().map(|row| of(&row.usage)).sum::<i64>();
    json!({ "sandboxes": sum(|usage| usage.sandboxes), "execs": sum(|usage| usage.execs) })
}

/// Promise (Server): A sandbox whose close fails keeps its reservation until a later close succeeds. The server closes it
/// again. A sandbox counts when it is created.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_close_keeps_the_reservation_until_the_sandbox_is_gone() {
    let server = start_with(Over::Tls, bounds(), |config| {
        let faults = [1, 2, 3]
            .into_iter()
            .fold(FaultPlan::none(), |plan, nth| plan.fail(FaultPoint::Close, nth, ErrorKind::Unavailable));
        let backend = Arc::new(SimulatedBackend::with_faults(faults));
        let served = ServedBackend { backend, attributes: Vec::new(), archive: None };
        config.policy.backends.insert("simulated".to_owned(), served);
    })
    .await;
    let (acme, _) = server.keyed("acme", ALL).await;
    create(&acme, json!({ "name": "a", "limits": { "memory": "64M" } })).await;
    assert_eq!(sums(&server.store).await["sandboxes"], 1, "a live sandbox is counted");
    let begun = tokio::time::Instant::now();
    assert!(send(&acme, Method::DELETE, "/v1/sandboxes/a", None).await.is_err());
    let run = json!({ "exec": steps(vec![Step::Exit(0)]), "sandbox": { "limits": { "memory": "64M" } } });
    assert!(post(&acme, "/v1/runs", run).await.is_err());
    let quota = async || get(&acme, "/v1/quota").await.unwrap();
    let held = quota().await;
    assert_eq!((&held["sandboxes"], &held["memory_mib"]), (&json!(2), &json!(128)), "{held}");
    assert_eq!(metric(&acme, "cofferdam_sandboxes{backend=\"simulated\"}").await, 2.0);
    while quota().await["sandboxes"] != 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the reservations are never released");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(5), "the first close that was repeated failed, too");
    assert_eq!(metric(&acme, "cofferdam_sandboxes{backend=\"simulated\"}").await, 0.0);
    assert_eq!(sums(&server.store).await["sandboxes"], 2, "each is counted once");
    server.stop().await;
}

/// Promise (Server): A database that fails stops no exec, and its usage is written when the database works again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_survives_a_database_that_fails() {
    let server = start(Over::Socket, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    // Another writer holds the database for longer than the server waits.
    let file = server.directory.path().join("state.db");
    let mut writer = SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(file)).await.unwrap();
    writer.execute("BEGIN IMMEDIATE").await.unwrap();
    let started = exec(&client, "a", &steps(vec![Step::Exit(0)])).await.unwrap();
    let ended = get(&client, &format!("/v1/sandboxes/a/execs/{}/wait", started.id)).await.unwrap();
    assert_eq!(ended["state"], "ended", "the exit is reported all the same");
    writer.execute("ROLLBACK").await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while sums(&server.store).await["execs"] != 1 {
        assert!(tokio::time::Instant::now() < deadline, "the usage is lost");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.stop().await;
}
