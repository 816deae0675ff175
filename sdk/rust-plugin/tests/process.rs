//! The SDK in a process of its own: the conformance plugin answers frames of this test.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

struct Host {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Host {
    /// Starts the plugin.
    fn start() -> Self {
        let mut program = std::env::current_exe().unwrap();
        program.pop();
        program.pop();
        let mut command = Command::new(program.join("examples/conformance"));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the example");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    /// Starts and initializes the plugin.
    fn ready() -> Self {
        let mut host = Self::start();
        let params = json!({"protocolVersion": 1, "config": {}, "maxMessage": 8 << 20});
        host.send(&json!({"jsonrpc": "2.0", "id": "init", "method": "initialize", "params": params}));
        assert_eq!(host.receive()["result"]["protocolVersion"], 1);
        host
    }

    fn send(&mut self, message: &Value) {
        self.write(frame(&message.to_string()).as_bytes());
    }

    fn write(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn call(&mut self, id: u64, method: &str, input: Value) {
        let params = json!({"method": method, "input": input});
        let correlation = format!("c-{id}");
        self.send(&json!({
            "jsonrpc": "2.0", "id": id, "method": "call", "params": params, "correlationId": correlation,
        }));
    }

    fn ping(&mut self, id: u64) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"}));
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let length = line.trim_end().strip_prefix("Content-Length: ").expect(&line).parse().unwrap();
        self.output.read_line(&mut line).unwrap();
        let mut body = vec![0; length];
        self.output.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// Ends the input and returns the exit status and the log.
    fn finish(mut self) -> (Option<i32>, String) {
        drop(self.input.take());
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn frame(body: &str) -> String {
    format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn calls_return_results_and_errors() {
    let mut host = Host::ready();
    host.call(1, "add", json!({"a": 1, "b": 2}));
    let answer = host.receive();
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 1, "correlationId": "c-1", "result": 3}));
    host.call(2, "add", json!({"a": 1}));
    assert_eq!(host.receive()["error"]["data"]["kind"], "invalid-params");
    host.call(3, "fail", json!({"message": "broken"}));
    let error = &host.receive()["error"];
    assert_eq!(error["code"], -32003);
    assert_eq!(error["message"], "broken");
    assert_eq!(error["data"]["type"], "std::io::error::Error");
    host.call(4, "none", Value::Null);
    assert_eq!(host.receive()["error"]["code"], -32601);
}

#[test]
fn ping_is_answered_while_all_workers_are_busy() {
    let mut host = Host::ready();
    for id in 0..20 {
        host.call(id, "sleep", json!({"seconds": 60}));
    }
    host.ping(100);
    assert_eq!(host.receive()["id"], 100);
    for id in 0..20 {
        host.notify("$/cancelRequest", json!({"id": id}));
    }
    let mut ids: Vec<_> = (0..20)
        .map(|_| host.receive())
        .map(|answer| {
            assert_eq!(answer["error"]["code"], -32800);
            answer["id"].as_u64().unwrap()
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
}

#[test]
fn streams_wait_for_acknowledgements() {
    let mut host = Host::ready();
    host.call(1, "count", json!({"n": 65}));
    for seq in 0..64 {
        assert_eq!(host.receive()["params"], json!({"id": 1, "seq": seq, "value": seq}));
    }
    host.ping(2);
    assert_eq!(host.receive()["id"], 2);
    host.notify("$/streamAck", json!({"id": 1, "count": 1}));
    assert_eq!(host.receive()["params"]["seq"], 64);
    assert_eq!(host.receive()["result"], 65);
}

#[test]
fn cancelling_a_call_cancels_its_requests() {
    let mut host = Host::ready();
    host.call(1, "denied", Value::Null);
    let request = host.receive();
    assert_eq!(request["method"], "fs.read");
    assert_eq!(request["correlationId"], "c-1");
    host.notify("$/cancelRequest", json!({"id": 1}));
    let cancel = host.receive();
    assert_eq!((&cancel["method"], &cancel["params"]["id"]), (&json!("$/cancelRequest"), &request["id"]));
    let error = json!({"code": -32800, "message": "cancelled"});
    host.send(&json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
    assert_eq!(host.receive()["result"], "cancelled");
}

#[test]
fn prints_reach_the_log_only() {
    let mut host = Host::ready();
    host.call(1, "print", json!({"text": "a print"}));
    assert_eq!(host.receive()["result"], Value::Null);
    host.notify("exit", Value::Null);
    assert_eq!(host.finish(), (Some(0), "a print\n".to_owned()));
}

#[test]
fn results_beyond_the_limit_are_errors() {
    let mut host = Host::start();
    let params = json!({"protocolVersion": 1, "maxMessage": 1000});
    host.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}));
    host.receive();
    host.call(1, "echo", json!("x".repeat(1000)));
    assert_eq!(host.receive()["error"]["data"]["kind"], "limit");
}

#[test]
fn calls_before_initialization_are_rejected() {
    let mut host = Host::start();
    host.call(1, "echo", Value::Null);
    assert_eq!(host.receive()["error"]["code"], -32600);
}

#[test]
fn broken_messages_end_the_process() {
    let long_id = json!({"jsonrpc": "2.0", "id": "x".repeat(129), "method": "ping"}).to_string();
    let params = json!({"method": "sleep", "input": {"seconds": 60}});
    let duplicate = json!({"jsonrpc": "2.0", "id": 1, "method": "call", "params": params});
    let cases = [
        ("Content-Length: x\r\n\r\n".to_owned(), "bad-frame"),
        (frame("{"), "not-json"),
        (frame("1"), "bad-message"),
        (frame("[]"), "bad-message"),
        (frame(&long_id), "bad-message"),
        (frame(&json!([duplicate, duplicate]).to_string()), "bad-message"),
        (frame(&json!(vec![1; 101]).to_string()), "bad-message"),
        (frame(r#"{"jsonrpc":"2.0","id":9,"result":1}"#), "unknown-id"),
    ];
    for (bytes, verdict) in cases {
        let mut host = Host::ready();
        host.write(bytes.as_bytes());
        assert_eq!(host.finish(), (Some(65), format!("the host broke the protocol: {verdict}\n")), "{bytes}");
    }
}

#[test]
fn more_requests_than_the_limit_end_the_process() {
    let mut host = Host::ready();
    let calls: String = (0..257)
        .map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "call", "params": {"method": "sleep", "input": {"seconds": 60}}}))
        .map(|call| frame(&call.to_string()))
        .collect();
    host.write(calls.as_bytes());
    assert_eq!(host.finish(), (Some(65), "the host broke the protocol: flood\n".to_owned()));
}

#[test]
fn the_end_of_the_input_ends_a_busy_process() {
    let mut host = Host::ready();
    host.call(1, "sleep", json!({"seconds": 60}));
    assert_eq!(host.finish(), (Some(0), String::new()));
}
