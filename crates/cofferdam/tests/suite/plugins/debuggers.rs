//! Clients of debuggers: the inspector protocol over a WebSocket, and the Debug Adapter Protocol.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::TIMEOUT;

/// A client of the inspector of Node.js.
pub struct Inspector(BufReader<TcpStream>, u64);

impl Inspector {
    /// Finds the target of an inspector, and attaches to it.
    pub async fn attach(port: u16) -> Self {
        let mut http = connect(port).await;
        http.write_all(b"GET /json/list HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").await.unwrap();
        let length = headers(&mut http).await.expect("a length");
        let mut body = vec![0; length];
        http.read_exact(&mut body).await.unwrap();
        let targets: Value = serde_json::from_slice(&body).unwrap();
        let url = targets[0]["webSocketDebuggerUrl"].as_str().unwrap();
        let path = url.rsplit('/').next().unwrap();
        let mut socket = connect(port).await;
        let request = format!(
            "GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        headers(&mut socket).await;
        Self(socket, 0)
    }

    /// Sends a command, and returns its result.
    pub async fn command(&mut self, method: &str, params: Value) -> Value {
        self.1 += 1;
        let id = self.1;
        let text = json!({"id": id, "method": method, "params": params}).to_string();
        // A text frame with a length of 16 bits, and a mask of zeros.
        let [high, low] = u16::try_from(text.len()).expect("a short command").to_be_bytes();
        let head = [0x81, 0x80 | 126, high, low, 0, 0, 0, 0];
        self.0.write_all(&[&head, text.as_bytes()].concat()).await.unwrap();
        self.wait_for(|message| message["id"] == id).await["result"].take()
    }

    /// Waits for an event.
    pub async fn event(&mut self, method: &str) -> Value {
        self.wait_for(|message| message["method"] == method).await["params"].take()
    }

    async fn wait_for(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let found = async {
            loop {
                let message = self.message().await;
                if is_wanted(&message) {
                    return message;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, found).await.expect("a message of the inspector")
    }

    async fn message(&mut self) -> Value {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).await.unwrap();
        let length = match head[1] {
            126 => self.0.read_u16().await.unwrap().into(),
            127 => self.0.read_u64().await.unwrap(),
            short => short.into(),
        };
        let mut body = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut body).await.unwrap();
        serde_json::from_slice(&body).unwrap_or_default()
    }
}

/// A client of the Debug Adapter Protocol.
pub struct Adapter(BufReader<TcpStream>, u64);

impl Adapter {
    /// Connects to an adapter.
    pub async fn connect(port: u16) -> Self {
        Self(connect(port).await, 0)
    }

    /// Sends a request.
    pub async fn send(&mut self, command: &str, arguments: Value) {
        self.1 += 1;
        let request = json!({"seq": self.1, "type": "request", "command": command, "arguments": arguments}).to_string();
        let text = format!("Content-Length: {}\r\n\r\n{request}", request.len());
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Sends a request, and returns the body of its response.
    pub async fn request(&mut self, command: &str, arguments: Value) -> Value {
        self.send(command, arguments).await;
        let mut response = self.wait_for("command", command).await;
        assert_eq!(response["success"], true, "{response}");
        response["body"].take()
    }

    /// Waits for an event.
    pub async fn event(&mut self, event: &str) -> Value {
        self.wait_for("event", event).await["body"].take()
    }

    async fn wait_for(&mut self, kind: &str, name: &str) -> Value {
        let found = async {
            loop {
                let mut body = vec![0; headers(&mut self.0).await.expect("a length")];
                self.0.read_exact(&mut body).await.unwrap();
                let message: Value = serde_json::from_slice(&body).unwrap();
                if message[kind] == name {
                    return message;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, found).await.unwrap_or_else(|_| panic!("no {kind} {name}"))
    }
}

async fn connect(port: u16) -> BufReader<TcpStream> {
    BufReader::new(TcpStream::connect(("127.0.0.1", port)).await.expect("the debugger listens"))
}

/// Reads headers up to the empty line. Returns the length of the body, if they name one.
async fn headers(from: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut length = None;
    loop {
        let mut line = String::new();
        let count = from.read_line(&mut line).await.unwrap();
        assert_ne!(count, 0, "the debugger closed the connection");
        if line == "\r\n" {
            return length;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok();
        }
    }
}
