use std::time::Duration;

use cofferdam_contract::ErrorKind;
use cofferdam_server::rest::views::{SandboxDetails, SandboxList, SandboxState};
use serde_json::json;

use crate::support::{Method, Over, bounds, create, get, post, send, start};

/// Promise (Server): A sandbox is created, found by id and name, listed in pages, extended, paused and closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_lives_until_it_is_deleted() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    let body = json!({ "name": "one", "labels": { "job": "7" }, "life": "2m", "idle": 30 });
    let details: SandboxDetails = client.call(Method::POST, "/v1/sandboxes", Some(&body)).await.unwrap();
    assert!(details.sandbox.id.starts_with("sb-") && details.sandbox.idle == 30.0);
    assert!(details.sandbox.ends - details.sandbox.created > 110.0);
    let by_name = get(&client, "/v1/sandboxes/one").await.unwrap();
    assert_eq!(by_name["id"], details.sandbox.id);
    assert_eq!(by_name["labels"]["job"], "7");
    let taken = post(&client, "/v1/sandboxes", json!({ "name": "one" })).await.unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Conflict);

    let mut ids = vec![details.sandbox.id.clone()];
    for job in ["7", "8", "7"] {
        ids.push(create(&client, json!({ "labels": { "job": job } })).await);
    }
    let page: SandboxList = client.call(Method::GET, "/v1/sandboxes?limit=3", None::<&()>).await.unwrap();
    let listed: Vec<_> = page.sandboxes.iter().map(|one| one.id.clone()).collect();
    assert_eq!((listed.len(), page.next.as_deref()), (3, Some(&*listed[2])));
    let path = format!("/v1/sandboxes?after={}", page.next.unwrap());
    let rest: SandboxList = client.call(Method::GET, &path, None::<&()>).await.unwrap();
    let mut all: Vec<_> = listed.into_iter().chain(rest.sandboxes.iter().map(|one| one.id.clone())).collect();
    assert_eq!(rest.next, None);
    all.sort();
    ids.sort();
    assert_eq!(all, ids);
    let labelled = get(&client, "/v1/sandboxes?labels=job=7").await.unwrap();
    assert_eq!(labelled["sandboxes"].as_array().unwrap().len(), 3);

    let paused = post(&client, "/v1/sandboxes/one/pause", json!({})).await.unwrap();
    assert_eq!(paused["state"], json!(SandboxState::Paused));
    assert_eq!(post(&client, "/v1/sandboxes/one/resume", json!({})).await.unwrap()["state"], "running");
    let extended = post(&client, "/v1/sandboxes/one/extend", json!({ "life": "1h" })).await.unwrap();
    assert!(extended["ends"].as_f64().unwrap() - details.sandbox.created > 3500.0);
    assert!(get(&client, "/v1/sandboxes/one/stats").await.unwrap()["usage"]["disk_bytes"].is_number());

    send(&client, Method::DELETE, "/v1/sandboxes/one", None).await.unwrap();
    for path in ["/v1/sandboxes/one", &format!("/v1/sandboxes/{}", details.sandbox.id)] {
        assert_eq!(get(&client, path).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(create(&client, json!({ "name": "one" })).await.len(), 46, "the name is free again");
    server.stop().await;
}

/// Promise (Server): A sandbox gets another name, which is free again when it has none or is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_renamed() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    let id = create(&client, json!({ "name": "one" })).await;
    create(&client, json!({ "name": "two" })).await;
    let rename = async |sandbox: &str, name: serde_json::Value| {
        post(&client, &format!("/v1/sandboxes/{sandbox}/rename"), json!({ "name": name })).await
    };
    for (name, kind) in [
        (json!("two"), ErrorKind::Conflict),
        (json!("sb-x"), ErrorKind::InvalidInput),
        (json!("a/b"), ErrorKind::InvalidInput),
    ] {
        assert_eq!(rename("one", name.clone()).await.unwrap_err().kind(), kind, "{name}");
    }
    assert_eq!(rename("one", json!("one")).await.unwrap()["name"], "one");
    assert_eq!(rename("one", json!("three")).await.unwrap()["id"], id);
    assert_eq!(get(&client, "/v1/sandboxes/one").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(get(&client, "/v1/sandboxes/three").await.unwrap()["id"], id);
    create(&client, json!({ "name": "one" })).await;
    assert_eq!(rename("three", json!(null)).await.unwrap()["name"], json!(null));
    assert_eq!(rename("two", json!("three")).await.unwrap()["name"], "three");
    send(&client, Method::DELETE, "/v1/sandboxes/three", None).await.unwrap();
    assert_eq!(rename(&id, json!("three")).await.unwrap()["name"], "three", "the name of a closed sandbox is free");
    server.stop().await;
}

/// Promise (Server): A sandbox is closed when its lifetime is over, or when it was idle for too long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_without_time_is_closed() {
    let server = start(Over::Socket, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "short", "life": 0.3, "idle": 60 })).await;
    create(&client, json!({ "name": "idle", "idle": 0.3 })).await;
    create(&client, json!({ "name": "busy", "idle": 0.3 })).await;
    let busy = crate::support::steps(vec![cofferdam_simulated::Step::SleepForever]);
    crate::support::exec(&client, "busy", &busy).await.unwrap();
    for name in ["short", "idle"] {
        let path = format!("/v1/sandboxes/{name}");
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        // Reading the state of a sandbox is no use of it.
        while get(&client, &path).await.is_ok() {
            assert!(tokio::time::Instant::now() < deadline, "{name} is never closed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(get(&client, "/v1/sandboxes/busy").await.is_ok(), "an exec runs in it");
    assert_eq!(server.simulated.living().len(), 1);
    server.stop().await;
}

/// Promise (Server): A tenant can neither weaken the isolation nor reach files, addresses or secrets of the host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_reserved_to_the_operator_are_refused() {
    let server = start(Over::Socket, bounds()).await;
    let client = server.client();
    let rules = json!({ "kind": "rules", "allow": [{ "host": "example.com" }],
        "secret": [{ "name": "T", "from": "command:id", "hosts": ["example.com"] }] });
    for (body, kind) in [
        (json!({ "allow_weaker": ["memory"] }), ErrorKind::InvalidInput),
        (json!({ "workspace": { "kind": "host-dir", "path": "/etc" } }), ErrorKind::InvalidInput),
        (json!({ "mounts": [] }), ErrorKind::InvalidInput),
        (json!({ "attributes": { "process.hostname": "x" } }), ErrorKind::InvalidInput),
        (json!({ "tenant": "other" }), ErrorKind::InvalidInput),
        (json!({ "image": "debian" }), ErrorKind::Denied),
        (json!({ "network": { "kind": "allow", "hosts": ["example.com"] } }), ErrorKind::Denied),
        (json!({ "network": rules }), ErrorKind::Denied),
        (json!({ "limits": { "memory": "100G" } }), ErrorKind::Denied),
        (json!({ "limits": { "memory": null } }), ErrorKind::Denied),
        (json!({ "life": "1000h" }), ErrorKind::Denied),
        (json!({ "limits": { "wall_time": "1000h" } }), ErrorKind::Denied),
        (
            json!({ "labels": { "a": "x".repeat(4000), "b": "x".repeat(4000), "c": "x".repeat(4000), "d": "x".repeat(4000),
            "e": "x".repeat(4000) } }),
            ErrorKind::InvalidInput,
        ),
        (json!({ "idle": 0 }), ErrorKind::InvalidInput),
        (json!({ "name": "../x" }), ErrorKind::InvalidInput),
        (json!({ "name": "sb-1" }), ErrorKind::InvalidInput),
        (json!({ "backend": "vm" }), ErrorKind::NotFound),
        (json!({ "level": "vm" }), ErrorKind::NotFound),
    ] {
        let error = post(&client, "/v1/sandboxes", body.clone()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{body}: {error}");
    }
    let small = json!({ "limits": { "memory": "64M", "pids": 16 } });
    let details: SandboxDetails = client.call(Method::POST, "/v1/sandboxes", Some(&small)).await.unwrap();
    assert_eq!(details.limits.pids, Some(16));
    server.stop().await;
}
