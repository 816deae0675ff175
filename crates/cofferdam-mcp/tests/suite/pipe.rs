//! A scripted client over in-memory pipes, which records all messages.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, ByteSize, Limits, Protection as P, Spec};
use cofferdam_mcp::{Bounds, CancellationToken, McpConfig, Server, stdio};
use cofferdam_process::{ProcessBackend, ProcessConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf, split};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Timeout for answers on a busy host.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Capacity of a pipe.
const PIPE: usize = 1 << 20;

/// Returns a spec that accepts the protections that may be unavailable on the host of an unprivileged user.
pub fn spec() -> Spec {
    let weaker = [P::Memory, P::CpuTime, P::Processes, P::Disk];
    let limits = Limits { pids: Some(32), memory: Some(ByteSize::from_mebibytes(256)), ..Limits::default() };
    let spec = Spec::builder().limits(limits);
    weaker.into_iter().fold(spec, |spec, item| spec.allow_weaker(item)).build().expect("valid")
}

pub fn process() -> Arc<dyn Backend> {
    Arc::new(ProcessBackend::new(ProcessConfig::default()).expect("the backend starts"))
}

pub fn config(bounds: Bounds) -> McpConfig {
    McpConfig { spec: spec(), bounds, ..McpConfig::default() }
}

pub struct Client {
    input: Option<WriteHalf<DuplexStream>>,
    output: BufReader<ReadHalf<DuplexStream>>,
    pub stop: CancellationToken,
    pub served: JoinHandle<cofferdam_contract::Result<()>>,
    last: u64,
    /// Notifications since the last answer.
    pub heard: Vec<Value>,
}

impl Client {
    /// Creates a client that has sent nothing.
    pub fn silent(backend: Arc<dyn Backend>, config: McpConfig) -> Self {
        let server = Server::new(backend, config).expect("a server");
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (read, write) = split(theirs);
        let stop = CancellationToken::new();
        let token = stop.clone();
        let served = tokio::spawn(async move { stdio::serve(&server, read, write, token).await });
        let (output, input) = split(ours);
        Self { input: Some(input), output: BufReader::new(output), stop, served, last: 0, heard: Vec::new() }
    }

    /// Creates a client of the previous protocol revision, in its session.
    pub async fn new(backend: Arc<dyn Backend>, config: McpConfig) -> Self {
        let mut client = Self::silent(backend, config);
        let info =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = client.request("initialize", info).await;
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
        client.notify("notifications/initialized", json!({})).await;
        client
    }

    pub async fn processes() -> Self {
        Self::new(process(), config(Bounds::default())).await
    }

    pub async fn raw(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("open");
        input.write_all(bytes).await.expect("written");
        input.flush().await.expect("flushed");
    }

    async fn say(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes()).await;
    }

    pub async fn notify(&mut self, method: &str, params: Value) {
        self.say(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Sends a request. Returns its id.
    pub async fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let id = self.last;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        id
    }

    /// Reads the next message of any kind.
    pub async fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read =
            timeout(TEST_TIMEOUT, self.output.read_line(&mut line)).await.expect("an answer in time").expect("read");
        (read > 0).then(|| serde_json::from_str(&line).expect("JSON"))
    }

    /// Reads the answer to a request.
    pub async fn answer(&mut self, id: u64) -> Value {
        self.heard.clear();
        loop {
            let message = self.hear().await.expect("the server is running");
            if message["id"] == id {
                return message;
            }
            self.heard.push(message);
        }
    }

    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.answer(id).await
    }

    /// Calls a tool. Returns its result on success and failure.
    pub async fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": name, "arguments": arguments})).await;
        assert!(answer["result"].is_object(), "{name}: {answer}");
        answer["result"].clone()
    }

    /// Calls a tool and requires success. Returns the structured result.
    pub async fn works(&mut self, name: &str, arguments: Value) -> Value {
        let result = self.tool(name, arguments).await;
        assert_eq!(result["isError"], false, "{name}: {result}");
        result["structuredContent"].clone()
    }

    /// Calls a tool and requires failure. Returns the text for models and the kind of the error.
    pub async fn fails(&mut self, name: &str, arguments: Value) -> (String, String) {
        let result = self.tool(name, arguments).await;
        assert_eq!(result["isError"], true, "{name}: {result}");
        assert!(result["structuredContent"].is_null(), "{result}");
        let text = result["content"][0]["text"].as_str().expect("text").to_owned();
        let kind = result["_meta"]["cofferdam/error"]["kind"].as_str().expect("a kind").to_owned();
        (text, kind)
    }

    /// Closes the client's side.
    pub fn hang_up(&mut self) {
        // A half of an in-memory stream is closed with the whole stream.
        self.input = None;
    }

    /// Closes the client's side, and waits until the server has ended.
    pub async fn gone(mut self) {
        self.hang_up();
        drop(self.output);
        timeout(TEST_TIMEOUT, self.served).await.expect("in time").expect("no panic").expect("closed");
    }
}

/// Counts the processes of this host with a mark in their command line, except this one.
pub fn running(marker: &str) -> usize {
    let own = std::process::id().to_string();
    let entries = std::fs::read_dir("/proc").expect("proc");
    let holds = |name: &str| {
        let line = std::fs::read(format!("/proc/{name}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(marker)
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && *name != own && holds(name))
        .count()
}

/// Waits until this number of marked processes run.
pub async fn until_running(marker: &str, count: usize, limit: Duration) {
    let deadline = tokio::time::Instant::now() + limit;
    while running(marker) != count {
        assert!(tokio::time::Instant::now() < deadline, "{} of {marker} run, and not {count}", running(marker));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
