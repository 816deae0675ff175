use std::time::Duration;

use cofferdam_contract::ErrorKind;
use cofferdam_server::client::{Content, Transfer};
use cofferdam_server::rest::views::FileEvent;
use serde_json::json;

use crate::support::{Method, Over, bounds, create, get, process, shell, start};

/// Promise (Server): Directories are copied in and out as archives, with a report of what was skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_copied_as_archives() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    for (name, backend) in [("a", json!({ "name": "a" })), ("b", json!({ "name": "b", "backend": "process" }))] {
        create(&client, backend).await;
        let directory = format!("/v1/sandboxes/{name}/files/entry?kind=directory&path=empty/deep");
        client.send(Method::PUT, &directory, Content::None).await.unwrap();
        assert_eq!(
            get(&client, &format!("/v1/sandboxes/{name}/files/list?path=empty")).await.unwrap()["entries"][0]["name"],
            "deep"
        );
        for file in ["d/x", "d/sub/y"] {
            let path = format!("/v1/sandboxes/{name}/files?path={file}");
            client.send(Method::PUT, &path, Content::Bytes(vec![7; 300_000].into())).await.unwrap();
        }
        let mut tar = Vec::new();
        let report = client.copy_out(name, "d", &mut tar).await.unwrap();
        assert_eq!((report.bytes, report.skipped_count), (600_000, 0), "{report:?}");
        let copied = client.copy_in(name, "copy", Box::new(std::io::Cursor::new(tar.clone()))).await.unwrap();
        assert_eq!((copied.bytes, copied.entries), (600_000, report.entries));
        let stat = get(&client, &format!("/v1/sandboxes/{name}/files/stat?path=copy/d/sub/y")).await.unwrap();
        assert_eq!(stat["size"], 300_000);
        for path in ["../x", "missing/deep"] {
            let error = client.copy_out(name, path, &mut tokio::io::sink()).await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::PathEscape | ErrorKind::NotFound), "{path} {error:?}");
        }
        for broken in [tar[..1000].to_vec(), vec![9; 2048]] {
            let error = client.copy_in(name, "copy", Box::new(std::io::Cursor::new(broken))).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
    }
    // A pipe of the guest is skipped and reported; its links are not followed.
    let created = shell(&client, "b", "mkdir odd; mkfifo odd/pipe; ln -s /etc odd/link").await.unwrap();
    get(&client, &format!("/v1/sandboxes/b/execs/{}/wait", created.id)).await.unwrap();
    let mut tar = Vec::new();
    let report = client.copy_out("b", "odd", &mut tar).await.unwrap();
    assert_eq!((report.entries, report.skipped_count, report.bytes), (2, 1, 0), "{report:?}");
    server.stop().await;
}

/// Promise (Server): An archive that leads out of the workspace, or beyond the limit of uploads, is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_archive_is_refused() {
    let mut small = bounds();
    small.file = 4096;
    let server = start(Over::Tcp, small).await;
    let client = server.client();
    create(&client, json!({ "name": "a", "backend": process()["backend"] })).await;
    let mut tar = vec![0u8; 1024 + 512];
    tar[..9].copy_from_slice(b"../escape");
    tar[100..107].copy_from_slice(b"0000644");
    tar[124..135].copy_from_slice(b"00000000000");
    tar[156] = b'0';
    tar[257..263].copy_from_slice(b"ustar\0");
    tar[148..156].fill(b' ');
    let sum: u32 = tar[..512].iter().map(|byte| u32::from(*byte)).sum();
    tar[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let error = client.copy_in("a", "d", Box::new(std::io::Cursor::new(tar))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let error = client.copy_in("a", "d", Box::new(std::io::Cursor::new(vec![0; 8192]))).await.unwrap_err();
    assert_eq!(error.message(), "the body is larger than 4096 bytes");
    assert_eq!(get(&client, "/v1/sandboxes/a/files/stat?path=escape").await.unwrap_err().kind(), ErrorKind::NotFound);
    server.stop().await;
}

/// Promise (Server): Changes of a directory are reported as they occur.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_watched() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "a", "backend": process()["backend"] })).await;
    let response = client.send(Method::GET, "/v1/sandboxes/a/files/watch", Content::None).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    shell(&client, "a", "echo 1 > x; sleep 0.3; mv x y; sleep 0.3; rm y").await.unwrap();
    let (mut from, mut text, mut seen) = (Transfer::of(response), Vec::new(), Vec::new());
    let path = |name: &str| format!("/workspace/{name}");
    let last = FileEvent::Removed { path: path("y") };
    while !seen.contains(&last) {
        let data = tokio::time::timeout(Duration::from_secs(20), from.next()).await.expect("events arrive");
        text.extend_from_slice(&data.unwrap().expect("the stream continues"));
        let whole = String::from_utf8(text.clone()).unwrap();
        let lines = whole.lines().filter_map(|line| line.strip_prefix("data: "));
        seen = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
    }
    let expected = [FileEvent::Created { path: path("x") }, FileEvent::Renamed { from: path("x"), to: path("y") }];
    assert!(expected.iter().all(|event| seen.contains(event)), "{seen:?}");
    let missing = get(&client, "/v1/sandboxes/a/files/watch?path=missing").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    drop(from);
    server.stop().await;
}
