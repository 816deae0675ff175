//! Debuggers, profiles and hot reload of plugins, all in development mode only.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use cofferdam::plugins::{CallOptions, Debugging, LoadOptions, Mode, Port};
use cofferdam_plugin::Strategy;
use serde_json::{Value, json};

use super::debuggers::{Adapter, Inspector};
use super::{Bench, kind, run};

const NODE_MANIFEST: &str =
    "manifest = 1\nname = \"node\"\nversion = \"1.0.0\"\nruntime = \"node\"\nentry = \"main.js:activate\"\n";
/// The call's time limit is shorter than the stop at the breakpoint.
const SHORT_CALL: &str = "[sandbox.timeouts]\nidle = \"100ms\"\ncall = \"100ms\"\n[methods.work]\n";
const STOP: Duration = Duration::from_millis(500);

/// Held by a test while it reserves ports: between the end of a reservation and the debugger's own bind, another test
/// could take the port.
static RESERVING: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

fn has(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

fn options(strategy: Strategy, debugging: &Debugging) -> LoadOptions {
    LoadOptions { strategy: Some(strategy), debugging: Some(debugging.clone()), ..LoadOptions::default() }
}

/// Calls a method of a plugin with the command line. `settings` are further options, and `change` changes the environment.
fn call(bench: &Bench, package: &Path, settings: &[&str], change: impl Fn(&mut Command) -> &mut Command) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    command.args(["plugins", "call"]).arg(package).arg("work").args(settings);
    command.arg("--state").arg(bench.directory.path().join("cli"));
    change(&mut command).output().expect("the command runs")
}

/// Promise (Plugins): A client of the inspector protocol attaches to a plugin in Node.js, and no time limit ends a plugin
/// that stands at a breakpoint (B7).
#[test]
fn b7_an_inspector_attaches_and_stops_a_call_in_node() {
    let _reserving = RESERVING.lock();
    if !has("node", &["--version"]) {
        println!("SKIP b7_an_inspector_attaches_and_stops_a_call_in_node: there is no node");
        return;
    }
    run(|| async {
        let bench = Bench::with_mode(Mode::Development);
        let code =
            "exports.activate = (plugin) => plugin.method('work', async ({ a }) => { debugger; return a + 1; });";
        let package = bench.package("node", &format!("{NODE_MANIFEST}{SHORT_CALL}"), &[("main.js", code)]);
        let port = Arc::new(Port::reserve().unwrap());
        let debugging = Debugging::Inspect(Arc::clone(&port));
        bench.host.load(&package, options(Strategy::Thread, &debugging)).await.unwrap();
        bench.host.prepare("node").await.unwrap();
        bench.wait_for("plugin.started", 1).await;
        let mut inspector = Inspector::attach(port.number()).await;
        let sum = inspector.command("Runtime.evaluate", json!({"expression": "1+1"})).await;
        assert_eq!(sum["result"]["value"], 2, "{sum}");
        inspector.command("Debugger.enable", json!({})).await;
        let call = bench.host.call("node", "work", json!({"a": 41}), CallOptions::default());
        let paused = inspector.event("Debugger.paused").await;
        // The top frame is the method, with its parameter.
        let frame = &paused["callFrames"][0]["callFrameId"];
        let parameter = json!({"callFrameId": frame, "expression": "a"});
        let value = inspector.command("Debugger.evaluateOnCallFrame", parameter).await;
        assert_eq!(value["result"]["value"], 41, "{value}");
        tokio::time::sleep(STOP).await;
        inspector.command("Debugger.resume", json!({})).await;
        assert_eq!(call.result().await, Ok(json!(42)));
        assert_eq!(bench.host.plugins()[0].starts, 1);
        bench.end().await;
    });
}

/// Promise (Plugins): A client of the Debug Adapter Protocol attaches to a plugin in Python, where debugpy is installed (B7).
#[test]
fn b7_debugpy_attaches_and_stops_a_call_in_python() {
    let _reserving = RESERVING.lock();
    if !has("python3", &["-c", "import debugpy"]) {
        println!("SKIP b7_debugpy_attaches_and_stops_a_call_in_python: python3 has no debugpy");
        return;
    }
    run(|| async {
        let bench = Bench::with_mode(Mode::Development);
        let code = "
def activate(plugin):
    @plugin.method
    def work(ctx, a):
        return a + 1
";
        let package = bench.python("work", SHORT_CALL, code);
        let port = Arc::new(Port::reserve().unwrap());
        let debugging = Debugging::Inspect(Arc::clone(&port));
        bench.host.load(&package, options(Strategy::Thread, &debugging)).await.unwrap();
        bench.host.prepare("work").await.unwrap();
        bench.wait_for("plugin.started", 1).await;
        let mut adapter = Adapter::connect(port.number()).await;
        adapter.request("initialize", json!({"adapterID": "test"})).await;
        adapter.send("attach", json!({"justMyCode": false})).await;
        adapter.event("initialized").await;
        let breakpoint = json!({"source": {"path": package.join("main.py")}, "breakpoints": [{"line": 5}]});
        adapter.request("setBreakpoints", breakpoint).await;
        adapter.request("configurationDone", json!({})).await;
        let call = bench.host.call("work", "work", json!({"a": 41}), CallOptions::default());
        let stopped = adapter.event("stopped").await;
        assert_eq!(stopped["reason"], "breakpoint", "{stopped}");
        tokio::time::sleep(STOP).await;
        adapter.request("continue", json!({"threadId": stopped["threadId"]})).await;
        assert_eq!(call.result().await, Ok(json!(42)));
        bench.end().await;
    });
}

/// Runs a plugin with `--debug profile`, and returns the profile.
fn profile(bench: &Bench, package: &Path, suffix: &str) -> Value {
    let directory = bench.directory.path().join("profiles");
    fs::create_dir(&directory).unwrap();
    let settings = ["--development", "--debug", "profile", "--profile-dir", directory.to_str().unwrap()];
    let output = call(bench, package, &settings, |command| command);
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{report}");
    let files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let file = files[0].to_str().unwrap();
    assert!(file.ends_with(suffix), "{file}");
    assert!(report.contains(&format!("wrote the profile {file}")), "{report}");
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Promise (Plugins): `--debug profile` writes a profile in Chrome's format that names the functions of a plugin (B7).
#[test]
fn b7_a_profile_of_node_has_chromes_format_and_names_the_plugins_function() {
    if !has("node", &["--version"]) {
        println!("SKIP b7_a_profile_of_node_has_chromes_format_and_names_the_plugins_function: there is no node");
        return;
    }
    run(|| async {
        let bench = Bench::new();
        let code = "
function keep_busy() { const end = Date.now() + 200; let n = 0; while (Date.now() < end) n += 1; return n > 0; }
exports.activate = (plugin) => plugin.method('work', async () => keep_busy());
";
        let package = bench.package("node", &format!("{NODE_MANIFEST}[methods.work]\n"), &[("main.js", code)]);
        let profile = profile(&bench, &package, ".cpuprofile");
        let nodes = profile["nodes"].as_array().unwrap();
        assert!(nodes.iter().any(|node| node["callFrame"]["functionName"] == "keep_busy"), "{nodes:?}");
        assert!(profile["startTime"].as_u64() < profile["endTime"].as_u64());
        assert_eq!(profile["samples"].as_array().unwrap().len(), profile["timeDeltas"].as_array().unwrap().len());
        bench.end().await;
    });
}

/// Promise (Plugins): `--debug profile` writes trace events in Chrome's format that name the functions of a plugin (B7).
#[test]
fn b7_a_profile_of_python_has_chromes_format_and_names_the_plugins_function() {
    run(|| async {
        let bench = Bench::new();
        let code = "
def keep_busy():
    return sum(range(1000))

def activate(plugin):
    @plugin.method
    def work(ctx):
        return keep_busy()
";
        let package = bench.python("work", "[methods.work]\n", code);
        let profile = profile(&bench, &package, ".trace.json");
        let events = profile["traceEvents"].as_array().unwrap();
        let busy = events.iter().find(|event| event["name"] == "keep_busy").unwrap();
        assert_eq!(busy["ph"], "X");
        assert_eq!(busy["args"], json!({"file": package.join("main.py"), "line": 2}));
        assert!(["ts", "dur", "pid", "tid"].iter().all(|name| busy[name].is_number()), "{busy}");
        bench.end().await;
    });
}

fn version(number: u32) -> String {
    format!(
        "
import time

def activate(plugin):
    @plugin.method
    def version(ctx, wait=0):
        ctx.log.info('running')
        time.sleep(wait)
        return {number}
"
    )
}

/// Promise (Plugins): In development mode, a changed file restarts a plugin of the strategy inline after its running calls,
/// and never one of the strategy thread (B5).
#[test]
fn b5_a_changed_file_reloads_an_inline_plugin_after_its_running_calls() {
    run(|| async {
        let bench = Bench::with_mode(Mode::Development);
        let manifest = |strategy: &str| format!("[sandbox]\nstrategy = \"{strategy}\"\n[methods.version]\n");
        let inline = bench.python("inline", &manifest("inline"), &version(1));
        let thread = bench.python("thread", &manifest("thread"), &version(1));
        bench.load(&inline).await;
        bench.load(&thread).await;
        assert_eq!(bench.call("thread", "version", json!({})).await, Ok(json!(1)));
        let running = bench.host.call("inline", "version", json!({"wait": 1}), CallOptions::default());
        bench.wait_for("plugin.log", 2).await;
        fs::write(thread.join("main.py"), version(20)).unwrap();
        fs::write(inline.join("main.py"), version(20)).unwrap();
        let reloaded = bench.wait_for("plugin.reloaded", 1).await.remove(0);
        assert_eq!((&reloaded["plugin"], &reloaded["path"]), (&json!("inline"), &json!("main.py")));
        assert_eq!(bench.call("inline", "version", json!({})).await, Ok(json!(20)));
        assert_eq!(running.result().await, Ok(json!(1)));
        assert!(bench.events("plugin.crashed").is_empty());
        // A second round, so that the other plugin had time to reload.
        fs::write(inline.join("main.py"), version(300)).unwrap();
        bench.wait_for("plugin.reloaded", 2).await;
        assert_eq!(bench.call("inline", "version", json!({})).await, Ok(json!(300)));
        assert_eq!(bench.call("thread", "version", json!({})).await, Ok(json!(1)));
        bench.end().await;
    });
}

/// Promise (Plugins): A plugin that does not start works again as soon as its file is correct (B5).
#[test]
fn b5_a_corrected_file_is_loaded_although_the_plugin_crashed() {
    run(|| async {
        let bench = Bench::with_mode(Mode::Development);
        let manifest =
            "[sandbox]\nstrategy = \"inline\"\n[sandbox.restart]\nmax = 0\nwithin = \"1h\"\n[methods.version]\n";
        let package = bench.python("broken", manifest, "def activate(plugin:\n");
        bench.load(&package).await;
        let error = bench.call("broken", "version", json!({})).await.unwrap_err();
        assert!(error.message.contains("circuit-open"), "{error:?}");
        fs::write(package.join("main.py"), version(2)).unwrap();
        bench.wait_for("plugin.reloaded", 1).await;
        let deadline = tokio::time::Instant::now() + super::TIMEOUT;
        while kind(&bench.call("broken", "version", json!({})).await) == "unavailable" {
            assert!(tokio::time::Instant::now() < deadline, "the plugin does not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(bench.call("broken", "version", json!({})).await, Ok(json!(2)));
        bench.end().await;
    });
}

/// Promise (Plugins): Debugging is refused in production mode, in sandboxes, and for other languages (B7).
#[test]
fn b7_debugging_is_refused_in_production_mode_and_in_sandboxes() {
    let _reserving = RESERVING.lock();
    run(|| async {
        let ways = [Debugging::Inspect(Arc::new(Port::reserve().unwrap())), Debugging::Profile("/profile".into())];
        for way in &ways {
            let production = Bench::new();
            let package = production.python("work", "[methods.work]\n", "");
            for strategy in [Strategy::Thread, Strategy::Subprocess] {
                let refused = production.host.load(&package, options(strategy, way)).await.unwrap_err();
                assert!(refused.to_string().contains("production mode"), "{refused}");
            }
            production.end().await;
            let development = Bench::with_mode(Mode::Development);
            let package = development.python("work", "[methods.work]\n", "");
            let refused = development.host.load(&package, options(Strategy::Subprocess, way)).await.unwrap_err();
            assert!(refused.to_string().contains("a sandbox"), "{refused}");
            let manifest =
                "manifest = 1\nname = \"other\"\nversion = \"1.0.0\"\nruntime = \"command\"\nentry = [\"true\"]\n";
            let package = development.package("other", manifest, &[]);
            let refused = development.host.load(&package, options(Strategy::Thread, way)).await.unwrap_err();
            assert!(refused.to_string().contains("Python and Node.js"), "{refused}");
            development.end().await;
        }
    });
}

/// Promise (Plugins): A daemon that a plugin without isolation leaves behind does not delay the end of the host (B10).
#[test]
fn b10_a_daemon_with_the_plugins_output_does_not_delay_the_end() {
    run(|| async {
        let bench = Bench::with_mode(Mode::Development);
        let code = "
import subprocess

def activate(plugin):
    @plugin.method
    def daemon(ctx):
        return subprocess.Popen(['sleep', '600'], start_new_session=True).pid
";
        let package = bench.python("daemon", "[sandbox]\nstrategy = \"thread\"\n[methods.daemon]\n", code);
        bench.load(&package).await;
        let daemon = bench.call("daemon", "daemon", json!({})).await.unwrap();
        let ended = tokio::time::timeout(super::TIMEOUT, bench.end()).await;
        let killed = Command::new("kill").arg(daemon.to_string()).status().unwrap();
        assert!(ended.is_ok(), "the host waits for the daemon");
        assert!(killed.success(), "the daemon ended by itself, so that this test shows nothing");
    });
}

/// Promise (Plugins): The environment variable of development mode is reported loudly, and a Python without debugpy is
/// refused with the remedy (B5, B7).
#[test]
fn b5_the_environment_allows_development_mode_and_the_command_line_explains_refusals() {
    let _reserving = RESERVING.lock();
    run(|| async {
        let bench = Bench::new();
        let code = "def activate(plugin):\n    plugin.method('work')(lambda ctx: 'done')\n";
        let package = bench.python("work", "[sandbox]\nstrategy = \"inline\"\n[methods.work]\n", code);
        let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let refused = call(&bench, &package, &["--debug", "inspect"], |command| command);
        assert!(!refused.status.success());
        assert!(text(&refused).contains("--development"), "{}", text(&refused));
        let allowed = call(&bench, &package, &[], |command| command.env("COFFERDAM_PLUGIN_DEV_MODE", "1"));
        assert_eq!(allowed.stdout, b"\"done\"\n", "{}", text(&allowed));
        for loud in ["DEVELOPMENT MODE", "WITHOUT ISOLATION"] {
            assert!(text(&allowed).contains(loud), "{}", text(&allowed));
        }
        let off = call(&bench, &package, &[], |command| command.env("COFFERDAM_PLUGIN_DEV_MODE", "0"));
        assert!(!off.status.success());
        let programs = bench.package("programs", "", &[("python3", "#!/bin/sh\nexit 1\n")]);
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(programs.join("python3"), executable).unwrap();
        let settings = ["--development", "--debug", "inspect"];
        let lacking = call(&bench, &package, &settings, |command| command.env("PATH", &programs));
        assert!(text(&lacking).contains("python3 -m pip install debugpy"), "{}", text(&lacking));
        bench.end().await;
    });
}
