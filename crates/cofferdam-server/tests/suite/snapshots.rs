use cofferdam_contract::{ErrorKind, Result};
use cofferdam_server::client::{Client, Content};
use cofferdam_server::rest::views::{SnapshotList, SnapshotView};
use cofferdam_server::{Quota, Scope};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::support::{Method, Over, bounds, create, get, post, send, start, start_with};

async fn put(client: &Client, sandbox: &str, path: &str, data: &[u8]) {
    let path = format!("/v1/sandboxes/{sandbox}/files?path={path}");
    client.send(Method::PUT, &path, Content::Bytes(data.to_vec().into())).await.unwrap();
}

async fn read(client: &Client, sandbox: &str, path: &str) -> Result<Vec<u8>> {
    let path = format!("/v1/sandboxes/{sandbox}/files?path={path}");
    let response = client.send(Method::GET, &path, Content::None).await?;
    Ok(response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

async fn take(client: &Client, sandbox: &str, body: Value) -> Result<SnapshotView> {
    client.call(Method::POST, &format!("/v1/sandboxes/{sandbox}/snapshot"), Some(&body)).await
}

/// Returns the names of the files in the server's directory of snapshots.
fn files(server: &crate::support::Running) -> Vec<String> {
    let entries = std::fs::read_dir(server.directory.path().join("snapshots")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Promise (Server): A snapshot is stored, listed, downloaded, uploaded, and restored into new sandboxes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_stored_and_restored() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "a", "limits": { "disk": "64M" } })).await;
    put(&client, "a", "d/x", b"one").await;
    let taken = take(&client, "a", json!({ "name": "base" })).await.unwrap();
    put(&client, "a", "d/x", b"two").await;
    assert_eq!(take(&client, "a", json!({ "name": "base" })).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(take(&client, "a", json!({ "name": "sn-x" })).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let list: SnapshotList = client.call(Method::GET, "/v1/snapshots", None::<&()>).await.unwrap();
    assert_eq!((list.snapshots.len(), &list.snapshots[0].id, &list.next), (1, &taken.id, &None));
    assert_eq!(get(&client, "/v1/snapshots/base").await.unwrap()["backend"], "simulated");

    create(&client, json!({ "name": "b", "snapshot": "base" })).await;
    assert_eq!(read(&client, "b", "d/x").await.unwrap(), b"one");
    post(&client, "/v1/sandboxes/b/fork", json!({ "name": "copy" })).await.unwrap();
    let sandbox = async |name: &str| get(&client, &format!("/v1/sandboxes/{name}")).await.unwrap();
    let (a, b, c) = (sandbox("a").await, sandbox("b").await, sandbox("copy").await);
    assert_eq!((&a["parent"], &b["parent"], &c["parent"]), (&Value::Null, &json!(taken.id), &b["id"]));
    assert_eq!(taken.parent.as_deref(), a["id"].as_str());
    assert_eq!(server.store.snapshots("test").await.unwrap()[0].parent, taken.parent, "it is stored");
    assert_eq!(get(&client, "/v1/sandboxes/b").await.unwrap()["limits"]["disk"], json!(64 << 20), "its limits apply");
    let other = json!({ "snapshot": "base", "backend": "process" });
    assert_eq!(post(&client, "/v1/sandboxes", other).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let run = json!({ "sandbox": { "snapshot": "base" }, "exec": { "argv": ["x"] } });
    assert_eq!(post(&client, "/v1/runs", run).await.unwrap_err().kind(), ErrorKind::InvalidInput);

    let response = client.send(Method::GET, "/v1/snapshots/base/content", Content::None).await.unwrap();
    assert!(response.headers()["repr-digest"].to_str().unwrap().starts_with("sha-256=:"));
    let data = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(cofferdam_util::sha256::of(&data), taken.sha256);
    let upload = async |data: bytes::Bytes, name: &str| {
        let path = format!("/v1/snapshots?backend=simulated&name={name}");
        client.call_with::<SnapshotView>(Method::POST, &path, Content::Bytes(data.into())).await
    };
    assert_eq!(upload(data.clone(), "copy").await.unwrap().sha256, taken.sha256);
    create(&client, json!({ "name": "c", "snapshot": "copy" })).await;
    assert_eq!(read(&client, "c", "d/x").await.unwrap(), b"one");
    for broken in [data.slice(..700), bytes::Bytes::from(vec![7; 4096])] {
        assert_eq!(upload(broken, "broken").await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(files(&server).len(), 2, "nothing is left of a broken upload");

    // A file that was changed on the disk is not restored.
    let path = server.directory.path().join("snapshots").join(&taken.id);
    let mut changed = std::fs::read(&path).unwrap();
    changed[600] ^= 1;
    std::fs::write(&path, changed).unwrap();
    let error = post(&client, "/v1/sandboxes", json!({ "snapshot": "base" })).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, "the file of the snapshot was changed"));

    for name in ["base", "copy"] {
        send(&client, Method::DELETE, &format!("/v1/snapshots/{name}"), None).await.unwrap();
    }
    assert_eq!(files(&server), Vec::<String>::new());
    assert_eq!(get(&client, "/v1/snapshots/base").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(read(&client, "b", "d/x").await.unwrap(), b"one", "sandboxes remain");
    server.stop().await;
}

/// Promise (Server): A fork resumes from the state of its sandbox, and both are independent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_is_independent() {
    let server = start(Over::Socket, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "a", "labels": { "job": "7" } })).await;
    put(&client, "a", "x", b"one").await;
    let fork = post(&client, "/v1/sandboxes/a/fork", json!({ "name": "b", "idle": 30 })).await.unwrap();
    assert_eq!(
        (&fork["idle"], &fork["labels"]["job"], &fork["backend"]),
        (&json!(30.0), &json!("7"), &json!("simulated"))
    );
    put(&client, "a", "x", b"two").await;
    assert_eq!(read(&client, "b", "x").await.unwrap(), b"one");
    let taken = post(&client, "/v1/sandboxes/a/fork", json!({ "name": "b" })).await.unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Conflict);
    assert_eq!(server.simulated.living().len(), 2);

    // A backend without snapshots says so.
    create(&client, json!({ "name": "p", "backend": "process" })).await;
    for (path, body) in [("snapshot", json!({})), ("fork", json!({}))] {
        let error = post(&client, &format!("/v1/sandboxes/p/{path}"), body).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{path}");
    }
    server.stop().await;
}

/// Promise (Server): Snapshots count against the quota of their tenant, which a failed one and a deleted one free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_have_a_quota() {
    let quota = Quota {
        snapshots: Some(2),
        snapshot_bytes: Some(cofferdam_contract::ByteSize::from_bytes(60_000)),
        ..Quota::default()
    };
    let server = start_with(Over::Tcp, bounds(), |config| config.quota = quota).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    put(&client, "a", "x", &[1; 20_000]).await;
    let first = take(&client, "a", json!({ "name": "one" })).await.unwrap();
    put(&client, "a", "y", &[2; 30_000]).await;
    let refused = async |quota: &str| {
        let error = take(&client, "a", json!({ "name": "two" })).await.unwrap_err();
        let found = error.context().find(|(key, _)| *key == "quota").map(|(_, value)| value.to_owned());
        assert_eq!((error.kind(), found.as_deref()), (ErrorKind::ResourceExhausted, Some(quota)));
    };
    refused("snapshot_bytes").await;
    let state = get(&client, "/v1/quota").await.unwrap();
    assert_eq!((&state["snapshots"], &state["snapshot_bytes"]), (&json!(1), &json!(first.bytes)));
    assert_eq!(files(&server), [first.id.as_str()]);
    send(&client, Method::DELETE, "/v1/sandboxes/a/files?path=y", None).await.unwrap();
    take(&client, "a", json!({})).await.unwrap();
    refused("snapshots").await;
    send(&client, Method::DELETE, "/v1/snapshots/one", None).await.unwrap();
    take(&client, "a", json!({ "name": "two" })).await.unwrap();
    server.stop().await;
}

/// Promise (Server): Snapshots survive the server. What a killed server left half written does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_survive_the_server() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    put(&client, "a", "x", b"kept").await;
    let retained = take(&client, "a", json!({ "name": "kept" })).await.unwrap();
    let lost = take(&client, "a", json!({ "name": "lost" })).await.unwrap();
    let (snapshots, store, _directory) = server.stop_and_keep().await;
    std::fs::write(snapshots.join("sn-0.part"), b"half").unwrap();
    std::fs::write(snapshots.join("sn-1"), b"without a record").unwrap();
    std::fs::write(snapshots.join(&lost.id), b"short").unwrap();
    // A start with another database, by mistake, destroys nothing.
    start_with(Over::Tcp, bounds(), |config| config.snapshots = snapshots.clone()).await.stop().await;
    let again = start_with(Over::Tcp, bounds(), |config| {
        config.snapshots = snapshots.clone();
        config.store = store;
    });
    let again = again.await;
    let client = again.client();
    let list = get(&client, "/v1/snapshots").await.unwrap();
    assert_eq!((list["snapshots"].as_array().unwrap().len(), &list["snapshots"][0]["id"]), (1, &json!(retained.id)));
    let left = std::fs::read_dir(&snapshots).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut left: Vec<_> = left.collect();
    left.sort();
    let mut expected = [retained.id.clone(), format!("{}.orphan", lost.id), "sn-1.orphan".to_owned()];
    expected.sort();
    assert_eq!(left, expected);
    create(&client, json!({ "name": "b", "snapshot": "kept" })).await;
    assert_eq!(read(&client, "b", "x").await.unwrap(), b"kept");
    again.stop().await;
}

/// Promise (Server): A key that cannot read snapshots creates no sandbox from one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_needs_the_scope_of_snapshots() {
    let server = start_with(Over::Tcp, bounds(), |config| config.gate.without_keys = false).await;
    let (owner, _) = server.keyed("acme", Scope::ALL).await;
    create(&owner, json!({ "name": "a" })).await;
    take(&owner, "a", json!({ "name": "base" })).await.unwrap();
    let (writer, _) = server.keyed("acme", &[Scope::SandboxesWrite]).await;
    let body = json!({ "snapshot": "base" });
    assert_eq!(post(&writer, "/v1/sandboxes", body.clone()).await.unwrap_err().kind(), ErrorKind::Denied);
    let (stranger, _) = server.keyed("other", Scope::ALL).await;
    assert_eq!(post(&stranger, "/v1/sandboxes", body).await.unwrap_err().kind(), ErrorKind::NotFound);
    server.stop().await;
}

/// Promise (Server): A sandbox from a snapshot of files alone can have another image; what has no images refuses it itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_files_leaves_the_image_to_the_request() {
    let server = start_with(Over::Tcp, bounds(), |config| config.policy.images = true).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    take(&client, "a", json!({ "name": "base" })).await.unwrap();
    let refused = post(&client, "/v1/sandboxes", json!({ "snapshot": "base", "image": "base:1" })).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    server.stop().await;
}
