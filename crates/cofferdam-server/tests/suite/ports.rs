use std::time::Duration;

use cofferdam_contract::ErrorKind;
use cofferdam_server::Scope;
use cofferdam_server::client::{Client, Content};
use futures_util::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Method, Over, Running, bounds, create, get, process, shell, start};

/// A server that answers with the head of the request, and a WebSocket that returns its messages.
const ECHO: &str = r#"
import base64, hashlib, http.server, socketserver

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.socket()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        text = (self.requestline + "\n" + str(self.headers) + "\n").encode() + body
        self.send_response(200)
        self.send_header("Set-Cookie", "guest=1")
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET

    def socket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                break
            length, mask = head[1] & 127, self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length)))
            self.wfile.write(bytes([head[0], len(data)]) + data)
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_):
        pass

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

Server(("127.0.0.1", 8000), Handler).serve_forever()
"#;

/// Starts a program in a sandbox, and waits until its port answers.
async fn serve(server: &Running, client: &Client, code: &str, port: u16) {
    create(client, json!({ "backend": process()["backend"], "name": "web" })).await;
    let path = "/v1/sandboxes/web/files?path=serve.py";
    client.send(Method::PUT, path, Content::Bytes(code.to_owned().into())).await.unwrap();
    shell(client, "web", "exec python3 serve.py").await.unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while client.tunnel("web", port).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "no program listens: {}", server.url);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends a request as it is written, and returns the answer.
async fn raw(server: &Running, request: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Promise (Server): A port of a sandbox is reached by path and by host name, without credentials of the server, and its
/// pages get no rights of the server's origin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_is_reached_by_path_and_by_host_name() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    serve(&server, &client, ECHO, 8000).await;
    let key = server.key("default", cofferdam_server::Scope::ALL).await;

    let head = format!("Host: localhost\r\nAuthorization: Bearer {key}\r\nCookie: a=b\r\nConnection: close\r\n");
    let body = format!("POST /v1/sandboxes/web/ports/8000/a%20b?c=d HTTP/1.1\r\n{head}Content-Length: 3\r\n\r\nxyz");
    let answer = raw(&server, &body).await;
    let lower = answer.to_ascii_lowercase();
    for part in ["HTTP/1.1 200 OK", "POST /a%20b?c=d HTTP/1.1", "\n\nxyz"] {
        assert!(answer.contains(part), "{part:?} is not in {answer}");
    }
    let expected =
        ["content-security-policy: sandbox allow-", "x-content-type-options: nosniff", "host: localhost:8000"];
    for part in expected {
        assert!(lower.contains(part), "{part:?} is not in {answer}");
    }
    for part in [key.as_str(), "authorization", "cookie", "allow-same-origin"] {
        assert!(!lower.contains(part), "{part:?} is in {answer}");
    }

    let host = head.replace("localhost", "8000-web.ports.example");
    let answer = raw(&server, &format!("GET /v1/sandboxes HTTP/1.1\r\n{host}\r\n")).await;
    let lower = answer.to_ascii_lowercase();
    for part in ["get /v1/sandboxes http/1.1", "cookie: a=b", "set-cookie: guest=1", "host: 8000-web.ports.example"] {
        assert!(lower.contains(part), "{part:?} is not in {answer}");
    }
    assert!(!lower.contains("content-security-policy") && !lower.contains("authorization"), "{answer}");
    let other = head.replace("localhost", "api.ports.example");
    let answer = raw(&server, &format!("GET /v1/sandboxes HTTP/1.1\r\n{other}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");

    let path = "/v1/sandboxes/web/ports/8001/";
    assert_eq!(get(&client, path).await.unwrap_err().kind(), ErrorKind::Unavailable, "no program listens");
    server.stop().await;
}

/// Promise (Server): Without a key, a page from a port by path gets nothing of the server's origin, not even its own files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_from_a_port_needs_a_key_for_its_files() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    serve(&server, &client, ECHO, 8000).await;
    let key = server.key("default", cofferdam_server::Scope::ALL).await;
    let of = |path: &str, fields: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}Connection: close\r\n\r\n")
    };
    // A browser sends these for a page of the address bar, and for a script and a request of a page with an opaque origin.
    let page = "Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";
    let script = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: script\r\n";
    let request = "Origin: null\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n";
    let with_key = format!("{script}Authorization: Bearer {key}\r\n");
    for (path, fields, status) in [
        ("/v1/sandboxes/web/ports/8000/", page, 200),
        ("/v1/sandboxes/web/ports/8000/x.js", script, 401),
        ("/v1/sandboxes/web/ports/8000/x.js", request, 401),
        ("/v1/sandboxes/web/ports/8000/x.js", &with_key, 200),
        ("/v1/sandboxes", request, 401),
    ] {
        let answer = raw(&server, &of(path, fields)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}, {fields}: {answer}");
    }
    let by_name = of("/", page).replace("127.0.0.1", "8000-web.ports.example");
    assert!(raw(&server, &by_name).await.starts_with("HTTP/1.1 401"), "a host name may lead to any address");
    server.stop().await;
}

/// Promise (Server): WebSockets and any bytes pass to a port of a sandbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websockets_and_bytes_pass_to_a_port() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    serve(&server, &client, ECHO, 8000).await;
    let address = server.url.strip_prefix("http://").unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let url = format!("ws://{address}/v1/sandboxes/web/ports/8000/socket");
    let (mut socket, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    for text in ["one", "two"] {
        socket.send(Message::Text(text.into())).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::Text(text.into()));
    }
    drop(socket);

    let tunnel = client.tunnel("web", 8000).await.unwrap();
    let (mut near, far) = tokio::io::duplex(1 << 16);
    let joined = tokio::spawn(tunnel.join(Box::new(far)));
    near.write_all(b"GET /tunnel HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
    near.shutdown().await.unwrap();
    let mut answer = String::new();
    near.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("GET /tunnel"), "{answer}");
    joined.await.unwrap().unwrap();
    server.stop().await;
}

/// A server whose answers are broken, by path.
const HOSTILE: &str = r#"
import socket, threading

listener = socket.create_server(("127.0.0.1", 8000))

def serve(stream):
    path = stream.recv(4096).split(b" ")[1:2]
    answers = {
        b"/garbage": b"hello\r\n\r\n",
        b"/head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300000 + b"\r\n\r\n",
        b"/fields": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n",
        b"/switch": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n",
        b"/close": b"",
        b"/short": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    }
    try:
        stream.sendall(answers.get(path[0] if path else b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
    except OSError:
        pass
    stream.close()

while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

/// Promise (Server): A hostile server in a sandbox gives its clients an error and harms nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_server_in_a_sandbox_is_bounded() {
    let server = start(Over::Tcp, bounds()).await;
    let client = server.client();
    serve(&server, &client, HOSTILE, 8000).await;
    for path in ["garbage", "head", "fields", "switch", "close"] {
        let request =
            format!("GET /v1/sandboxes/web/ports/8000/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let answer = raw(&server, &request).await;
        assert!(answer.starts_with("HTTP/1.1 502"), "{path}: {}", &answer[..answer.len().min(300)]);
    }
    // Its end may arrive before its head is sent.
    let short = client.send(Method::GET, "/v1/sandboxes/web/ports/8000/short", Content::None).await;
    let is_complete = match short {
        Ok(short) => short.into_body().collect().await.is_ok(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            false
        }
    };
    assert!(!is_complete, "an answer that ends early is no complete one");
    let fine = client.send(Method::GET, "/v1/sandboxes/web/ports/8000/fine", Content::None).await.unwrap();
    assert_eq!(fine.into_body().collect().await.unwrap().to_bytes(), "ok");
    for path in ["/v1/sandboxes/web/ports/0/", "/v1/sandboxes/web/ports/70000/", "/v1/sandboxes/web/tcp/8000"] {
        assert_eq!(get(&client, path).await.unwrap_err().kind(), ErrorKind::InvalidInput, "{path}");
    }
    assert_eq!(get(&client, "/v1/sandboxes/web").await.unwrap()["name"], "web");
    server.stop().await;
}

/// Promise (Server): Tunnels to ports count as requests of their tenant for as long as they last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_count_as_requests_of_their_tenant() {
    let tight = cofferdam_server::Bounds { requests_of_tenant: 4, ..bounds() };
    let server = start(Over::Tls, tight).await;
    let ((acme, _), (other, _)) = (server.keyed("acme", Scope::ALL).await, server.keyed("other", Scope::ALL).await);
    serve(&server, &acme, "import socket\ns = socket.create_server(('127.0.0.1', 7000))\nwhile True: s.accept()", 7000)
        .await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let mut open = Vec::new();
    // The request of another one counts as well, until its answer is sent.
    while open.len() < 3 {
        match acme.tunnel("web", 7000).await {
            Ok(tunnel) => open.push(tunnel),
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
    }
    assert_eq!(acme.tunnel("web", 7000).await.err().unwrap().kind(), ErrorKind::ResourceExhausted);
    assert!(get(&other, "/v1/sandboxes").await.is_ok());
    drop(open);
    while get(&acme, "/v1/sandboxes").await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the slots are never free again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}

/// Promise (Server): An upload to a port that is too large is refused as such.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_too_large_upload_to_a_port_is_named() {
    let server = start(Over::Tcp, cofferdam_server::Bounds { file: 100_000, ..bounds() }).await;
    let client = server.client();
    let reading = "import socket\ns = socket.create_server(('127.0.0.1', 7000))\nwhile True:\n  c = s.accept()[0]\n  \
                   while c.recv(65536): pass";
    serve(&server, &client, reading, 7000).await;
    let body = Content::reader(tokio::io::repeat(b'x').take(300_000));
    let error = client.send(Method::PUT, "/v1/sandboxes/web/ports/7000/x", body).await.unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.message().contains("larger than"), "{error:?}");
    server.stop().await;
}
