//! The services behind the SDK, used by real plugins.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bench, kind, run};

const WORKER: &str = "
def activate(plugin):
    @plugin.method
    def publish(ctx, name, payload):
        return ctx.events.publish(name, payload)['subscribers']
    @plugin.method
    def subscribe(ctx, pattern):
        return ctx.events.subscribe(pattern)
    @plugin.method
    def got(ctx, key):
        return ctx.kv.get(key)
    @plugin.method
    def timer(ctx, at=None, every=None):
        return ctx.scheduler.create('tick', at=at, every=every, payload={'n': 1})['id']
    @plugin.on_timer('tick')
    def tick(ctx, timer):
        ctx.kv.set('ticks', (ctx.kv.get('ticks') or 0) + 1)
    @plugin.method
    def invoke(ctx, plugin, method, input):
        return ctx.invoke(plugin, method, input)
    @plugin.method
    def execute(ctx, code):
        return ctx.execute('python', code)
    @plugin.method
    def secret(ctx, name):
        return ctx.secrets.get(name)
    @plugin.method
    def artifact(ctx, text):
        digest = ctx.artifacts.write('report.txt', text)['digest']
        return ctx.artifacts.read(digest=digest)['content'].decode()
";
/// The handler subscribes when the plugin starts.
const SUBSCRIBER: &str = "
    @plugin.on_event('news.**')
    def on_news(ctx, event):
        attempts = ctx.kv.get('attempts') or 0
        ctx.kv.set('attempts', attempts + 1)
        if attempts == 0:
            raise ValueError('not yet')
        ctx.kv.set('got', [event.name, event.payload])
";
const METHODS: &str = "
[methods.publish]
[methods.subscribe]
[methods.got]
[methods.timer]
[methods.invoke]
[methods.execute]
[methods.secret]
[methods.artifact]
";

async fn until(bench: &Bench, plugin: &str, key: &str, expected: impl Fn(&Value) -> bool) -> Value {
    let found = tokio::time::timeout(super::TIMEOUT, async {
        loop {
            let value = bench.call(plugin, "got", json!({"key": key})).await.unwrap();
            if expected(&value) {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("{key} of {plugin}"))
}

/// Promise (Plugins): Events reach the plugins that subscribed, and a delivery that fails is repeated (B3).
#[test]
fn b3_events_are_delivered_at_least_once() {
    run(|| async {
        let bench = Bench::new();
        let publisher = format!("permissions = [\"events.publish\"]\n[events]\npublish = [\"news.*\"]\n{METHODS}");
        let subscriber =
            format!("permissions = [\"events.subscribe\"]\n[events]\nsubscribe = [\"news.**\"]\n{METHODS}");
        bench.load_python("publisher", &publisher, WORKER).await;
        bench.load_python("subscriber", &subscriber, &format!("{WORKER}{SUBSCRIBER}")).await;
        bench.host.prepare("subscriber").await.unwrap();
        bench.wait_for("plugin.started", 1).await;
        let publish = json!({"name": "news.local", "payload": {"a": 1}});
        assert_eq!(bench.call("publisher", "publish", publish).await, Ok(json!(1)));
        let got = until(&bench, "subscriber", "got", |value| !value.is_null()).await;
        assert_eq!(got, json!(["news.local", {"a": 1}]));
        let other = json!({"name": "other.local", "payload": null});
        assert_eq!(kind(&bench.call("publisher", "publish", other).await), "permission-denied");
        bench.end().await;
    });
}

/// Promise (Plugins): Timers fire, and survive a restart of the host.
#[test]
fn timers_survive_a_restart_of_the_host() {
    run(|| async {
        let mut bench = Bench::new();
        let manifest = format!("permissions = [\"scheduler.create\"]\n{METHODS}");
        let package = bench.python("clock", &manifest, WORKER);
        bench.load(&package).await;
        bench.call("clock", "timer", json!({"every": "1s"})).await.unwrap();
        let before = until(&bench, "clock", "ticks", |value| value.as_u64() >= Some(1)).await;
        bench.reopen().await;
        bench.load(&package).await;
        until(&bench, "clock", "ticks", |value| value.as_u64() > before.as_u64()).await;
        bench.end().await;
    });
}

/// Promise (Plugins): A plugin invokes another one with the permissions of the callee, and never in a cycle (B3).
#[test]
fn b3_invocations_have_the_permissions_of_the_callee() {
    run(|| async {
        let bench = Bench::new();
        bench.load_python("caller", &format!("permissions = [\"invoke\"]\n{METHODS}"), WORKER).await;
        bench
            .load_python(
                "callee",
                &format!("permissions = [\"artifacts.read\", \"artifacts.write\"]\n{METHODS}"),
                WORKER,
            )
            .await;
        bench.load_python("back", &format!("permissions = [\"invoke\"]\n{METHODS}"), WORKER).await;
        let invoke =
            |plugin: &str, method: &str, input: Value| json!({"plugin": plugin, "method": method, "input": input});
        let done = bench.call("caller", "invoke", invoke("callee", "artifact", json!({"text": "héllo"}))).await;
        assert_eq!(done, Ok(json!("héllo")));
        let own = bench.call("caller", "artifact", json!({"text": "x"})).await;
        assert_eq!(kind(&own), "permission-denied");
        let denied = bench.call("callee", "invoke", invoke("caller", "got", json!({"key": "x"}))).await;
        assert_eq!(kind(&denied), "permission-denied");
        let back = invoke("caller", "got", json!({"key": "x"}));
        let cycle = bench.call("caller", "invoke", invoke("back", "invoke", back)).await.unwrap_err();
        assert!(cycle.message.contains("cycle"), "{cycle:?}");
        bench.end().await;
    });
}

/// Promise (Plugins): Code that a plugin runs is in a sandbox of its own, under the plugin's limits.
#[test]
fn code_runs_in_a_sandbox_of_its_own() {
    run(|| async {
        let bench = Bench::new();
        let manifest = format!("permissions = [\"sandbox.execute\"]\n[sandbox.limits]\nmemory = \"128M\"\n{METHODS}");
        bench.load_python("runner", &manifest, WORKER).await;
        let result = bench.call("runner", "execute", json!({"code": "print(6 * 7)"})).await.unwrap();
        assert_eq!((&result["stdout"], &result["exitCode"]), (&json!("42\n"), &json!(0)));
        let eat = bench.call("runner", "execute", json!({"code": "x = bytearray(300 << 20)"})).await.unwrap();
        assert_ne!(eat["exitCode"], 0, "{eat}");
        bench.end().await;
    });
}

/// Promise (Plugins): Secrets are encrypted at rest, and each access is logged with the name and without the value (P7).
#[test]
fn p7_secrets_are_brokered_encrypted_and_logged() {
    run(|| async {
        let bench = Bench::new();
        let manifest = format!("permissions = [\"secrets.read\"]\nsecrets = [\"TOKEN\"]\n{METHODS}");
        bench.load_python("secretive", &manifest, WORKER).await;
        bench.host.set_secret("secretive", "TOKEN", Some("swordfish-123")).await.unwrap();
        assert_eq!(bench.call("secretive", "secret", json!({"name": "TOKEN"})).await, Ok(json!("swordfish-123")));
        assert_eq!(kind(&bench.call("secretive", "secret", json!({"name": "OTHER"})).await), "permission-denied");
        let lines = bench.wait_for("plugin.secret", 2).await;
        assert_eq!(lines[1]["name"], "TOKEN");
        assert!(!bench.lines.lock().iter().any(|line| line.to_string().contains("swordfish")));
        let state = bench.directory.path().join("state");
        let mut pending = vec![state];
        while let Some(path) = pending.pop() {
            if path.is_dir() {
                pending.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                let bytes = std::fs::read(&path).unwrap();
                let found = bytes.windows(9).any(|window| window == b"swordfish");
                assert!(!found, "{} has the secret", path.display());
            }
        }
        bench.end().await;
    });
}
