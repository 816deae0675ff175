//! Crashes, timeouts, restarts and the end of plugins.

use std::time::Duration;

use cofferdam::plugins::CallOptions;
use serde_json::json;

use super::{Bench, kind, run};

const FRAGILE: &str = "
import os, signal, sys, time

starts = None

def activate(plugin):
    @plugin.method
    def echo(ctx, input):
        return input
    @plugin.method
    def crash(ctx):
        print('about to crash', file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    @plugin.method
    def crash_once(ctx):
        if ctx.kv.get('crashed') is None:
            ctx.kv.set('crashed', True)
            os._exit(7)
        return 'second'
    @plugin.method
    def wait(ctx, seconds):
        ctx.cancelled.wait(seconds)
        ctx.log.info('woken', cancelled=ctx.cancelled.is_set())
        return 'waited'
    @plugin.method
    def hang(ctx):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        while True:
            time.sleep(1)
";
const MANIFEST: &str = "
[sandbox.restart]
max = 2
within = \"6s\"
minBackoff = \"10ms\"
maxBackoff = \"20ms\"
[sandbox.timeouts]
grace = \"300ms\"
[methods.echo]
[methods.crash]
[methods.crash_once]
[methods.wait]
timeout = \"1s\"
[methods.hang]
timeout = \"500ms\"
";

/// Promise (Plugins): A crash leaves the host alive, is logged with the last output, and the plugin restarts by its policy
/// (P4, P11, B4).
#[test]
fn p11_a_crash_leaves_the_host_alive_is_logged_and_the_plugin_restarts() {
    run(|| async {
        let bench = Bench::new();
        bench.load_python("fragile", MANIFEST, FRAGILE).await;
        let error = bench.call("fragile", "crash", json!({})).await.unwrap_err();
        assert_eq!(json!(error.kind), "unavailable");
        assert_eq!(error.data["reason"], "signal 9 ended it");
        assert!(error.data["lastOutput"].as_str().unwrap().contains("about to crash"), "{error:?}");
        let crash = bench.wait_for("plugin.crashed", 1).await.remove(0);
        assert!(crash["lastOutput"].as_str().unwrap().contains("about to crash"), "{crash}");
        assert_eq!(bench.call("fragile", "echo", json!({"a": 1})).await, Ok(json!({"a": 1})));
        assert_eq!(bench.host.plugins()[0].starts, 2);
        bench.end().await;
    });
}

/// Promise (Plugins): A call that was interrupted by a crash is made again only if the manifest marks its method as
/// idempotent.
#[test]
fn interrupted_calls_are_repeated_only_if_they_are_idempotent() {
    run(|| async {
        for (idempotent, expected) in [(false, "unavailable"), (true, "ok: \"second\"")] {
            let bench = Bench::new();
            let manifest =
                MANIFEST.replace("[methods.crash_once]", &format!("[methods.crash_once]\nidempotent = {idempotent}"));
            bench.load_python("fragile", &manifest, FRAGILE).await;
            assert_eq!(kind(&bench.call("fragile", "crash_once", json!({})).await), expected);
            assert_eq!(bench.events("call.retried").len(), usize::from(idempotent));
            bench.end().await;
        }
    });
}

/// Promise (Plugins): A plugin that crashes too often is not started again until a pause is over, and calls fail at once
/// with the reason (P4).
#[test]
fn p4_the_circuit_opens_and_closes_again() {
    run(|| async {
        let bench = Bench::new();
        bench.load_python("fragile", MANIFEST, FRAGILE).await;
        for _ in 0..3 {
            assert_eq!(kind(&bench.call("fragile", "crash", json!({})).await), "unavailable");
        }
        bench.wait_for("plugin.crashed", 3).await;
        let error = bench.call("fragile", "echo", json!({})).await.unwrap_err();
        assert_eq!(error.data["reason"], "circuit-open", "{error:?}");
        assert!(error.data["retryAfter"].as_f64().unwrap() <= 6.0);
        tokio::time::sleep(Duration::from_millis(6100)).await;
        assert_eq!(bench.call("fragile", "echo", json!({})).await, Ok(json!({})));
        let probed = bench.events("plugin.state").iter().any(|line| line["to"] == "probing");
        assert!(probed);
        bench.end().await;
    });
}

/// Promise (Plugins): A call that takes too long is cancelled. If the plugin does not end it, the process is ended by
/// SIGTERM and SIGKILL, and the next call finds a new one (P4, P8, P11).
#[test]
fn p11_a_hung_call_is_cancelled_then_killed() {
    run(|| async {
        let bench = Bench::new();
        bench.load_python("fragile", MANIFEST, FRAGILE).await;
        assert_eq!(kind(&bench.call("fragile", "wait", json!({"seconds": 60})).await), "timeout");
        assert_eq!(bench.wait_for("plugin.log", 1).await[0]["fields"], json!({"cancelled": true}));
        assert_eq!(bench.host.plugins()[0].starts, 1, "a plugin that obeys is not ended");
        let error = bench.call("fragile", "hang", json!({})).await.unwrap_err();
        assert_eq!((json!(error.kind), &error.data["ended"]), (json!("timeout"), &json!(true)));
        let crash = bench.wait_for("plugin.crashed", 1).await.remove(0);
        assert!(crash["reason"].as_str().unwrap().contains("'hang'"), "{crash}");
        assert_eq!(bench.call("fragile", "echo", json!({})).await, Ok(json!({})));
        bench.end().await;
    });
}

/// Promise (Plugins): A caller that drops its call cancels it.
#[test]
fn a_dropped_call_is_cancelled() {
    run(|| async {
        let bench = Bench::new();
        let manifest = MANIFEST.replace("timeout = \"1s\"", "timeout = \"60s\"");
        bench.load_python("fragile", &manifest, FRAGILE).await;
        bench.call("fragile", "echo", json!({})).await.unwrap();
        let call = bench.host.call("fragile", "wait", json!({"seconds": 60}), CallOptions::default());
        bench.wait_for("call.started", 2).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(call);
        assert_eq!(bench.wait_for("plugin.log", 1).await[0]["fields"], json!({"cancelled": true}));
        assert_eq!(bench.wait_for("call.ended", 2).await[1]["error"]["data"]["kind"], "cancelled");
        bench.end().await;
    });
}

/// Promise (Plugins): A call is ended when it used up its CPU time, and a plugin that used up its memory is ended with the
/// limit as the reason (P5).
#[test]
fn p5_limits_hold() {
    run(|| async {
        let bench = Bench::new();
        let manifest = "[sandbox.limits]\ncpuTime = \"1s\"\nmemory = \"64M\"\n[sandbox.timeouts]\ngrace = \"100ms\"\n[methods.spin]\n[methods.eat]\n";
        let code = "
def activate(plugin):
    @plugin.method
    def spin(ctx):
        while True:
            pass
    @plugin.method
    def eat(ctx):
        return len(bytearray(200 << 20))
";
        bench.load_python("greedy", manifest, code).await;
        let error = bench.call("greedy", "spin", json!({})).await.unwrap_err();
        assert_eq!((json!(error.kind), error.message.contains("CPU time")), (json!("limit"), true), "{error}");
        let error = bench.call("greedy", "eat", json!({})).await.unwrap_err();
        let by_limit =
            error.message.contains("the limit on memory") || error.data.get("type") == Some(&json!("MemoryError"));
        assert!(by_limit, "{error:?}");
        bench.end().await;
    });
}

/// Promise (Plugins): An idle plugin ends after its idle time, and starts again at the next call.
#[test]
fn idle_plugins_end_and_start_again() {
    run(|| async {
        let bench = Bench::new();
        let manifest = MANIFEST.replace("grace = \"300ms\"", "grace = \"300ms\"\nidle = \"300ms\"");
        bench.load_python("fragile", &manifest, FRAGILE).await;
        bench.call("fragile", "echo", json!({})).await.unwrap();
        let ended = bench.wait_for("plugin.ended", 1).await.remove(0);
        assert_eq!((&ended["reason"], &ended["planned"]), (&json!("it was idle"), &json!(true)));
        assert_eq!(bench.call("fragile", "echo", json!({})).await, Ok(json!({})));
        assert!(bench.events("plugin.crashed").is_empty());
        bench.end().await;
    });
}

/// Promise (Plugins): A drain lets a running call end, shuts the plugin down, and removes its temporary files (P8, B6, B10).
#[test]
fn b10_a_drain_lets_running_calls_end_and_removes_temporary_files() {
    run(|| async {
        let bench = Bench::new();
        let manifest = "permissions = [\"fs.write\"]\n[sandbox]\nfsAccess = { write = [\"tmp\"] }\n[methods.slow]\n";
        let code = "
import time

def activate(plugin):
    @plugin.method
    def slow(ctx):
        path = 'tmp/x.txt'
        ctx._send('resources.track', {'path': path}, lambda _: None)
        ctx.fs.write(path, 'x')
        ctx.log.info('written', path=path)
        time.sleep(1)
        return 'finished'
    @plugin.on_shutdown
    def stop():
        plugin.log.info('goodbye')
";
        bench.load_python("slow", manifest, code).await;
        let call = bench.host.call("slow", "slow", json!({}), CallOptions::default());
        let line = bench.wait_for("plugin.log", 1).await.remove(0);
        let path = bench.data("slow").join(line["fields"]["path"].as_str().unwrap());
        assert!(path.exists());
        bench.host.drain(Some(Duration::from_secs(20))).await;
        assert_eq!(call.result().await, Ok(json!("finished")));
        assert_eq!(bench.events("plugin.log")[1]["message"], "goodbye");
        bench.wait_for("plugin.ended", 1).await;
        assert!(!path.exists(), "{}", path.display());
    });
}

/// Promise (Plugins): A plugin that cannot start fails its first call at once, with its error and output.
#[test]
fn a_failed_start_is_reported_at_once() {
    run(|| async {
        let bench = Bench::new();
        bench.load_python("broken", "[methods.x]\n", "import nothing_of_that_name\n").await;
        let error = bench.call("broken", "x", json!({})).await.unwrap_err();
        assert!(error.message.contains("nothing_of_that_name"), "{error:?}");
        bench.load_python("lacks", "[methods.x]\n", "def activate(plugin):\n    pass\n").await;
        let error = bench.call("lacks", "x", json!({})).await.unwrap_err();
        assert!(error.message.contains("'x'"), "{error:?}");
        bench.end().await;
    });
}

/// Promise (Plugins): After a SIGKILL of the host, no process of a plugin is left.
#[test]
fn no_process_is_left_after_a_kill_of_the_host() {
    run(|| async {
        let bench = Bench::new();
        let package = bench.python(
            "echo",
            "[methods.echo]\n",
            "def activate(plugin):\n    plugin.method('echo')(lambda ctx: 1)\n",
        );
        let state = bench.directory.path().join("killed");
        let mut host = std::process::Command::new(env!("CARGO_BIN_EXE_cofferdam"))
            .args(["plugins", "run"])
            .arg(&package)
            .arg("--state")
            .arg(&state)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let log = state.join("plugins.jsonl");
        let started = async {
            while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("plugin.started")) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(super::TIMEOUT, started).await.unwrap();
        host.kill().unwrap();
        host.wait().unwrap();
        // The census of the test finds what is left.
        bench.end().await;
    });
}
