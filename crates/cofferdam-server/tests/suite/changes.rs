//! Copy-on-write workspaces: the clients that may name a directory, their changes, and what is kept at their end.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_changes::sandbox::{CopyOnWriteByCopy, received};
use cofferdam_changes::{ApplyOptions, Bounds, ChangeSet, Store, StoreLimits, apply};
use cofferdam_contract::ErrorKind;
use cofferdam_server::client::{Client, Content};
use cofferdam_server::rest::views::DeletedSandbox;
use cofferdam_server::{Scope, ServerConfig};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::support::{Method, Over, Running, bounds, create, get, post, start_with};

/// Gives the simulated backend copy-on-write workspaces.
fn with_copies(config: &mut ServerConfig) {
    let served = config.policy.backends.get_mut("simulated").unwrap();
    served.backend = CopyOnWriteByCopy::wrap(Arc::clone(&served.backend));
}

/// Creates a directory of the host with a file.
fn project(server: &Running) -> std::path::PathBuf {
    let path = server.directory.path().join("project");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("a.txt"), "one\n").unwrap();
    path.canonicalize().unwrap()
}

async fn put(client: &Client, sandbox: &str, path: &str, data: &str) {
    let path = format!("/v1/sandboxes/{sandbox}/files?path={path}");
    client.send(Method::PUT, &path, Content::Bytes(data.to_owned().into())).await.unwrap();
}

async fn text(client: &Client, path: &str) -> String {
    let response = client.send(Method::GET, path, Content::None).await.unwrap();
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn delete(client: &Client, path: &str) -> Option<DeletedSandbox> {
    client.call_if_any(Method::DELETE, path, Content::None).await.unwrap()
}

fn stored(server: &Running) -> usize {
    let directory = server.directory.path().join("changes");
    if !directory.exists() {
        return 0;
    }
    Store::open(&directory, StoreLimits::default()).unwrap().list().unwrap().len()
}

fn over(directory: &Path) -> Value {
    json!({ "name": "box", "workspace": { "path": directory } })
}

/// Promise (Server): The changes of a copy-on-write workspace are shown and applied, and the directory is unchanged until
/// then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_shown_and_applied() {
    let server = start_with(Over::Socket, bounds(), with_copies).await;
    let (client, project) = (server.client(), project(&server));
    create(&client, over(&project)).await;
    assert_eq!(get(&client, "/v1/sandboxes/box").await.unwrap()["workspace"], json!(project));
    put(&client, "box", "a.txt", "two\n").await;
    put(&client, "box", "new.txt", "new\n").await;
    let diff = text(&client, "/v1/sandboxes/box/changes?form=diff").await;
    assert!(diff.contains("-one\n+two\n") && diff.contains("+new\n"), "{diff}");
    let report = get(&client, "/v1/sandboxes/box/changes?form=json").await.unwrap();
    assert_eq!((&report["summary"]["files"], &report["skipped_count"]), (&json!(2), &json!(0)), "{report}");
    assert_eq!(std::fs::read_to_string(project.join("a.txt")).unwrap(), "one\n");

    let layer = client.changes("box").await.unwrap().layer;
    let set = ChangeSet::read(received(layer).await.unwrap(), &Bounds::default()).unwrap();
    let directory = std::fs::File::open(&project).unwrap();
    let applied = apply(&set, std::os::fd::AsFd::as_fd(&directory), &ApplyOptions::default()).unwrap();
    assert_eq!(applied.applied.len(), 2, "{applied:?}");
    assert_eq!(std::fs::read_to_string(project.join("a.txt")).unwrap(), "two\n");
    assert_eq!(delete(&client, "/v1/sandboxes/box").await, None, "the directory has all of them");
    assert_eq!(stored(&server), 0);
    server.stop().await;
}

/// Promise (Server): A caller with the scope `changes:apply` applies the changes that were reviewed, and no others; a file
/// that the host changed stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviewed_changes_are_applied_by_the_server() {
    let server = start_with(Over::Socket, bounds(), with_copies).await;
    let (client, project) = (server.client(), project(&server));
    create(&client, over(&project)).await;
    put(&client, "box", "a.txt", "two\n").await;
    put(&client, "box", "new.txt", "new\n").await;
    put(&client, "box", ".envrc", "run\n").await;
    create(&client, json!({ "name": "empty", "workspace": { "path": project } })).await;
    let digest = async || get(&client, "/v1/sandboxes/box/changes?form=json").await.unwrap()["digest"].clone();
    let reviewed = digest().await;
    assert_eq!(reviewed, digest().await);
    let path = "/v1/sandboxes/box/changes?form=diff";
    let response = client.send(Method::GET, path, Content::None).await.unwrap();
    assert_eq!(json!(response.headers()["cofferdam-changes-digest"].to_str().unwrap()), reviewed);
    let apply = async |body: Value| post(&client, "/v1/sandboxes/box/changes/apply", body).await;

    let (other, _) = server.keyed("default", &[Scope::FilesWrite, Scope::SandboxesWrite]).await;
    let refused = post(&other, "/v1/sandboxes/box/changes/apply", json!({ "digest": reviewed })).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    put(&client, "box", "late.txt", "unseen\n").await;
    assert_eq!(apply(json!({ "digest": reviewed })).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(!project.join("new.txt").exists() && !project.join("late.txt").exists());

    let reviewed = digest().await;
    let tried = apply(json!({ "digest": reviewed, "dry_run": true })).await.unwrap();
    assert!(tried["applied"].as_array().unwrap().len() == 3 && !project.join("new.txt").exists(), "{tried}");
    std::fs::write(project.join("a.txt"), "three\n").unwrap();
    let applied = apply(json!({ "digest": reviewed, "only": ["a.txt", "new.txt", ".envrc"] })).await.unwrap();
    assert_eq!(applied["applied"], json!(["new.txt"]), "{applied}");
    let log = server.directory.path().join("audit");
    let filter = cofferdam_audit::Filter { kind: Some("action".to_owned()), ..Default::default() };
    let last = cofferdam_audit::query(&log, filter).unwrap().last().unwrap().unwrap().record;
    let last = serde_json::to_value(last).unwrap();
    assert_eq!((&last["action"], &last["state"], &last["key"]), (&json!("apply"), &json!("ended"), &json!("local")));
    let files = json!({ "count": 1, "first": ["new.txt"] });
    assert_eq!((&last["digest"], &last["files"], &last["unapplied"]), (&reviewed, &files, &json!(2)));
    assert_eq!((&applied["conflicts"][0]["path"], &applied["refused"][0]["path"]), (&json!("a.txt"), &json!(".envrc")));
    assert_eq!(std::fs::read_to_string(project.join("a.txt")).unwrap(), "three\n");
    let applied = apply(json!({ "digest": reviewed, "only": [".envrc"], "allow": [".envrc"] })).await.unwrap();
    let path = "/v1/sandboxes/empty/changes?form=diff";
    assert_eq!(text(&client, path).await, "");
    // Differences that are too long are no review.
    for number in 0..3 {
        put(&client, "empty", &format!("long{number}.txt"), &format!("{}\n", "x".repeat(4 << 20))).await;
    }
    let response = client.send(Method::GET, path, Content::None).await.unwrap();
    assert!(!response.headers().contains_key("cofferdam-changes-digest"), "{:?}", response.headers());
    assert_eq!(applied["applied"], json!([".envrc"]), "{applied}");
    assert!(!project.join("late.txt").exists());
    server.stop().await;
}

/// Promise (Server): Changes that were not applied are kept when their sandbox is deleted, when its time is over, and when
/// the server stops. They are discarded only on request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_kept_when_their_sandbox_ends() {
    let server = start_with(Over::Socket, bounds(), with_copies).await;
    let (client, project) = (server.client(), project(&server));
    let fill = async |extra: Value| {
        let mut body = over(&project);
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        create(&client, body).await;
        put(&client, "box", "new.txt", "new\n").await;
    };
    fill(json!({})).await;
    let deleted = delete(&client, "/v1/sandboxes/box").await.expect("changes were kept").changes;
    assert_eq!((deleted.workspace.as_path(), deleted.files, stored(&server)), (project.as_path(), 1, 1));

    fill(json!({})).await;
    assert_eq!(delete(&client, "/v1/sandboxes/box?changes=discard").await, None);
    assert_eq!(stored(&server), 1);

    fill(json!({ "idle": 1 })).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while stored(&server) < 2 {
        assert!(Instant::now() < deadline, "the changes of an idle sandbox are kept");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    fill(json!({})).await;
    let changes = server.directory.path().join("changes");
    let (_, _, _directory) = server.stop_and_keep().await;
    assert_eq!(Store::open(&changes, StoreLimits::default()).unwrap().list().unwrap().len(), 3);
    assert!(!project.join("new.txt").exists());
}

/// Promise (Server): A sandbox whose changes cannot be kept is not deleted, unless the caller discards them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_remains_whose_changes_cannot_be_kept() {
    let server = start_with(Over::Socket, bounds(), with_copies).await;
    let (client, project) = (server.client(), project(&server));
    create(&client, over(&project)).await;
    put(&client, "box", "new.txt", "new\n").await;
    // A store that other users can change is not used.
    let changes = server.directory.path().join("changes");
    std::fs::create_dir(&changes).unwrap();
    std::fs::set_permissions(&changes, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = client.send(Method::DELETE, "/v1/sandboxes/box", Content::None).await.unwrap_err();
    assert!(error.message().contains("the sandbox remains"), "{error}");
    let report = get(&client, "/v1/sandboxes/box/changes?form=json").await.unwrap();
    assert_eq!(report["summary"]["files"], 1, "by its name, too");
    assert_eq!(delete(&client, "/v1/sandboxes/box?changes=discard").await, None);
    assert_eq!(get(&client, "/v1/sandboxes/box").await.unwrap_err().kind(), ErrorKind::NotFound);
    server.stop().await;
}

/// Promise (Server): Only the server's own user over its socket names a directory of the host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_own_user_names_directories() {
    let server = start_with(Over::Socket, bounds(), with_copies).await;
    let (owner, project) = (server.client(), project(&server));
    let (keyed, _) = server.keyed("default", Scope::ALL).await;
    let error = post(&keyed, "/v1/sandboxes", over(&project)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let backends = async |client: &Client| get(client, "/v1/backends").await.unwrap().to_string();
    assert!(backends(&owner).await.contains("copy-on-write") && !backends(&keyed).await.contains("copy-on-write"));
    for (body, kind) in [
        (json!({ "path": project, "id": { "device": 1, "inode": 1 } }), ErrorKind::NotFound),
        (json!({ "path": "project" }), ErrorKind::InvalidInput),
        (json!({ "path": "/no/such/directory" }), ErrorKind::NotFound),
    ] {
        let error = post(&owner, "/v1/sandboxes", json!({ "workspace": body })).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    let run = json!({ "sandbox": { "workspace": { "path": project } }, "exec": { "argv": ["x"] } });
    assert_eq!(post(&owner, "/v1/runs", run).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let both = json!({ "workspace": { "path": project }, "read_only": true });
    assert_eq!(post(&owner, "/v1/sandboxes", both).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    create(&owner, json!({ "name": "own" })).await;
    let error = get(&owner, "/v1/sandboxes/own/changes?form=json").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported), "{error}");
    server.stop().await;

    // Callers over TCP without a key are not the server's user.
    let server = start_with(Over::Tcp, bounds(), with_copies).await;
    let error = post(&server.client(), "/v1/sandboxes", over(&project)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    server.stop().await;
}
