use std::time::Duration;

use cofferdam_contract::ErrorKind;
use cofferdam_server::Scope;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

use crate::support::{Method, Over, Running, bounds, create, get, post, process, send, start};

/// Promise (Server): Code runs in a sandbox, and in kernels that keep their variables; both answer with results.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn code_runs_in_sandboxes_and_kernels() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "box", "backend": process()["backend"] })).await;
    create(&client, json!({ "name": "other", "backend": process()["backend"] })).await;
    let run = async |path: &str, code: &str| {
        let body = json!({ "language": "python", "code": code, "timeout": 20 });
        post(&client, &format!("/v1/sandboxes/{path}"), body).await
    };
    let done = run("box/code", "print('hi'); open('made', 'w').write('x'); 6 * 7").await.unwrap();
    assert_eq!((&done["exit_code"], &done["stdout"]["text"]), (&json!(0), &json!("hi\n")), "{done}");
    assert!(done["results"].to_string().contains("42") && done["files"].to_string().contains("made"), "{done}");
    let failed = run("box/code", "1 / 0").await.unwrap();
    assert_eq!(failed["exit_code"], 1, "{failed}");
    let error = post(&client, "/v1/sandboxes/box/code", json!({ "language": "cobol", "code": "" })).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    let opened = post(&client, "/v1/sandboxes/box/kernels", json!({ "language": "python" })).await.unwrap();
    let kernel = opened["id"].as_str().unwrap();
    run(&format!("box/kernels/{kernel}/code"), "x = 41").await.unwrap();
    let second = run(&format!("box/kernels/{kernel}/code"), "x + 1").await.unwrap();
    assert!(second["results"].to_string().contains("42"), "{second}");
    assert_eq!(get(&client, "/v1/sandboxes/box/kernels").await.unwrap()["kernels"][0], opened);
    // A kernel belongs to its sandbox.
    assert_eq!(get(&client, "/v1/sandboxes/other/kernels").await.unwrap()["kernels"], json!([]));
    let foreign = run(&format!("other/kernels/{kernel}/code"), "x").await.unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::NotFound);
    send(&client, Method::DELETE, &format!("/v1/sandboxes/box/kernels/{kernel}"), None).await.unwrap();
    let closed = run(&format!("box/kernels/{kernel}/code"), "x").await.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
    server.stop().await;
}

/// Sends code, and returns the lines of its events.
async fn stream(server: &Running, path: &str, code: &str) -> Lines<BufReader<TcpStream>> {
    events(server, &format!("/v1/sandboxes/{path}"), &json!({ "language": "python", "code": code })).await
}

/// Posts a document, and returns the lines of the events of the answer.
pub async fn events(server: &Running, path: &str, body: &Value) -> Lines<BufReader<TcpStream>> {
    let mut connection = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let body = body.to_string();
    let head = "Host: 127.0.0.1\r\nAccept: text/event-stream\r\nConnection: close";
    let request = format!("POST {path} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    connection.write_all(request.as_bytes()).await.unwrap();
    BufReader::new(connection).lines()
}

/// Returns the next event.
pub async fn next(lines: &mut Lines<BufReader<TcpStream>>) -> Value {
    let wait = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
        panic!("the stream has ended")
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("an event")
}

/// Promise (Server): Output of code is streamed as it arrives, then its result. A client that leaves ends the code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_of_code_is_streamed() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "box", "backend": process()["backend"] })).await;
    let opened = post(&client, "/v1/sandboxes/box/kernels", json!({ "language": "python" })).await.unwrap();
    let kernel = format!("box/kernels/{}/code", opened["id"].as_str().unwrap());
    // The code waits for a file, so its output arrives before its end.
    let code =
        "import os, time\nprint('one', end='', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n6 * 7";
    for path in ["box/code", &kernel] {
        let mut lines = stream(&server, path, code).await;
        let first = next(&mut lines).await;
        assert_eq!(
            (&first["event"], &first["stream"], &first["data"]),
            (&json!("output"), &json!("stdout"), &json!("b25l"))
        );
        let go = cofferdam_server::client::Content::Bytes(bytes::Bytes::new().into());
        client.send(Method::PUT, "/v1/sandboxes/box/files?path=go", go).await.unwrap();
        let last = next(&mut lines).await;
        assert_eq!((&last["event"], &last["result"]["exit_code"]), (&json!("result"), &json!(0)), "{last}");
        assert!(last["result"]["results"].to_string().contains("42"), "{last}");
        send(&client, Method::DELETE, "/v1/sandboxes/box/files?path=go", None).await.unwrap();
    }
    let mut refused = stream(&server, "box/code", "1 / 0").await;
    assert_eq!(next(&mut refused).await["event"], "output", "the traceback");
    let mut left = stream(&server, "box/code", "print(1, end='', flush=True); import time; time.sleep(1000)").await;
    next(&mut left).await;
    assert_eq!(get(&client, "/v1/sandboxes/box").await.unwrap()["busy"], true);
    send(&client, Method::DELETE, &format!("/v1/sandboxes/box/kernels/{}", opened["id"].as_str().unwrap()), None)
        .await
        .unwrap();
    drop((left, refused));
    let is_busy = async || get(&client, "/v1/sandboxes/box").await.unwrap()["busy"] == true;
    let idle = async {
        while is_busy().await {
            tokio::time::sleep(Duration::from_millis(50)).await
        }
    };
    tokio::time::timeout(Duration::from_secs(20), idle).await.expect("the code ends");
    server.stop().await;
}

/// Promise (Server): A stream of code that cannot start is answered with the status of the failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_cannot_start_has_a_status() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    create(&client, json!({ "name": "box", "backend": process()["backend"] })).await;
    let opened = post(&client, "/v1/sandboxes/box/kernels", json!({ "language": "python" })).await.unwrap();
    let kernel = format!("box/kernels/{}/code", opened["id"].as_str().unwrap());
    // Reads the whole answer.
    let answer = async |path: &str, code: &str| {
        let mut lines = stream(&server, path, code).await;
        let mut text = String::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            text += &format!("{line}\n");
        }
        text
    };
    let mut running = stream(&server, &kernel, "print(1, flush=True); import time; time.sleep(1000)").await;
    next(&mut running).await;
    let busy = answer(&kernel, "1").await;
    assert!(busy.starts_with("HTTP/1.1 409") && busy.contains("application/problem+json"), "{busy}");
    drop(running);

    let admin = server.with_key(Some(&server.key("default", Scope::ALL).await));
    let quota = json!({ "execs_per_second": 1 });
    send(&admin, Method::PUT, "/v1/admin/quotas/default", Some(quota)).await.unwrap();
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(answer("box/code", "6 * 7").await);
    }
    let refused = answers.iter().find(|answer| !answer.starts_with("HTTP/1.1 200")).expect("a refusal");
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("\nretry-after: "), "{refused}");
    // Code without output has a result.
    send(&admin, Method::DELETE, "/v1/admin/quotas/default", None).await.unwrap();
    let silent = answer("box/code", "x = 1").await;
    assert!(silent.starts_with("HTTP/1.1 200") && silent.contains("event: result"), "{silent}");
    server.stop().await;
}
