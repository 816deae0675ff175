//! Creates with an `Idempotency-Key`.

use bytes::Bytes;
use cofferdam_server::client::{Content, Method};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::support::{Over, Running, bounds, create, get, start, steps};
use cofferdam_simulated::Step;

/// Posts a document with a key. Returns the status and the answer.
async fn ask(server: &Running, path: &str, key: &str, body: &(impl AsRef<[u8]> + ?Sized)) -> (u16, Value) {
    let stream = tokio::net::TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::post(path).header("host", "localhost").header("idempotency-key", key);
    let response =
        sender.send_request(request.body(Full::new(Bytes::copy_from_slice(body.as_ref()))).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

/// Promise (Server): A repeated create with the same idempotency key gets the first answer, and creates nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_create_gets_the_first_answer() {
    let server = start(Over::Tcp, bounds()).await;
    let ask = async |key: &str, body: &str| ask(&server, "/v1/sandboxes", key, body).await;
    let (first, second) = tokio::join!(ask("a", "{}"), ask("b", "{}"));
    assert_eq!((first.0, second.0), (201, 201));
    assert_ne!(first.1["id"], second.1["id"]);
    assert_eq!(ask("a", "{}").await, first);
    assert_eq!(ask("a", r#"{"read_only":true}"#).await.0, 400, "another request");
    assert_eq!(ask("c", r#"{"nonsense":1}"#).await.0, 400);
    assert_eq!(ask("c", "{}").await.0, 201, "a failed request frees its key");
    assert_eq!(server.simulated.living().len(), 3);
    server.stop().await;
}

/// Promise (Server): Forks, snapshots, volumes, execs and kernels are created once for an idempotency key, which no other
/// request can use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_created_once_for_a_key() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "box" })).await;
    create(&client, json!({ "name": "py", "backend": "process" })).await;
    let exit = |code| json!(steps(vec![Step::Exit(code)]));
    // The path of a create, its body and another one, and the list in which there is one object more.
    for (path, body, other, list) in [
        ("box/fork", json!({ "name": "copy" }), json!({ "name": "other" }), "/v1/sandboxes"),
        ("box/snapshot", json!({ "name": "base" }), json!({ "name": "other" }), "/v1/snapshots"),
        ("box/execs", exit(3), exit(4), "/v1/sandboxes/box/execs"),
        ("py/kernels", json!({ "language": "python" }), json!({}), "/v1/sandboxes/py/kernels"),
        ("", json!({ "name": "data", "size": "16M" }), json!({ "name": "other", "size": "16M" }), "/v1/volumes"),
    ] {
        let path = if path.is_empty() { list.to_owned() } else { format!("/v1/sandboxes/{path}") };
        let count = async || {
            let listed = get(&client, list).await.unwrap();
            listed.as_object().unwrap().values().find_map(Value::as_array).map_or(0, Vec::len)
        };
        let before = count().await;
        let first = ask(&server, &path, list, &body.to_string()).await;
        assert_eq!(first.0, 201, "{path}: {}", first.1);
        assert_eq!(ask(&server, &path, list, &body.to_string()).await, first, "{path}");
        let (status, refused) = ask(&server, &path, list, &other.to_string()).await;
        assert_eq!((status, &refused["kind"]), (400, &json!("invalid-input")), "{path}: {refused}");
        assert_eq!(ask(&server, "/v1/sandboxes", list, &body.to_string()).await.0, 400, "{path}: another endpoint");
        assert_eq!(count().await, before + 1, "{path}");
    }
    server.stop().await;
}

/// Promise (Server): A snapshot is uploaded once for an idempotency key, which no other name, body or endpoint can use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_upload_gets_the_first_answer() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "box" })).await;
    let mut contents = Vec::new();
    for (name, data) in [("one", "1"), ("two", "2")] {
        let path = "/v1/sandboxes/box/files?path=x";
        client.send(Method::PUT, path, Content::Bytes(Bytes::from(data).into())).await.unwrap();
        assert_eq!(ask(&server, "/v1/sandboxes/box/snapshot", name, &json!({ "name": name }).to_string()).await.0, 201);
        let content = client.send(Method::GET, &format!("/v1/snapshots/{name}/content"), Content::None).await.unwrap();
        contents.push(content.into_body().collect().await.unwrap().to_bytes());
    }
    let path = "/v1/snapshots?backend=simulated&name=copy";
    let count = async || get(&client, "/v1/snapshots").await.unwrap()["snapshots"].as_array().unwrap().len();
    let cut = contents[0].slice(..contents[0].len() / 2);
    assert_eq!(ask(&server, path, "key", &cut).await.0, 400);
    let first = ask(&server, path, "key", &contents[0]).await;
    assert_eq!(first.0, 201, "a failed upload frees its key: {}", first.1);
    assert_eq!(ask(&server, path, "key", &contents[0]).await, first);
    for (path, body) in [
        (path, &contents[1]),
        (path, &cut),
        (path, &Bytes::new()),
        ("/v1/snapshots?backend=simulated&name=other", &contents[0]),
        ("/v1/sandboxes", &contents[0]),
    ] {
        let (status, refused) = ask(&server, path, "key", body).await;
        assert_eq!((status, &refused["kind"]), (400, &json!("invalid-input")), "{path}: {refused}");
        assert!(refused["detail"].as_str().unwrap().contains("was used for another request"), "{path}: {refused}");
    }
    assert_eq!(count().await, 3);
    server.stop().await;
}
