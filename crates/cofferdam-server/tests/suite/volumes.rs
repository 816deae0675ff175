//! Volumes of tenants, with the process backend.

use cofferdam_contract::ErrorKind;
use cofferdam_server::client::Client;
use cofferdam_server::{Quota, Scope, ServerConfig};
use serde_json::{Value, json};

use crate::support::{Method, Over, Running, bounds, create, get, post, send, shell, start, start_with};

/// Returns the exit code of a shell line in a sandbox.
async fn run(client: &Client, sandbox: &str, line: &str) -> Value {
    let started = shell(client, sandbox, line).await.unwrap();
    get(client, &format!("/v1/sandboxes/{sandbox}/execs/{}/wait", started.id)).await.unwrap()["exit"]["code"].clone()
}

/// Returns the request of a sandbox with a volume at `/data`.
fn with(name: &str, volume: &str, read_only: bool) -> Value {
    let volumes = json!([{ "volume": volume, "path": "/data", "read_only": read_only }]);
    json!({ "name": name, "backend": "process", "volumes": volumes })
}

async fn delete(client: &Client, path: &str) -> cofferdam_contract::Result<()> {
    send(client, Method::DELETE, path, None).await
}

/// Starts a server whose client is the server's own user, who may have volumes that need no file system.
async fn own() -> (Running, Client) {
    // Nothing limits what a sandbox writes to such a volume.
    let unlimited = |config: &mut ServerConfig| config.policy.max_limits.disk = None;
    let server = start_with(Over::Socket, bounds(), unlimited).await;
    let client = server.client();
    (server, client)
}

/// Promise (Server): A volume keeps its files from sandbox to sandbox, and is deleted only when no sandbox uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_outlives_its_sandboxes() {
    let (server, client) = own().await;
    let created = post(&client, "/v1/volumes", json!({ "name": "data", "unlimited": true })).await.unwrap();
    assert_eq!((&created["name"], &created["size"], &created["in_use"]), (&json!("data"), &Value::Null, &json!(false)));
    let again = post(&client, "/v1/volumes", json!({ "name": "data", "unlimited": true })).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict);
    let details = post(&client, "/v1/sandboxes", with("a", "data", false)).await.unwrap();
    assert_eq!(details["volumes"], json!([{ "volume": "data", "path": "/data" }]));
    assert!(!details.to_string().contains(&*server.directory.path().to_string_lossy()), "{details}");
    assert_eq!(run(&client, "a", "echo one > /data/x").await, json!(0));
    assert_eq!(get(&client, "/v1/volumes/data").await.unwrap()["in_use"], json!(true));
    let refused = [
        delete(&client, "/v1/volumes/data").await.unwrap_err(),
        post(&client, "/v1/sandboxes", with("b", "data", true)).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!((error.kind(), error.message()), (ErrorKind::Conflict, "the volume is in use by a sandbox"));
    }
    assert!(post(&client, "/v1/sandboxes/a/fork", json!({})).await.is_err(), "two writers would share it");
    delete(&client, "/v1/sandboxes/a").await.unwrap();
    // Readers share it.
    for name in ["b", "c"] {
        create(&client, with(name, "data", true)).await;
        assert_eq!(run(&client, name, "grep one /data/x").await, json!(0));
        assert_ne!(run(&client, name, "echo two > /data/x").await, json!(0));
    }
    for name in ["b", "c"] {
        delete(&client, &format!("/v1/sandboxes/{name}")).await.unwrap();
    }
    let sandbox = json!({ "backend": "process", "volumes": [{ "volume": "data", "path": "/v" }] });
    let body = json!({ "sandbox": sandbox, "exec": { "argv": ["cat", "/v/x"] } });
    assert_eq!(post(&client, "/v1/runs", body).await.unwrap()["stdout"]["text"], json!("one\n"));
    delete(&client, "/v1/volumes/data").await.unwrap();
    let gone = post(&client, "/v1/sandboxes", with("d", "data", false)).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    server.stop().await;
}

/// Promise (Server): A tenant mounts no volume of another tenant, and none without the scope for its access.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_mounts_its_own_volumes_only() {
    let server = start(Over::Tls, bounds()).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", Scope::ALL).await, server.keyed("other", Scope::ALL).await);
    let (reader, _) =
        server.keyed("acme", &[Scope::SandboxesWrite, Scope::SandboxesRead, Scope::VolumesRead, Scope::Runs]).await;
    post(&acme, "/v1/volumes", json!({ "name": "data", "size": "16M" })).await.unwrap();
    assert_eq!(get(&other, "/v1/volumes").await.unwrap()["volumes"], json!([]));
    for read_only in [false, true] {
        let error = post(&other, "/v1/sandboxes", with("x", "data", read_only)).await.unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::NotFound, "there is no such volume"));
    }
    for path in ["../acme", "61636d65/data", ""] {
        let error = post(&other, "/v1/sandboxes", with("x", path, true)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path}");
    }
    let error = post(&reader, "/v1/sandboxes", with("x", "data", false)).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Denied, "the key lacks the scope volumes:write"));
    let sandbox = json!({ "backend": "simulated", "volumes": [{ "volume": "data", "path": "/data" }] });
    assert_eq!(post(&acme, "/v1/sandboxes", sandbox).await.unwrap_err().kind(), ErrorKind::Unsupported);
    for sandbox in [
        json!({ "volumes": [{ "volume": "data", "path": "/proc" }] }),
        json!({ "volumes": [{ "volume": "data", "path": "/data" }], "snapshot": "none" }),
    ] {
        assert!(post(&acme, "/v1/sandboxes", sandbox).await.is_err());
    }
    let error = post(&acme, "/v1/volumes", json!({ "name": "all", "unlimited": true })).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    server.stop().await;
}

/// Promise (Server): Volumes count against the quota of their tenant, by number and size, until they are deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_count_against_the_quota() {
    let volume_bytes = Some("48M".parse().unwrap());
    let quota = Quota { volumes: Some(2), volume_bytes, ..Quota::default() };
    let server = start_with(Over::Tls, bounds(), |config| config.quota = quota).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", Scope::ALL).await, server.keyed("other", Scope::ALL).await);
    let make = async |client: &Client, name: &str, size: &str| {
        post(client, "/v1/volumes", json!({ "name": name, "size": size })).await
    };
    make(&acme, "a", "32M").await.unwrap();
    let error = make(&acme, "b", "32M").await.unwrap_err();
    assert_eq!(error.message(), "the tenant's quota 'volume_bytes' is used up");
    make(&acme, "b", "16M").await.unwrap();
    let error = make(&acme, "c", "16M").await.unwrap_err();
    assert_eq!(error.message(), "the tenant's quota 'volumes' is used up");
    let state = get(&acme, "/v1/quota").await.unwrap();
    assert_eq!((&state["volumes"], &state["volume_bytes"]), (&json!(2), &json!(48 << 20)));
    make(&other, "a", "32M").await.unwrap();
    let page = get(&acme, "/v1/volumes?limit=1").await.unwrap();
    assert_eq!((&page["volumes"][0]["name"], &page["next"]), (&json!("a"), &json!("a")));
    let page = get(&acme, "/v1/volumes?limit=1&after=a").await.unwrap();
    assert_eq!((&page["volumes"][0]["name"], &page["next"]), (&json!("b"), &Value::Null));
    delete(&acme, "/v1/volumes/a").await.unwrap();
    make(&acme, "c", "32M").await.unwrap();
    for bad in ["1M", "16777217", "100G"] {
        assert!(make(&acme, "d", bad).await.is_err(), "{bad}");
    }
    server.stop().await;
}

/// Promise (Server): A create that fails leaves its volumes free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_create_releases_its_volumes() {
    let (server, client) = own().await;
    post(&client, "/v1/volumes", json!({ "name": "data", "unlimited": true })).await.unwrap();
    let two = json!([{ "volume": "data", "path": "/a" }, { "volume": "none", "path": "/b" }]);
    let same = json!([{ "volume": "data", "path": "/a" }, { "volume": "data", "path": "/b" }]);
    for (volumes, kind) in [(two, ErrorKind::NotFound), (same, ErrorKind::InvalidInput)] {
        let body = json!({ "backend": "process", "volumes": volumes });
        assert_eq!(post(&client, "/v1/sandboxes", body).await.unwrap_err().kind(), kind);
        assert_eq!(get(&client, "/v1/volumes/data").await.unwrap()["in_use"], json!(false));
    }
    delete(&client, "/v1/volumes/data").await.unwrap();
    server.stop().await;
}

/// Promise (Server): A tenant's volume with a size keeps files from sandbox to sandbox, and its size bounds them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_with_a_size_is_mounted() {
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/loop-control").exists() {
        eprintln!("skipped: the host's kernel mounts volumes with a size for root, with loop devices");
        return;
    }
    let server = start(Over::Tls, bounds()).await;
    let (acme, _) = server.keyed("acme", Scope::ALL).await;
    post(&acme, "/v1/volumes", json!({ "name": "data", "size": "16M" })).await.unwrap();
    create(&acme, with("a", "data", false)).await;
    assert_eq!(run(&acme, "a", "echo one > /data/x").await, json!(0));
    assert_ne!(run(&acme, "a", "head -c 32M /dev/zero > /data/y").await, json!(0));
    delete(&acme, "/v1/sandboxes/a").await.unwrap();
    create(&acme, with("b", "data", true)).await;
    assert_eq!(run(&acme, "b", "grep one /data/x").await, json!(0));
    delete(&acme, "/v1/sandboxes/b").await.unwrap();
    delete(&acme, "/v1/volumes/data").await.unwrap();
    server.stop().await;
}
