//! Plugins that break the protocol. Each ends in a verdict on that plugin, and the host continues to serve.

use serde_json::json;

use super::{Bench, run};

/// A program that answers `initialize` and then does one thing that breaks the protocol at the next call.
const PROGRAM: &str = r##"
import json, os, sys, time

def read():
    length = None
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            os._exit(0)
        if line == b"\r\n":
            break
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return json.loads(sys.stdin.buffer.read(length))

def raw(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]

def send(message):
    body = json.dumps(message).encode()
    raw(b"Content-Length: %d\r\n\r\n" % len(body) + body)

def frame(body):
    raw(b"Content-Length: %d\r\n\r\n" % len(body) + body)

request = read()
send({"jsonrpc": "2.0", "id": request["id"], "result": {"protocolVersion": 1, "sdk": {"name": "raw", "version": "1"}, "methods": ["x"]}})
request = read()
while request["method"] != "call":
    if request["method"] == "exit":
        os._exit(0)
    send({"jsonrpc": "2.0", "id": request.get("id"), "result": None})
    request = read()
call = request["id"]
how = request["params"]["input"]
if how == "print":
    raw(b"hello world\n")
elif how == "garbage":
    raw(os.urandom(65536))
elif how == "huge":
    raw(b"Content-Length: 99999999999\r\n\r\n")
elif how == "negative":
    raw(b"Content-Length: -5\r\n\r\n")
elif how == "twice":
    raw(b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}")
elif how == "missing":
    raw(b"Content-Type: application/json\r\n\r\n{}")
elif how == "endless-header":
    raw(b"X: " + b"a" * 100000)
elif how == "not-json":
    frame(b"{nope")
elif how == "not-utf-8":
    frame(b'"\xff\xfe"')
elif how == "deep":
    frame(b"[" * 100000 + b"]" * 100000)
elif how == "no-version":
    frame(b'{"id": 1, "result": 1}')
elif how == "foreign-id":
    send({"jsonrpc": "2.0", "id": 987654, "result": 1})
elif how == "twice-answered":
    send({"jsonrpc": "2.0", "id": call, "result": 1})
    send({"jsonrpc": "2.0", "id": call, "result": 2})
elif how == "text-id":
    send({"jsonrpc": "2.0", "id": str(call), "result": 1})
elif how == "empty-batch":
    frame(b"[]")
elif how == "big-batch":
    send([{"jsonrpc": "2.0", "method": "log"}] * 101)
elif how == "requests":
    for i in range(100000):
        send({"jsonrpc": "2.0", "id": i, "method": "sandbox.execute", "params": {"language": "python", "code": "import time; time.sleep(30)"}})
elif how == "same-id":
    for _ in range(2):
        send({"jsonrpc": "2.0", "id": 1, "method": "sandbox.execute", "params": {"language": "python", "code": "import time; time.sleep(30)"}})
elif how == "stream-flood":
    for i in range(10000):
        send({"jsonrpc": "2.0", "method": "$/stream", "params": {"id": call, "seq": i, "value": i}})
elif how == "stream-order":
    send({"jsonrpc": "2.0", "method": "$/stream", "params": {"id": call, "seq": 5, "value": 1}})
elif how == "unread":
    send({"jsonrpc": "2.0", "id": 0, "method": "kv.set", "params": {"key": "k", "value": "x" * 1000000}})
    read()
    for i in range(1, 200):
        send({"jsonrpc": "2.0", "id": i, "method": "kv.get", "params": {"key": "k"}})
elif how == "closed":
    os.close(0)
    for i in range(3):
        send({"jsonrpc": "2.0", "id": i, "method": "config.get"})
elif how == "complex":
    frame(b"[" + b",".join([b"{}"] * 400000) + b"]")
elif how == "flood":
    while True:
        raw(b"\0" * (1 << 20))
time.sleep(60)
"##;

/// Promise (Plugins): A plugin that breaks the protocol is ended with a verdict, and the host serves others meanwhile.
#[test]
fn a_broken_protocol_ends_in_a_verdict_on_the_plugin() {
    let cases = [
        ("print", "bad-frame"),
        ("garbage", "bad-frame"),
        ("huge", "too-large"),
        ("negative", "bad-frame"),
        ("twice", "bad-frame"),
        ("missing", "bad-frame"),
        ("endless-header", "bad-frame"),
        ("not-json", "not-json"),
        ("not-utf-8", "not-json"),
        ("deep", "too-deep"),
        ("no-version", "bad-message"),
        ("foreign-id", "unknown-id"),
        ("twice-answered", "unknown-id"),
        ("text-id", "unknown-id"),
        ("empty-batch", "bad-message"),
        ("big-batch", "bad-message"),
        ("same-id", "bad-message"),
        ("stream-flood", "flood"),
        ("stream-order", "bad-message"),
        ("unread", "flood"),
        ("closed", "closed-input"),
        ("complex", "too-complex"),
        ("flood", "bad-frame"),
    ];
    run(|| async {
        let bench = Bench::new();
        let echo = "def activate(plugin):\n    plugin.method('echo')(lambda ctx, input: input)\n";
        bench.load_python("echo", "[methods.echo]\n", echo).await;
        for (count, (how, verdict)) in cases.into_iter().enumerate() {
            let name = format!("p{count}");
            let manifest = format!(
                "manifest = 1\nname = \"{name}\"\nversion = \"1.0.0\"\nruntime = \"command\"\nentry = [\"python3\", \"-u\", \"main.py\"]\npermissions = [\"sandbox.execute\"]\n[methods.x]\ntimeout = \"30s\"\n"
            );
            bench.load(&bench.package(&name, &manifest, &[("main.py", PROGRAM)])).await;
            let options = cofferdam::plugins::CallOptions { stream: true, ..Default::default() };
            let call = bench.host.call(&name, "x", json!(how), options);
            let lines = bench.wait_for("plugin.protocol-violation", count + 1).await;
            assert_eq!(lines[count]["rule"], verdict, "{how}: {}", lines[count]);
            assert_eq!(lines[count]["plugin"], name.as_str());
            drop(call);
            assert_eq!(bench.call("echo", "echo", json!({"a": 1})).await, Ok(json!({"a": 1})), "{how}");
        }
        bench.end().await;
    });
}

/// Promise (Plugins): A plugin that does not read its input is ended when its call takes too long.
#[test]
fn a_plugin_that_reads_nothing_is_ended() {
    run(|| async {
        let bench = Bench::new();
        let manifest = "manifest = 1\nname = \"deaf\"\nversion = \"1.0.0\"\nruntime = \"command\"\nentry = [\"python3\", \"-u\", \"main.py\"]\n[sandbox.timeouts]\ngrace = \"200ms\"\n[methods.x]\ntimeout = \"1s\"\n";
        // It answers `initialize` only.
        let program = PROGRAM.replace("request = read()\nwhile", "time.sleep(600)\nwhile");
        bench.load(&bench.package("deaf", manifest, &[("main.py", &program)])).await;
        let long = json!("x".repeat(1_000_000));
        let calls = [0; 12].map(|_| bench.host.call("deaf", "x", long.clone(), Default::default()));
        for call in calls {
            let error = call.result().await.unwrap_err();
            assert!(matches!(super::kind(&Err(error.clone())).as_str(), "timeout" | "unavailable"), "{error:?}");
        }
        bench.end().await;
    });
}

/// Promise (Plugins): A caller with a short time does not end the plugin that it calls, and long identifiers of a plugin do
/// not reach others.
#[test]
fn an_invoker_cannot_end_the_plugin_that_it_invokes() {
    run(|| async {
        let bench = Bench::new();
        let victim = "
import time

def activate(plugin):
    @plugin.method
    def work(ctx, seconds=0.0):
        time.sleep(seconds)
        return 'done'
";
        bench.load_python("victim", "[methods.work]\n", victim).await;
        bench.call("victim", "work", json!({})).await.unwrap();
        let invoker = "
def activate(plugin):
    @plugin.method
    def pester(ctx):
        kinds = []
        for timeout, seconds in [('0s', 0.0), ('1ms', 0.5)] * 10:
            try:
                ctx.invoke('victim', 'work', {'seconds': seconds}, timeout=timeout)
            except Exception as error:
                kinds.append(type(error).__name__)
        return kinds
";
        let manifest = "permissions = [\"invoke\"]\n[methods.pester]\n";
        bench.load_python("invoker", manifest, invoker).await;
        let options = cofferdam::plugins::CallOptions {
            context: cofferdam::plugins::Context { request_id: "r".repeat(128), ..Default::default() },
            ..Default::default()
        };
        let kinds = bench.host.call("invoker", "pester", json!({}), options).result().await.unwrap();
        assert!(kinds.as_array().unwrap().iter().all(|kind| kind == "Timeout"), "{kinds}");
        assert_eq!(bench.call("victim", "work", json!({})).await, Ok(json!("done")));
        let starts = bench.host.plugins().into_iter().find(|status| status.name == "victim").unwrap().starts;
        assert_eq!(starts, 1, "{:?}", bench.events("plugin.crashed"));
        bench.end().await;
    });
}
