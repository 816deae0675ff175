//! Many clients over HTTP: authentication and ownership of sandboxes.

use std::net::SocketAddr;
use std::time::Duration;

use cofferdam_contract::ByteSize;
use cofferdam_mcp::http::{HttpConfig, Listening, Token};
use cofferdam_mcp::{Bounds, CancellationToken, McpConfig, Server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::pipe::{config, process, until_running};
use crate::revisions::meta;

const TOKEN: &str = "a-token-of-many-letters";
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

struct Served {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<cofferdam_contract::Result<()>>,
}

impl Served {
    async fn new(bounds: Bounds, token: Option<&str>) -> Self {
        Self::with(config(bounds), token).await
    }

    async fn with(config: McpConfig, token: Option<&str>) -> Self {
        let server = Server::new(process(), config).unwrap();
        let http = HttpConfig {
            address: "127.0.0.1:0".parse().unwrap(),
            token: token.map(|text| Token::new(text).unwrap()),
            hosts: Vec::new(),
            origins: Vec::new(),
        };
        let listening = Listening::bind(http).await.unwrap();
        let (address, stop) = (listening.address(), CancellationToken::new());
        let token = stop.clone();
        let task = tokio::spawn(async move { listening.serve(&server, token).await });
        Self { address, stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        timeout(TEST_TIMEOUT, self.task).await.unwrap().unwrap().unwrap();
    }

    /// Sends a raw request, and reads the complete answer.
    async fn raw(&self, text: &str) -> String {
        self.raw_from("127.0.0.1", text).await
    }

    /// Sends a raw request from an address of this host.
    async fn raw_from(&self, client: &str, text: &str) -> String {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(client.parse().unwrap(), 0)).unwrap();
        let mut stream = socket.connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(TEST_TIMEOUT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn send(&self, method: &str, headers: &[(&str, &str)], body: &str) -> String {
        self.raw(&self.text(method, headers, body)).await
    }

    fn text(&self, method: &str, headers: &[(&str, &str)], body: &str) -> String {
        let mut text = format!("{method} /mcp HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        let usual = [
            ("Host", self.address.to_string()),
            ("Content-Type", "application/json".to_owned()),
            ("Accept", "application/json, text/event-stream".to_owned()),
        ];
        for (name, value) in &usual {
            if !headers.iter().any(|(present, _)| present == name) {
                text += &format!("{name}: {value}\r\n");
            }
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text + "\r\n" + body
    }

    /// Begins a session of the previous protocol revision. Returns its id.
    async fn session(&self) -> String {
        let answer = self.send("POST", &[], &initialize()).await;
        let line = answer.lines().find(|line| line.to_ascii_lowercase().starts_with("mcp-session-id:"));
        line.unwrap_or_else(|| panic!("{answer}")).split_once(':').unwrap().1.trim().to_owned()
    }

    /// Calls a tool in a session.
    async fn tool(&self, session: &str, name: &str, arguments: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
        let headers = [("Mcp-Session-Id", session), ("MCP-Protocol-Version", "2025-11-25")];
        message(&self.send("POST", &headers, &body.to_string()).await)["result"].clone()
    }

    /// Calls a tool in a single request, as in the current revision.
    async fn stateless(&self, name: &str, arguments: Value) -> Value {
        message(&self.send("POST", &current(name), &call(name, arguments)).await)["result"].clone()
    }
}

fn initialize() -> String {
    let info =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}).to_string()
}

fn current(name: &str) -> [(&str, &str); 3] {
    [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", name)]
}

fn call(name: &str, arguments: Value) -> String {
    let params = json!({"name": name, "arguments": arguments, "_meta": meta(json!({}))});
    json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string()
}

/// Returns the answer in a body, which is JSON or a stream of events.
fn message(answer: &str) -> Value {
    let pieces = answer.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let mut messages = pieces.filter_map(|piece| serde_json::from_str::<Value>(piece).ok());
    messages.find(|message| message["id"] == 7).unwrap_or_else(|| panic!("no answer in {answer}"))
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

/// Promise (MCP server): The HTTP server refuses a wrong token, host name or origin.
#[tokio::test(flavor = "multi_thread")]
async fn only_requests_with_the_token_and_an_allowed_host_name_are_served() {
    let served = Served::new(Bounds::default(), Some(TOKEN)).await;
    let bearer = format!("Bearer {TOKEN}");
    let good = ("Authorization", bearer.as_str());
    for (headers, expected) in [
        (vec![], 401),
        (vec![("Authorization", "Bearer wrong-token-of-letters")], 401),
        (vec![("Authorization", "Basic YTpi")], 401),
        (vec![good], 200),
        (vec![good, ("Host", "evil.example")], 403),
        (vec![good, ("Host", "localhost:1")], 200),
        (vec![good, ("Origin", "https://evil.example")], 403),
        (vec![good, ("Origin", "null")], 403),
        (vec![good, ("Origin", "http://localhost:3000")], 200),
    ] {
        let answer = served.send("POST", &headers, &initialize()).await;
        assert_eq!(status(&answer), expected, "{headers:?}: {answer}");
        assert!(!answer.contains(TOKEN));
    }
    let elsewhere = served.raw("GET /other HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert_eq!(status(&elsewhere), 404);
    served.end().await;
}

/// Promise (MCP server): A sandbox belongs to its MCP session.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_belongs_to_its_session() {
    let served = Served::new(Bounds::default(), None).await;
    let (one, other) = (served.session().await, served.session().await);
    assert_ne!(one, other);
    let mine = served.tool(&one, "create_sandbox", json!({})).await["structuredContent"]["sandbox"].clone();
    let arguments = json!({"command": "echo mine", "sandbox": mine});
    assert_eq!(served.tool(&one, "run_command", arguments.clone()).await["structuredContent"]["stdout"], "mine\n");
    for tool in ["run_command", "close_sandbox"] {
        let arguments = if tool == "run_command" { arguments.clone() } else { json!({"sandbox": mine}) };
        for result in
            [served.tool(&other, tool, arguments.clone()).await, served.stateless(tool, arguments.clone()).await]
        {
            assert_eq!(result["_meta"]["cofferdam/error"]["kind"], "not-found", "{result}");
        }
    }
    let ours = served.tool(&one, "run_command", json!({"command": "echo x > f; sleep 3944.5 & true"})).await;
    assert_eq!(ours["isError"], false, "{ours}");
    until_running("3944.5", 1, Duration::from_secs(10)).await;
    let fresh = served.tool(&other, "list_files", json!({})).await;
    assert_eq!(fresh["structuredContent"]["entries"], json!([]), "{fresh}");
    // The end of a session closes its sandboxes, and no others.
    let headers = [("Mcp-Session-Id", one.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
    let deleted = served.send("DELETE", &headers, "").await;
    assert!(status(&deleted) < 300, "{deleted}");
    until_running("3944.5", 0, Duration::from_secs(10)).await;
    assert_eq!(served.tool(&other, "list_files", json!({})).await["isError"], false);
    served.end().await;
}

/// Promise (MCP server): Without MCP sessions, the id of a sandbox grants access, and no other client learns it.
#[tokio::test(flavor = "multi_thread")]
async fn without_sessions_the_id_is_the_right() {
    let served = Served::new(Bounds::default(), None).await;
    let once = served.stateless("run_command", json!({"command": "echo x > f; ls"})).await;
    assert_eq!(once["structuredContent"]["stdout"], "f\n", "{once}");
    assert_eq!(once["structuredContent"]["sandbox"], Value::Null, "{once}");
    let again = served.stateless("run_command", json!({"command": "ls"})).await;
    assert_eq!(again["structuredContent"]["stdout"], "", "{again}");
    let lost = served.stateless("write_file", json!({"path": "a", "content": "x"})).await;
    assert_eq!(lost["_meta"]["cofferdam/error"]["kind"], "invalid-input", "{lost}");
    let created = served.stateless("create_sandbox", json!({})).await["structuredContent"]["sandbox"].clone();
    served.stateless("write_file", json!({"path": "a", "content": "x", "sandbox": created})).await;
    let read = served.stateless("read_file", json!({"path": "a", "sandbox": created})).await;
    assert_eq!(read["structuredContent"]["text"], "x", "{read}");
    let live = |code: &str, sandbox: &Value| json!({"language": "python", "code": code, "session": "main", "sandbox": sandbox});
    let nowhere = json!({"language": "python", "code": "1", "session": "main"});
    let lost = served.stateless("run_code", nowhere).await;
    assert_eq!(lost["_meta"]["cofferdam/error"]["kind"], "invalid-input", "{lost}");
    served.stateless("run_code", live("x = 41", &created)).await;
    let answer = served.stateless("run_code", live("print(x + 1)", &created)).await;
    assert_eq!(answer["structuredContent"]["stdout"], "42\n", "{answer}");
    let stranger = served.session().await;
    let theirs = served.tool(&stranger, "run_code", live("x", &created)).await;
    assert_eq!(theirs["_meta"]["cofferdam/error"]["kind"], "not-found", "{theirs}");
    // The end of the connection ends the call and its interpreter.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let body = call("run_code", live("import subprocess\nsubprocess.run(['sleep', '3948.5'])", &created));
    stream.write_all(served.text("POST", &current("run_code"), &body).as_bytes()).await.unwrap();
    until_running("3948.5", 1, Duration::from_secs(30)).await;
    drop(stream);
    until_running("3948.5", 0, Duration::from_secs(5)).await;
    let gone = served.stateless("run_code", live("x", &created)).await;
    assert_eq!(gone["_meta"]["cofferdam/error"]["kind"], "closed", "{gone}");
    let closed = served.stateless("close_sandbox", json!({"sandbox": created, "session": "main"})).await;
    assert_eq!(closed["isError"], false, "{closed}");
    // No client gets the ids of others.
    let headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "resources/list")];
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "resources/list", "params": {"_meta": meta(json!({}))}});
    let listed = served.send("POST", &headers, &body.to_string()).await;
    assert_eq!(message(&listed)["result"]["resources"], json!([]), "{listed}");
    let session = served.session().await;
    let theirs = served.tool(&session, "read_file", json!({"path": "a", "sandbox": created})).await;
    assert_eq!(theirs["_meta"]["cofferdam/error"]["kind"], "not-found", "{theirs}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_the_token_block_no_other_client() {
    let served = Served::new(Bounds { connections: 8, ..Bounds::default() }, Some(TOKEN)).await;
    let bearer = format!("Bearer {TOKEN}");
    let mut silent = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: ").await.unwrap();
        silent.push(stream);
    }
    let answer = served.send("POST", &[("Authorization", &bearer)], &initialize()).await;
    assert_eq!(status(&answer), 200, "{answer}");
    // The server closes them: the first to make room, the last after the timeout.
    for mut stream in [silent.remove(0), silent.pop().unwrap()] {
        let read = timeout(Duration::from_secs(20), stream.read_to_end(&mut Vec::new())).await;
        assert!(read.is_ok(), "the connection is still open");
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_answers_with_the_time_of_a_retry() {
    let served = Served::new(Bounds { connections: 4, clients: 1, ..Bounds::default() }, None).await;
    let session = served.session().await;
    let second = served.send("POST", &[], &initialize()).await;
    assert_eq!(status(&second), 503, "{second}");
    assert!(second.to_ascii_lowercase().contains("\r\nretry-after: "), "{second}");
    let delete = [("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
    let deleted = served.send("DELETE", &delete, "").await;
    assert_eq!(status(&deleted), 204, "{deleted}");
    let session = served.session().await;
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "run_command", "arguments": {"command": "sleep 3947.5"}}});
    let mut streams = Vec::new();
    for number in 1..=3 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        let headers = [("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
        let body = body.to_string().replace("\"id\":7", &format!("\"id\":{number}"));
        stream.write_all(served.text("POST", &headers, &body).as_bytes()).await.unwrap();
        until_running("3947.5", number, Duration::from_secs(30)).await;
        streams.push(stream);
    }
    let fourth = served.send("POST", &current("tools/list"), &call("x", json!({}))).await;
    assert_eq!(status(&fourth), 429, "{fourth}");
    assert!(fourth.to_ascii_lowercase().contains("\r\nretry-after: "), "{fourth}");
    drop(streams);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn address_cannot_take_every_sandbox() {
    let bounds = Bounds { sandboxes: 4, sandboxes_of_client: 4, ..Bounds::default() };
    let served = Served::new(bounds, None).await;
    for _ in 0..3 {
        assert!(served.stateless("create_sandbox", json!({})).await["structuredContent"]["sandbox"].is_string());
    }
    let fourth = served.stateless("create_sandbox", json!({})).await;
    assert_eq!(fourth["_meta"]["cofferdam/error"]["kind"], "resource-exhausted", "{fourth}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn address_cannot_take_every_live_interpreter() {
    let mut config = config(Bounds::default());
    config.code.sessions.max_open = 4;
    let served = Served::with(config, None).await;
    let created = served.stateless("create_sandbox", json!({})).await["structuredContent"]["sandbox"].clone();
    let live = |session: &str| json!({"language": "python", "code": "1", "session": session, "sandbox": created});
    for session in ["a", "b", "c"] {
        let started = served.stateless("run_code", live(session)).await;
        assert_eq!(started["isError"], false, "{started}");
    }
    let fourth = served.stateless("run_code", live("d")).await;
    assert_eq!(fourth["_meta"]["cofferdam/error"]["kind"], "resource-exhausted", "{fourth}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn address_cannot_take_every_session() {
    let served = Served::new(Bounds { clients: 4, ..Bounds::default() }, None).await;
    for _ in 0..3 {
        served.session().await;
    }
    // Sessions in use are not evicted.
    let fourth = served.send("POST", &[], &initialize()).await;
    assert_eq!(status(&fourth), 429, "{fourth}");
    assert!(fourth.to_ascii_lowercase().contains("\r\nretry-after: "), "{fourth}");
    let begin = served.text("POST", &[], &initialize());
    for (client, expected) in [("127.0.0.2", 200), ("127.0.0.2", 503), ("127.0.0.1", 429)] {
        let answer = served.raw_from(client, &begin).await;
        assert_eq!(status(&answer), expected, "{client}: {answer}");
    }
    served.end().await;
}

/// Promise (MCP server): HTTP sessions and bodies are limited, and a client that closes its connection ends its call.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_bodies_are_bounded_and_a_client_that_goes_ends_its_call() {
    let bounds = Bounds { clients: 2, message: ByteSize::from_bytes(50_000), ..Bounds::default() };
    let served = Served::new(bounds, None).await;
    served.session().await;
    served.session().await;
    let third = served.send("POST", &[], &initialize()).await;
    assert!(status(&third) == 503 && !third.to_ascii_lowercase().contains("mcp-session-id"), "{third}");
    let large = served
        .send("POST", &current("run_command"), &call("run_command", json!({"command": "x".repeat(60_000)})))
        .await;
    assert_eq!(status(&large), 413, "{large}");
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let body = call("run_command", json!({"command": "sleep 3945.5"}));
    stream.write_all(served.text("POST", &current("run_command"), &body).as_bytes()).await.unwrap();
    until_running("3945.5", 1, Duration::from_secs(30)).await;
    drop(stream);
    until_running("3945.5", 0, Duration::from_secs(5)).await;
    served.end().await;
}

/// Promise (MCP server): A stop of the HTTP server ends its sessions, calls and sandboxes.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_signal_ends_sessions_calls_and_sandboxes() {
    let served = Served::new(Bounds::default(), None).await;
    let session = served.session().await;
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "run_command", "arguments": {"command": "sleep 3946.5"}}});
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let headers = [("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
    stream.write_all(served.text("POST", &headers, &body.to_string()).as_bytes()).await.unwrap();
    until_running("3946.5", 1, Duration::from_secs(30)).await;
    served.end().await;
    until_running("3946.5", 0, Duration::from_secs(1)).await;
}
