use cofferdam_contract::ErrorKind;
use cofferdam_server::client::{Client, Content};
use cofferdam_server::rest::views::Written;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Method, Over, bounds, create, get, process, send, shell, start};

async fn put(client: &Client, path: &str, data: Vec<u8>) -> cofferdam_contract::Result<u64> {
    let response = client.send(Method::PUT, path, Content::Bytes(data.into())).await?;
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Ok(serde_json::from_slice::<Written>(&body).unwrap().bytes)
}

/// Promise (Server): Files are written, read, listed, described and removed, within the workspace only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_the_workspace_are_written_and_read() {
    let server = start(Over::Socket, bounds()).await;
    let client = server.client();
    for (name, backend) in [("a", json!({ "name": "a" })), ("b", json!({ "name": "b", "backend": "process" }))] {
        create(&client, backend).await;
        let at = |what: &str, path: &str| format!("/v1/sandboxes/{name}/files{what}?path={path}");
        let data: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
        assert_eq!(put(&client, &at("", "d/x.bin"), data.clone()).await.unwrap(), 300_000);
        let response = client.send(Method::GET, &at("", "/workspace/d/x.bin"), Content::None).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), data);
        let stat = get(&client, &at("/stat", "d/x.bin")).await.unwrap();
        assert_eq!(stat, json!({ "path": "/workspace/d/x.bin", "kind": "file", "size": 300_000 }));
        assert_eq!(get(&client, &at("/stat", "")).await.unwrap()["kind"], "directory");
        let list = get(&client, &at("/list", "")).await.unwrap();
        assert_eq!(list["entries"][0]["name"], "d");
        for (path, kind) in [
            ("../x", ErrorKind::PathEscape),
            ("/etc/passwd", ErrorKind::PathEscape),
            ("nothing", ErrorKind::NotFound),
            ("d", ErrorKind::Conflict),
        ] {
            assert_eq!(get(&client, &at("", path)).await.unwrap_err().kind(), kind, "{path}");
        }
        send(&client, Method::DELETE, &at("", "d"), None).await.unwrap();
        assert_eq!(get(&client, &at("/stat", "d")).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    server.stop().await;
}

/// Promise (Server): A directory is listed in pages, with each entry once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_listed_in_pages() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    let names: Vec<String> = (0..5).map(|number| format!("f {number}&")).collect();
    for name in &names {
        let name = name.replace(' ', "%20").replace('&', "%26");
        put(&client, &format!("/v1/sandboxes/a/files?path={name}"), Vec::new()).await.unwrap();
    }
    let list = "/v1/sandboxes/a/files/list?path=";
    let (mut seen, mut sizes, mut path) = (Vec::new(), Vec::new(), format!("{list}&limit=2"));
    loop {
        let page = get(&client, &path).await.unwrap();
        let entries = page["entries"].as_array().unwrap();
        sizes.push(entries.len());
        seen.extend(entries.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("{list}&limit=2&after={}", next.replace(' ', "%20").replace('&', "%26"));
    }
    assert_eq!((seen, sizes), (names, vec![2, 2, 1]));
    for limit in [0, 1001] {
        assert_eq!(get(&client, &format!("{list}&limit={limit}")).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    server.stop().await;
}

/// Promise (Server): A link that a guest made leads no request out of its workspace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guests_link_leads_nowhere() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    let id = create(&client, process()).await;
    let exec = shell(&client, &id, "ln -s /etc/passwd link; ln -s / root; mkfifo pipe").await.unwrap();
    get(&client, &format!("/v1/sandboxes/{id}/execs/{}/wait", exec.id)).await.unwrap();
    for path in ["link", "root/etc/passwd", "pipe"] {
        let path = format!("/v1/sandboxes/{id}/files?path={path}");
        assert!(get(&client, &path).await.is_err(), "{path}");
        let kind = put(&client, &path, b"x".to_vec()).await.map_err(|error| error.kind());
        assert!(path.ends_with("link") || kind.is_err(), "{path} {kind:?}");
    }
    server.stop().await;
}

/// Promise (Server): One range of a file is read without the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_is_read() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    put(&client, "/v1/sandboxes/a/files?path=x", b"0123456789".to_vec()).await.unwrap();
    let address = server.url.strip_prefix("http://").unwrap();
    for (range, expected) in [
        ("bytes=2-4", "206 Partial Content|content-range: bytes 2-4/10|\r\n\r\n234"),
        ("bytes=-3", "206 Partial Content|content-range: bytes 7-9/10|\r\n\r\n789"),
        ("bytes=10-", "416 Range Not Satisfiable|content-range: bytes */10|"),
        ("lines=1", "200 OK|0123456789"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = format!("GET /v1/sandboxes/a/files?path=x HTTP/1.1\r\nHost: localhost\r\nRange: {range}\r\n");
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        for part in expected.split('|') {
            assert!(answer.contains(part), "{range}: {part:?} is not in {answer:?}");
        }
    }
    server.stop().await;
}

/// Promise (Server): An upload beyond the limit, or one that is cut off, leaves no file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_upload_leaves_no_file() {
    let mut small = bounds();
    small.file = 1000;
    let server = start(Over::Tcp, small).await;
    let client = server.client();
    create(&client, json!({ "name": "a" })).await;
    let path = "/v1/sandboxes/a/files?path=x";
    assert_eq!(put(&client, path, vec![0; 1000]).await.unwrap(), 1000);
    send(&client, Method::DELETE, path, None).await.unwrap();
    let error = put(&client, path, vec![0; 1001]).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::InvalidInput, "the body is larger than 1000 bytes"));
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\nhalf");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(get(&client, "/v1/sandboxes/a/files/list?path=").await.unwrap(), json!({ "entries": [], "next": null }));
    server.stop().await;
}
