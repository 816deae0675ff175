//! HTTP on the socket of runs, with the same prepared sandboxes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::{Home, by_server, leaving_nothing, read};

const IDLE: &[&str] = &["--idle-exit", "1s"];

/// Runs a client of the server that succeeds. Returns what it prints.
fn ask(home: &Home, words: &[&str]) -> String {
    let (status, stdout, stderr) = read(&home.cofferdam().args(words).output().unwrap());
    assert_eq!(status, Some(0), "{words:?}: {stderr}");
    stdout
}

/// Sends a request, and returns the answer.
fn request(home: &Home, head: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(home.socket()).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    write!(
        stream,
        "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Promise (Server): One socket serves runs and HTTP, and both use the prepared sandboxes and interpreters.
#[test]
fn runs_and_http_share_a_socket_and_the_prepared_sandboxes() {
    leaving_nothing(|| {
        let home = Home::new();
        let server = home.server(&[]);
        server.warm();
        assert!(request(&home, "GET /v1/health", "").starts_with("HTTP/1.1 200"));
        assert!(by_server(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
        server.until("a sandbox is prepared", |status| status["pool"]["warm"] != 0);
        let prepared = |status: &serde_json::Value| status["pool"]["claims"]["warm"].as_u64().unwrap();
        let before = server.status();
        let id = ask(&home, &["create"]);
        let after = server.status();
        assert_eq!(prepared(&after), prepared(&before) + 1, "{after:#}");
        assert_eq!(ask(&home, &["exec", id.trim(), "--", "echo", "a"]), "a\n");
        ask(&home, &["rm", id.trim()]);
        server.warm();
        let can = |kind: &serde_json::Value| kind["name"] == "python" && kind["failures"] == 0;
        if server.status()["interpreters"].as_array().unwrap().iter().any(can) {
            let script = json!({ "interpreter": ["python3", "-u"], "name": "main.py", "text": "print(6 * 7)" });
            let run = json!({ "exec": { "script": script } });
            let answer = request(&home, "POST /v1/runs", &run.to_string());
            assert!(answer.contains("42"), "{answer}");
            assert_eq!(server.status()["warm_runs"], 1, "{answer}");
        }
        assert_eq!(server.end().0, Some(0));
        assert!(home.gone());
    });
}

/// Promise (Server): A server with an idle time does not exit while a sandbox lives.
#[test]
fn an_idle_server_waits_for_the_sandboxes_of_its_clients() {
    leaving_nothing(|| {
        let home = Home::new();
        let mut server = home.server(&[IDLE, &["--python", "0", "--node", "0"]].concat());
        let id = ask(&home, &["create"]);
        std::thread::sleep(Duration::from_secs(3));
        assert!(server.child.try_wait().unwrap().is_none(), "it has exited");
        ask(&home, &["rm", id.trim()]);
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert!(home.gone());
    });
}

/// Promise (Server): A stop request closes the sandboxes of clients of HTTP.
#[test]
fn a_stopped_server_closes_all_sandboxes() {
    leaving_nothing(|| {
        let home = Home::new();
        let mut server = home.server(&["--python", "0", "--node", "0"]);
        let id = ask(&home, &["create"]);
        ask(&home, &["exec", "--detach", id.trim(), "--", "sleep", "1000"]);
        let mut stop: Command = home.cofferdam();
        let (status, _, stderr) = read(&stop.args(["serve", "stop"]).output().unwrap());
        assert!(status == Some(0) && stderr.contains("has exited"), "{stderr}");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert!(home.gone());
    });
}
