//! The network policy of a live sandbox, which its tenant replaces.

use std::sync::Arc;

use cofferdam_contract::ErrorKind;
use cofferdam_server::client::Client;
use cofferdam_server::{Scope, ServedBackend};
use cofferdam_simulated::Step;
use serde_json::{Value, json};

use crate::networked::Networked;
use crate::support::{Method, Over, Running, bounds, create, exec, get, post, send, start_with, steps};

const PATH: &str = "/v1/sandboxes/a/network";

/// Starts a server whose default backend reports a network.
async fn server(is_allowed: bool) -> Running {
    start_with(Over::Tls, bounds(), |config| {
        let backend = Arc::new(Networked(Default::default()));
        let served = ServedBackend { backend, attributes: Vec::new(), archive: None };
        config.policy.backends.insert("networked".to_owned(), served);
        config.policy.network = is_allowed;
    })
    .await
}

fn allow(host: &str) -> Value {
    json!({ "kind": "allow", "hosts": [host] })
}

async fn put(client: &Client, policy: Value) -> cofferdam_contract::Result<Value> {
    client.call(Method::PUT, PATH, Some(&policy)).await
}

/// Returns the records of actions.
fn actions(server: &Running) -> Vec<Value> {
    let filter = cofferdam_audit::Filter { kind: Some("action".to_owned()), ..Default::default() };
    let found = cofferdam_audit::query(&server.directory.path().join("audit"), filter).unwrap();
    found.map(|entry| serde_json::to_value(entry.unwrap().record).unwrap()).collect()
}

/// Promise (Server): A tenant replaces the network policy of its live sandbox within the bounds of a create. A refused
/// policy changes nothing, and each change is in the audit log with the rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy_of_a_live_sandbox_is_replaced() {
    let server = server(true).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", Scope::ALL).await, server.keyed("other", Scope::ALL).await);
    let (one, two) = (allow("one.example:443"), allow("two.example:443"));
    let id = create(&acme, json!({ "name": "a", "backend": "networked", "network": one })).await;
    assert_eq!(put(&acme, two.clone()).await.unwrap(), two);
    assert_eq!(get(&acme, PATH).await.unwrap(), two);
    assert_eq!(get(&acme, "/v1/sandboxes/a").await.unwrap()["network"], two);

    let secret = json!({ "name": "T", "from": "env:T", "hosts": ["one.example:443"] });
    let rules = json!({ "kind": "rules", "allow": [{ "host": "one.example:443" }], "secret": [secret] });
    let learn = json!({ "kind": "learn", "allow": true });
    for (policy, kind, reason) in [
        (json!({ "kind": "all" }), ErrorKind::InvalidInput, "unknown variant `all`"),
        (json!({ "kind": "allow" }), ErrorKind::InvalidInput, "missing field `hosts`"),
        (json!({}), ErrorKind::InvalidInput, "missing field `kind`"),
        (json!(["none"]), ErrorKind::InvalidInput, "not a JSON object"),
        (allow("127.0.0.1:80"), ErrorKind::Denied, "names hosts, not addresses"),
        (rules, ErrorKind::Denied, "secrets of the host are not for tenants"),
        (learn, ErrorKind::Denied, "no such network policy"),
    ] {
        let error = put(&acme, policy.clone()).await.unwrap_err();
        assert!(error.kind() == kind && error.message().contains(reason), "{policy}: {error}");
    }
    for error in [put(&other, two.clone()).await.unwrap_err(), get(&other, PATH).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    assert_eq!(get(&acme, PATH).await.unwrap(), two);
    let copy = post(&acme, "/v1/sandboxes/a/fork", json!({ "name": "copy" })).await.unwrap();
    assert_eq!(copy["network"], two, "a copy has the policy of its sandbox");
    assert_eq!(put(&acme, json!({ "kind": "none" })).await.unwrap(), json!({ "kind": "none" }));
    let rule =
        json!({ "host": "three.example:443", "protocol": "https", "methods": ["GET", "PUT"], "paths": ["/v1", "/v2"] });
    let many: Vec<_> = (0..50).map(|number| json!({ "host": format!("h{number}.example:80") })).collect();
    let all = [&[rule], &many[..]].concat();
    put(&acme, json!({ "kind": "rules", "allow": all })).await.unwrap();

    let found: Vec<_> = actions(&server).into_iter().filter(|one| one["action"] == "network").collect();
    let states: Vec<_> = found.iter().map(|one| one["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["begun", "ended", "begun", "ended", "begun", "ended"], "{found:?}");
    for (pair, kind, count, first) in [
        (&found[..2], "allow", 1, json!("two.example:443")),
        (&found[2..4], "none", 0, Value::Null),
        (&found[4..], "rules", 51, json!("three.example:443 https GET,PUT /v1,/v2")),
    ] {
        for one in pair {
            let (policy, rules) = (&one["network"], &one["network"]["rules"]);
            assert_eq!((&policy["kind"], &rules["count"], &rules["first"][0]), (&json!(kind), &json!(count), &first));
            assert!(rules["first"].as_array().unwrap().len() <= 32, "{policy}");
        }
    }
    for one in &found {
        assert_eq!((&one["sandbox"], &one["tenant"]), (&json!(id), &json!("acme")));
    }
    server.stop().await;
}

/// Promise (Server): An exec of a sandbox with a network policy has what the policy refused while it ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exec_has_the_refusals_of_its_time() {
    let server = server(true).await;
    let (acme, _) = server.keyed("acme", Scope::ALL).await;
    create(&acme, json!({ "name": "a", "backend": "networked", "network": allow("one.example:443") })).await;
    create(&acme, json!({ "name": "without" })).await;
    let refused = json!(["refused denied.example: no rule"]);
    for (sandbox, denials) in [("a", refused.clone()), ("a", refused), ("without", Value::Null)] {
        let started = exec(&acme, sandbox, &steps(vec![Step::Exit(0)])).await.unwrap();
        let path = format!("/v1/sandboxes/{sandbox}/execs/{}/wait", started.id);
        assert_eq!(get(&acme, &path).await.unwrap()["network_denials"], denials, "{sandbox}");
    }
    let running = exec(&acme, "a", &steps(vec![Step::SleepForever])).await.unwrap();
    assert_eq!(running.network_denials, Some(Vec::new()), "refusals are those of an exec that has ended");
    server.stop().await;
}

/// Promise (Server): A tenant that may write no more audit records does not replace a network policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_policy_is_replaced_beyond_the_quota_of_audit_records() {
    let server = server(true).await;
    let ((acme, _), (operator, _)) = (server.keyed("acme", Scope::ALL).await, server.keyed("op", Scope::ALL).await);
    create(&acme, json!({ "name": "a", "backend": "networked", "network": allow("one.example:443") })).await;
    let quota = Some(json!({ "audit_per_day": 1 }));
    send(&operator, Method::PUT, "/v1/admin/quotas/acme", quota).await.unwrap();
    let error = put(&acme, allow("two.example:443")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    server.stop().await;
}

/// Promise (Server): A server without network policies opens no network of a live sandbox, and a backend without policies
/// refuses them with a remedy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_a_create_cannot_have_is_refused() {
    for is_allowed in [false, true] {
        let server = server(is_allowed).await;
        let (acme, _) = server.keyed("acme", Scope::ALL).await;
        create(&acme, json!({ "name": "a" })).await;
        assert_eq!(get(&acme, PATH).await.unwrap(), json!({ "kind": "none" }));
        let error = put(&acme, allow("one.example:443")).await.unwrap_err();
        let (kind, remedy) = match is_allowed {
            false => (ErrorKind::Denied, "--allow-network"),
            true => (ErrorKind::Unsupported, "create another sandbox"),
        };
        assert!(error.kind() == kind && error.remedy().is_some_and(|text| text.contains(remedy)), "{error}");
        server.stop().await;
    }
}
