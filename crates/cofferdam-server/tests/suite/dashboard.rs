//! The dashboard: its files over HTTP, and its pages in a browser.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cofferdam_server::{Quota, Scope, ServedBackend};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::networked::Networked;
use crate::support::{Over, Running, bounds, create, exec, process, start, start_with, steps};

/// Sends a request over a plain connection. Returns the answer as text.
async fn raw(server: &Running, request: &str) -> String {
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn head(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Connection: close\r\n\r\n")
}

/// Promise (Server): The dashboard runs no script but its own, loads nothing from other hosts, and cannot be framed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_have_a_strict_policy() {
    let server = start_with(Over::Tcp, bounds(), |config| config.gate.without_keys = false).await;
    for (path, media) in [
        ("/", "text/html; charset=utf-8"),
        ("/assets/icon.svg", "image/svg+xml"),
        ("/assets/licenses.txt", "text/plain; charset=utf-8"),
    ] {
        let answer = raw(&server, &head(path, "")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        let (fields, body) = answer.split_once("\r\n\r\n").unwrap();
        for field in [
            &format!("content-type: {media}"),
            "content-security-policy: default-src 'none'; script-src 'sha256-",
            "; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
            "x-content-type-options: nosniff",
            "x-frame-options: DENY",
            "referrer-policy: no-referrer",
            "cross-origin-opener-policy: same-origin",
            "cache-control: no-cache",
        ] {
            assert!(fields.contains(field), "{path}, {field}: {fields}");
        }
        assert!(!fields.contains("unsafe-") && !body.is_empty(), "{path}: {fields}");
        // A guest serves files of this origin, below the path of a port.
        for of in ["script-src", "style-src"] {
            let sources = fields.split_once(&format!("; {of} ")).unwrap().1.split_once(';').unwrap().0;
            assert!(sources.starts_with("'sha256-") && !sources.contains(' '), "{path}: {of} {sources}");
        }
        let tag = fields.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
        let again = raw(&server, &head(path, &format!("If-None-Match: {tag}\r\n"))).await;
        assert!(again.starts_with("HTTP/1.1 304") && again.ends_with("\r\n\r\n"), "{path}: {again}");
    }
    for path in ["/assets/", "/assets/x", "/assets/..%2findex.html", "/index.html", "/x"] {
        assert!(raw(&server, &head(path, "")).await.starts_with("HTTP/1.1 404"), "{path}");
    }
    let by_name = head("/", "").replace("127.0.0.1", "other.ports.example");
    assert!(raw(&server, &by_name).await.starts_with("HTTP/1.1 404"), "a host name of sandboxes");
    server.stop().await;
}

/// Promise (Server): A key in the protocols of a WebSocket counts for this connection only, and is not sent back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_carries_its_key() {
    let server = start_with(Over::Tcp, bounds(), |config| config.gate.without_keys = false).await;
    let key = server.key("acme", Scope::ALL).await;
    let client = server.with_key(Some(&key));
    create(&client, json!({ "name": "box" })).await;
    let started = exec(&client, "box", &steps(Vec::new())).await.unwrap();
    let upgrade = |path: &str, protocols: &str| {
        let fields =
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n";
        let fields = format!("{fields}Origin: https://proxy.example\r\nSec-WebSocket-Protocol: {protocols}\r\n");
        head(path, &fields).replace("Connection: close", "Connection: Upgrade")
    };
    let attach = format!("/v1/sandboxes/box/execs/{}/attach", started.id);
    let bearer = |key: &str| format!("cofferdam.v1, cofferdam.bearer.{}", URL_SAFE_NO_PAD.encode(key));
    let answer = raw(&server, &upgrade(&attach, &bearer(&key))).await;
    assert!(
        answer.starts_with("HTTP/1.1 101") && answer.contains("sec-websocket-protocol: cofferdam.v1\r\n"),
        "{answer}"
    );
    assert!(!answer.contains("bearer"), "{answer}");
    for protocols in ["cofferdam.v1".to_owned(), bearer("cfd_x_y"), "cofferdam.bearer.%".to_owned()] {
        let request = upgrade(&attach, &protocols).replace("Connection: Upgrade", "Connection: Upgrade, close");
        let answer = tokio::time::timeout(Duration::from_secs(10), raw(&server, &request)).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 401"), "{protocols}: {answer}");
    }
    // Other endpoints take the header only. The guest sees the protocols there.
    let other = upgrade("/v1/sandboxes/box/ports/80/", &bearer(&key))
        .replace("Connection: Upgrade", "Connection: Upgrade, close");
    assert!(raw(&server, &other).await.starts_with("HTTP/1.1 401"));
    server.stop().await;
}

/// Forwards a TCP address to the socket of a server, as `ssh -L` does. Returns its URL.
async fn forwarded(server: &Running) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let socket = server.socket().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut to = tokio::net::UnixStream::connect(socket).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut to).await;
            });
        }
    });
    url
}

/// Creates a sandbox whose copy-on-write workspace has hostile changes.
async fn review(server: &Running) {
    let directory = server.directory.path().join("project");
    std::fs::create_dir(&directory).unwrap();
    for (name, text) in [("page.html", "old\n"), ("notes.txt", "-- a/page.html\nkept\n"), ("gone.txt", "gone\n")] {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let body = json!({ "backend": "process", "name": "review", "workspace": { "path": directory } });
    create(&server.client(), body).await;
    let line = "printf '%s\\n' '<img src=x onerror=\"window.hacked=1\">' > page.html
        printf 'kept\\n++ b/evil\\n' > notes.txt; rm gone.txt";
    let started = crate::support::shell(&server.client(), "review", line).await.unwrap();
    let path = format!("/v1/sandboxes/review/execs/{}/wait", started.id);
    crate::support::get(&server.client(), &path).await.unwrap();
}

/// Promise (Server): The dashboard works in a browser with a key and without one, by keyboard and on a small screen, and
/// output of guests is text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dashboard_works_in_a_browser() {
    let Some(packages) = std::env::var_os("COFFERDAM_TEST_DASHBOARD").map(PathBuf::from) else {
        println!("SKIP the_dashboard_works_in_a_browser: cargo xtask test installs its packages");
        return;
    };
    let browser = PathBuf::from("/usr/bin/chromium");
    if !browser.exists() {
        println!("SKIP the_dashboard_works_in_a_browser: Chromium is not installed (Debian's package chromium)");
        return;
    }
    let quota = r#"{"sandboxes": 20, "memory": "16G", "cpu_seconds_per_day": 3600, "requests_per_second": 200}"#;
    let server = start_with(Over::Tls, bounds(), |config| {
        config.quota = Quota::parse(quota).unwrap();
        let backend = Arc::new(Networked(Default::default()));
        let served = ServedBackend { backend, attributes: Vec::new(), archive: None };
        config.policy.backends.insert("networked".to_owned(), served);
        config.policy.network = true;
    })
    .await;
    let open = start(Over::Tcp, bounds()).await;
    create(&open.client(), process()).await;
    let own = start(Over::Socket, bounds()).await;
    review(&own).await;
    let home = tempfile::tempdir().unwrap();
    let mut driver = Command::new("node");
    driver
        .arg("dashboard/test/browser.mjs")
        .env("PACKAGES", packages)
        .env("BROWSER", browser)
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .env("SERVER", &server.url)
        .env("KEY", server.key("acme", Scope::ALL).await)
        .env("OPEN_SERVER", &open.url)
        .env("OWN_SERVER", forwarded(&own).await)
        .stdin(Stdio::null());
    // It ends by itself after some minutes.
    let output = tokio::task::spawn_blocking(move || driver.output()).await.unwrap().expect("node starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "the browser test failed; its output is above");
    let applied = |name| std::fs::read_to_string(own.directory.path().join("project").join(name)).ok();
    assert!(applied("page.html").is_some_and(|text| text.starts_with("<img")));
    assert_eq!((applied("notes.txt").as_deref(), applied("gone.txt")), (Some("kept\n++ b/evil\n"), None));
    server.stop().await;
    open.stop().await;
    own.stop().await;
}
