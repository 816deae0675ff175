//! Calls, their context, permissions and files.

use std::fs;
use std::time::Duration;

use cofferdam::plugins::{CallOptions, Context, LoadOptions, Mode, StreamItem};
use cofferdam_plugin::Strategy;
use serde_json::{Value, json};

use super::{Bench, kind, run};

const ECHO: &str = "
def activate(plugin):
    @plugin.method
    def echo(ctx, input):
        return input
";

/// Promise (Plugins): A call returns what the method returns, and its input and output fit their schemas.
#[test]
fn calls_return_results_that_fit_their_schemas() {
    run(|| async {
        let bench = Bench::new();
        let manifest =
            "[methods.echo]\ninput = { type = \"object\" }\noutput = { type = \"object\", required = [\"a\"] }\n";
        bench.load_python("echo", manifest, ECHO).await;
        let input = json!({"a": ["ü", 1.5, null, {"b": true}], "long": "x".repeat(1 << 20)});
        assert_eq!(bench.call("echo", "echo", input.clone()).await, Ok(input));
        assert_eq!(kind(&bench.call("echo", "echo", json!([])).await), "invalid-params");
        assert_eq!(kind(&bench.call("echo", "echo", json!({})).await), "plugin-failed");
        assert_eq!(kind(&bench.call("echo", "other", json!({})).await), "method-not-found");
        assert_eq!(kind(&bench.call("other", "echo", json!({})).await), "not-found");
        bench.end().await;
    });
}

/// Promise (Plugins): Each call and each event in the life of a plugin is a JSON line with a correlation identifier
/// (P2, P11, P12).
#[test]
fn p12_each_call_and_event_is_a_json_line_with_a_correlation_id() {
    run(|| async {
        let bench = Bench::new();
        let code = "
def activate(plugin):
    @plugin.method
    def work(ctx):
        ctx.log.info('working', step=1)
        ctx.kv.set('a', 1)
        print('printed')
        return ctx.request_id
";
        bench.load_python("work", "[methods.work]\n", code).await;
        let id = bench.call("work", "work", json!({})).await.unwrap();
        for event in ["call.started", "plugin.log", "plugin.request", "call.ended"] {
            let lines = bench.wait_for(event, 1).await;
            assert_eq!(lines[0]["correlationId"], id, "{event}");
            assert_eq!(lines[0]["plugin"], "work");
            assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'));
        }
        assert_eq!(bench.events("plugin.log")[0]["fields"], json!({"step": 1}));
        assert_eq!(bench.wait_for("plugin.output", 1).await[0]["text"], "printed");
        bench.host.drain(None).await;
        let states: Vec<Value> = bench.events("plugin.state").iter().map(|line| line["to"].clone()).collect();
        assert_eq!(states, ["starting", "ready", "draining", "stopped"]);
        for event in ["plugin.loaded", "plugin.started", "plugin.ended"] {
            assert_eq!(bench.events(event).len(), 1, "{event}");
        }
    });
}

/// Promise (Plugins): A request without its permission is denied, and the log names the reason and the path (P3, P11).
#[test]
fn p11_a_forbidden_action_is_denied_and_logged_with_reason_and_path() {
    run(|| async {
        let bench = Bench::new();
        let manifest = "permissions = [\"fs.read\", \"fs.write\"]\n[sandbox]\nfsAccess = { read = [\"data\"], write = [\"data\"] }\n[methods.try]\n";
        let code = "
def activate(plugin):
    @plugin.method('try')
    def attempt(ctx, method, params):
        service, name = method.split('.')
        getattr(getattr(ctx, service), name)(*params)
        return 'done'
";
        bench.load_python("try", manifest, code).await;
        let attempt = async |method: &str, params: Value| {
            bench.call("try", "try", json!({"method": method, "params": params})).await
        };
        assert_eq!(attempt("fs.write", json!(["data/a.txt", "hello"])).await, Ok(json!("done")));
        assert_eq!(attempt("fs.read", json!(["data/a.txt"])).await, Ok(json!("done")));
        let cases = [
            ("fs.read", json!(["/etc/passwd"]), "fs.read", "/etc/passwd"),
            ("fs.read", json!(["data/../other"]), "fs.read", "data/../other"),
            ("fs.write", json!(["other/a", "x"]), "fs.write", "other/a"),
            ("secrets.get", json!(["TOKEN"]), "secrets.read", "TOKEN"),
            ("events.publish", json!(["a.b"]), "events.publish", "a.b"),
            ("net.fetch", json!(["https://a.example/"]), "net", "https://a.example/"),
            ("calendar.read", json!(["x"]), "calendar.read", ""),
        ];
        for (count, (method, params, permission, target)) in cases.into_iter().enumerate() {
            let error = attempt(method, params).await.unwrap_err();
            assert_eq!(json!(error.kind), "permission-denied", "{method}: {error}");
            let lines = bench.wait_for("plugin.denied", count + 1).await;
            let data = &lines[count]["error"]["data"];
            assert_eq!((&data["permission"], &data["target"]), (&json!(permission), &json!(target)));
            assert!(data["remedy"].as_str().unwrap().starts_with("add "), "{data}");
            assert!(lines[count]["correlationId"].is_string());
        }
        bench.end().await;
    });
}

/// Promise (Plugins): The files of an allowed directory are reached, and no symbolic link leads out of it (P3, P11).
#[test]
fn p11_allowlists_hold() {
    run(|| async {
        let bench = Bench::new();
        let outside = bench.directory.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "s").unwrap();
        fs::create_dir_all(bench.directory.path().join("shared")).unwrap();
        fs::write(bench.directory.path().join("shared/a"), "shared").unwrap();
        let shared = bench.directory.path().join("shared").display().to_string();
        let manifest = format!(
            "permissions = [\"fs.read\", \"fs.write\"]\n[sandbox]\nfsAccess = {{ read = [\"data\", \"{shared}\"], write = [\"data\"] }}\n[methods.read]\n[methods.write]\n"
        );
        let code = "
def activate(plugin):
    @plugin.method
    def read(ctx, path):
        return ctx.fs.read_text(path)
    @plugin.method
    def write(ctx, path):
        return ctx.fs.write(path, 'x')
";
        bench.load_python("files", &manifest, code).await;
        let on = async |method: &str, path: &str| bench.call("files", method, json!({"path": path})).await;
        assert_eq!(on("read", &format!("{shared}/a")).await, Ok(json!("shared")));
        assert_eq!(kind(&on("write", &format!("{shared}/a")).await), "permission-denied");
        assert_eq!(on("write", "data/x").await, Ok(json!(1)));
        let data = bench.data("files").join("data");
        std::os::unix::fs::symlink(&outside, data.join("out")).unwrap();
        assert_ne!(kind(&on("read", "data/out/secret").await), "ok: \"s\"");
        assert_eq!(kind(&on("write", "data/out/new").await), "permission-denied");
        assert!(!outside.join("new").exists());
        bench.end().await;
    });
}

/// Promise (Plugins): A plugin without permissions reads its own package, and sees neither the host's files nor its
/// environment (P1, P7, P12).
#[test]
fn p12_plugin_sees_its_own_package_only() {
    run(|| async {
        let bench = Bench::new();
        let code = "
import os

def activate(plugin):
    @plugin.method
    def look(ctx, path):
        with open('data.txt') as own:
            text = own.read()
        try:
            open('written.txt', 'w')
            writable = True
        except OSError:
            writable = False
        return {'own': text, 'writable': writable, 'sees': os.path.exists(path), 'environment': sorted(os.environ)}
";
        let package = bench.python("look", "[methods.look]\n", code);
        fs::write(package.join("data.txt"), "own").unwrap();
        bench.load(&package).await;
        let state = bench.directory.path().join("state").display().to_string();
        let seen = bench.call("look", "look", json!({"path": state})).await.unwrap();
        assert_eq!((&seen["own"], &seen["writable"], &seen["sees"]), (&json!("own"), &json!(false), &json!(false)));
        let environment = seen["environment"].as_array().unwrap();
        assert!(!environment.iter().any(|name| name == "CARGO_MANIFEST_DIR" || name == "USER"), "{environment:?}");
        bench.end().await;
    });
}

/// Promise (Plugins): Items of a streaming result arrive in order, and a slow caller slows the plugin down.
#[test]
fn p12_streams_arrive_in_order_with_back_pressure() {
    run(|| async {
        let bench = Bench::new();
        let code = "
def activate(plugin):
    @plugin.method
    def count(ctx, n):
        for i in range(n):
            if i % 100 == 0:
                ctx.log.info('at', i=i)
                ctx.progress('counting', 100 * i // n)
            yield {'i': i, 'pad': 'x' * 1000}
        return n
";
        bench.load_python("stream", "[methods.count]\ntimeout = \"60s\"\n", code).await;
        let options = CallOptions { stream: true, ..CallOptions::default() };
        let mut call = bench.host.call("stream", "count", json!({"n": 2000}), options);
        let (mut next, mut progress) = (0, 0);
        while let Some(item) = call.next().await {
            match item {
                StreamItem::Item(item) => {
                    assert_eq!(item["i"], next);
                    next += 1;
                    if next == 10 {
                        tokio::time::sleep(Duration::from_millis(500)).await;
                        let sent = bench.events("plugin.log").len();
                        assert!(sent <= 3, "the plugin is at {sent}00 while the caller is at 10");
                    }
                }
                StreamItem::Progress(_) => progress += 1,
            }
        }
        assert_eq!(call.result().await, Ok(json!(2000)));
        assert_eq!(next, 2000);
        assert!(progress > 0);
        let calls = bench.call("stream", "count", json!({"n": 500})).await;
        assert_eq!(calls, Ok(json!(500)), "a caller that takes no items");
        bench.end().await;
    });
}

/// Promise (Plugins): The context of a call crosses with its identifiers and metadata (B2).
#[test]
fn b2_the_context_crosses() {
    run(|| async {
        let bench = Bench::new();
        let code = "
def activate(plugin):
    @plugin.method
    def show(ctx):
        return {'id': ctx.request_id, 'tenant': ctx.tenant, 'trace': ctx.traceparent, 'metadata': ctx.metadata,
                'depth': ctx.depth, 'dropped': ctx.dropped, 'config': ctx.config}
";
        let manifest = "[configSchema]\ntype = \"object\"\n[configSchema.properties.unit]\ntype = \"string\"\ndefault = \"celsius\"\n[configSchema.properties.days]\ntype = \"integer\"\n[methods.show]\n";
        let package = bench.python("show", manifest, code);
        let wrong = LoadOptions { config: Some(json!({"days": "three"})), ..LoadOptions::default() };
        assert!(bench.host.load(&package, wrong).await.unwrap_err().to_string().contains("/days"));
        let right = LoadOptions { config: Some(json!({"days": 3})), ..LoadOptions::default() };
        bench.host.load(&package, right).await.unwrap();
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = Context {
            request_id: "request-1".to_owned(),
            tenant: Some("acme".to_owned()),
            traceparent: Some(trace.to_owned()),
            metadata: json!({"a": {"b": 1}, "big": "x".repeat(70_000)}).as_object().unwrap().clone(),
            ..Context::default()
        };
        let options = CallOptions { context, ..CallOptions::default() };
        let mut shown = bench.host.call("show", "show", json!({}), options).result().await.unwrap();
        // The plugin gets the trace of the caller and the span of the call.
        let own = shown["trace"].take();
        let span = &bench.events("span")[0]["span"];
        assert_eq!(own, format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", span["spanId"].as_str().unwrap()));
        assert_eq!(
            (&span["parentSpanId"], &span["name"]),
            (&json!("b7ad6b7169203331"), &json!("plugin.call show.show"))
        );
        assert_eq!(
            shown,
            json!({
                "id": "request-1", "tenant": "acme", "trace": null, "metadata": {"a": {"b": 1}}, "depth": 0,
                "dropped": ["/metadata/big"], "config": {"unit": "celsius", "days": 3},
            })
        );
        bench.end().await;
    });
}

/// Promise (Plugins): The strategies without isolation run the same plugin in development mode, and are refused in
/// production mode (P1, B5, B9).
#[test]
fn b9_the_same_plugin_runs_in_both_modes() {
    run(|| async {
        for strategy in [Strategy::Thread, Strategy::Inline] {
            let options = || LoadOptions { strategy: Some(strategy), ..LoadOptions::default() };
            let bench = Bench::new();
            let package = bench.python("echo", "[methods.echo]\n", ECHO);
            let refused = bench.host.load(&package, options()).await.unwrap_err();
            assert!(refused.to_string().contains("no isolation"), "{refused}");
            bench.end().await;
            let bench = Bench::with_mode(Mode::Development);
            let package = bench.python("echo", "[methods.echo]\n", ECHO);
            bench.host.load(&package, options()).await.unwrap();
            assert_eq!(bench.events("plugin.no-isolation").len(), 1);
            assert_eq!(bench.call("echo", "echo", json!({"a": 1})).await, Ok(json!({"a": 1})));
            bench.end().await;
        }
    });
}

/// Promise (Plugins): Node.js plugins run like those in Python, and their stack traces name the line that failed.
#[test]
fn node_plugins_run() {
    if std::process::Command::new("node").arg("--version").output().is_err() {
        println!("SKIP node_plugins_run: there is no node");
        return;
    }
    run(|| async {
        let bench = Bench::new();
        let manifest = "manifest = 1\nname = \"node\"\nversion = \"1.0.0\"\nruntime = \"node\"\nentry = \"main.js:activate\"\n[methods.hello]\n[methods.fail]\n[methods.kv]\n";
        let code = "
exports.activate = (plugin) => {
    plugin.method('hello', async ({ name }) => { console.log('printed'); return { greeting: `Hello, ${name}!` }; });
    plugin.method('kv', async ({ value }, ctx) => { await ctx.kv.set('a', value); return (await ctx.kv.get('a')).value; });
    plugin.method('fail', async () => { throw new TypeError('wrong'); });
};
";
        bench.load(&bench.package("node", manifest, &[("main.js", code)])).await;
        assert_eq!(bench.call("node", "hello", json!({"name": "Ada"})).await, Ok(json!({"greeting": "Hello, Ada!"})));
        assert_eq!(bench.wait_for("plugin.output", 1).await[0]["text"], "printed");
        assert_eq!(bench.call("node", "kv", json!({"value": [1, "ü"]})).await, Ok(json!([1, "ü"])));
        let error = bench.call("node", "fail", json!({})).await.unwrap_err();
        assert_eq!(error.data["type"], "TypeError", "{error:?}");
        assert!(error.data["stack"].as_str().unwrap().contains("main.js:5"), "{error:?}");
        bench.end().await;
    });
}

/// Promise (Plugins): A denied request is in the audit log, with plugin, permission and target.
#[test]
fn denials_are_in_the_audit_log() {
    run(|| async {
        let mut bench = Bench::new();
        let log = bench.directory.path().join("audit");
        let audit = format!("{{\"directory\": {:?}, \"sync\": \"never\"}}", log.display().to_string());
        bench.reopen_with(serde_json::from_str(&audit).unwrap()).await;
        let code = "
def activate(plugin):
    @plugin.method
    def read(ctx):
        return ctx.fs.read('/etc/shadow')
";
        bench.load_python("nosy", "[methods.read]\n", code).await;
        assert_eq!(kind(&bench.call("nosy", "read", json!({})).await), "permission-denied");
        bench.host.drain(None).await;
        let lines = fs::read_to_string(log.join("audit-00000001.jsonl")).unwrap();
        let denied = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let denied: Vec<Value> = denied.filter(|line| line["kind"] == "plugin-denied").collect();
        assert_eq!(denied.len(), 1, "{lines}");
        let fields = ["plugin", "method", "permission", "target"].map(|name| denied[0][name].as_str().unwrap());
        assert_eq!(fields, ["nosy", "fs.read", "fs.read", "/etc/shadow"]);
    });
}

/// Promise (Plugins): Calls, their requests and the plugins that they invoke are spans of one trace.
#[test]
fn calls_and_requests_are_spans_of_one_trace() {
    run(|| async {
        let bench = Bench::new();
        let code = "
def activate(plugin):
    @plugin.method
    def outer(ctx):
        ctx.kv.set('a', 1)
        return ctx.invoke('inner', 'outer', {})
";
        bench.load_python("outer", "permissions = [\"invoke\"]\n[methods.outer]\n", code).await;
        bench
            .load_python(
                "inner",
                "[methods.outer]\n",
                "def activate(plugin):\n    plugin.method('outer')(lambda ctx: 1)\n",
            )
            .await;
        assert_eq!(bench.call("outer", "outer", json!({})).await, Ok(json!(1)));
        let spans: Vec<Value> = bench.events("span").into_iter().map(|line| line["span"].clone()).collect();
        let named =
            |name: &str| spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("{name}: {spans:#?}"));
        let call = named("plugin.call outer.outer");
        let (kv, invoke) = (named("plugin.request kv.set"), named("plugin.request invoke"));
        let inner = named("plugin.call inner.outer");
        assert_eq!((&kv["parentSpanId"], &invoke["parentSpanId"]), (&call["spanId"], &call["spanId"]));
        assert_eq!(inner["parentSpanId"], call["spanId"]);
        assert!(spans.iter().all(|span| span["traceId"] == call["traceId"]), "{spans:#?}");
        bench.end().await;
    });
}

/// Promise (Plugins): Functions, objects and cycles in the metadata of an invocation are dropped, and the callee's context
/// names them (B2).
#[test]
fn b2_values_that_cannot_cross_are_dropped_and_named() {
    run(|| async {
        let bench = Bench::new();
        let show = "
def activate(plugin):
    @plugin.method
    def show(ctx):
        return [ctx.metadata, sorted(ctx.dropped)]
";
        bench.load_python("show", "[methods.show]\n", show).await;
        let python = "
def activate(plugin):
    @plugin.method
    def call(ctx):
        cycle = {'x': 1}
        cycle['self'] = cycle
        metadata = {'ok': [1, None, 'a'], 'f': print, 'o': object(), 'cycle': cycle, 'n': float('nan')}
        return ctx.invoke('show', 'show', {}, metadata=metadata)
";
        bench.load_python("python", "permissions = [\"invoke\"]\n[methods.call]\n", python).await;
        let manifest = "manifest = 1\nname = \"node\"\nversion = \"1.0.0\"\nruntime = \"node\"\nentry = \"main.js:activate\"\npermissions = [\"invoke\"]\n[methods.call]\n";
        let node = "
exports.activate = (plugin) => plugin.method('call', async (input, ctx) => {
    const cycle = { x: 1 };
    cycle.self = cycle;
    const metadata = { ok: [1, null, 'a'], f() {}, o: new Map(), cycle, n: NaN };
    return ctx.invoke('show', 'show', {}, { metadata });
});
";
        bench.load(&bench.package("node", manifest, &[("main.js", node)])).await;
        let dropped = ["/metadata/cycle/self", "/metadata/f", "/metadata/n", "/metadata/o"];
        let expected = json!([{"ok": [1, null, "a"], "cycle": {"x": 1}}, dropped]);
        assert_eq!(bench.call("python", "call", json!({})).await, Ok(expected.clone()));
        if std::process::Command::new("node").arg("--version").output().is_ok() {
            assert_eq!(bench.call("node", "call", json!({})).await, Ok(expected));
        }
        bench.end().await;
    });
}
